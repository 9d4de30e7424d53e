"""The Airflow DAG that looks after the deployment and tells people."""

from __future__ import annotations

from tidemark_airflow.dag_factories.monitor import watch_dag

dag = watch_dag()
