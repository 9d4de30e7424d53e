"""The task that lands all topics of a cluster that have a ``freshness``: deferred at once, then one job for all."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred
from airflow.triggers.base import StartTriggerArgs

from tidemark.concurrency import in_parallel
from tidemark.errors import NotFound, TidemarkError
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.live_landing import StoredLanding, TopicLanding, read_landing, write_landing
from tidemark.formats.table.plan import RunResult
from tidemark.store import Store, open_store
from tidemark.timestamps import utc_now
from tidemark.topics import Deployment
from tidemark_airflow import settings
from tidemark_airflow.assets import events
from tidemark_airflow.assets.outbox import read_published
from tidemark_airflow.links.operator_links import SparkLink
from tidemark_airflow.operators.spark_job import JobOperator
from tidemark_airflow.triggers.landing import LandingTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidemark.table.delta_table import TopicTable


class LandLiveOperator(JobOperator):
    """Waits until a topic is due, has Spark land all topics with new records, and sends each topic's asset events.

    The scheduler passes the task to the triggerer at once, so a landing takes one start of a worker. A retry also waits
    in the triggerer, which finds that the landing has not ended, and returns it again.

    :param trigger: the trigger of the wait
    """

    operator_extra_links = (SparkLink(),)

    def __init__(self, *, trigger: LandingTrigger, **kwargs: Any) -> None:
        super().__init__(job="land_live", **kwargs)
        path, arguments = trigger.serialize()
        self.start_from_trigger = True
        self.start_trigger_args = StartTriggerArgs(trigger_cls=path, trigger_kwargs=arguments, next_method="land")

    def execute(self, context: Context) -> None:
        """Defer the task if no scheduler has passed it to the triggerer."""
        arguments = self.start_trigger_args
        assert arguments is not None
        raise TaskDeferred(trigger=LandingTrigger(**(arguments.trigger_kwargs or {})), method_name="land")

    def land(self, context: Context, event: dict[str, Any]) -> None:
        """Run the job; then publish the commits of each topic, and end the landing. Raises as :meth:`after_job`."""
        self.log.info("due: %s", ", ".join(event["topics"]))
        self.submit(context)
        self.after_job(context)

    def after_job(self, context: Context) -> None:
        """Publish the commits of each topic, and end the landing.

        Raises:
            AirflowSkipException: there is no landing any more.
        """
        landing = _read(self.cluster)
        # One thread reads Airflow's own record, many read the lake.
        commits = in_parallel(lambda topic: self._committed(landing.deployment, topic), landing.topics)
        outlets = [asset for commit in commits if commit is not None for asset in self._published(context, commit)]
        events.set_outlets(context, outlets)
        if not landing.topics:
            raise AirflowSkipException("the landing was ended by another process")
        landing.end()

    def _committed(self, deployment: Deployment, topic: TopicLanding) -> _Committed | None:
        """The commit of one topic; None if there is none, or if it cannot be read."""
        if topic.status not in {"landed", "stale"}:
            self.log.info("%s: %s%s", topic.topic, topic.status, f": {topic.detail}" if topic.detail else "")
            return None
        from tidemark.table.delta_table import open_topic_table

        try:
            table = open_topic_table(deployment, deployment.topic(topic.topic, self.cluster))
            result = events.result_of(table, topic.attempt)
            return _Committed(table, result, _ledger(table, result))
        except (TidemarkError, OSError):
            self.log.exception(_NOT_PUBLISHED, topic.topic)
            return None

    def _published(self, context: Context, commit: _Committed) -> Sequence[Asset]:
        """The assets of one topic for Airflow's events; on an error, the topic's own runs will publish them."""
        try:
            events.log_result(commit.result)
            if read_published(commit.table).value.n > commit.ledger.n:
                return ()  # published by a later commit of the topic's own run
            return events.announced(context, commit.table, commit.ledger) or ()
        except (TidemarkError, OSError):
            self.log.exception(_NOT_PUBLISHED, commit.table.topic.topic)
            return ()


def _ledger(table: TopicTable, result: RunResult) -> Ledger:
    """The ledger that the landing has committed, or the table's newest if there is none or it was removed."""
    from tidemark.table.delta_table import committed_ledger

    if result.status == "landed":
        with suppress(NotFound):
            return Ledger.load(table.store, table.keys.ledger(result.ledger_n, result.attempt))
    return committed_ledger(table)


_NOT_PUBLISHED: Final = "%s: not published; a run of its own DAG will do so"


class _Committed(NamedTuple):
    """A topic's table, the landing's result for it, and its newest ledger."""

    table: TopicTable
    result: RunResult
    ledger: Ledger


class _Landing(NamedTuple):
    """A cluster's stored landing: in the lake's store, under a key."""

    deployment: Deployment
    store: Store
    key: str
    stored: StoredLanding

    @property
    def topics(self) -> Sequence[TopicLanding]:
        """Its topics with their outcomes; empty if there is no landing, or it has ended."""
        landing = self.stored.value
        return landing.topics if landing is not None and landing.ended_at is None else ()

    def end(self) -> None:
        """Mark it as ended, so that it is not carried out again. Raises PreconditionFailed if it was replaced."""
        if self.stored.value is not None:
            ended = self.stored.value.model_copy(update={"ended_at": utc_now()})
            write_landing(self.store, self.key, ended, self.stored.etag)


def _read(cluster: str) -> _Landing:
    deployment = settings.deployment()
    store, key = open_store(deployment.lake_store, deployment.store), deployment.deployment_keys(cluster).landing
    return _Landing(deployment, store, key, read_landing(store, key))
