"""Finds the segments to hold in a partition's directory, opens their files, and proves where each segment ends.

All files are opened first and judged afterwards: the file behind a name may change at any moment, the file behind a
descriptor does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

from tidemark.errors import FormatError
from tidemark.formats.keys import TopicPartition
from tidemark.intervals import Intervals
from tidemark.kafka_log import BatchHeader, Lineage, parse_offset_index
from uploader_agent.disk.log_dirs import DELETED, DirectoryListing, LocalSegment
from uploader_agent.disk.partition_files import PartitionFiles
from uploader_agent.disk.segment_files import OpenFile, batch_headers, file_name, log_bases, opened
from uploader_agent.hold.backends import HeldSegment, close_all

EXTENSIONS = ("log", "index", "timeindex", "snapshot")
"""The files that sealing reads: the bytes, the index, the time index, and the transactions open at the base."""

_AT_ONCE = 32
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


def rotated(
    files: PartitionFiles, owned: Owned, lineage: Lineage, segments: Sequence[LocalSegment]
) -> Generator[FoundSegment]:
    """Open ``segments``, oldest first. Segments that have changed since the listing are left out.

    Closing the iterator closes the files that the caller has not received. OSError for files that could not be opened
    is raised at the end.
    """
    failure: OSError | None = None
    for start in range(0, len(segments), _AT_ONCE):
        taken: deque[tuple[LocalSegment, dict[str, int]]] = deque()
        try:
            for segment in segments[start : start + _AT_ONCE]:
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


def deleted(files: PartitionFiles, owned: Owned, bases: Iterable[int]) -> Iterator[FoundSegment]:
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
