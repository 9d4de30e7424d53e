"""One partition read ahead of its reader: the requests to make, and the bytes to decode next.

Promises: blocks in the order of offsets, from the first offset on; each error at the offset at which it was met, after
everything before it. Across segments: the next one is requested before the present one ends.

A :class:`PartitionReader` has no thread. Its caller's threads call ``step``; requests go through ``submit``. One thread
at a time may step. Ranges are read into reused memory, by requests that are counted, and repeated according to
:mod:`tidemark.store.retrying`; :meth:`Requests.close` ends the pauses.
"""

from __future__ import annotations

import logging
import mmap
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from tidemark.errors import (
    BucketMissing,
    GapError,
    NotFound,
    PreconditionFailed,
    SegmentError,
    StoreError,
    TidemarkError,
)
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.gaps import Gap
from tidemark.raw.segments import Segment
from tidemark.remote.partition import RemotePartition, Stretch
from tidemark.remote.reader.blocks import NOTHING, Block, Decoder
from tidemark.storage import Storage
from tidemark.store.retrying import ATTEMPTS, Retry
from tidemark.timestamps import utc_now

RANGE_BYTES: Final = 8 << 20
"""The most bytes of a request: of 1, 2, 4 and 8 MiB the largest was read fastest from an S3 server."""

HEAD_BYTES: Final = 1 << 20
"""Room before a range for the beginning of a batch that the previous range ended in; batches are rarely larger."""

Bytes = NDArray[np.uint8]

OnGap = Literal["error", "skip"]
"""The reaction to offsets recorded as missing in the store: raise :class:`tidemark.errors.GapError`, or skip them."""

Submit = Callable[[Callable[[], Any]], "Future[Any]"]

_AHEAD: Final = 2
"""The number of ranges that are requested while another is decoded."""

_FIRST_BYTES: Final = 512 << 10
"""The first range after a seek: most often it has the wanted records."""

_MORE_READS: Final = 2
"""The number of times that damaged bytes are read again."""

_LENGTH_BYTES: Final = 12

log = logging.getLogger(__name__)


Step = Block | Future[Any] | None
"""A block; or the future to await before the next step; or None if all readable records were read."""


class Closed(TidemarkError):
    """The reader was closed while it waited."""


@dataclass
class Counters:
    """Costs and results of reading the remote tier since it began. ``skipped`` are offsets of gaps."""

    requests: int = 0
    bytes: int = 0
    records: int = 0
    retries: int = 0
    skipped: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, *, requests: int = 0, size: int = 0, records: int = 0, retries: int = 0, skipped: int = 0) -> None:
        """Add these counts, from any thread."""
        with self._lock:
            self.requests += requests
            self.bytes += size
            self.records += records
            self.retries += retries
            self.skipped += skipped


class Buffers:
    """Memory for ranges, used again; each piece has HEAD_BYTES before RANGE_BYTES. Thread-safe.

    It is mapped: an allocator keeps a thread's freed memory for that thread, and an untouched page costs nothing.
    """

    def __init__(self, most_spare: int) -> None:
        """Keep at most ``most_spare`` pieces for later."""
        self._spare: list[Bytes] = []
        self._most_spare = most_spare
        self._lock = threading.Lock()

    def take(self) -> Bytes:
        """A piece of memory with undefined content."""
        with self._lock:
            if self._spare:
                return self._spare.pop()
        return np.frombuffer(mmap.mmap(-1, HEAD_BYTES + RANGE_BYTES), np.uint8)

    def give(self, piece: Bytes) -> None:
        """Take back a piece of memory."""
        with self._lock:
            if len(self._spare) < self._most_spare:
                self._spare.append(piece)


