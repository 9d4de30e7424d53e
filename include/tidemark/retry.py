"""Repetition of reads from the store: one policy, for all readers, of their number and pauses.

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
from typing import Final, TypeVar

from tidemark.errors import StoreError, UnknownOutcome

ATTEMPTS: Final = 6
"""Tries in all: if 7 of 100 requests fail, one read of 8 million does."""

SECONDS: Final = 60.0
"""No try begins later than this after the first one: a store that hangs is not waited for six times."""

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 5.0
"""Seconds before the second try, at most; twice as long before each further one, up to this."""

T = TypeVar("T")


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
        most = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (attempt - 1))
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
