"""A segment's files as they are opened, summed and sent: the very bytes that were checked, or none.

All files of a segment are opened relative to one descriptor of the partition's directory, so that a topic that is
deleted and re-created under the same path cannot mix into it. A read is bounded by the file's size at its opening, and
a second ``fstat`` shows that the file has changed in the meantime (truncation works in place).

Readers find their way in a local segment without its records: :func:`batch_headers` walks over the headers of batches,
and :func:`entry_up_to` and :func:`position_before_epoch` find a position to start from in the broker's ``.index``. That
is only a hint: Kafka preallocates the indexes of an active segment with zeros, and may leave entries of a log that was
truncated.

:class:`ActiveReader` follows the batch headers of an active segment as it grows. In a segment that is already long when
it is first read, it starts at a position from the indexes; the time index is a running maximum. From then on it reads
only the bytes appended, 64 KiB at a time. The log end offset of a leader cannot be asked for: ListOffsets answers with
the high watermark or the last stable offset, and ``offset_lag`` of DescribeLogDirs is 0 on a leader (``UnifiedLog`` and
``ReplicaManager`` of Kafka 4.3.1).
"""

from __future__ import annotations

import errno
import io
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol, Self

from crc32c import crc32c
from typing_extensions import override

from tidemark.errors import FormatError, TidemarkError
from tidemark.kafka_log import (
    BatchHeader,
    Lineage,
    OffsetIndexEntry,
    confirms_cut,
    parse_leader_epoch_checkpoint,
    parse_offset_index,
    parse_partition_metadata,
    parse_segment_file,
    parse_time_index,
    segment_name,
)
from tidemark.kafka_log.batch import HEADER_SIZE, PREFIX_SIZE, check_prefix, read_header
from tidemark.kafka_log.indexes import INDEX_ENTRY_SIZE, TIME_INDEX_ENTRY_SIZE
from uploader_agent.disk.log_dirs import PARTITION_METADATA, open_file

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


CHUNK = 1 << 20
EPOCHS = "leader-epoch-checkpoint"

_HEADERS_AT_A_TIME = 64 << 10

_INDEX_INTERVAL = 4096
"""Kafka's ``index.interval.bytes``; if it is smaller, fewer entries are read, and a walk starts earlier."""

_ANY_OFFSET = 1 << 62


class SegmentChanged(TidemarkError):
    """The bytes read are no longer the broker's: discard them, look at the disk again, and decide again."""


class SegmentContent(Protocol):
    """Bytes that can be put into the store, again and again."""

    @property
    def name(self) -> str:
        """The file's name, here and in the store."""
        ...

    @property
    def size(self) -> int:
        """The number of bytes."""
        ...

    def chunks(self) -> Iterator[memoryview]:
        """The bytes in pieces of at most 1 MiB; each piece is valid until the next is asked for."""
        ...

    def body(self) -> bytes | BinaryIO:
        """The bytes in a form that a store's ``put`` takes."""
        ...


class FileWindow(io.RawIOBase):
    """The ``size`` bytes of a descriptor from ``start`` on, as a separate file with its own position.

    An HTTP client reads a body to its end, and the file of an active segment grows; the window ends at a fixed byte.
    """

    def __init__(self, descriptor: int, size: int, start: int = 0) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._size = size
        self._start = start
        self._at = 0

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill ``buffer``, at most up to the end of the window."""
        wanted = memoryview(buffer)[: max(0, self._size - self._at)]
        count = os.preadv(self._descriptor, [wanted], self._start + self._at) if wanted else 0
        self._at += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move within the window."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    @override
    def tell(self) -> int:
        return self._at

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class OpenFile:
    """The ``size`` bytes of an open file from ``start`` on; ``stat`` is from the time of opening."""

    name: str
    size: int
    descriptor: int
    stat: os.stat_result
    start: int = 0

    def chunks(self) -> Iterator[memoryview]:
        """The bytes in pieces of at most 1 MiB in one buffer; each piece is valid until the next is asked for."""
        window, buffer = self._window(), memoryview(bytearray(min(CHUNK, self.size)))
        while count := window.readinto(buffer):
            yield buffer[:count]

    def body(self) -> BinaryIO:
        """A file of these bytes; buffered, because HTTP clients read 16 KiB at a time."""
        return io.BufferedReader(self._window(), CHUNK)

    def cut(self, size: int) -> OpenFile:
        """The first ``size`` bytes."""
        return replace(self, size=size)

    def part(self, name: str, start: int, end: int) -> OpenFile:
        """The bytes ``[start, end)`` of this file, under another name."""
        return replace(self, name=name, start=self.start + start, size=end - start)

    def pread(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``position`` on."""
        return os.pread(self.descriptor, min(size, max(0, self.size - position)), self.start + position)

    def read(self) -> bytes:
        """All bytes; for small files."""
        return b"".join(bytes(chunk) for chunk in self.chunks())

    def has_changed(self) -> bool:
        """True if the file was written to since it was opened."""
        now = os.fstat(self.descriptor)
        return (now.st_size, now.st_mtime_ns) != (self.stat.st_size, self.stat.st_mtime_ns)

    def has_shrunk(self) -> bool:
        """True if some of these bytes are gone."""
        return os.fstat(self.descriptor).st_size < self.start + self.size

    def _window(self) -> FileWindow:
        return FileWindow(self.descriptor, self.size, self.start)


