"""Holds rotated segments: their files outlive the broker's retention until the store has them.

Promises: a held segment is, byte for byte, the segment that was seen in the log directory, or it is dropped, and the
drop is logged. It belongs to (partition, topic id), whichever broker leads.

The segments to hold are found in a partition's directory. All their files are opened first and judged afterwards: the
file behind a name may change at any moment, the file behind a descriptor does not.

An upload reads a partition by :class:`HeldFiles`, from its directory and from what is held.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import structlog
from typing_extensions import override

from tidemark.errors import ConfigError, FormatError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.watermark import Watermark
from tidemark.intervals import Intervals
from tidemark.kafka_log import BatchHeader, Lineage, parse_offset_index
from uploader_agent.disk.log_dirs import DELETED, DirectoryListing, LocalSegment, list_segments, resolved
from uploader_agent.disk.segment_files import (
    OpenFile,
    PartitionFiles,
    SegmentChanged,
    SegmentFiles,
    batch_headers,
    file_name,
    log_bases,
    opened,
)
from uploader_agent.hold.held_segments import (
    EvictedOffsets,
    Held,
    HeldKey,
    HeldSegment,
    HeldSegments,
    HoldBackend,
    Owner,
    close_all,
    raise_limit,
)
from uploader_agent.observability.metrics import Metrics
from uploader_agent.runtime import MACHINE, Runtime
from uploader_agent.settings import HoldSettings
from uploader_agent.tuning import STANDARD, AgentTuning


@dataclass(frozen=True, slots=True)
class Cost:
    """A held set that the broker has deleted: its bytes, its last append, and the seconds since its deletion."""

    key: HeldKey
    size: int
    modified: float
    age: float


def to_evict(
    costs: Sequence[Cost], space: tuple[int, int] | None, *, share: float, min_free: float, max_age: timedelta
) -> list[HeldKey]:
    """The sets of one file system to evict when they take too much space, oldest first, until all bounds hold.

    ``share`` and ``min_free`` are fractions of the file system's size; ``space`` is None where it is unknown, so that
    only the age counts. Evicting everything may not be enough for ``min_free``: other programs fill the disk as well.
    """
    excess = lacking = 0.0
    if space is not None:
        total, free = space
        excess = sum(cost.size for cost in costs) - share * total
        lacking = min_free * total - free
    evicted: list[HeldKey] = []
    freed = 0
    for cost in sorted(costs, key=lambda cost: cost.modified):
        if cost.age > max_age.total_seconds() or freed < max(excess, lacking):
            evicted.append(cost.key)
            freed += cost.size
    return evicted


def space_of(folder: Path) -> tuple[int, int]:
    """(Size, space free for users) of the file system that ``folder`` is on, in bytes."""
    stat = os.statvfs(folder)
    return stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail


logger = structlog.get_logger(__name__)

EVICTED = "yielded.json"


class Hold:
    """All held segments of one agent.

    All methods are thread-safe except :meth:`look` and :meth:`enforce`, which only the loop calls.
    """

    def __init__(
        self,
        settings: HoldSettings,
        log_dirs: Collection[Path],
        state_dir: Path,
        metrics: Metrics,
        *,
        descriptors: int | None = None,
        runtime: Runtime = MACHINE,
        space: Callable[[Path], tuple[int, int]] = space_of,
        tuning: AgentTuning = STANDARD,
    ) -> None:
        """Read back the links of a former agent. At most ``descriptors`` are kept open; default: all available.

        Raises:
            ConfigError: a directory for links lies in a log directory; the broker would not start with it.
        """
        check_links(settings.links, log_dirs)
        self._settings = settings
        self._share = settings.max
        self._tuning = tuning
        self._log_dirs = log_dirs
        self._metrics = metrics
        self._clock = runtime.monotonic
        self._space = space
        links = settings.links if settings.enabled else ()
        self._shelf = HeldSegments(links, raise_limit() if descriptors is None else descriptors)
        self._evicted = EvictedOffsets(state_dir / EVICTED)
        self._gone_since: dict[HeldKey, float] = {}
        """The sets of files that the broker has unlinked, and when that was seen: the clock's jumps age nothing."""
        self._unheld: dict[Owner, int] = {}
        self._ignored: dict[Owner, set[int]] = {}
        self._said: set[object] = set()

    # -- for any thread -----------------------------------------------------------------------------------------------

    def segments(self, tp: TopicPartition, topic_id: str | None) -> list[LocalSegment]:
        """The held segments of a partition, by base offset, even if the log directory still has their files.

        They need not be contiguous, and may overlap after a replica was re-created. ``next_offset`` is never None.
        """
        return [note.segment for _, (note, _) in sorted(self._shelf.of((tp, topic_id)).items())]

    def owners(self) -> list[Owner]:
        """The (partition, topic id) of all held segments."""
        return self._shelf.owners()

    def files(
        self, tp: TopicPartition, topic_id: str | None, folder: Path | None, restores: tuple[int, ...] = ()
    ) -> SegmentFiles:
        """A partition's files, for a ``with`` statement: from ``folder`` first, else from the held segments.

        ``folder`` is None if no disk of this broker has the partition any more. The log has the ``restores`` of
        ``offset.wm``. See :class:`HeldFiles`.

        Raises:
            SegmentChanged: the directory is gone or belongs to another incarnation, and nothing is held.
        """
        owner = (tp, topic_id)
        held = self._shelf.of(owner)
        live: PartitionFiles | None = None
        if folder is not None:
            try:
                live = PartitionFiles(folder, topic_id, restores)
            except SegmentChanged:
                if not held:
                    raise
        elif not held:
            raise SegmentChanged(f"{tp}: is not on a disk of this broker, and none of its segments are held")

        def spoilt(base: int, reason: str) -> None:
            self._spoilt((owner, base), reason)

        return HeldFiles(folder or Path(str(tp)), live, held, spoilt, restores)

    def release(self, tp: TopicPartition, topic_id: str | None, below: int) -> None:
        """Release the held segments that end at or below the offset ``below``: the store has them."""
        self._release((tp, topic_id), Intervals([(0, below)]))

    def evicted(self, tp: TopicPartition, topic_id: str | None) -> Intervals:
        """The offsets that were evicted to stay within the bounds: a gap there gets the reason ``staging_full``."""
        return self._evicted.get((tp, topic_id))

    def recorded(self, tp: TopicPartition, topic_id: str | None, offsets: Intervals) -> None:
        """Remove evicted ``offsets`` that ``offset.wm`` now records."""
        self._evicted.remove((tp, topic_id), offsets)

    def reconfigure(self, settings: HoldSettings) -> None:
        """Apply other bounds; ``enabled`` and ``links`` keep their values from the start."""
        self._share = settings.max

    def close(self) -> None:
        """Close all descriptors; links stay for the next agent."""
        self._shelf.close()

    # -- for the loop -------------------------------------------------------------------------------------------------

    def look(
        self,
        tp: TopicPartition,
        topic_id: str | None,
        leader_epoch: int,
        folder: Path,
        final: Intervals,
        watermark: Watermark | None,
        listing: DirectoryListing | None = None,
    ) -> tuple[list[LocalSegment], list[LocalSegment]]:
        """Look at a led partition's directory, hold its rotated segments, and release the ones ``final`` in the store.

        ``watermark`` is the partition's, and ``listing`` the directory's, if the caller has them. Returns the held
        segments below the directory's, and the directory's, both by base offset: the last one is active, and there is
        none if the directory is gone.
        """
        listing = list_segments(folder) if listing is None else listing
        if not self._settings.enabled or not listing.segments:
            return [], listing.segments
        owned = Owned(tp, topic_id, leader_epoch)
        self._release((tp, topic_id), final)
        # First, since a segment that no longer belongs to the log must not hide its replacement.
        judged = self._drop_what_no_longer_counts(owned, folder, listing, watermark)
        self._hold_new(owned, folder, listing, final, watermark)
        return self._below(owned, listing) if judged else [], listing.segments

    def enforce(self) -> None:
        """Evict sets beyond the bounds, for each file system separately, and count the held ones.

        A look at all partitions must follow.
        """
        self._shelf.read_links()
        costs = self._costs()
        evicted = {key for device, sets in costs.items() for key in self._beyond(device, sets)}
        self._evict(evicted)
        kept = (cost.size for sets in costs.values() for cost in sets if cost.key not in evicted)
        self._metrics.held_bytes.set(sum(kept))
        self._metrics.held_segments.set(len(self._shelf))
        self._metrics.unheld_segments.set(sum(self._unheld.values()))
        self._unheld.clear()

    def _costs(self) -> dict[int, list[Cost]]:
        """The held sets of files that the broker has unlinked, by file system."""
        now, costs = self._clock(), defaultdict[int, list[Cost]](list)
        before, self._gone_since = self._gone_since, {}
        for key, note, keeper in self._shelf.all():
            try:
                if keeper.is_last(note.log):
                    stats = [keeper.stat(name) for name in note.files]
                    since = self._gone_since[key] = before.get(key, now)
                    size = sum(stat.st_size for stat in stats)
                    costs[stats[0].st_dev].append(Cost(key, size, note.modified, now - since))
            except OSError as error:
                logger.warning("held_segment_unreadable", partition=str(note.tp), file=note.log, error=str(error))
        return costs

    def _beyond(self, device: int, costs: list[Cost]) -> list[HeldKey]:
        space, tuning = self._space_on(device), self._tuning
        return to_evict(costs, space, share=self._share, min_free=tuning.hold_min_free, max_age=tuning.hold_max_age)

    def _space_on(self, device: int) -> tuple[int, int] | None:
        """The result of :func:`space_of` for the log directory; None if it cannot be read, as on a failed disk."""
        for log_dir in self._log_dirs:
            try:
                if log_dir.stat().st_dev == device:
                    return self._space(log_dir)
            except OSError as error:
                logger.debug("log_dir_unreadable", folder=str(log_dir), error=str(error))  # the leadership reports it
        return None

    def _evict(self, keys: Collection[HeldKey]) -> None:
        evicted: list[tuple[Owner, tuple[int, int]]] = []
        for key, note, _ in list(self._shelf.all()):
            if key not in keys:
                continue
            self._shelf.drop(key)
            evicted.append((key[0], (note.base_offset, note.next_offset)))
            self._metrics.evicted.inc()
            logger.error(
                "held_segment_evicted",
                partition=str(note.tp),
                base_offset=note.base_offset,
                next_offset=note.next_offset,
                rule="hold.max or a day is over, or the disk nearly full; offsets that the store lacks are now a gap",
            )
        if evicted:
            self._evicted.add(evicted)

    def _release(self, owner: Owner, final: Intervals) -> None:
        for base, (note, _) in self._shelf.of(owner).items():
            if final.covers(base, note.next_offset):
                self._shelf.drop((owner, base))
        self._evicted.remove(owner, final)

    def _hold_new(
        self, owned: Owned, folder: Path, listing: DirectoryListing, final: Intervals, watermark: Watermark | None
    ) -> None:
        """Open the segments that are not held yet."""
        owner = (owned.tp, owned.topic_id)
        held = self._shelf.of(owner)
        new: list[LocalSegment] = []
        others: list[int] = []
        for segment in listing.segments:
            if segment.next_offset is None or final.covers(segment.base_offset, segment.next_offset):
                continue
            if segment.base_offset in held:
                if held[segment.base_offset][0].segment == segment:
                    continue
                others.append(segment.base_offset)
            new.append(segment)
        ignored = self._ignored.get(owner, set()) & listing.deleted
        bases = unknown_deleted(listing, held, final) - ignored
        self._unheld.pop(owner, None)
        try:
            if not (new or bases):
                return
            with PartitionFiles(folder, owned.topic_id) as files:
                self._drop_others(owner, others, files.lineage(), watermark)
                self._hold_rotated(files, owned, new)
                self._hold_deleted(files, owned, listing, bases, watermark)
        except SegmentChanged:
            bases = set()
            return  # the directory is gone; the next look finds the new state
        except (FormatError, OSError) as error:
            self._warn_once((folder, type(error)), "cannot_hold", folder=str(folder), error=str(error))
            bases = set()  # the next look opens them again
        finally:
            self._ignored[owner] = ignored | bases
            if not self._ignored[owner]:
                del self._ignored[owner]
        held = self._shelf.of(owner)
        self._unheld[owner] = sum(segment.base_offset not in held for segment in new)

    def _drop_others(self, owner: Owner, bases: list[int], lineage: Lineage, watermark: Watermark | None) -> None:
        """Drop held segments in place of which the directory has other files: of the same log, or after a truncation.

        A partition that moves between disks is copied, so its files are others, with times of their own.
        """
        held = self._shelf.of(owner)
        for base in bases:
            note, keeper = held[base]
            reason = _no_longer_counts(note, keeper, lineage, watermark)
            if reason:
                self._spoilt((owner, base), reason)
            else:
                self._shelf.drop((owner, base))
                logger.info("held_segment_copied", partition=str(note.tp), base_offset=base, then="the copy is held")

    def _hold_rotated(self, files: PartitionFiles, owned: Owned, new: list[LocalSegment]) -> None:
        if not new:
            return
        with closing(rotated_segments(files, owned, files.lineage(), new)) as rotated:
            for segment in rotated:
                if not self._shelf.add(*segment):
                    return  # there is no room for newer ones either

    def _hold_deleted(
        self,
        files: PartitionFiles,
        owned: Owned,
        listing: DirectoryListing,
        bases: set[int],
        watermark: Watermark | None,
    ) -> None:
        if not bases:
            return
        held = [note for note, _ in self._shelf.of((owned.tp, owned.topic_id)).values()]
        start, found = listing.segments[0].base_offset, deque[FoundSegment]()
        try:
            found.extend(deleted_segments(files, owned, bases))
            notes = [segment.note for segment in found]
            chosen = {note.base_offset for note in believable(notes, held, start, files.lineage(), watermark)}
            while found:
                segment = found.popleft()
                if segment.note.base_offset in chosen:
                    self._take_deleted(segment)
                else:
                    close_all(segment.files)
        finally:
            for segment in found:
                close_all(segment.files)

    def _take_deleted(self, segment: FoundSegment) -> None:
        note = segment.note
        held = self._shelf.add(*segment)
        logger.info(
            "deleted_segment_found",
            partition=str(note.tp),
            base_offset=note.base_offset,
            next_offset=note.next_offset,
            held=held,
        )

    def _drop_what_no_longer_counts(
        self, owned: Owned, folder: Path, listing: DirectoryListing, watermark: Watermark | None
    ) -> bool:
        """Judge the held segments that the directory no longer has. Return False if they cannot be judged now."""
        owner = (owned.tp, owned.topic_id)
        live = {segment.base_offset for segment in listing.segments}
        gone = {base: held for base, held in self._shelf.of(owner).items() if base not in live}
        if not gone:
            return True
        try:
            with PartitionFiles(folder, owned.topic_id) as files:
                lineage = files.lineage()
        except SegmentChanged:
            return False
        except (FormatError, OSError) as error:
            self._warn_once((folder, type(error)), "lineage_unreadable", folder=str(folder), error=str(error))
            return False
        judged = True
        for base, (note, keeper) in gone.items():
            try:
                reason = _no_longer_counts(note, keeper, lineage, watermark)
            except OSError as error:  # it may be the only copy: it stays until it can be judged
                self._warn_once((folder, base), "held_segment_unreadable", file=note.log, error=str(error))
                judged = False
                continue
            if reason:
                self._spoilt((owner, base), reason)
        return judged

    def _below(self, owned: Owned, listing: DirectoryListing) -> list[LocalSegment]:
        """The held segments below the first live one."""
        start = listing.segments[0].base_offset
        return [segment for segment in self.segments(owned.tp, owned.topic_id) if segment.base_offset < start]

    def _spoilt(self, key: HeldKey, reason: str) -> None:
        self._shelf.drop(key)
        (tp, _), base_offset = key
        logger.warning("held_segment_dropped", partition=str(tp), base_offset=base_offset, reason=reason)

    def _warn_once(self, subject: object, event: str, **details: str) -> None:
        if subject not in self._said:
            self._said.add(subject)
            logger.warning(event, **details)


