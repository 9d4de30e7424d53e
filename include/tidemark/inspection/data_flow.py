"""Where a topic's rows come from and where they go: what is stored of it, its table, and the catalogs that list that.

Storage knows no producer's name. Batches carry the ids and epochs of producers, if these are idempotent, and no client
id; so nothing else is known about who wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidemark.concurrency import in_parallel
from tidemark.errors import NotFound
from tidemark.formats.base import Model
from tidemark.formats.lineage import Dataset
from tidemark.formats.mirror_status import MirrorState, MirrorStatus
from tidemark.kafka_log.batch import HEADER_SIZE, PREFIX_SIZE, check_prefix, read_header
from tidemark.lineage import naming
from tidemark.raw import objects
from tidemark.raw.partition import PartitionView, RawPartition
from tidemark.raw.topic import RawTopic
from tidemark.store import Store, open_store
from tidemark.table.delta_table import TopicTable, ledger_of, live_files, open_delta

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from tidemark.formats.ledger import Ledger

SAMPLE_BYTES: Final = 1 << 20
"""So much of each partition's newest segment is read for producers' ids."""

_NO_PRODUCER: Final = -1


class Named(Model):
    """A dataset, as lineage events name it."""

    namespace: str
    name: str

    @classmethod
    def of(cls, dataset: Dataset) -> Named:
        """The name of ``dataset``."""
        return cls(namespace=dataset.namespace, name=dataset.name)


class Producer(Model):
    """An idempotent or transactional producer, by the batches at the start of a partition's newest segment."""

    incarnation: int
    partition: int
    producer_id: int
    epoch: int


