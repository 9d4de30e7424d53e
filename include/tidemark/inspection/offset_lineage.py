"""The origin and fate of a partition's offsets: evidence, files of the table, segments in raw.

For landed offsets, evidence names the bytes of a segment or of a pack, and the file with the rows. A pack is removed
when seals hold its content; these are named beside it. For offsets that are uploaded and not landed, the manifests in
raw are listed, and the packs behind them. Reads only the requested offsets, and no more rows or segments than a limit.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from pydantic import AwareDatetime

from tidemark.concurrency import in_parallel
from tidemark.errors import NotFound
from tidemark.formats.base import Model
from tidemark.formats.keys import MANIFEST_EXTENSION, OFFSET_DIGITS, SegmentName
from tidemark.formats.raw.cluster import origin_of
from tidemark.formats.raw.manifest import Origin, SegmentManifest
from tidemark.raw.partition import RawPartition
from tidemark.raw_topic import RawTopic
from tidemark.storage import ClusterStore, PartitionStore, Storage
from tidemark.store import Store
from tidemark.table.delta_table import TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import EvidenceRow

MOST_ROWS: Final = 200
MOST_SEGMENTS: Final = 50


class Derived(Model):
    """Offsets ``[start, end)`` of one class, from bytes of a segment, in a file. Absent parts are None.

    ``rows`` counts the offsets of the class. ``file`` is a URL, and ``in_table`` is true if the file is live in the
    table. Files of quarantined rows lie below the quarantine's folder.
    """

    start: int
    end: int
    offset_class: str
    rows: int
    dt: str | None
    segment: str | None
    byte_start: int | None
    byte_end: int | None
    file: str | None
    in_table: bool
    attempt: str


class SegmentInfo(Model):
    """A segment in raw; ``key`` is the key of its ``.log`` in ``store``, ``present`` is true if its manifest exists.

    A pack (``packed``) has ranges of many partitions: ``size`` is its whole size, and no offsets are named.
    """

    store: str
    key: str
    present: bool
    packed: bool = False
    base_offset: int | None = None
    next_offset: int | None = None
    state: Literal["whole", "corrupt"] | None = None
    size: int | None = None
    crc32c: str | None = None
    uploaded_at: AwareDatetime | None = None
    broker: int | None = None
    origin: Origin | None = None
    leader_epoch: int | None = None


class Derivation(NamedTuple):
    """The answer for ``[start, end)``; ``more`` is true if limits left some of it out."""

    rows: tuple[Derived, ...]
    segments: tuple[SegmentInfo, ...]
    more: bool


def derivation_of(
    table: TopicTable, standing: EffectiveEvidence, key: tuple[int, int], start: int, end: int
) -> Derivation:
    """The origin of ``[start, end)`` of the partition ``key``, an (incarnation, partition).

    Raises FormatError and StoreError.
    """
    state = standing.ledger.by_partition.get(key)
    landed = state.next_offset if state else 0
    derived = sorted(
        (_derived(table, row, standing) for row in standing.touching(key, start, min(end, landed))),
        key=lambda entry: (entry.start, entry.end),
    )
    rows = derived[:MOST_ROWS]
    deployment = table.deployment
    storage = Storage(table.topic.cluster, deployment.raw, deployment.store)
    cluster = storage.cluster_store(storage.endpoint(table.topic.topic, key[1]))
    packed = [row.start for row in rows if row.segment and cluster.keys.pack_of(row.segment)]
    raw = RawTopic(table)
    part = raw.partition(key) if key[0] < len(raw.incarnations) else None
    waiting, complete = _stored(raw, part, min([max(start, landed), *packed]), end)
    keys = list(dict.fromkeys([*(row.segment for row in rows if row.segment), *waiting]))
    place = raw.partition_store(part) if part is not None else None
    segments = in_parallel(lambda segment: _segment(cluster, place, segment), keys[:MOST_SEGMENTS])
    more = not complete or len(derived) > len(rows) or len(keys) > len(segments)
    return Derivation(tuple(rows), tuple(segments), more)


def _derived(table: TopicTable, row: EvidenceRow, standing: EffectiveEvidence) -> Derived:
    name = row.file
    in_table = name in standing.files.paths
    quarantine = f"{table.deployment.lake_store}/{table.keys.quarantine}"
    folder = {"landed": table.url, "quarantined": quarantine}.get(row.offset_class)
    return Derived(
        start=row.first,
        end=row.next,
        offset_class=row.offset_class,
        rows=row.rows,
        dt=row.day or None,
        segment=row.segment,
        byte_start=row.byte_start,
        byte_end=row.byte_end,
        file=f"{folder}/{name}" if name and folder else None,
        in_table=in_table,
        attempt=str(row.attempt),
    )


def _stored(raw: RawTopic, part: RawPartition | None, start: int, end: int) -> tuple[list[str], bool]:
    """The keys of the first stored segments and packs with offsets in ``[start, end)``, and True if these are all."""
    view = raw.view(part) if part is not None and start < end else None
    if view is None:
        return [], True
    # The smallest limit reads a single batch of manifests.
    segments, complete = raw.segments(view, start, end, 1)
    return [segment.key for segment in segments], complete


def _segment(cluster: ClusterStore, place: PartitionStore | None, key: str) -> SegmentInfo:
    if pack := cluster.keys.pack_of(key):
        return _pack(cluster.store, key, pack.broker)
    folder, _, file = key.rpartition("/")
    parsed = SegmentName.parse(file)
    if parsed is None:
        manifest = _referring(place, key) if place is not None else None
    else:
        manifest = SegmentManifest.load_or_none(cluster.store, f"{folder}/{parsed[0].file(MANIFEST_EXTENSION)}")
    if manifest is None:
        return SegmentInfo(store=cluster.store.url, key=key, present=False)
    log = manifest.log
    return SegmentInfo(
        store=cluster.store.url if manifest.refers is None else manifest.refers.store,
        key=key,
        present=True,
        base_offset=manifest.base_offset,
        next_offset=manifest.next_offset,
        state=manifest.state,
        size=log.size if log else None,
        crc32c=log.crc32c if log else None,
        uploaded_at=manifest.uploaded_at,
        broker=manifest.broker,
        origin=manifest.origin,
        leader_epoch=manifest.lineage[-1][0] if manifest.lineage else None,
    )


def _referring(place: PartitionStore, key: str) -> SegmentManifest | None:
    """The manifest that refers to the log ``key`` of Kafka's remote tier; None if there is none any more."""
    digits = key.rpartition("/")[2][:OFFSET_DIGITS]
    if not digits.isdecimal():
        return None
    for entry in place.manifests(int(digits), int(digits) + 1):
        manifest = SegmentManifest.load_or_none(place.store, entry.info.key)
        if manifest is not None and manifest.refers is not None and manifest.refers.key == key:
            return manifest
    return None


def _pack(store: Store, key: str, broker: int) -> SegmentInfo:
    origin = origin_of(broker)
    gone = SegmentInfo(store=store.url, key=key, present=False, packed=True, broker=broker, origin=origin)
    try:
        info = store.head(key)
    except NotFound:
        return gone
    return gone.model_copy(update={"present": True, "size": info.size, "uploaded_at": info.modified})
