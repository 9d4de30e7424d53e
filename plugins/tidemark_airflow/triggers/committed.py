"""The landed offsets of topics without reading their tables: from copies of the committed ledgers, one for each topic.

A run writes its copy after its commit, so a copy may be behind its table, for example if the run died in between. Then
a run is planned in vain, and corrects it. A copy is read again only if it has changed.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import lru_cache

from tidemark.formats.keys import DeploymentKeys
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.object_cache import ObjectCache
from tidemark.store import ObjectInfo, Store, StoreOptions, open_store
from tidemark_airflow.triggers.readiness import Landed, landed_by

LandedTopic = Mapping[str, Landed]
"""Landed offsets of a topic, by ``<incarnation>-<partition>``."""

_NOTHING: LandedTopic = {}


class CommittedLedgers:
    """The copies of a cluster's ledgers, for all triggers of this process."""

    def __init__(self, store: Store, keys: DeploymentKeys) -> None:
        self._keys = keys
        self._lock = threading.Lock()
        self._copies = ObjectCache(store, keys.committed, _landed_of, limit=Ledger.most_bytes)

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, lake: str, keys: DeploymentKeys, options: str) -> CommittedLedgers:
        """The copies in the store ``lake`` with ``options`` as JSON. Opens the store once: not on an event loop."""
        return cls(open_store(lake, StoreOptions.model_validate_json(options)), keys)

    def look(self) -> None:
        """Read the copies that have changed. Raises StoreError, and FormatError if there are too many."""
        with self._lock:
            self._copies.look()

    def landed(self, topic: str) -> LandedTopic:
        """Landed offsets of ``topic`` at the last :meth:`look`; empty if there is no copy."""
        copy = self._copies.objects.get(self._keys.committed_ledger(topic))
        return _NOTHING if copy is None or copy.kept is None else copy.kept


def _landed_of(body: bytes, info: ObjectInfo) -> LandedTopic:
    return landed_by(Ledger.from_bytes(body, info.key))
