"""One Airflow DAG per topic of the topics file; a starting task makes only its own."""

from __future__ import annotations

from airflow.sdk import get_parsing_context

from tidemark_airflow import settings
from tidemark_airflow.dag_factories.ingest import ingest_dags

for _dag in ingest_dags(settings.deployment(), get_parsing_context().dag_id):
    globals()[_dag.dag_id] = _dag