class Requests(Retry):
    """Requests that are counted, and no longer repeated once they are closed. Thread-safe."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._closed = threading.Event()

    def close(self) -> None:
        """End all pauses; no request is made after that."""
        self._closed.set()

    def began(self) -> None:
        """Count a request, see :class:`tidemark.store.retrying.Retry`. Raises :class:`Closed`."""
        self._check_open()
        self._counters.add(requests=1)

    @override
    def again(self) -> None:
        self._counters.add(retries=1)

    def wait(self, seconds: float) -> None:
        """Pause, see :class:`tidemark.store.retrying.Retry`. Raises :class:`Closed`."""
        self._closed.wait(seconds)
        self._check_open()

    def read_into(self, storage: Storage, target: Bytes, segment: Segment, start: int, end: int, subject: str) -> None:
        """Read bytes ``[start, end)`` of the segment's object to the start of ``target``; messages name ``subject``.

        ``storage`` makes its requests through this object. Raises PreconditionFailed if the object is another version
        now, NotFound if it is gone, and other kinds of StoreError after the last attempt.
        """
        view = target[: end - start].data
        done = 0
        store = storage.store(segment.store)
        with naming(subject), store.stream(segment.key, start, end, if_match=segment.etag or None) as body:
            while done < end - start:
                self._check_open()
                count = body.readinto(view[done:])
                done += count
                self._counters.add(size=count)

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise Closed("the reader was closed")


@contextmanager
def naming(subject: str) -> Iterator[None]:
    """Name ``subject`` in errors of a store, unless they only state that an object is another one or gone."""
    try:
        yield
    except (PreconditionFailed, NotFound):
        raise
    except BucketMissing as error:
        error.add_note(f"while reading {subject}")
        raise
    except StoreError as error:
        raise type(error)(error.key, f"{error.reason}; while reading {subject}") from error


class Means(NamedTuple):
    """Resources that all partition readers of a process share."""

    storage: Storage
    """The stores of the ranges, read with ``requests``."""
    requests: Requests
    buffers: Buffers
    counters: Counters
    submit: Submit
    range_bytes: Callable[[], int]
    """The most bytes that a request may ask for at present."""
    share: Callable[[], int]
    """The most bytes that a partition may have read ahead at present; it may always have one range."""


class _RequestedPiece(NamedTuple):
    """A requested range: bytes ``[start, end)`` of a stretch's segment, and the memory that receives them."""

    stretch: Stretch
    start: int
    end: int
    memory: Bytes
    done: Future[None]


