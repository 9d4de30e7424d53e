"""The DAG of a cluster's live landing: it lands all topics that have a ``freshness``, over and over, in one task."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from airflow.sdk import DAG

from tidemark.topics import Deployment
from tidemark_airflow import settings
from tidemark_airflow.assets.events import assets_of
from tidemark_airflow.configuration import flag, number
from tidemark_airflow.dag_factories import task_defaults
from tidemark_airflow.operators.landing import LandLiveOperator
from tidemark_airflow.triggers.index_scanner import Source
from tidemark_airflow.triggers.landing import LandingTrigger
from tidemark_airflow.triggers.live_readiness import LiveTopic

_BEFORE_OTHERS = 20


def live_dag_id(cluster: str) -> str:
    """``tidemark_live__<cluster>``, or ``tidemark_live-<digest>`` if that is too long."""
    name = f"tidemark_live__{cluster}"
    return name if len(name) <= task_defaults.LONGEST_DAG_ID else task_defaults.digest_id("tidemark_live", cluster)


def live_dags(deployment: Deployment, wanted: str | None = None) -> Iterator[DAG]:
    """A DAG for each cluster that has a topic with a ``freshness``, or for one cluster if its id is ``wanted``."""
    clusters = (cluster for cluster in deployment.clusters if deployment.live_topics(cluster))
    return (_live_dag(deployment, cluster) for cluster in clusters if wanted is None or live_dag_id(cluster) == wanted)


def _live_dag(deployment: Deployment, cluster: str) -> DAG:
    topics = deployment.live_topics(cluster)
    with DAG(
        dag_id=live_dag_id(cluster),
        schedule="@continuous",
        **task_defaults.CONTINUOUS,
        is_paused_upon_creation=flag("starts_paused"),
        default_args={
            **task_defaults.DEFAULT_ARGS,
            # One incident reports a late topic, however many runs fail meanwhile.
            "on_failure_callback": None,
            "priority_weight": _BEFORE_OTHERS,
        },
        tags=["tidemark", "live", f"cluster:{cluster}"[:100]],
        dag_display_name=f"live {cluster}"[:250],
        description=f"lands {len(topics)} topics of {cluster} within their freshness",
        doc_md=_doc(cluster, [topic.topic for topic in topics]),
    ) as dag:
        source = Source.of(deployment, cluster, number("scan_seconds"))
        LandLiveOperator(
            task_id="land",
            task_display_name="wait, land, publish",
            doc_md="Deferred until a topic is due; then one Spark job lands all topics with new records, one by one.",
            cluster=cluster,
            trigger=LandingTrigger(
                source=source.model_dump(mode="json"),
                topics=[LiveTopic.of(topic).model_dump(mode="json") for topic in topics],
                topics_file=str(settings.topics_file()),
            ),
            outlets=[asset for topic in topics for asset in assets_of(deployment, topic)],
            # The wait counts, too, and always ends earlier.
            execution_timeout=timedelta(hours=1),
            retry_delay=timedelta(seconds=5),
        )
    return dag


def _doc(cluster: str, topics: list[str]) -> str:
    return f"""\
Lands the topics of `{cluster}` that have a `freshness`: {", ".join(f"`{topic}`" for topic in topics)}.

One run lands all topics with new records, through one Spark client and one query. Each topic has its own plan, commit,
result and asset events; a topic that fails is tried again later, and does not hold up the others. A topic's own DAG
lands the rest: a backlog, or a topic that keeps failing.

The task is red if Spark did not answer or the job died; its log has each topic's outcome. A retry carries out the same
landing, which lands nothing twice.
"""