@dataclass(frozen=True, slots=True)
class Bytes:
    """A small file in memory, under its name in the store."""

    name: str
    content: bytes

    @property
    def size(self) -> int:
        """The number of bytes."""
        return len(self.content)

    def chunks(self) -> Iterator[memoryview]:
        """All of the bytes, in one piece."""
        yield memoryview(self.content)

    def body(self) -> bytes:
        """The bytes themselves."""
        return self.content


def checksum(content: SegmentContent, size: int | None = None) -> int:
    """CRC32C of the first ``size`` bytes, or of all."""
    left = content.size if size is None else size
    value = 0
    for chunk in content.chunks():
        value = crc32c(chunk[:left], value)
        left -= min(left, len(chunk))
        if not left:
            break
    return value


class SegmentFiles(Protocol):
    """A partition's files, from any source; usable with ``with``, which closes all files."""

    def open(self, name: str) -> OpenFile | None:
        """Open a file, which this object closes; None if there is none.

        Raises:
            SegmentChanged: the file has changed since its segment was rotated.
        """
        ...

    def lineage(self) -> Lineage:
        """The leader epochs and their first offsets; empty where they are unknown. Raises :class:`FormatError`."""
        ...

    def next_base(self, base_offset: int) -> int | None:
        """The base offset of the segment after ``base_offset`` in a new listing; None while it is active."""
        ...

    def previous_base(self, base_offset: int) -> int | None:
        """The base offset of the segment before ``base_offset`` in a new listing; None if there is none."""
        ...

    def path(self, name: str) -> str:
        """The path of a file, for messages."""
        ...

    def close(self) -> None:
        """Close all files; results of :meth:`open` are void then."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def opened(name: str, descriptor: int) -> OpenFile:
    """An open file as a whole."""
    stat = os.fstat(descriptor)
    return OpenFile(name, stat.st_size, descriptor, stat)


def log_bases(names: Iterable[str], suffix: str = "") -> Iterator[int]:
    """Base offsets of the ``.log`` files among ``names`` that end in ``suffix``."""
    parsed = (parse_segment_file(name.removesuffix(suffix)) for name in names if name.endswith(suffix))
    return (name[0] for name in parsed if name and name[1] == "log")


def file_name(offset: int, extension: str) -> str:
    """The name of a segment's file, such as ``00000000000000000042.log``."""
    return f"{segment_name(offset)}.{extension}"


def batch_headers(log: OpenFile, position: int) -> Iterator[BatchHeader]:
    """The headers of the whole batches from ``position`` on. Ends silently at bytes that are no whole batch.

    Reads 64 KiB at a time, and verifies no checksum.
    """
    window, start = b"", position
    while position + PREFIX_SIZE <= log.size:
        if position + HEADER_SIZE[2] > start + len(window):
            window, start = log.pread(position, _HEADERS_AT_A_TIME), position
        at = position - start
        if len(window) - at < PREFIX_SIZE or check_prefix(window, at) is not None:
            return
        if len(window) - at < HEADER_SIZE[window[at + PREFIX_SIZE - 1]]:
            return
        header = read_header(window, at, position)
        if header.end > log.size:
            return
        yield header
        position = header.end


def entry_up_to(files: SegmentFiles, log: OpenFile, base_offset: int, offset: int) -> OffsetIndexEntry | None:
    """The last entry of the index that ends at or below ``offset``, if a batch begins at its position.

    ``log`` is the whole segment at ``base_offset``. None if there is no such entry. Raises FormatError for a damaged
    index.
    """
    index = files.open(file_name(base_offset, "index"))
    if index is None:
        return None
    entries = parse_offset_index(index_head(index, log, INDEX_ENTRY_SIZE), base_offset, log.size, index.name)
    last = next((entry for entry in reversed(entries) if entry.last_offset <= offset), None)
    if last is None:
        return None
    return last if confirms_cut(log.pread(last.position, HEADER_SIZE[2]), last, base_offset, log.size) else None