def check_links(links: Collection[Path], log_dirs: Collection[Path]) -> None:
    """Raise ConfigError if a directory for links lies in a log directory. The broker would not start with it."""
    for folder in links:
        for log_dir in log_dirs:
            if resolved(folder).is_relative_to(resolved(log_dir)):
                rule = f"{folder} is in the log directory {log_dir}: Kafka does not start with foreign files there"
                raise ConfigError("the agent's file", [("hold.links", rule)])


def _no_longer_counts(note: HeldSegment, keeper: HoldBackend, live: Lineage, watermark: Watermark | None) -> str | None:
    """The reason that a held segment does not belong to the log; None if it belongs to it.

    Raises:
        OSError: that cannot be told now.
    """
    try:
        stat = keeper.stat(note.log)
    except FileNotFoundError as error:
        return str(error)
    if (stat.st_size, stat.st_mtime) != (note.size, note.modified):
        return "it was written to after it was rotated: the log was truncated"
    diverged = note.diverges(live)
    if diverged is not None:
        return f"the live lineage leaves it at offset {diverged}"
    if note.deleted and not _lineages_agree(note, live, watermark):
        return "it was found .deleted, and it does not agree with the watermark's lineage"
    return None


class HeldFiles(SegmentFiles):
    """A partition's files as an upload reads them: from its directory, which may be gone, else from held segments.

    The lineage is the live one, extended by the records of held segments with an opened ``.log``, because the broker
    forgets the epochs below its log start. Without a directory, it comes from the records alone.

    ``spoilt`` is called with a base offset and the reason when held bytes turn out to have changed.
    """

    def __init__(
        self,
        folder: Path,
        live: PartitionFiles | None,
        held: Held,
        spoilt: Callable[[int, str], None],
        restores: tuple[int, ...],
    ) -> None:
        self._folder = folder
        self._live = live
        self._held = held
        self._by_name = {name: base for base, (note, _) in held.items() for name in note.files}
        self._spoilt = spoilt
        self._restores = restores
        self._from_held: set[int] = set()
        self._stack = ExitStack()
        if live is not None:
            self._stack.callback(live.close)

    @override
    def open(self, name: str) -> OpenFile | None:
        file = self._live.open(name) if self._live else None
        if file is not None or name not in self._by_name:
            return file
        base = self._by_name[name]
        note, keeper = self._held[base]
        if not self._is_same(note):
            return None
        descriptor = keeper.open(name)
        if descriptor is None:
            return None
        self._stack.callback(os.close, descriptor)
        file = opened(name, descriptor)
        if name == note.log:
            self._from_held.add(base)
            if (file.size, file.stat.st_mtime) != (note.size, note.modified):
                raise self._no_longer_counts(base, "it was written to after it was rotated: the log was truncated")
        return file

    @override
    def lineage(self) -> Lineage:
        trusted = self._from_held
        if self._live is None:
            trusted = trusted | {base for base, (note, _) in self._held.items() if not note.deleted}
        lineage = self._live.lineage() if self._live else Lineage(restores=self._restores)
        for base in sorted(trusted, reverse=True):
            lineage = lineage.with_history(Lineage(self._held[base][0].lineage, self._restores))
        return lineage

    @override
    def next_base(self, base_offset: int) -> int | None:
        bases = set(log_bases(self._live.names())) if self._live else set()
        if base_offset not in bases and base_offset in self._held:
            return self._held[base_offset][0].next_offset
        return min((base for base in bases if base > base_offset), default=None)

    @override
    def previous_base(self, base_offset: int) -> int | None:
        bases = {*self._held, *(log_bases(self._live.names()) if self._live else ())}
        return max((base for base in bases if base < base_offset), default=None)

    @override
    def path(self, name: str) -> str:
        return str(self._folder / name)

    def close(self) -> None:
        """Close the files; held segments stay held."""
        self._stack.close()

    def _is_same(self, note: HeldSegment) -> bool:
        """True if no live segment has the base offset of the held segment, or that segment is the held one."""
        log = self._live.open(file_name(note.base_offset, "log")) if self._live else None
        return log is None or (log.size, log.stat.st_mtime) == (note.size, note.modified)

    def _no_longer_counts(self, base: int, reason: str) -> SegmentChanged:
        self._spoilt(base, reason)
        return SegmentChanged(f"{self.path(self._held[base][0].log)}: the held files no longer count: {reason}")


