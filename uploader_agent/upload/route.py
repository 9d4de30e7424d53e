"""The source and the destination of a partition's segments, and the manifests of what goes between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tidemark.formats.keys import SegmentName, TopicPartition
from tidemark.formats.raw.manifest import ObjectSum, Origin, PackedPart, SegmentDamage, SegmentManifest, last_batch_of
from tidemark.kafka_log import Lineage, SegmentSummary
from tidemark.storage import PartitionStore
from uploader_agent import __version__
from uploader_agent.broker.admin import Cleanup, Offsets
from uploader_agent.disk.segment_files import PartitionFiles, SegmentFiles
from uploader_agent.hold import Hold
from uploader_agent.runtime import utc_now


@dataclass(frozen=True, slots=True)
class UploadRoute:
    """The source and the destination of a partition's segments.

    ``origin`` says how the agent gets the log, and ``restores`` are those of ``offset.wm``.
    """

    tp: TopicPartition
    topic_id: str | None
    folder: Path
    partition: PartitionStore
    broker: int
    hold: Hold | None = None
    origin: Origin = "disk"
    restores: tuple[int, ...] = ()

    def files(self) -> SegmentFiles:
        """The partition's files, including held ones. Raises SegmentChanged if there are none."""
        if self.hold is None:
            return PartitionFiles(self.folder, self.topic_id, self.restores)
        return self.hold.files(self.tp, self.topic_id, self.folder, self.restores)

    def manifest(
        self,
        name: SegmentName,
        summary: SegmentSummary,
        lineage: Lineage,
        objects: Mapping[str, ObjectSum],
        offsets: Offsets,
        cleanup: Cleanup,
        *,
        next_offset: int | None = None,
        damage: SegmentDamage | None = None,
        rotated_at: datetime | None = None,
        parts: tuple[PackedPart, ...] = (),
    ) -> SegmentManifest:
        """The manifest of the segment ``name``, whose batches the ``summary`` describes.

        ``objects`` are what the store has of it. ``offsets`` and ``cleanup`` are the broker's statements at that time.
        The segment accounts for the offsets up to ``next_offset``, by default the end of its last batch, and holds the
        ``parts`` of packs byte for byte.
        """
        end = summary.next_offset if next_offset is None else next_offset
        return SegmentManifest(
            cluster=self.partition.keys.cluster,
            topic=self.tp.topic,
            topic_id=self.topic_id,
            partition=self.tp.partition,
            base_offset=name.base,
            suffix=name.suffix,
            last_batch_end=summary.next_offset,
            next_offset=end,
            lineage=lineage.truncated(end).entries,
            restores=lineage.restores,
            first_timestamp=summary.first_timestamp,
            max_timestamp=summary.max_timestamp,
            batch_count=summary.batch_count,
            magics=summary.magics,
            codecs=summary.codecs,
            open_transactions=summary.open_transactions,
            log_start_offset=offsets.log_start_offset or 0,
            high_watermark=offsets.high_watermark,
            last_stable_offset=offsets.last_stable_offset,
            offsets_from=offsets.source,
            cleanup_policy=cleanup.policy,
            delete_retention_ms=cleanup.delete_retention_ms,
            rotated_at=rotated_at,
            uploaded_at=utc_now(),
            broker=self.broker,
            origin=self.origin,
            agent_version=__version__,
            state="corrupt" if damage else "whole",
            damage=damage,
            objects=dict(objects),
            parts=parts,
            last_batch=last_batch_of(summary.last),
        )
