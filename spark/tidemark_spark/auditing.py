"""An audit: raw and table are read again, and proved equal, range by range and date by date; or the differences named.

Three sides are summed up by the same ranges of offsets: what raw gives when it is converted once more, what the files
hold, and what the evidence says. Where raw is gone, the files are proved by the evidence. Sums are order-independent
and 128 bits wide over (incarnation, partition, offset, timestamp, key, value, headers), so equal sums mean equal sets
of offsets and equal payloads. Where sums differ, both are read again by finer and finer ranges, until the offsets are
known. Memory is bounded by the evidence of a topic and a group of partitions, never by rows.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from tidemark.audits import MAX_FINDINGS, AuditedPartition, AuditReport, Finding, Kind
from tidemark.evidence import EvidenceRow
from tidemark.intervals import Interval, Intervals
from tidemark.ledger import Ledger, PartitionState
from tidemark.planning.raw import RawTopic
from tidemark.planning.reading import RawPart, joined, plan_reading
from tidemark.records import Lineage
from tidemark.runs import PartitionPlan
from tidemark.standing import Standing
from tidemark.store import put_once
from tidemark.stored import stamp, utc_now
from tidemark.table import Lake, LiveFile, ledger_of, live_files, open_table
from tidemark_spark.accounts import HASHED, Account
from tidemark_spark.audit_sides import (
    GROUP_TASKS,
    At,
    Held,
    Part,
    Said,
    cells_of,
    date_of,
    examined,
    holding,
    hulls_of,
    touching,
)
from tidemark_spark.tally import AuditTask, Cells, Examine, FileTask, RawTask, Tally, Trouble

_FINER: Final = 1024
_LOCATED: Final = 16
_SHOWN: Final = 32


def audit(lake: Lake, examine: Examine, dates: Collection[str] = ()) -> AuditReport:
    """Audit the table of ``lake``, or only the offsets that the evidence names for ``dates`` (ISO), and what lies by.

    Raises:
        FormatError: an object of the store does not parse.
        StoreError: a store did not answer.
    """
    started, clock = utc_now(), time.monotonic()
    table = open_table(lake)
    ledger = ledger_of(lake, table)
    live = live_files(table) if table is not None else []
    found = _Audit(lake, ledger, live, examine)
    found.run(frozenset(dates))
    return AuditReport(
        cluster=ledger.cluster,
        topic=ledger.topic,
        table=ledger.table,
        ledger_n=ledger.n,
        started_at=started,
        seconds=round(time.monotonic() - clock, 3),
        bytes_read=found.bytes_read,
        dates=tuple(sorted(dates)),
        partitions=tuple(found.partitions),
        findings=tuple(found.findings[:MAX_FINDINGS]),
        more=max(0, len(found.findings) - MAX_FINDINGS),
    )


def write_report(lake: Lake, report: AuditReport) -> str:
    """Write ``report`` and return its key."""
    key = f"{lake.keys.audits}{stamp(report.started_at)}-{report.ledger_n}.json"
    put_once(lake.store, key, report.to_bytes())
    return key


class _Audit:
    def __init__(self, lake: Lake, ledger: Ledger, live: list[LiveFile], examine: Examine) -> None:
        self._lake, self._ledger, self._live, self._examine = lake, ledger, live, examine
        self._hashed = {f"kafka_{one}" for one in lake.topic.keep} >= set(HASHED)
        self.findings: list[Finding] = []
        self.partitions: list[AuditedPartition] = []
        self.bytes_read = 0

    def run(self, dates: frozenset[str]) -> None:
        """Audit all partitions, a group at a time."""
        evidence: dict[tuple[int, int], list[Held]] = {}
        named: set[str] = set()
        for one in holding(Standing(self._lake, self._ledger, {file.path: file for file in self._live})):
            evidence.setdefault((one.row.incarnation, one.row.partition), []).append(one)
            if one.row.offset_class == "landed":
                named.add(one.row.file or "")
        self._check_log(named, dates)
        raw = RawTopic(self._lake)
        self._lives = raw.incarnations().incarnations
        group: list[Part] = []
        for state in self._ledger.partitions:
            group.append(self._planned(raw, state, evidence.pop(state.key, []), dates))
            if sum(len(part.tasks) for part in group) >= GROUP_TASKS:
                self._group(group)
                group = []
        self._group(group)

    def _find(self, kind: Kind, part: Part | None, detail: str, **more: object) -> None:
        where = {"incarnation": part.state.incarnation, "partition": part.state.partition} if part else {}
        self.findings.append(Finding.model_validate({"kind": kind, "detail": detail, **where, **more}))

    def _check_log(self, named: set[str], dates: frozenset[str]) -> None:
        """The Delta log against the evidence and the ledger."""
        for file in self._live:
            if file.path not in named and (not dates or file.dt in dates):
                self._find("unknown_file", None, "no evidence that counts names it", dt=file.dt, files=(file.path,))
        counted = sum(file.rows for file in self._live)
        if counted != self._ledger.rows:
            detail = f"the Delta log counts {counted} rows, ledger {self._ledger.n} {self._ledger.rows}"
            self._find("count_differs", None, detail)

    # What to read

    def _planned(self, raw: RawTopic, state: PartitionState, evidence: list[Held], dates: frozenset[str]) -> Part:
        hulls = hulls_of(evidence)
        if dates:
            wanted = joined((row.first, row.next) for row, _ in evidence if row.dt and row.dt.isoformat() in dates)
            hulls = [one for one in hulls if touching(wanted, *one)]
        never = Intervals((one.row.first, one.row.next) for one in evidence if one.row.segment is None)
        limits = Intervals(hulls) if dates else Intervals([(0, state.next_offset)])
        reading = self._reading(raw, state, limits.clip(0, state.next_offset) - never)
        ranges = [one for task in reading.tasks for one in task.ranges]
        spans = joined([*hulls_of(evidence), *((one.from_offset, one.to_offset) for one in ranges)])
        chosen = [one for one in spans if not dates or touching(hulls, *one)]
        part = Part(state, evidence, reading, spans, chosen, [], {}, gone=reading.gone)
        for task in reading.tasks:
            part.tasks.append(RawTask(task, cells_of(spans, task.from_offset, task.to_offset)))
        self._plan_files(part)
        part.tasks += part.files.values()
        return part

    def _reading(self, raw: RawTopic, state: PartitionState, wanted: Intervals) -> RawPart:
        lives = self._lives
        if state.incarnation < len(lives):
            place = lives[state.incarnation].place
            at = raw.partition(state.topic_id, place, state.incarnation, state.partition)
            return plan_reading(raw, at, Lineage(state.lineage), wanted)
        nothing = PartitionPlan(
            incarnation=state.incarnation,
            topic_id=state.topic_id,
            partition=state.partition,
            start=0,
            end=0,
            leader_epoch=state.leader_epoch,
            lineage=state.lineage,
        )
        return RawPart(nothing, [], wanted)

    def _plan_files(self, part: Part) -> None:
        """A task for each file that has rows in a chosen span."""
        chosen = set(part.chosen)
        hulls: dict[str, Interval] = {}
        rows: dict[str, EvidenceRow] = {}
        wanted: set[str] = set()
        for row, _ in part.evidence:
            if row.offset_class not in {"landed", "quarantined"} or row.file is None:
                continue
            before = hulls.get(row.file, Interval(row.first, row.next))
            hulls[row.file] = Interval(min(before.start, row.first), max(before.end, row.next))
            rows[row.file] = row
            if part.span_at(row.first) in chosen:
                wanted.add(row.file)
        for path in sorted(wanted):
            row = rows[path]
            part.files[path] = FileTask(
                "landed" if row.offset_class == "landed" else "quarantined",
                path,
                row.dt.isoformat() if row.dt else "",
                row.incarnation,
                row.partition,
                cells_of(part.spans, *hulls[path]),
            )

    # Reading

    def _group(self, parts: list[Part]) -> None:
        by_key = {part.state.key: part for part in parts}
        for tally in self._read(parts, [task for part in parts for task in part.tasks]):
            self._take(tally, by_key)
        for part in parts:
            self._compare(part)

    def _read(self, parts: Iterable[Part], tasks: list[AuditTask]) -> Iterator[Tally]:
        plans = [part.raw.plan for part in parts]
        for tally in examined(self._lake, self._ledger, plans, tasks, self._examine):
            self.bytes_read += tally.bytes_read
            yield tally

    def _take(self, tally: Tally, parts: dict[tuple[int, int], Part]) -> None:
        for key, account in tally.accounts.items():
            part = parts[key.incarnation, key.partition]
            sums = (part.raw_sums if tally.from_raw else part.file_sums).setdefault(key.start, {})
            sums.setdefault((key.kind, key.dt), Account()).add(account)
        for one in tally.passed:
            part = parts[one.incarnation, one.partition]
            span = part.span_at(one.start)
            at = span.start if span else -1, one.offset_class
            part.passed_rows[at] = part.passed_rows.get(at, 0) + one.rows
            if one.rows == one.end - one.start:
                part.passed.setdefault(at, []).append(Interval(one.start, one.end))
        listed = {file.path: file for file in self._live}
        for path, rows in tally.rows.items():
            if path in listed and listed[path].rows != rows:
                detail = f"it has {rows} rows, the Delta log says {listed[path].rows}"
                self._find("count_differs", None, detail, dt=listed[path].dt, files=(path,))
        for trouble in tally.troubles:
            self._trouble(trouble, parts)

    def _trouble(self, one: Trouble, parts: dict[tuple[int, int], Part]) -> None:
        part = parts.get((one.incarnation, one.partition))
        span = (one.start, one.end)
        if one.kind == "stray" or part is None:
            where = {"incarnation": one.incarnation, "partition": one.partition, "files": (one.name,)}
            detail = f"{one.detail} that its evidence does not tell of"
            self._find("stray_rows", None, detail, dt=date_of(one.name), offsets=(span,), **where)
        elif one.kind == "raw_gone":
            part.gone |= Intervals([span])
        elif one.kind == "raw_damaged":
            part.damaged |= Intervals([span])
            self._find("raw_unreadable", part, one.detail, offsets=(span,), files=(one.name,))
        else:
            part.unread.add(one.name)
            hulls = [(row.first, row.next) for row, _ in part.evidence if row.file == one.name]
            kind: Kind = "missing_file" if one.kind == "file_gone" else "unreadable_file"
            offsets = tuple(Intervals(hulls))
            self._find(kind, part, one.detail, dt=date_of(one.name), offsets=offsets, files=(one.name,))

    # Comparing

    def _compare(self, part: Part) -> None:
        said = Said(part)
        unproved = part.gone | part.damaged
        by_evidence: list[Interval] = []
        located = 0
        for span in part.chosen:
            evidence = said.spans.get(span.start, {})
            self._check_classes(part, span, said)
            by_raw = not unproved.clip(*span)
            if not by_raw and not said.segmentless(span):
                by_evidence.append(span)
            elif by_raw:
                self._check_evidence(part, span, evidence, said)
            by_raw = by_raw and not said.records_alone(self._lake, span)
            keys = {*evidence, *part.file_sums.get(span.start, ())}
            keys |= {*part.raw_sums.get(span.start, ())} if by_raw else set()
            for key in sorted(keys):
                if key[0] in {"filtered", "expired"} or part.unread & said.files.get((span.start, *key), set()):
                    continue
                located += self._check_rows(
                    part, span, key, evidence.get(key), by_raw=by_raw, said=said, locate=located < _LOCATED
                )
        if not part.chosen and part.state.next_offset == 0:
            return
        self._summarise(part, by_evidence, said)

    def _check_classes(self, part: Part, span: Interval, said: Said) -> None:
        counted = said.counted.get(span.start, 0)
        if counted != span.end - span.start:
            detail = f"the evidence gives {counted} of {span.end - span.start} offsets a class"
            self._find("offsets_unaccounted", part, detail, offsets=(span,))

    def _check_evidence(self, part: Part, span: Interval, evidence: dict[At, tuple[int, int]], said: Said) -> None:
        """The evidence against raw."""
        raw_sums = part.raw_sums.get(span.start, {})
        if said.records_alone(self._lake, span):
            # Their dates and classes may be others by now; the records must be the same.
            records, told = Account(), Account()
            for one in raw_sums.values():
                records.add(one)
            for rows, total in evidence.values():
                told.add(Account(rows, total))
            if (records.rows, records.hash128) != (told.rows, told.hash128):
                detail = f"the evidence tells of {told.rows} records, raw has {records.rows}, or others"
                self._find("evidence_differs", part, detail, offsets=(span,))
            evidence, raw_sums = {}, {}
        for kind, dt in sorted({*evidence, *raw_sums}):
            account = raw_sums.get((kind, dt), Account())
            rows, total = evidence.get((kind, dt), (0, 0))
            if (rows, total) != (account.rows, account.hash128):
                what = f"{rows} rows" if rows != account.rows else "other rows"
                detail = f"the evidence says {kind} of {what}, raw of {account.rows}"
                files = tuple(sorted(said.files.get((span.start, kind, dt), set())))[:_SHOWN]
                self._find("evidence_differs", part, detail, dt=dt, offsets=(span,), files=files)
        classes = {name for at, name in (*said.passed_rows, *part.passed_rows) if at == span.start}
        for name in sorted(classes):
            rows = said.passed_rows.get((span.start, name), 0)
            found = part.passed_rows.get((span.start, name), 0)
            there = Intervals(said.passed.get((span.start, name), ()))
            raw = Intervals(part.passed.get((span.start, name), ()))
            exact = there.size == rows and raw.size == found
            if rows != found or (exact and there != raw):
                apart = ((there - raw) | (raw - there)) if exact else Intervals([span])
                detail = f"the evidence says {name} of {rows} offsets, raw of {found}"
                self._find("evidence_differs", part, detail, offsets=tuple(apart)[:_SHOWN])

    def _check_rows(
        self,
        part: Part,
        span: Interval,
        at: At,
        evidence: tuple[int, int] | None,
        *,
        by_raw: bool,
        said: Said,
        locate: bool,
    ) -> bool:
        """The files' rows of a class and date against raw, or against the evidence; whether they were sought."""
        kind, dt = at
        there = part.file_sums.get(span.start, {}).get(at, Account())
        raw = part.raw_sums.get(span.start, {}).get(at, Account())
        rows, total = evidence or (0, 0)
        if by_raw:
            same = (there.rows, there.kept128) == (raw.rows, raw.kept128)
        else:
            same = there.rows == rows and (there.hash128 == total or not self._hashed)
        files = {*said.files.get((span.start, *at), set()), *there.files}
        where = {"dt": dt, "files": tuple(sorted(files))[:_SHOWN]}
        name = "the table" if kind == "landed" else "quarantine"
        if same:
            if by_raw:
                self._check_columns(part, span, there, raw, where)
            return False
        source, count = ("raw", raw.rows) if by_raw else ("the evidence", rows)
        detail = f"{name} has {there.rows} rows, {source} {count}" + (
            ", and they differ" if there.rows == count else ""
        )
        offsets = self._located(part, span, at, files) if by_raw and locate else ()
        self._find("rows_differ", part, detail, offsets=offsets or (span,), **where)
        return by_raw and locate

    def _check_columns(
        self, part: Part, span: Interval, there: Account, raw: Account, where: Mapping[str, object]
    ) -> None:
        names = [
            name
            for name, found in there.columns.items()
            if name in raw.columns and found[0] == raw.columns[name][0] and found[1] != raw.columns[name][1]
        ]
        if names:
            detail = f"column {', '.join(names)} has other values than raw gives"
            self._find("columns_differ", part, detail, offsets=(span,), **where)

    def _located(self, part: Part, span: Interval, at: At, files: set[str]) -> tuple[tuple[int, int], ...]:
        """The offsets of ``span`` whose rows differ, by reading both sides in finer and finer cells."""
        spans = [span]
        while any(one.end - one.start > 1 for one in spans):
            step = max(1, -(-sum(one.end - one.start for one in spans) // _FINER))
            cells = Cells(
                tuple(start for one in spans for start in range(one.start, one.end, step)),
                tuple(min(start + step, one.end) for one in spans for start in range(one.start, one.end, step)),
            )
            tasks: list[AuditTask] = [
                RawTask(task.model_copy(update={"ranges": (one,)}), cells)
                for task in part.raw.tasks
                for one in task.ranges
                if span.start <= one.from_offset < span.end
            ]
            tasks += [part.files[path]._replace(cells=cells) for path in sorted(files) if path in part.files]
            sums: dict[bool, dict[int, Account]] = {True: {}, False: {}}
            for tally in self._read([part], tasks):
                for key, account in tally.accounts.items():
                    if (key.kind, key.dt) == at:
                        sums[tally.from_raw].setdefault(key.start, Account()).add(account)
            raw, there = sums[True], sums[False]
            spans = [
                Interval(start, end)
                for start, end in zip(*cells, strict=True)
                if _sum(raw.get(start)) != _sum(there.get(start))
            ][:_SHOWN]
            if not spans or step == 1:
                break
        return tuple(Intervals(spans))

    def _summarise(self, part: Part, by_evidence: list[Interval], said: Said) -> None:
        proved = Intervals(by_evidence)
        never = Intervals((one.row.first, one.row.next) for one in part.evidence if one.row.segment is None)
        chosen = Intervals(part.chosen)
        missing = Intervals([(0, part.state.next_offset)]) - Intervals(part.spans)
        if missing and len(part.chosen) == len(part.spans):
            detail = "no evidence and no segment tells of them"
            self._find("offsets_unaccounted", part, detail, offsets=tuple(missing)[:_SHOWN])
        starts = {one.start for one in part.chosen}
        rows = sum(
            account.rows
            for start in starts
            for (kind, _), account in part.file_sums.get(start, {}).items()
            if kind == "landed"
        )
        self.partitions.append(
            AuditedPartition(
                incarnation=part.state.incarnation,
                partition=part.state.partition,
                offsets=chosen.size,
                rows=rows,
                by_raw=(chosen - proved - never).size,
                by_evidence=tuple(proved),
                without_segment=(chosen & never).size,
                expired=sum(said.expired.get(start, 0) for start in starts),
                other_settings=sum(one.end - one.start for one in part.chosen if said.other_settings(self._lake, one)),
            )
        )


def _sum(account: Account | None) -> tuple[int, int]:
    return (account.rows, account.kept128) if account else (0, 0)
