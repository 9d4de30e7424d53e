"""The DAGs of the tables' upkeep: audit, compaction, retention, vacuum daily, erasure weekly, state tables hourly.

Each has a task per topic.

Packs have batches of many topics, so their retention has a task per cluster. The hourly compaction of topics with a
``freshness`` has one too: their landings write a small file of each partition every minute.

A run handles the date before it: the run at three o'clock on the 21st audits the 20th. For past dates use a native
backfill of the DAG, for a single topic a run from its form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow.sdk import DAG, CronDataIntervalTimetable, Param
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tidemark.topics import Deployment, TopicSettings
from tidemark_airflow import settings
from tidemark_airflow.assets.events import publish_state, state_asset
from tidemark_airflow.dag_factories import task_defaults
from tidemark_airflow.operators.spark_job import ClusterJobOperator, JobOperator
from tidemark_airflow.submitters.environment import erasure_environment, retention_environment

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidemark.table.delta_table import TopicTable

ALL: Final = "all"
_AT_A_TIME: Final = 2
_RETRIES: Final = 2
"""Fewer retries than other tasks have: an audit repeats its findings."""

_TELLS: Final[dict[str, dict[str, Any]]] = {name: {"on_failure_callback": None} for name in ("audit", "state")}
"""A failed audit opens an incident, which is reported once; so does a state that is stopped or late."""


def _any(_: TopicSettings) -> bool:
    return True


def _has_state(topic: TopicSettings) -> bool:
    return topic.state is not None


class Upkeep(NamedTuple):
    """An hourly, daily or weekly job. ``dated`` jobs get the run's date; the others find the due dates themselves.

    The form offers a dry run of jobs with ``dry_runs``. A job that ``deletes_raw`` runs with the AWS profile
    ``[tidemark] retention_profile``: nothing else may delete there. ``environment`` returns further variables of the
    job's process. ``for_topic`` chooses the topics with a task. ``unless_named`` are arguments of runs for all topics.
    ``publishes`` sends asset events of its commits.
    """

    name: str
    job: str
    at: str
    does: str
    arguments: tuple[str, ...] = ()
    dated: bool = False
    dry_runs: bool = False
    deletes_raw: bool = False
    environment: Callable[[], Mapping[str, str]] = dict
    for_topic: Callable[[TopicSettings], bool] = _any
    unless_named: tuple[str, ...] = ()
    publishes: Callable[[Context, TopicTable], None] | None = None


UPKEEP: Final = (
    Upkeep(
        "audit",
        "audit.py",
        "0 3 * * *",
        "Reads a date's raw segments and files again and proves them equal; red when anything differs.",
        dated=True,
    ),
    Upkeep(
        "compaction",
        "compact.py",
        "0 4 * * *",
        "Merges small files of closed dates, and of open dates that have many; no row changes.",
    ),
    Upkeep(
        "retention",
        "retain.py",
        "0 5 * * *",
        "Removes past dates from the tables of topics with retention.apply; only reports those of other topics.",
        arguments=("--only", "table", "--by", "airflow"),
    ),
    Upkeep(
        "raw_retention",
        "retain.py",
        "30 5 * * *",
        "Removes raw segments beyond the backfill window of topics with retention.apply; only reports the others.",
        arguments=("--only", "raw", "--by", "airflow"),
        deletes_raw=True,
        environment=retention_environment,
    ),
    Upkeep(
        "erasure",
        "erase.py",
        "0 2 * * 0",
        "Carries out the approved requests for erasure: masks their records, and takes them out of the tables.",
        arguments=("--by", "airflow"),
        dry_runs=True,
        environment=erasure_environment,
    ),
    Upkeep(
        "state",
        "state.py",
        "10 * * * *",
        "Brings state tables to the newest commits of their topics' tables, those whose state.every has passed.",
        for_topic=_has_state,
        unless_named=("--due",),
        publishes=publish_state,
    ),
    Upkeep(
        "state_audit",
        "state.py",
        "20 3 * * *",
        "Compares a sixteenth of the keys of state tables with a replay of their topics' tables; red if one differs.",
        arguments=("--audit",),
        for_topic=_has_state,
    ),
    Upkeep(
        "vacuum",
        "vacuum.py",
        "0 6 * * *",
        "Removes leftovers of dead runs, objects replaced long ago, and old reports.",
    ),
)


class UpkeepOperator(JobOperator):
    """Runs one job for one topic, unless the run's form names another topic.

    :param upkeep_name: the name of one of :data:`UPKEEP`
    """

    def __init__(self, *, upkeep_name: str, **kwargs: Any) -> None:
        [self._upkeep] = (upkeep for upkeep in UPKEEP if upkeep.name == upkeep_name)
        upkeep = self._upkeep
        more, deletes = upkeep.environment, upkeep.deletes_raw
        super().__init__(job=upkeep.job, environment=more, deletes_raw=deletes, **kwargs)

    def execute(self, context: Context) -> None:
        """Submit and wait.

        Raises:
            AirflowSkipException: the run is for another topic.
            AirflowFailException: the run has no date, and its form names none.
            AirflowException: there is no connection, or it names no master, or the job failed.
        """
        params = context["params"]
        if params["topic"] not in {ALL, f"{self.cluster}/{self.topic}"}:
            raise AirflowSkipException(f"this run is for {params['topic']} alone")
        dated = ("--dt", _date(context).isoformat()) if self._upkeep.dated else ()
        dry = ("--dry-run",) if params.get("dry_run") else ()
        due = self._upkeep.unless_named if params["topic"] == ALL else ()
        self.submit(context, *self._upkeep.arguments, *dated, *dry, *due)
        self.after_job(context)

    def after_job(self, context: Context) -> None:
        """Publish, if the upkeep does."""
        if self._upkeep.publishes is not None:
            self._upkeep.publishes(context, settings.topic_table(self.cluster, self.topic))


class ClusterUpkeepOperator(ClusterJobOperator):
    """Runs one job for a cluster."""

    def execute(self, context: Context) -> None:
        """Submit and wait.

        Raises:
            AirflowException: there is no connection, or it names no master, or the job failed.
        """
        self.submit(context)


class PackRetentionOperator(ClusterUpkeepOperator):
    """Removes the packs of a cluster whose batches are all in seals."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(job="retain_packs.py", environment=retention_environment, deletes_raw=True, **kwargs)


