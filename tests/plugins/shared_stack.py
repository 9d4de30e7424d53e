"""One Airflow for all tests of whole processes. Each file of them has a deployment of its own, which no other touches.

===============  =============================  ==========================================================
deployment       topics file                    who reads it
===============  =============================  ==========================================================
``ingest``       ``<folder>/ingest/``           the DAGs of ``dags``, without the watch's, and an example
``watch``        ``<folder>/watch/``            the DAG of the watch
``page``         ``<folder>/page/``             the API server, for the continuity page: the environment's
===============  =============================  ==========================================================

The jobs of ``ingest`` are processes; those of the DAG :data:`REMOTE` run on a platform, see ``platform_server``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml

from tests.plugins.submitters.platform_server import Platform
from tests.plugins.world import CLUSTER, World
from tests.support.airflow import AirflowStack, import_early, with_times
from tests.support.lineage import LineageServer
from tests.support.paths import ROOT
from tests.support.receivers import HookServer, SmtpServer, alert_env

DAILY = "daily_orders"
REMOTE = "remote"
ADDED = "added"
"""A topic that a test adds while Airflow runs."""
STORE_SECRET = "store-secret-of-this-test"
KAFKA_SECRET = "kafka-secret-of-this-test"
_REMOTE_DAG = f"""\
from __future__ import annotations
from datetime import timedelta
from airflow.sdk import DAG
from tidemark_airflow.operators.spark_job import JobOperator

with DAG({REMOTE!r}, schedule=None):
    JobOperator(task_id="job", job="compact_live", cluster={CLUSTER!r}, execution_timeout=timedelta(hours=1))
"""
_FIRST_LINE = "from __future__ import annotations\n"


class SharedStack(AirflowStack):
    """That Airflow. ``ingest`` and ``watched`` are there, and the test makes the one of the page below ``page``."""

    def __init__(
        self, folder: Path, smtp: SmtpServer, hook: HookServer, lineage: LineageServer, remote: Platform
    ) -> None:
        """Nothing is started yet."""
        self.ingest = World(folder / "ingest", "orders", "clicks", "views", "hits", "broken")
        content = yaml.safe_load(self.ingest.topics_file.read_text())
        for topic in (content["topics"][0], content["topics"][-1]):
            topic["state"] = {}
        for topic in content["topics"][2:]:
            topic["freshness"] = "10s"
        self.ingest.write_topics(**content)
        self.watched = World(folder / "watch", "orders", "idle")
        self.page = folder / "page"
        home = folder / "airflow"
        import_early(home)
        dags = home / "dags"

        for path in (ROOT / "dags").glob("*.py"):
            one = self.watched if path.name == "watch.py" else self.ingest
            text = path.read_text()
            # Tests of what is late do not wait for a quarter of an hour, and nobody writes indexes all the while.
            text = with_times(text, late=1, gone=3600) if one is self.watched else text
            _copy(text, dags / one.root.name / path.name, one)
        example = (ROOT / "dags" / "examples" / f"{DAILY}.py").read_text()
        _copy(example.replace('"demo"', f'"{CLUSTER}"'), dags / "ingest" / f"{DAILY}.py", self.ingest)
        template = home / "job.yaml"
        template.write_text(yaml.safe_dump({"existing_cluster_id": "1234"}))
        path = dags / "ingest" / f"{REMOTE}.py"
        options = {"SPARK_CONN_ID": "platform", "REMOTE_JOBS": "s3://code", "REMOTE_TOPICS": "/there/topics.yaml"}
        _copy(_REMOTE_DAG, path, self.ingest, JOB_TEMPLATE=str(template), **options)
        submit = home / "spark-submit"
        submit.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.plugins.world "$@"\n')
        submit.chmod(0o755)
        transport = json.dumps({"type": "http", "url": lineage.url})
        at = {"host": "127.0.0.1", "port": remote.port, "schema": "http", "password": "p"}
        told = {
            **alert_env(smtp, hook),
            "AIRFLOW__OPENLINEAGE__TRANSPORT": transport,
            "AIRFLOW_CONN_PLATFORM": json.dumps({"conn_type": "databricks", **at}),
        }
        super().__init__(home, dags=dags, plugins=ROOT / "plugins", env={**self._env(submit), **told})

    def _env(self, submit: Path) -> dict[str, str]:
        return {
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,ann:user,vic:viewer",
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
            # A task whose worker is gone is tried again soon.
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "2",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "8",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
            # So are the triggers of a triggerer that is gone.
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "8",
            "AIRFLOW__TIDEMARK__TOPICS": str(self.page / "topics.yaml"),
            "AIRFLOW__TIDEMARK__SPARK_SUBMIT": str(submit),
            "AIRFLOW__TIDEMARK__STARTS_PAUSED": "True",
            "AIRFLOW__TIDEMARK__SCAN_SECONDS": "0.5",
            # The stores are directories; jobs get the connection all the same.
            "AIRFLOW__TIDEMARK__AWS_CONN_ID": "store",
            "AIRFLOW_CONN_STORE": json.dumps({"conn_type": "aws", "login": "AKIA", "password": STORE_SECRET}),
            # Onboarding has Kafka's password at hand, and no broker to ask.
            "AIRFLOW__TIDEMARK__KAFKA_CONN_ID": "kafka_{cluster}",
            f"AIRFLOW_CONN_KAFKA_{CLUSTER.upper()}": json.dumps(
                {"conn_type": "kafka", "login": "tidemark", "password": KAFKA_SECRET}
            ),
            "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[1]"}',
        }


def _copy(text: str, to: Path, world: World, **options: str) -> None:
    """A DAG file whose deployment is ``world``, where it is parsed and in its tasks; they alone have ``options``."""
    assert _FIRST_LINE in text
    to.parent.mkdir(parents=True, exist_ok=True)
    values = {
        f"AIRFLOW__TIDEMARK__{name}": value for name, value in ({"TOPICS": str(world.topics_file)} | options).items()
    }
    named = f"import os\n\nos.environ.update({values!r})\n"
    to.write_text(text.replace(_FIRST_LINE, f"{_FIRST_LINE}\n{named}", 1))
