"""Segments of a replica that does not lead, or that leads no longer, brought into the store for offsets that it lacks.

Without leadership there is no fence, so the rules are stricter than a leader's: a segment goes only if it is sound, its
batches lie on its own lineage, and that lineage nowhere contradicts ``offset.wm`` or the stored manifests around.
``offset.wm`` is never written. What is stored may be created, or extended where it is a proved prefix; a corrupt
segment is replaced by its good copy (the ``.corrupt`` bytes stay); other bytes are left as they are, and that is said.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import structlog

from tidemark.errors import PreconditionFailed, TidemarkError
from tidemark.formats.keys import PartitionKeys
from tidemark.formats.manifest import SegmentManifest
from tidemark.intervals import Interval
from tidemark.kafka_log import Lineage
from tidemark.store import Store
from uploader_agent.broker.admin import UNKNOWN_POLICY, Offsets
from uploader_agent.disk.log_dirs import LocalSegment, find_segments
from uploader_agent.disk.segment_files import SegmentChanged, file_name
from uploader_agent.remote import listing, manifests, watermark
from uploader_agent.remote.lineage import OffLineage, lineage_of
from uploader_agent.remote.manifests import Observed, StoredManifest
from uploader_agent.remote.watermark import StoredWatermark
from uploader_agent.upload.eligibility import Work
from uploader_agent.upload.segment_upload import Diverged, Guards, UploadRoute, upload
from uploader_agent.upload.validation import ScannedSegment

logger = structlog.get_logger(__name__)

_TRIES = 20
"""How often a segment is looked at because somebody else was there."""

_PAUSE = 0.1
"""Seconds at most until the next look."""


class ReplicaRefused(TidemarkError):
    """A replica's segment must not go into the store; the message says why."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the store has around the offsets in question. ``lineages`` are pairs of a lineage and its end."""

    stored: StoredWatermark | None
    lineages: tuple[tuple[Lineage, int], ...]
    cleanup_policy: str

    def check(self, lineage: Lineage, end: int, path: str) -> None:
        """Raise :class:`ReplicaRefused` if ``lineage`` contradicts what is stored, below ``end``."""
        for known, known_end in self.lineages:
            at = known.divergence(lineage, min(end, known_end))
            if at is not None:
                raise ReplicaRefused(f"{path}: is of another branch of the log: lineages differ from offset {at} on")


def around(store: Store, keys: PartitionKeys, wanted: Interval) -> Surroundings:
    """Read ``offset.wm`` and the manifests next to ``wanted``, below and above."""
    stored = watermark.read(store, keys)
    listed = listing.list_segments(store, keys, max(0, wanted.start - listing.REACH)).manifests
    below = [base for base, _ in listed if base < wanted.start][-1:]
    above = [base for base, _ in listed if base >= wanted.end][:1]
    near = [found.manifest for base in below + above if (found := manifests.read(store, keys, base))]
    lineages = [(Lineage(one.lineage), one.next_offset) for one in near]
    if stored is not None:
        lineages.append((Lineage(stored.watermark.lineage), stored.watermark.next_offset))
    policies = {one.cleanup_policy for one in near}
    return Surroundings(stored, tuple(lineages), policies.pop() if len(policies) == 1 else UNKNOWN_POLICY)


def overlapping(segments: Iterable[LocalSegment], wanted: Interval, high_watermark: int) -> list[Work]:
    """The rotated segments that hold offsets of ``wanted`` and end at or below ``high_watermark``."""
    return [
        Work(one.base_offset, one.next_offset, one.size, provisional=False)
        for one in segments
        if one.next_offset is not None
        and one.next_offset <= high_watermark
        and one.base_offset < wanted.end
        and one.next_offset > wanted.start
    ]