def position_before_epoch(files: SegmentFiles, log: OpenFile, base_offset: int, epoch: int) -> int:
    """The position of a batch at or before the first one of leader ``epoch``, some batches before it at most.

    ``log`` is the whole segment at ``base_offset``. Epochs never decrease in a log. 0 without a sound index.
    """
    index = files.open(file_name(base_offset, "index"))
    if index is None:
        return 0
    try:
        entries = parse_offset_index(index_head(index, log, INDEX_ENTRY_SIZE), base_offset, log.size, index.name)
        number = bisect_left(entries, epoch, key=lambda entry: _epoch_at(log, entry, base_offset))
    except FormatError:
        return 0
    return entries[number - 1].position if number else 0


def _epoch_at(log: OpenFile, entry: OffsetIndexEntry, base_offset: int) -> int:
    """The leader epoch of the batch at ``entry``. Raises FormatError if no batch begins there."""
    header = log.pread(entry.position, HEADER_SIZE[2])
    if not confirms_cut(header, entry, base_offset, log.size):
        raise FormatError(log.name, f"no batch begins at byte {entry.position}, where its index has one")
    return read_header(header, 0, entry.position).leader_epoch


def index_head(index: OpenFile, log: OpenFile, entry_size: int) -> bytes:
    """The part of a preallocated index, with entries of ``entry_size`` bytes, that can belong to ``log``."""
    entries = min(index.size // entry_size, log.size // _INDEX_INTERVAL + 1)
    return index.cut(entries * entry_size).read()


class PartitionFiles(SegmentFiles):
    """A partition's directory, held by a descriptor; usable with ``with``, which closes all files."""

    def __init__(self, folder: Path, topic_id: str | None, restores: tuple[int, ...] = ()) -> None:
        """Open ``folder``. Its log has the ``restores`` of ``offset.wm``, once that was read.

        Raises:
            SegmentChanged: it is gone, or belongs to another incarnation of the topic than ``topic_id``.
            FormatError: its ``partition.metadata`` is damaged.
            OSError: it cannot be read.
        """
        self.folder = folder
        self._restores = restores
        try:
            self._directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise SegmentChanged(f"{folder}: is gone, or a link, and none is followed") from error
        with ExitStack() as stack:
            self._stack = stack
            stack.callback(os.close, self._directory)
            text = self.text(PARTITION_METADATA)
            recorded_id = parse_partition_metadata(text, str(folder / PARTITION_METADATA)) if text is not None else None
            if None not in {recorded_id, topic_id} and recorded_id != topic_id:
                raise SegmentChanged(f"{folder}: belongs to topic id {recorded_id}, not {topic_id}")
            self._stack = stack.pop_all()

    @override
    def open(self, name: str) -> OpenFile | None:
        descriptor = self.descriptor(name)
        if descriptor is None:
            return None
        self._stack.callback(os.close, descriptor)
        return opened(name, descriptor)

    def descriptor(self, name: str) -> int | None:
        """A descriptor of a file, which the caller closes; None if there is no file. Raises OSError for a link."""
        try:
            return open_file(name, self._directory)
        except FileNotFoundError:
            return None
        except OSError as error:
            rule = "is a symbolic link, and none is followed" if error.errno == errno.ELOOP else error.strerror
            raise OSError(error.errno, rule, self.path(name)) from error

    def text(self, name: str) -> str | None:
        """The content of a small text file; None if there is none."""
        file = self.open(name)
        return None if file is None else file.read().decode("utf-8", errors="replace")

    def lineage(self) -> Lineage:
        """The lineage in ``leader-epoch-checkpoint``, whose first epoch begins at its first batch on the disk.

        DeleteRecords moves the first start in the file up to the log start, which may lie within a segment, even within
        a batch (``LeaderEpochFileCache.truncateFromStartAsyncFlush``). The batches below stay, and tell where this log
        left the stored one. Empty without the file. Raises :class:`FormatError`.
        """
        text = self.text(EPOCHS)
        lineage = Lineage() if text is None else parse_leader_epoch_checkpoint(text, str(self.folder / EPOCHS))
        begun = self._begun(*lineage.entries[0]) if lineage.entries else None
        if begun is not None:
            lineage = lineage.with_batches([begun])
        return lineage.restored(self._restores)

    def _begun(self, epoch: int, start: int) -> tuple[int, int] | None:
        """``epoch`` and the base offset of its first batch on the disk, if that is below ``start``; else None."""
        begun, base = None, self.previous_base(start) if start else None
        while base is not None:
            log = self.open(file_name(base, "log"))
            if log is None:
                break  # removed since the listing
            earlier = False
            for header in batch_headers(log, position_before_epoch(self, log, base, epoch)):
                if header.leader_epoch == epoch and header.base_offset < start:
                    begun = epoch, header.base_offset
                if header.leader_epoch >= epoch:
                    break
                earlier = True
            if earlier:
                break
            base = self.previous_base(base)
        return begun

    def names(self) -> list[str]:
        """All names in the directory, from a new listing."""
        return os.listdir(self._directory)  # noqa: PTH208 - by descriptor, not by path

    @override
    def next_base(self, base_offset: int) -> int | None:
        return min((base for base in log_bases(self.names()) if base > base_offset), default=None)

    @override
    def previous_base(self, base_offset: int) -> int | None:
        return max((base for base in log_bases(self.names()) if base < base_offset), default=None)

    @override
    def path(self, name: str) -> str:
        return str(self.folder / name)

    @override
    def close(self) -> None:
        self._stack.close()


class Active(NamedTuple):
    """A partition's active segment at the time of a read.

    ``size`` is the file's in bytes. ``end`` is the log end offset; None if an incomplete batch follows, for example
    while the broker writes it. ``leader_epoch`` is that of the last batch; -1 without a batch, or with a batch of an
    old format. The timestamps are the first and the largest, in milliseconds since 1970; None without records.
    """

    base_offset: int
    size: int
    end: int | None
    leader_epoch: int
    first_timestamp: int | None
    max_timestamp: int | None


class ActiveReader:
    """Reads one partition's active segment again and again. Not thread-safe."""

    def __init__(self) -> None:
        self._base_offset: int | None = None
        self._position = 0
        self._end = 0
        self._leader_epoch = -1
        self._first: int | None = None
        self._largest: int | None = None

    def read(self, folder: Path, topic_id: str | None) -> Active | None:
        """The current state of the active segment; None where the directory has no segment.

        Raises SegmentChanged if the directory is gone or another topic's, FormatError if an index is damaged, OSError.
        """
        with PartitionFiles(folder, topic_id) as files:
            base_offset = max(log_bases(files.names()), default=None)
            log = None if base_offset is None else files.open(file_name(base_offset, "log"))
            if base_offset is None or log is None:
                return None
            if base_offset == self._base_offset and log.size >= self._position:
                self._follow(log)
            if base_offset != self._base_offset or not self._ends(log):
                self._enter(files, log, base_offset)
                self._follow(log)
            end = self._end if self._ends(log) else None
            return Active(base_offset, log.size, end, self._leader_epoch, self._first, self._largest)

    def _follow(self, log: OpenFile) -> None:
        for header in batch_headers(log, self._position):
            self._take(header)

    def _enter(self, files: PartitionFiles, log: OpenFile, base_offset: int) -> None:
        self._base_offset, self._position, self._end, self._leader_epoch = base_offset, 0, base_offset, -1
        self._first = self._largest = None
        for header in batch_headers(log, 0):
            self._take(header)
            break
        times = files.open(file_name(base_offset, "timeindex"))
        if times is None:
            return
        maxima = parse_time_index(index_head(times, log, TIME_INDEX_ENTRY_SIZE), base_offset, _ANY_OFFSET, times.name)
        # The walk must start no later than the offset of the running maximum, or it would miss batches in between.
        timestamp, offset = maxima[-1] if maxima else (-1, -1)
        entry = entry_up_to(files, log, base_offset, offset) if maxima else None
        if entry is not None:
            self._position, self._largest = entry.position, timestamp

    def _take(self, header: BatchHeader) -> None:
        self._position, self._end, self._leader_epoch = header.end, header.last_offset + 1, header.leader_epoch
        if header.is_control or header.max_timestamp < 0:
            return
        if self._first is None and header.base_timestamp >= 0:
            self._first = header.base_timestamp
        self._largest = header.max_timestamp if self._largest is None else max(self._largest, header.max_timestamp)

    def _ends(self, log: OpenFile) -> bool:
        """True if nothing follows the last batch, or only the zeros of a preallocated file."""
        if log.size < self._position:
            return False
        return not any(log.pread(self._position, PREFIX_SIZE))
