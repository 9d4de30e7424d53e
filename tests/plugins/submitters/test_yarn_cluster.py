"""A plan is carried out by YARN itself, in cluster mode; whatever is killed, it is one application and one commit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.support.paths import ROOT, env_bin, env_python
from tests.support.process import ManagedProcess
from tests.support.spark import spark_env
from tests.support.waiting import wait_until
from tests.support.yarn import Yarn
from tidemark.table.delta_table import TopicTable, committed_ledger, open_topic_table
from tidemark.topics import load_topics

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

RECORDS = 20
JOB = """\
import os, pathlib, sys, time
gate = pathlib.Path({gate!r})
gate.with_name(f"driver-{{os.getpid()}}").touch()
while gate.exists():
    time.sleep(0.05)
from tidemark_spark.jobs.running import run_job
sys.exit(run_job("run_plan"))
"""
"""The job, which waits at a gate."""


@pytest.fixture(scope="module")
def yarn(starts_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    with Yarn(tmp_path_factory.mktemp("yarn")) as running:
        yield running


class Deployment:
    """A topic with records to land, its plan, and tries of the task that has YARN carry it out."""

    def __init__(self, root: Path, yarn: Yarn) -> None:
        self.root, self.yarn = root, yarn
        self.gate = root / "gate"
        (root / "jobs").mkdir()
        (root / "jobs" / "run_plan.py").write_text(JOB.format(gate=str(self.gate)))
        made = [str(env_python("dev")), "-m", "tests.spark.planned_topic", str(root), str(RECORDS)]
        key = subprocess.run(made, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
        topics_file = root / "topics.yaml"
        deployment = load_topics(topics_file)
        self.table: TopicTable = open_topic_table(deployment, deployment.topic("orders"))
        self.arguments = ["--topics", str(topics_file), "--cluster", "east", "--topic", "orders", "--plan", key]
        self.before = {one["id"] for one in yarn.applications()}

    def try_task(self, number: int) -> ManagedProcess:
        """Start a try of the task."""
        template = self.root / "job.yaml"
        # A driver at the gate has no context of Spark's yet, for which YARN would not wait as long.
        waits = {"spark.yarn.am.waitTime": "600s"}
        template.write_text(yaml.safe_dump(self.yarn.spark_conf(env_python("spark")) | waits))
        extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": self.yarn.url}
        inherited = spark_env(self.yarn.client_env())
        for name in ("SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            del inherited[name]  # a deployment need not have them
        env = {
            **inherited,
            "AIRFLOW_CONN_PLATFORM": json.dumps({"conn_type": "spark", "host": "yarn", "extra": extra}),
            "AIRFLOW__TIDEMARK__JOB_TEMPLATE": str(template),
            "AIRFLOW__TIDEMARK__REMOTE_JOBS": f"file://{self.root}/jobs",
            "AIRFLOW__TIDEMARK__REMOTE_TOPICS": self.arguments[1],
            "AIRFLOW__TIDEMARK__SPARK_SUBMIT": str(env_bin("spark", "spark-submit")),
        }
        command = [sys.executable, "-m", "tests.plugins.submitters.yarn_task", str(number), *self.arguments]
        return ManagedProcess(f"try-{number}", command, log=self.root / f"try-{number}.log", env=env, cwd=ROOT).start()

    def applications(self) -> list[dict[str, Any]]:
        return [one for one in self.yarn.applications() if one["id"] not in self.before]

    def drivers(self) -> list[int]:
        """The process ids of drivers that came to the gate."""
        return [int(one.name.removeprefix("driver-")) for one in self.root.glob("driver-*")]

    def check_landed(self) -> None:
        """One application has landed all records in one commit."""
        [application] = self.applications()
        assert (application["state"], application["finalStatus"]) == ("FINISHED", "SUCCEEDED")
        assert committed_ledger(self.table).by_partition[0, 0].next_offset == RECORDS
        assert committed_ledger(self.table).n == 1


@pytest.fixture
def deployment(tmp_path: Path, yarn: Yarn) -> Deployment:
    return Deployment(tmp_path, yarn)


def test_a_job_runs_as_an_application_of_yarn(deployment: Deployment) -> None:
    task = deployment.try_task(1)
    assert task.wait(600) == 0, task.log_tail()
    deployment.check_landed()
    [application] = deployment.applications()
    assert application["applicationTags"].startswith("tidemark-")
    assert f"page {application['trackingUrl']}" in task.log.read_text()


def kill_try(deployment: Deployment, task: ManagedProcess) -> ManagedProcess:
    """Kill the task and its spark-submit; the next try."""
    task.kill()
    return deployment.try_task(2)


def kill_resource_manager(deployment: Deployment, task: ManagedProcess) -> ManagedProcess:
    """Kill it, and start it on the state that it kept."""
    deployment.yarn.resource_manager.kill()
    deployment.yarn.start_resource_manager()
    return task


def kill_driver(deployment: Deployment, task: ManagedProcess) -> ManagedProcess:
    """Kill the driver and its JVM; YARN starts the application's second attempt."""
    [driver] = deployment.drivers()
    jvm = psutil.Process(driver).parent()
    assert jvm is not None
    assert "ApplicationMaster" in " ".join(jvm.cmdline())
    jvm.kill()
    task.wait_until(lambda: len(deployment.drivers()) == 2, what="to have a second driver")
    return task


@pytest.mark.parametrize("kill", [kill_try, kill_resource_manager, kill_driver])
def test_what_is_killed_leaves_one_application_and_one_commit(deployment: Deployment, kill: Any) -> None:
    deployment.gate.touch()
    task = deployment.try_task(1)
    try:
        if kill is kill_try:  # as soon as YARN has it: spark-submit has not yet said so
            task.wait_until(lambda: bool(deployment.applications()), what="to have an application")
        else:
            task.wait_until(lambda: bool(deployment.drivers()), what="to have a driver")
        task = kill(deployment, task)
        wait_until(lambda: bool(deployment.drivers()), what="a driver")
        deployment.gate.unlink()
        assert task.wait(600) == 0, task.log_tail()
    finally:
        task.stop()
    deployment.check_landed()


def test_a_task_that_is_killed_ends_its_application(deployment: Deployment) -> None:
    deployment.gate.touch()
    task = deployment.try_task(1)
    try:
        task.wait_until(lambda: bool(deployment.drivers()), what="to have a driver")
        task.send(signal.SIGTERM)
        assert task.wait(60) == 143, task.log_tail()
        wait_until(lambda: deployment.applications()[0]["state"] == "KILLED", what="the application to be killed")
        [driver] = deployment.drivers()
        wait_until(lambda: not psutil.pid_exists(driver), what="the driver to end")
    finally:
        task.stop()
