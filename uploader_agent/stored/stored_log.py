"""One partition's log in the store: a value, read from ``offset.wm`` and the manifests above it, then followed.

Only segments at or above the watermark's last one are listed and kept, so memory does not grow with a topic's age.

So stored segments that cover a hole are listed on demand: another replica's agent uploaded them, with other boundaries.
Each replica rolls its segments independently, so a segment that covers a hole may start far below it, and below line 1
of ``offset.wm``, from which a leader's agent lists. Relative offsets in a segment have 31 bits, which bounds its reach.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from itertools import pairwise, takewhile

from tidemark.errors import FormatError, NotFound, PreconditionFailed
from tidemark.formats.keys import MANIFEST_EXTENSION, SegmentName
from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.manifest import SegmentManifest, batch_of
from tidemark.formats.raw.watermark import Watermark
from tidemark.formats.raw.watermark_index import IndexEntry
from tidemark.intervals import Intervals
from tidemark.kafka_log import BatchHeader, Lineage, OpenTransaction, carry_forward, scan_batches
from tidemark.raw.objects import REACH, StoredManifest, pieces, read_manifest
from tidemark.raw.segments import segment_of
from tidemark.storage import ListedObject, PartitionStore, StoredWatermark
from uploader_agent.stored import histories, watermark
from uploader_agent.stored.histories import Shared
from uploader_agent.stored.objects import find
from uploader_agent.stored.watermark import ForeignWatermark, IsForeign

_CLOCK_SLACK = timedelta(hours=1)
"""The most difference between the clocks of a store and of an agent."""

_NEAREST_MANIFESTS = 64
"""Manifests below a hole that are read at any age: a leader may have written one just before it died."""

_NEAREST_SEGMENTS = 64
"""Segments below an offset that are read: a segment of each branch has it or ends there."""


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """The part of a manifest that uploads need. ``readable_end`` is the start of damage or of another lineage.

    ``last`` is the last batch below it; None if it is not known, or there is none.
    """

    name: SegmentName
    base_offset: int
    next_offset: int
    readable_end: int
    state: str
    broker: int
    open_transactions: tuple[OpenTransaction, ...]
    lineage: Lineage
    last: BatchHeader | None = None

    @classmethod
    def of(cls, manifest: SegmentManifest, lineage: Lineage) -> StoredSegment:
        """The part of ``manifest`` that matters to a leader with a log on ``lineage``."""
        end = manifest.damage.offset if manifest.damage else manifest.next_offset
        own = manifest.history
        diverged = own.divergence(lineage, end)
        readable = end if diverged is None else max(manifest.base_offset, diverged)
        return cls(
            name=manifest.name,
            base_offset=manifest.base_offset,
            next_offset=manifest.next_offset,
            readable_end=readable,
            state=manifest.state,
            broker=manifest.broker,
            open_transactions=manifest.open_transactions,
            lineage=own,
            last=batch_of(manifest.last_batch) if manifest.last_batch and readable == manifest.next_offset else None,
        )


@dataclass(frozen=True, eq=False)
class StoredLog:
    """This broker's knowledge of a partition's objects at one moment. It never changes: an update is another value.

    So all that one value tells belongs together, and two moments are the same state if they have the same object.
    ``logs`` are the segments with a ``.log`` that was seen, ``read`` the ETags of the manifests that were read.
    """

    broker: int
    surveyed: bool = False
    """True once the store itself has been read."""
    incarnation: int | None = None
    """The number of the topic's incarnation; None until the agents have agreed on it."""
    start: int = 0
    """The partition's first offset in the store; 0 until it is known."""
    stored: StoredWatermark | None = None
    """``offset.wm`` as last read or written, with its ETag."""
    agreed: Watermark | None = None
    """``stored`` up to the offset at which this leader's lineage leaves it."""
    foreign: ForeignWatermark | None = None
    """A foreign object under the key of ``offset.wm``, which may only be replaced."""
    gaps_found: tuple[Gap, ...] = ()
    """The open holes as last found, which ``offset.wm`` may not name yet."""
    segments: Mapping[SegmentName, StoredSegment] = field(default_factory=dict)
    logs: frozenset[SegmentName] = frozenset()
    read: Mapping[SegmentName, str] = field(default_factory=dict)
    below: Intervals = field(default_factory=Intervals)
    """The offsets that the watermark covers on this leader's lineage, acknowledged gaps included."""
    bytes_per_offset: float | None = None
    """The bytes per offset of the newest segment that was seen in the store; None if unknown."""
    trusted_next: int | None = None
    """The next offset in a former index, while that is trusted."""
    trusted_restored: int = 0
    """The number of restores in a former index."""
    stated_last: BatchHeader | None = None
    """The last stored batch in a former index."""
    is_split: bool = False
    """True if this leader's lineage leaves the stored one within a stored batch, or leaves a segment of it before it
    leaves the whole, or if two segments on it overlap. No election does that."""

    @classmethod
    def of_index(cls, entry: IndexEntry, broker: int) -> StoredLog:
        """The log in this broker's watermark index: all offsets up to its uploaded end, under its leadership."""
        return cls(
            broker,
            incarnation=entry.incarnation,
            below=Intervals([(0, entry.uploaded_end)]),
            bytes_per_offset=entry.bytes_per_offset,
            trusted_next=entry.next_offset,
            trusted_restored=entry.restored,
            stated_last=batch_of(entry.last_batch) if entry.last_batch else None,
        )

    # -- what it tells ------------------------------------------------------------------------------------------------

    @property
    def known(self) -> bool:
        """True once the state is known, from a survey or from a former watermark index."""
        return self.surveyed or self.trusted_next is not None

    @property
    def watermark(self) -> Watermark | None:
        """``offset.wm`` as last read or written."""
        return self.stored.watermark if self.stored else None

    @property
    def restored(self) -> int:
        """The number of restores in ``offset.wm``, or in the index that is trusted."""
        return len(self.stored.watermark.restores) if self.stored else self.trusted_restored

    @property
    def next_offset(self) -> int:
        """The offset below which the store has all offsets of this leader's log, even before its claim."""
        if self.trusted_next is not None:
            return self.trusted_next
        return self.agreed.next_offset if self.agreed else self.start

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The open holes of this leader's log, even before an ``offset.wm`` names them."""
        return self.agreed.gaps if self.agreed else self.gaps_found

    @property
    def remote_tier(self) -> tuple[tuple[int, int], ...]:
        """The offsets below the start that only Kafka's remote tier has, as ``offset.wm`` states them."""
        return self.agreed.remote_tier if self.agreed else ()

    @property
    def acknowledged(self) -> Intervals:
        """The offsets that ``offset.wm`` passes although nobody has them: a person has acknowledged that."""
        return Intervals.of(self.stored.watermark.acknowledged_gaps) if self.stored else Intervals()

    @property
    def has_epochs(self) -> bool:
        """True if what is stored has leader epochs."""
        stored = self.stored is not None and bool(self.stored.watermark.lineage)
        return stored or any(segment.lineage.entries for segment in self.segments.values())

    @cached_property
    def present(self) -> Intervals:
        """Offsets that can be read from the store."""
        return (self.below - self.acknowledged) | Intervals(
            (segment.base_offset, segment.readable_end) for segment in self.segments.values()
        )

    @cached_property
    def final(self) -> Intervals:
        """Offsets that need no upload: readable ones, and ones that this broker stored as corrupt."""
        own = [one for one in self.segments.values() if one.state == "corrupt" and one.broker == self.broker]
        return self.present | Intervals((one.base_offset, one.next_offset) for one in own) if own else self.present

    @property
    def damaged(self) -> Intervals:
        """Offsets from the first bad batch of a corrupt segment to its end."""
        return Intervals(
            (segment.readable_end, segment.next_offset)
            for segment in self.segments.values()
            if segment.state == "corrupt"
        )

    @cached_property
    def end(self) -> int:
        """The end of the last uploaded segment, even above a hole; 0 if there is none."""
        readable = (
            segment.readable_end for segment in self.segments.values() if segment.readable_end > segment.base_offset
        )
        return max([*(part.end for part in self.below), *readable], default=0)

    @cached_property
    def sealed_end(self) -> int:
        """The end of the stored offsets without a hole but acknowledged gaps, even before ``offset.wm`` has it."""
        return (self.present | self.acknowledged).contiguous_from(self.start)

    @property
    def readable_bases(self) -> list[int]:
        """Base offsets of the segments that are held in memory, are not corrupt and begin on this leader's lineage."""
        whole = [segment for segment in self.segments.values() if segment.state != "corrupt"]
        return [segment.base_offset for segment in whole if segment.readable_end > segment.base_offset]

    def has_log(self, base_offset: int) -> bool:
        """True if a ``.log`` with this base offset was seen."""
        return any(name.base == base_offset for name in self.logs)

    def has_bare_log(self, base_offset: int) -> bool:
        """True if a ``.log`` with this base offset was seen without a manifest."""
        return any(name.base == base_offset for name in self.logs - self.segments.keys())

    @property
    def shared(self) -> list[Shared]:
        """What ``offset.wm`` has on this leader's lineage."""
        return [Shared(self.agreed.history, self.agreed.next_offset)] if self.agreed else []

    def last_batch(self, end: int | None = None) -> BatchHeader | None:
        """The last batch that is known to be stored on this lineage below ``end``; None if none is known.

        From a former index, it may be packed.
        """
        known = [segment.last for segment in self.segments.values() if segment.last is not None]
        known += [self.stated_last] if self.stated_last else []
        below = [last for last in known if end is None or last.next_offset <= end]
        return max(below, key=lambda last: last.base_offset, default=None)

    def stated_last_below(self, end: int) -> BatchHeader | None:
        """The last batch below ``end`` in a former index, while that is trusted."""
        last = self.stated_last
        return last if last is not None and last.next_offset <= end else None

    def open_before(self, base_offset: int) -> tuple[OpenTransaction, ...] | None:
        """The transactions open at ``base_offset``, if a known segment on this lineage ends there; else None."""
        ends = (
            segment
            for segment in self.segments.values()
            if segment.next_offset == segment.readable_end == base_offset and segment.state == "whole"
        )
        return next((segment.open_transactions for segment in ends), None)

    def history(self, lineage: Lineage) -> Lineage:
        """``lineage``, extended below its start by the lineages of the stored segments on it.

        A broker forgets the epochs below its log start offset; segments that were held are uploaded after that.
        """
        live = (segment for segment in self.segments.values() if segment.readable_end > segment.base_offset)
        for segment in sorted(live, key=lambda segment: segment.base_offset, reverse=True):
            lineage = lineage.with_history(segment.lineage)
        return lineage

    # -- what follows it ----------------------------------------------------------------------------------------------

    def with_segment(self, stored: StoredManifest, lineage: Lineage) -> StoredLog:
        """The log with one more segment, whose manifest was read or written; ``lineage`` is this leader's."""
        return self.with_segments([stored], lineage)

    def with_segments(self, found: Iterable[StoredManifest], lineage: Lineage) -> StoredLog:
        """The log with the segments of all ``found`` manifests.

        A manifest that is known already takes the place of the known one: it was repaired, or this leader's lineage has
        changed since.
        """
        segments, read, logs = dict(self.segments), dict(self.read), set(self.logs)
        newest, bytes_per_offset = max((name.base for name in segments), default=-1), self.bytes_per_offset
        for stored in found:
            # Not with ``lineage`` alone: retention forgets epochs, and below its first one each branch would count.
            segment = StoredSegment.of(stored.manifest, self._with_past(lineage, stored.manifest))
            if segment.base_offset >= newest:
                newest, bytes_per_offset = segment.base_offset, _bytes_per_offset(stored.manifest) or bytes_per_offset
            segments[segment.name] = segment
            # Also of a segment of another branch: a search of the store reads no manifest twice.
            read[segment.name] = stored.etag
            if segment.state == "whole":  # damaged bytes lie in a ``.corrupt`` object
                logs.add(segment.name)
        return replace(self, segments=segments, read=read, logs=frozenset(logs), bytes_per_offset=bytes_per_offset)

    def _with_past(self, lineage: Lineage, manifest: SegmentManifest) -> Lineage:
        """``lineage``, to which retention has cut the leader's, with its past in ``offset.wm``.

        Otherwise each branch of that past would count. Epochs that both lack are those of ``manifest``: they came after
        those of ``offset.wm``, and below the start of ``lineage`` no epoch is newer than its first one. An epoch
        between two of ``offset.wm`` is of a branch that an unclean election has cut off, and so are its offsets.
        """
        if self.agreed is None or not lineage.entries:
            return lineage
        first_epoch, start = lineage.entries[0]
        known = self.agreed.history
        newest = max(known.epochs, default=-1)
        lacked = (
            (epoch, at)
            for epoch, at in manifest.lineage
            if at < start and epoch <= first_epoch and (epoch > newest or epoch in known.epochs)
        )
        return lineage.with_history(known).with_batches(lacked)

    def with_watermark(self, stored: StoredWatermark) -> StoredLog:
        """The log once this leader has written ``stored``, without the segments that lie wholly below its last one.

        The watermark has their offsets. Corrupt segments stay: only they tell which offsets are damaged, and final.
        """
        passed = {
            name
            for name, segment in self.segments.items()
            if segment.state == "whole" and max(segment.base_offset + 1, segment.next_offset) <= stored.base_offset
        }
        return replace(
            self,
            stored=stored,
            agreed=stored.watermark,
            foreign=None,
            below=self.below | Intervals([(stored.watermark.start_offset, stored.watermark.next_offset)]),
            segments={name: segment for name, segment in self.segments.items() if name not in passed},
            logs=self.logs - passed,
        )