def believable(
    candidates: Sequence[HeldSegment],
    held: Sequence[HeldSegment],
    live_start: int,
    live: Lineage,
    watermark: Watermark | None,
) -> list[HeldSegment]:
    """The segments of ``candidates`` that belong to the log below ``live_start``, beside the segments already ``held``.

    Candidates exist only as ``.deleted`` files. Retention leaves such files below the first live segment. Truncations
    and compactions may leave others, with data that the log no longer has: they end above the first live base offset,
    or have older leader epochs than the new data.

    Those that belong end at or below ``live_start``, share no offset with held segments, and have a lineage that agrees
    with the ``live`` one and the watermark's, where these are known. If two share an offset, the later epoch there
    counts.
    """
    return [
        note
        for note in candidates
        if note.next_offset <= live_start
        and not any(_overlap(note, other) for other in held)
        and all(_replaces(note, other) for other in candidates if other is not note and _overlap(note, other))
        and _lineages_agree(note, live, watermark)
    ]


def _overlap(note: HeldSegment, other: HeldSegment) -> bool:
    return note.base_offset < other.next_offset and other.base_offset < note.next_offset


def _replaces(note: HeldSegment, other: HeldSegment) -> bool:
    """True if ``note`` was written after ``other`` had been truncated, judged at the first offset that both claim."""
    offset = max(note.base_offset, other.base_offset)
    epoch, before = Lineage(note.lineage).epoch_at(offset), Lineage(other.lineage).epoch_at(offset)
    return epoch is not None and before is not None and epoch > before


