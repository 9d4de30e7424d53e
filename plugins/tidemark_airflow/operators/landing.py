"""The task that lands all topics of a cluster that have a ``freshness``: deferred at once, then one job for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred
from airflow.triggers.base import StartTriggerArgs

from tidemark.errors import TidemarkError
from tidemark.formats.live_landing import StoredLanding, TopicLanding, read_landing, write_landing
from tidemark.store import Store, open_store
from tidemark.timestamps import utc_now
from tidemark_airflow import settings
from tidemark_airflow.assets import events
from tidemark_airflow.links.operator_links import SparkLink
from tidemark_airflow.operators.spark_job import ClusterJobOperator
from tidemark_airflow.triggers.landing import LandingTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class LandLiveOperator(ClusterJobOperator):
    """Waits until a topic is due, has Spark land all that have something, and sends the asset events of each.

    The scheduler hands it to the triggerer at once, so a landing takes one start of a worker. A retry waits in the
    triggerer as well, which finds that the landing has not ended, and carries it out again.

    :param trigger: what it waits by
    """

    operator_extra_links = (SparkLink(),)

    def __init__(self, *, trigger: LandingTrigger, **kwargs: Any) -> None:
        super().__init__(job="land_live.py", **kwargs)
        path, arguments = trigger.serialize()
        self.start_from_trigger = True
        self.start_trigger_args = StartTriggerArgs(trigger_cls=path, trigger_kwargs=arguments, next_method="land")

    def execute(self, context: Context) -> None:
        """Wait as well, where no scheduler has handed the task to the triggerer."""
        arguments = self.start_trigger_args
        assert arguments is not None
        raise TaskDeferred(trigger=LandingTrigger(**(arguments.trigger_kwargs or {})), method_name="land")

    def land(self, context: Context, event: dict[str, Any]) -> None:
        """Run the job; then publish what each topic has committed, and end the landing.

        Raises:
            AirflowException: there is no connection, or it names no host, or the job failed.
            AirflowSkipException: there is no landing any more.
        """
        self.log.info("due: %s", ", ".join(event["topics"]))
        self.submit(context)
        landing = _read(self.cluster)
        outlets = [asset for one in landing.topics for asset in self._published(context, one)]
        events.set_outlets(context, outlets)
        if not landing.topics:
            raise AirflowSkipException("the landing was ended by another process")
        landing.end()

    def _published(self, context: Context, one: TopicLanding) -> Sequence[Asset]:
        """What of one topic Airflow is to send; an error is the topic's own, whose own runs will publish it."""
        if one.status not in {"landed", "stale"}:
            self.log.info("%s: %s%s", one.topic, one.status, f": {one.detail}" if one.detail else "")
            return ()
        try:
            table = settings.topic_table(self.cluster, one.topic)
            events.log_result(table, one.attempt)
            return events.announced(context, table) or ()
        except (TidemarkError, OSError):
            self.log.exception("%s: not published; a run of its own DAG will do so", one.topic)
            return ()


class _Landing(NamedTuple):
    """A cluster's landing as it is stored: in the lake's store, under a key."""

    store: Store
    key: str
    stored: StoredLanding

    @property
    def topics(self) -> Sequence[TopicLanding]:
        """Its topics, with what became of each; none if there is no landing, or it has ended."""
        landing = self.stored.value
        return landing.topics if landing is not None and landing.ended_at is None else ()

    def end(self) -> None:
        """Say that it has ended, so that it is not carried out again. Raises PreconditionFailed if it was replaced."""
        if self.stored.value is not None:
            ended = self.stored.value.model_copy(update={"ended_at": utc_now()})
            write_landing(self.store, self.key, ended, self.stored.etag)


def _read(cluster: str) -> _Landing:
    deployment = settings.deployment()
    store, key = open_store(deployment.lake_store, deployment.store), deployment.deployment_keys(cluster).landing
    return _Landing(store, key, read_landing(store, key))
