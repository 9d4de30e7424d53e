"""Collects the inputs and outputs of a job. Lineage never fails a job: its errors are printed to standard error."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

from tidemark.errors import ConfigError, TidemarkError
from tidemark.jobs.options import EVENTS, OFF, TopicsOptions
from tidemark.openlineage import hand_over
from tidemark.openlineage.facets import LineagePart, joined
from tidemark.openlineage.hand_over import datasets_of_job
from tidemark.topics import Deployment, TopicSettings, load_topics
from tidemark_spark.openlineage import events


class Recorder:
    """Lineage of one job. Without a receiver, nothing is built and no module of OpenLineage is loaded."""

    def __init__(self, options: TopicsOptions) -> None:
        """A recorder of the job with these options."""
        self._job, self._options = options.name, options
        self._parts: list[LineagePart] = []
        self._place = None if options.lineage in {EVENTS, OFF} else options.lineage
        self._events: events.JobEvents | None = None
        if options.lineage == EVENTS and events.configured() and not options.only_shows:
            self._guarded(self._connect)

    def begin(self) -> None:
        """Report that the job begins, and with which datasets."""
        if self._events is not None:
            self._guarded(self._start)

    def note(self, build: Callable[[], LineagePart]) -> None:
        """Keep the lineage of a part of the job's work; ``build`` is not called if there is no receiver."""
        if self._place is not None or self._events is not None:
            self._guarded(lambda: self._parts.append(build()))

    def end(self, error: BaseException | None) -> None:
        """Report that the job has ended, with ``error`` if there is one."""
        if self._place is not None and (self._parts or error is None):
            self._guarded(self._hand_over)
        if self._events is not None:
            self._guarded(lambda: self._stop(error))

    def _connect(self) -> None:
        options = self._options
        name = events.job_name(self._job, options.cluster, options.named)
        attempt = getattr(options, "attempt", None) or _attempt_in(getattr(options, "plan", None))
        try:
            self._events = events.JobEvents(name, None if attempt is None else str(attempt))
        except ImportError as error:
            sys.stderr.write(
                f"lineage: OPENLINEAGE_… is set, but {error.name} is not installed, so no event is sent: install "
                "requirements/lineage.txt beside Spark, or say --lineage off\n"
            )

    def _start(self) -> None:
        assert self._events is not None
        deployment = load_topics(self._options.topics)
        self._events.start(datasets_of_job(self._job, deployment, self._topics(deployment)))

    def _stop(self, error: BaseException | None) -> None:
        assert self._events is not None
        lineage = joined(self._parts)
        if error is not None and not self._parts:
            deployment = load_topics(self._options.topics)
            lineage = datasets_of_job(self._job, deployment, self._topics(deployment))
        self._events.end(lineage, error)

    def _hand_over(self) -> None:
        assert self._place is not None
        deployment = load_topics(self._options.topics)
        clusters = sorted({topic.cluster for topic in self._topics(deployment)})
        if len(clusters) != 1:
            rule = f"must be the cluster of the task that waits for lineage; the topics are of {', '.join(clusters)}"
            raise ConfigError(f"{self._job}.py", [("--cluster", rule)])
        hand_over.put(deployment, clusters[0], self._place, joined(self._parts))

    def _topics(self, deployment: Deployment) -> list[TopicSettings]:
        """The topics of the command line, or all topics of its cluster."""
        named, cluster = self._options.named, self._options.cluster
        return [deployment.topic(name, cluster) for name in named] if named else deployment.topics_of(cluster)

    def _guarded(self, step: Callable[[], Any]) -> None:
        try:
            step()
        except TidemarkError as error:
            sys.stderr.write(f"lineage: not reported: {error}\n")
        except Exception as error:  # noqa: BLE001 - any error of a client or a store; the job's work is done
            sys.stderr.write("".join(["lineage: not reported:\n", *traceback.format_exception(error)]))


def _attempt_in(plan: str | None) -> str | None:
    """The attempt in a plan's key."""
    return plan.rpartition("/")[2].removesuffix(".json") if plan else None
