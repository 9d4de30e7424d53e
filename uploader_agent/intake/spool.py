"""The spool: the files of our own replicas, in the layout of a broker's log directory.

Promises: a kill between any two writes leaves a directory that the next start accepts, with a prefix of the log.

* ``partition.metadata`` is there before any other file, and an epoch is in the checkpoint before its first batch is in
  a file.
* A truncation cuts the files, the highest first, and only then replaces the checkpoint: a checkpoint that no longer
  names a dead epoch never stands beside batches of that epoch.
* A segment is on the disk before the next one begins, so a start checks and cuts the last one alone.
* A segment begins with a producer snapshot, as a broker's: nothing else may tell the transactions that are open there.

One process writes a spool at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Concatenate, Final, ParamSpec

from tidemark.errors import FormatError, SegmentError
from tidemark.formats.keys import TopicPartition
from tidemark.kafka_log import (
    BatchHeader,
    Lineage,
    OpenTransaction,
    TransactionTracker,
    parse_leader_epoch_checkpoint,
    scan_batches,
)
from tidemark.kafka_log.batch import MAX_RELATIVE_OFFSET
from tidemark.kafka_log.transactions import open_transactions, parse_producer_snapshot, producer_snapshot
from uploader_agent.disk.log_dirs import PARTITION_METADATA, read_text, topic_id_of
from uploader_agent.disk.segment_files import CHUNK, EPOCHS, file_name, log_bases

_TEMPORARY: Final = ".tmp"

_Arguments = ParamSpec("_Arguments")


def _says_where(
    change: Callable[Concatenate[PartitionSpool, _Arguments], None],
) -> Callable[Concatenate[PartitionSpool, _Arguments], None]:
    """A change of a spool's directory, whose OSError names that directory."""

    @wraps(change)
    def named(spool: PartitionSpool, /, *args: _Arguments.args, **options: _Arguments.kwargs) -> None:
        try:
            change(spool, *args, **options)
        except OSError as error:
            rule = f"the spool cannot be written: {error.strerror}; mend that, and start again: it goes on from there"
            raise OSError(error.errno, rule, str(spool.folder)) from error

    return named


