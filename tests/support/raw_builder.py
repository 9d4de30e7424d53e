"""A raw store as the agent lays it out, made by hand from segments made by hand.

:class:`RawBuilder` keeps per partition what an agent would know (next offset, lineage, open transactions) and writes
segments with their manifests; :meth:`RawBuilder.publish` then moves the watermarks, the brokers' index and the list
of incarnations to what was uploaded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from crc32c import crc32c

from tidemark import kafka_log
from tidemark.errors import NotFound
from tidemark.formats.keys import ControlKeys, Endpoint, PartitionKeys, SegmentName
from tidemark.formats.raw.gaps import Acknowledgement, Gap, GapReason
from tidemark.formats.raw.incarnations import TopicIncarnations
from tidemark.formats.raw.manifest import LineagePairs, ObjectSum, Origin, PackedPart, SegmentDamage, SegmentManifest
from tidemark.formats.raw.watermark import Watermark, render
from tidemark.formats.raw.watermark_index import IndexEntry, WatermarkIndex
from tidemark.kafka_log import Lineage, OpenTransaction, SegmentScanner
from tidemark.store import Store

EPOCH = 3
"""The leader epoch of the batches that ``tests.tidemark.kafka_log.build`` makes."""

UPLOADED_AT = datetime(2026, 11, 20, 12, tzinfo=UTC)

OBSERVED_AT = datetime(2026, 1, 1, tzinfo=UTC)
"""When brokers last looked at their partitions: before any date of the tests' records is over, so that none closes."""


@dataclass
class PartitionRaw:
    """What an agent knows of one partition. ``end`` is where the next segment starts, ``next_offset`` the watermark."""

    lineage: LineagePairs = ((EPOCH, 0),)
    restores: tuple[int, ...] = ()
    start_offset: int = 0
    end: int = 0
    next_offset: int | None = None
    leader_epoch: int = EPOCH
    line1: int = 0
    gaps: list[Gap] = field(default_factory=list)
    acknowledged: list[Gap] = field(default_factory=list)
    foreign_epochs: tuple[int, ...] = ()
    remote_tier: tuple[tuple[int, int], ...] = ()
    tails: tuple[tuple[int, int], ...] = ()
    ranges_above: tuple[tuple[int, int], ...] = ()
    open_transactions: tuple[OpenTransaction, ...] = ()
    tail_end: int | None = None


def word(
    start: int, end: int, place: str = "orders", partition: int = 0, cluster: str = "test-cluster"
) -> Acknowledgement:
    """A person's word that ``[start, end)`` is lost."""
    at = {"cluster": cluster, "place": place, "partition": partition, "from": start, "to": end}
    said = {"by": "ada", "written_as": "ada@host", "at": UPLOADED_AT, "reason": "known outage"}
    return Acknowledgement.model_validate({**at, **said})


