"""The routes below ``/tidemark/api``, described in docs/page.md. :mod:`.auth` checks the rights to each.

They are plain functions: FastAPI runs them in threads, so that a slow store stops no other request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import GetUserDep, requires_authenticated
from airflow.models.asset import (
    AssetAliasModel,
    AssetModel,
    DagScheduleAssetAliasReference,
    DagScheduleAssetNameReference,
    DagScheduleAssetReference,
    DagScheduleAssetUriReference,
    TaskInletAssetReference,
)
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from fastapi import APIRouter, Depends, HTTPException, Query, Request, status
from sqlalchemy import select
from sqlalchemy.orm import Session

from tidemark.inspection.data_flow import DataFlow
from tidemark.inspection.gap_acknowledgement import gaps_of
from tidemark.inspection.offset_lineage import derivation_of
from tidemark.inspection.quarantine import Quarantine
from tidemark.monitoring.health import Key
from tidemark.monitoring.judgement import TopicState
from tidemark.timestamps import utc_now
from tidemark.topics import Deployment, TopicSettings
from tidemark_airflow import settings
from tidemark_airflow.assets.events import assets_of
from tidemark_airflow.web import models, responses
from tidemark_airflow.web.auth import Edited, Seen, allowed_dags, may
from tidemark_airflow.web.reader import reader

router = APIRouter(prefix="/api", dependencies=[Depends(requires_authenticated())])

Offset = Annotated[int, Query(ge=0)]


@router.get("/topics")
def topics(
    user: GetUserDep,
    state: Annotated[TopicState | None, Query()] = None,
    contains: Annotated[str, Query(max_length=250)] = "",
    offset: Offset = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> models.TopicsAnswer:
    """The topics that the user may see, from the worst state to the best."""
    all_topics = settings.in_order(reader().deployment())
    visible = may(user, "GET", all_topics)
    hidden = {topic.topic for topic in all_topics} - {topic.topic for topic in visible}
    overviews = {cluster: reader().overview(cluster) for cluster in dict.fromkeys(topic.cluster for topic in visible)}
    incidents = [incident for cluster in overviews for incident in reader().incidents(cluster)]
    return responses.topics_answer(
        visible, overviews, incidents, hidden=hidden, state=state or "", contains=contains, offset=offset, limit=limit
    )


@router.get("/brokersets")
def brokersets(user: GetUserDep) -> models.BrokersetsAnswer:
    """The upload load, lag and held bytes of the brokersets of each cluster with a topic that the user may see."""
    clusters = dict.fromkeys(topic.cluster for topic in may(user, "GET", settings.in_order(reader().deployment())))
    known = [(cluster, reader().brokersets(cluster)) for cluster in clusters]
    return models.BrokersetsAnswer(
        clusters=[responses.cluster_brokersets(cluster, now) for cluster, now in known if now is not None]
    )


@router.get("/topics/{cluster}/{topic}")
def topic_now(topic: Seen, user: GetUserDep) -> models.TopicAnswer:
    """The current state of one topic."""
    return responses.topic_answer(
        reader().topic(topic),
        reader().overview(topic.cluster),
        reader().incidents(topic.cluster),
        may_acknowledge=bool(may(user, "PUT", [topic])),
    )


@router.get("/topics/{cluster}/{topic}/partitions")
def partitions(
    topic: Seen,
    only: Annotated[models.PartitionFilter, Query()] = "all",
    offset: Offset = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    at: Annotated[str, Query(pattern=r"^(\d{1,9}-)?\d{1,9}$|^$")] = "",
) -> models.PartitionsAnswer:
    """Partitions with their strips, by incarnation and number; the page with partition ``at``, if it is given."""
    now = reader().topic(topic)
    total, first, chosen = responses.chosen_partitions(now, only, offset, limit, _key(at))
    words = reader().words(now, [(part.incarnation, part.partition) for part in chosen if part.gaps])
    rows = [responses.partition_row(now, part, words.get((part.incarnation, part.partition), [])) for part in chosen]
    return models.PartitionsAnswer(total=total, offset=first, partitions=rows)


@router.get("/topics/{cluster}/{topic}/dates")
def dates(topic: Seen, year: Annotated[int | None, Query(ge=1970, le=9999)] = None) -> models.DatesAnswer:
    """The table's dates of a year, by default the newest year."""
    now = reader().topic(topic)
    return responses.dates_answer(now.ledger.dates, reader().quarantined(now), year)


@router.get("/topics/{cluster}/{topic}/quarantine")
def quarantine(topic: Seen) -> Quarantine:
    """The refused records by reason and schema, with the places of the first ones, but without their values."""
    return reader().quarantine(topic)


@router.get("/topics/{cluster}/{topic}/columns")
def columns(topic: Seen) -> models.ColumnsAnswer:
    """The table's columns."""
    return models.ColumnsAnswer(columns=reader().columns(topic))


