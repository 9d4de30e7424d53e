"""Opens the files of a rotated segment, and proves its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from tidemark.errors import FormatError
from tidemark.kafka_log import BatchHeader, parse_offset_index
from uploader_agent.disk.batch_headers import headers
from uploader_agent.disk.log_dirs import DELETED
from uploader_agent.disk.partition_files import PartitionFiles
from uploader_agent.disk.segment_files import OpenFile, file_name, log_bases, opened
from uploader_agent.hold.backends import close_all

EXTENSIONS = ("log", "index", "timeindex", "snapshot")
"""The files that sealing reads: the bytes, the index, the time index, and the transactions open at the base."""


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


class Extent(NamedTuple):
    """The end of a sound-looking segment, and the leader epochs of its batches with their first offsets."""

    next_offset: int
    epochs: tuple[tuple[int, int], ...]


def extent(log: OpenFile, index: OpenFile | None, base_offset: int) -> Extent | None:
    """The extent, from the headers of the first and last batches; from all headers if the two epochs differ.

    None if there are no batches, or the file does not end with a complete batch. No checksum is verified.
    """
    first = next(headers(log, 0), None)
    last = _last(log, _indexed(log, index, base_offset)) or _last(log, 0)
    if first is None or last is None:
        return None
    if first.leader_epoch == last.leader_epoch:
        return Extent(last.next_offset, _epochs([first]))
    return Extent(last.next_offset, _epochs(headers(log, 0)))


def _indexed(log: OpenFile, index: OpenFile | None, base_offset: int) -> int:
    """The last position in the index."""
    if index is None:
        return 0
    try:
        entries = parse_offset_index(index.read(), base_offset, log.size, index.name)
    except FormatError:
        return 0  # reading from the start takes longer, and finds the same batch
    return entries[-1].position if entries else 0


def _last(log: OpenFile, position: int) -> BatchHeader | None:
    last = deque(headers(log, position), maxlen=1)
    return last[0] if last and last[0].end == log.size else None


def _epochs(batches: Iterable[BatchHeader]) -> tuple[tuple[int, int], ...]:
    epochs: list[tuple[int, int]] = []
    for header in batches:
        if header.leader_epoch >= 0 and (not epochs or epochs[-1][0] != header.leader_epoch):
            epochs.append((header.leader_epoch, header.base_offset))
    return tuple(epochs)


def open_file(files: dict[str, int], name: str) -> OpenFile | None:
    """The file ``name`` of ``files``, to read from; ``files`` still own it. None if it is not there."""
    return opened(name, files[name]) if name in files else None
