"""The task that waits for a topic's watermarks without holding a worker, and plans when there is something to land.

After failed runs it waits longer each time. Airflow's own ``max_consecutive_failed_dag_runs`` would pause the DAG until
a person unpauses it; this one continues by itself when the cause is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from tidemark.backoff import Backoff
from tidemark.timestamps import utc_now
from tidemark_airflow import settings
from tidemark_airflow.assets import events
from tidemark_airflow.configuration import number
from tidemark_airflow.links.operator_links import ContinuityLink, PlanLink, TableLink
from tidemark_airflow.planned import Planned, write_planned
from tidemark_airflow.triggers.index_scanner import Source
from tidemark_airflow.triggers.readiness import Baseline, Event
from tidemark_airflow.triggers.watermark import WatermarkTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidemark.formats.table.ledger import Ledger
    from tidemark.table.delta_table import TopicTable

BACKOFF = Backoff(30.0, 900.0)
_MOST_RUNS = 6
"""Failed runs in a row after which the wait is the longest: 30 s doubled five times is more than 15 minutes."""


class WatermarkSensor(BaseSensorOperator):
    """Waits until there is something to land, to close or to publish, and returns the plan.

    It reads ledger, outbox and Airflow's record of events, then defers; it holds a worker only while it plans, and
    never times out, as a topic may be quiet for any time. If planning finds nothing to land, it records that and waits
    on, so that no run starts without work.

    :param cluster: the Kafka cluster's name in the topics file
    :param topic: the topic's name
    """

    template_fields: Sequence[str] = ("cluster", "topic")
    operator_extra_links = (ContinuityLink(), TableLink(), PlanLink())

    def __init__(self, *, cluster: str, topic: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cluster = cluster
        self.topic = topic
        self.planned: Planned | None = None

    def execute(self, context: Context) -> Planned:
        """Wait first if earlier runs have failed, see :func:`delay`; then :meth:`look`."""
        until = wait_until(context)
        if until > utc_now():
            self.log.warning("the runs before this one have failed: waiting until %s", until)
            raise TaskDeferred(trigger=DateTimeTrigger(until), method_name="look")
        return self.look(context)

    def look(self, context: Context, event: object = None) -> Planned:
        """Plan at once if a commit is unpublished or a date can close; else defer until watermarks are ahead."""
        return self._look(settings.topic_table(self.cluster, self.topic))

    def _look(self, table: TopicTable) -> Planned:
        from tidemark.planning import dates_to_close
        from tidemark.table.delta_table import committed_ledger

        ledger = committed_ledger(table)
        news = events.news_of(table, ledger)
        closing = dates_to_close(table, ledger)
        if news is not None or closing:
            self.log.info(
                "ledger %d, %s, to close: %s: no wait",
                *(ledger.n, "published" if news is None else "not published yet", ", ".join(closing) or "none"),
            )
            planned = self._plan(table)
            if news is not None or not planned["empty"]:
                return planned
        raise self._deferred(table, ledger)

    def resume(self, context: Context, event: dict[str, Any]) -> Planned:
        """Plan after the trigger's event; if there is nothing to land, record that as settled and wait on.

        Raises:
            AirflowFailException: the store could not be read for longer than the topic's freshness allows. The run
                fails without a retry, and the next run waits as long again.
        """
        from tidemark_airflow.assets.outbox import mark_planned

        fired = Event.model_validate(event)
        if fired.status == "failed":
            raise AirflowFailException(f"{self.topic}: the watermark indexes cannot be read: {fired.reason}")
        table = settings.topic_table(self.cluster, self.topic)
        if fired.status == "advanced":
            self.log.info("%d partitions ahead, about %d bytes", fired.partitions, fired.bytes)
            planned = self._plan(table)
            if not planned["empty"]:
                return planned
            mark_planned(table, fired.settles)
        return self._look(table)

    def _plan(self, table: TopicTable) -> Planned:
        """Plan from the ledger's offsets to the watermarks, as far as nothing holds a partition back."""
        from tidemark.formats.table.ledger import new_attempt
        from tidemark.planning import plan_ingest
        from tidemark.planning.unread_status import record_unread, recording_failure

        with recording_failure(table):
            made = plan_ingest(table, attempt=new_attempt())
        if made.empty:  # otherwise its run records it
            record_unread(table, made.created_at, made.unread)
        planned = self.planned = write_planned(table, made)
        self.log.info(
            "after ledger %d: %d partitions, %d tasks, %d bytes, to close: %s",
            *(made.ledger_n, len(made.partitions), planned["tasks"], planned["bytes"]),
            ", ".join(made.closes) or "none",
        )
        return planned

    def _deferred(self, table: TopicTable, ledger: Ledger) -> TaskDeferred:
        from tidemark_airflow.assets.outbox import read_published

        baseline = Baseline.of(table.topic, ledger, read_published(table).value, utc_now())
        source = Source.of(table.deployment, self.cluster, number("scan_seconds"))
        trigger = WatermarkTrigger(source=source.model_dump(mode="json"), baseline=baseline.model_dump(mode="json"))
        self.log.info("%s: waiting for watermarks beyond ledger %d", self.topic, ledger.n)
        return TaskDeferred(trigger=trigger, method_name="resume")


def delay(failures: int) -> timedelta:
    """The wait after this number of failed runs in a row: none, 30 s, 1 min, 2 min ... 15 min."""
    return timedelta(seconds=BACKOFF.after(failures) if failures else 0)


def failed_in_a_row(context: Context) -> int:
    """Number of failed runs of this DAG directly before this run; at most six are counted."""
    ti = context["ti"]
    logical_date = context["dag_run"].logical_date
    failures = 0
    while failures < _MOST_RUNS and logical_date is not None:
        before = ti.get_previous_ti(logical_date=logical_date)
        if before is None or ti.get_dagrun_state(ti.dag_id, before.run_id) != "failed":
            break
        failures += 1
        logical_date = before.logical_date
    return failures


def wait_until(context: Context) -> datetime:
    """Time at which this run may begin, counted from its own start, so that a retry does not wait again."""
    run = context["dag_run"]
    began = run.start_date or run.run_after
    return began + delay(failed_in_a_row(context))
