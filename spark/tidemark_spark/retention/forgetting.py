"""Gives up the packed ranges of one topic id that nothing will ever seal, so that they do not keep packs of others.

A person has removed the topic's prefix or its metadata: the ranges are its last copy, and no agent and no reader finds
them any more. Ranges that ``offset.wm`` still leads to are not given up, nor are ranges packed in the last two days.
The record is written first. Retention of packs applies it two days later, when no run planned with a pack is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import ClassVar, NamedTuple

from pydantic import AwareDatetime

from tidemark.concurrency import in_parallel
from tidemark.errors import TidemarkError
from tidemark.formats import object_sizes
from tidemark.formats.base import StoredObject
from tidemark.formats.keys import Endpoint
from tidemark.formats.raw.pack import Range
from tidemark.formats.raw.tombstones import GivenUpPartition, PackTombstone
from tidemark.intervals import Intervals
from tidemark.planning.maintenance.pack_proof import SETTLED
from tidemark.raw import objects
from tidemark.storage import ClusterStore, Storage
from tidemark.store import ObjectInfo, put_once
from tidemark.store.identity import identity
from tidemark.topics import Deployment
from tidemark_spark.retention.packs import CHUNK, KnownIncarnations, endpoints_of, footer


class StillPacked(TidemarkError):
    """Raised when agents still pack the topic id; nothing is given up."""


class ForgetReport(StoredObject):
    """The ranges of a topic id in one place that are given up, or would be in a dry run, and the ranges that stay.

    ``record`` is the key of the written record.
    """

    most_bytes: ClassVar[int] = object_sizes.REPORT

    cluster: str
    store: str
    prefix: str
    topic: str
    topic_id: str
    at: AwareDatetime
    packs: int
    partitions: tuple[GivenUpPartition, ...]
    stays: tuple[str, ...] = ()
    record: str | None = None

    def text(self) -> str:
        """The report as text for a person."""
        done = "are given up" if self.record else "would be given up"
        place = f"{self.store}/{self.prefix}" if self.prefix else self.store
        name = f"{self.topic}, topic id {self.topic_id}"
        lines = [f"{self.cluster}: of {name}, in {self.packs} packs in {place}, these {done}:"]
        for part in self.partitions:
            spans = _in_words(part.spans)
            lines.append(f"  partition {part.partition}: offsets {spans}; {part.ranges} ranges, {part.size} bytes")
        lines += [f"  stays: {why}" for why in self.stays]
        if self.record:
            since = self.at + SETTLED
            lines.append(f"  the record is {self.record}; retention goes by it from {since:%Y-%m-%d %H:%M} UTC on")
        return "\n".join(lines)


def forget(
    deployment: Deployment, cluster: str, topic_id: str, by: str | None = None, reason: str | None = None
) -> list[ForgetReport]:
    """Give up the ranges of ``topic_id`` that nothing will ever seal, if ``by`` and ``reason`` are given.

    Returns a report for each place. Without ``by`` and ``reason``, these are the reports of a dry run.

    Raises:
        StillPacked: a range that would be given up was packed in the last two days.
        FormatError: an object of the topic does not parse.
        StoreError: a store did not answer.
    """
    storage = Storage(cluster, deployment.raw, deployment.store)
    incarnations = KnownIncarnations(storage)
    by_place = [
        _Forgetting(storage.cluster_store(endpoint), endpoint, topic_id, incarnations).found()
        for endpoint in endpoints_of(deployment, storage)
    ]
    reports = [report for report in by_place if report is not None]
    if by is None or reason is None:
        return reports
    return [_written(storage, report, by, reason) for report in reports]


def _written(storage: Storage, report: ForgetReport, by: str, reason: str) -> ForgetReport:
    if not report.partitions:
        return report
    stone = PackTombstone(
        cluster=report.cluster,
        topic=report.topic,
        topic_id=report.topic_id,
        by=by,
        written_as=identity(storage.options, report.store),
        at=report.at,
        reason=reason,
        partitions=report.partitions,
    )
    cluster = storage.cluster_store(Endpoint(report.store, report.prefix))
    key = stone.key(cluster.keys)
    put_once(cluster.store, key, stone.to_bytes())
    return report.model_copy(update={"record": key})


class _HeldRange(NamedTuple):
    """A range, and the pack that holds it."""

    pack: ObjectInfo
    range: Range


@dataclass
class _Forgetting:
    """One look at the packs of one place."""

    cluster: ClusterStore
    endpoint: Endpoint
    topic_id: str
    incarnations: KnownIncarnations

    def found(self) -> ForgetReport | None:
        """The ranges that may be given up; None if no pack has a range of the topic id."""
        now = self.cluster.store.now()
        held: dict[int, list[_HeldRange]] = {}
        for packed in self._held():
            held.setdefault(packed.range.partition, []).append(packed)
        if not held:
            return None
        topic = next(iter(held.values()))[0].range.topic
        going: dict[int, list[_HeldRange]] = {}
        stays: list[str] = []
        for partition, known in sorted(held.items()):
            limit = self._limit(topic, partition)
            gone = [packed for packed in known if limit is None or packed.range.next <= limit]
            if gone:
                going[partition] = gone
            if left := _spans(known) - _spans(gone):
                rule = "offset.wm leads to them, and they go once they are sealed"
                stays.append(f"partition {partition}: offsets {_in_words(left)}: {rule}")
        packs = {packed.pack.key: packed.pack.modified for known in going.values() for packed in known}
        self._check_old(topic, packs.values(), now)
        return ForgetReport(
            cluster=self.cluster.keys.cluster,
            store=self.endpoint.store,
            prefix=self.endpoint.prefix,
            topic=topic,
            topic_id=self.topic_id,
            at=now,
            packs=len(packs),
            partitions=tuple(
                GivenUpPartition(
                    partition=partition,
                    spans=tuple(_spans(known)),
                    ranges=len(known),
                    size=sum(packed.range.size for packed in known),
                )
                for partition, known in going.items()
            ),
            stays=tuple(stays),
        )

    def _held(self) -> Iterator[_HeldRange]:
        """All ranges of the topic id. A pack that cannot be read stays, and retention reports it."""
        store, packs = self.cluster.store, self.cluster.packs()
        while chunk := list(islice(packs, CHUNK)):
            for pack, ranges in zip(chunk, in_parallel(lambda info: footer(store, info), chunk), strict=True):
                for packed in () if isinstance(ranges, str) else ranges:
                    if packed.range.topic_id == self.topic_id:
                        yield _HeldRange(pack, packed.range)

    def _limit(self, topic: str, partition: int) -> int | None:
        """The offset below which nothing leads to a range any more; None if nothing leads to any range."""
        found = self.incarnations.partition_of(topic, self.topic_id, partition)
        stored = None if found is None else objects.read_watermark(found, self.topic_id)
        return stored.watermark.start_offset if stored else None

    def _check_old(self, topic: str, packed_at: Iterable[datetime], now: datetime) -> None:
        newest = max(packed_at, default=now - SETTLED)
        if newest > now - SETTLED:
            rule = f"was packed at {newest:%Y-%m-%d %H:%M} UTC: give it up once nothing of it was packed for {SETTLED}"
            raise StillPacked(f"{self.cluster.keys.cluster}: {topic}, topic id {self.topic_id}: {rule}")


def _spans(held: Iterable[_HeldRange]) -> Intervals:
    return Intervals((packed.range.first, packed.range.next) for packed in held)


def _in_words(spans: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"{start} to {end - 1}" for start, end in spans)
