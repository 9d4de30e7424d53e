"""Runs a job: from its command line to its exit code, with Spark on demand and a recorder of lineage."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import import_module
from types import TracebackType
from typing import Self

from tidemark.errors import ConfigError, SparkUnavailable, TidemarkError
from tidemark.inspection.agent_reports import check_begun
from tidemark.jobs.options import JobOptions, OneTopicOptions, SparkOptions, TopicsOptions
from tidemark.jobs.registry import JOBS
from tidemark.table.delta_table import TopicTable, committed_ledger, open_topic_table
from tidemark.topics import Deployment, TopicSettings, load_topics
from tidemark_spark.cluster.target import ClusterTarget
from tidemark_spark.model import Executor
from tidemark_spark.openlineage.recorder import Recorder


def run_job(name: str, arguments: Sequence[str] | None = None, executor: Executor | None = None) -> int:
    """Run the job ``name`` with ``arguments``, or those of this process; returns the exit code.

    Its tasks are Spark's unless ``executor`` does them. Raises SystemExit after ``--help`` and after wrong words.
    """
    try:
        options = JOBS[name].parse(sys.argv[1:] if arguments is None else arguments)
        if executor is None and isinstance(options, SparkOptions):
            ClusterTarget.of(options)  # refuses a wrong server, also if there will be no task
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    work: Callable[[JobOptions, RunningJob], int] = import_module(f"{__package__}.{name}").work
    with RunningJob(options, executor) as job:
        job.code = work(options, job)
    return job.code


class RunningJob:
    """A job at work. As a context it sends or hands over the job's lineage, and turns errors into the exit code.

    An error of Tidemark's is printed to standard error: a ConfigError gives 2, any other the ``failed`` of the options.
    """

    def __init__(self, options: JobOptions, executor: Executor | None = None) -> None:
        self._options = options
        self._given = executor
        self._recorder = Recorder(options) if isinstance(options, TopicsOptions) else None
        self.code = options.failed if isinstance(options, TopicsOptions) else 1

    def __enter__(self) -> Self:
        if self._recorder is not None:
            self._recorder.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, ConfigError):
            sys.stderr.write(f"{error}\n")
            self.code = 2
        elif isinstance(error, TidemarkError):
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        if self._recorder is not None:
            ended = RuntimeError(f"{self._options.program()} ended with exit code {self.code}") if self.code else None
            self._recorder.end(error or ended)
        return isinstance(error, TidemarkError)

    @cached_property
    def executor(self) -> Executor:
        """The given one, or Spark where the options say. Raises ConfigError."""
        if self._given is not None:
            return self._given
        assert isinstance(self._options, SparkOptions), "no other job has tasks"
        named = self._options.named[:3] if isinstance(self._options, TopicsOptions) else ()
        from tidemark_spark.cluster import session  # which only jobs with tasks need

        return session.spark(" ".join(("tidemark", self._options.name, *named)), ClusterTarget.of(self._options))

    @property
    def lineage(self) -> Recorder:
        """Takes the inputs and outputs of the job."""
        assert self._recorder is not None, "a job without topics has no lineage"
        return self._recorder

    @cached_property
    def deployment(self) -> Deployment:
        """The topics file. Raises ConfigError."""
        assert isinstance(self._options, TopicsOptions)
        return load_topics(self._options.topics)

    def topics(self) -> list[TopicSettings]:
        """The topics of the command line, or all of the file. Raises ConfigError: the file has no such topic."""
        assert isinstance(self._options, TopicsOptions)
        named, cluster = self._options.named, self._options.cluster
        return [self.deployment.topic(name, cluster) for name in named] if named else list(self.deployment.topics)

    def cluster(self) -> str:
        """The cluster of a job for a whole cluster. Raises ConfigError: the options name none that the file has."""
        assert isinstance(self._options, TopicsOptions)
        if self._options.cluster not in self.deployment.clusters:
            rule = f"must be a cluster of the topics file, which has: {', '.join(self.deployment.clusters)}"
            raise ConfigError(self._options.program(), [("--cluster", rule)])
        return self._options.cluster

    def table(self) -> TopicTable:
        """The table of the only topic.

        Raises:
            ConfigError: the topics file is wrong, or has no such topic.
            NeverSeen: there is no table, and no agent was ever seen that could upload data.
        """
        assert isinstance(self._options, OneTopicOptions)
        [topic] = self.topics()
        return begun(open_topic_table(self.deployment, topic))

    def on_each_table(
        self, work: Callable[[TopicTable], int], wanted: Callable[[TopicSettings], bool] = lambda _: True
    ) -> int:
        """Do ``work`` for the table of each ``wanted`` topic; returns the largest exit code, or 0.

        The tables are opened one after the other. An error is printed, counts as exit code 1, and does not keep others
        from their work. Standard error has a line with each topic before its work, and a last line with those that
        failed. The error of an only topic is raised.

        Raises:
            ConfigError: the topics file is wrong, or has no such topic.
            SparkUnavailable: there is no Spark for the other topics either.
            TidemarkError: the only topic failed.
        """
        topics = [topic for topic in self.topics() if wanted(topic)]
        if len(topics) == 1:
            return work(open_topic_table(self.deployment, topics[0]))
        worst, failed = 0, list[str]()
        for topic in topics:
            name = f"{topic.cluster}/{topic.topic}"
            sys.stderr.write(f"topic {name}\n")
            try:
                code = work(open_topic_table(self.deployment, topic))
            except SparkUnavailable:
                raise
            except TidemarkError as error:
                sys.stderr.write(f"{name}: {type(error).__name__}: {error}\n")
                code = 1
            except Exception:  # noqa: BLE001 - whatever it is, it is of this topic
                sys.stderr.write(f"{name}:\n{traceback.format_exc()}")
                code = 1
            if code:
                failed.append(name)
            worst = max(worst, code)
        if failed:
            sys.stderr.write(f"failed for {len(failed)} of {len(topics)} topics: {', '.join(failed)}\n")
        return worst


def begun(table: TopicTable) -> TopicTable:
    """``table``. Raises NeverSeen if there is none, and no agent was ever seen that could upload data."""
    check_begun(table, committed_ledger(table).n)
    return table


def show(text: str) -> None:
    """Print ``text`` at once: a job's output is often read through a pipe."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
