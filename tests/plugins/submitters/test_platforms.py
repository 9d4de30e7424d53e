"""The requests that each platform gets for a job, and what Tidemark makes of the answers.

EMR Serverless is moto's imitation. Databricks and Kubernetes are a server of the test that answers as their
documentation says: it shows what is sent, and not what the platforms do.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import boto3
import pytest
from airflow.providers.databricks.hooks.databricks import DatabricksHook
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tests.plugins.submitters.platform_server import (
    JOB,
    THERE,
    TOKEN,
    Kept,
    Platform,
    Request,
    ended,
    run,
    stored,
    use,
    waiting_for,
)
from tests.plugins.world import CLUSTER
from tests.support.glue import REGION, GlueServer
from tests.support.paths import ROOT
from tidemark.errors import ConfigError
from tidemark_airflow.operators.spark_job import JobOperator
from tidemark_airflow.submitters import choice, emr_serverless
from tidemark_airflow.submitters.base import JobState, RemoteSubmitter
from tidemark_airflow.submitters.choice import submitter, watcher

# The provider of Databricks imports a name that Airflow has moved.
pytestmark = pytest.mark.filterwarnings("ignore:ProvidersManager.hooks is deprecated")

CONTEXT = cast("Context", {})
SECRET = "token-of-the-platform"
ROLE = "arn:aws:iam::123456789012:role/jobs"


def test_each_type_of_connection_has_a_row_on_the_page() -> None:
    page = (ROOT / "docs" / "airflow.md").read_text(encoding="utf-8")
    table = page.partition("\n## Where Spark runs\n")[2].partition("\n\n#")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == {conn_type for conn_type, _ in choice._KINDS}


# EMR Serverless


@pytest.fixture
def emr(starts_other: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, str]]:
    """A client, and the id of an application."""
    with GlueServer(tmp_path) as server:
        keys: dict[str, Any] = {"aws_access_key_id": "tests", "aws_secret_access_key": "tests", "region_name": REGION}
        client: Any = boto3.client("emr-serverless", endpoint_url=server.endpoint, **keys)
        application = client.create_application(type="SPARK", releaseLabel="emr-7.9.0")["applicationId"]
        template = {
            "applicationId": application,
            "executionRoleArn": ROLE,
            "jobDriver": {"sparkSubmit": {"sparkSubmitParameters": "--conf spark.executor.cores=2"}},
            "configurationOverrides": {
                "monitoringConfiguration": {"s3MonitoringConfiguration": {"logUri": "s3://logs/emr/"}}
            },
        }
        extra = {"endpoint_url": server.endpoint, "region_name": REGION}
        use(monkeypatch, tmp_path, template, conn_type="aws", login="tests", password=SECRET, extra=extra)
        yield client, application


def test_emr_serverless_is_asked_to_start_the_job(emr: tuple[Any, str]) -> None:
    client, application = emr
    kept = Kept()
    page = run(kept)  # which moto says has succeeded at once
    job_id = str(kept.written[0])
    path = f"emr/applications/{application}/jobs/{job_id}/"
    assert page == f"https://console.aws.amazon.com/s3/buckets/logs?prefix={path}"
    assert kept.written == [job_id, None]
    found = client.get_job_run(applicationId=application, jobRunId=job_id)["jobRun"]
    assert (found["name"], found["executionRole"]) == (JOB.name, ROLE)
    assert found["jobDriver"]["sparkSubmit"] == {
        "entryPoint": "s3://code/jobs/run_plan.py",
        "entryPointArguments": THERE,
        "sparkSubmitParameters": "--conf spark.executor.cores=2",
    }
    assert SECRET not in json.dumps(found, default=str)


@pytest.mark.usefixtures("emr")
def test_a_job_of_emr_serverless_is_ended_and_found_again(tmp_path: Path) -> None:
    with submitter(JOB.program, {}) as made:
        assert isinstance(made, RemoteSubmitter)
        job_id = made.submit(JOB)
        assert made.status(job_id).state is JobState.SUCCEEDED
    (tmp_path / "job.yaml").unlink()  # the triggerer has no template
    there = watcher(type(made).__name__, made.conn_id, made.place)
    there.cancel(job_id)
    assert there.status(job_id).state is JobState.FAILED
    assert there.status("00unknown").state is JobState.UNKNOWN


# Databricks


def state(result: str | None) -> dict[str, Any]:
    found = {"life_cycle_state": "TERMINATED" if result else "RUNNING", "state_message": "as the test says"}
    return {"state": {**found, "result_state": result or ""}, "run_page_url": "https://dbc.example/run/7"}


def databricks(platform: Platform, *states: dict[str, Any]) -> None:
    """Have each look at a run find the next state; the last one stays. The page is asked for before."""
    left = [states[0], *states]

    def answer(asked: Request) -> tuple[int, Any]:
        if asked.method == "POST":
            return 200, {"run_id": 7}
        return 200, left.pop(0) if len(left) > 1 else left[0]

    platform.answer = answer


@pytest.fixture
def workspace(platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Platform:
    at = {"host": "127.0.0.1", "port": platform.port, "schema": "http"}
    template = {"existing_cluster_id": "1234", "libraries": [{"whl": "dbfs:/tidemark.whl"}]}
    use(monkeypatch, tmp_path, template, conn_type="databricks", password=SECRET, **at)
    return platform


def test_databricks_is_asked_to_run_the_job(workspace: Platform) -> None:
    databricks(workspace, state(None), state(None), state("SUCCESS"))
    kept = Kept()
    assert run(kept) == "https://dbc.example/run/7"
    [submitted] = workspace.sent("POST")
    assert submitted.path == "/api/2.2/jobs/runs/submit"
    assert submitted.authorization == f"Bearer {SECRET}"
    assert submitted.body == {
        "run_name": JOB.name,
        "idempotency_token": TOKEN,
        "tasks": [
            {
                "task_key": "tidemark",
                "existing_cluster_id": "1234",
                "libraries": [{"whl": "dbfs:/tidemark.whl"}],
                "spark_python_task": {"python_file": "s3://code/jobs/run_plan.py", "parameters": THERE},
            }
        ],
    }
    assert kept.written == ["7", None]


def test_a_run_that_fails_on_databricks_fails_the_task(workspace: Platform) -> None:
    databricks(workspace, state("FAILED"))
    with pytest.raises(AirflowException, match="job 7: failed: TERMINATED: FAILED: as the test says"):
        run(Kept())


def cancelled(platform: Platform) -> list[Any]:
    """The bodies of the requests that end a run."""
    return [one.body for one in platform.sent("POST") if one.path == "/api/2.2/jobs/runs/cancel"]


def test_a_task_that_is_killed_ends_its_run(workspace: Platform) -> None:
    databricks(workspace, state(None))
    with submitter(JOB.program, {}) as made:
        assert made.run(JOB, Kept()) == "7"
        made.end()
    assert cancelled(workspace) == [{"run_id": 7}]


def test_a_task_that_is_ended_while_it_waits_ends_its_run(workspace: Platform) -> None:
    databricks(workspace, state(None))
    asyncio.run(waiting_for(JOB).on_kill())
    assert cancelled(workspace) == [{"run_id": 7}]


def test_a_triggerer_that_stops_leaves_the_run_to_the_next(workspace: Platform) -> None:
    databricks(workspace, state(None))
    trigger = waiting_for(JOB)

    async def stopped() -> None:
        waiting = asyncio.ensure_future(anext(trigger.run()))
        asked = len(workspace.requests)
        while len(workspace.requests) < asked + 3:
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(stopped())
    assert cancelled(workspace) == []
    databricks(workspace, state("SUCCESS"))
    assert ended(stored(trigger))["state"] == "succeeded"


def test_a_run_that_outlasts_the_task_is_ended_once_and_waited_for(workspace: Platform) -> None:
    databricks(workspace, state(None))
    trigger = waiting_for(JOB, timedelta(0))
    looks = [state(None), state(None), state(None), state("CANCELED")]

    def answer(asked: Request) -> tuple[int, Any]:
        if asked.method == "POST":
            return 200, {}
        return 200, looks.pop(0)

    workspace.answer = answer
    event = ended(trigger)
    assert cancelled(workspace) == [{"run_id": 7}]
    assert looks == [], "a run that is being ended may still write"
    assert event["state"] == "failed"
    assert re.match(r"ended at .*, the task's execution_timeout: TERMINATED: CANCELED", event["words"])


def test_a_look_that_fails_is_no_end_of_the_run(workspace: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """The try fails without an event, so the id is kept, and the next try finds the run."""
    monkeypatch.setattr(DatabricksHook, "retry_limit", 1, raising=False)
    databricks(workspace, state(None))
    trigger = waiting_for(JOB)
    workspace.answer = lambda _: (403, {"error_code": "PERMISSION_DENIED"})
    with pytest.raises(AirflowException, match="403"):
        ended(trigger)


def test_a_platform_that_this_version_does_not_have_is_named(workspace: Platform) -> None:
    databricks(workspace, state(None))
    trigger = waiting_for(JOB)
    trigger.submitter = "Livy"
    with pytest.raises(ConfigError, match="Livy: is no platform of this version"):
        ended(trigger)


@pytest.mark.parametrize(("result", "submits"), [(None, 0), ("SUCCESS", 0), ("FAILED", 1)])
def test_a_retry_finds_the_run_of_the_try_before(workspace: Platform, result: str | None, submits: int) -> None:
    left = [state(result)]

    def answer(asked: Request) -> tuple[int, Any]:
        if asked.method == "POST":
            return 200, {"run_id": 7}
        return 200, left.pop() if left else state("SUCCESS")

    workspace.answer = answer
    kept = Kept("5")
    run(kept)
    assert len(workspace.sent("POST")) == submits
    assert kept.job_id is None


# Kubernetes

APPLICATIONS = "/apis/sparkoperator.k8s.io/v1beta2/namespaces/jobs/sparkapplications"


@pytest.fixture
def cluster(platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Platform:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": platform.url}}],
        "users": [{"name": "u", "user": {"token": SECRET}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    template = {"metadata": {"namespace": "jobs"}, "spec": {"image": "spark-tidemark", "type": "Python"}}
    use(monkeypatch, tmp_path, template, conn_type="kubernetes", extra={"kube_config": json.dumps(config)})
    return platform


def kubernetes(platform: Platform, *states: str, created: int = 201) -> None:
    left = list(states)

    def answer(asked: Request) -> tuple[int, Any]:
        if asked.method == "POST":
            return created, asked.body
        if not left:
            return 404, {}
        now = left.pop(0) if len(left) > 1 else left[0]
        return 200, {"status": {"applicationState": {"state": now, "errorMessage": "as the test says"}}}

    platform.answer = answer


@pytest.mark.parametrize("created", [201, 409])
def test_kubernetes_is_asked_for_a_spark_application(cluster: Platform, created: int) -> None:
    kubernetes(cluster, "SUBMITTED", "RUNNING", "COMPLETED", created=created)
    kept = Kept()
    run(kept)
    submitted = cluster.sent("POST")[0]
    name = f"tidemark-{TOKEN[:32]}"
    assert submitted.path == APPLICATIONS
    assert submitted.authorization == f"Bearer {SECRET}"
    assert submitted.body == {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": {"name": name, "namespace": "jobs", "annotations": {"tidemark/name": JOB.name}},
        "spec": {
            "image": "spark-tidemark",
            "type": "Python",
            "mainApplicationFile": "s3://code/jobs/run_plan.py",
            "arguments": THERE,
            "restartPolicy": {"type": "Never"},
        },
    }
    assert kept.written == [name, None]
    assert {one.path for one in cluster.sent("GET")} == {f"{APPLICATIONS}/{name}"}


def test_an_application_that_fails_or_is_gone_fails_the_task(cluster: Platform) -> None:
    kubernetes(cluster, "RUNNING", "FAILED")
    with pytest.raises(AirflowException, match="failed: FAILED: as the test says"):
        run(Kept())
    kubernetes(cluster)
    with pytest.raises(AirflowException, match="unknown: there is no such SparkApplication"):
        run(Kept())


def test_an_application_is_deleted_with_its_task(cluster: Platform, tmp_path: Path) -> None:
    kubernetes(cluster, "RUNNING")
    trigger = waiting_for(JOB)
    (tmp_path / "job.yaml").unlink()
    asyncio.run(trigger.on_kill())
    assert [one.path for one in cluster.sent("DELETE")] == [f"{APPLICATIONS}/{trigger.job_id}"]


# What is configured


def submit_from_airflow(**options: Any) -> None:
    job = JobOperator(task_id="job", job="retain", cluster=CLUSTER, topic="orders", **options)
    job.submit(CONTEXT)


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("missing", ["JOB_TEMPLATE", "REMOTE_JOBS", "REMOTE_TOPICS"])
def test_what_is_not_configured_is_named(missing: str, workspace: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    databricks(workspace, state("SUCCESS"))
    submit_from_airflow()
    submitted = len(workspace.sent("POST"))
    monkeypatch.delenv(f"AIRFLOW__TIDEMARK__{missing}")
    with pytest.raises(AirflowFailException, match=rf"\[tidemark\] {missing.lower()}"):
        submit_from_airflow()
    assert len(workspace.sent("POST")) == submitted == 1


@pytest.mark.usefixtures("world")
def test_a_connection_of_another_type_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_PLATFORM", '{"conn_type": "livy", "host": "livy"}')
    with pytest.raises(AirflowFailException, match=r"must be of type spark, .*databricks, but is of type livy"):
        submit_from_airflow()


@pytest.mark.usefixtures("world")
def test_a_role_that_a_platform_cannot_have_is_an_error(workspace: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TIDEMARK__RETENTION_PROFILE", "reaper")
    with pytest.raises(AirflowFailException, match=r"\[tidemark\] retention_profile: cannot hold"):
        submit_from_airflow(options={"only": "raw"})
    assert not workspace.requests


@pytest.mark.parametrize(
    ("template", "name"),
    [({"applicationId": "00f1", "executionRoleArn": ROLE}, "EmrServerless"), ({"JobName": "tidemark"}, "AnotherOfAws")],
)
def test_platforms_of_one_type_of_connection_are_told_by_their_templates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: dict[str, Any], name: str
) -> None:
    use(monkeypatch, tmp_path, template, conn_type="aws", extra={"region_name": REGION})
    monkeypatch.setitem(choice._KINDS, ("aws", "JobName"), choice._Kind("emr_serverless", "AnotherOfAws"))

    class AnotherOfAws:
        def __init__(self, conn_id: str) -> None:
            assert conn_id

    monkeypatch.setattr(emr_serverless, "AnotherOfAws", AnotherOfAws, raising=False)
    with submitter(JOB.program, {}) as made:
        assert type(made).__name__ == name


@pytest.mark.parametrize("template", [{}, {"applicationId": "00f1", "JobName": "tidemark"}], ids=["none", "two"])
def test_a_template_that_names_no_platform_or_two_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: dict[str, Any]
) -> None:
    use(monkeypatch, tmp_path, template, conn_type="aws", extra={"region_name": REGION})
    monkeypatch.setitem(choice._KINDS, ("aws", "JobName"), choice._Kind("emr_serverless", "EmrServerless"))
    with pytest.raises(ConfigError, match="applicationId or JobName: is required"), submitter(JOB.program, {}):
        pass
