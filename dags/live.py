"""One Airflow DAG per cluster that has topics with a freshness; a starting task makes only its own."""

from __future__ import annotations

from airflow.sdk import get_parsing_context

from tidemark_airflow import settings
from tidemark_airflow.dag_factories.live import live_dags

for _dag in live_dags(settings.deployment(), get_parsing_context().dag_id):
    globals()[_dag.dag_id] = _dag
