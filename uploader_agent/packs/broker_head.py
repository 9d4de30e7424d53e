"""This broker's head in one bucket and prefix: read once, then replaced by If-Match.

Another version under the key means that another process of the same broker writes it, or that a write with a lost reply
has arrived. Then it is read again, and every partition continues from it. An object that is no head of this broker was
written by something else: its bytes are kept aside, and the head is made again in place of exactly that version.

A PUT without a known outcome, of this process or of a killed one, may still take effect after the head was read. It
fails once this process has replaced the head itself. Seals of compacted logs wait for that, see
:attr:`BrokerHead.settled`.

A broker may have thousands of entries, and a million packed ranges. So :class:`EntryLines` and :class:`KnownRanges`
keep them in few bytes each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cached_property
from struct import Struct
from typing import NamedTuple, Self

import structlog
from crc32c import crc32c
from typing_extensions import override

from tidemark.errors import FormatError, NotFound, PreconditionFailed, StoreError, TidemarkError, UnknownOutcome
from tidemark.formats.keys import Endpoint
from tidemark.formats.raw.head import EntryKey, Head, HeadEntry, entry_json, render
from tidemark.formats.raw.manifest import PackedPart
from tidemark.formats.raw.watermark_index import DamagedHead
from tidemark.raw.heads import DamagedVersion, find_head, read_head
from tidemark.storage import ClusterStore, Storage
from uploader_agent import __version__
from uploader_agent.runtime import Runtime

logger = structlog.get_logger(__name__)

_RANGE = Struct(">QIIQ")
"""Next offset, size in bytes, CRC32C, and the time of packing in milliseconds since 1970."""

REQUESTS_AT_A_TIME = 8

_LONGEST_RULE = 1000


class EntryLines(Mapping[EntryKey, HeadEntry]):
    """A head's entries by key, in the order in which they were first put, in the JSON form in which they are stored.

    An entry takes some 420 bytes as JSON, and 3 KiB as a model, which is made on demand.
    """

    def __init__(self, entries: Iterable[HeadEntry] = ()) -> None:
        self._lines = {entry.key: (entry.tail_end, entry_json(entry)) for entry in entries}
        self._size = sum(len(line) + 1 for _, line in self._lines.values())

    @override
    def __getitem__(self, key: EntryKey) -> HeadEntry:
        return HeadEntry.model_validate_json(self._lines[key][1])

    @override
    def __iter__(self) -> Iterator[EntryKey]:
        return iter(self._lines)

    @override
    def __len__(self) -> int:
        return len(self._lines)

    @override
    def __contains__(self, key: object) -> bool:
        return key in self._lines

    @property
    def lines(self) -> Collection[bytes]:
        """All entries, as a head has them."""
        return [line for _, line in self._lines.values()]

    def tail_end(self, key: EntryKey) -> int | None:
        """The end of the tail of an entry; None if there is no such entry."""
        return self._lines.get(key, (None, b""))[0]

    def copy(self) -> Self:
        """A copy, which may be changed."""
        copy = type(self)()
        copy._lines, copy._size = dict(self._lines), self._size
        return copy

    def put(self, entry: HeadEntry, most: int) -> bool:
        """Add or replace the entry. Return False, and change nothing, if all would take more than ``most`` bytes."""
        line, former = entry_json(entry), self._lines.get(entry.key)
        size = self._size + len(line) + 1 - (len(former[1]) + 1 if former is not None else 0)
        if size > most:
            return False
        self._lines[entry.key], self._size = (entry.tail_end, line), size
        return True

    def remove(self, key: EntryKey) -> None:
        """Remove an entry."""
        self._size -= len(self._lines.pop(key)[1]) + 1


Recover = Callable[[ClusterStore, bool], EntryLines]
"""Make the entries of an unknown head from packs; the flag says that there was a head, or may have been one."""


class BrokerHead:
    """For one thread, except the attributes that are for any.

    ``version`` increases with each reading or recovery of the head.
    """

    def __init__(self, bucket: Endpoint, storage: Storage, broker: int, recover: Recover, runtime: Runtime) -> None:
        self.key = storage.cluster_keys(bucket).head(broker)
        self.name = f"{bucket.store}/{self.key}"
        self.version = 0
        self.damage: DamagedHead | None = None
        """The last damage that was found; for any thread."""
        self.awaited = False
        """True if a seal waits until the head is settled; for any thread."""
        self.not_settled: TidemarkError | None = None
        """The error of the last :meth:`settle`, if it has failed; for any thread."""
        self.settled = False
        """True if this process has put the known head, so that no earlier PUT can take effect any more.

        False while the head is being put. For any thread.
        """
        self._bucket = bucket
        self._storage = storage
        self._broker = broker
        self._recover = recover
        self._runtime = runtime
        self._known = False
        self._complete = False
        """True if the entries have all that a head may ever have named: this process has put them, and nothing since.

        A PUT without a known outcome may have taken effect before the head was damaged: readers have landed its ranges.
        """
        self._confirmed = False
        """True if a request since the last :meth:`check` has shown that the store has the known head."""
        self._etag: str | None = None
        self._entries = EntryLines()

    @cached_property
    def cluster(self) -> ClusterStore:
        """The cluster's objects in the bucket. Raises the errors of opening its store."""
        return self._storage.cluster_store(self._bucket)

    @property
    def entries(self) -> EntryLines:
        """The entries as they were read or put last. Copy them to change them."""
        return self._entries

    def read(self) -> None:
        """Read the head, unless it is known, and write nothing. Raises as :func:`tidemark.raw.heads.read_head`."""
        if not self._known:
            stored = read_head(self.cluster, self._broker)
            self._know(EntryLines(stored.value.entries if stored else ()), stored.etag if stored else None)

    def make_whole(self) -> None:
        """Read the head, unless it is known. Keep an object that is no head aside, and make the head again.

        A missing head is made again, too, if this process knows it, or there are packs that no seal holds.

        Raises:
            LaterFormat: a later version of the agent wrote it, or an object from which it is made.
            StoreError: the store failed, or something else was faster; the next call decides again.
        """
        if self._known:
            return
        stored = find_head(self.cluster, self._broker)
        if isinstance(stored, DamagedVersion):
            self._make_again(stored, stored.error)
        elif stored is not None:
            self._know(EntryLines(stored.value.entries), stored.etag)
        elif self._etag is not None:
            self._make_again(None, FormatError(self.key, "was removed"))
        else:
            self._begin()

    def await_settling(self) -> None:
        """Have the head settled by its thread, since a seal waits for that. For any thread."""
        self.awaited = True

    def settle(self) -> None:
        """Make the head whole, and put it again unless it is settled. Raises as :meth:`make_whole` and :meth:`put`."""
        self.awaited, self.not_settled = False, None
        try:
            self.make_whole()
            if not self.settled:
                self.put(self._entries)
        except TidemarkError as error:
            self.not_settled = error
            raise

    def check(self) -> None:
        """Check that the store still has the known head, or still none, so that damage is found without new batches.

        Sends one HEAD; none if the head was put since the last check. Raises StoreError.
        """
        confirmed, self._confirmed = self._confirmed, False
        if confirmed or not self._known:
            return
        try:
            self._known = self.cluster.store.head(self.key).etag == self._etag
        except NotFound:
            self._known = self._etag is None
        self.settled = self.settled and self._known

    def put(self, entries: EntryLines) -> None:
        """Store ``entries`` in place of the known head.

        Raises:
            PreconditionFailed: another version was there; the head is read again before it is used.
            UnknownOutcome: the reply was lost, and the store has another head now; the head is read again.
            StoreError: the store failed, and nothing was written.
        """
        head = Head(
            cluster=self.cluster.keys.cluster,
            broker=self._broker,
            agent=__version__,
            written_at=self._runtime.utc_now(),
        )
        store = self.cluster.store
        key, body = render(head, self.cluster.keys, entries.lines)
        self.settled = False
        try:
            etag = store.put(key, body, crc32c=crc32c(body), if_match=self._etag, if_none_match=self._etag is None)
        except PreconditionFailed:
            self._known = False
            raise
        except UnknownOutcome as error:
            self._known = self._complete = False
            etag = self._read_back(key, body, error)
        except StoreError:
            raise
        except Exception:
            self._known = self._complete = False  # it may have been written
            raise
        self._etag, self._entries = etag, entries.copy()
        self._known = self._complete = self._confirmed = self.settled = True

    def _know(self, entries: EntryLines, etag: str | None) -> None:
        """Continue from ``entries``, which were read."""
        self._entries, self._etag = entries, etag
        self._known, self._complete, self._confirmed = True, False, True
        self.version += 1

    def _begin(self) -> None:
        """Continue without a head. If there are packs, it was removed, or a process was killed before its first."""
        entries = self._recover(self.cluster, self.version > 0)  # a PUT of this process may have been there
        if entries:
            self.put(entries)
            logger.warning("head_made_from_packs", key=self.key, entries=len(entries))
        self._know(entries, self._etag)

    def _make_again(self, damaged: DamagedVersion | None, error: FormatError) -> None:
        """Put the head again, in place of exactly the ``damaged`` version, or of no object."""
        rule = error.rule[:_LONGEST_RULE]
        damage = self.damage
        if damage is None or damage.made_at is not None or damage.rule != rule:
            damage = self.damage = DamagedHead(key=self.name, rule=rule, found_at=self._runtime.utc_now())
            logger.error("head_damaged", key=self.name, error=rule)
        if damaged is not None:
            kept = self.cluster.keys.damaged_head(self._broker, damaged.etag)
            self.cluster.store.copy(self.key, kept, source_etag=damaged.etag)
            damage = self.damage = damage.model_copy(update={"kept": kept})
        known = self._complete
        entries = self._entries if known else self._recover(self.cluster, True)
        self._etag = damaged.etag if damaged is not None else None
        self.put(entries)
        if not known:
            self.version += 1
        self.damage = damage.model_copy(update={"made_at": self._runtime.utc_now()})
        logger.warning("head_made_again", key=damage.key, kept=damage.kept, entries=len(entries), known=known)

    def _read_back(self, key: str, body: bytes, error: UnknownOutcome) -> str:
        """The ETag, if the store has ``body``; raises ``error`` if it does not."""
        try:
            stored = self.cluster.store.get(key, limit=Head.most_bytes)
        except (NotFound, FormatError):
            raise error from None
        if stored.body != body:
            raise error
        return stored.etag


