"""The Airflow DAG that lists tables in catalogs, if the topics file names any."""

from __future__ import annotations

from tidemark_airflow import settings
from tidemark_airflow.dag_factories.maintenance import catalog_dags

for _dag in catalog_dags(settings.deployment()):
    globals()[_dag.dag_id] = _dag
