"""The comparison of an audit: a partition's sums of raw, files and evidence, and the offsets at which they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

from tidemark.formats.table.audit_report import AuditedPartition, Kind
from tidemark.formats.table.base_columns import HASHED, PREFIX
from tidemark.intervals import Interval, Intervals
from tidemark.table.delta_table import TopicTable
from tidemark_spark.audit.evidence import At, PartitionUnderAudit, Said
from tidemark_spark.audit.worker import AuditTask, RawTask, Tally
from tidemark_spark.convert.row_checksums import Account, Cells

_FINER: Final = 1024
_LOCATED: Final = 16
_SHOWN: Final = 32

HasPack = Callable[[PartitionUnderAudit, str], bool | None]
"""Returns True if the partition's store has the pack under a key, and None if the key is not a pack's."""

Read = Callable[[list[PartitionUnderAudit], list[AuditTask]], Iterator[Tally]]
"""Carries out tasks of some partitions."""


class Find(Protocol):
    """Records a finding."""

    def __call__(self, kind: Kind, part: PartitionUnderAudit | None, detail: str, **more: object) -> None:
        """See :class:`tidemark.formats.table.audit_report.AuditFinding` for the keys of ``more``."""
        ...


class Checks:
    """Comparison that reports each difference to ``find``; ``read`` reads the offsets in question once more."""

    def __init__(self, table: TopicTable, find: Find, read: Read, has_pack: HasPack) -> None:
        self._table, self._find, self._read, self._has_pack = table, find, read, has_pack
        self._hashed = {f"{PREFIX}{column}" for column in table.topic.keep} >= set(HASHED)

    def partition(self, part: PartitionUnderAudit) -> AuditedPartition | None:
        """Compare all sums of a partition; None if no row of it ever landed."""
        claims = Said(part)
        unproved = part.gone | part.damaged
        by_evidence: list[Interval] = []
        located = 0
        for span in part.chosen:
            evidence = claims.spans.get(span.start, {})
            self._check_classes(part, span, claims)
            by_raw = not unproved.clip(*span) and not self._check_lacking(part, span, evidence, claims)
            if not by_raw and not claims.segmentless(span):
                by_evidence.append(span)
            elif by_raw:
                self._check_evidence(part, span, evidence, claims)
            by_raw = by_raw and not claims.records_alone(self._table, span)
            keys = {*evidence, *part.file_sums.get(span.start, ())}
            keys |= {*part.raw_sums.get(span.start, ())} if by_raw else set()
            for key in sorted(keys):
                if key[0] in {"filtered", "expired"} or part.unread & claims.files.get((span.start, *key), set()):
                    continue
                located += self._check_rows(
                    part, span, key, evidence.get(key), by_raw=by_raw, claims=claims, locate=located < _LOCATED
                )
        if not part.chosen and part.state.next_offset == 0:
            return None
        return self._summarised(part, by_evidence, claims)

    def _check_classes(self, part: PartitionUnderAudit, span: Interval, claims: Said) -> None:
        counted = claims.counted.get(span.start, 0)
        if counted != span.end - span.start:
            detail = f"the evidence gives {counted} of {span.end - span.start} offsets a class"
            self._find("offsets_unaccounted", part, detail, offsets=(span,))

    def _check_lacking(
        self, part: PartitionUnderAudit, span: Interval, evidence: dict[At, tuple[int, int]], claims: Said
    ) -> bool:
        """Report rows that landed from a pack and that raw lacks; True if there are any.

        Compaction had removed them before their segment was sealed. Then the evidence alone proves the span.
        """
        raw_sums = part.raw_sums.get(span.start, {})
        landed = sum(rows for rows, _ in evidence.values())
        in_raw = sum(account.rows for account in raw_sums.values())
        if in_raw >= landed:
            return False
        known = {key: self._has_pack(part, key) for key in claims.sources.get(span.start, ())}
        packs = {key: exists for key, exists in known.items() if exists is not None}
        if not packs:
            return False
        topic, partition = self._table.topic.topic, part.state.partition
        dates = Counter[str]()
        for (_, dt), (rows, _) in evidence.items():
            dates[dt] += rows
        for (_, dt), account in raw_sums.items():
            dates[dt] -= account.rows
        cause = f"{min(packs)} had them, and compaction removed them before their segment was sealed"
        cure = f"`tidemark-agent reupload {topic} {partition} --from-packs` adds them to raw"
        if not all(packs.values()):
            cure = "that pack is gone, so the table has the only copy: do not rebuild or repair the date"
        for dt in sorted(dt for dt, rows in dates.items() if rows > 0):
            detail = f"{landed} rows landed, and raw has {in_raw}: {cause}; {cure}"
            self._find("raw_lacks", part, detail, dt=dt, offsets=(span,))
        return True

    def _check_evidence(
        self, part: PartitionUnderAudit, span: Interval, evidence: dict[At, tuple[int, int]], claims: Said
    ) -> None:
        """Compare the evidence with raw."""
        raw_sums = part.raw_sums.get(span.start, {})
        if claims.records_alone(self._table, span):
            # Dates and classes may have changed; the records must be the same.
            records, counted = Account(), Account()
            for account in raw_sums.values():
                records.add(account)
            for rows, total in evidence.values():
                counted.add(Account(rows, total))
            same = records.hash128 == counted.hash128 or span.start in claims.unsummed
            if records.rows != counted.rows or not same:
                detail = (
                    f"the evidence counts {counted.rows} records and raw has {records.rows}, or their hashes differ"
                )
                self._find("evidence_differs", part, detail, offsets=(span,))
            evidence, raw_sums = {}, {}
        for kind, dt in sorted({*evidence, *raw_sums}):
            account = raw_sums.get((kind, dt), Account())
            rows, total = evidence.get((kind, dt), (0, 0))
            if (rows, total) != (account.rows, account.hash128):
                subject = f"{rows} rows" if rows != account.rows else "other rows"
                detail = f"the evidence says {kind} of {subject}, raw of {account.rows}"
                files = tuple(sorted(claims.files.get((span.start, kind, dt), set())))[:_SHOWN]
                self._find("evidence_differs", part, detail, dt=dt, offsets=(span,), files=files)
        classes = {name for at, name in (*claims.passed_rows, *part.passed_rows) if at == span.start}
        for name in sorted(classes):
            rows = claims.passed_rows.get((span.start, name), 0)
            raw_rows = part.passed_rows.get((span.start, name), 0)
            offsets = Intervals(claims.passed.get((span.start, name), ()))
            raw_offsets = Intervals(part.passed.get((span.start, name), ()))
            exact = offsets.size == rows and raw_offsets.size == raw_rows
            if rows != raw_rows or (exact and offsets != raw_offsets):
                apart = ((offsets - raw_offsets) | (raw_offsets - offsets)) if exact else Intervals([span])
                detail = f"the evidence says {name} of {rows} offsets, raw of {raw_rows}"
                self._find("evidence_differs", part, detail, offsets=tuple(apart)[:_SHOWN])

    def _check_rows(
        self,
        part: PartitionUnderAudit,
        span: Interval,
        at: At,
        evidence: tuple[int, int] | None,
        *,
        by_raw: bool,
        claims: Said,
        locate: bool,
    ) -> bool:
        """Compare the files' rows of a class and date with raw or the evidence; True if offsets were located."""
        kind, dt = at
        stored = part.file_sums.get(span.start, {}).get(at, Account())
        raw = part.raw_sums.get(span.start, {}).get(at, Account())
        rows, total = evidence or (0, 0)
        if by_raw:
            same = (stored.rows, stored.kept128) == (raw.rows, raw.kept128)
        else:
            same = stored.rows == rows and (stored.hash128 == total or not self._hashed)
        files = {*claims.files.get((span.start, *at), set()), *stored.files}
        where = {"dt": dt, "files": tuple(sorted(files))[:_SHOWN]}
        name = "the table" if kind == "landed" else "quarantine"
        if same:
            if by_raw:
                self._check_columns(part, span, stored, raw, where)
            return False
        source, count = ("raw", raw.rows) if by_raw else ("the evidence", rows)
        detail = f"{name} has {stored.rows} rows, {source} {count}" + (
            ", and they differ" if stored.rows == count else ""
        )
        offsets = self._located(part, span, at, files) if by_raw and locate else ()
        self._find("rows_differ", part, detail, offsets=offsets or (span,), **where)
        return by_raw and locate

    def _check_columns(
        self, part: PartitionUnderAudit, span: Interval, stored: Account, raw: Account, where: Mapping[str, object]
    ) -> None:
        names = [
            name
            for name, column in stored.columns.items()
            if name in raw.columns and column[0] == raw.columns[name][0] and column[1] != raw.columns[name][1]
        ]
        if names:
            detail = f"column {', '.join(names)} has other values than raw gives"
            self._find("columns_differ", part, detail, offsets=(span,), **where)

    def _located(
        self, part: PartitionUnderAudit, span: Interval, at: At, files: set[str]
    ) -> tuple[tuple[int, int], ...]:
        """Offsets of ``span`` whose rows differ, found by reading both sides in finer and finer cells."""
        spans = [span]
        while any(left.end - left.start > 1 for left in spans):
            step = max(1, -(-sum(left.end - left.start for left in spans) // _FINER))
            cells = Cells(
                tuple(start for left in spans for start in range(left.start, left.end, step)),
                tuple(min(start + step, left.end) for left in spans for start in range(left.start, left.end, step)),
            )
            tasks: list[AuditTask] = [
                RawTask(task.model_copy(update={"ranges": (range_,)}), cells)
                for task in part.raw.tasks
                for range_ in task.ranges
                if span.start <= range_.from_offset < span.end
            ]
            tasks += [part.files[path]._replace(cells=cells) for path in sorted(files) if path in part.files]
            sums: dict[bool, dict[int, Account]] = {True: {}, False: {}}
            for tally in self._read([part], tasks):
                for key, account in tally.accounts.items():
                    if (key.kind, key.dt) == at:
                        sums[tally.from_raw].setdefault(key.start, Account()).add(account)
            raw, stored = sums[True], sums[False]
            spans = [
                Interval(start, end)
                for start, end in zip(*cells, strict=True)
                if _sum(raw.get(start)) != _sum(stored.get(start))
            ][:_SHOWN]
            if not spans or step == 1:
                break
        return tuple(Intervals(spans))

    def _summarised(self, part: PartitionUnderAudit, by_evidence: list[Interval], claims: Said) -> AuditedPartition:
        proved = Intervals(by_evidence)
        never = Intervals((row.first, row.next) for row in part.evidence if row.segment is None)
        chosen = Intervals(part.chosen)
        missing = Intervals([(0, part.state.next_offset)]) - Intervals(part.spans)
        if missing and part.whole:
            detail = "no evidence and no segment has them"
            self._find("offsets_unaccounted", part, detail, offsets=tuple(missing)[:_SHOWN])
        starts = {span.start for span in part.chosen}
        rows = sum(
            account.rows
            for start in starts
            for (kind, _), account in part.file_sums.get(start, {}).items()
            if kind == "landed"
        )
        by_raw = chosen - proved - never
        ranges = [range_ for task in part.raw.tasks for range_ in task.ranges if range_.origin == "fetch"]
        fetched = Intervals((range_.from_offset, range_.to_offset) for range_ in ranges)
        return AuditedPartition(
            incarnation=part.state.incarnation,
            partition=part.state.partition,
            offsets=chosen.size,
            rows=rows,
            by_raw=by_raw.size,
            fetched=(by_raw & fetched).size,
            by_evidence=tuple(proved),
            without_segment=(chosen & never).size,
            remote_tier=(chosen & part.tiered).size,
            expired=sum(claims.expired.get(start, 0) for start in starts),
            other_settings=sum(
                span.end - span.start for span in part.chosen if claims.other_settings(self._table, span)
            ),
        )


def _sum(account: Account | None) -> tuple[int, int]:
    return (account.rows, account.kept128) if account else (0, 0)
