"""The places of a cluster's objects: each of its stores, opened once, together with the keys below one prefix.

A :class:`ClusterStore` has the objects about a whole cluster, a :class:`PartitionStore` those of one partition. Both
are made by a :class:`Storage`, from a topics file or an agent's, and are handed on: whoever gets one can neither mix up
a store and another store's keys, nor open a store twice. They read what almost every reader asks for; all other reading
functions are in :mod:`tidemark.raw`. Nothing is retried or cached here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from tidemark.concurrency import OnePerKey
from tidemark.endpoints import EndpointResolver, EndpointSettings, resolver_of
from tidemark.errors import ConfigError, FormatError, NotFound
from tidemark.formats.keys import (
    MANIFEST_EXTENSION,
    OFFSET_DIGITS,
    ControlKeys,
    Endpoint,
    PartitionKeys,
    SegmentName,
    check_cluster,
)
from tidemark.formats.raw.gaps import Acknowledgement
from tidemark.formats.raw.incarnations import TopicIncarnations
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.formats.raw.watermark import Watermark, parse
from tidemark.formats.raw.watermark_index import WatermarkIndex, parse_index
from tidemark.formats.table.object_cache import ObjectCache
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage
from tidemark.store import ObjectInfo, Store, StoreOptions, open_store

OpenStore = Callable[[str], Store]
"""Opens the store at a URL without a prefix."""


class StoredWatermark(NamedTuple):
    """``offset.wm`` as the store has it. Line 1 is the ``base_offset`` of the last segment below the first hole."""

    base_offset: int
    watermark: Watermark
    etag: str

    @property
    def lineage(self) -> Lineage:
        """The newest lineage."""
        return self.watermark.history


class OtherWatermark(NamedTuple):
    """The ``offset.wm`` of one line that another uploader wrote; ``etag`` is its ETag."""

    etag: str


class ListedObject(NamedTuple):
    """An object of the segment ``name``, from a listing."""

    name: SegmentName
    extension: str
    info: ObjectInfo


@dataclass(frozen=True, slots=True)
class ClusterStore:
    """The objects about a cluster in one store, below one prefix."""

    store: Store
    keys: ControlKeys

    def incarnations(self, topic: str) -> TopicIncarnations:
        """The incarnations of a topic; an empty list if no agent has seen it. Raises FormatError and StoreError."""
        known = TopicIncarnations.load_or_none(self.store, self.keys.incarnations(topic))
        return known or TopicIncarnations(topic=topic)

    def indexes(self) -> ObjectCache[WatermarkIndex]:
        """The brokers' present watermark indexes, and the errors of those that cannot be read.

        Raises:
            FormatError: there are too many indexes.
            StoreError: they cannot be listed, or the store returned none of them.
        """
        indexes = ObjectCache(self.store, self.keys.indexes, parse_index)
        indexes.look()
        indexes.check()
        return indexes

    def packs(self, broker: int | None = None) -> Iterator[ObjectInfo]:
        """The packs of ``broker``, or of all, in order; what else lies among them is passed over. Raises StoreError."""
        folder = self.keys.tails if broker is None else self.keys.packs(broker)
        return (info for info in self.store.list(folder) if self.keys.pack_of(info.key) is not None)

    def acknowledgements(self, place: str, partition: int) -> list[Acknowledgement]:
        """All acknowledgements of a partition's gaps; ``place`` is the name of its incarnation's folders.

        They lie in the deployment's default store, wherever the partition's segments are.

        Raises:
            FormatError: an object does not parse, or is about other offsets than its key names.
            StoreError: the store failed.
        """
        folder = self.keys.acknowledgements(place, partition)
        return [self._acknowledgement(place, partition, info.key) for info in self.store.list(folder)]

    def acknowledged(self, place: str, partition: int) -> Intervals:
        """The offsets of all :meth:`acknowledgements`, with their errors."""
        return Intervals.of(self.acknowledgements(place, partition))

    def acknowledgement(self, place: str, partition: int, start: int, end: int) -> Acknowledgement | None:
        """The acknowledgement of exactly the offsets ``[start, end)``; None if there is none.

        Raises the errors of :meth:`acknowledgements`.
        """
        try:
            return self._acknowledgement(place, partition, self.keys.acknowledgement(place, partition, start, end))
        except NotFound:
            return None

    def _acknowledgement(self, place: str, partition: int, key: str) -> Acknowledgement:
        stored = Acknowledgement.load(self.store, key)
        if key != self.keys.acknowledgement(place, partition, stored.start, stored.end):
            raise FormatError(key, f"is about offsets {stored.start} to {stored.end}, but its key names others")
        if (stored.cluster, stored.place, stored.partition) != (self.keys.cluster, place, partition):
            raise FormatError(
                key, f"is about {stored.cluster}/{stored.place}-{stored.partition}, but its key names another partition"
            )
        return stored


@dataclass(frozen=True, slots=True)
class PartitionStore:
    """The objects of one partition of one incarnation of a topic, and the store that has them.

    The agents write a segment's manifest after its other objects, and ``offset.wm`` after the manifests that it covers.
    So a reader that reads ``offset.wm`` before it lists the manifests finds everything below it. ``others`` opens the
    stores in which the logs of segments may lie that another system has written.
    """

    store: Store
    keys: PartitionKeys
    others: OpenStore | None = None

    def store_at(self, url: str) -> Store:
        """The store at ``url``: this one, or another, in which a segment's log may lie. Raises as its opening."""
        if url == self.store.url or self.others is None:
            return self.store
        return self.others(url)

    def located(self, manifest: SegmentManifest, file: str) -> tuple[Store, str]:
        """The store and the key of the object ``file`` of the segment with this ``manifest``."""
        refers = manifest.refers
        if refers is not None and file == manifest.log_name:
            return self.store_at(refers.store), refers.key
        return self.store, self.keys.file(file)

    @property
    def cluster(self) -> ClusterStore:
        """The objects about the cluster in the partition's own store and prefix, such as heads, packs, tombstones."""
        return ClusterStore(self.store, self.keys.control)

    def watermark(self, known: StoredWatermark | None = None) -> StoredWatermark | OtherWatermark | None:
        """The current ``offset.wm``, whoever wrote it; None if there is none. It is ``known`` if that is still there.

        Raises FormatError and StoreError.
        """
        key = self.keys.watermark
        try:
            body, etag = self.store.get(key, limit=Watermark.most_bytes)
        except NotFound:
            return None
        if known is not None and known.etag == etag:
            return known
        base_offset, watermark = parse(body, key)
        return OtherWatermark(etag) if watermark is None else StoredWatermark(base_offset, watermark, etag)

    def objects(self, first: int = 0, end: int | None = None) -> Iterator[ListedObject]:
        """The objects of the segments that start in ``[first, end)``, by base, from a listing. Raises StoreError."""
        # The keys of base offset `first` sort after its bare digits.
        for info in self.store.list(self.keys.folder, start_after=self.keys.file(f"{first:0{OFFSET_DIGITS}d}")):
            named = self.keys.segment_of(info.key)
            if named is None:
                continue
            if end is not None and named[0].base >= end:
                return
            yield ListedObject(*named, info)

    def manifests(self, first: int = 0, end: int | None = None) -> Iterator[ListedObject]:
        """The manifests among :meth:`objects`."""
        return (entry for entry in self.objects(first, end) if entry.extension == MANIFEST_EXTENSION)

    def is_intact(self, manifest: SegmentManifest) -> bool:
        """True if each object that ``manifest`` names is stored in the version that it names. Raises StoreError.

        No bytes are read: the store's ETags prove that nothing was replaced, and not that its disks kept the bytes.
        """
        for file, described in manifest.sums.items():
            store, key = self.located(manifest, file)
            try:
                info = store.head(key)
            except NotFound:
                return False
            if (info.size, info.etag) != (described.size, described.etag):
                return False
        return True


