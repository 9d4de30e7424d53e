"""The Airflow DAGs of the tables' upkeep."""

from __future__ import annotations

from tidemark_airflow import settings
from tidemark_airflow.dag_factories.maintenance import upkeep_dags

for _dag in upkeep_dags(settings.deployment()):
    globals()[_dag.dag_id] = _dag
