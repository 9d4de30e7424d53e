"""The tails that this broker's own packs tell of: what its head is made of where no process knows what that said.

The footers of all its packs are read: each line says of which leadership a range is, and names the range before it. So
the last range of each leadership is the end of its chain. A pack that no head has ever named, since its tick failed,
does no harm: its batches were committed, and lie on the lineage of their leadership as those of any other pack do. What
counts of them, a reader decides by the lineage.

One LIST, one or two GETs for each pack that retention has left (two days of ticks), and one for each ``offset.wm``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import structlog
from pydantic import ValidationError

from tidemark.errors import FormatError, NotFound
from tidemark.formats.base import describe
from tidemark.formats.head import MOST_ENTRY_BYTES, EntryKey, HeadEntry, PartitionOfId
from tidemark.formats.keys import ControlKeys, TopicPartition
from tidemark.formats.pack import TRAILER_SIZE, Range, RangePointer, read_lines
from tidemark.kafka_log import Lineage
from tidemark.raw.packs import live_end
from tidemark.store import ObjectInfo, Store
from uploader_agent.clock import NEVER
from uploader_agent.packs.abandoned import Resolve
from uploader_agent.packs.chain import Unsealed
from uploader_agent.packs.head_entries import HeadEntries
from uploader_agent.packs.slots import run_all
from uploader_agent.remote import watermark
from uploader_agent.runtime import Runtime

logger = structlog.get_logger(__name__)


class _Sealed(NamedTuple):
    """How far a partition is sealed, by its ``offset.wm``: up to 0 if that does not say."""

    next_offset: int = 0
    lineage: Lineage = Lineage()


@dataclass(slots=True)
class _Chain:
    """The end of what one leadership has packed, and how much of it is not sealed."""

    last: Range
    pointer: RangePointer
    sealed: _Sealed
    unsealed: Unsealed = field(default_factory=Unsealed)
    compacted: bool = False
    starts: dict[int, int] = field(default_factory=dict)
    """The epochs of its batches, and the first offset at which each was seen."""

    def add(self, one: Range, pointer: RangePointer) -> None:
        """Take a range of the leadership into account; they come in any order."""
        if (one.next, one.shipped_at) > (self.last.next, self.last.shipped_at):
            self.last, self.pointer = one, pointer
        self.compacted = self.compacted or one.compacted
        if one.next > self.sealed.next_offset:
            self.unsealed = self.unsealed.plus(Unsealed(1, one.size, one.shipped_at))
            for epoch, start in one.epochs:
                self.starts[epoch] = min(start, self.starts.get(epoch, start))

    def entry(self) -> HeadEntry | None:
        """The head's entry; None if all is sealed. Raises ValidationError if the packs do not tell enough for one."""
        last, sealed = self.last, self.sealed
        entry = HeadEntry(
            topic=last.topic,
            topic_id=last.topic_id,
            partition=last.partition,
            epoch=last.leader_epoch,
            lineage=self._lineage().since(min(sealed.next_offset, last.first)).entries,
            tail_end=last.next,
            last=self.pointer,
            high_watermark=last.next,
            observed_at=NEVER,
            ranges=self.unsealed.ranges,
            size=self.unsealed.size,
            since=self.unsealed.since,
        )
        is_sealed = last.next <= sealed.next_offset and live_end(entry, sealed.lineage) == last.next
        return None if is_sealed else entry

    def _lineage(self) -> Lineage:
        """That of the leadership's log: by ``offset.wm`` if that is on it, or else by the batches.

        These do not tell where the leader's own epoch begins if it has packed none of its own.
        """
        epoch = self.last.leader_epoch
        stored = tuple(one for one in self.sealed.lineage.entries if one[0] <= epoch)
        if stored and stored[-1][0] == epoch:
            return Lineage(stored)
        packed = sorted({**dict(self.last.epochs), **self.starts}.items())
        known = tuple(one for one in packed if one[0] >= 0)
        return Lineage(known if known and known[-1][0] == epoch else (*known, (epoch, self.last.next)))


