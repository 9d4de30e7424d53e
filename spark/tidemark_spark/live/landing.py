"""A live landing: each topic is planned, all are converted together, and each is committed and reported by itself.

What goes wrong with a topic is that topic's outcome, and never stops the others. A landing may be carried out again, by
any process: each topic's attempt was drawn before, so it lands once.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypeVar

from tidemark.concurrency import in_parallel
from tidemark.errors import SparkUnavailable, TidemarkError
from tidemark.formats.live_landing import LandingStatus, LiveLanding, TopicLanding
from tidemark.formats.plan import RunPlan, RunResult
from tidemark.planning import find_plan, plan_ingest, write_plan
from tidemark.planning.fold import has_landed
from tidemark.planning.unread_status import record_unread
from tidemark.raw.heads import LiveEnd
from tidemark.table.delta_table import TopicTable, committed_ledger, open_topic_table
from tidemark.timestamps import utc_now
from tidemark.topics import LIVE_BYTES, Deployment
from tidemark_spark.cluster.executor import Executor
from tidemark_spark.live.scanned import ScannedTopic
from tidemark_spark.live.shared_query import Work, convert_all
from tidemark_spark.model import Job, Outcome
from tidemark_spark.run.driver import run
from tidemark_spark.run.followed_schema import followed

FIRST_PAUSE: Final = timedelta(seconds=30)
LONGEST_PAUSE: Final = timedelta(minutes=15)
"""A topic that has failed is left out for 30 s, then for twice as long after each failure, up to 15 minutes.

So long is one left out that has nothing to land, unless it moves; and for 30 s one that could land nothing because the
store did not give its packs.
"""

_MOST_DETAIL: Final = 1000
Found = TypeVar("Found")


class Prepared(NamedTuple):
    """A topic whose plan is stored. ``landed``: its attempt has landed before, and needs no conversion.

    ``first``: the plan was made here, so nobody has carried it out before.
    """

    topic: TopicLanding
    table: TopicTable
    plan: RunPlan
    landed: bool = False
    first: bool = False

    @property
    def work(self) -> Work:
        """What is to be converted."""
        return Work(Job.of(self.table, self.plan), () if self.landed else self.plan.tasks)


class Converted(NamedTuple):
    """A topic, and the outcomes of its tasks or why there are none."""

    prepared: Prepared
    outcomes: list[Outcome] | Exception


Note = Callable[[TopicTable, RunPlan, RunResult], None]
"""Hears of each run: its table, which is open, its plan, and what it did."""


def land(deployment: Deployment, landing: LiveLanding, executor: Executor, note: Note | None = None) -> LiveLanding:
    """Land all topics of ``landing``; returns it with what became of each.

    Raises:
        SparkUnavailable: there is no Spark; what is stored stays, and the landing may be carried out again.
    """

    def prepare(topic: TopicLanding) -> Prepared | TopicLanding:
        return _own(topic, lambda: _prepared(deployment, landing.cluster, topic, live_end))

    def commit(one: Converted) -> TopicLanding:
        return _own(one.prepared.topic, lambda: _committed(one, note))

    live_end = LiveEnd()
    began = in_parallel(prepare, landing.topics)
    prepared = [one for one in began if isinstance(one, Prepared)]
    made = convert_all(executor, [one.work for one in prepared])
    ended = in_parallel(commit, [Converted(*pair) for pair in zip(prepared, made, strict=True)])
    done = {one.topic: one for one in (*ended, *(one for one in began if isinstance(one, TopicLanding)))}
    return landing.model_copy(update={"topics": tuple(done[one.topic] for one in landing.topics)})


def _prepared(deployment: Deployment, cluster: str, topic: TopicLanding, live_end: LiveEnd) -> Prepared | TopicLanding:
    """The topic's plan, stored; the topic's outcome if there is nothing to convert or too much."""
    table = open_topic_table(deployment, deployment.topic(topic.topic, cluster))
    if (known := find_plan(table, topic.attempt)) is not None:
        return Prepared(topic, table, known, has_landed(table, committed_ledger(table), known))
    table = followed(table)
    raw = ScannedTopic(table, topic.partitions, live_end)
    # The topic's own runs find which dates close, from the agents' indexes.
    plan = plan_ingest(table, attempt=topic.attempt, limit_bytes=LIVE_BYTES, raw=raw, close_dates=False)
    if plan.empty:
        record_unread(table, plan.created_at, plan.unread)
        return _ended(topic, "empty", again=LONGEST_PAUSE if raw.unread.outage is None else FIRST_PAUSE)
    if sum(task.size for task in plan.tasks) > LIVE_BYTES:
        return _ended(topic, "backlog", again=table.topic.window.age)
    write_plan(table, plan)
    return Prepared(topic, table, plan, first=True)


def _committed(one: Converted, note: Note | None) -> TopicLanding:
    """Account for what was converted, commit and report it."""
    outcomes = one.outcomes
    if isinstance(outcomes, Exception):
        raise outcomes
    table, plan = one.prepared.table, one.prepared.plan
    result = run(table, plan, lambda _job, _tasks: outcomes, first=one.prepared.first)
    if note is not None:
        note(table, plan, result)
    return _ended(one.prepared.topic, result.status)


def _own(topic: TopicLanding, step: Callable[[], Found]) -> Found | TopicLanding:
    """What ``step`` returns, or the topic with what it raised; its traceback goes to the job's log."""
    try:
        return step()
    except SparkUnavailable:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this topic's, and others have to land
        sys.stderr.write("".join([f"topic {topic.topic}:\n", *traceback.format_exception(error)]))
        detail = str(error) if isinstance(error, TidemarkError) else f"{type(error).__name__}: {error}"
        failures = topic.failures + 1
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 16))
        failed = _ended(topic, "failed", again=pause)
        return failed.model_copy(update={"failures": failures, "detail": detail[:_MOST_DETAIL]})


def _ended(topic: TopicLanding, status: LandingStatus, again: timedelta | None = None) -> TopicLanding:
    again_at: datetime | None = None if again is None else utc_now() + again
    return topic.model_copy(update={"status": status, "failures": 0, "detail": "", "again_at": again_at})
