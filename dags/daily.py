"""The Airflow DAGs of the tables' upkeep, once a day."""

from __future__ import annotations

from tidemark_airflow import settings
from tidemark_airflow.dag_factories.maintenance import daily_dags

for _dag in daily_dags(settings.deployment()):
    globals()[_dag.dag_id] = _dag
