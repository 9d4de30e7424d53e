"""Ranges of stored segments into memory that is used again, and requests that are tried again.

Promises: of a range all bytes of the version that was asked for, or an error; a request that may succeed later is made
again a bounded number of times, after pauses that grow and are drawn by chance; :meth:`Requests.close` ends the pauses.
"""

from __future__ import annotations

import mmap
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from tidemark.errors import (
    BucketMissing,
    NotFound,
    PreconditionFailed,
    Refused,
    StoreError,
    TidemarkError,
)
from tidemark.planning.segments import Segment
from tidemark.remote.storage import Storage

RANGE_BYTES: Final = 8 << 20
"""Bytes of a request, at most: of 1, 2, 4 and 8 MiB the largest was read fastest from an S3 server."""

HEAD_BYTES: Final = 1 << 20
"""Room before a range for the beginning of a batch that the range before it ended in; batches are rarely larger."""

ATTEMPTS: Final = 5
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0

T = TypeVar("T")
Bytes = NDArray[np.uint8]


class Closed(TidemarkError):
    """The reader was closed while it waited."""


@dataclass
class Counters:
    """What reading the remote tier has cost and brought since it began. ``skipped`` are offsets of gaps."""

    requests: int = 0
    bytes: int = 0
    records: int = 0
    retries: int = 0
    skipped: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, *, requests: int = 0, size: int = 0, records: int = 0, retries: int = 0, skipped: int = 0) -> None:
        """Count these, from any thread."""
        with self._lock:
            self.requests += requests
            self.bytes += size
            self.records += records
            self.retries += retries
            self.skipped += skipped


class Buffers:
    """Memory for ranges, used again; each piece has HEAD_BYTES before RANGE_BYTES. Thread-safe.

    Mapped, not allocated: what the allocator once had from a thread it keeps, and a page that is not touched costs
    nothing.
    """

    def __init__(self, most_spare: int) -> None:
        """At most ``most_spare`` pieces are kept for later."""
        self._spare: list[Bytes] = []
        self._most_spare = most_spare
        self._lock = threading.Lock()

    def take(self) -> Bytes:
        """A piece of memory, with anything in it."""
        with self._lock:
            if self._spare:
                return self._spare.pop()
        return np.frombuffer(mmap.mmap(-1, HEAD_BYTES + RANGE_BYTES), np.uint8)

    def give(self, piece: Bytes) -> None:
        """The piece is needed no more."""
        with self._lock:
            if len(self._spare) < self._most_spare:
                self._spare.append(piece)


class Requests:
    """Requests to the stores of ``storage``, tried again where that may help. Thread-safe."""

    def __init__(self, storage: Storage, counters: Counters) -> None:
        self._storage = storage
        self._counters = counters
        self._closed = threading.Event()

    def close(self) -> None:
        """End all pauses; from then on nothing is tried again."""
        self._closed.set()

    def pause(self, attempt: int) -> None:
        """Wait before another attempt; ``attempt`` counts from 1. Raises :class:`Closed`."""
        most = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**attempt)
        if self._closed.wait(random.uniform(most / 2, most)):  # noqa: S311  # no secret: so that readers do not keep step
            raise Closed("the reader was closed")

    def read_into(self, target: Bytes, segment: Segment, start: int, end: int, what: str) -> None:
        """Bytes ``[start, end)`` of the segment's object to the start of ``target``; ``what`` is for messages.

        A reply that breaks off is gone on with where it did. Raises PreconditionFailed if the object is another version
        now, NotFound if it is gone, and other kinds of StoreError after the last attempt.
        """
        view = target[: end - start].data
        done = 0

        def receive() -> None:
            nonlocal done
            with self._storage.store(segment.store).stream(
                segment.key, start + done, end, if_match=segment.etag
            ) as body:
                while done < end - start:
                    if self._closed.is_set():
                        raise Closed("the reader was closed")
                    count = body.readinto(view[done:])
                    done += count
                    self._counters.add(size=count)

        with naming(what):
            self.tried(receive)

    def tried(self, request: Callable[[], T]) -> T:
        """``request``, tried again after an error that may pass. Raises as :meth:`judge`, and :class:`Closed`."""
        attempt = 0
        while True:
            if self._closed.is_set():
                raise Closed("the reader was closed")
            attempt += 1
            self.count()
            try:
                return request()
            except StoreError as error:
                self.judge(error, attempt)

    def count(self) -> None:
        """A request is made."""
        self._counters.add(requests=1)

    def judge(self, error: StoreError, attempt: int) -> None:
        """Wait before the next attempt, or raise ``error`` if another one cannot help, or would be one too many.

        What says that the object is another one, gone or forbidden is not tried again.
        """
        final = isinstance(error, PreconditionFailed | NotFound | Refused)
        if final or attempt == ATTEMPTS or self._closed.is_set():
            raise error
        self._counters.add(retries=1)
        self.pause(attempt)


@contextmanager
def naming(what: str) -> Iterator[None]:
    """An error of a store names ``what`` was read, too; unless it only says that the object is another one or gone."""
    try:
        yield
    except (PreconditionFailed, NotFound):
        raise
    except BucketMissing as error:
        error.add_note(f"while reading {what}")
        raise
    except StoreError as error:
        raise type(error)(error.key, f"{error.reason}; while reading {what}") from error
