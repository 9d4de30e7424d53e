"""The objects of a table, of its quarantine and of its runs that may be removed, and why others stay.

Data files are judged by :func:`judge`, ledgers by :func:`old_ledgers`, steps of rebuilds by :func:`old_steps`, and the
records of jobs by :func:`left_by_runs`, :func:`old_audits` and :func:`old_backfill_reports`. These are pure.

Files that may hold erased rows, although no version that counts has them, go earlier: see :class:`ErasedRows`. The name
of a file tells its partition and offsets, so no file is read.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final, Literal, NamedTuple

from tidemark.concurrency import in_parallel
from tidemark.errors import NotFound
from tidemark.formats.keys import ALL_DATES
from tidemark.formats.table.ledger import Ledger, file_digest
from tidemark.formats.table.plan import RUN_LIMIT, RunPlan, RunResult, StoredTask
from tidemark.formats.table.statuses import MirrorKey, MirrorState, MirrorStatus
from tidemark.planning.common import masked_offsets
from tidemark.raw_topic import RawTopic
from tidemark.store.base import ObjectInfo
from tidemark.table.delta_table import TopicTable

MARGIN: Final = timedelta(hours=1)
"""Allowance for clocks that differ, and for a commit that was under way."""

RUN_OVER: Final = RUN_LIMIT + MARGIN
"""Age of a plan above which its run cannot commit any more, even if clocks differ."""

TOMBSTONES: Final = timedelta(days=7)
"""Time for which a replaced file stays for readers of older versions: Delta's ``deletedFileRetentionDuration``."""

Why = Literal["internal", "live", "held", "replaced", "young", "dead", "left out", "unknown"]
"""Rules 1 to 5; ``replaced``, ``dead`` and ``left out`` mean that the object is removed."""

_TAKES_AWAY: Final = frozenset({"ingest", "repair", "retain"})
"""The runs that replace files without making all of their rows again."""

_AHEAD: Final = frozenset({"erase", "ingest"})
"""The runs that may know masks which the table, and so the files that they replace, did not follow yet."""

GOES: Final = frozenset[Why]({"replaced", "dead", "left out"})

_LEDGER_NAME: Final = re.compile(r"(0|[1-9][0-9]*)-(0|[1-9][0-9]*)\.json", re.ASCII)

_LEDGERS_BEHIND: Final = 3
"""The ledger before the oldest young one was committed before that was written, and its parent is one more.

Another is for a run that wrote its ledger and committed it only at a later try.
"""

REPORTS_KEPT: Final = timedelta(days=90)
"""Three times as long as ``deploy/airflow-clean.sh`` leaves the run of a DAG, whose links lead to the report.

Lists of rebuilds by date are kept as long, though no job goes on with an old one.
"""

_DAY: Final = r"\d{4}-\d{2}-\d{2}"
_AUDIT: Final = re.compile(
    rf"({ALL_DATES}|({_DAY})|({_DAY})_({_DAY})_[0-9a-f]{{16}})/\d{{8}}T\d{{9}}Z-\d+\.json", re.ASCII
)
_REQUEST: Final = "/request.json"
_OUTCOME: Final = "/outcome-"


class Verdict(NamedTuple):
    """The verdict on an object: ``erased`` is the reason if it stays for now and may hold erased rows, else empty.

    ``until`` is the time at which it goes, None if it does not go by itself.
    """

    why: Why
    erased: str = ""
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Knowledge:
    """The state of a table: its live files, the files that effective evidence names, and their replacements.

    Nothing has superseded the files ``aside``, which are of quarantined rows, even if a landed run had planned to
    replace them. ``landed`` are all attempts that ever landed and still have evidence. ``plans`` are the stored plans
    by attempt.

    A path in the quarantine never equals a path in the table: names contain the first row, which is in one of them.
    ``erased`` are the erased rows, None without any; ``commits`` those of the attempts in :meth:`that_hid`.
    """

    live: Collection[str]
    named: Collection[str]
    aside: Collection[str]
    landed: Collection[int]
    plans: Mapping[int, RunPlan]
    now: datetime
    erased: ErasedRows | None = None
    commits: Mapping[int, Replaced] = field(default_factory=dict)

    def that_hid(self, paths: Collection[str]) -> list[RunPlan]:
        """The plans that replaced some of ``paths`` that may hold erased rows."""
        if self.erased is None:
            return []
        holding = {path for path in paths if self.erased.may_be_in(path)}
        return [plan for plan in self.plans.values() if not holding.isdisjoint(plan.replaced)]

    def is_over(self, plan: RunPlan) -> bool:
        """True if the attempt can no longer commit."""
        return self.now - plan.created_at > RUN_OVER

    def folded(self, listed: Collection[int]) -> list[int]:
        """The attempts, not ``listed`` by the ledger, with evidence that a finished fold has taken over.

        No run reads their own evidence any more.
        """
        young = {fold for plan in self.plans.values() if not self.is_over(plan) for fold in plan.folds}
        known = {attempt for attempt, plan in self.plans.items() if attempt in self.landed and self.is_over(plan)}
        return sorted(known - young - set(listed))

    def dead(self) -> list[int]:
        """The attempts that did not land and never will."""
        return sorted(number for number, plan in self.plans.items() if number not in self.landed and self.is_over(plan))


