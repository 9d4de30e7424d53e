"""Retention of packs: deletes the packs that no reader needs any more, in each store and prefix of a cluster.

A pack has ranges of many topics, so retention works on a cluster and not on a topic.
:mod:`tidemark.planning.maintenance.pack_proof` has the rule, and :mod:`tidemark_spark.retention.forgetting` gives up
ranges that nothing will ever seal. A killed run has deleted some packs, and the next run continues. Memory is bounded
by the footers of a chunk of packs, and by the manifests that these need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import ClassVar, Final

from pydantic import AwareDatetime

from tidemark.concurrency import in_parallel
from tidemark.errors import FormatError, NotFound
from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.keys import Endpoint
from tidemark.formats.raw.incarnations import TopicIncarnations
from tidemark.formats.raw.pack import PackedRange
from tidemark.formats.raw.tombstones import GivenUp
from tidemark.planning.maintenance.pack_proof import COMPARED, SETTLED, SealsOfPartition
from tidemark.raw.packs import read_footer
from tidemark.raw.sealed_packs import bounds
from tidemark.raw.tombstones import given_up
from tidemark.storage import ClusterStore, PartitionStore, Storage
from tidemark.store import ObjectInfo, Store
from tidemark.topics import Deployment

CHUNK: Final = 64
"""Packs whose ranges are proved together, so that a partition's seals are listed once for all of them."""

_SHOWN: Final = 100


class NeededPack(Model):
    """A pack that stays although it is old enough, and the reason."""

    key: str
    why: str


class PacksReport(StoredObject):
    """Packs in a store and prefix, and the packs that were removed, or would be in a dry run.

    ``young`` packs were not examined. ``examples`` names some of the ``needed`` packs, which stay.
    """

    most_bytes: ClassVar[int] = object_sizes.REPORT

    cluster: str
    store: str
    prefix: str
    at: AwareDatetime
    dry_run: bool
    packs: int = 0
    young: int = 0
    removed: int = 0
    removed_bytes: int = 0
    needed: int = 0
    examples: tuple[NeededPack, ...] = ()

    def text(self) -> str:
        """The report as text for a person."""
        place = f"{self.store}/{self.prefix}" if self.prefix else self.store
        went = "would go" if self.dry_run else "removed"
        counts = f"{self.removed} {went} ({self.removed_bytes} bytes), {self.young} are too young, {self.needed} needed"
        lines = [f"{self.cluster}: {self.packs} packs in {place}: {counts}"]
        return "\n".join([*lines, *(f"  {pack.key}: {pack.why}" for pack in self.examples)])


def retain_packs(deployment: Deployment, cluster: str, *, dry_run: bool = False) -> list[PacksReport]:
    """Delete the packs of ``cluster`` that may go; returns a report for each store and prefix.

    Raises:
        StoreError: a store did not answer; the next run deletes the rest.
    """
    storage = Storage(cluster, deployment.raw, deployment.store)
    known = KnownIncarnations(storage)
    return [
        _StoreRun(storage, endpoint, known, dry_run=dry_run).reported()
        for endpoint in endpoints_of(deployment, storage)
    ]


def endpoints_of(deployment: Deployment, storage: Storage) -> list[Endpoint]:
    """Where packs of the cluster of ``storage`` lie, the default endpoint first."""
    names = {*(topic.topic for topic in deployment.topics if topic.cluster == storage.cluster), *deployment.raw.topics}
    endpoints = [storage.default(), *(storage.endpoint(name, 0) for name in sorted(names))]
    return [*dict.fromkeys(endpoint.root for endpoint in endpoints)]


@dataclass
class KnownIncarnations:
    """The incarnations of the cluster's topics; each topic is read once."""

    storage: Storage
    _read: dict[str, TopicIncarnations] = field(default_factory=dict)

    def place_of(self, topic: str, topic_id: str) -> str | None:
        """The place of a topic id's objects; None if it is not known."""
        if topic not in self._read:
            self._read[topic] = self.storage.cluster_store().incarnations(topic)
        incarnation = self._read[topic].find(topic_id)
        return incarnation[1].place if incarnation else None

    def partition_of(self, topic: str, topic_id: str, partition: int) -> PartitionStore | None:
        """The objects of a partition of a topic id; None if that is not known."""
        place = self.place_of(topic, topic_id)
        if place is None:
            return None
        return self.storage.partition_store(self.storage.partition_keys(topic, partition, place))


