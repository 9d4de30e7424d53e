"""The DAGs of the tables' upkeep: audit, compaction, retention, vacuum daily, erasure weekly, state tables hourly.

The task ``topics`` puts the topics of the run into groups, and each group has one job. A topic that fails does not keep
the others of its group from their work; the task is red, and its log names the topics that failed. A retry does what is
left: jobs find nothing to do where all is done, and audits pass over topics that have passed since the first try.

Packs have batches of many topics, so their retention has a task per cluster. The hourly compaction of topics with a
``freshness`` has one too: their landings write a small file of each partition every minute.

A run handles the date before it: the run at three o'clock on the 21st audits the 20th. For past dates use a native
backfill of the DAG, for a single topic a run from its form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

from airflow.sdk import (
    DAG,
    AssetAny,
    AssetOrTimeSchedule,
    BaseOperator,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    Param,
    get_current_context,
)
from airflow.sdk.exceptions import AirflowFailException

from tidemark.jobs.registry import JOBS
from tidemark.timestamps import utc_now
from tidemark.topics import Deployment, TopicSettings
from tidemark_airflow import settings
from tidemark_airflow.assets.events import assets_of, publish_states, state_asset
from tidemark_airflow.dag_factories import task_defaults
from tidemark_airflow.operators.spark_job import JobOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

ALL: Final = "all"
_AT_A_TIME: Final = 2
MOST_TOPICS: Final = 50
MOST_CHARACTERS: Final = 6000
"""Limits of a group: a minute for each topic makes an hour, and Databricks takes 10,000 bytes of arguments at most."""

_OPTION: Final = len('"--topic", "", ')
_SINCE: Final = "tidemark_since"
_RETRIES: Final = 2
"""Fewer retries than other tasks have: an audit repeats its findings."""

_TELLS: Final[dict[str, dict[str, Any]]] = {
    **{name: {"on_failure_callback": None} for name in ("audit", "state")},
    "catalogs": {"on_failure_callback": None, "retries": 1},
}
"""A failed audit opens an incident, which is reported once; so do a state that is stopped or late, and a catalog."""


class Upkeep(NamedTuple):
    """An hourly, daily or weekly run of a job for topics, with fixed ``options``.

    A ``dated`` job gets the run's date; the others find the due dates themselves. ``for_topic`` chooses the topics.
    ``unless_named`` are options of runs for all topics. A job that ``resumes`` passes over topics that it has done
    since the first try, because to do them again would take as long. ``publishes_states`` adds a task that sends asset
    events.
    """

    name: str
    job: str
    at: str
    does: str
    options: Mapping[str, Any] = {}
    dated: bool = False
    for_topic: Callable[[TopicSettings], bool] = lambda _: True
    unless_named: Mapping[str, Any] = {}
    resumes: bool = False
    publishes_states: bool = False

    @property
    def dry_runs(self) -> bool:
        """True if the job can say what it would do: then the form offers it."""
        return "dry_run" in JOBS[self.job].model_fields


UPKEEP: Final = (
    Upkeep(
        "audit",
        "audit",
        "0 3 * * *",
        "Reads a date's raw segments and files again and proves them equal; red when anything differs.",
        dated=True,
        resumes=True,
    ),
    Upkeep(
        "compaction",
        "compact",
        "0 4 * * *",
        "Merges small files of closed dates, and of open dates that have many; no row changes.",
    ),
    Upkeep(
        "retention",
        "retain",
        "0 5 * * *",
        "Removes past dates from the tables of topics with retention.apply; only reports those of other topics.",
        options={"only": "table", "by": "airflow"},
    ),
    Upkeep(
        "raw_retention",
        "retain",
        "30 5 * * *",
        "Removes raw segments beyond the backfill window of topics with retention.apply; only reports the others.",
        options={"only": "raw", "by": "airflow"},
    ),
    Upkeep(
        "erasure",
        "erase",
        "0 2 * * 0",
        "Carries out the approved requests for erasure: masks their records, and takes them out of the tables.",
        options={"by": "airflow"},
    ),
    Upkeep(
        "state",
        "state",
        "10 * * * *",
        "Brings state tables to the newest commits of their topics' tables, those whose state.every has passed.",
        for_topic=lambda topic: topic.state is not None,
        unless_named={"due": True},
        publishes_states=True,
    ),
    Upkeep(
        "state_audit",
        "state",
        "20 3 * * *",
        "Compares a sixteenth of the keys of state tables with a replay of their topics' tables; red if one differs.",
        options={"audit": True},
        for_topic=lambda topic: topic.state is not None,
        resumes=True,
    ),
    Upkeep(
        "vacuum",
        "vacuum",
        "0 6 * * *",
        "Removes leftovers of dead runs, objects replaced long ago, and old reports.",
    ),
)


class Group(TypedDict):
    """Topics of one cluster, for which one job works."""

    cluster: str
    topics: list[str]


def groups_of(topics: Iterable[TopicSettings]) -> list[Group]:
    """``topics`` in groups of one cluster, each within :data:`MOST_TOPICS` and :data:`MOST_CHARACTERS`.

    There are as many groups at least as tasks run at a time, if there are as many topics.
    """
    clusters: dict[str, list[str]] = {}
    for topic in topics:
        clusters.setdefault(topic.cluster, []).append(topic.topic)
    found: list[Group] = []
    for cluster, names in clusters.items():
        most = min(MOST_TOPICS, -(-len(names) // _AT_A_TIME))
        left = list(names)
        while left:
            taken = [left.pop(0)]
            while left and len(taken) < most and _size([*taken, left[0]]) <= MOST_CHARACTERS:
                taken.append(left.pop(0))
            found.append({"cluster": cluster, "topics": taken})
    return found


def _size(names: Sequence[str]) -> int:
    """Characters of the arguments that name these topics."""
    return sum(_OPTION + len(name) for name in names)


def groups(upkeep_name: str) -> list[Group]:
    """The groups of a run: of all topics of the upkeep, or of the topic that the run's form names."""
    named = get_current_context()["params"]["topic"]
    upkeep, topics = _named(upkeep_name), settings.in_order(settings.deployment())
    return groups_of(
        topic for topic in topics if upkeep.for_topic(topic) and named in {ALL, f"{topic.cluster}/{topic.topic}"}
    )