class PartitionSpool:
    """One partition's directory in the spool ``root``, with segments of about ``segment_bytes``.

    After an OSError, for example of a full disk, the directory is as after a kill: only a new object may go on with it.

    ``end`` is the offset that the next batch is expected at; None while there is no segment. ``data_end`` is the offset
    after the last batch, 0 without one. It differs from ``end`` where a segment begins above a range that the cluster
    no longer has. ``last`` is the last batch, if it is known, ``size`` counts the bytes of all segments.
    """

    def __init__(self, root: Path, tp: TopicPartition, topic_id: str, segment_bytes: int) -> None:
        """Open the directory, or make it; cut a partial batch off its end.

        Raises:
            FormatError: the directory holds another incarnation of the topic, or is no spool.
            OSError: it cannot be read or written.
        """
        self.folder = root / str(tp)
        self.lineage = Lineage()
        self.end: int | None = None
        self.data_end = 0
        self.last: BatchHeader | None = None
        self.size = 0
        self._segment_bytes = segment_bytes
        self._bases: list[int] = []
        self._last: int | None = None
        """The descriptor of the last segment, which has ``_last_size`` bytes."""
        self._last_size = 0
        self._transactions = TransactionTracker()
        """The transactions that are open at the end."""
        try:
            self._recover(topic_id)
        except BaseException:
            self.close()
            raise

    @property
    def start(self) -> int | None:
        """The first segment's base; None while there is no segment."""
        return self._bases[0] if self._bases else None

    @_says_where
    def append(
        self,
        batches: memoryview,
        base_offset: int,
        next_offset: int,
        last: BatchHeader | None = None,
        transactional: Iterable[BatchHeader] = (),
    ) -> None:
        """Write whole ``batches`` with the offsets ``[base_offset, next_offset)`` at the end of the log.

        They begin at ``end``. The first batch after a gap may begin below it: the log start can lie within a batch.
        ``transactional`` are the headers of those that belong to transactions.
        """
        assert self.end is not None, "a spool has a segment before it has a batch"
        assert self.data_end <= base_offset
        full = self._last_size + len(batches) > self._segment_bytes
        if self._last_size and (full or next_offset - 1 - self._bases[-1] > MAX_RELATIVE_OFFSET):
            self.begin(self.end)
        if base_offset < self._bases[-1]:
            self._rename_last(base_offset)
        assert self._last is not None
        at, rest = self._last_size, batches
        while rest:
            written = os.pwrite(self._last, rest, at)
            at, rest = at + written, rest[written:]
        self.size += at - self._last_size
        self._last_size, self.end, self.data_end, self.last = at, next_offset, next_offset, last
        for header in transactional:
            self._transactions.observe(header)

    @_says_where
    def begin(self, offset: int, opened: Iterable[OpenTransaction] = ()) -> None:
        """Begin a segment at ``offset``: the log's first, the next, or the first above a range that is gone.

        An empty segment marks the beginning of that range: otherwise the one before would seem to reach over it. What
        was open before it does not count behind it: no marker there is about it. ``opened`` are the transactions that
        are open where the log's first segment begins.
        """
        is_empty = bool(self._bases) and not self._last_size
        if self.end is not None and self.end < offset and not is_empty:
            self._create(self.end)
        if self.end is None or self.end < offset:
            self._transactions = TransactionTracker(opened)
        if is_empty:
            self._rename_last(offset)
        else:
            self._create(offset)
        self.end = offset

    @_says_where
    def roll(self, end: int | None = None) -> None:
        """End the last segment, if it has a batch: behind that, or at ``end`` if the log has nothing in between."""
        if self.end is not None and self._last_size:
            self.end = self.end if end is None else end
            self.begin(self.end)

    @_says_where
    def drop_below(self, offset: int) -> None:
        """Remove the segments that end at or below ``offset``; the last one stays."""
        while len(self._bases) > 1 and self._bases[1] <= offset:
            self._unlink(self._bases.pop(0))

    @_says_where
    def empty(self) -> None:
        """Remove all segments."""
        while self._bases:
            self._remove_last()
        self.end, self.data_end, self._last_size, self.last = None, 0, 0, None
        self._transactions = TransactionTracker()

    @_says_where
    def remove(self) -> None:
        """Remove the directory."""
        self.empty()
        for path in self.folder.iterdir():
            path.unlink()
        self.folder.rmdir()

    @_says_where
    def follow(self, lineage: Lineage, cut: int | None) -> None:
        """Cut off all batches that reach above ``cut``, then replace the checkpoint by ``lineage``."""
        if cut is not None:
            self._cut(cut)
        if lineage != self.lineage:
            entries = "".join(f"{epoch} {start}\n" for epoch, start in lineage.entries)
            self._replace(EPOCHS, f"0\n{len(lineage.entries)}\n{entries}".encode())
            self.lineage = lineage

    @_says_where
    def sync(self) -> None:
        """Force the last segment's bytes to the disk; those of the others are there."""
        if self._last is not None:
            os.fsync(self._last)

    def close(self) -> None:
        """Close the last segment."""
        self._close_last()

    @_says_where
    def _recover(self, topic_id: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.glob(f"*{_TEMPORARY}"):
            path.unlink()
        names = [path.name for path in self.folder.iterdir()]
        bases = sorted(log_bases(names))
        found = topic_id_of(self.folder)
        if found is None and bases:
            raise FormatError(str(self.folder), f"has segments and no {PARTITION_METADATA}: choose another directory")
        if found is None:
            self._replace(PARTITION_METADATA, f"version: 0\ntopic_id: {topic_id}".encode())
        elif found != topic_id:
            rule = f"holds the topic with the id {found}, and the cluster's topic of this name has {topic_id}"
            raise FormatError(str(self.folder), f"{rule}: it was made again; move the directory away")
        with suppress(FileNotFoundError):
            path = self.folder / EPOCHS
            self.lineage = parse_leader_epoch_checkpoint(read_text(path), str(path))
        for name in names:
            base, _, extension = name.partition(".")
            if extension == "snapshot" and int(base) not in bases:  # it was killed before the segment began
                (self.folder / name).unlink()
        self._bases = bases
        self.size = sum((self.folder / file_name(base, "log")).stat().st_size for base in bases)
        self._open_last(None)

    def _cut(self, offset: int) -> None:
        """Cut off all batches that reach above ``offset``; without a segment that begins below it, none is left."""
        while self._bases and self._bases[-1] >= offset:
            self._remove_last()
        self._open_last(offset)
        self._sync_folder()

    def _open_last(self, cut: int | None) -> None:
        """Open the last segment that has a whole batch below ``cut``, and cut it there; empty later ones are removed.

        A first segment may be empty: its name tells where the log begins.
        """
        while self._bases:
            base = self._bases[-1]
            if self._last is None:
                self._last = os.open(self.folder / file_name(base, "log"), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            size = os.fstat(self._last).st_size
            self.last, self._transactions = self._last_batch(base, cut)
            end, next_offset = (self.last.end, self.last.next_offset) if self.last else (0, base)
            if end < size:
                os.ftruncate(self._last, end)
                os.fsync(self._last)
                self.size -= size - end
            self._last_size, self.end = end, next_offset
            self.data_end = next_offset if end else 0
            if end or len(self._bases) == 1:
                return
            self._remove_last()
        self.end, self.data_end, self._last_size, self.last = None, 0, 0, None
        self._transactions = TransactionTracker()

    def _last_batch(self, base: int, cut: int | None) -> tuple[BatchHeader | None, TransactionTracker]:
        """The last sound batch of the last segment, below ``cut``, and what is open behind it.

        A power loss may leave zeros in a file.
        """
        last, transactions = None, TransactionTracker(self._opened_at(base))
        with suppress(SegmentError):
            for header in scan_batches(self._chunks(), self._name, base, allow_partial_tail=True):
                if cut is not None and header.next_offset > cut:
                    break
                transactions.observe(header)
                last = header
        return last, transactions

    def _opened_at(self, base: int) -> tuple[OpenTransaction, ...]:
        """The transactions that are open where a segment begins."""
        path = self.folder / file_name(base, "snapshot")
        try:
            return open_transactions(parse_producer_snapshot(path.read_bytes(), str(path)))
        except FileNotFoundError:
            return ()

    @property
    def _name(self) -> str:
        return str(self.folder / file_name(self._bases[-1], "log"))

    def _chunks(self) -> Iterator[bytes]:
        assert self._last is not None
        at = 0
        while chunk := os.pread(self._last, CHUNK, at):
            yield chunk
            at += len(chunk)

    def _create(self, base: int) -> None:
        """Create the segment at ``base``, which is now the last one."""
        self.sync()
        self._close_last()
        self._write_snapshot(base)
        name = self.folder / file_name(base, "log")
        self._last = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._bases.append(base)
        self._last_size = 0
        self._sync_folder()

    def _rename_last(self, base: int) -> None:
        """Give the last segment, which is empty, another base."""
        self._write_snapshot(base)
        if self._bases[-2:-1] == [base]:  # it is empty, and marks the beginning of a gap, which there is not
            self._bases.pop(-2)
        former, self._bases[-1] = self._bases[-1], base
        (self.folder / file_name(former, "log")).rename(self.folder / file_name(base, "log"))
        (self.folder / file_name(former, "snapshot")).unlink(missing_ok=True)
        self._sync_folder()

    def _write_snapshot(self, base: int) -> None:
        self._replace(file_name(base, "snapshot"), producer_snapshot(self._transactions.open))

    def _remove_last(self) -> None:
        self._close_last()
        self._unlink(self._bases.pop())

    def _unlink(self, base: int) -> None:
        path = self.folder / file_name(base, "log")
        self.size -= path.stat().st_size
        path.unlink()
        (self.folder / file_name(base, "snapshot")).unlink(missing_ok=True)

    def _close_last(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            os.close(last)

    def _replace(self, name: str, content: bytes) -> None:
        """Replace a small file as a whole. Without a segment, its name is forced to the disk with the first one's."""
        temporary = self.folder / f"{name}{_TEMPORARY}"
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self.folder / name)
        if self._bases:
            self._sync_folder()

    def _sync_folder(self) -> None:
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