def _lineages_agree(note: HeldSegment, live: Lineage, watermark: Watermark | None) -> bool:
    """True if the lineage of a ``.deleted`` segment agrees with the live lineage and the watermark's."""
    try:
        Lineage.of(note.lineage, note.log)
    except FormatError:
        return False  # the epochs of a log never decrease
    if note.diverges(live) is not None:
        return False
    return watermark is None or note.diverges(Lineage(watermark.lineage), watermark.next_offset) is None


EXTENSIONS = ("log", "index", "timeindex", "snapshot")
"""The files that sealing reads: the bytes, the index, the time index, and the transactions open at the base."""

_OPENED_AT_ONCE = 32
"""Segments opened before the directory is listed again. Their descriptors come out of the headroom."""


class FoundSegment(NamedTuple):
    """A segment to hold: its record, and its open files on ``device``, which the receiver then owns."""

    note: HeldSegment
    files: dict[str, int]
    device: int


class Owned(NamedTuple):
    """The owner of segments: a partition of one topic id, and the epoch of its leadership."""

    tp: TopicPartition
    topic_id: str | None
    leader_epoch: int


def rotated_segments(
    files: PartitionFiles, owned: Owned, lineage: Lineage, segments: Sequence[LocalSegment]
) -> Generator[FoundSegment]:
    """Open ``segments``, oldest first. Segments that have changed since the listing are left out.

    Closing the iterator closes the files that the caller has not received. OSError for files that could not be opened
    is raised at the end.
    """
    failure: OSError | None = None
    for start in range(0, len(segments), _OPENED_AT_ONCE):
        taken: deque[tuple[LocalSegment, dict[str, int]]] = deque()
        try:
            for segment in segments[start : start + _OPENED_AT_ONCE]:
                try:
                    taken.append((segment, take(files, segment.base_offset)))
                except OSError as error:
                    failure = error
            names = files.names()
            while taken:
                segment_found = _rotated(owned, lineage, *taken[0], names)
                _, opened_files = taken.popleft()
                if segment_found is None:
                    close_all(opened_files)
                else:
                    yield segment_found
        finally:
            for _, opened_files in taken:
                close_all(opened_files)
    if failure is not None:
        raise failure


