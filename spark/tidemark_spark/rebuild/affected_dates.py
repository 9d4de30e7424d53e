"""The dates that exchange rows in a rebuild with other settings: another parser, event time or time zone.

For each range of bytes, the evidence has the number of records of each date and the sum of their hashes. Raw, converted
once more without writing, gives these sums for the current settings. Dates whose sums differ in a range lose or gain
rows there, so they are rebuilt together or not at all. Memory is bounded by the evidence of a topic, never by rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tidemark.errors import ConfigError, ContinuityError
from tidemark.formats.raw.hashsum import combine
from tidemark.formats.table.plan import PartitionPlan, RunPlan
from tidemark.intervals import Interval, Intervals
from tidemark.planning import plan_rebuild
from tidemark.planning.common import spared_offsets
from tidemark.planning.read import plan_reading
from tidemark.raw_topic import RawTopic
from tidemark.table.delta_table import TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import PARSED, EvidenceRow
from tidemark_spark.audit.date_evidence import rows_around
from tidemark_spark.audit.evidence import cells_of, examined, hulls_of, touching
from tidemark_spark.audit.worker import AuditTask, RawTask
from tidemark_spark.model import Executor

Sums = dict[str, tuple[int, int | None]]
"""By date (ISO, empty for none): records, and the sum of their hashes, None if it is not known."""


class AffectedDates(NamedTuple):
    """The ``asked`` dates, and in ``dates`` also the dates that exchange rows with them.

    ``together`` has all of ``dates``, in parts between which no rows move. ``before`` and ``after`` count the records
    by date in the ranges that were read: in the table, and with the current settings.
    """

    asked: tuple[str, ...]
    dates: tuple[str, ...]
    before: dict[str, int]
    after: dict[str, int]
    bytes_read: int
    together: tuple[tuple[str, ...], ...]


def settings_differ(table: TopicTable, dates: Collection[str]) -> bool:
    """True if records of ``dates`` landed with other settings than the topics file has now."""
    return not EffectiveEvidence.of(table).configurations(dates) <= {table.topic.digest}


def moves(table: TopicTable, dates: Collection[str], executor: Executor, *, extend: bool) -> AffectedDates:
    """The dates that exchange rows with ``dates``; with ``extend`` also the dates exchanging rows with them, etc.

    Raises:
        ContinuityError: raw no longer holds all offsets, or is damaged.
    """
    search = _DateSearch(table, executor, dates)
    while search.step() and extend:
        pass
    found = tuple(sorted(search.dates))
    return AffectedDates(tuple(dates), found, search.before, search.after, search.bytes_read, search.together())


@dataclass
class _Part:
    """A partition: its disjoint spans of offsets, and their sums, keyed by the start of the span."""

    spans: list[Interval]
    before: dict[int, Sums] = field(default_factory=dict)
    after: dict[int, Sums] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)


class _DateSearch:
    def __init__(self, table: TopicTable, executor: Executor, dates: Collection[str]) -> None:
        standing = EffectiveEvidence.of(table)
        self._table, self._ledger, self._executor = table, standing.ledger, executor
        self._raw = RawTopic(table)
        self._spared = spared_offsets(self._raw, standing)
        self._standing = standing
        self._parts: dict[tuple[int, int], _Part] = {}
        self._exchanges: list[set[str]] = []
        self.dates = set(dates)
        self.before: dict[str, int] = {}
        self.after: dict[str, int] = {}
        self.bytes_read = 0

    def step(self) -> bool:
        """Read the ranges of :attr:`dates`, and add the dates that exchange rows with them; True if it added any."""
        self._find_parts()
        fresh = {key: self._unread(part) for key, part in self._parts.items()}
        self._read({key: spans for key, spans in fresh.items() if spans})
        for key, spans in fresh.items():
            for span in spans:
                self._note_exchanges(self._parts[key], span)
        before = len(self.dates)
        size = -1
        while size < len(self.dates):
            size = len(self.dates)
            self.dates.update(dt for exchange in self._exchanges if exchange & self.dates for dt in exchange)
        return len(self.dates) > before

    def together(self) -> tuple[tuple[str, ...], ...]:
        """The :attr:`dates` in parts: those that exchange rows, also by way of others, are in one."""
        parts = [{dt} for dt in self.dates]
        for exchange in {frozenset(exchange) for exchange in self._exchanges}:
            touched = [part for part in parts if part & exchange]
            if len(touched) > 1:
                parts = [part for part in parts if not part & exchange] + [set().union(*touched)]
        return tuple(sorted(tuple(sorted(part)) for part in parts))

    def _find_parts(self) -> None:
        """Find the ranges of :attr:`dates`. Those of dates found before stay as they are, with what was read."""
        parts = _parts(rows_around(self._standing, self.dates))
        for key, before in self._parts.items():
            parts[key].after, parts[key].read = before.after, before.read
        self._parts = parts

    def _unread(self, part: _Part) -> list[Interval]:
        return [
            span
            for span in part.spans
            if span.start not in part.read and not self.dates.isdisjoint(part.before.get(span.start, ()))
        ]

    def _read(self, spans: dict[tuple[int, int], list[Interval]]) -> None:
        plans: list[PartitionPlan] = []
        tasks: list[AuditTask] = []
        for key, wanted in spans.items():
            at = self._raw.partition(key)
            state = self._ledger.by_partition[key]
            known, end = state.history, state.verdicts_end
            reading = plan_reading(
                self._raw, at, known, Intervals(wanted), verdicts_end=end, spared=self._spared.get(key)
            )
            if reading.gone:
                start, end = next(iter(reading.gone))
                raise ContinuityError(f"{at.keys.folder}: raw holds no offsets {start} to {end} any more")
            plans.append(reading.plan)
            tasks += [
                RawTask(task, cells_of(wanted, task.from_offset, task.to_offset), columns=False)
                for task in reading.tasks
            ]
        for tally in examined(self._table, self._ledger, plans, tasks, self._executor):
            self.bytes_read += tally.bytes_read
            for trouble in tally.troubles:
                raise ContinuityError(f"{trouble.name}: cannot be converted again: {trouble.detail}")
            for counted, account in tally.accounts.items():
                sums = self._parts[counted.incarnation, counted.partition].after.setdefault(counted.start, {})
                _add(sums, counted.dt, account.rows, account.hash128)

    def _note_exchanges(self, part: _Part, span: Interval) -> None:
        """Note the dates that exchange rows in ``span``."""
        before, after = part.before.get(span.start, {}), part.after.get(span.start, {})
        for total, sums in ((self.before, before), (self.after, after)):
            for dt, (rows, _) in sums.items():
                total[dt] = total.get(dt, 0) + rows
        differing = {dt for dt in {*before, *after} if _differ(before.get(dt, (0, 0)), after.get(dt, (0, 0)))}
        if differing:
            self._exchanges.append(differing)
        part.read.add(span.start)


def _parts(evidence: Mapping[tuple[int, int], Iterable[EvidenceRow]]) -> dict[tuple[int, int], _Part]:
    """The partitions in ``evidence``, with that of their records."""
    parts: dict[tuple[int, int], _Part] = {}
    for key, rows in evidence.items():
        records = [row for row in rows if _is_record(row)]
        part = parts[key] = _Part(hulls_of(records))
        for row in records:
            [span] = touching(part.spans, row.first, row.first + 1)
            _add(part.before.setdefault(span.start, {}), row.day, row.rows, row.hash128)
    return parts


def _add(sums: Sums, dt: str, rows: int, total: int | None) -> None:
    counted, known = sums.get(dt, (0, 0))
    sums[dt] = counted + rows, None if known is None or total is None else combine(known, total)


def _differ(before: tuple[int, int | None], after: tuple[int, int | None]) -> bool:
    return before[0] != after[0] or (before[1] != after[1] and None not in {before[1], after[1]})


def _is_record(row: EvidenceRow) -> bool:
    """True if the row counts records. Raw also gives records that retention removed from the table."""
    return row.offset_class in PARSED or row.offset_class == "expired"


class Rebuild(NamedTuple):
    """A plan that is not written yet, and the dates between which rows move, if known."""

    plan: RunPlan
    moves: AffectedDates | None


def planned(table: TopicTable, dates: Sequence[str] | None, executor: Executor, *, extend: bool) -> Rebuild:
    """Plan the rebuild of ``dates``, or of all dates; with ``extend`` also of the dates that exchange rows with them.

    If records of the dates landed with other settings than the topics file has now, or with ``extend``, raw is read
    once more to find the dates between which rows move. Otherwise only other code could move rows, and the run refuses
    that.

    Raises:
        ConfigError: rows would move to other dates, and ``extend`` is not given.
        ContinuityError: raw no longer holds all the offsets.
    """
    affected = None if dates is None else affected_by(table, dates, executor, extend=extend)
    return Rebuild(plan_rebuild(table, affected.dates if affected else dates), affected)


def affected_by(table: TopicTable, dates: Sequence[str], executor: Executor, *, extend: bool) -> AffectedDates | None:
    """The dates that exchange rows with ``dates``, None if only other code could move rows; see :func:`planned`."""
    if not (extend or settings_differ(table, dates)):
        return None
    affected = moves(table, dates, executor, extend=extend)
    others = [dt or "none" for dt in affected.dates if dt not in dates]
    if others and not extend:
        rule = (
            f"with the current settings, these dates and {', '.join(others)} exchange rows; to rebuild them all, "
            f"run rebuild.py --from {dates[0]} --to {dates[-1]} --extend (--dry-run shows them)"
        )
        raise ConfigError("rebuild.py", [("--from, --to", rule)])
    return affected
