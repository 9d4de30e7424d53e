"""A rebuild by date: parts with a plan and a commit each, one after the other. See docs/architecture.md.

The object of the request has the parts that are left, with their attempts, so that a job which finds it goes on. A part
is taken out once it has landed; if the job is killed before that, the next one finds its attempt landed.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from tidemark.errors import ConfigError, NotFound, PreconditionFailed, PublishError, UnknownOutcome
from tidemark.formats.base import Version, canonical
from tidemark.formats.table.ledger import new_attempt
from tidemark.formats.table.plan import RUN_LIMIT, RunPlan, RunResult
from tidemark.formats.table.steps import DatesTogether, DatewiseRebuild
from tidemark.planning import find_plan, landed_parts, plan_rebuild, read_plan, write_plan
from tidemark.planning.common import code_digest
from tidemark.store import put_once, put_over
from tidemark.table.delta_table import TopicTable
from tidemark_spark.model import Executor
from tidemark_spark.rebuild.affected_dates import affected_by

TRIES: Final = 3
"""Plans of a part that others overtake in a row, after which a job gives up. It may be started again."""

CarryOut = Callable[[TopicTable, RunPlan], RunResult]
"""Carries out a stored plan, or an empty one."""


def rebuild_by_date(
    table: TopicTable, dates: Sequence[str], executor: Executor, carry_out: CarryOut, *, extend: bool
) -> Iterator[RunResult]:
    """Make ``dates`` again, those together that exchange rows; yields the result of each part of this job.

    With ``extend``, so are the dates that exchange rows with them.

    Raises:
        ConfigError: rows would move to other dates, and ``extend`` is not given.
        ContinuityError: raw no longer holds all the offsets; the parts before stay.
        PublishError: other runs replaced files of a part again and again; the parts before stay.
    """
    if not dates:
        return
    key = table.keys.datewise_rebuild(_digest(table, dates, extend=extend))
    stale = 0
    found = _begun(table, key, lambda: _parts(table, dates, executor, extend=extend))
    while found is not None:
        part = found.value.left[0]
        result = carry_out(table, _planned(table, part))
        if result.status != "stale":
            yield result
            stale, after = 0, found.value.without_first()
        elif (stale := stale + 1) >= TRIES:
            named = ", ".join(dt or "none" for dt in part.dates)
            raise PublishError(f"{table.url}: other runs replaced files of {named} {TRIES} times; run it again")
        else:
            again = part.model_copy(update={"attempt": new_attempt()})
            after = found.value.model_copy(update={"left": (again, *found.value.left[1:])})
        found = _replaced(table, key, found, after)


def carry_out_by_date(table: TopicTable, plan: RunPlan, executor: Executor, carry_out: CarryOut) -> RunResult:
    """The result of ``plan``, a stored rebuild of dates, once each part of it has landed: the sum of theirs.

    It is stored under the plan's attempt, and a plan that has one is not carried out again.

    Raises:
        ConfigError: the plan is not one of dates.
        PublishError: settings or code have changed since the plan; the parts before stay. So do they after the other
            errors of :func:`rebuild_by_date`.
    """
    if plan.kind != "rebuild" or plan.whole:
        raise ConfigError("run_plan.py", [("--exchange", "by-date is for a plan that makes dates again")])
    key = table.keys.result(plan.attempt)
    if (known := RunResult.load_or_none(table.store, key)) is not None:
        return known
    if (plan.configuration, plan.code) != (table.topic.digest, code_digest()):
        raise PublishError(f"{table.url}: the topic's settings or the code have changed since the plan; plan again")
    for _ in rebuild_by_date(table, plan.dates, executor, carry_out, extend=False):
        pass
    stored = (
        RunResult.load_or_none(table.store, table.keys.result(part.attempt)) for part in landed_parts(table, plan)
    )
    result = _sum(plan, [part for part in stored if part is not None])
    put_over(table.store, key, result.to_bytes())
    return result


def _sum(plan: RunPlan, parts: Sequence[RunResult]) -> RunResult:
    seconds = Counter[str]()
    for part in parts:
        seconds.update(part.seconds)
    counted = ("rows", "files", "bytes_read", "quarantined", "erased", "truncated")
    return RunResult(
        attempt=plan.attempt,
        status="landed" if parts else "empty",
        cluster=plan.cluster,
        topic=plan.topic,
        table=plan.table,
        ledger_n=max((part.ledger_n for part in parts), default=plan.ledger_n),
        dates=tuple(sorted({dt for part in parts for dt in part.dates})),
        seconds=dict(seconds),
        **{name: sum(getattr(part, name) for part in parts) for name in counted},
    )


def _digest(table: TopicTable, dates: Sequence[str], *, extend: bool) -> str:
    asked = {
        "dates": sorted(dates),
        "extend": extend,
        "configuration": table.topic.digest,
        "code": code_digest(),
    }
    return hashlib.sha256(canonical(asked)).hexdigest()[:16]


def _parts(table: TopicTable, dates: Sequence[str], executor: Executor, *, extend: bool) -> DatewiseRebuild:
    affected = affected_by(table, dates, executor, extend=extend)
    together = affected.together if affected else tuple((dt,) for dt in dates)
    return DatewiseRebuild(left=tuple(DatesTogether(attempt=new_attempt(), dates=part) for part in together))


def _begun(table: TopicTable, key: str, parts: Callable[[], DatewiseRebuild]) -> Version[DatewiseRebuild] | None:
    """The parts that an earlier job has left, or all if there was none within the time of a run."""
    found = DatewiseRebuild.load_version_or_none(table.store, key)
    if found is None:
        made = parts()
        try:
            return Version(made, put_once(table.store, key, made.to_bytes()))
        except PreconditionFailed:  # another job of the same request was faster
            return DatewiseRebuild.load_version_or_none(table.store, key)
    return _replaced(table, key, found, parts()) if _is_old(table, key, found.value) else found


def _is_old(table: TopicTable, key: str, rebuild: DatewiseRebuild) -> bool:
    """True if no job can go on with the first part that is left."""
    try:
        at = table.store.head(key).modified
    except NotFound:
        return True
    plan = find_plan(table, rebuild.left[0].attempt)
    return table.store.now() - max([at, *([plan.created_at] if plan else [])]) > RUN_LIMIT


def _planned(table: TopicTable, part: DatesTogether) -> RunPlan:
    """The plan of ``part``, which an earlier job may have made."""
    if (plan := find_plan(table, part.attempt)) is not None:
        return plan
    plan = plan_rebuild(table, part.dates, attempt=part.attempt)
    if not plan.empty:
        try:
            write_plan(table, plan)
        except PreconditionFailed:  # another job of the same request was faster
            return read_plan(table, table.keys.attempt(part.attempt))
    return plan


def _replaced(
    table: TopicTable, key: str, found: Version[DatewiseRebuild], after: DatewiseRebuild
) -> Version[DatewiseRebuild] | None:
    """The object once it is ``after``, or what another job has made of it; None if no part is left."""
    try:
        if after.left:
            return Version(after, table.store.put(key, after.to_bytes(), if_match=found.etag))
        table.store.delete(key, if_match=found.etag)
    except (NotFound, PreconditionFailed, UnknownOutcome):
        return DatewiseRebuild.load_version_or_none(table.store, key)
    return None
