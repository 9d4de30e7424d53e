"""A prefix that Pinterest's uploader filled, taken over: manifests and ``offset.wm`` for segments that have none.

That uploader puts ``<base>.log``, ``.index`` and ``.timeindex`` under the very keys that Tidemark uses, and an
``offset.wm`` of one line: the base offset of a segment whose ``.log`` it has stored. It checks no bytes, tells no
leaders apart, and goes on after a segment that it could not send. So nothing of it is believed but the bytes: each
``.log`` is read once and checked batch by batch, its indexes are made anew, and its epochs are compared with the log
of this broker. What does not hold is left as it is and told of; it is a gap.

Manifests come first, in order, ``offset.wm`` last and in place of the other one: until then the agent refuses the
partition. A run that was killed goes on where it stopped. Source of that layout: pinterest/tiered-storage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

from crc32c import crc32c

from tidemark.errors import FormatError, NotFound, PreconditionFailed
from tidemark.formats import watermark as format_
from tidemark.formats.keys import PartitionKeys, TopicPartition
from tidemark.formats.manifest import SegmentManifest
from tidemark.formats.watermark import Watermark
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage, UnfinishedTransaction
from tidemark.store import Store
from uploader_agent.broker.admin import checkpointed_offsets
from uploader_agent.disk.log_dirs import find_partitions, topic_id_of
from uploader_agent.disk.segment_files import PartitionFiles
from uploader_agent.remote import listing, manifests, watermark
from uploader_agent.remote.destinations import Destinations
from uploader_agent.remote.lineage import OffLineage
from uploader_agent.remote.listing import Based
from uploader_agent.remote.manifests import Facts, Observed
from uploader_agent.remote.objects import find
from uploader_agent.remote.watermark import WatermarkState
from uploader_agent.repair.manifest_rebuild import NotRebuilt, rebuild

Outcome = Literal["would adopt", "adopted", "as it was", "left"]


class AdoptionRow(NamedTuple):
    """One segment: what became of it, and why it was left if it was. ``next_offset`` is None if it was not read."""

    partition: str
    base_offset: int
    next_offset: int | None
    bytes: int
    outcome: Outcome
    detail: str | None


class _OtherWatermark(NamedTuple):
    """The one-line ``offset.wm``: its base offset, and the ETag under which it lies there."""

    base_offset: int
    etag: str


class Adoption:
    """One partition's prefix, beside a replica of its log on this broker's disks."""

    def __init__(
        self, places: Destinations, broker: int, log_dirs: tuple[Path, ...], at: TopicPartition, cleanup_policy: str
    ) -> None:
        """Find it; nothing is written.

        Raises:
            FormatError: no disk has a replica, its files are damaged, or the topic was made again since: a later
                incarnation has a prefix of its own.
        """
        folder = find_partitions(log_dirs).partitions.get(at)
        if folder is None:
            where = ", ".join(map(str, log_dirs))
            raise FormatError(str(at), f"has no directory in {where}: run this on a broker that has a replica")
        self._at, self._broker, self._policy = at, broker, cleanup_policy
        self._topic_id = topic_id_of(folder)
        life, self._store, self._keys = places.settle(at, self._topic_id)
        if life.number:
            rule = f"is incarnation {life.number} of its topic, which has a prefix of its own: {self._keys.folder}"
            raise FormatError(str(at), f"{rule}; what another uploader stored is of the first one")
        with PartitionFiles(folder, self._topic_id) as files:
            self._lineage = files.lineage()
        self._offsets = checkpointed_offsets(log_dirs, {at: folder}).get(at)

    def run(self, *, dry_run: bool = False) -> Iterator[AdoptionRow]:
        """Adopt segment after segment, and ``offset.wm`` at the end; nothing if Tidemark has written that.

        Raises:
            PreconditionFailed: something else writes there at this moment: stop the other uploader.
            StoreError: the store failed; what came before is done.
        """
        other = _other_watermark(self._store, self._keys)
        if isinstance(other, Watermark):
            return
        listed = listing.list_segments(self._store, self._keys, 0)
        known = {one.base_offset for one in listed.manifests}
        ends = [one.base_offset for one in listed.logs[1:]]
        done: list[SegmentManifest] = []
        for log, after in zip(listed.logs, [*ends, None], strict=True):
            if dry_run:
                yield self._row(log, None, "as it was" if log.base_offset in known else "would adopt")
                continue
            row, manifest = self._adopt(log, after, done, other)
            if manifest is not None:
                done.append(manifest)
            yield row
        if not dry_run and done:
            self._write_watermark(done, other)

    def _adopt(
        self, log: Based, after: int | None, done: list[SegmentManifest], other: _OtherWatermark | None
    ) -> tuple[AdoptionRow, SegmentManifest | None]:
        there = manifests.read(self._store, self._keys, log.base_offset)
        if there is not None and _speaks_of(there.manifest, log):
            return self._row(log, there.manifest.next_offset, "as it was"), there.manifest
        try:
            facts = self._facts(log, after, done, other)
        except (NotRebuilt, OffLineage) as error:
            return self._row(log, None, "left", str(error)), None
        high_watermark = self._offsets.high_watermark if self._offsets else 0
        if facts.next_offset > high_watermark:
            why = f"ends above the high watermark {high_watermark} of this broker: run this where the leader is"
            return self._row(log, facts.next_offset, "left", why), None
        assert self._offsets is not None
        seen = Observed(self._offsets, self._policy, self._epoch)
        manifest = manifests.build(self._at, self._keys, self._topic_id, self._broker, facts, seen)
        stored = manifests.write_over(self._store, self._keys, manifest, there)
        return self._row(log, facts.next_offset, "adopted"), stored.manifest

    def _facts(
        self, log: Based, after: int | None, done: list[SegmentManifest], other: _OtherWatermark | None
    ) -> Facts:
        base = log.base_offset
        found = rebuild(
            self._store,
            self._keys,
            base,
            log.info,
            (Lineage(), 0, self._lineage),
            _open_at(base, done),
            lambda: self._check_alone(other),
        )
        if self._is_compacted and after is not None and after > found.next_offset:
            return replace(found, next_offset=after)  # the cleaner took what lay between
        return found

    @property
    def _is_compacted(self) -> bool:
        return "compact" in self._policy.split(",")

    @property
    def _epoch(self) -> int:
        return self._lineage.entries[-1][0] if self._lineage.entries else 0

    def _check_alone(self, other: _OtherWatermark | None) -> None:
        """Raise if ``offset.wm`` is not what it was: the other uploader still runs, or somebody adopts as well."""
        now = find(self._store, self._keys.watermark)
        if (now and now.etag) != (other and other.etag):
            rule = "was written meanwhile: stop the other uploader, and begin again"
            raise PreconditionFailed(self._keys.watermark, rule)

    def _write_watermark(self, done: list[SegmentManifest], other: _OtherWatermark | None) -> None:
        start = min(one.base_offset for one in done)
        lineage = self._lineage
        for one in sorted(done, key=lambda one: one.base_offset, reverse=True):
            lineage = lineage.with_history(Lineage(one.lineage))
        view = WatermarkState(
            topic_id=self._topic_id,
            leader_epoch=self._epoch,
            broker=self._broker,
            start=start,
            present=Intervals((one.base_offset, one.next_offset) for one in done),
            lineage=lineage,
            gaps=(),
            acknowledged_gaps=(),
        )
        new = watermark.compute(view, None)
        assert new is not None  # the first segment lies at the start
        base = watermark.last_base((one.base_offset for one in done), new.next_offset, start)
        body = format_.render(base, new)
        condition = other.etag if other else None
        self._store.put(
            self._keys.watermark, body, crc32c=crc32c(body), if_match=condition, if_none_match=condition is None
        )

    def _row(self, log: Based, end: int | None, outcome: Outcome, detail: str | None = None) -> AdoptionRow:
        return AdoptionRow(str(self._at), log.base_offset, end, log.info.size, outcome, detail)


def partitions_here(log_dirs: tuple[Path, ...], topic: str) -> list[TopicPartition]:
    """The partitions of ``topic`` of which these disks have a replica."""
    return sorted(at for at in find_partitions(log_dirs).partitions if at.topic == topic)


def _other_watermark(store: Store, keys: PartitionKeys) -> _OtherWatermark | Watermark | None:
    """The other uploader's ``offset.wm``, or Tidemark's; None if there is none."""
    try:
        body, etag = store.get(keys.watermark, limit=Watermark.most_bytes)
    except NotFound:
        return None
    base_offset, ours = format_.parse(body, keys.watermark)
    return ours or _OtherWatermark(base_offset, etag)


def _speaks_of(manifest: SegmentManifest, log: Based) -> bool:
    """Whether a manifest, of a run before this one, is of these bytes."""
    return any(name.endswith(".log") and one.etag == log.info.etag for name, one in manifest.objects.items())


def _open_at(base_offset: int, done: list[SegmentManifest]) -> tuple[UnfinishedTransaction, ...]:
    """The transactions that are open where a segment begins, by the one that ends there."""
    before = [one for one in done if one.next_offset == base_offset]
    return tuple(UnfinishedTransaction(**one.model_dump()) for one in before[-1].open_transactions) if before else ()