def all_landed(ledger: Iterable[int], named: Iterable[int], plans: Mapping[int, RunPlan]) -> set[int]:
    """The attempts in the ledger's list and in evidence rows, and all attempts folded into these."""
    attempts: set[int] = set()
    new = {*ledger, *named}
    while new:
        attempts |= new
        new = {fold for attempt in new if attempt in plans for fold in plans[attempt].folds} - attempts
    return attempts


def judge(known: Knowledge, paths: Iterable[str]) -> dict[str, Verdict]:
    """The verdict on each object, by its path below the table or its quarantine.

    For each object the first rule that fits counts:

    1. A name or folder that starts with ``_`` is not a data file of a run: it stays.
    2. A live file of the table stays.
    3. A file of landed or quarantined rows that effective evidence names stays until a landed run has replaced it, and
       then while a reader may still read an older version of the table: with erased rows in it, only for a topic's
       grace.
    4. A file of an attempt (its name ends in the digest of one of the attempt's tasks) that evidence does not name
       stays while the attempt may still commit. The attempt died, or its commit left the file out.
    5. A file that no plan and no evidence names stays, and is reported.
    """
    replacing: dict[str, RunPlan] = {}
    for plan in sorted(known.plans.values(), key=lambda plan: plan.created_at):
        if plan.attempt in known.landed:
            replacing |= dict.fromkeys(plan.replaced, plan)
    authors = {digest_of(plan, task): plan for plan in known.plans.values() for task in plan.tasks}
    return {path: _judged(known, path, replacing.get(path), authors.get(digest_in(path))) for path in paths}


def digest_of(plan: RunPlan, task: StoredTask) -> str:
    """The digest at the end of the names of the files of ``task``."""
    labels = [range_.label for range_ in task.ranges]
    return file_digest(task.topic_id, labels, plan.configuration, plan.code, plan.attempt)


def _judged(known: Knowledge, path: str, replacing: RunPlan | None, author: RunPlan | None) -> Verdict:
    if any(part.startswith("_") for part in path.split("/")):
        return Verdict("internal")
    if path in known.live:
        return Verdict("live")
    if path in known.named:
        return Verdict("held") if replacing is None or path in known.aside else _replaced(known, path, replacing)
    if author is None:
        erased = known.erased is not None and known.erased.may_be_in(path)
        return Verdict("unknown", "no plan tells which run wrote it: delete it" if erased else "")
    if not known.is_over(author):
        erased = known.erased is not None and known.erased.unknown_to(author)
        return Verdict("young", "its run may commit, or has died" if erased else "", author.created_at + RUN_OVER)
    return Verdict("left out" if author.attempt in known.landed else "dead")


def _replaced(known: Knowledge, path: str, plan: RunPlan) -> Verdict:
    over = plan.created_at + RUN_OVER  # it was committed before that
    until, reason = over + TOMBSTONES, ""
    erased = known.erased if known.erased and (plan.kind in _AHEAD or known.erased.unknown_to(plan)) else None
    if erased and erased.may_be_in(path):
        commit = known.commits.get(plan.attempt, Replaced(over, None))
        reason = erased.listed_by(commit.ledger_n)
        if not reason:
            until, reason = min(until, commit.at + erased.grace), "readers of older versions may read it"
    elif erased and plan.kind in _TAKES_AWAY:
        reason = "has rows of a past date or a dead branch, which are not searched"
    return Verdict("replaced") if known.now >= until else Verdict("young", reason, until)


def digest_in(path: str) -> str:
    """The digest at the end of the name of the file ``path``."""
    return path.rpartition("_")[2].removesuffix(".parquet")