def _bytes_per_offset(manifest: SegmentManifest) -> float | None:
    """Bytes per offset, to the thousandth; None if no byte is readable."""
    log = manifest.log if manifest.state == "whole" else None
    if log is None or not log.size or manifest.next_offset == manifest.base_offset:
        return None
    return round(log.size / (manifest.next_offset - manifest.base_offset), 3)


def load(
    partition: PartitionStore,
    lineage: Lineage,
    leader_epoch: int,
    topic_id: str | None,
    broker: int,
    is_foreign: IsForeign,
    *,
    replaced: bool = False,
) -> StoredLog:
    """Read the state of the store, as the leader with this ``lineage``. Without a watermark, list everything.

    A leader's log has the restores of ``offset.wm``; one that a restore has ``replaced`` has those of ``lineage``.

    Raises:
        Fenced: a later leader has taken over.
        ContinuityError: the lineages contradict each other.
        FormatError: names an object that does not parse.
        StoreError: the store failed.
    """
    current = watermark.fence(partition, topic_id, leader_epoch, is_foreign)
    if isinstance(current, StoredWatermark) and not replaced:  # no broker's disk tells them
        lineage = lineage.restored(current.watermark.restores)
    log, first = StoredLog(broker), 0
    if isinstance(current, ForeignWatermark):
        log = replace(log, foreign=current)
    elif current is not None:
        first = current.base_offset
        agreed = watermark.truncate(current.watermark, lineage, leader_epoch)
        # Segments above a hole are listed below: each manifest's lineage shows if the segment still counts.
        below = Intervals([(agreed.start_offset, agreed.next_offset)])
        log = replace(log, stored=current, agreed=agreed, start=agreed.start_offset, below=below)
        if agreed.next_offset <= first:  # cut off below line 1: line 1 moves back to the last segment below the cut
            first = last_base_below(partition, agreed.next_offset)
    manifests, logs = list_segments(partition, first)
    log = replace(log, logs=frozenset(entry.name for entry in logs))
    log = _with_last(partition, log.with_segments(_manifests(partition, manifests), lineage))
    return replace(log, is_split=log.is_split or _is_split(log))


