"""Takes over a prefix that Pinterest's uploader filled: writes manifests and ``offset.wm`` for its segments.

That uploader puts ``<base>.log``, ``.index`` and ``.timeindex`` under the same keys as Tidemark, and an
``offset.wm`` of one line: the base offset of a segment with a stored ``.log``. It checks no bytes, does not distinguish
leaders, and continues after a segment that it could not send. So only the bytes are trusted: each ``.log`` is read once
and checked batch by batch, its indexes are rebuilt, and its epochs are compared with the log of this broker. A segment
that fails a check is left as it is and reported; it becomes a gap.

Manifests are written first, in order. ``offset.wm`` comes last and replaces the other uploader's: until then the agent
refuses the partition. A killed run can be started again and continues where it stopped. Source of that layout:
pinterest/tiered-storage.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tidemark.errors import FormatError, PreconditionFailed
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.manifest import SegmentManifest, compacts
from tidemark.kafka_log import Lineage
from tidemark.raw.objects import read_manifest
from tidemark.storage import ListedObject, OtherWatermark, StoredWatermark
from uploader_agent.broker.admin import Cleanup, Offsets, checkpointed_offsets
from uploader_agent.disk.log_dirs import find_partitions, topic_id_of
from uploader_agent.repair.reupload import Outcome, RepairRow
from uploader_agent.stored import stored_log, watermark
from uploader_agent.stored.incarnations import Incarnations
from uploader_agent.stored.lineage import KnownLineages, OffLineage
from uploader_agent.stored.objects import find, put_derived, write_manifest_over
from uploader_agent.stored.stored_log import StoredLog
from uploader_agent.upload.segment_upload import NotRebuilt, UploadRoute, rebuild


class Adoption:
    """One partition's prefix, beside a replica of its log on this broker's disks."""

    def __init__(
        self,
        incarnations: Incarnations,
        broker: int,
        log_dirs: tuple[Path, ...],
        tp: TopicPartition,
        cleanup_policy: str,
    ) -> None:
        """Find the replica and the prefix; nothing is written.

        Raises:
            FormatError: no disk has a replica, its files are damaged, or the topic was re-created since: a later
                incarnation has a prefix of its own.
        """
        folder = find_partitions(log_dirs).partitions.get(tp)
        if folder is None:
            where = ", ".join(map(str, log_dirs))
            raise FormatError(str(tp), f"has no directory in {where}: run this on a broker that has a replica")
        self._tp, self._broker, self._cleanup = tp, broker, Cleanup(cleanup_policy)
        self._topic_id = topic_id_of(folder)
        incarnation, self._partition = incarnations.resolve(tp, self._topic_id)
        if incarnation:
            rule = f"is incarnation {incarnation} of its topic, which has a prefix of its own"
            own = self._partition.keys.folder
            raise FormatError(str(tp), f"{rule}: {own}; another uploader's segments are of the first one")
        self._route = UploadRoute(tp, self._topic_id, folder, self._partition, broker)
        with self._route.files() as files:
            self._lineage = files.lineage()
        self._offsets = checkpointed_offsets(log_dirs, {tp: folder}).get(tp)
        self._stored = StoredLog(broker)

    def run(self, *, dry_run: bool = False) -> Iterator[RepairRow]:
        """Adopt segment after segment, and ``offset.wm`` at the end; nothing if Tidemark wrote ``offset.wm``.

        Raises:
            PreconditionFailed: another program writes there now: stop the other uploader.
            StoreError: the store failed; earlier segments are done.
        """
        other = self._partition.watermark()
        if isinstance(other, StoredWatermark):
            return
        manifests, logs = stored_log.list_segments(self._partition, 0)
        with_manifest = {entry.name for entry in manifests}
        ends = [entry.name.base for entry in logs[1:]]
        for log, after in zip(logs, [*ends, None], strict=True):
            if dry_run:
                yield self._row(log, None, "as it was" if log.name in with_manifest else "would adopt")
                continue
            yield self._adopt(log, after, other)
        if self._stored.segments:
            self._write_watermark(other)

    def _adopt(self, log: ListedObject, after: int | None, other: OtherWatermark | None) -> RepairRow:
        stored = read_manifest(self._partition, log.name)
        if stored is not None and _describes(stored.manifest, log):
            self._stored = self._stored.with_segment(stored, self._lineage)
            return self._row(log, stored.manifest.next_offset, "as it was")
        self._check_alone(other)
        known, opened = KnownLineages(Lineage(), 0, self._lineage), self._stored.open_before(log.name.base) or ()
        offsets = self._offsets or Offsets(0)
        next_base = after if compacts(self._cleanup.policy) else None
        try:
            manifest = rebuild(
                self._route,
                log.name,
                log.info,
                known,
                opened,
                offsets,
                self._cleanup,
                next_base=next_base,
                put=put_derived,
            )
        except (NotRebuilt, OffLineage) as error:
            return self._row(log, None, "left", str(error))
        if manifest.next_offset > offsets.high_watermark:
            where = "run this where the leader is"
            reason = f"ends above the high watermark {offsets.high_watermark} of this broker: {where}"
            return self._row(log, manifest.next_offset, "left", reason)
        written = write_manifest_over(self._partition, manifest, stored)
        self._stored = self._stored.with_segment(written, self._lineage)
        return self._row(log, manifest.next_offset, "adopted")

    @property
    def _epoch(self) -> int:
        return self._lineage.entries[-1][0] if self._lineage.entries else 0

    def _check_alone(self, other: OtherWatermark | None) -> None:
        """Raise if ``offset.wm`` has changed: the other uploader still runs, or a second adoption does."""
        now = find(self._partition.store, self._partition.keys.watermark)
        if (now and now.etag) != (other and other.etag):
            rule = "was written in the meantime: stop the other uploader, and start again"
            raise PreconditionFailed(self._partition.keys.watermark, rule)

    def _write_watermark(self, other: OtherWatermark | None) -> None:
        segments = self._stored.segments
        bases = [segment.base_offset for segment in segments.values()]
        start = min(bases)
        new = watermark.compute(
            None,
            topic_id=self._topic_id,
            leader_epoch=self._epoch,
            broker=self._broker,
            start=start,
            present=self._stored.present,
            lineage=self._stored.history(self._lineage),
        )
        base = watermark.last_base(bases, new.next_offset, start)
        watermark.put(self._partition, base, new, other.etag if other else None)

    def _row(self, log: ListedObject, end: int | None, outcome: Outcome, detail: str | None = None) -> RepairRow:
        return RepairRow(str(self._tp), log.name.base, end, log.info.size, outcome, detail)


def _describes(manifest: SegmentManifest, log: ListedObject) -> bool:
    described = manifest.objects.get(log.name.file("log"))
    return described is not None and described.etag == log.info.etag


def partitions_here(log_dirs: tuple[Path, ...], topic: str) -> list[TopicPartition]:
    """The partitions of ``topic`` with a replica on these disks. Raises FormatError if there are none."""
    partitions = sorted(tp for tp in find_partitions(log_dirs).partitions if tp.topic == topic)
    if not partitions:
        where = ", ".join(map(str, log_dirs))
        raise FormatError(topic, f"has no partition in {where}: check its name, or run this on a broker with a replica")
    return partitions
