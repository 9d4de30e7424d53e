"""A range again: local segments brought into the store even though it counts their offsets as final.

For an object that was lost or damaged there. Equal bytes are adopted, missing objects put again, a manifest that no
longer matches is written anew. ``offset.wm`` is left to the leader's agent, beside which this may run: the rules are
those of a replica (:mod:`uploader_agent.repair.replica_upload`), so what diverges is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from tidemark.errors import FormatError, TidemarkError
from tidemark.formats.keys import TopicPartition
from tidemark.intervals import Interval, Intervals
from tidemark.kafka_log.names import MAX_OFFSET
from uploader_agent.broker.admin import checkpointed_offsets
from uploader_agent.disk.log_dirs import find_partitions, topic_id_of
from uploader_agent.remote import manifests
from uploader_agent.remote.destinations import Destinations
from uploader_agent.remote.manifests import StoredManifest
from uploader_agent.remote.objects import find
from uploader_agent.repair.replica_upload import Replica, around, bring_all, overlapping
from uploader_agent.upload.segment_upload import UploadRoute

Outcome = Literal["would bring", "brought", "as it was", "left"]


class ReuploadRow(NamedTuple):
    """One segment: what became of it, and why it was left if it was."""

    partition: str
    base_offset: int
    next_offset: int
    bytes: int
    outcome: Outcome
    detail: str | None


class Reupload:
    """One partition's replica on this broker's disks."""

    def __init__(
        self,
        places: Destinations,
        broker: int,
        log_dirs: tuple[Path, ...],
        at: TopicPartition,
        pause: Callable[[float], object],
    ) -> None:
        """Find it.

        Raises:
            FormatError: it is on none of the disks, or its files are damaged.
        """
        folder = find_partitions(log_dirs).partitions.get(at)
        if folder is None:
            where = ", ".join(map(str, log_dirs))
            raise FormatError(str(at), f"has no directory in {where}: run this on a broker that has a replica")
        topic_id = topic_id_of(folder)
        _, store, keys = places.settle(at, topic_id)
        self._replica = Replica(UploadRoute(at, topic_id, folder, store, keys, broker), pause, again=True)
        self._high_watermark = _high_watermark(log_dirs, at, folder)

    def run(self, start: int = 0, end: int = MAX_OFFSET, *, dry_run: bool = False) -> Iterator[ReuploadRow]:
        """Bring the rotated segments that hold offsets of ``[start, end)`` and lie below the high watermark.

        Raises StoreError: the store failed; what came before it is done.
        """
        place, wanted = self._replica.place, Interval(start, end)
        works = overlapping(self._replica.segments(), wanted, self._high_watermark)
        if not works:
            return
        sizes = {work.base_offset: work.size for work in works}
        if dry_run:
            for work in works:
                yield ReuploadRow(str(place.at), work.base_offset, work.end, work.size, "would bring", None)
            return
        within = Intervals((work.base_offset, work.end) for work in works)
        surroundings = around(place.store, place.keys, Interval(within.parts[0].start, within.parts[-1].end))
        for work in works:
            intact = _intact(place, work.base_offset)
            [(_, outcome)] = bring_all(self._replica, [work], surroundings, self._high_watermark)
            base, size = work.base_offset, sizes[work.base_offset]
            yield ReuploadRow(str(place.at), base, work.end, size, *_told(intact, outcome))


def _intact(place: UploadRoute, base_offset: int) -> str | None:
    """The ETag of a manifest all of whose objects are there, as it names them; else None."""
    stored = manifests.read(place.store, place.keys, base_offset)
    if stored is None:
        return None
    for name, total in stored.manifest.objects.items():
        info = find(place.store, place.keys.file(name))
        if info is None or (info.size, info.etag) != (total.size, total.etag):
            return None
    return stored.etag


def _told(intact: str | None, outcome: StoredManifest | TidemarkError | None) -> tuple[Outcome, str | None]:
    if isinstance(outcome, TidemarkError):
        return "left", str(outcome)
    return ("as it was" if outcome is None or outcome.etag == intact else "brought"), None


def _high_watermark(log_dirs: tuple[Path, ...], at: TopicPartition, folder: Path) -> int:
    """By the broker's checkpoint: what is uploaded again is old, and the broker need not run."""
    found = checkpointed_offsets(log_dirs, {at: folder}).get(at)
    return found.high_watermark if found else 0
