"""The readers of a topic's table in Airflow's metadata: DAGs that its assets schedule, and tasks with one as an inlet.

A DAG names an asset by itself, by a reference to its name or its URI, or by an alias that has stood for it. Airflow
keeps each in a table of its own, and its REST API shows only the first. It stores no inlet that is a reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
from sqlalchemy import select
from sqlalchemy.orm import Session

from tidemark.topics import Deployment, TopicSettings
from tidemark_airflow.assets.events import assets_of
from tidemark_airflow.web.auth import allowed_dags
from tidemark_airflow.web.models import TableReader


def readers_of(deployment: Deployment, topic: TopicSettings, user: Any) -> list[TableReader]:
    """The readers of the topic's table that ``user`` may see, by DAG, task and asset."""
    with create_session() as session:
        readers = {
            TableReader(dag=dag, task=task, asset=asset.name)
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
