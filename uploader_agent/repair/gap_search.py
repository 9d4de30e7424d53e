"""The leader's search for data of its holes: stored under other boundaries, or without a manifest.

The search runs before a hole becomes a gap, and repeatedly while it is one. Each search also reads the acknowledgements
of people (``_acks/``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw import tombstones
from tidemark.formats.raw.acknowledgements import acknowledged
from tidemark.formats.raw.gaps import Gap
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage
from tidemark.raw.objects import ListedObject
from tidemark.store import Store
from uploader_agent.runtime import Runtime
from uploader_agent.stored import listing, manifests
from uploader_agent.stored.lineage import KnownLineages, OffLineage
from uploader_agent.stored.manifests import Observed
from uploader_agent.stored.remote_state import RemoteState
from uploader_agent.upload.manifest_rebuild import NotRebuilt, rebuild
from uploader_agent.upload.segment_upload import UploadRoute

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SearchInput:
    """The input of a search. ``holes`` returns the current holes; segments from ``local_start`` on are on the disk."""

    route: UploadRoute
    holes: Callable[[], Intervals]
    gaps: tuple[Gap, ...]
    local_start: int
    lineage: Lineage
    seen: Observed


_NOTHING: Final = Intervals()


class Search:
    """The searches for one partition; the same holes are searched for at most every ``interval`` seconds."""

    def __init__(self, control_store: Store, control: ControlKeys, interval: float, runtime: Runtime) -> None:
        self.acknowledged = _NOTHING
        self._control_store = control_store
        self._control = control
        self._interval = interval
        self._clock = runtime.monotonic
        self._searched = _NOTHING
        self._searched_at = 0.0
        self._refused: frozenset[str] = frozenset()  # ETags of stored logs that can get no manifest

    def is_due(self, holes: Intervals) -> bool:
        """True if there is a new hole, or the interval of an old one has passed."""
        if not holes:
            return False
        return bool(holes - self._searched) or self._clock() - self._searched_at >= self._interval

    def run(self, wanted: SearchInput, remote: RemoteState) -> None:
        """Add the segments found to ``remote``. Raises StoreError, and FormatError for objects that do not parse."""
        store, keys, holes = wanted.route.store, wanted.route.keys, wanted.holes()
        listed = listing.reaching(store, keys, holes)
        for stored in listing.read_news(store, keys, listed, remote.manifests_read, holes, wanted.gaps):
            remote.add(stored, wanted.lineage)
        with_manifest = {entry.name for entry in listed.manifests}
        for log in listed.logs:
            bare = log.name not in with_manifest and self._is_wanted(log, wanted)
            if bare and log.name.base not in tombstones.removed(store, keys):
                self._rebuild(log, wanted, remote)
        left = wanted.holes()
        if left:
            self.acknowledged = acknowledged(self._control_store, self._control, wanted.route.keys)
        self._searched, self._searched_at = left, self._clock()

    def _is_wanted(self, log: ListedObject, wanted: SearchInput) -> bool:
        """True if only the stored bytes are left, and they may cover a hole."""
        if log.name.base >= wanted.local_start or log.info.etag in self._refused:
            return False
        return any(log.name.base < hole.end for hole in wanted.holes())

    def _rebuild(self, log: ListedObject, wanted: SearchInput, remote: RemoteState) -> None:
        route, (name, _, info) = wanted.route, log
        lineages, opened = KnownLineages.of(remote.watermark, wanted.lineage), remote.open_before(name.base)
        try:
            facts = rebuild(route.store, route.keys, name, info, lineages, opened or ())
        except (NotRebuilt, OffLineage) as error:
            self._refused |= {info.etag}
            logger.warning("stored_segment_not_rebuilt", partition=str(route.tp), error=str(error))
            return
        if not Intervals([(name.base, facts.next_offset)]) & wanted.holes():
            self._refused |= {info.etag}  # its offsets are sealed under another name, with batches from packs
            return
        written = manifests.write(route.store, route.keys, route.manifest(facts, wanted.seen))
        logger.warning("manifest_rebuilt", partition=str(route.tp), key=info.key, next_offset=facts.next_offset)
        remote.add(written, wanted.lineage)
