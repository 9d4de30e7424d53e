"""Recovers the tails of this broker from its own packs, for a lost head that no process knows.

The footers of all its packs are read: each line states the leadership of a range, and the range before it. So the last
range of each leadership is the end of its chain. A pack that no head has ever named, since its tick failed, does no
harm: its batches were committed, and are on the lineage of their leadership like those of any other pack. A reader
picks the valid batches by lineage.

One LIST, one or two GETs for each pack that retention has left (two days of ticks), and one for each ``offset.wm``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import structlog
from pydantic import ValidationError

from tidemark.errors import FormatError, LaterFormat, NotFound
from tidemark.formats.base import describe
from tidemark.formats.keys import ControlKeys, TopicPartition
from tidemark.formats.raw.head import MOST_ENTRY_BYTES, EntryKey, HeadEntry, PartitionOfId
from tidemark.formats.raw.pack import TRAILER_SIZE, Range, RangePointer, read_lines
from tidemark.kafka_log import Lineage
from tidemark.raw.packs import live_end
from tidemark.store import ObjectInfo, Store
from uploader_agent.clock import NEVER
from uploader_agent.packs.abandoned import Resolve
from uploader_agent.packs.chain import Unsealed
from uploader_agent.packs.head_entries import HeadEntries
from uploader_agent.packs.slots import run_all
from uploader_agent.runtime import Runtime
from uploader_agent.stored import watermark

logger = structlog.get_logger(__name__)


class _Sealed(NamedTuple):
    """The end of a partition's seals, from its ``offset.wm``; 0 without one."""

    next_offset: int = 0
    lineage: Lineage = Lineage()


@dataclass(slots=True)
class _Chain:
    """The end of one leadership's chain, and the amount of it that is not sealed."""

    last: Range
    pointer: RangePointer
    sealed: _Sealed
    unsealed: Unsealed = field(default_factory=Unsealed)
    compacted: bool = False
    starts: dict[int, int] = field(default_factory=dict)
    """The epochs of its batches, and the first offset seen of each."""

    def add(self, range_: Range, pointer: RangePointer) -> None:
        """Add a range of the leadership; ranges come in any order."""
        if (range_.next, range_.shipped_at) > (self.last.next, self.last.shipped_at):
            self.last, self.pointer = range_, pointer
        self.compacted = self.compacted or range_.compacted
        if range_.next > self.sealed.next_offset:
            self.unsealed = self.unsealed.plus(Unsealed(1, range_.size, range_.shipped_at))
            for epoch, start in range_.epochs:
                self.starts[epoch] = min(start, self.starts.get(epoch, start))

    def entry(self) -> HeadEntry | None:
        """The head's entry; None if all is sealed. Raises ValidationError if the packs lack a field of it."""
        last, sealed = self.last, self.sealed
        entry = HeadEntry(
            topic=last.topic,
            topic_id=last.topic_id,
            partition=last.partition,
            epoch=last.leader_epoch,
            lineage=self._lineage().since(min(sealed.next_offset, last.first)).entries,
            restores=last.restores,
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
        """The lineage of the leadership's log: from ``offset.wm`` if that has the epoch, and from the batches.

        The batches do not show the start of the leader's own epoch if it has packed none of its own.
        """
        epoch = self.last.leader_epoch
        known_below = self.sealed.lineage.parted_at(self.last.restores)
        own = self.sealed.lineage if known_below is None else self.sealed.lineage.truncated(known_below)
        stored = tuple(entry for entry in own.entries if entry[0] <= epoch)
        if stored and stored[-1][0] == epoch:
            return Lineage(stored).with_batches(self.starts.items())
        packed = sorted({**dict(self.last.epochs), **self.starts}.items())
        known = tuple(entry for entry in packed if entry[0] >= 0)
        return Lineage(known if known and known[-1][0] == epoch else (*known, (epoch, self.last.next)))


class PackedTails:
    """Reads the unsealed ranges in the packs of ``broker``, in any bucket."""

    def __init__(self, broker: int, resolve: Resolve, runtime: Runtime) -> None:
        self._broker = broker
        self._resolve = resolve
        self._runtime = runtime

    def entries(self, store: Store, control: ControlKeys, named: bool) -> HeadEntries:
        """The entries of a head that names all ranges, or has ``named`` them before. Raises LaterFormat and StoreError.

        Ranges of compacted topics that no head may have named are left out: a seal may lack records of them. Damaged
        packs are left out: their ranges are packed again from the disk, or sealed from there.
        """
        packs = [info for info in store.list(control.packs(self._broker)) if control.pack_of(info.key) is not None]
        packed = _Found(store, control, self._resolve, self._runtime)
        run_all([partial(packed.read, info) for info in packs], self._runtime)
        if packed.failure is not None:
            raise packed.failure
        entries = HeadEntries()
        for key, chain in packed.chains.items():
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
    """The chains in the packs that a few threads read."""

    def __init__(self, store: Store, control: ControlKeys, resolve: Resolve, runtime: Runtime) -> None:
        self.chains: dict[EntryKey, _Chain] = {}
        self.failure: Exception | None = None
        self._store = store
        self._control = control
        self._resolve = resolve
        self._lock = runtime.lock()
        self._sealed: dict[PartitionOfId, _Sealed] = {}

    def read(self, info: ObjectInfo) -> None:
        """Add the ranges of a pack to their chains."""
        if self.failure is not None:
            return
        try:
            ranges = [*_lines(self._store, self._control, info)]
            names = {_name(range_): range_ for range_, _ in ranges}
            sealed = {name: self._sealed_of(range_) for name, range_ in names.items() if name not in self._sealed}
        except LaterFormat as error:
            self.failure = error  # a head without its ranges would lose them
            return
        except (FormatError, NotFound) as error:
            logger.warning("pack_not_read", key=info.key, error=str(error))
            return
        except Exception as error:  # noqa: BLE001 - for the thread that waits for all of them
            self.failure = error
            return
        with self._lock:
            self._sealed.update(sealed)
            for range_, pointer in ranges:
                key = EntryKey(range_.topic_id, range_.partition, range_.leader_epoch, len(range_.restores))
                if key not in self.chains:
                    self.chains[key] = _Chain(range_, pointer, self._sealed[_name(range_)])
                self.chains[key].add(range_, pointer)

    def _sealed_of(self, range_: Range) -> _Sealed:
        tp = TopicPartition(range_.topic, range_.partition)
        try:
            _, store, keys = self._resolve(tp, range_.topic_id)
            stored = watermark.read(store, keys)
        except LaterFormat:
            raise
        except FormatError as error:
            logger.warning("offset_wm_not_read", partition=str(tp), error=str(error))
            stored = None
        return _Sealed(stored.watermark.next_offset, stored.lineage) if stored else _Sealed()


def _name(range_: Range) -> PartitionOfId:
    return PartitionOfId(range_.topic_id, range_.partition)


def _lines(store: Store, control: ControlKeys, info: ObjectInfo) -> Iterator[tuple[Range, RangePointer]]:
    """The ranges of a pack, and pointers to their lines. Raises as :func:`tidemark.formats.raw.pack.read_lines`."""
    name, lines = str(control.pack_of(info.key)), read_lines(store, info.key, info.size)
    for (start, packed), end in zip(lines.items(), [*lines, info.size - TRAILER_SIZE][1:], strict=True):
        yield packed.range, RangePointer(pack=name, position=start, length=end - start)
