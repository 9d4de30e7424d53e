"""The base of all kinds of runs, and the change of a table that a run commits.

A kind says how a task is carried out in a worker, how the outcomes become one change of the table, and by which rules
that change may be committed. What is the same for all kinds is in :mod:`tidemark_spark.run`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

from tidemark.errors import ContinuityError, StaleRun
from tidemark.formats.table.ledger import DateState, Ledger, PartitionState
from tidemark.formats.table.plan import RUN_LIMIT, BranchCut, PartitionPlan, RunPlan
from tidemark.formats.table.steps import DataFile
from tidemark.table.delta_table import LiveFiles, TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence, Told
from tidemark.table.evidence import EvidenceClass, EvidenceRow, to_parquet
from tidemark.table.tampering import check_untampered
from tidemark_spark.model import Executor, Job, Outcome


class TableChange(NamedTuple):
    """The change that a run commits: files to add, their evidence, and the state of each partition afterwards.

    ``partitions`` is empty for kinds that move no offsets. For a repair it has the partitions that go back to the point
    before a branch was left. ``removes`` and ``supersedes`` are copied from the plan, except for partitions that cannot
    move after all. ``unknown`` counts the unknown fields of the added rows.
    """

    files: tuple[DataFile, ...] = ()
    evidence: tuple[EvidenceRow, ...] = ()
    partitions: tuple[PartitionState, ...] = ()
    removes: tuple[str, ...] = ()
    supersedes: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    unknown: Mapping[str, int] = MappingProxyType({})


class Kind(ABC):
    """A run of ``table`` by ``plan``, as far as it differs from runs of other kinds."""

    lands: ClassVar = False
    """True if it brings what raw has new: people are told why parts of it cannot land."""
    parses: ClassVar = False
    """True if the topic's settings make its rows: they must be those of the plan."""
    awaited: ClassVar = False
    """True if people wait for it, so that its progress is reported."""
    same_records: ClassVar = False
    """True if it makes again the records that a date has, so that a date that was final stays final."""

    def __init__(self, table: TopicTable, plan: RunPlan) -> None:
        self.table, self.plan = table, plan

    @staticmethod
    @abstractmethod
    def work(job: Job, task: Any) -> Outcome:
        """Carry out one task in a worker, up to its end or to the first missing, damaged or replaced offset.

        Raises:
            ContinuityError: a batch has another number of records than its header states, or offsets do not ascend.
            StoreError: a store did not answer, or refused.
        """

    @abstractmethod
    def change(self, outcomes: Sequence[Outcome], executor: Executor) -> TableChange | Literal["stale", "empty"]:
        """The change that results from ``outcomes``, with all of its evidence; or the result, if nothing is committed.

        ``executor`` reads raw where outcomes and evidence cannot tell.

        Raises:
            ContinuityError: an offset has no class or two, or the rows are not those that they replace.
            StaleRun: the table has moved on since the plan.
        """

    def stored_evidence(self, change: TableChange) -> bytes:
        """The evidence object of ``change``."""
        return self.parquet(change.evidence)

    def parquet(self, evidence: Iterable[EvidenceRow], *, kept: bool = False) -> bytes:
        """An evidence object with these rows; ``kept`` rows state the settings and code with which they landed."""
        plan = self.plan
        return to_parquet(evidence, configuration=plan.configuration, code=plan.code, attempt=plan.attempt, kept=kept)

    def check_hands(self, ledger: Ledger, live: LiveFiles) -> None:
        """Raise :class:`TableTampered` unless the table is as ``ledger`` left it."""
        check_untampered(self.table, ledger, live)

    def check_age(self) -> None:
        """Raise :class:`StaleRun` if the plan is too old to commit anything."""
        plan = self.plan
        if self.table.store.now() - plan.created_at > RUN_LIMIT:
            raise StaleRun(f"attempt {plan.attempt} was planned more than {RUN_LIMIT} ago: its files may be gone")

    def check_fresh(self, ledger: Ledger, live: LiveFiles) -> None:
        """Raise :class:`StaleRun` unless the parts of the table that the plan uses are unchanged."""
        plan = self.plan
        self.check_age()
        if any(number > plan.masks.get(place, 0) for place, number in ledger.masks.items()):
            raise StaleRun("records were erased since the plan, which may have them")
        for dt in plan.supersedes:
            if ledger.superseded.get(dt, 0) > plan.ledger_n:
                raise StaleRun(f"refused rows of {dt or 'no date'} were rebuilt or replayed since the plan")
        if plan.closes and not (plan.partitions or plan.replaced or self.closes(ledger)):
            raise StaleRun(f"dates {', '.join(plan.closes)} have changed since the plan")
        if not set(plan.folds) <= set(ledger.landed):
            raise StaleRun("somebody else folded the same attempts since the plan")
        gone = sorted(set(plan.removes) - {file.path for file in live.named(plan.removes)})
        if gone:
            raise StaleRun(f"{gone[0]} was replaced since the plan")

    def closes(self, current: Ledger) -> dict[str, DateState]:
        """States after the run of the dates that it closes and that have not changed since the plan."""
        closes = self.plan.closes
        return {dt: close.after for dt, close in closes.items() if current.dates.get(dt) == close.before}

    def touched(self, dates: Iterable[str], _current: Ledger, _rows: Mapping[str, int]) -> set[str]:
        """The dates that change, given those whose files do, the ledger before, and each date's rows after the run."""
        return set(dates)

    def date(self, known: DateState | None, rows: int, fresh: int, cut: int) -> DateState | None:
        """A date's state with its new ``rows``; rows added or cut off after the date was closed reopen it.

        Late rows are the rows added to it. None for a date that existed only in another program's commit.
        """
        known = known or DateState(rows=0)
        update: dict[str, object] = {"rows": rows}
        if (fresh or cut) and not (self.same_records and known.state != "expired"):
            update |= {"changed_at": self.plan.created_at}
            if known.state != "open":
                late = known.late_rows + max(0, fresh - cut)
                update |= {"state": "reopened", "late_rows": late, "unfinished": 0, "outstanding": 0}
        return known.model_copy(update=update)

    def masks(self, current: Ledger) -> dict[str, int]:
        """The numbers of the masks that the table's rows are without, by place; a new table has none to take out."""
        return {**current.masks, **self.plan.masks} if current.n == 0 else current.masks

    def told(self, files: Iterable[str]) -> Told:
        """Evidence of ``files``, which must still be in force."""
        wanted = frozenset(files)
        if not wanted:
            return Told({}, {}, frozenset(), ())
        standing = EffectiveEvidence.of(self.table)
        self.check_fresh(standing.ledger, standing.files)
        return standing.told(files=wanted)

    def name(self, part: PartitionPlan | Outcome) -> str:
        """The partition, in messages."""
        plan = self.plan
        return f"{plan.cluster}/{plan.topic} partition {part.partition} of incarnation {part.incarnation}"


