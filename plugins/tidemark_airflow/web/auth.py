"""Rights to see and change topics: Airflow's own authorization, from the right to the topic's ingest DAG.

==============================  =====================================================================================
to see a topic                  may see its ingest DAG (GET)
to acknowledge a gap of it      may edit its ingest DAG (PUT), and the request comes from the page or has its header
to see anything at all          is signed in
==============================  =====================================================================================

A topic that a user may not see is answered like a topic that does not exist.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import BaseAuthManager
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from fastapi import Depends, Header, HTTPException, status

from tidemark.errors import ConfigError
from tidemark.formats.keys import check_cluster, check_topic
from tidemark.topics import TopicSettings
from tidemark_airflow.dag_factories.ingest import dag_id
from tidemark_airflow.web.reader import reader

REQUEST_HEADER = "X-Tidemark-Request"
"""Header of each request that changes something. Neither forms nor scripts of another site can send it."""


def may(user: Any, method: Any, topics: Iterable[TopicSettings]) -> list[TopicSettings]:
    """The ``topics`` whose ingest DAG ``user`` may see (GET) or edit (PUT)."""
    named = {dag_id(topic): topic for topic in topics}
    allowed = allowed_dags(user, method, named)
    return [topic for name, topic in named.items() if name in allowed]


def allowed_dags(user: Any, method: Any, names: Collection[str]) -> set[str]:
    """The DAGs among ``names`` that ``user`` may see (GET) or edit (PUT)."""
    teams = DagModel.get_dag_id_to_team_name_mapping(list(names))
    manager: BaseAuthManager[Any] = get_auth_manager()
    allowed: set[str] = set()
    for team in {teams.get(name) for name in names}:
        of_team = {name for name in names if teams.get(name) == team}
        allowed |= manager.filter_authorized_dag_ids(dag_ids=of_team, user=user, method=method, team_name=team)
    return allowed


def seen(cluster: str, topic: str, user: GetUserDep) -> TopicSettings:
    """The topic in the path, if it exists and ``user`` may see it."""
    deployment = reader().deployment()
    try:
        named = deployment.topic(check_topic(topic), check_cluster(cluster))
    except (ValueError, ConfigError):
        named = None
    if named is None or not may(user, "GET", [named]):
        rule = f"there is no topic {cluster}/{topic} in the topics file, or you may not see its DAG"
        raise HTTPException(status.HTTP_404_NOT_FOUND, rule)
    return named


Seen = Annotated[TopicSettings, Depends(seen)]


def edited(
    topic: Seen, user: GetUserDep, request_header: Annotated[str, Header(alias=REQUEST_HEADER)] = ""
) -> TopicSettings:
    """The topic in the path, if ``user`` may edit its ingest DAG and sent the header."""
    if not request_header:
        raise HTTPException(status.HTTP_403_FORBIDDEN, f"the header {REQUEST_HEADER} is missing")
    if not may(user, "PUT", [topic]):
        rule = f"acknowledging needs the right to edit the DAG {dag_id(topic)}, which you do not have"
        raise HTTPException(status.HTTP_403_FORBIDDEN, rule)
    return topic


Edited = Annotated[TopicSettings, Depends(edited)]