def _manifests(partition: PartitionStore, listed: Iterable[ListedObject]) -> Iterator[StoredManifest]:
    """Read the ``listed`` manifests one by one: a topic may have thousands, of which little is kept."""
    for name, _, info in listed:
        stored = read_manifest(partition, name)
        if stored is None:
            raise FormatError(info.key, "was listed, but cannot be read")
        yield stored


def _is_split(log: StoredLog) -> bool:
    """True if the lineages and the ends of the segments alone show that :attr:`StoredLog.is_split`."""
    segments = log.segments.values()
    if any(_is_left_early(segment, one) for segment in segments for one in log.shared):
        return True
    live = sorted((segment.base_offset, segment.readable_end) for segment in segments if segment.state == "whole")
    return any(end > base for (_, end), (base, _) in pairwise(live))


def _is_left_early(segment: StoredSegment, shared: Shared) -> bool:
    """True if a leader's lineage leaves ``segment`` below the offset up to which that counts as ``shared`` with it."""
    end = min(shared.end, segment.next_offset)
    if segment.state != "whole" or segment.readable_end >= end:
        return False
    left = segment.lineage.divergence(shared.lineage, end)
    return (end if left is None else left) > max(segment.base_offset, segment.readable_end)


def _with_last(partition: PartitionStore, log: StoredLog) -> StoredLog:
    """``log`` with its last batch, read if no manifest states it: an earlier version wrote it, or it ends elsewhere.

    The log is split if this leader's lineage leaves it within a batch.
    """
    live = (segment for segment in log.segments.values() if segment.readable_end > segment.base_offset)
    newest = max(live, key=lambda segment: segment.readable_end, default=None)
    if newest is None or newest.last is not None or newest.state != "whole":
        return log
    stored = read_manifest(partition, newest.name)
    if stored is None or (stored.manifest.batch_count == 0):
        return log
    # Without its bytes nothing can be compared; verify tells that they are gone or damaged.
    with suppress(NotFound, PreconditionFailed, FormatError):
        segment = segment_of(stored.manifest, partition.keys.manifest(newest.name), partition.store.url)
        last, split = histories.last_batches(partition, segment, newest.readable_end)
        segments = {**log.segments, newest.name: replace(newest, last=last)}
        return replace(log, segments=segments, is_split=split is not None)
    return log


