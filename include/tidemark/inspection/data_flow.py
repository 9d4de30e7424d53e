"""The way of a topic's rows: its stored data, its table, and the catalogs that list the table.

Storage knows no producer's name. Batches carry the ids and epochs of idempotent producers, and no client id; nothing
else is known about their writers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidemark.concurrency import in_parallel
from tidemark.formats.base import Model
from tidemark.formats.keys import MANIFEST_EXTENSION
from tidemark.formats.raw.lineage import Dataset
from tidemark.formats.table.statuses import MirrorKey, MirrorState, MirrorStatus
from tidemark.kafka_log.batch import HEADER_SIZE, PREFIX_SIZE, check_prefix, read_header
from tidemark.openlineage import naming
from tidemark.raw.partition import RawPartition, StoredPartition
from tidemark.raw_topic import RawTopic
from tidemark.storage import ListedObject
from tidemark.store import Store
from tidemark.table.delta_table import TopicTable, ledger_of, live_files, open_delta

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from tidemark.formats.table.ledger import Ledger

SAMPLE_BYTES: Final = 1 << 20
"""Bytes of each partition's newest segment that are read for producers' ids."""

_NO_PRODUCER: Final = -1

_SEGMENT: Final = ("log", MANIFEST_EXTENSION)


class Named(Model):
    """The name of a dataset in lineage events."""

    namespace: str
    name: str

    @classmethod
    def of(cls, dataset: Dataset) -> Named:
        """The name of ``dataset``."""
        return cls(namespace=dataset.namespace, name=dataset.name)


class Producer(Model):
    """An idempotent or transactional producer, found in the batches at the start of a partition's newest segment."""

    incarnation: int
    partition: int
    producer_id: int
    epoch: int


class StoredRaw(Model):
    """The stored data of a topic: whole segments, and ranges of packs with offsets beyond them.

    ``unread`` names damaged parts of packs. ``packed_bytes`` counts the topic's own ranges alone.
    """

    dataset: Named
    partitions: int
    segments: int
    bytes: int
    offsets: int
    packed_ranges: int
    packed_bytes: int
    packed_offsets: int
    unread: tuple[str, ...]


class TableColumn(Model):
    """A column of a Delta table; ``kind`` is its type: ``struct``, ``array`` or ``map`` for a nested column."""

    name: str
    kind: str


class TableNow(Model):
    """The newest version of the table; ``delta_version`` is None while there is none."""

    dataset: Named
    url: str
    delta_version: int | None
    ledger: int
    rows: int
    files: int
    bytes: int
    dates: int
    first_date: str | None
    last_date: str | None
    columns: tuple[TableColumn, ...]


class Listing(Model):
    """The table in a catalog; ``state`` is None if it is not listed yet, ``behind`` counts the missing commits."""

    catalog: str
    state: MirrorState | None
    behind: int


class DataFlow(Model):
    """The data flow of a topic, from Kafka to the catalogs. ``producers`` is None unless they were requested."""

    cluster: str
    topic: str
    kafka: Named
    producers: tuple[Producer, ...] | None
    raw: StoredRaw
    table: TableNow
    catalogs: tuple[Listing, ...]


class _StoredPartition(NamedTuple):
    """The stored data of one partition: segments with offsets ``[start, end)``, and ranges of packs behind them."""

    segments: int
    size: int
    start: int
    end: int
    packed_ranges: int
    packed_size: int
    packed_end: int
    producers: tuple[Producer, ...]


def data_flow(table: TopicTable, *, producers: bool = False) -> DataFlow:
    """The current data flow: reads a listing, ``offset.wm`` and heads for each partition, and the table's log.

    ``producers`` reads the first :data:`SAMPLE_BYTES` of each partition's newest segment as well.

    Raises FormatError and StoreError.
    """
    deployment, topic = table.deployment, table.topic
    delta = open_delta(table)
    ledger = ledger_of(table, delta)
    raw = RawTopic(table)
    keys = sorted({*raw.entries, *ledger.by_partition})
    parts = [raw.partition(key) for key in keys if key[0] < len(raw.incarnations)]
    stored = in_parallel(lambda part: _partition(table, raw, part, producers=producers), parts)
    return DataFlow(
        cluster=topic.cluster,
        topic=topic.topic,
        kafka=Named.of(naming.kafka_topic(deployment, topic)),
        producers=tuple(producer for part in stored for producer in part.producers) if producers else None,
        raw=StoredRaw(
            dataset=Named.of(naming.raw_topic(deployment, topic)),
            partitions=len(parts),
            segments=sum(partition.segments for partition in stored),
            bytes=sum(partition.size for partition in stored),
            offsets=sum(partition.end - partition.start for partition in stored),
            packed_ranges=sum(partition.packed_ranges for partition in stored),
            packed_bytes=sum(partition.packed_size for partition in stored),
            packed_offsets=sum(max(0, partition.packed_end - partition.end) for partition in stored),
            unread=raw.unread.messages,
        ),
        table=_table(table, delta, ledger),
        catalogs=tuple(_listings(table, ledger.n)),
    )


