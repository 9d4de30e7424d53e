"""The Airflow DAG that approves requests for erasure."""

from __future__ import annotations

from tidemark_airflow.dag_factories.erasure import approval_dag

dag = approval_dag()
