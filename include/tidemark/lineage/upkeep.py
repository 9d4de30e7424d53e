"""What the jobs did that carry out no plan: audits, retention, vacuums, exports."""

from __future__ import annotations

from collections import Counter
from typing import get_args

from pydantic import JsonValue

from tidemark.formats.audit_report import AuditReport, Kind
from tidemark.lineage import facets, naming
from tidemark.lineage.collected import Found
from tidemark.lineage.runs import MOST_DATES, MOST_OFFSETS
from tidemark.planning.retention_report import RetentionReport
from tidemark.table.delta_table import TopicTable


def of_audit(table: TopicTable, report: AuditReport) -> Found:
    """An audit reads raw and the table. Each kind of finding is a test of the table, which passed if there is none."""
    counts = Counter(one.kind for one in report.findings)
    firsts = {one.kind: one.text() for one in reversed(report.findings)}
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
        "rows": sum(one.rows for one in report.partitions),
        "bytesRead": report.bytes_read,
        "findings": len(report.findings) + report.more,
    }
    return Found((naming.raw_topic(table.deployment, table.topic), audited), (), entry)


def of_retention(table: TopicTable, report: RetentionReport) -> Found:
    """Retention changes what it removes from: the table, or raw. A run that removed nothing changed nothing."""
    gone = [one for one in report.dates if one.removed]
    went = [one for one in report.partitions if one.removed_to]
    name = naming.table if report.subject == "table" else naming.raw_topic
    dates: list[JsonValue] = [one.dt for one in gone[:MOST_DATES]]
    offsets: list[JsonValue] = [
        {"incarnation": one.incarnation, "partition": one.partition, "from": one.start, "to": one.removed_to}
        for one in went[:MOST_OFFSETS]
    ]
    entry = _entry(table, f"retention of {report.subject}") | {
        "status": "removed" if gone or went else "nothing removed",
        "ledger": report.ledger_n,
        "dates": dates,
        "rowsRemoved": sum(one.rows for one in gone),
        "filesRemoved": sum(one.files for one in gone),
        "offsets": offsets,
        "offsetsNotListed": max(0, len(went) - MOST_OFFSETS),
    }
    return Found((), (name(table.deployment, table.topic),) if gone or went else (), entry)


def of_vacuum(table: TopicTable, ledger_n: int, files: int, size: int) -> Found:
    """A vacuum takes objects away that no reader can need: ``files`` with ``size`` bytes."""
    entry = _entry(table, "vacuum") | {
        "status": "removed" if files else "nothing removed",
        "ledger": ledger_n,
        "filesRemoved": files,
        "bytesRemoved": size,
    }
    return Found((), (naming.table(table.deployment, table.topic),) if files else (), entry)


def of_pack_retention(cluster: str, store: str, prefix: str, packs: int, size: int) -> Found:
    """Packs that were removed from a store and prefix, and their bytes."""
    entry: dict[str, JsonValue] = {
        "kind": "retention of packs",
        "cluster": cluster,
        "status": "removed" if packs else "nothing removed",
        "filesRemoved": packs,
        "bytesRemoved": size,
    }
    return Found((), (naming.packs(store, prefix, cluster),) if packs else (), entry)


def of_export(table: TopicTable, to: str, rows: int, files: int, size: int) -> Found:
    """Raw segments as plain files at the URL ``to``."""
    written = naming.at(to, more=facets.output_statistics(rows=rows, files=files, size=size))
    entry = _entry(table, "export") | {"status": "written", "rows": rows}
    return Found((naming.raw_topic(table.deployment, table.topic),), (written,) if files else (), entry)


def _entry(table: TopicTable, kind: str) -> dict[str, JsonValue]:
    topic = table.topic
    return {"kind": kind, "cluster": topic.cluster, "topic": topic.topic, "table": table.url}
