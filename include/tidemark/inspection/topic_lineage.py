"""Where a topic's rows come from and where they go: what is stored of it, its table, and the catalogs that list that.

Storage knows no producer's name. Batches carry the ids and epochs of producers, if these are idempotent, and no client
id; so that is all that can be told of who wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from tidemark.concurrency import in_parallel
from tidemark.errors import NotFound
from tidemark.formats.mirror_status import MirrorStatus
from tidemark.kafka_log.batch import HEADER_SIZE, PREFIX_SIZE, check_prefix, read_header
from tidemark.lineage import naming
from tidemark.raw import objects
from tidemark.raw.partition import RawPartition
from tidemark.raw.topic import RawTopic
from tidemark.store import open_store
from tidemark.table.delta_table import TopicTable, ledger_of, live_files, open_delta

SAMPLE_BYTES: Final = 1 << 20
"""So much of each partition's newest segment is read for producers' ids."""

_NO_PRODUCER: Final = -1


class Producer(NamedTuple):
    """An idempotent or transactional producer, by the batches at the start of a partition's newest segment."""

    incarnation: int
    partition: int
    producer_id: int
    epoch: int


class StoredPartition(NamedTuple):
    """What is stored of one partition: segments with offsets ``[start, end)``, and ranges of packs behind them."""

    segments: int = 0
    size: int = 0
    start: int = 0
    end: int = 0
    packed_ranges: int = 0
    packed_size: int = 0
    packed_end: int = 0
    producers: tuple[Producer, ...] = ()

    @property
    def offsets(self) -> int:
        """How many offsets the segments span."""
        return max(0, self.end - self.start)


def topic_lineage(table: TopicTable, *, producers: bool = False) -> dict[str, Any]:
    """The chain from Kafka to the catalogs, as plain data; ``producers`` reads a sample of each partition as well.

    Raises:
        StoreError: a store did not answer.
        FormatError: an object does not parse.
    """
    deployment, topic = table.deployment, table.topic
    delta = open_delta(table)
    ledger = ledger_of(table, delta)
    raw = RawTopic(table)
    keys = sorted({*raw.entries, *ledger.by_partition})
    incarnations = raw.incarnations().incarnations
    parts = [raw.partition(incarnations[key[0]].topic_id, incarnations[key[0]].place, *key) for key in keys]
    stored = in_parallel(lambda part: _stored(table, raw, part, producers=producers), parts)
    live = live_files(delta) if delta is not None else []
    dates = sorted(dt for dt, state in ledger.dates.items() if state.rows)
    return {
        "cluster": topic.cluster,
        "topic": topic.topic,
        "kafka": _named(naming.kafka_topic(deployment, topic)),
        "producers": [one._asdict() for part in stored for one in part.producers] if producers else None,
        "raw": {
            **_named(naming.raw_topic(deployment, topic)),
            "partitions": len(parts),
            "segments": sum(one.segments for one in stored),
            "bytes": sum(one.size for one in stored),
            "offsets": sum(one.offsets for one in stored),
            "packed_ranges": sum(one.packed_ranges for one in stored),
            "packed_bytes": sum(one.packed_size for one in stored),
            "packed_offsets": sum(max(0, one.packed_end - one.end) for one in stored),
            "unread": list(raw.unread.messages),
        },
        "table": {
            **_named(naming.table(deployment, topic)),
            "url": table.url,
            "delta_version": None if delta is None else delta.version(),
            "ledger": ledger.n,
            "rows": ledger.rows,
            "files": len(live),
            "bytes": sum(one.size for one in live),
            "dates": len(dates),
            "first_date": dates[0] if dates else None,
            "last_date": dates[-1] if dates else None,
            "columns": [] if delta is None else [_column(one) for one in delta.schema().fields],
        },
        "catalogs": list(_catalogs(table, ledger.n)),
    }


def _named(dataset: Any) -> dict[str, str]:
    return {"namespace": dataset.namespace, "name": dataset.name}


def _column(field: Any) -> dict[str, str]:
    kind = field.type
    return {"name": field.name, "type": str(getattr(kind, "type", kind))}


def _stored(table: TopicTable, raw: RawTopic, part: RawPartition, *, producers: bool) -> StoredPartition:
    view = raw.view(part)
    store = open_store(part.keys.endpoint.store, table.deployment.store)
    logs = [one for one in objects.listed(store, part.keys) if one.extension == "log" and not one.name.is_of_damage]
    packed = [(end, entry) for end, entry in (view.tails.ends if view else ()) if end > _sealed(view)]
    return StoredPartition(
        segments=len(logs),
        size=sum(one.info.size for one in logs),
        start=min((one.name.base for one in logs), default=0),
        end=_sealed(view) if logs else 0,
        packed_ranges=sum(entry.ranges for _, entry in packed),
        packed_size=sum(entry.size for _, entry in packed),
        packed_end=max((end for end, _ in packed), default=0),
        producers=tuple(_producers(store, part, logs)) if producers else (),
    )


def _sealed(view: Any) -> int:
    return 0 if view is None else int(view.watermark.next_offset)


def _producers(store: Any, part: RawPartition, logs: Sequence[objects.Listed]) -> Iterator[Producer]:
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
    yield from (Producer(*part.key, *one) for one in sorted(found))


def _catalogs(table: TopicTable, ledger_n: int) -> Iterator[dict[str, Any]]:
    """What each catalog lists of the table, by the last run of the mirror job."""
    topic = table.topic
    listing = table.deployment.catalogs_of(topic)
    if not listing:
        return
    key = table.deployment.deployment_keys(topic.cluster).mirrors
    try:
        known = MirrorStatus.load(table.store, key).by_key
    except NotFound:
        known = {}
    for catalog in listing:
        state = known.get((topic.topic, catalog.name))
        told = state.model_dump(mode="json", exclude={"topic", "catalog"}) if state else {}
        yield {"catalog": catalog.name, **told, "behind": ledger_n - (state.ledger_n if state else 0)}