def old_ledgers(
    listed: Iterable[ObjectInfo], now: datetime, *, committed: int, in_log: int, published: int, state: int | None
) -> list[ObjectInfo]:
    """The ``listed`` objects of the ledger's folder that may be deleted at the time ``now`` of the store.

    ``committed`` is the number of the table's own ledger, ``in_log`` that of the oldest version in Delta's log, and
    ``published`` that of the outbox. Each is 0 if there is none yet. ``state`` is the commit that the state table
    equals, if there is one.

    Each commit writes a ledger, and the next ledger names it as its parent. A ledger stays while one of these may read
    it:

    * the table: it is the committed ledger, or the parent of that, which the watch compares it with;
    * a reader of an older version of the table, as far as Delta's log still has it: time travel, RESTORE;
    * the outbox: asset events are made of all ledgers down to the one that ``published.json`` names, inclusive;
    * the state table: its next run reads all ledgers down to the one that it equals, inclusive;
    * a process that opened the table while the ledger was the committed one or its parent, or that is still to commit
      it. No run lasts longer than :data:`RUN_OVER`.

    All five only ever move on. So a ledger that is not needed now will never be needed, and neither the order of
    deletions nor a kill of the vacuum nor a commit meanwhile matters. An attempt that lost its result, and that is run
    again after its ledger is deleted, reports less of its work (``RunResult``).

    A ledger that lost the race for its number is deleted with the winner.
    """
    numbers = {info: int(match[1]) for info in listed if (match := _LEDGER_NAME.fullmatch(info.key.rpartition("/")[2]))}
    young = [n for info, n in numbers.items() if now - info.modified <= RUN_OVER]
    oldest_young = min(young, default=committed + 1)
    first = min(committed - 1, in_log - 1, published, oldest_young - _LEDGERS_BEHIND)
    if state is not None:
        first = min(first, state)
    return [info for info, n in numbers.items() if n < first]


def old_steps(known: Knowledge, listed: Iterable[ObjectInfo]) -> list[ObjectInfo]:
    """The ``listed`` objects of steps whose run has landed, or can no longer commit.

    A run writes its plan before its first step. So young steps without a plan are of a run that began after the plans
    were listed.
    """
    gone: list[ObjectInfo] = []
    for info in listed:
        attempt = int(info.key.split("/")[-2])
        plan = known.plans.get(attempt)
        over = known.is_over(plan) if plan is not None else known.now - info.modified > RUN_OVER
        if over or attempt in known.landed:
            gone.append(info)
    return gone


def left_by_runs(listed: Iterable[ObjectInfo], now: datetime) -> list[ObjectInfo]:
    """The ``listed`` objects that only a run that is over could need, at the time ``now`` of the store.

    A job's hand-over to its task is read when the job ends. One that is older than any run was left by a dead task. The
    progress of a run is shown while it is under way.
    """
    return [info for info in listed if now - info.modified > RUN_OVER]


def old_audits(
    listed: Iterable[ObjectInfo], dates: Collection[str], named: Collection[str], now: datetime
) -> list[ObjectInfo]:
    """The ``listed`` reports of audits that may be deleted at the time ``now`` of the store.

    A report is kept for :data:`REPORTS_KEPT`, and longer while it is the newest on dates with rows in the table, or an
    incident names it. So the proof of a date exists as long as the date. A report that may be deleted may also be
    deleted later, unless rows of its date land again, because only its age and newer reports count.

    ``dates`` are the dates with rows in the table, ``named`` the keys of the reports that incidents name.
    """
    scopes = {info: match for info in listed if (match := _AUDIT.fullmatch("/".join(info.key.split("/")[-2:])))}
    in_order = sorted(scopes, key=lambda info: info.key.rpartition("/")[2])
    newest = {scopes[info][1]: info for info in in_order}
    needed = {info for scope, info in newest.items() if scope == ALL_DATES or _has_rows(scopes[info], dates)}
    needed |= set(in_order[-1:])
    return [
        info for info in in_order if now - info.modified > REPORTS_KEPT and info not in needed and info.key not in named
    ]


def old_backfill_reports(listed: Iterable[ObjectInfo], now: datetime) -> tuple[list[ObjectInfo], list[ObjectInfo]]:
    """The ``listed`` parts of backfills' reports that may be deleted at the time ``now`` of the store.

    A report is kept for :data:`REPORTS_KEPT` after its last part was written. The newest report stays, and so does the
    newest report of a run that has an outcome. A vacuum may be killed between two deletions: the request of a report is
    deleted first, without which nothing shows the rest.

    They are deleted in two steps: first the requests, then all other parts.
    """
    reports = [list(parts) for _, parts in groupby(sorted(listed, key=_folder), _folder)]
    reports.sort(key=_written)
    with_outcome = [parts for parts in reports if any(_OUTCOME in info.key for info in parts)]
    needed = [*reports[-1:], *with_outcome[-1:]]
    gone = [info for parts in reports if now - _written(parts) > REPORTS_KEPT and parts not in needed for info in parts]
    first = [info for info in gone if info.key.endswith(_REQUEST)]
    return first, [info for info in gone if info not in first]