_PartitionGroup = tuple[str, str, int]
"""A partition of a topic id: (topic, topic id, partition)."""


@dataclass
class _StoreRun:
    """A run over the packs of one store and prefix."""

    storage: Storage
    endpoint: Endpoint
    incarnations: KnownIncarnations
    dry_run: bool

    def reported(self) -> PacksReport:
        """Delete the packs that may go, and report them."""
        cluster = self.storage.cluster_store(self.endpoint)
        store, (url, prefix) = cluster.store, (self.endpoint.store, self.endpoint.prefix)
        now = store.now()
        report = PacksReport(cluster=self.storage.cluster, store=url, prefix=prefix, at=now, dry_run=self.dry_run)
        counts = {"packs": 0, "young": 0, "removed": 0, "removed_bytes": 0, "needed": 0}
        examples: list[NeededPack] = []

        def note(error: FormatError) -> None:
            examples.append(NeededPack(key=error.name, why=error.rule))

        stones = given_up(cluster, now - SETTLED, note)
        for chunk in self._chunks(cluster, now, counts):
            needed = self._needed(store, chunk, now, stones)
            for info in chunk:
                if why := needed.get(info.key):
                    counts["needed"] += 1
                    examples += [NeededPack(key=info.key, why=why)] if len(examples) < _SHOWN else []
                    continue
                if not self.dry_run:
                    store.delete(info.key)
                counts["removed"] += 1
                counts["removed_bytes"] += info.size
        return report.model_copy(update={**counts, "examples": tuple(examples)})

    def _chunks(self, cluster: ClusterStore, now: datetime, counts: dict[str, int]) -> Iterator[list[ObjectInfo]]:
        """Chunks of the packs that are old enough to be examined."""

        def old() -> Iterator[ObjectInfo]:
            for info in cluster.packs():
                counts["packs"] += 1
                if info.modified > now - SETTLED:
                    counts["young"] += 1
                else:
                    yield info

        listed = old()
        while chunk := list(islice(listed, CHUNK)):
            yield chunk

    def _needed(self, store: Store, chunk: list[ObjectInfo], now: datetime, stones: GivenUp) -> dict[str, str]:
        """Reasons for keeping packs of ``chunk``, by key."""
        needed: dict[str, str] = {}
        groups: dict[_PartitionGroup, list[PackedRange]] = {}
        for info, ranges in zip(chunk, in_parallel(lambda info: footer(store, info), chunk), strict=True):
            if isinstance(ranges, str):
                needed[info.key] = ranges
                continue
            for packed in ranges:
                span = packed.range
                if stones.covers(span, info.modified):
                    continue
                groups.setdefault((span.topic, span.topic_id, span.partition), []).append(packed)
        compared = {info.key for info in chunk if info.modified <= now - COMPARED}
        for whys in in_parallel(lambda group: self._of_partition(*group, now, compared), list(groups.items())):
            for key, why in whys:
                needed.setdefault(key, why)
        return needed

    def _of_partition(
        self, group: _PartitionGroup, ranges: list[PackedRange], now: datetime, compared: Iterable[str]
    ) -> list[tuple[str, str]]:
        """Reasons for keeping packs, from the ranges of one partition, by key."""
        partition = self.incarnations.partition_of(*group)
        if partition is None:
            rule = f"no agent knows the topic id {group[1]}; --forget gives it up"
            return [(packed.key, f"{packed.range}: {rule}") for packed in ranges]
        seals = SealsOfPartition(partition, now)
        seals.look(*bounds(packed.range for packed in ranges))
        return [(packed.key, why) for packed in ranges if (why := _why(seals, packed, compare=packed.key in compared))]


def footer(store: Store, info: ObjectInfo) -> list[PackedRange] | str:
    """The ranges of a pack, or the reason for keeping it. A removed pack has no ranges."""
    try:
        return read_footer(store, info.key, info.size)
    except NotFound:
        return []
    except FormatError as error:
        return str(error)


def _why(seals: SealsOfPartition, packed: PackedRange, *, compare: bool) -> str | None:
    try:
        return seals.why_needed(packed, compare=compare)
    except NotFound as error:
        return str(error)  # another run has deleted the pack, or a seal meanwhile
    except FormatError as error:
        return str(error)