def _named(name: str) -> Upkeep:
    [found] = (upkeep for upkeep in UPKEEP if upkeep.name == name)
    return found


class PublishStatesOperator(BaseOperator):
    """Sends asset events of the newest commits of state tables that have none yet.

    A topic that cannot be read does not keep others from their events: its error is in the log, and the next run sends
    its event.

    :param groups: clusters, each with names of topics: a :class:`Group` each
        (templated)
    """

    template_fields: Sequence[str] = ("groups",)

    def __init__(self, *, groups: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.groups = groups

    def execute(self, context: Context) -> None:
        """Publish. Raises ConfigError if the topics file is wrong."""
        deployment = settings.deployment()
        # None if the task that makes the groups has failed.
        named = [(topic, of["cluster"]) for of in self.groups or () for topic in of["topics"]]
        publish_states(context, deployment, [deployment.topic(topic, cluster) for topic, cluster in named])


class UpkeepOperator(JobOperator):
    """Runs one job for a group of topics.

    :param upkeep_name: the name of one of :data:`UPKEEP`
    :param topics: the topics' names (templated)
    """

    template_fields: Sequence[str] = (*JobOperator.template_fields, "topics")

    def __init__(self, *, upkeep_name: str, topics: Any, **kwargs: Any) -> None:
        self._upkeep = upkeep = _named(upkeep_name)
        super().__init__(job=upkeep.job, options=upkeep.options, **kwargs)
        self.topics = topics

    @property
    def label(self) -> str:
        """The group's name on Airflow's pages."""
        first, last = self.topics[0], self.topics[-1]
        return f"{self.cluster}/{first}" if first == last else f"{self.cluster}: {first} to {last}"

    def execute(self, context: Context) -> None:
        """Submit and wait. Raises as :meth:`submit`; AirflowFailException also if the run and its form have no date."""
        params = context["params"]
        options = dict(self._upkeep.unless_named if params["topic"] == ALL else {})
        if self._upkeep.dated:
            options["dt"] = [_date(context)]
        if params.get("dry_run"):
            options["dry_run"] = True
        if self._upkeep.resumes:
            options["since"] = _first_try(context)
        self.submit(context, **options)
        self.after_job(context)

    def after_job(self, context: Context) -> None:
        """Forget the time of the first try."""
        store = context.get("task_state_store")
        if store is not None and self._upkeep.resumes:
            store.delete(_SINCE)

    def _subject(self) -> str:
        return str(self.topics[0]) if len(self.topics) == 1 else f"{self._upkeep.name}-{self.cluster}"


def _first_try(context: Context) -> str:
    """The time of the first try of the task since it succeeded last; now, in a test without Airflow's state of it."""
    now, store = utc_now().isoformat(), context.get("task_state_store")
    if store is None:
        return now
    known = store.get(_SINCE)
    if not isinstance(known, str):
        store.set(_SINCE, now)
        return now
    return known


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
    yield _cluster_dag("pack_retention", "retain_packs", "45 5 * * *", does, deployment.clusters)
    live = [cluster for cluster in deployment.clusters if deployment.live_topics(cluster)]
    if live:
        does = "Merges small files of topics that land every minute; no row changes."
        yield _cluster_dag("live_compaction", "compact_live", "20 * * * *", does, live)


def _cluster_dag(name: str, job: str, at: str, does: str, clusters: Iterable[str]) -> DAG:
    with _upkeep_dag(name, at, does) as dag:
        JobOperator.partial(
            task_id=name,
            job=job,
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
            task_of_groups = task_defaults.task_of_promises(task_id="topics", multiple_outputs=False)
            chosen = task_of_groups(groups)(upkeep.name)
            UpkeepOperator.partial(
                task_id=upkeep.name,
                upkeep_name=upkeep.name,
                max_active_tis_per_dagrun=_AT_A_TIME,
                map_index_template="{{ task.label }}",
                execution_timeout=task_defaults.CONVERT_TIMEOUT,
                retries=_RETRIES,
            ).expand_kwargs(chosen)
            if upkeep.publishes_states:
                publish = PublishStatesOperator(
                    task_id="publish", groups=chosen, outlets=[state_asset(deployment, topic) for topic in topics]
                )
                # Also if the job failed for a topic. A teardown does not decide how the run ended.
                dag.task_dict[upkeep.name] >> publish.as_teardown()
        yield dag


def _upkeep_dag(
    name: str,
    schedule: str | AssetOrTimeSchedule,
    does: str,
    params: dict[str, Param] | None = None,
    *,
    tag: str = "upkeep",
    doc: str | None = __doc__,
) -> DAG:
    return DAG(
        dag_id=f"tidemark_{name}",
        schedule=CronDataIntervalTimetable(schedule, timezone="UTC") if isinstance(schedule, str) else schedule,
        start_date=task_defaults.START,
        catchup=False,
        max_active_runs=1,
        default_args={**task_defaults.DEFAULT_ARGS, "owner": "tidemark", **_TELLS.get(name, {})},
        tags=["tidemark", tag],
        description=does,
        doc_md=f"{does}\n\n{doc}",
        params=params,
    )


_CATALOGS: Final = """It runs after each commit, and every ten minutes, with a task per cluster.

A catalog that does not answer makes the task red, and the watch reports it once. The tables do not wait for it.
"""


def catalog_dags(deployment: Deployment) -> Iterator[DAG]:
    """``tidemark_catalogs``, if any topic has a catalog."""
    does = "Lists each commit of the tables as a snapshot in the catalogs of the topics file."
    topics = [topic for topic in settings.in_order(deployment) if deployment.catalogs_of(topic)]
    if not topics:
        return
    assets = (assets_of(deployment, topic).rows for topic in topics)
    states = (state_asset(deployment, topic) for topic in topics if topic.state)
    every = CronTriggerTimetable("*/10 * * * *", timezone="UTC")
    schedule = AssetOrTimeSchedule(timetable=every, assets=AssetAny(*assets, *states))
    with _upkeep_dag("catalogs", schedule, does, tag="catalogs", doc=_CATALOGS) as dag:
        JobOperator.partial(
            task_id="mirror",
            job="mirror",
            map_index_template="{{ task.cluster }}",
            execution_timeout=timedelta(hours=1),
        ).expand_kwargs([{"cluster": cluster} for cluster in sorted({topic.cluster for topic in topics})])
    yield dag
