"""One Airflow DAG per topic of the topics file."""

from __future__ import annotations

from tidemark_airflow import settings
from tidemark_airflow.dag_factories.ingest import ingest_dag

_deployment = settings.deployment()

for _topic in settings.in_order(_deployment):
    _dag = ingest_dag(_deployment, _topic)
    globals()[_dag.dag_id] = _dag
