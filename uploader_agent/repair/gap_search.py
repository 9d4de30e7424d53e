"""The leader's search for what its holes lack: under other boundaries in the store, or as bytes without their manifest.

A hole is searched for before it becomes a gap, and again and again while it stays one. What people said about it
(``_acks/``) is read at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from tidemark.formats import tombstones
from tidemark.formats.acknowledgements import acknowledged
from tidemark.formats.gaps import Gap
from tidemark.formats.keys import ControlKeys
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage
from tidemark.store import Store
from uploader_agent.remote import listing, manifests
from uploader_agent.remote.lineage import OffLineage
from uploader_agent.remote.listing import Based
from uploader_agent.remote.manifests import Observed
from uploader_agent.remote.partition_state import RemoteState
from uploader_agent.repair import manifest_rebuild
from uploader_agent.runtime import Runtime
from uploader_agent.upload.segment_upload import UploadRoute

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a search goes by. ``holes`` tells them anew; what starts at ``local_start`` or above is on the disk."""

    place: UploadRoute
    holes: Callable[[], Intervals]
    gaps: tuple[Gap, ...]
    local_start: int
    lineage: Lineage
    seen: Observed
    fence: Callable[[], None]


class Search:
    """One partition's; ``interval`` seconds pass before the same holes are searched for again."""

    def __init__(self, control_store: Store, control: ControlKeys, interval: float, runtime: Runtime) -> None:
        self.acknowledged = Intervals()
        self._control_store = control_store
        self._control = control
        self._interval = interval
        self._clock = runtime.monotonic
        self._searched = Intervals()
        self._searched_at = 0.0
        self._refused: set[str] = set()  # ETags of stored bytes that no manifest can be made from

    def is_due(self, holes: Intervals) -> bool:
        """At once for a new hole; again and again for one that stays."""
        if not holes:
            return False
        return bool(holes - self._searched) or self._clock() - self._searched_at >= self._interval

    def run(self, wanted: Wanted, remote: RemoteState, lock: threading.Lock) -> None:
        """Add to ``remote`` what is found. Raises what the store raises, FormatError for objects that do not parse."""
        store, keys, holes = wanted.place.store, wanted.place.keys, wanted.holes()
        listed = listing.reaching(store, keys, holes)
        with lock:
            known = dict(remote.read)
        for found in listing.read_news(store, keys, listed, known, holes, wanted.gaps):
            with lock:
                remote.add(found, wanted.lineage)
        named = {one.base_offset for one in listed.manifests}
        for log in listed.logs:
            with lock:
                segment = remote.segments.get(log.base_offset)
            stale = segment.log_etag != log.info.etag if segment else log.base_offset not in named
            if stale and self._is_wanted(log, wanted) and log.base_offset not in tombstones.removed(store, keys):
                self._rebuild(log, wanted, remote, lock)
        left = wanted.holes()
        if left:
            self.acknowledged = acknowledged(self._control_store, self._control, wanted.place.keys)
        self._searched, self._searched_at = left, self._clock()

    def mend(self, log: Based, wanted: Wanted, remote: RemoteState, lock: threading.Lock) -> None:
        """Make the manifest of a ``.log`` that was replaced by an agent which died before it could say so."""
        with lock:
            remote.mismatched.pop(log.base_offset, None)
        if log.info.etag not in self._refused:
            self._rebuild(log, wanted, remote, lock)

    def _is_wanted(self, log: Based, wanted: Wanted) -> bool:
        """Whether only the stored bytes are left, and a hole may lie in them."""
        if log.base_offset >= wanted.local_start or log.info.etag in self._refused:
            return False
        return any(log.base_offset < hole.end for hole in wanted.holes())

    def _rebuild(self, log: Based, wanted: Wanted, remote: RemoteState, lock: threading.Lock) -> None:
        place, (base, info) = wanted.place, log
        with lock:
            stored, opened = remote.stored, remote.open_before(base)
        known, vouched = Lineage(), 0
        if stored is not None:
            known, vouched = Lineage(stored.watermark.lineage), stored.watermark.next_offset
        try:
            lineages = known, vouched, wanted.lineage
            facts = manifest_rebuild.rebuild(place.store, place.keys, base, info, lineages, opened, wanted.fence)
        except (manifest_rebuild.NotRebuilt, OffLineage) as error:
            self._refused.add(info.etag)
            logger.warning("stored_segment_not_rebuilt", partition=str(place.at), error=str(error))
            return
        manifest = manifests.build(place.at, place.keys, place.topic_id, place.broker, facts, wanted.seen)
        wanted.fence()
        written = manifests.write(place.store, place.keys, manifest)
        logger.warning("manifest_rebuilt", partition=str(place.at), key=info.key, next_offset=facts.next_offset)
        with lock:
            remote.add(written, wanted.lineage)