def deleted_segments(files: PartitionFiles, owned: Owned, bases: Iterable[int]) -> Iterator[FoundSegment]:
    """Open the usable ``.deleted`` files of the segments with these ``bases``."""
    for base in sorted(bases):
        taken = take(files, base, DELETED)
        try:
            log, index = open_file(taken, file_name(base, "log")), open_file(taken, file_name(base, "index"))
            known = extent(log, index, base) if log is not None else None
        except OSError:
            close_all(taken)
            raise
        if log is None or known is None:
            close_all(taken)
            continue
        end, epochs = known
        segment = LocalSegment(base, end, log.size, log.stat.st_mtime)
        note = _note(owned, Lineage(epochs), segment, taken).model_copy(update={"deleted": True})
        yield FoundSegment(note, taken, log.stat.st_dev)


def unknown_deleted(listing: DirectoryListing, known: Iterable[int], final: Intervals) -> set[int]:
    """Bases of unknown ``.deleted`` segments below the first live one that the store may not have."""
    if not listing.deleted:
        return set()
    live_start = listing.segments[0].base_offset
    bases = sorted(base for base in listing.deleted if base < live_start)
    ends = [*bases[1:], live_start]
    lacking = {base for base, end in zip(bases, ends, strict=False) if not final.covers(base, end)}
    return lacking - set(known)