def last_base_below(partition: PartitionStore, offset: int) -> int:
    """The highest base offset below ``offset`` of a stored segment; 0 without one."""
    return max((entry.name.base for entry in partition.manifests(max(0, offset - REACH), offset)), default=0)


def list_segments(
    partition: PartitionStore, start: int, end: int | None = None
) -> tuple[list[ListedObject], list[ListedObject]]:
    """(Manifests, ``.log`` objects) of the segments that start in ``[start, end)``, by name."""
    manifests: list[ListedObject] = []
    logs: list[ListedObject] = []
    for entry in partition.objects(start, end):
        if entry.extension == MANIFEST_EXTENSION:
            manifests.append(entry)
        elif entry.extension == "log":
            logs.append(entry)
    return manifests, logs


def list_reaching(partition: PartitionStore, holes: Intervals) -> tuple[list[ListedObject], list[ListedObject]]:
    """Those of :func:`list_segments` that may overlap ``holes``, which are not empty."""
    return list_segments(partition, max(0, holes.parts[0].start - REACH), holes.parts[-1].end)


def read_news(
    partition: PartitionStore,
    manifests: Collection[ListedObject],
    etags: Mapping[SegmentName, str],
    holes: Intervals,
    gaps: tuple[Gap, ...],
) -> list[StoredManifest]:
    """Read those of the listed ``manifests`` that may cover ``holes``; ``etags`` are of the manifests already read.

    For holes in ``gaps``, only manifests written since may cover them; for others, the nearest ones below may too.
    """
    recorded = Intervals.of(gaps)
    since = min((gap.detected_at for gap in gaps), default=None)
    near: set[SegmentName] = set()
    for hole in holes - recorded:
        below = [entry.name for entry in manifests if entry.name.base < hole.end]
        near |= {*below[-_NEAREST_MANIFESTS:]}
    chosen = [
        name
        for name, _, info in manifests
        if etags.get(name) != info.etag
        and (name in near or name in etags or (since is not None and info.modified >= since - _CLOCK_SLACK))
    ]
    return [manifest for name in chosen if (manifest := read_manifest(partition, name)) is not None]


