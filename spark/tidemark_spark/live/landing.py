"""A live landing: plans each topic, converts all together, and commits and reports each topic on its own.

An error of a topic becomes that topic's outcome, and never stops the others. Any process may carry out a landing again:
each topic's attempt was drawn before, so it lands once.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final, NamedTuple, TypeVar

from tidemark.concurrency import in_parallel
from tidemark.errors import SparkUnavailable, TidemarkError
from tidemark.formats.raw.watermark_index import IndexEntry
from tidemark.formats.table.live_landing import AheadPartition, LandingStatus, LiveLanding, TopicLanding
from tidemark.formats.table.plan import RunPlan, RunResult
from tidemark.planning import find_plan, plan_ingest, write_plan
from tidemark.planning.maintenance.fold import has_landed
from tidemark.planning.unread_status import record_unread, recording_failure
from tidemark.raw.heads import LiveEnd
from tidemark.raw_topic import RawTopic
from tidemark.retry import Backoff
from tidemark.table.delta_table import TopicTable, committed_ledger, open_topic_table
from tidemark.timestamps import utc_now
from tidemark.topics import LIVE_BYTES, Deployment
from tidemark_spark.live.shared_query import JobShare, convert_all
from tidemark_spark.model import CarriedOut, Executor, Job, Outcome
from tidemark_spark.run.driver import run
from tidemark_spark.run.followed_schema import followed

BACKOFF: Final = Backoff(30.0, 900.0)
"""A topic that has failed is left out for 30 s, then for twice as long after each failure, up to 15 minutes.

A topic with nothing to land is left out for 15 minutes, unless it moves. A topic that landed nothing because the store
did not return its packs is left out for 30 s.
"""

_MOST_DETAIL: Final = 1000
Found = TypeVar("Found")


class Prepared(NamedTuple):
    """A topic whose plan is stored.

    With ``landed``, its attempt has landed before and needs no conversion. With ``first``, the plan was made here, so
    no process has carried it out before.
    """

    topic: TopicLanding
    table: TopicTable
    plan: RunPlan
    landed: bool = False
    first: bool = False

    @property
    def work(self) -> JobShare:
        """The conversion that the topic needs."""
        return JobShare(Job.of(self.table, self.plan), () if self.landed else self.plan.tasks)


class ConvertedTopic(NamedTuple):
    """A topic, and the outcomes of its tasks or the error of its conversion."""

    prepared: Prepared
    outcomes: list[Outcome] | Exception


Note = Callable[[TopicTable, RunPlan, RunResult], None]
"""Called for each run, with its open table, its plan and its result."""


def land(deployment: Deployment, landing: LiveLanding, executor: Executor, note: Note | None = None) -> LiveLanding:
    """Land all topics of ``landing``, and return it with each topic's outcome.

    Raises:
        SparkUnavailable: there is no Spark; stored objects stay, and the landing may be carried out again.
    """

    def prepare(topic: TopicLanding) -> Prepared | TopicLanding:
        return _own(topic, lambda: _prepared(deployment, landing.cluster, topic, live_end))

    def commit(converted: ConvertedTopic) -> TopicLanding:
        return _own(converted.prepared.topic, lambda: _committed(converted, note))

    live_end = LiveEnd()
    began = in_parallel(prepare, landing.topics)
    prepared = [topic for topic in began if isinstance(topic, Prepared)]
    outcomes = convert_all(executor, [topic.work for topic in prepared])
    committed = in_parallel(commit, [ConvertedTopic(*pair) for pair in zip(prepared, outcomes, strict=True)])
    ended = [*committed, *(topic for topic in began if isinstance(topic, TopicLanding))]
    by_name = {topic.topic: topic for topic in ended}
    return landing.model_copy(update={"topics": tuple(by_name[topic.topic] for topic in landing.topics)})


def _prepared(deployment: Deployment, cluster: str, topic: TopicLanding, live_end: LiveEnd) -> Prepared | TopicLanding:
    """The topic with its plan stored, or its outcome if there is nothing to convert or too much."""
    table = open_topic_table(deployment, deployment.topic(topic.topic, cluster))
    if (known := find_plan(table, topic.attempt)) is not None:
        return Prepared(topic, table, known, has_landed(table, committed_ledger(table), known))
    with recording_failure(table):
        table = followed(table)
        raw = ScannedTopic(table, topic.partitions, live_end)
        # The topic's own runs close dates, from the agents' indexes.
        plan = plan_ingest(table, attempt=topic.attempt, limit_bytes=LIVE_BYTES, raw=raw, close_dates=False)
    if plan.empty:
        record_unread(table, plan.created_at, plan.unread)
        return _ended(topic, "empty", again=BACKOFF.longest if raw.unread.outage is None else BACKOFF.first)
    if sum(task.size for task in plan.tasks) > LIVE_BYTES:
        return _ended(topic, "backlog", again=table.topic.window.age.total_seconds())
    write_plan(table, plan)
    return Prepared(topic, table, plan, first=True)


def _committed(converted: ConvertedTopic, note: Note | None) -> TopicLanding:
    """Account for the converted rows, commit them and report the run."""
    outcomes = converted.outcomes
    table, plan = converted.prepared.table, converted.prepared.plan
    with recording_failure(table):
        if isinstance(outcomes, Exception):
            raise outcomes
    result = run(table, plan, CarriedOut(outcomes), first=converted.prepared.first)
    if note is not None:
        note(table, plan, result)
    return _ended(converted.prepared.topic, result.status)


def _own(topic: TopicLanding, step: Callable[[], Found]) -> Found | TopicLanding:
    """The result of ``step``, or the topic with its error; the traceback is printed to the job's log."""
    try:
        return step()
    except SparkUnavailable:
        raise
    except Exception as error:  # noqa: BLE001 - any error is this topic's, and the others have to land
        sys.stderr.write("".join([f"topic {topic.topic}:\n", *traceback.format_exception(error)]))
        detail = str(error) if isinstance(error, TidemarkError) else f"{type(error).__name__}: {error}"
        failures = topic.failures + 1
        failed = _ended(topic, "failed", again=BACKOFF.after(failures))
        return failed.model_copy(update={"failures": failures, "detail": detail[:_MOST_DETAIL]})