@router.get("/topics/{cluster}/{topic}/history")
def history(topic: Seen, hours: Annotated[int, Query(ge=1, le=168)] = 24) -> models.HistoryAnswer:
    """The topic's delay in the last hours."""
    samples = reader().samples(topic, hours, utc_now())
    return models.HistoryAnswer(hours=hours, freshness=topic.late_after.total_seconds(), samples=samples)


@router.get("/topics/{cluster}/{topic}/flow")
def flow(topic: Seen) -> DataFlow:
    """The stages from Kafka over raw and table to the catalogs, with their amounts."""
    return reader().flow(topic)


@router.get("/topics/{cluster}/{topic}/readers")
def readers(topic: Seen, user: GetUserDep) -> models.ReadersAnswer:
    """The DAGs and tasks that read the table."""
    return models.ReadersAnswer(readers=readers_of(reader().deployment(), topic, user))


@router.get("/topics/{cluster}/{topic}/lineage")
def lineage(
    topic: Seen, partition: Annotated[int, Query(ge=0)], start: Offset, end: Offset, incarnation: Offset = 0
) -> models.LineageAnswer:
    """The evidence, segments and files of a partition's offsets."""
    if start >= end:
        raise HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, "end: must be above start")
    table = reader().table(topic.cluster, topic.topic)
    standing = reader().standing(table)
    return responses.lineage_answer(start, end, derivation_of(table, standing, (incarnation, partition), start, end))


@router.post("/topics/{cluster}/{topic}/acknowledgements")
def acknowledge(topic: Edited, user: GetUserDep, word: models.GapAcknowledgement) -> models.WordAnswer:
    """Give up offsets of an open gap for good, in the name of the signed-in user."""
    known = gaps_of(reader().table(topic.cluster, topic.topic), word.partition, word.incarnation)
    acknowledged, new = known.acknowledge(word.start, word.end, user.get_name(), word.reason.strip())
    reader().forget(topic)
    return models.WordAnswer(acknowledged=acknowledged, new=new)


@router.get("/openapi.json", include_in_schema=False)
def openapi(request: Request) -> dict[str, Any]:
    """OpenAPI description of this API."""
    schema: dict[str, Any] = request.app.openapi()
    return schema


def _key(at: str) -> Key | None:
    """Incarnation and partition in ``7`` or ``<incarnation>-7``."""
    if not at:
        return None
    incarnation, _, partition = at.rpartition("-")
    return int(incarnation or 0), int(partition)


def readers_of(deployment: Deployment, topic: TopicSettings, user: Any) -> list[models.TableReader]:
    """The readers of the topic's table in Airflow's metadata that ``user`` may see, by DAG, task and asset.

    They are DAGs that its assets schedule, and tasks with one as an inlet. A DAG names an asset by itself, by a
    reference to its name or its URI, or by an alias that has stood for it. Airflow keeps each in a table of its own,
    and its REST API shows only the first. It stores no inlet that is a reference.
    """
    with create_session() as session:
        readers = {
            models.TableReader(dag=dag, task=task, asset=asset.name)
            for asset in assets_of(deployment, topic)
            for dag, task in _readers(session, asset.name, asset.uri)
        }
        named = select(DagModel.dag_id).where(
            DagModel.dag_id.in_({reader.dag for reader in readers}), ~DagModel.is_stale
        )
        dags = set(session.scalars(named))
    seen = allowed_dags(user, "GET", dags)
    return sorted(
        (reader for reader in readers if reader.dag in seen), key=lambda reader: (reader.dag, reader.task, reader.asset)
    )


def _readers(session: Session, name: str, uri: str) -> Iterator[tuple[str, str]]:
    """(DAG, task) of the asset's readers; the task is empty for a DAG that it schedules."""
    asset = select(AssetModel.id).where(AssetModel.name == name, AssetModel.uri == uri)
    alias = select(AssetAliasModel.id).where(AssetAliasModel.assets.any(AssetModel.id.in_(asset)))
    for schedules in (
        select(DagScheduleAssetReference.dag_id).where(DagScheduleAssetReference.asset_id.in_(asset)),
        select(DagScheduleAssetNameReference.dag_id).where(DagScheduleAssetNameReference.name == name),
        select(DagScheduleAssetUriReference.dag_id).where(DagScheduleAssetUriReference.uri == uri),
        select(DagScheduleAssetAliasReference.dag_id).where(DagScheduleAssetAliasReference.alias_id.in_(alias)),
    ):
        yield from ((dag, "") for dag in session.scalars(schedules))
    inlets = select(TaskInletAssetReference.dag_id, TaskInletAssetReference.task_id)
    tasks = session.execute(inlets.where(TaskInletAssetReference.asset_id.in_(asset)))
    yield from ((dag, task) for dag, task in tasks)
