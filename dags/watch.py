"""The Airflow DAG that checks the deployment and notifies people."""

from __future__ import annotations

from tidemark_airflow.dag_factories.monitor import watch_dag

dag = watch_dag()