def _ended(topic: TopicLanding, status: LandingStatus, again: float | None = None) -> TopicLanding:
    """``topic`` with its outcome; it is left out for ``again`` seconds."""
    again_at: datetime | None = None if again is None else utc_now() + timedelta(seconds=again)
    return topic.model_copy(update={"status": status, "failures": 0, "detail": "", "again_at": again_at})


class ScannedTopic(RawTopic):
    """A topic that takes from the scan how far ``partitions`` are ahead, and considers no other partition.

    The scan does not know log ends, so no date may close from its entries.
    """

    def __init__(self, table: TopicTable, partitions: Iterable[AheadPartition], live_end: LiveEnd) -> None:
        super().__init__(table, live_end, outages=True)
        self._topic_name = table.topic.topic
        self._ahead = tuple(partitions)

    @cached_property
    def entries(self) -> Mapping[tuple[int, int], IndexEntry]:
        """Entries of the partitions that were ahead, if the topic knows their incarnations."""
        topic_ids = [incarnation.topic_id for incarnation in self.incarnations]
        return {
            (part.incarnation, part.partition): _entry(self._topic_name, part)
            for part in self._ahead
            if part.incarnation < len(topic_ids) and topic_ids[part.incarnation] == part.topic_id
        }


def _entry(topic: str, part: AheadPartition) -> IndexEntry:
    return IndexEntry(
        topic=topic,
        partition=part.partition,
        topic_id=part.topic_id,
        incarnation=part.incarnation,
        restored=part.restored,
        leader_epoch=part.leader_epoch,
        next_offset=part.end,
        uploaded_end=part.end,
        tail_end=part.end,
        log_end_offset=part.end,
        high_watermark=part.end,
        observed_at=utc_now(),
    )