class RawBuilder:
    """The raw objects of one topic in ``store``, whose endpoint has no entropy bits."""

    def __init__(
        self, store: Store, *, cluster: str = "east", topic: str = "orders", prefix: str = "", broker: int = 1
    ) -> None:
        """Start with one incarnation, and no partition. ``broker`` leads all, and has an index for this topic alone.

        Segments' indexes get an entry every ``index_every`` bytes, and there are time indexes if ``times`` is set.
        """
        self.index_every = 4096
        self.times = False
        self.store = store
        self.cluster, self.topic, self._broker = cluster, topic, broker
        self.origin: Origin = "disk"
        self._endpoint = Endpoint(store.url, prefix)
        self._control = ControlKeys(prefix, cluster)
        self.now = UPLOADED_AT
        self.observed_at = OBSERVED_AT
        self.partitions: dict[tuple[int, int], PartitionRaw] = {}
        self.lives = TopicIncarnations(topic=topic)
        self.recreate("A" * 22)

    def recreate(self, topic_id: str) -> int:
        """The topic is deleted and made again; returns the number of the new incarnation."""
        self.lives = self.lives.with_topic_id(topic_id, self.now)
        return len(self.lives.incarnations) - 1

    def partition(self, partition: int = 0, incarnation: int | None = None) -> PartitionRaw:
        """What is known of a partition, of the newest incarnation unless another is named; may be changed."""
        return self.partitions.setdefault((self._number(incarnation), partition), PartitionRaw())

    def keys(self, partition: int = 0, incarnation: int | None = None) -> PartitionKeys:
        """The keys of a partition."""
        place = self.lives.incarnations[self._number(incarnation)].place
        return PartitionKeys(self._endpoint, self.cluster, place, partition)

    def segment(
        self,
        data: bytes | Sequence[bytes],
        partition: int = 0,
        *,
        base: int | None = None,
        next_offset: int | None = None,
        lineage: LineagePairs | None = None,
        compacted: bool = False,
        aborted: Iterable[tuple[int, int, int]] = (),
        damage: SegmentDamage | None = None,
        incarnation: int | None = None,
        rotated: bool = True,
        parts: Iterable[PackedPart] = (),
    ) -> str:
        """Upload a segment; returns the key of its log. Each is uploaded a minute after the one before.

        One of another branch than the segment with the plain name gets a name of its own, as an agent gives it.
        ``base`` defaults to where the last one ended, ``aborted`` has (producer id, first offset, last offset). A
        segment that is not ``rotated`` was sealed from an active one. ``parts`` had been packed before.
        """
        log = data if isinstance(data, bytes) else b"".join(data)
        known = self.partition(partition, incarnation)
        keys = self.keys(partition, incarnation)
        base = known.end if base is None else base
        self.now += timedelta(minutes=1)
        scanner = SegmentScanner("segment", base, open_before=known.open_transactions)
        headers = list(scanner.batches(log[: damage.position] if damage else log))
        summary = scanner.finish()
        end = summary.next_offset if next_offset is None else next_offset
        extension = "corrupt" if damage else "log"
        if damage:
            name = SegmentName.of_damage(base, crc32c(log))
        else:
            name = self._name(keys, base, Lineage(lineage or known.lineage, known.restores))
        every = self.index_every
        bodies = {extension: log, "index": _index(base, [(one.last_offset, one.position) for one in headers], every)}
        if self.times:
            bodies["timeindex"] = _time_index(base, headers, every)
        if entries := list(aborted):
            bodies["txnindex"] = b"".join(struct.pack(">hqqqq", 0, *one, one[2] + 1) for one in entries)
        sums: dict[str, ObjectSum] = {}
        for kind, body in bodies.items():
            etag = self.store.put(keys.segment(name, kind), body)
            sums[name.file(kind)] = ObjectSum(size=len(body), crc32c=f"{crc32c(body):08x}", etag=etag)
        manifest = SegmentManifest.model_validate(
            {
                "cluster": self.cluster,
                "topic": self.topic,
                "topic_id": self.lives.incarnations[self._number(incarnation)].topic_id,
                "partition": partition,
                "base_offset": base,
                "suffix": name.suffix,
                "last_batch_end": summary.next_offset,
                "next_offset": end,
                "lineage": lineage or known.lineage,
                "restores": known.restores,
                "first_timestamp": summary.first_timestamp,
                "max_timestamp": summary.max_timestamp,
                "batch_count": summary.batch_count,
                "magics": summary.magics,
                "codecs": summary.codecs,
                "open_transactions": summary.open_transactions,
                "log_start_offset": known.start_offset,
                "high_watermark": end,
                "last_stable_offset": None,
                "offsets_from": "checkpoint",
                "cleanup_policy": "compact" if compacted else "delete",
                "rotated_at": self.now if rotated else None,
                "uploaded_at": self.now,
                "broker": 1,
                "origin": self.origin,
                "agent_version": "test",
                "state": "corrupt" if damage else "whole",
                "damage": damage,
                "objects": sums,
                "parts": tuple(parts),
            }
        )
        self.store.put(keys.manifest(name), manifest.to_bytes())
        known.end, known.line1, known.open_transactions = end, base, summary.open_transactions
        return keys.segment(name, extension)

    def _name(self, keys: PartitionKeys, base: int, lineage: Lineage) -> SegmentName:
        plain, restored = SegmentName.of_history(base, len(lineage.restores)), len(lineage.restores)
        try:
            there = SegmentManifest.load(self.store, keys.manifest(plain))
        except NotFound:
            return plain
        epoch = lineage.epoch_at(base)
        if epoch is None or there.history.divergence(lineage, base + 1) is None:
            return plain
        return SegmentName.of_branch(base, epoch, restored)

    def seals(
        self,
        batches: Sequence[bytes],
        cuts: Iterable[int],
        partition: int = 0,
        *,
        aborted: Iterable[tuple[int, int, int]] = (),
        compacted: bool = False,
        end: int | None = None,
    ) -> None:
        """Upload a run of v2 batches as sealed segments that begin at the batches with the numbers ``cuts`` and at 0.

        ``aborted`` is as in :meth:`segment`, of all together; ``end`` is where the next segment starts.
        """
        ended = list(aborted)
        bounds = sorted({0, *cuts, len(batches)})
        starts = [int.from_bytes(batches[number][:8]) for number in bounds[:-1]]
        for (first, after), (start, stop) in zip(pairwise(bounds), pairwise([*starts, end]), strict=True):
            assert start is not None
            own = [one for one in ended if start <= one[2] and (stop is None or one[2] < stop)]
            self.segment(
                batches[first:after],
                partition,
                base=start,
                next_offset=stop if compacted else None,
                compacted=compacted,
                aborted=own,
                rotated=False,
            )

    def replace_log(self, key: str, body: bytes) -> None:
        """Replace the bytes of a log behind the agent's back: the manifest names them, and tells of the old ones."""
        path = f"{key.removesuffix('log')}manifest.json"
        manifest = SegmentManifest.from_bytes(self.store.get(path).body, path)
        name = key.rpartition("/")[2]
        etag = self.store.put(key, body)
        objects = {**manifest.objects, name: manifest.objects[name].model_copy(update={"etag": etag})}
        self.store.put(path, manifest.model_copy(update={"objects": objects}).to_bytes())

    def publish(self) -> None:
        """Write watermarks, index and incarnations as they are now."""
        entries = [self._publish(*key, known) for key, known in sorted(self.partitions.items())]
        index = WatermarkIndex(
            cluster=self.cluster, broker=self._broker, agent_version="test", written_at=self.now, entries=tuple(entries)
        )
        self.store.put(self._control.index(self._broker), index.to_bytes())
        self.store.put(self._control.incarnations(self.topic), self.lives.to_bytes())

    def acknowledge(self, start: int, end: int, partition: int = 0) -> None:
        """A person gives up ``[start, end)`` of a partition of the newest incarnation."""
        place = self.lives.incarnations[-1].place
        key = self._control.acknowledgement(place, partition, start, end)
        self.store.put(key, word(start, end, place, partition, self.cluster).to_bytes())

    def gap(self, start: int, end: int, reason: GapReason = "unknown") -> Gap:
        """A gap that was detected now."""
        return Gap.model_validate({"from": start, "to": end, "reason": reason, "detected_at": self.now})

    def _publish(self, incarnation: int, partition: int, known: PartitionRaw) -> IndexEntry:
        topic_id = self.lives.incarnations[incarnation].topic_id
        next_offset = known.end if known.next_offset is None else known.next_offset
        watermark = Watermark(
            topic_id=topic_id,
            start_offset=known.start_offset,
            leader_epoch=known.leader_epoch,
            next_offset=next_offset,
            ranges_above=known.ranges_above,
            lineage=known.lineage,
            gaps=tuple(known.gaps),
            acknowledged_gaps=tuple(known.acknowledged),
            foreign_epochs=known.foreign_epochs,
            remote_tier=known.remote_tier,
            tails=known.tails,
            broker=self._broker,
            written_at=self.now,
        ).restored(known.restores)
        self.store.put(self.keys(partition, incarnation).watermark, render(known.line1, watermark))
        return IndexEntry(
            topic=self.topic,
            partition=partition,
            topic_id=topic_id,
            incarnation=incarnation,
            restored=len(known.restores),
            leader_epoch=known.leader_epoch,
            next_offset=next_offset,
            uploaded_end=known.end,
            log_end_offset=known.end,
            high_watermark=known.end,
            tail_end=known.tail_end,
            observed_at=self.observed_at,
            gaps=tuple(known.gaps),
            remote_tier=known.remote_tier,
        )

    def _number(self, incarnation: int | None) -> int:
        return len(self.lives.incarnations) - 1 if incarnation is None else incarnation


def _time_index(base: int, headers: Sequence[kafka_log.BatchHeader], every: int) -> bytes:
    """A ``.timeindex`` as Kafka writes it: the largest time so far, beside each entry of the index and at the end."""
    entries, indexed, written, latest = b"", 0, -1, (-1, 0)
    for header in headers:
        if header.max_timestamp > latest[0]:
            latest = header.max_timestamp, header.last_offset - base
        due = header.position - indexed >= every
        if (due or header is headers[-1]) and latest[0] > written:
            entries += struct.pack(">qi", *latest)
            written = latest[0]
        indexed = header.position if due else indexed
    return entries


def _index(base: int, batches: Sequence[tuple[int, int]], every: int) -> bytes:
    """An ``.index`` with an entry for each batch that lies ``every`` bytes after the one before."""
    entries, indexed = b"", 0
    for last_offset, position in batches:
        if position - indexed >= every:
            entries += struct.pack(">ii", last_offset - base, position)
            indexed = position
    return entries
