"""Audits a table: reads raw and table again, and proves them equal by range and date, or reports the differences.

Three sides are summed over the same ranges of offsets: raw, converted once more; the files; and the evidence. Where raw
is gone, the evidence proves the files. Sums are order-independent and 128 bits wide over (incarnation, partition,
offset, timestamp, key, value, headers), so equal sums mean equal sets of offsets and equal payloads. Where sums differ,
both sides are read again in finer and finer ranges, until the offsets are known. Memory is bounded by the evidence of
the dates (:mod:`tidemark_spark.audit.date_evidence`), or of a topic, in Arrow, and by a group of partitions; never by
rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from functools import cached_property

from tidemark.erasure.requests import ErasureFolder, all_requests
from tidemark.errors import NotFound
from tidemark.formats.raw.erasure import Approved
from tidemark.formats.table.audit_report import (
    MAX_FINDINGS,
    AuditedPartition,
    AuditFinding,
    AuditReport,
    AuditVerdict,
    Kind,
)
from tidemark.formats.table.ledger import Ledger, PartitionState
from tidemark.formats.table.plan import StoredMasks
from tidemark.intervals import Interval, Intervals
from tidemark.planning.common import masked_offsets, spared_offsets
from tidemark.raw_topic import RawTopic
from tidemark.storage import Storage
from tidemark.store import put_once
from tidemark.store.update import update
from tidemark.table.delta_table import LiveFiles, TopicTable, ledger_of, live_files, open_delta
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import offsets_of
from tidemark.timestamps import stamp, utc_now
from tidemark_spark.audit.checks import Checks
from tidemark_spark.audit.date_evidence import evidence_of
from tidemark_spark.audit.evidence import GROUP_TASKS, PartitionUnderAudit, date_of, examined, planned
from tidemark_spark.audit.worker import AuditTask, Tally, Trouble
from tidemark_spark.convert.row_checksums import Account
from tidemark_spark.model import Executor


def audit(table: TopicTable, executor: Executor, dates: Collection[str] = ()) -> AuditReport:
    """Audit ``table``, or with ``dates`` (ISO) only the ranges that hold rows of these dates according to the evidence.

    Raises:
        FormatError: an object of the store does not parse.
        StoreError: a store did not answer.
    """
    started, clock = utc_now(), time.monotonic()
    delta = open_delta(table)
    ledger = ledger_of(table, delta)
    live = live_files(delta)
    auditor = _Audit(table, ledger, live, executor)
    auditor.run(frozenset(dates))
    return AuditReport(
        cluster=ledger.cluster,
        topic=ledger.topic,
        table=ledger.table,
        ledger_n=ledger.n,
        started_at=started,
        seconds=round(time.monotonic() - clock, 3),
        bytes_read=auditor.bytes_read,
        dates=tuple(sorted(dates)),
        partitions=tuple(auditor.partitions),
        findings=tuple(auditor.findings[:MAX_FINDINGS]),
        more=max(0, len(auditor.findings) - MAX_FINDINGS),
    )


def write_report(table: TopicTable, report: AuditReport) -> str:
    """Write ``report``, update the topic's verdict, and return the report's key."""
    key = table.keys.audit(report.dates, stamp(report.started_at), report.ledger_n)
    put_once(table.store, key, report.to_bytes())
    change_verdict(table, lambda known: known.after(report, f"{table.deployment.lake_store}/{key}"))
    return key


def passed_since(table: TopicTable, dates: Sequence[str], since: datetime) -> bool:
    """True if the newest report of an audit of exactly these ``dates`` has passed, and is not older than ``since``."""
    folder = table.keys.audit(dates, "", 0).rpartition("/")[0]
    newest = max((found.key for found in table.store.list(f"{folder}/")), default=None)
    report = AuditReport.load(table.store, newest) if newest is not None else None
    return report is not None and report.passed and report.started_at >= since


def change_verdict(table: TopicTable, change: Callable[[AuditVerdict], AuditVerdict]) -> AuditVerdict:
    """Apply ``change`` to the results of the topic's last audits, which programs that watch many topics read.

    ``change`` is called again if another audit was faster.

    Raises:
        PreconditionFailed: other audits were faster every time.
    """
    key = table.keys.deployment.verdict(table.topic.topic)

    def read() -> tuple[AuditVerdict, str | None]:
        new = AuditVerdict(cluster=table.topic.cluster, topic=table.topic.topic, audited_at=utc_now())
        return AuditVerdict.load_version_or_none(table.store, key) or (new, None)

    return update(table.store, key, read, change, then="audit again")


class _Audit:
    def __init__(self, table: TopicTable, ledger: Ledger, live: LiveFiles, executor: Executor) -> None:
        self._table, self._ledger, self._live, self._executor = table, ledger, live, executor
        self._checks = Checks(table, self._find, self._read, self._has_pack)
        self.findings: list[AuditFinding] = []
        self.partitions: list[AuditedPartition] = []
        self.bytes_read = 0

    def run(self, dates: frozenset[str]) -> None:
        """Audit all partitions, a group at a time."""
        standing = EffectiveEvidence(self._table, self._ledger, self._live)
        evidence = evidence_of(standing, dates)
        self._check_log(evidence.landed_files(), dates)
        raw = RawTopic(self._table)
        spared = spared_offsets(raw, standing)
        masks = raw.masks_of(self._ledger, pending=False)
        erased = offsets_of(standing.of_class("erased"))
        for state in self._ledger.partitions:
            self._check_erased(state, erased.get(state.key, Intervals()), masks.get(state.key))
        group: list[PartitionUnderAudit] = []
        for state in self._ledger.partitions:
            rows = evidence.get(state.key, [])
            group.append(planned(raw, state, rows, dates, spared.get(state.key)))
            if sum(len(part.tasks) for part in group) >= GROUP_TASKS:
                self._group(group)
                group = []
        self._group(group)

    def _check_erased(self, state: PartitionState, erased: Intervals, masks: StoredMasks | None) -> None:
        """Report ``erased`` offsets that no approved mask names: nobody may call a loss an erasure."""
        if not erased:
            return
        offsets = masked_offsets(self._table, masks, self._approvals) if masks else []
        named = Intervals((offset, offset + 1) for offset in offsets)
        if unnamed := erased - named:
            where = {"incarnation": state.incarnation, "partition": state.partition}
            detail = "evidence calls these offsets erased, and no request that a second person approved names them"
            finding = {"kind": "erased_unapproved", "detail": detail, "offsets": tuple(unnamed), **where}
            self.findings.append(AuditFinding.model_validate(finding))

    @cached_property
    def _approvals(self) -> frozenset[str]:
        """The digests of the approvals of all requests for erasure that count."""
        folder = ErasureFolder.of(self._table.deployment, self._table.topic.cluster)
        asked = all_requests(folder.cluster)
        return frozenset(request.sha256 for request in asked if isinstance(request, Approved))

    def _find(self, kind: Kind, part: PartitionUnderAudit | None, detail: str, **more: object) -> None:
        where = {"incarnation": part.state.incarnation, "partition": part.state.partition} if part else {}
        self.findings.append(AuditFinding.model_validate({"kind": kind, "detail": detail, **where, **more}))

    def _has_pack(self, part: PartitionUnderAudit, key: str) -> bool | None:
        topic, deployment = self._table.topic, self._table.deployment
        storage = Storage(topic.cluster, deployment.raw, deployment.store)
        cluster = storage.cluster_store(storage.endpoint(topic.topic, part.state.partition))
        if cluster.keys.pack_of(key) is None:
            return None
        try:
            cluster.store.head(key)
        except NotFound:
            return False
        return True

    def _check_log(self, named: set[str], dates: frozenset[str]) -> None:
        """Compare the Delta log with the evidence and the ledger."""
        for file in self._live:
            if file.path not in named and (not dates or file.dt in dates):
                self._find("unknown_file", None, "no evidence that counts names it", dt=file.dt, files=(file.path,))
        counted = sum(file.rows for file in self._live)
        if counted != self._ledger.rows:
            detail = f"the Delta log counts {counted} rows, ledger {self._ledger.n} {self._ledger.rows}"
            self._find("count_differs", None, detail)

    def _group(self, parts: list[PartitionUnderAudit]) -> None:
        by_key = {part.state.key: part for part in parts}
        for tally in self._read(parts, [task for part in parts for task in part.tasks]):
            self._take(tally, by_key)
        for part in parts:
            compared = self._checks.partition(part)
            if compared is not None:
                self.partitions.append(compared)

    def _read(self, parts: Iterable[PartitionUnderAudit], tasks: list[AuditTask]) -> Iterator[Tally]:
        plans = [part.raw.plan for part in parts]
        for tally in examined(self._table, self._ledger, plans, tasks, self._executor):
            self.bytes_read += tally.bytes_read
            yield tally

    def _take(self, tally: Tally, parts: dict[tuple[int, int], PartitionUnderAudit]) -> None:
        for key, account in tally.accounts.items():
            part = parts[key.incarnation, key.partition]
            sums = (part.raw_sums if tally.from_raw else part.file_sums).setdefault(key.start, {})
            sums.setdefault((key.kind, key.dt), Account()).add(account)
        for passed in tally.passed:
            part = parts[passed.key]
            span = part.span_at(passed.first)
            at = span.start if span else -1, passed.offset_class
            part.passed_rows[at] = part.passed_rows.get(at, 0) + passed.rows
            if passed.rows == passed.next - passed.first:
                part.passed.setdefault(at, []).append(Interval(passed.first, passed.next))
        listed = {file.path: file for file in self._live}
        for path, rows in tally.rows.items():
            if path in listed and listed[path].rows != rows:
                detail = f"it has {rows} rows, the Delta log says {listed[path].rows}"
                self._find("count_differs", None, detail, dt=listed[path].dt, files=(path,))
        for trouble in tally.troubles:
            self._trouble(trouble, parts)

    def _trouble(self, trouble: Trouble, parts: dict[tuple[int, int], PartitionUnderAudit]) -> None:
        part = parts.get((trouble.incarnation, trouble.partition))
        span = (trouble.start, trouble.end)
        if trouble.kind == "stray" or part is None:
            where = {"incarnation": trouble.incarnation, "partition": trouble.partition, "files": (trouble.name,)}
            detail = f"{trouble.detail} that its evidence does not name"
            self._find("stray_rows", None, detail, dt=date_of(trouble.name), offsets=(span,), **where)
        elif trouble.kind == "raw_gone":
            part.gone |= Intervals([span])
        elif trouble.kind == "raw_damaged":
            part.damaged |= Intervals([span])
            self._find("raw_unreadable", part, trouble.detail, offsets=(span,), files=(trouble.name,))
        else:
            part.unread.add(trouble.name)
            hulls = [(row.first, row.next) for row in part.evidence if row.file == trouble.name]
            kind: Kind = "missing_file" if trouble.kind == "file_gone" else "unreadable_file"
            offsets = tuple(Intervals(hulls))
            self._find(kind, part, trouble.detail, dt=date_of(trouble.name), offsets=offsets, files=(trouble.name,))