class PackedTails:
    """Reads what the packs of ``broker`` hold beyond the seals, in any bucket."""

    def __init__(self, broker: int, resolve: Resolve, runtime: Runtime) -> None:
        self._broker = broker
        self._resolve = resolve
        self._runtime = runtime

    def entries(self, store: Store, control: ControlKeys, named: bool) -> HeadEntries:
        """The entries of a head that names all of them, or had ``named`` them. Raises StoreError.

        Of compacted topics, what no head may have named is left out: a seal may lack records of it.
        What a damaged pack holds is left out: it is packed again from the disk, or sealed from there.
        """
        packs = [info for info in store.list(control.packs(self._broker)) if control.pack_of(info.key) is not None]
        found = _Found(store, control, self._resolve, self._runtime)
        run_all([partial(found.read, info) for info in packs], self._runtime)
        if found.failure is not None:
            raise found.failure
        entries = HeadEntries()
        for key, chain in found.chains.items():
            if chain.compacted and not named:
                continue
            try:
                entry = chain.entry()
            except ValidationError as error:
                logger.warning("tail_not_recovered", tail=str(key), error=describe(error))
                continue
            if entry is not None and not entries.put(entry, MOST_ENTRY_BYTES):
                logger.warning("tail_not_recovered", tail=str(key), error="the head has no room for it")
        return entries


class _Found:
    """What is found in the packs that a few threads read."""

    def __init__(self, store: Store, control: ControlKeys, resolve: Resolve, runtime: Runtime) -> None:
        self.chains: dict[EntryKey, _Chain] = {}
        self.failure: Exception | None = None
        self._store = store
        self._control = control
        self._resolve = resolve
        self._lock = runtime.lock()
        self._sealed: dict[PartitionOfId, _Sealed] = {}

    def read(self, info: ObjectInfo) -> None:
        """Take the ranges of one pack into account."""
        if self.failure is not None:
            return
        try:
            ranges = [*_lines(self._store, self._control, info)]
            sealed = {name: self._sealed_of(one) for one, _ in ranges if (name := _name(one)) not in self._sealed}
        except (FormatError, NotFound) as error:
            logger.warning("pack_not_read", key=info.key, error=str(error))
            return
        except Exception as error:  # noqa: BLE001 - for the thread that waits for all of them
            self.failure = error
            return
        with self._lock:
            self._sealed.update(sealed)
            for one, pointer in ranges:
                key = EntryKey(one.topic_id, one.partition, one.leader_epoch)
                if key not in self.chains:
                    self.chains[key] = _Chain(one, pointer, self._sealed[_name(one)])
                self.chains[key].add(one, pointer)

    def _sealed_of(self, one: Range) -> _Sealed:
        try:
            _, store, keys = self._resolve(TopicPartition(one.topic, one.partition), one.topic_id)
            found = watermark.read(store, keys)
        except FormatError as error:
            logger.warning("offset_wm_not_read", partition=f"{one.topic}-{one.partition}", error=str(error))
            found = None
        return _Sealed(found.watermark.next_offset, Lineage(found.watermark.lineage)) if found else _Sealed()


def _name(one: Range) -> PartitionOfId:
    return PartitionOfId(one.topic_id, one.partition)


def _lines(store: Store, control: ControlKeys, info: ObjectInfo) -> Iterator[tuple[Range, RangePointer]]:
    """The ranges of a pack, and where their lines lie in it. Raises as :func:`tidemark.formats.pack.read_lines`."""
    name, lines = str(control.pack_of(info.key)), read_lines(store, info.key, info.size)
    for (begins, packed), ends in zip(lines.items(), [*lines, info.size - TRAILER_SIZE][1:], strict=True):
        yield packed.range, RangePointer(pack=name, position=begins, length=ends - begins)