class RewritingKind(Kind):
    """A run that makes files again: each outcome has at most one file, and evidence of its rows."""

    def rewritten(self, outcomes: Sequence[Outcome]) -> TableChange:
        """The change of the files. Raises ContinuityError if a task stopped."""
        for outcome in outcomes:
            if outcome.stop:
                raise ContinuityError(f"{self.name(outcome)}: nothing was changed: {outcome.stop.detail}")
        files = tuple(file for outcome in outcomes for file in outcome.files)
        evidence = tuple(row for outcome in outcomes for row in outcome.evidence)
        return TableChange(files, evidence, (), self.plan.removes, self.plan.supersedes)


def no_more(aside: Iterable[EvidenceRow]) -> tuple[EvidenceRow, ...]:
    """Rows that supersede ``aside``."""
    return tuple(row._replace(offset_class="superseded") for row in aside)


def without_segment(part: PartitionPlan, offset_class: EvidenceClass, start: int, end: int) -> EvidenceRow:
    """Evidence of offsets whatever segment had them."""
    return EvidenceRow(part.incarnation, part.partition, start, end, offset_class, end - start)


def left_behind(part: PartitionPlan, cut: BranchCut, start: int) -> list[EvidenceRow]:
    """Evidence that takes out the rows landed at or above ``start``, because their branch was cut off."""
    spans: list[tuple[EvidenceClass, int]] = [("superseded", start), ("truncated", cut.landed_at)]
    return [without_segment(part, name, first, cut.old_next) for name, first in spans if first < cut.old_next]
