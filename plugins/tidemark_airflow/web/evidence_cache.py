"""Evidence objects, kept in memory as they came, for an attempt's never changes.

A topic has one for each commit since the last vacuum. The first look at a topic fetches them side by side, and a later
one only those that are new.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from threading import Lock
from typing import Any, Final

from tidemark.concurrency import in_parallel
from tidemark.errors import NotFound
from tidemark.formats import object_sizes
from tidemark.table.delta_table import TopicTable
from tidemark.table.evidence import evidence_key, parse_evidence, read_evidence

_READERS: Final = 16
_MOST_BYTES: Final = 64 << 20


class KeptEvidence:
    """The evidence that was asked for last, up to 64 MiB of it; threads share it."""

    def __init__(self) -> None:
        """Nothing is kept yet."""
        self._bodies: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    def fetch(self, table: TopicTable, attempts: Iterable[int]) -> None:
        """Get what is not kept yet of these attempts."""
        missing = [
            key for key in (evidence_key(table, attempt) for attempt in attempts) if self._get(table, key) is None
        ]
        in_parallel(lambda key: self._fetch(table, key), missing, _READERS)

    def read(self, table: TopicTable, attempt: int) -> Any:
        """As :func:`tidemark.table.evidence.read_evidence`: a table of Arrow's, which has no types here."""
        body = self._get(table, evidence_key(table, attempt))
        return read_evidence(table, attempt) if body is None else parse_evidence(body)

    def _get(self, table: TopicTable, key: str) -> bytes | None:
        with self._lock:
            body = self._bodies.get((table.store.url, key))
            if body is not None:
                self._bodies.move_to_end((table.store.url, key))
            return body

    def _fetch(self, table: TopicTable, key: str) -> None:
        with suppress(NotFound):  # the attempt wrote none, or a vacuum has removed it: its reader gets the error
            self._keep((table.store.url, key), table.store.get(key, limit=object_sizes.EVIDENCE).body)

    def _keep(self, key: tuple[str, str], body: bytes) -> None:
        with self._lock:
            self._size += len(body) - len(self._bodies.get(key, b""))
            self._bodies[key] = body
            while self._size > _MOST_BYTES:
                _, dropped = self._bodies.popitem(last=False)
                self._size -= len(dropped)