class StoredRaw(Model):
    """What is stored of a topic: whole segments, and ranges of packs with offsets beyond them.

    ``unread`` names what of the packs is damaged. The size of packs is that of the topic's own ranges.
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


class Column(Model):
    """A column of a Delta table; ``kind`` is its type, which is ``struct``, ``array`` or ``map`` of a nested one."""

    name: str
    kind: str


class TableNow(Model):
    """The table as its newest version is; ``delta_version`` is None while there is none."""

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
    columns: tuple[Column, ...]


class Listing(Model):
    """What a catalog lists of the table, None if nothing yet; ``behind`` is how many commits it lacks."""

    catalog: str
    state: MirrorState | None
    behind: int


class DataFlow(Model):
    """The data flow of a topic, from Kafka to the catalogs. ``producers`` is None if nobody has asked for them."""

    cluster: str
    topic: str
    kafka: Named
    producers: tuple[Producer, ...] | None
    raw: StoredRaw
    table: TableNow
    catalogs: tuple[Listing, ...]


class _Partition(NamedTuple):
    """What is stored of one partition: segments with offsets ``[start, end)``, and ranges of packs behind them."""

    segments: int
    size: int
    start: int
    end: int
    packed_ranges: int
    packed_size: int
    packed_end: int
    producers: tuple[Producer, ...]


def data_flow(table: TopicTable, *, producers: bool = False) -> DataFlow:
    """The data flow as it is now: one listing, ``offset.wm`` and heads for each partition, and the table's log.

    ``producers`` reads the first :data:`SAMPLE_BYTES` of each partition's newest segment as well.

    Raises:
        StoreError: a store did not answer.
        FormatError: an object does not parse.
    """
    deployment, topic = table.deployment, table.topic
    delta = open_delta(table)
    ledger = ledger_of(table, delta)
    raw = RawTopic(table)
    known = raw.incarnations().incarnations
    keys = [key for key in sorted({*raw.entries, *ledger.by_partition}) if key[0] < len(known)]
    parts = [raw.partition(known[key[0]].topic_id, known[key[0]].place, *key) for key in keys]
    stored = in_parallel(lambda part: _partition(table, raw, part, producers=producers), parts)
    return DataFlow(
        cluster=topic.cluster,
        topic=topic.topic,
        kafka=Named.of(naming.kafka_topic(deployment, topic)),
        producers=tuple(one for part in stored for one in part.producers) if producers else None,
        raw=StoredRaw(
            dataset=Named.of(naming.raw_topic(deployment, topic)),
            partitions=len(parts),
            segments=sum(one.segments for one in stored),
            bytes=sum(one.size for one in stored),
            offsets=sum(one.end - one.start for one in stored),
            packed_ranges=sum(one.packed_ranges for one in stored),
            packed_bytes=sum(one.packed_size for one in stored),
            packed_offsets=sum(max(0, one.packed_end - one.end) for one in stored),
            unread=raw.unread.messages,
        ),
        table=_table(table, delta, ledger),
        catalogs=tuple(_listings(table, ledger.n)),
    )


def _table(table: TopicTable, delta: DeltaTable | None, ledger: Ledger) -> TableNow:
    live = live_files(delta) if delta is not None else []
    dates = sorted(dt for dt, state in ledger.dates.items() if state.rows)
    return TableNow(
        dataset=Named.of(naming.table(table.deployment, table.topic)),
        url=table.url,
        delta_version=None if delta is None else delta.version(),
        ledger=ledger.n,
        rows=ledger.rows,
        files=len(live),
        bytes=sum(one.size for one in live),
        dates=len(dates),
        first_date=dates[0] if dates else None,
        last_date=dates[-1] if dates else None,
        columns=() if delta is None else tuple(_column(one) for one in delta.schema().fields),
    )


def _column(field: Any) -> Column:
    return Column(name=field.name, kind=str(field.type.type))


def _partition(table: TopicTable, raw: RawTopic, part: RawPartition, *, producers: bool) -> _Partition:
    view = raw.view(part)
    sealed = 0 if view is None else view.watermark.next_offset
    store = open_store(part.keys.endpoint.store, table.deployment.store)
    logs = [one for one in objects.listed(store, part.keys) if one.extension == "log" and not one.name.is_of_damage]
    start = min((one.name.base for one in logs), default=sealed)
    return _Partition(
        len(logs),
        sum(one.info.size for one in logs),
        start,
        max(start, sealed),
        *_packed(view, sealed),
        tuple(_producers(store, part, logs)) if producers else (),
    )


def _packed(view: PartitionView | None, sealed: int) -> tuple[int, int, int]:
    """Ranges of packs beyond the segments, their bytes, and where the longest tail ends."""
    found = [(end, entry) for end, entry in (view.tails.ends if view else ()) if end > sealed]
    ends = [end for end, _ in found]
    return sum(entry.ranges for _, entry in found), sum(entry.size for _, entry in found), max(ends, default=0)


def _producers(store: Store, part: RawPartition, logs: Sequence[objects.Listed]) -> Iterator[Producer]:
    """Those of the batches at the start of the newest segment."""
    if not logs:
        return
    newest = max(logs, key=lambda one: one.name.base)
    body = store.get_range(newest.info.key, 0, min(newest.info.size, SAMPLE_BYTES))
    found: set[tuple[int, int]] = set()
    at = 0
    while at + PREFIX_SIZE <= len(body) and check_prefix(body, at) is None:
        if at + HEADER_SIZE[body[at + PREFIX_SIZE - 1]] > len(body):
            break
        header = read_header(body, at, at)
        if header.producer_id != _NO_PRODUCER:
            found.add((header.producer_id, header.producer_epoch))
        at = header.end
    incarnation, partition = part.key
    for number, epoch in sorted(found):
        yield Producer(incarnation=incarnation, partition=partition, producer_id=number, epoch=epoch)


def _listings(table: TopicTable, ledger_n: int) -> Iterator[Listing]:
    """What each catalog lists of the table, by the last run of the mirror job."""
    topic = table.topic
    catalogs = table.deployment.catalogs_of(topic)
    if not catalogs:
        return
    try:
        known = MirrorStatus.load(table.store, table.deployment.deployment_keys(topic.cluster).mirrors).by_key
    except NotFound:
        known = {}
    for one in catalogs:
        state = known.get((topic.topic, one.name))
        yield Listing(catalog=one.name, state=state, behind=max(0, ledger_n - (state.ledger_n if state else 0)))