class LiveCompactionOperator(ClusterUpkeepOperator):
    """Merges small files of the topics of a cluster that have a ``freshness``."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(job="compact_live.py", **kwargs)


def _date(context: Context) -> date:
    """The form's date, or the start of the run's interval."""
    named = context["params"]["date"]
    if named:
        return date.fromisoformat(str(named))
    start = context.get("data_interval_start")
    if start is None:
        raise AirflowFailException("date: name the date in the form, since this run has none of its own")
    return start.date()


def upkeep_dags(deployment: Deployment) -> Iterator[DAG]:
    """A DAG for each task of :data:`UPKEEP`, and the DAGs with a task for each cluster."""
    yield from _topic_dags(deployment)
    does = "Removes packs whose batches have been in seals for two days."
    yield _cluster_dag("pack_retention", "45 5 * * *", does, PackRetentionOperator, deployment.clusters)
    live = [cluster for cluster in deployment.clusters if deployment.live_topics(cluster)]
    if live:
        does = "Merges small files of topics that land every minute; no row changes."
        yield _cluster_dag("live_compaction", "20 * * * *", does, LiveCompactionOperator, live)


def _cluster_dag(name: str, at: str, does: str, operator: type[ClusterUpkeepOperator], clusters: Iterable[str]) -> DAG:
    with _upkeep_dag(name, at, does) as dag:
        operator.partial(
            task_id=name,
            max_active_tis_per_dagrun=_AT_A_TIME,
            map_index_template="{{ task.cluster }}",
            execution_timeout=task_defaults.CONVERT_TIMEOUT,
            retries=_RETRIES,
        ).expand_kwargs([{"cluster": cluster} for cluster in clusters])
    return dag


def _topic_dags(deployment: Deployment) -> Iterator[DAG]:
    for upkeep in UPKEEP:
        topics = [topic for topic in settings.in_order(deployment) if upkeep.for_topic(topic)]
        if not topics:
            continue
        names = [f"{topic.cluster}/{topic.topic}" for topic in topics]
        params = {"topic": Param(ALL, type="string", enum=[ALL, *names], title="Topic", description="One or all.")}
        if upkeep.dated:
            params["date"] = Param(
                None, type=["null", "string"], format="date", title="Date", description="Default: the run's date."
            )
        if upkeep.dry_runs:
            params["dry_run"] = Param(
                default=False, type="boolean", title="Dry run", description="Only count what would be done."
            )
        with _upkeep_dag(upkeep.name, upkeep.at, upkeep.does, params) as dag:
            UpkeepOperator.partial(
                task_id=upkeep.name,
                upkeep_name=upkeep.name,
                max_active_tis_per_dagrun=_AT_A_TIME,
                map_index_template="{{ task.cluster }}/{{ task.topic }}",
                execution_timeout=task_defaults.CONVERT_TIMEOUT,
                retries=_RETRIES,
                outlets=[state_asset(deployment, topic) for topic in topics] if upkeep.publishes else [],
            ).expand_kwargs([{"cluster": topic.cluster, "topic": topic.topic} for topic in topics])
        yield dag


def _upkeep_dag(name: str, at: str, does: str, params: dict[str, Param] | None = None) -> DAG:
    return DAG(
        dag_id=f"tidemark_{name}",
        schedule=CronDataIntervalTimetable(at, timezone="UTC"),
        start_date=task_defaults.START,
        catchup=False,
        max_active_runs=1,
        default_args={**task_defaults.DEFAULT_ARGS, "owner": "tidemark", **_TELLS.get(name, {})},
        tags=["tidemark", "upkeep"],
        description=does,
        doc_md=f"{does}\n\n{__doc__}",
        params=params,
    )
