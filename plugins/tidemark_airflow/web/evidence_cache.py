"""Evidence objects, kept in memory as they came, for an attempt's never changes.

A topic has one for each commit since the last vacuum. The first look at a topic fetches them side by side, and a later
one only those that are new.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, Final

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
        missing = [key for key in (evidence_key(table, one) for one in attempts) if self._get(table, key) is None]
        with ThreadPoolExecutor(_READERS) as readers:
            for key, body in zip(missing, readers.map(lambda key: _body(table, key), missing), strict=True):
                if body is not None:
                    self._keep((table.store.url, key), body)

    def read(self, table: TopicTable, attempt: int) -> Any:
        """As :func:`tidemark.table.evidence.read_evidence`: a table of Arrow's, which has no types here."""
        body = self._get(table, evidence_key(table, attempt))
        return read_evidence(table, attempt) if body is None else parse_evidence(body)

    def _get(self, table: TopicTable, key: str) -> bytes | None:
        with self._lock:
            found = self._bodies.get((table.store.url, key))
            if found is not None:
                self._bodies.move_to_end((table.store.url, key))
            return found

    def _keep(self, key: tuple[str, str], body: bytes) -> None:
        with self._lock:
            self._size += len(body) - len(self._bodies.get(key, b""))
            self._bodies[key] = body
            while self._size > _MOST_BYTES:
                _, dropped = self._bodies.popitem(last=False)
                self._size -= len(dropped)


def _body(table: TopicTable, key: str) -> bytes | None:
    try:
        return table.store.get(key, limit=object_sizes.EVIDENCE).body
    except NotFound:
        return None  # the attempt wrote none, or it was swept meanwhile: whoever reads it is told
