"""Repetition of reads from the store: one policy, for all readers, of their number and pauses.

:class:`Backoff` is the doubling pause of this policy, and of everything else that is tried again.

A read may be repeated after any failure with an unknown outcome: no answer, one that broke off, one that reports too
many requests. An answer that the object is another one, gone or forbidden is final. A write is repeated by
:func:`tidemark.store.put_once`, which reads back its outcome, and by :func:`tidemark.store.put_over`.
No layer below or above repeats reads: boto3's and obstore's clients try once. docs/storage.md, "How requests are
repeated", has a table of everything that is repeated, writes and the agent's jobs included.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from tidemark.errors import StoreError, UnknownOutcome

ATTEMPTS: Final = 6
"""Tries in all: if 7 of 100 requests fail, one read of 8 million does."""

SECONDS: Final = 60.0
"""No try begins later than this after the first one: a store that hangs is not waited for six times."""

T = TypeVar("T")


class Backoff(NamedTuple):
    """Pauses in seconds between tries: the ``first``, and each later one twice as long, up to the ``longest``.

    No pause is shorter than the first, whatever the longest is. Callers that must not keep step spread them.
    """

    first: float
    longest: float

    def after(self, failures: int) -> float:
        """The pause after ``failures`` failures in a row, which are at least one."""
        return self._bounded(self.first * 2.0 ** min(failures - 1, 30))

    def longer(self, pause: float) -> float:
        """The pause that follows ``pause``; the first one after 0."""
        return self._bounded(2 * pause)

    def _bounded(self, pause: float) -> float:
        return max(self.first, min(self.longest, pause))


PAUSES: Final = Backoff(0.2, 5.0)
"""The longest pauses between the tries of a read; each is at least half as long."""


class Retry:
    """Makes requests under the policy. Thread-safe; a subclass may count requests, and end the pauses."""

    def call(self, request: Callable[[], T]) -> T:
        """The result of ``request``, repeated after an error that may pass. Raises the last error."""
        tries = Tries(self)
        while True:
            tries.begin()
            try:
                return request()
            except StoreError as error:
                tries.failed(error)

    def began(self) -> None:
        """Note that a request is about to be made."""

    def again(self) -> None:
        """Note that a request failed, and will be repeated."""

    def wait(self, seconds: float) -> None:
        """Wait before a request is repeated."""
        time.sleep(seconds)

    def pause(self, attempt: int) -> None:
        """Wait after try ``attempt``, counted from 1; for a random time, so that readers do not keep step."""
        most = PAUSES.after(attempt)
        self.wait(random.uniform(most / 2, most))  # noqa: S311  # no secret


class Tries:
    """The tries of one read, which may continue where a try broke off."""

    def __init__(self, retry: Retry) -> None:
        """Start with no try made."""
        self._retry = retry
        self._attempt = 0
        self._since = time.monotonic()

    def begin(self) -> None:
        """Count the try that begins now."""
        self._attempt += 1
        self._retry.began()

    def progressed(self) -> None:
        """Count the tries from zero: the read has come far enough."""
        self._attempt = 0
        self._since = time.monotonic()

    def failed(self, error: StoreError) -> None:
        """Wait until the next try, or raise ``error`` if it is final or the tries are used up."""
        late = time.monotonic() - self._since >= SECONDS
        if not isinstance(error, UnknownOutcome) or self._attempt >= ATTEMPTS or late:
            raise error
        self._retry.again()
        self._retry.pause(self._attempt or 1)
