"""The task that waits for a topic's watermarks without holding a worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from tidemark_airflow import settings
from tidemark_airflow.pending import Baseline, Event
from tidemark_airflow.scan import Source
from tidemark_airflow.trigger import WatermarkTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class WatermarkSensor(BaseSensorOperator):
    """Waits until there may be something to land, to close, to publish, or to tell a person. Returns the dumped event.

    It reads ledger and outbox pointer, then defers; it never waits on a worker and never times out, for a topic may
    be quiet for as long as it likes.

    :param cluster: the Kafka cluster's name in the topics file
    :param topic: the topic's name
    """

    template_fields: Sequence[str] = ("cluster", "topic")

    def __init__(self, *, cluster: str, topic: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cluster = cluster
        self.topic = topic

    def execute(self, context: Context) -> dict[str, Any]:
        """Return at once if a commit is unpublished, a gap of the ledger untold, or a date can close; else defer."""
        from tidemark.planning import dates_to_close
        from tidemark.table import committed_ledger
        from tidemark_airflow.continuity import open_gaps
        from tidemark_airflow.outbox import read_published

        lake = settings.lake_of(self.cluster, self.topic)
        ledger = committed_ledger(lake)
        published = read_published(lake).value
        untold = open_gaps(ledger, ()).keys() - published.alerted.keys()
        if published.n < ledger.n or untold:
            self.log.info("ledger %d, published %d, gaps untold %d: no wait", ledger.n, published.n, len(untold))
            return Event(status="advanced").model_dump(mode="json")
        if closing := dates_to_close(lake, ledger):
            self.log.info("ledger %d: to close: %s: no wait", ledger.n, ", ".join(closing))
            return Event(status="advanced").model_dump(mode="json")
        trigger = WatermarkTrigger(
            source=Source.of(lake.deployment, lake.topic, settings.scan_seconds()).model_dump(mode="json"),
            baseline=Baseline.of(lake.topic, ledger, published).model_dump(mode="json"),
        )
        self.log.info("%s: waiting for watermarks beyond ledger %d", self.topic, ledger.n)
        raise TaskDeferred(trigger=trigger, method_name="resume")

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """What the trigger found; waits on if that is nothing.

        Raises:
            AirflowFailException: the store could not be read for longer than the topic's freshness allows. That was
                trying long enough: the run turns red, and the next one waits as long before it does.
        """
        found = Event.model_validate(event)
        if found.status == "refresh":
            return self.execute(context)
        if found.status == "failed":
            raise AirflowFailException(f"{self.topic}: the watermark indexes cannot be read: {found.reason}")
        self.log.info("%s: %d partitions ahead, %d gaps to tell of", self.topic, found.partitions, len(found.gaps))
        return event