def _table(table: TopicTable, delta: DeltaTable | None, ledger: Ledger) -> TableNow:
    live = live_files(delta)
    dates = sorted(dt for dt, state in ledger.dates.items() if state.rows)
    return TableNow(
        dataset=Named.of(naming.table(table.deployment, table.topic)),
        url=table.url,
        delta_version=None if delta is None else delta.version(),
        ledger=ledger.n,
        rows=ledger.rows,
        files=len(live),
        bytes=sum(action.size for action in live),
        dates=len(dates),
        first_date=dates[0] if dates else None,
        last_date=dates[-1] if dates else None,
        columns=() if delta is None else tuple(_column(field) for field in delta.schema().fields),
    )


def _column(field: Any) -> TableColumn:
    return TableColumn(name=field.name, kind=str(field.type.type))


def _partition(table: TopicTable, raw: RawTopic, part: RawPartition, *, producers: bool) -> _StoredPartition:
    view = raw.view(part)
    sealed = 0 if view is None else view.watermark.next_offset
    stored = raw.partition_store(part)
    listed = [one for one in stored.objects() if one.extension in _SEGMENT and not one.name.is_of_damage]
    logs = [one for one in listed if one.extension == "log"]
    names = {one.name for one in listed}  # a manifest may refer to a log that lies elsewhere
    start = min((name.base for name in names), default=sealed)
    return _StoredPartition(
        len(names),
        sum(log.info.size for log in logs),
        start,
        max(start, sealed),
        *_packed(view, sealed),
        tuple(_producers(stored.store, part, logs)) if producers else (),
    )


def _packed(view: StoredPartition | None, sealed: int) -> tuple[int, int, int]:
    """The number of ranges of packs beyond the segments, their bytes, and the end of the longest tail."""
    tails = [(end, entry) for end, entry in (view.tail_ends if view else ()) if end > sealed]
    ends = [end for end, _ in tails]
    return sum(entry.ranges for _, entry in tails), sum(entry.size for _, entry in tails), max(ends, default=0)


def _producers(store: Store, part: RawPartition, logs: Sequence[ListedObject]) -> Iterator[Producer]:
    """The producers of the batches at the start of the newest segment."""
    if not logs:
        return
    newest = max(logs, key=lambda log: log.name.base)
    body = store.get_range(newest.info.key, 0, min(newest.info.size, SAMPLE_BYTES))
    producers: set[tuple[int, int]] = set()
    at = 0
    while at + PREFIX_SIZE <= len(body) and check_prefix(body, at) is None:
        if at + HEADER_SIZE[body[at + PREFIX_SIZE - 1]] > len(body):
            break
        header = read_header(body, at, at)
        if header.producer_id != _NO_PRODUCER:
            producers.add((header.producer_id, header.producer_epoch))
        at = header.end
    incarnation, partition = part.key
    for number, epoch in sorted(producers):
        yield Producer(incarnation=incarnation, partition=partition, producer_id=number, epoch=epoch)


def _listings(table: TopicTable, ledger_n: int) -> Iterator[Listing]:
    """The table's entry in each catalog, from the last run of the mirror job."""
    topic = table.topic
    catalogs = table.deployment.catalogs_of(topic)
    if not catalogs:
        return
    status = MirrorStatus.load_or_none(table.store, table.deployment.deployment_keys(topic.cluster).mirrors)
    for catalog in catalogs:
        state = status.by_key.get(MirrorKey(topic.topic, catalog.name)) if status else None
        yield Listing(catalog=catalog.name, state=state, behind=max(0, ledger_n - (state.ledger_n if state else 0)))