def _rotated(
    owned: Owned, lineage: Lineage, segment: LocalSegment, files: dict[str, int], names: list[str]
) -> FoundSegment | None:
    log = open_file(files, file_name(segment.base_offset, "log"))
    if log is None or (log.size, log.stat.st_mtime) != (segment.size, segment.modified):
        return None
    assert segment.next_offset is not None
    if not ends_at(names, segment.base_offset, segment.next_offset):
        return None
    return FoundSegment(_note(owned, lineage, segment, files), files, log.stat.st_dev)


def _note(owned: Owned, lineage: Lineage, segment: LocalSegment, files: dict[str, int]) -> HeldSegment:
    assert segment.next_offset is not None
    return HeldSegment(
        topic=owned.tp.topic,
        partition=owned.tp.partition,
        topic_id=owned.topic_id,
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        size=segment.size,
        modified=segment.modified,
        leader_epoch=owned.leader_epoch,
        lineage=lineage.truncated(segment.next_offset).entries,
        files=tuple(files),
    )


def take(files: PartitionFiles, base_offset: int, suffix: str = "") -> dict[str, int]:
    """Open descriptors of a segment's files, by name without ``suffix``; empty if its ``.log`` is gone.

    The caller closes them. Raises OSError if a file cannot be opened.
    """
    taken: dict[str, int] = {}
    try:
        for extension in EXTENSIONS:
            name = file_name(base_offset, extension)
            descriptor = files.descriptor(name + suffix)
            if descriptor is not None:
                taken[name] = descriptor
            elif extension == "log":
                break
    except OSError:
        close_all(taken)
        raise
    return taken