def transactions_open_at(
    partition: PartitionStore, offset: int, lineage: Lineage
) -> tuple[OpenTransaction, ...] | None:
    """The transactions open at ``offset`` of the log with this ``lineage``; None if no stored segment tells them.

    A manifest lists those open at its segment's end. Inside a segment, its batches below ``offset`` tell the rest.

    Raises:
        FormatError: a segment is damaged.
        StoreError: the store failed.
    """
    if offset == 0:
        return ()
    for entry in reversed([*partition.manifests(max(0, offset - REACH), offset)][-_NEAREST_SEGMENTS:]):
        stored = read_manifest(partition, entry.name)
        segment = StoredSegment.of(stored.manifest, lineage) if stored else None
        if segment is None or segment.state != "whole" or segment.readable_end < offset:
            continue
        if segment.next_offset == offset:
            return segment.open_transactions
        opened = transactions_open_at(partition, segment.base_offset, lineage)
        store, key = partition.located(stored.manifest, segment.name.file("log")) if stored else (partition.store, "")
        log = find(store, key) if opened is not None else None
        if opened is not None and log is not None:
            batches = scan_batches(pieces(store, log), log.key, segment.base_offset)
            return carry_forward(opened, takewhile(lambda header: header.next_offset <= offset, batches))
    return None


