"""The routes below ``/tidemark/api``, described in docs/page.md. :mod:`.auth` checks the rights to each.

They are plain functions: FastAPI runs them in threads, so that a slow store stops no other request.
"""

from __future__ import annotations

from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import GetUserDep, requires_authenticated
from fastapi import APIRouter, Depends, HTTPException, Query, Request, status

from tidemark.inspection.data_flow import DataFlow
from tidemark.inspection.gap_acknowledgement import gaps_of
from tidemark.inspection.offset_lineage import derivation_of
from tidemark.inspection.quarantine import Quarantine
from tidemark.monitoring.health import Key
from tidemark.monitoring.judgement import TopicState
from tidemark.timestamps import utc_now
from tidemark_airflow import settings
from tidemark_airflow.web import models, responses
from tidemark_airflow.web.auth import Edited, Seen, may
from tidemark_airflow.web.reader import reader
from tidemark_airflow.web.table_readers import readers_of

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
