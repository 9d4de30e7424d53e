"""The Airflow DAG that proposes topics."""

from __future__ import annotations

from tidemark_airflow import settings
from tidemark_airflow.dag_factories.onboarding import onboarding_dag

dag = onboarding_dag(settings.deployment())