def open_file(files: dict[str, int], name: str) -> OpenFile | None:
    """The file ``name`` of ``files``, to read from; ``files`` still own it. None if it is not there."""
    return opened(name, files[name]) if name in files else None


def ends_at(names: Iterable[str], base_offset: int, next_offset: int) -> bool:
    """True if ``next_offset`` follows ``base_offset``'s segment in a later listing of the directory.

    A listing that ran while segments were added may have missed a segment between the two. If the segment was deleted
    in the meantime, the next segment may have been deleted too: then ``.deleted`` files count as well.
    """
    names = list(names)
    bases = set(log_bases(names))
    if base_offset not in bases:
        bases |= set(log_bases(names, DELETED))
    return min((base for base in bases if base > base_offset), default=None) == next_offset


def extent(log: OpenFile, index: OpenFile | None, base_offset: int) -> tuple[int, tuple[tuple[int, int], ...]] | None:
    """The end of a sound-looking segment, and the leader epochs of its batches with their first offsets.

    From the headers of the first and last batches; from all headers if the two epochs differ. None if there are no
    batches, or the file does not end with a complete batch. No checksum is verified.
    """
    first = next(batch_headers(log, 0), None)
    last = _last_batch(log, _last_indexed(log, index, base_offset)) or _last_batch(log, 0)
    if first is None or last is None:
        return None
    if first.leader_epoch == last.leader_epoch:
        return last.next_offset, _epochs([first])
    return last.next_offset, _epochs(batch_headers(log, 0))


def _last_indexed(log: OpenFile, index: OpenFile | None, base_offset: int) -> int:
    """The last position in the index."""
    if index is None:
        return 0
    try:
        entries = parse_offset_index(index.read(), base_offset, log.size, index.name)
    except FormatError:
        return 0  # reading from the start takes longer, and finds the same batch
    return entries[-1].position if entries else 0


def _last_batch(log: OpenFile, position: int) -> BatchHeader | None:
    last = deque(batch_headers(log, position), maxlen=1)
    return last[0] if last and last[0].end == log.size else None


def _epochs(batches: Iterable[BatchHeader]) -> tuple[tuple[int, int], ...]:
    epochs: list[tuple[int, int]] = []
    for header in batches:
        if header.leader_epoch >= 0 and (not epochs or epochs[-1][0] != header.leader_epoch):
            epochs.append((header.leader_epoch, header.base_offset))
    return tuple(epochs)
