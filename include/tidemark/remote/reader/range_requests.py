"""Ranges of stored segments, read into reused memory by requests that are counted and that closing ends.

Promises: all bytes of a range of the requested version, or an error; requests are repeated according to
:mod:`tidemark.retry`, and :meth:`Requests.close` ends the pauses.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from tidemark.errors import BucketMissing, NotFound, PreconditionFailed, StoreError, TidemarkError
from tidemark.raw.segments import Segment
from tidemark.retry import Retry
from tidemark.storage import Storage

RANGE_BYTES: Final = 8 << 20
"""The most bytes of a request: of 1, 2, 4 and 8 MiB the largest was read fastest from an S3 server."""

HEAD_BYTES: Final = 1 << 20
"""Room before a range for the beginning of a batch that the previous range ended in; batches are rarely larger."""

Bytes = NDArray[np.uint8]


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
        """Count a request, see :class:`tidemark.retry.Retry`. Raises :class:`Closed`."""
        self._check_open()
        self._counters.add(requests=1)

    @override
    def again(self) -> None:
        self._counters.add(retries=1)

    def wait(self, seconds: float) -> None:
        """Pause, see :class:`tidemark.retry.Retry`. Raises :class:`Closed`."""
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