class Storage:
    """A cluster's remote tier: endpoints and stores. Thread-safe.

    A topic can be read even if the topics file does not name it: the endpoints answer for any topic.

    >>> Storage.from_topics("topics.yaml").cluster
    'east'
    >>> Storage.at("s3://raw/tidemark", "east", entropy_bits=5).cluster
    'east'

    Raises:
        ValueError: ``cluster`` is not valid in a key.
        ConfigError: the resolver that the settings name cannot be imported.
    """

    def __init__(
        self,
        cluster: str,
        endpoints: EndpointSettings | EndpointResolver,
        options: StoreOptions | None = None,
        *,
        opener: OpenStore | None = None,
    ) -> None:
        """Start with no store opened. ``opener`` opens the stores, instead of ``open_store`` with ``options``."""
        self.cluster = check_cluster(cluster)
        self.options = options or StoreOptions()
        self._resolver = resolver_of(endpoints) if isinstance(endpoints, EndpointSettings) else endpoints
        self._stores = OnePerKey[str, Store](opener or (lambda url: open_store(url, self.options)))

    @classmethod
    def from_topics(cls, path: str | Path, cluster: str | None = None) -> Self:
        """The remote tier of a topics file; ``cluster`` is needed only if its topics name several.

        Raises:
            ConfigError: the file is invalid, or has several clusters and ``cluster`` is not given.
        """
        from tidemark.topics import load_topics  # an agent has no topics file, and needs no parsers

        deployment = load_topics(Path(path))
        known = deployment.clusters
        if cluster is None:
            if len(known) != 1:
                rule = f"name {len(known)} clusters ({', '.join(known)}): say which one to read"
                raise ConfigError(str(path), [("topics", rule)])
            cluster = known[0]
        return cls(cluster, deployment.raw, deployment.store)

    @classmethod
    def at(cls, url: str, cluster: str, *, entropy_bits: int = 0, options: StoreOptions | None = None) -> Self:
        """The remote tier below ``url``, such as ``s3://bucket[/prefix]`` or ``file:///directory``.

        Raises:
            pydantic.ValidationError: naming the argument and the rule that it breaks.
        """
        return cls(cluster, EndpointSettings(url=url, entropy_bits=entropy_bits), options)

    def through(self, wrap: Callable[[Store], Store]) -> Storage:
        """This remote tier, with each store wrapped by ``wrap``."""
        return Storage(self.cluster, self._resolver, self.options, opener=lambda url: wrap(self.store(url)))

    def default(self) -> Endpoint:
        """The place of the deployment's ``_…`` objects."""
        return self._resolver.default()

    def endpoint(self, topic: str, partition: int) -> Endpoint:
        """The place of a partition's segments."""
        return self._resolver.resolve(self.cluster, topic, partition)

    def store(self, url: str) -> Store:
        """The store at ``url``, opened at the first call."""
        return self._stores.of(url)

    def cluster_store(self, endpoint: Endpoint | None = None) -> ClusterStore:
        """The cluster's objects below ``endpoint``; by default the deployment's own. Raises as the store's opening."""
        at = endpoint or self.default()
        return ClusterStore(self.store(at.store), self.cluster_keys(at))

    def cluster_keys(self, endpoint: Endpoint | None = None) -> ControlKeys:
        """The keys of :meth:`cluster_store`, without opening the store."""
        return ControlKeys((endpoint or self.default()).prefix, self.cluster)

    def partition_store(self, keys: PartitionKeys) -> PartitionStore:
        """The objects of the partition with these ``keys``. Raises as the store's opening."""
        return PartitionStore(self.store(keys.endpoint.store), keys, self.store)

    def partition_keys(self, topic: str, partition: int, place: str) -> PartitionKeys:
        """The keys of a partition of the incarnation with folders named ``place``, without opening the store."""
        return PartitionKeys(self.endpoint(topic, partition), self.cluster, place, partition)