class PartitionReader:
    """Reads ``partition`` from ``offset`` on."""

    def __init__(
        self,
        find: Callable[[], RemotePartition | None],
        tp: TopicPartition,
        offset: int,
        means: Means,
        *,
        committed: bool,
        on_gap: OnGap,
        check_crcs: bool,
    ) -> None:
        """``find`` returns the partition, with requests if it must."""
        self.partition: RemotePartition | None = None
        self.basis: object = None  # that of the partition when reading began
        self._find = find
        self._tp = tp
        self._next = offset  # the end of the delivered offsets
        self._means = means
        self._committed = committed
        self._on_gap = on_gap
        self._check_crcs = check_crcs
        self._ahead: deque[_RequestedPiece] = deque()
        self._source: Stretch | None = None  # the stretch being requested, its next byte, and the offset after it
        self._position = 0
        self._locate_from = offset
        self._located: Future[Stretch | Gap | None] | None = None
        self._range = _FIRST_BYTES
        self._decoder: Decoder | None = None
        self._stretch: Stretch | None = None
        self._carry: list[Bytes] = []  # the arrived part of an incomplete batch, and the bytes that it needs
        self._needed = 0
        self._failures = 0  # at the offset _failed_at
        self._failed_at = -1
        self._steps = self._run()

    @property
    def in_flight(self) -> int:
        """Bytes that were requested and are not decoded."""
        return sum(piece.end - piece.start for piece in self._ahead)

    def step(self) -> Step:
        """Go on. Raises the error met at the offset after the last block."""
        return next(self._steps)

    def drop(self) -> None:
        """Give up; not while another thread steps."""
        self._steps.close()
        self._drop_ahead()
        if self._located is not None:
            self._located.cancel()

    def _run(self) -> Generator[Step, None, None]:
        while True:
            self._feed()
            if not self._ahead:
                assert self._located is not None
                if not self._located.done():
                    yield self._located
                else:
                    yield from self._take_located(self._located.result())
                continue
            piece = self._ahead[0]
            if not piece.done.done():
                yield piece.done
                continue
            try:
                if piece.stretch is not self._stretch:
                    yield from self._begin(piece.stretch)
                yield from self._decode(piece)
            except (PreconditionFailed, NotFound, SegmentError) as error:
                self._again(piece, error)

    def _feed(self) -> None:
        """Request the next bytes: ranges, and the stretch after them."""
        while not self._ahead or (len(self._ahead) <= _AHEAD and self.in_flight < self._means.share()):
            if self._source is None:
                if self._located is None:
                    self._located = self._located_now() or self._means.submit(self._locate)
                if not self._located.done() or self._located.exception() is not None:
                    return
                located = self._located.result()
                if not isinstance(located, Stretch):
                    return
                self._located = None
                self._source, self._position = located, located.position
            source, start = self._source, self._position
            end = min(source.segment.stop, self._range_end(start))
            memory = self._means.buffers.take()
            subject = f"{self._tp}, from offset {max(self._next, source.start)} on, bytes {start} to {end}"
            read = self._means.requests.read_into
            into = partial(read, self._means.storage, memory[HEAD_BYTES:], source.segment, start, end, subject)
            done = self._means.submit(into)
            self._ahead.append(_RequestedPiece(source, start, end, memory, done))
            self._position = end
            if end == source.segment.stop:
                self._leave(source)

    def _range_end(self, start: int) -> int:
        """The end of the range from byte ``start``. The first is short; full ranges end at multiples of their length.

        Stores keep objects in parts of some MiB; a range that crosses parts costs them a second one.
        """
        full = self._means.range_bytes()
        size = min(self._range, full)
        self._range = min(4 * size, full)
        return start + size if size < full else (start + full) // full * full

    def _leave(self, stretch: Stretch) -> None:
        """Request nothing more of ``stretch``."""
        if self._source is stretch:
            self._source, self._locate_from = None, stretch.end

    def _located_now(self) -> Future[Stretch | Gap | None] | None:
        """The stretch at ``_locate_from``, if it is a range of the tail, which needs no request."""
        if self.partition is None:
            return None
        packed = self.partition.packed_stretch(self._locate_from, committed=self._committed)
        if packed is None:
            return None
        located: Future[Stretch | Gap | None] = Future()
        located.set_result(packed)
        return located

    def _locate(self) -> Stretch | Gap | None:
        """The stretch or gap at ``_locate_from``; in a thread that may wait."""
        if self.partition is None:
            self.partition = self._find()
            if self.partition is None:
                return None
            self.basis = self.partition.basis
        partition = self.partition
        offset = self._locate_from
        attempt = 0
        while True:
            attempt += 1
            try:
                with naming(f"{self._tp}, offset {offset}"):
                    return partition.next_stretch(offset, committed=self._committed)
            except PreconditionFailed as error:
                if attempt == ATTEMPTS:
                    raise self._named(error, offset) from error
            self._means.requests.pause(attempt)  # a segment is being replaced, and its manifest comes last

    def _take_located(self, located: Stretch | Gap | None) -> Generator[Step, None, None]:
        """Continue without a stretch: at the end, or in a gap."""
        self._located = None
        if located is None:
            yield None
        elif isinstance(located, Gap):
            if self._on_gap == "error":
                raise GapError(self._tp.topic, self._tp.partition, located.start, located.end, located.reason)
            log.warning(
                "%s: offsets %s to %s are missing (%s) and are skipped",
                self._tp,
                located.start,
                located.end - 1,
                located.reason,
            )
            self._means.counters.add(skipped=located.end - self._next)
            self._locate_from = located.end
            yield self._moved(located.end)

    def _begin(self, stretch: Stretch) -> Generator[Step, None, None]:
        assert self.partition is not None
        if stretch.start > self._next:
            yield self._moved(stretch.start)
        self._stretch = stretch
        self._carry, self._needed = [], 0
        self._decoder = Decoder(
            stretch.segment,
            max(self._next, stretch.start),
            stretch.end,
            stretch.aborted,
            stretch.mask,
            partition=self.partition.partition,
            incarnation=self.partition.incarnation,
            check_crcs=self._check_crcs,
        )

    def _moved(self, offset: int) -> Block:
        block = Block(NOTHING, self._next, offset, -1)
        self._next = offset
        return block

    def _decode(self, piece: _RequestedPiece) -> Generator[Step, None, None]:
        """The blocks of the first piece. Its memory is free afterwards, even after an error."""
        assert self._decoder is not None
        decoder = self._decoder
        piece.done.result()
        arrived = piece.memory[HEAD_BYTES : HEAD_BYTES + piece.end - piece.start]
        last = piece.end == piece.stretch.segment.stop
        carried = sum(map(len, self._carry))
        if carried + len(arrived) >= self._needed or last:
            data, self._carry = self._joined(piece, arrived, carried), []
            for block in decoder.blocks(data, piece.end - len(data), last=last):
                self._next = block.next_offset
                yield block
            rest = data[decoder.used :]
            self._needed = self._size_of(rest, piece)
        else:
            rest = arrived
        if len(rest) and not decoder.done:
            self._carry.append(rest.copy())
        self._ahead.popleft()
        self._means.buffers.give(piece.memory)
        if decoder.done:
            self._leave(piece.stretch)
            while self._ahead and self._ahead[0].stretch is piece.stretch:
                self._give_back(self._ahead.popleft())

    def _size_of(self, rest: Bytes, piece: _RequestedPiece) -> int:
        """The size of the batch that begins with ``rest``, at the end of the piece; 0 if its length has not arrived."""
        if len(rest) < _LENGTH_BYTES:
            return 0
        size = int.from_bytes(bytes(rest[8:_LENGTH_BYTES]), "big") + _LENGTH_BYTES
        position = piece.end - len(rest)
        if position + size > piece.stretch.segment.stop:
            rule = f"the segment ends inside this record batch of {size} bytes"
            raise SegmentError(piece.stretch.segment.key, position, self._next, rule)
        return size

    def _joined(self, piece: _RequestedPiece, arrived: Bytes, carried: int) -> Bytes:
        """The carried and the arrived bytes in one piece: before the range if they fit there."""
        if carried > HEAD_BYTES:
            return np.concatenate([*self._carry, arrived])
        at = HEAD_BYTES - carried
        for part in self._carry:
            piece.memory[at : at + len(part)] = part
            at += len(part)
        return piece.memory[HEAD_BYTES - carried : HEAD_BYTES + len(arrived)]

    def _again(self, piece: _RequestedPiece, error: StoreError | SegmentError) -> None:
        """Continue at this offset after ``error``, or raise it if it persists.

        If the key has another version, or no object, the catalogue is refreshed: a repair may have made the segment
        again, or retention may have removed it. Damaged bytes are read again, as the transfer may have damaged them.
        A log that another system has deleted is a gap.
        """
        self._failures = self._failures + 1 if self._next == self._failed_at else 1
        self._failed_at = self._next
        lost = isinstance(error, NotFound) and piece.stretch.segment.referred and self._failures > 1
        if not lost and self._failures > (_MORE_READS if isinstance(error, SegmentError) else ATTEMPTS):
            raise self._named(error, self._next)
        log.info("%s, offset %s: reading again after: %s", self._tp, self._next, error)
        self._means.counters.add(retries=1)
        self._drop_ahead()
        self._source, self._stretch, self._decoder = None, None, None
        self._locate_from = self._next
        if self._located is not None:
            self._located.cancel()
        if lost:
            self._located = Future()
            self._located.set_result(_deleted(self._next, piece.stretch))
        elif isinstance(error, SegmentError):
            self._located = None
        else:
            self._located = self._means.submit(lambda: self._look_again(piece.stretch))

    def _look_again(self, stretch: Stretch) -> Stretch | Gap | None:
        assert self.partition is not None
        partition = self.partition
        if self._failures > 1:
            self._means.requests.pause(self._failures)
        with naming(f"{self._tp}"):
            partition.invalidate(stretch.segment)
            partition.refresh()
        return self._locate()

    def _named(self, error: StoreError | SegmentError, offset: int) -> Exception:
        if isinstance(error, SegmentError):
            return error
        return type(error)(error.key, f"{error.reason}; while reading {self._tp} at offset {offset}")

    def _drop_ahead(self) -> None:
        while self._ahead:
            self._give_back(self._ahead.popleft())

    def _give_back(self, piece: _RequestedPiece) -> None:
        """Return the memory of an unwanted piece, as soon as nothing is written to it any more."""
        piece.done.cancel()
        piece.done.add_done_callback(lambda _done: self._means.buffers.give(piece.memory))


def _deleted(start: int, stretch: Stretch) -> Gap:
    """The rest of a stretch whose log another system has deleted."""
    fields = {"from": start, "to": stretch.end, "reason": "unknown", "detected_at": utc_now(), "read": True}
    return Gap.model_validate(fields)
