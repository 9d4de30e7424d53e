"""How often a read of the store is made again, and when: one policy for everything that reads.

A read may be made again after any failure whose outcome is unknown: no answer, one that broke off, one that says that
too much is asked. What says that the object is another one, gone or forbidden is an answer, and final. A write is made
again by :func:`tidemark.store.put_once`, which reads back what became of it, and by :func:`tidemark.store.put_over`.

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
"""Tries in all: where 7 of 100 requests fail, one read of 8 million does."""

SECONDS: Final = 60.0
"""No try begins later than this after the first one: a store that hangs is not waited for six times."""

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 5.0
"""Seconds before the second try, at most; twice as long before each further one, up to this."""

T = TypeVar("T")


class Retry:
    """Makes requests by the policy. Thread-safe; a subclass may count requests, and end the pauses."""

    def call(self, request: Callable[[], T]) -> T:
        """``request``, made again after an error that may pass. Raises the last error."""
        tries = Tries(self)
        while True:
            tries.begin()
            try:
                return request()
            except StoreError as error:
                tries.failed(error)

    def began(self) -> None:
        """A request is about to be made."""

    def again(self) -> None:
        """A request failed, and will be made again."""

    def wait(self, seconds: float) -> None:
        """Wait before a request is made again."""
        time.sleep(seconds)

    def pause(self, attempt: int) -> None:
        """Wait after the try number ``attempt``, counted from 1; by chance, so that readers do not keep step."""
        most = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (attempt - 1))
        self.wait(random.uniform(most / 2, most))  # noqa: S311  # no secret


class Tries:
    """The tries of one read, which may go on where a try broke off."""

    def __init__(self, retry: Retry) -> None:
        """None was made yet."""
        self._retry = retry
        self._attempt = 0
        self._since = time.monotonic()

    def begin(self) -> None:
        """Count the try that begins now."""
        self._attempt += 1
        self._retry.began()

    def progressed(self) -> None:
        """The read is nearer to its end by so much that the tries are counted from zero."""
        self._attempt = 0
        self._since = time.monotonic()

    def failed(self, error: StoreError) -> None:
        """Wait until it is time for the next try, or raise ``error`` if it is final or the tries are used up."""
        late = time.monotonic() - self._since >= SECONDS
        if not isinstance(error, UnknownOutcome) or self._attempt >= ATTEMPTS or late:
            raise error
        self._retry.again()
        self._retry.pause(self._attempt or 1)
