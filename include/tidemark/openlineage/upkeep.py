"""Lineage of the jobs that carry out no plan: audits, retention, vacuums, exports."""

from __future__ import annotations

from collections import Counter
from typing import get_args

from pydantic import JsonValue

from tidemark.formats.table.audit_report import AuditReport, Kind
from tidemark.openlineage import facets, naming
from tidemark.openlineage.facets import LineagePart
from tidemark.openlineage.runs import MOST_DATES, MOST_OFFSETS
from tidemark.planning.maintenance.retention import RetentionReport
from tidemark.table.delta_table import TopicTable


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
    entry = _entry(table, "audit") | {
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
    entry = _entry(table, f"retention of {report.subject}") | {
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
    entry = _entry(table, "vacuum") | {
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
    entry = _entry(table, "export") | {"status": "written", "rows": rows}
    return LineagePart((naming.raw_topic(table.deployment, table.topic),), (written,) if files else (), entry)


def _entry(table: TopicTable, kind: str) -> dict[str, JsonValue]:
    topic = table.topic
    return {"kind": kind, "cluster": topic.cluster, "topic": topic.topic, "table": table.url}
