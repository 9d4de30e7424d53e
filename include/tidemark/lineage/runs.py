"""What a run did to its table: from its plan, its result and the ledger that it committed.

The same attempt gives the same answer whoever asks and however often, except for what the table is now: its version is
told only while the run's commit is the newest, and its columns are those of now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pydantic import JsonValue

from tidemark.formats.ledger import Ledger
from tidemark.formats.lineage import Dataset, Facets
from tidemark.formats.plan import RunPlan, RunResult
from tidemark.intervals import Intervals
from tidemark.lineage import facets, naming
from tidemark.lineage.collected import Found
from tidemark.table.delta_table import TopicTable, ledger_of, open_delta

MOST_OFFSETS: Final = 2000
MOST_DATES: Final = 1000
"""So many are listed; an entry says how many are not."""

_PARSES: Final = frozenset({"ingest", "rebuild", "repair", "replay"})


def of_run(table: TopicTable, plan: RunPlan, result: RunResult) -> Found:
    """What came of ``plan``. If nothing was committed, nothing was written.

    Raises:
        StoreError, FormatError: the ledger or the table's log cannot be read.
    """
    landed = result.status == "landed"
    entry = _entry(table, plan, result)
    if not landed:
        return Found(_inputs(table, plan), (), entry)
    spans = list(_spans(plan, Ledger.load(table.store, table.keys.ledger(result.ledger_n, plan.attempt))))
    offsets: list[JsonValue] = [
        {"incarnation": incarnation, "partition": partition, "from": start, "to": end}
        for (incarnation, partition), start, end in spans[:MOST_OFFSETS]
    ]
    entry |= {"offsets": offsets, "offsetsNotListed": max(0, len(spans) - MOST_OFFSETS)}
    return Found(_inputs(table, plan), _outputs(table, plan, result), entry)


def _entry(table: TopicTable, plan: RunPlan, result: RunResult) -> dict[str, JsonValue]:
    dates: list[JsonValue] = list(result.dates[:MOST_DATES])
    return {
        "kind": plan.kind,
        "cluster": plan.cluster,
        "topic": plan.topic,
        "table": table.url,
        "status": result.status,
        "attempt": str(plan.attempt),
        "ledger": result.ledger_n,
        "dates": dates,
        "datesNotListed": max(0, len(result.dates) - MOST_DATES),
        "rows": result.rows,
        "quarantined": result.quarantined,
        "bytesRead": result.bytes_read,
        "filesRemoved": len(plan.removes) if result.status == "landed" else 0,
    }


def _inputs(table: TopicTable, plan: RunPlan) -> tuple[Dataset, ...]:
    """What the run read. Only what is landed for the first time came straight from Kafka."""
    deployment, topic = table.deployment, table.topic
    if plan.kind == "compact":
        return (naming.table(deployment, topic),)
    if plan.kind == "replay":
        return (naming.quarantine(deployment, topic),)
    if plan.kind not in _PARSES:
        return ()
    from_kafka = (naming.kafka_topic(deployment, topic),) if plan.kind == "ingest" else ()
    packed = any(part.is_packed for task in plan.tasks for part in task.ranges)
    packs = (naming.packs_of(deployment, topic),) if packed else ()
    return (*from_kafka, naming.raw_topic(deployment, topic), *packs)


def _outputs(table: TopicTable, plan: RunPlan, result: RunResult) -> tuple[Dataset, ...]:
    statistics = facets.output_statistics(rows=result.rows, files=result.files, size=result.bytes_written)
    written = naming.table(table.deployment, table.topic)
    found = written.model_copy(
        update={
            "facets": written.facets | _as_it_is(table, result.ledger_n),
            "more": statistics if plan.kind in _PARSES or plan.kind == "compact" else {},
        }
    )
    refused = (naming.quarantine(table.deployment, table.topic),) if result.quarantined else ()
    return (found, *refused)


def _as_it_is(table: TopicTable, ledger_n: int) -> Facets:
    """Columns, and the version if ``ledger_n`` is the newest commit's."""
    delta = open_delta(table)
    if delta is None:
        return {}
    newest = ledger_of(table, delta).n == ledger_n
    return facets.table_schema(delta.schema()) | (facets.dataset_version(delta.version()) if newest else {})


_Key = tuple[int, int]


def _spans(plan: RunPlan, ledger: Ledger) -> Iterator[tuple[_Key, int, int]]:
    """(incarnation and partition, start, end) of the offsets that the run accounted for, half-open."""
    if plan.kind == "ingest":
        for part in plan.partitions:
            end = ledger.by_partition[part.key].next_offset
            if end > part.start:
                yield part.key, part.start, end
        return
    if plan.kind not in _PARSES:
        return
    read: Mapping[_Key, list[tuple[int, int]]] = {(one.incarnation, one.partition): [] for one in plan.tasks}
    for one in plan.tasks:
        read[one.incarnation, one.partition] += [(part.from_offset, part.to_offset) for part in one.ranges]
    for key, spans in sorted(read.items()):
        yield from ((key, start, end) for start, end in Intervals(spans))
