"""Lineage of jobs: of a run from its plan, its result and the ledger that it committed, and of those without a plan.

The lineage of a run's attempt is always the same, except for the table's present state: its version is given only while
the run's commit is the newest, and its columns are the present ones. Audits, retention, vacuums and exports have no
plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, get_args

from pydantic import JsonValue

from tidemark.formats.raw.lineage import Dataset, Facets
from tidemark.formats.table.audit_report import AuditReport, Kind
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.plan import RunPlan, RunResult, SegmentTask
from tidemark.intervals import Intervals
from tidemark.openlineage import facets, naming
from tidemark.openlineage.facets import LineagePart
from tidemark.planning.maintenance.retention import RetentionReport
from tidemark.table.delta_table import TopicTable, ledger_of, open_delta

MOST_OFFSETS: Final = 2000
MOST_DATES: Final = 1000
"""The most that an entry lists; it also has the number of those left out."""

_PARSES: Final = frozenset({"ingest", "rebuild", "repair", "replay"})


def of_run(table: TopicTable, plan: RunPlan, result: RunResult) -> LineagePart:
    """Lineage of the run of ``plan``. If nothing was committed, it has no outputs.

    Raises:
        StoreError, FormatError: the ledger or the table's log cannot be read.
    """
    landed = result.status == "landed"
    entry = _entry(table, plan, result)
    if not landed:
        return LineagePart(_inputs(table, plan), (), entry)
    spans = list(_spans(plan, Ledger.load(table.store, table.keys.ledger(result.ledger_n, plan.attempt))))
    offsets: list[JsonValue] = [
        {"incarnation": incarnation, "partition": partition, "from": start, "to": end}
        for (incarnation, partition), start, end in spans[:MOST_OFFSETS]
    ]
    entry |= {"offsets": offsets, "offsetsNotListed": max(0, len(spans) - MOST_OFFSETS)}
    return LineagePart(_inputs(table, plan), _outputs(table, plan, result), entry)


def _base(table: TopicTable, kind: str) -> dict[str, JsonValue]:
    topic = table.topic
    return {"kind": kind, "cluster": topic.cluster, "topic": topic.topic, "table": table.url}


def _entry(table: TopicTable, plan: RunPlan, result: RunResult) -> dict[str, JsonValue]:
    dates: list[JsonValue] = list(result.dates[:MOST_DATES])
    return {
        **_base(table, plan.kind),
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
    """Datasets that the run read. Only an ingest reads from Kafka: it lands offsets for the first time."""
    deployment, topic = table.deployment, table.topic
    if plan.kind == "compact":
        return (naming.table(deployment, topic),)
    if plan.kind == "replay":
        return (naming.quarantine(deployment, topic),)
    if plan.kind not in _PARSES:
        return ()
    from_kafka = (naming.kafka_topic(deployment, topic),) if plan.kind == "ingest" else ()
    packed = any(part.is_packed for task in plan.tasks if isinstance(task, SegmentTask) for part in task.ranges)
    packs = (naming.packs_of(deployment, topic),) if packed else ()
    return (*from_kafka, naming.raw_topic(deployment, topic), *packs)


def _outputs(table: TopicTable, plan: RunPlan, result: RunResult) -> tuple[Dataset, ...]:
    statistics = facets.output_statistics(rows=result.rows, files=result.files, size=result.bytes_written)
    written = naming.table(table.deployment, table.topic)
    dataset = written.model_copy(
        update={
            "facets": written.facets | _as_it_is(table, result.ledger_n),
            "more": statistics if plan.kind in _PARSES or plan.kind == "compact" else {},
        }
    )
    refused = (naming.quarantine(table.deployment, table.topic),) if result.quarantined else ()
    return (dataset, *refused)


def _as_it_is(table: TopicTable, ledger_n: int) -> Facets:
    """The table's columns, and its version if ``ledger_n`` is the newest commit's."""
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
    read: Mapping[_Key, list[tuple[int, int]]] = {(task.incarnation, task.partition): [] for task in plan.tasks}
    for task in plan.tasks:
        read[task.incarnation, task.partition] += [(part.from_offset, part.to_offset) for part in task.ranges]
    for key, spans in sorted(read.items()):
        yield from ((key, start, end) for start, end in Intervals(spans))


def of_audit(table: TopicTable, report: AuditReport) -> LineagePart:
    """Lineage of an audit: it reads raw and the table. Each kind of finding is a test, which fails if there is one."""
    counts = Counter(finding.kind for finding in report.findings)
    firsts = {finding.kind: finding.text() for finding in reversed(report.findings)}
    tested: list[dict[str, JsonValue]] = [
        {
            "assertion": kind,
            "success": not counts[kind],
            "name": f"tidemark audit: {kind}",
            "severity": "error",
            "expected": "0",
            "actual": str(counts[kind]),
            **({"description": firsts[kind]} if counts[kind] else {}),
        }
        for kind in get_args(Kind)
    ]
    audited = naming.table(table.deployment, table.topic).model_copy(update={"more": facets.assertions(tested)})
    dates: list[JsonValue] = list(report.dates[:MOST_DATES])
    entry = _base(table, "audit") | {
        "status": "passed" if report.passed else "failed",
        "ledger": report.ledger_n,
        "dates": dates,
        "rows": sum(partition.rows for partition in report.partitions),
        "bytesRead": report.bytes_read,
        "findings": len(report.findings) + report.more,
    }
    return LineagePart((naming.raw_topic(table.deployment, table.topic), audited), (), entry)


def of_retention(table: TopicTable, report: RetentionReport) -> LineagePart:
    """Lineage of a retention: its output is the table, or raw, if it removed anything."""
    gone = [date for date in report.dates if date.removed]
    cut = [partition for partition in report.partitions if partition.removed_to]
    name = naming.table if report.subject == "table" else naming.raw_topic
    dates: list[JsonValue] = [date.dt for date in gone[:MOST_DATES]]
    offsets: list[JsonValue] = [
        {"incarnation": part.incarnation, "partition": part.partition, "from": part.start, "to": part.removed_to}
        for part in cut[:MOST_OFFSETS]
    ]
    entry = _base(table, f"retention of {report.subject}") | {
        "status": "removed" if gone or cut else "nothing removed",
        "ledger": report.ledger_n,
        "dates": dates,
        "rowsRemoved": sum(date.rows for date in gone),
        "filesRemoved": sum(date.files for date in gone),
        "offsets": offsets,
        "offsetsNotListed": max(0, len(cut) - MOST_OFFSETS),
    }
    return LineagePart((), (name(table.deployment, table.topic),) if gone or cut else (), entry)


def of_vacuum(table: TopicTable, ledger_n: int, files: int, size: int) -> LineagePart:
    """Lineage of a vacuum, which removes objects that no reader can need: ``files`` with ``size`` bytes."""
    entry = _base(table, "vacuum") | {
        "status": "removed" if files else "nothing removed",
        "ledger": ledger_n,
        "filesRemoved": files,
        "bytesRemoved": size,
    }
    return LineagePart((), (naming.table(table.deployment, table.topic),) if files else (), entry)


def of_pack_retention(cluster: str, store: str, prefix: str, packs: int, size: int) -> LineagePart:
    """Lineage of the removal of ``packs`` with ``size`` bytes from a store and prefix."""
    entry: dict[str, JsonValue] = {
        "kind": "retention of packs",
        "cluster": cluster,
        "status": "removed" if packs else "nothing removed",
        "filesRemoved": packs,
        "bytesRemoved": size,
    }
    return LineagePart((), (naming.packs(store, prefix, cluster),) if packs else (), entry)


def of_export(table: TopicTable, to: str, rows: int, files: int, size: int) -> LineagePart:
    """Lineage of an export of raw segments as plain files to the URL ``to``."""
    written = naming.at(to, more=facets.output_statistics(rows=rows, files=files, size=size))
    entry = _base(table, "export") | {"status": "written", "rows": rows}
    return LineagePart((naming.raw_topic(table.deployment, table.topic),), (written,) if files else (), entry)