class KnownRanges:
    """The ranges that this broker has packed of a partition: the last of a chain, each beginning at the former's end.

    The first begins at the offset ``first``. They never change: with another range, they are other ranges.
    """

    __slots__ = ("_packed", "first")

    def __init__(self, first: int, packed: bytes = b"") -> None:
        self.first = first
        self._packed = packed

    def followed_by(self, part: PackedPart, size: int) -> KnownRanges:
        """These and the chain's next range, which has ``size`` bytes."""
        moment = round(part.shipped_at.timestamp() * 1000)
        return KnownRanges(self.first, self._packed + _RANGE.pack(part.next, size, int(part.crc32c, 16), moment))

    def above(self, sealed_end: int) -> KnownRanges:
        """The ranges that end above the offset ``sealed_end``."""
        first, sealed = self.first, 0
        for following, *_ in self._entries():
            if following > sealed_end:
                break
            first, sealed = following, sealed + 1
        return KnownRanges(first, self._packed[sealed * _RANGE.size :]) if sealed else self

    @property
    def unsealed(self) -> Unsealed:
        """The number, size and age of the ranges."""
        entries = [*self._entries()]
        since = datetime.fromtimestamp(entries[0][3] / 1000, UTC) if entries else None
        return Unsealed(len(entries), sum(entry[1] for entry in entries), since)

    def parts(self) -> Iterator[PackedPart]:
        """The ranges as manifests list them."""
        first = self.first
        for following, _, checksum, moment in self._entries():
            shipped_at = datetime.fromtimestamp(moment / 1000, UTC)
            yield PackedPart(first=first, next=following, crc32c=f"{checksum:08x}", shipped_at=shipped_at)
            first = following

    def _entries(self) -> Iterator[tuple[int, int, int, int]]:
        return _RANGE.iter_unpack(self._packed)


class Unsealed(NamedTuple):
    """The packed ranges that no seal holds: ``ranges`` of ``size`` bytes, the first of them packed at ``since``."""

    ranges: int = 0
    size: int = 0
    since: datetime | None = None

    def plus(self, other: Unsealed) -> Unsealed:
        """The sum of both."""
        times = [since for since in (self.since, other.since) if since is not None]
        return Unsealed(self.ranges + other.ranges, self.size + other.size, min(times, default=None))


def run_all(tasks: Collection[Callable[[], object]], runtime: Runtime) -> None:
    """Run ``tasks``, up to :data:`REQUESTS_AT_A_TIME` at a time, and return when all have ended. They must not raise.

    They are requests of the packer, in threads of its own, so that they wait for no seal.
    """
    left = deque(tasks)

    def work() -> None:
        while True:
            try:
                task = left.popleft()
            except IndexError:
                return
            task()

    others = [runtime.thread(f"pack-{number}", work) for number in range(1, min(REQUESTS_AT_A_TIME, len(left)))]
    for thread in others:
        thread.start()
    work()
    for thread in others:
        thread.join()