@dataclass(frozen=True, slots=True)
class Replica:
    """One partition's directory and where it goes. ``again`` sends what the store counts as final, too."""

    place: UploadRoute
    pause: Callable[[float], object]
    again: bool = False

    def segments(self) -> list[LocalSegment]:
        """What is on the disk, and before that what is held of it alone."""
        place, live = self.place, find_segments(self.place.folder)
        held = place.hold.segments(place.at, place.topic_id) if place.hold else []
        return [*(one for one in held if not live or one.base_offset < live[0].base_offset), *live]

    def bring(self, work: Work, surroundings: Surroundings, high_watermark: int) -> StoredManifest | None:
        """Bring one segment; None if the store has it.

        Raises:
            Refused, Diverged, OffLineage: it must not go; it is left.
            SegmentChanged: the disk shows something else by now.
            StoreError: the store failed; PreconditionFailed: others write there, again and again.
        """
        again = self.again
        for _ in range(_TRIES - 1):
            try:
                return self._bring(work, surroundings, high_watermark, again=again)
            except PreconditionFailed:
                again = True  # the other one's manifest may name an index that we have replaced
                self.pause(random.uniform(0, _PAUSE))  # noqa: S311 - two that met must not meet again
        return self._bring(work, surroundings, high_watermark, again=again)

    def _bring(
        self, work: Work, surroundings: Surroundings, high_watermark: int, *, again: bool
    ) -> StoredManifest | None:
        place = self.place
        there = manifests.read(place.store, place.keys, work.base_offset)
        if there is not None and not again and _has(there.manifest, work):
            return None
        seen = Observed(Offsets(high_watermark), surroundings.cleanup_policy, 0)
        guards = Guards(
            fence=partial(self._check_alone, work.base_offset, there),
            pause=self.pause,
            superseded=_never,
            judge=partial(self._judge, work, surroundings),
            supersede=False,
            publish=partial(self._publish, there),
        )
        return upload(place, work, seen, guards, known=there is not None and there.manifest.state != "corrupt")

    def _judge(self, work: Work, surroundings: Surroundings, scanned: ScannedSegment, lineage: Lineage) -> Lineage:
        path = str(self.place.folder / file_name(work.base_offset, "log"))
        if scanned.damage is not None:
            raise ReplicaRefused(
                f"{path}: is damaged here, too: at byte {scanned.damage.position}, {scanned.damage.rule}"
            )
        known, known_end = Lineage(), 0
        if surroundings.stored is not None:
            known = Lineage(surroundings.stored.watermark.lineage)
            known_end = surroundings.stored.watermark.next_offset
        whole = lineage_of(path, scanned.summary, known, known_end, lineage)
        surroundings.check(whole, work.end, path)
        return whole

    def _check_alone(self, base_offset: int, there: StoredManifest | None) -> None:
        """Who does not lead has no epoch to be fenced by, but goes by the manifest that was ``there`` at the start."""
        keys = self.place.keys
        now = manifests.read(self.place.store, keys, base_offset)
        if (now and now.etag) != (there and there.etag):
            key = keys.segment(base_offset, manifests.EXTENSION)
            raise PreconditionFailed(key, "was written by another agent meanwhile")

    @staticmethod
    def _publish(
        there: StoredManifest | None, store: Store, keys: PartitionKeys, manifest: SegmentManifest
    ) -> StoredManifest:
        if there is not None and manifests.says_the_same(there.manifest, manifest):
            return there
        return manifests.write_over(store, keys, manifest, there)


def bring_all(
    replica: Replica, works: Iterable[Work], surroundings: Surroundings, high_watermark: int
) -> Iterator[tuple[Work, StoredManifest | TidemarkError | None]]:
    """Bring segment after segment: with each its manifest, None if the store has it, or why it does not go.

    Raises StoreError: the store failed; later ones are not tried.
    """
    for work in works:
        try:
            yield work, replica.bring(work, surroundings, high_watermark)
        except (ReplicaRefused, Diverged, OffLineage, SegmentChanged) as error:
            yield work, error


def _never() -> None:
    """Nothing is copied aside for a replica."""


def _has(stored: SegmentManifest, work: Work) -> bool:
    return stored.state != "corrupt" and stored.next_offset >= work.end
