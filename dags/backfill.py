"""The Airflow DAG that rebuilds dates of tables."""

from __future__ import annotations

from tidemark_airflow import settings
from tidemark_airflow.dag_factories.backfill import backfill_dag

dag = backfill_dag(settings.deployment())