class RemoteState:
    """The current :class:`StoredLog`. Before a survey it is empty, or from this broker's former watermark index.

    Workers replace it as a whole, each change under a lock, so that none takes back another. Any thread reads it
    without the lock.
    """

    def __init__(self, broker: int) -> None:
        self._lock = threading.Lock()
        self._log = StoredLog(broker)

    @property
    def log(self) -> StoredLog:
        """The log as it is known now. Who needs several values that belong together reads this once."""
        return self._log

    def trust(self, entry: IndexEntry) -> None:
        """Trust this broker's former watermark index until there is a job. After a survey it is ignored.

        The entry must be of this same leadership and have no gap.
        """
        with self._lock:
            if not self._log.surveyed:
                self._log = StoredLog.of_index(entry, self._log.broker)

    def forget(self) -> None:
        """Forget everything but the place in the store, until the next survey."""
        with self._lock:
            self._log = StoredLog(self._log.broker, incarnation=self._log.incarnation, start=self._log.start)

    def survey(self, log: StoredLog, incarnation: int, start: int) -> None:
        """Adopt ``log``, read from the store. Without an ``offset.wm`` the partition begins at ``start``."""
        with self._lock:
            self._log = replace(
                log,
                surveyed=True,
                incarnation=incarnation,
                start=log.start if log.agreed else start,
                gaps_found=self._log.gaps_found,
            )

    def begin_at(self, start: int) -> None:
        """Have the partition begin at ``start`` as long as no ``offset.wm`` says where it does."""
        with self._lock:
            if not self._log.agreed:
                self._log = replace(self._log, start=start)

    def reload(self, log: StoredLog) -> None:
        """Adopt ``log``, read again since another agent wrote ``offset.wm``. Keep the segments that it lacks.

        Other workers may have added those after it was read.
        """
        with self._lock:
            before = self._log
            self._log = replace(
                log,
                surveyed=before.surveyed,
                incarnation=before.incarnation,
                start=log.start if log.agreed else before.start,
                gaps_found=before.gaps_found,
                segments={**log.segments, **before.segments},
                trusted_next=before.trusted_next,
            )

    def add(self, stored: StoredManifest, lineage: Lineage) -> None:
        """Add a stored manifest; ``lineage`` is this leader's."""
        with self._lock:
            self._log = self._log.with_segment(stored, lineage)

    def set_gaps(self, gaps: tuple[Gap, ...]) -> None:
        """Set the open holes."""
        with self._lock:
            if gaps != self._log.gaps_found:
                self._log = replace(self._log, gaps_found=gaps)

    def watermark_stored(self, written: StoredWatermark) -> None:
        """Note that ``offset.wm`` is stored as ``written``."""
        with self._lock:
            self._log = self._log.with_watermark(written)