def _has_rows(scope: re.Match[str], dates: Collection[str]) -> bool:
    """True if the table has rows of a date in ``scope``."""
    first, last = scope[2] or scope[3], scope[2] or scope[4]
    return any(first <= dt <= last for dt in dates)


def _folder(info: ObjectInfo) -> str:
    return info.key.rpartition("/")[0]


def _written(parts: Iterable[ObjectInfo]) -> datetime:
    return max(info.modified for info in parts)


_NAME: Final = re.compile(r"[0-9]+_([0-9]+)_([0-9]+)_([0-9]+)_[0-9a-f]+\.parquet", re.ASCII)


class Replaced(NamedTuple):
    """The commit of a run that replaced files: its time, or a later one, and its ledger's number if that is known."""

    at: datetime
    ledger_n: int | None


def span_of(path: str) -> tuple[int, int, int] | None:
    """(Partition of any incarnation, first offset, last one) of a file's rows; None if its name does not tell."""
    if (name := _NAME.fullmatch(path.rpartition("/")[2])) is None:
        return None
    partition, first, last = map(int, name.groups())
    return partition, first, last


@dataclass(frozen=True, slots=True)
class ErasedRows:
    """The masked ``offsets`` of each partition, ascending, and when files with rows of them may go.

    ``offsets`` are of all incarnations and leader epochs, which a name does not tell apart. ``numbers`` has the number
    of the last mask of each place. A replaced file goes ``grace`` after its replacement, but not before each of the
    ``catalogs``, by name, has forgotten the snapshots that list it; a state of None is not known.
    """

    offsets: Mapping[int, Sequence[int]]
    numbers: Mapping[str, int]
    grace: timedelta
    catalogs: Mapping[str, MirrorState | None]

    def unknown_to(self, plan: RunPlan) -> bool:
        """True if ``plan`` does not know all masks."""
        return any(number > plan.masks.get(place, 0) for place, number in self.numbers.items())

    def may_be_in(self, path: str) -> bool:
        """True if the file ``path`` may hold rows of masked offsets, by its name."""
        if (span := span_of(path)) is None:
            return False
        partition, first, last = span
        masked = self.offsets.get(partition, ())
        return bisect_left(masked, first) < bisect_left(masked, last + 1)

    def listed_by(self, ledger_n: int | None) -> str:
        """The snapshots that may list a file replaced by the ledger ``ledger_n``, and what to do; empty without any."""
        for name, state in self.catalogs.items():
            if state is None or state.oldest_ledger is None or ledger_n is None:
                return f"snapshots of catalog {name} may list it: mirror.py must have listed the table there"
            held = [ref for ref, listed in sorted(state.refs.items()) if listed < ledger_n]
            if held:
                return f"{held[0]} of {state.identifier} in catalog {name} lists it: delete that there"
            if state.oldest_ledger < ledger_n:
                return f"snapshots of {state.identifier} in catalog {name} list it until mirror.py has expired them"
        return ""


def erased_rows(table: TopicTable, ledger: Ledger) -> ErasedRows | None:
    """The erased rows of ``table``; None if no mask counts. Raises FormatError and StoreError."""
    raw = RawTopic(table)
    numbers = raw.mask_numbers()
    if not numbers:
        return None
    offsets: dict[int, list[int]] = {}
    for (_, partition), masks in raw.masks_of(ledger, pending=False).items():
        offsets.setdefault(partition, []).extend(masked_offsets(table, masks))
    names = [catalog.name for catalog in table.deployment.catalogs_of(table.topic)]
    status = MirrorStatus.load_or_none(table.store, table.keys.deployment.mirrors) if names else None
    states = status.by_key if status is not None else {}
    return ErasedRows(
        {partition: sorted(masked) for partition, masked in offsets.items()},
        numbers,
        table.topic.retention.erased,
        {name: states.get(MirrorKey(table.topic.topic, name)) for name in names},
    )


def commits_of(table: TopicTable, plans: Iterable[RunPlan]) -> dict[int, Replaced]:
    """The commits of ``plans`` that have landed, by attempt, as far as their results tell. Raises StoreError."""
    known = in_parallel(lambda plan: _commit(table, plan), list(plans))
    return {attempt: replaced for attempt, replaced in known if replaced is not None}


def _commit(table: TopicTable, plan: RunPlan) -> tuple[int, Replaced | None]:
    key = table.keys.result(plan.attempt)
    try:
        result, written = RunResult.load(table.store, key), table.store.head(key).modified
    except NotFound:
        return plan.attempt, None
    if result.status != "landed":
        return plan.attempt, None
    # A result that was made again without its ledger has the number of the plan's.
    return plan.attempt, Replaced(written, result.ledger_n if result.ledger_n > plan.ledger_n else None)
