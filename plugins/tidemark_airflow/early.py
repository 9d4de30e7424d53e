"""What tasks and DAG files import, imported once before Airflow forks the processes that run them.

Airflow's LocalExecutor, its workers of Celery and its DAG processor fork a process for each task and each DAG file. If
the parent has imported what these need, none of them does: 0.2 CPU-s for the start of a task instead of one or two.
``deploy/airflow_local_settings.py`` calls :func:`import_early`; it belongs in a folder of ``PYTHONPATH``, such as
``$AIRFLOW_HOME/config``.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Collection
from importlib import import_module
from typing import Final

MODULES: Final = (
    "airflow.dag_processing.dagbag",
    "airflow.providers.amazon.aws.hooks.base_aws",
    "airflow.providers.apache.spark.hooks.spark_connect",
    "airflow.providers.apache.spark.hooks.spark_submit",
    "airflow.providers.http.hooks.http",
    "airflow.providers.smtp.notifications.smtp",
    "airflow.providers.standard.operators.hitl",
    "airflow.sdk.execution_time.task_runner",
    "botocore.client",
    "deltalake",
    "pyarrow.parquet",
    "tidemark.backfill.report_tables",
    "tidemark.monitoring.observation",
    "tidemark.openlineage.hand_over",
    "tidemark.planning.unread_status",
    "tidemark.table.state_table",
    "tidemark_airflow.dag_factories.backfill",
    "tidemark_airflow.dag_factories.erasure",
    "tidemark_airflow.dag_factories.ingest",
    "tidemark_airflow.dag_factories.live",
    "tidemark_airflow.dag_factories.maintenance",
    "tidemark_airflow.dag_factories.monitor",
    "tidemark_airflow.dag_factories.onboarding",
    "tidemark_airflow.notifications.webhook",
    "tidemark_airflow.submitters.child_processes",
)

_PARENTS: Final = frozenset({"scheduler", "dag-processor", "worker"})
"""Commands of Airflow whose processes are forked."""


def import_early(arguments: Collection[str] | None = None) -> None:
    """Import :data:`MODULES` if this process is one that forks, by its command line or by ``arguments``."""
    if _PARENTS.isdisjoint(sys.argv if arguments is None else arguments):
        return
    for name in MODULES:
        import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy the pages of all that is loaded
