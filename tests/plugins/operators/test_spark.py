from __future__ import annotations

import gc
import json
import signal
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, AirflowTaskTimeout

from tests.plugins.world import CLUSTER, World
from tests.support.hosts import own_hosts
from tests.support.process import ProcessRecord
from tests.support.waiting import wait_until
from tidemark.table.delta_table import TopicTable
from tidemark_airflow.operators import spark_job
from tidemark_airflow.operators.spark_job import JobOperator, RunPlanOperator
from tidemark_airflow.submitters import child_processes

# The provider leaves its child and the pipe to it to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <(_io.FileIO|function Popen):pytest.PytestUnraisableExceptionWarning"
)

CONTEXT = cast("Context", {})
PLANNED = {"empty": False, "attempt": "42", "plan": "_tidemark/kafka-1/orders/attempts/42.json", "tasks": 1}
NOTHING = {"empty": True, "attempt": "1", "plan": "", "tasks": 0}
RECORDER = """\
import json, os, sys
json.dump(dict(os.environ), open({path!r} + ".env", "w"))
open({path!r}, "w").write("\\n".join([os.environ.get("PYSPARK_PYTHON", ""), *sys.argv[1:]]))
sys.exit({code})
"""

TOKEN = "token-that-nobody-may-see"
CLIENT = """\
#!{python}
import json, os, sys
json.dump({{"arguments": sys.argv[1:], "environment": dict(os.environ)}}, open("{path}", "w"))
print("a line of the job", flush=True)
sys.exit(int(os.environ.get("SPARK_JOB_CODE", "0")))
"""
STUBBORN = (
    "import os, pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    'pathlib.Path("{path}.part").write_text(str(os.getpid())); os.rename("{path}.part", "{path}"); time.sleep(60)'
)
"""A grandchild of the task that does not listen."""


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """What the provider leaves is found here, where the warnings about it are ignored."""
    yield
    gc.collect()


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: World) -> Path:
    """Where the stand-in for spark-submit writes PYSPARK_PYTHON and its arguments, a line each."""
    assert world.topics_file.exists()
    path = tmp_path / "called"
    submit_with(tmp_path, monkeypatch, code=0)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2]"}')
    return path


@pytest.fixture(autouse=True)
def published(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The plans after which it has published; there are news if something was in it before."""
    plans: list[Any] = []

    def publish(_context: Context, _table: TopicTable, planned: Any) -> bool:
        plans.append(planned)
        return len(plans) > 1

    monkeypatch.setattr(spark_job, "publish", publish)
    return plans


def submit_with(folder: Path, monkeypatch: pytest.MonkeyPatch, *, code: int) -> None:
    (folder / "record.py").write_text(RECORDER.format(path=str(folder / "called"), code=code))
    submit = folder / "spark-submit"
    submit.write_text(f'#!/bin/sh\nexec {sys.executable} {folder}/record.py "$@"\n')
    submit.chmod(0o755)
    monkeypatch.setenv("AIRFLOW__TIDEMARK__SPARK_SUBMIT", str(submit))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)


def environment(called: Path) -> dict[str, str]:
    """What the stand-in for spark-submit was given."""
    found: dict[str, str] = json.loads(Path(f"{called}.env").read_text())
    return found


def operator(planned: dict[str, Any] | None = None) -> RunPlanOperator:
    return RunPlanOperator(task_id="convert", cluster=CLUSTER, topic="orders", planned=planned or PLANNED)


@pytest.mark.parametrize("name", ["retain", "vacuum"])
def test_a_job_that_never_starts_spark_needs_no_jvm(
    called: Path, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    told = tmp_path / "told.json"
    python = tmp_path / "python"
    python.write_text(CLIENT.format(python=sys.executable, path=told))
    python.chmod(0o755)
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", TOKEN)
    JobOperator(task_id="job", job=name, cluster=CLUSTER, topic="orders").submit(CONTEXT)
    assert not called.exists(), "spark-submit was not called"
    given = json.loads(told.read_text())
    job, *arguments = given["arguments"]
    assert job.endswith(f"spark/jobs/{name}.py")
    words = ["--topics", str(world.topics_file), "--cluster", CLUSTER, "--lineage", "off", "--topic", "orders"]
    assert arguments[: len(words)] == words
    assert TOKEN not in given["environment"].values()
    monkeypatch.setenv("SPARK_JOB_CODE", "3")
    with pytest.raises(AirflowException, match="a line of the job"):
        JobOperator(task_id="job", job=name, cluster=CLUSTER, topic="orders").submit(CONTEXT)


@pytest.mark.parametrize(("tasks", "state", "submits"), [(0, False, False), (0, True, True), (1, False, True)])
def test_a_plan_without_tasks_needs_no_jvm(
    called: Path, tmp_path: Path, tasks: int, state: bool, submits: bool
) -> None:
    python = tmp_path / "python"
    python.write_text(CLIENT.format(python=sys.executable, path=tmp_path / "told.json"))
    python.chmod(0o755)
    planned = {**PLANNED, "tasks": tasks}
    RunPlanOperator(task_id="run", cluster=CLUSTER, topic="orders", planned=planned, with_state=state).execute(CONTEXT)
    assert called.exists() is submits
    assert (tmp_path / "told.json").exists() is not submits


def test_where_the_python_of_spark_is_not_known_every_job_is_submitted(called: Path) -> None:
    JobOperator(task_id="job", job="vacuum", cluster=CLUSTER, topic="orders").submit(CONTEXT)
    assert "vacuum.py" in called.read_text()


def test_it_submits_the_plan(called: Path, world: World) -> None:
    (called.parent / "python").touch()
    operator().execute(CONTEXT)

    python, *arguments = called.read_text().splitlines()
    assert python == str(called.parent / "python")
    at = next(n for n, argument in enumerate(arguments) if argument.endswith("spark/jobs/run_plan.py"))
    assert arguments[:at] == ["--master", "local[2]", "--name", "tidemark-orders"]
    assert arguments[at + 1 :] == [
        *("--topics", str(world.topics_file)),
        *("--cluster", CLUSTER, "--lineage", "off", "--topic", "orders"),
        *("--plan", PLANNED["plan"]),
    ]


def test_a_python_that_the_deployment_names_is_left_alone(called: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    operator().execute(CONTEXT)

    assert called.read_text().startswith("/opt/python\n")


def test_where_there_is_no_python_beside_spark_submit_none_is_named(called: Path) -> None:
    operator().execute(CONTEXT)

    assert called.read_text().startswith("\n")


@pytest.mark.parametrize("own", ["", "-XX:TieredStopAtLevel=4 -Da=b"])
def test_the_drivers_jvm_has_one_compiler_unless_the_deployment_says_otherwise(
    own: str, called: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two equal options, the JVM takes the last one: ``tests/spark/cluster/test_jvms.py`` asks it."""
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", own)
    operator().execute(CONTEXT)

    assert environment(called)["SPARK_SUBMIT_OPTS"].split() == ["-XX:TieredStopAtLevel=1", *own.split()]


def test_without_a_connection_it_fails_instead_of_going_to_yarn(called: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")

    with pytest.raises(AirflowException, match="no connection 'spark_default'"):
        operator().execute(CONTEXT)
    assert not called.exists()


def test_a_connection_without_a_master_is_an_error(called: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark"}')

    with pytest.raises(AirflowException, match="has no host"):
        operator().execute(CONTEXT)
    assert not called.exists()


def test_an_empty_plan_is_skipped_without_spark(called: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")

    with pytest.raises(AirflowSkipException):
        operator(NOTHING).execute(CONTEXT)
    assert not called.exists()


def test_an_empty_plan_is_not_skipped_while_something_is_to_be_published(published: list[Any], called: Path) -> None:
    published.append("news")
    operator(NOTHING).execute(CONTEXT)

    assert not called.exists()


def test_it_publishes_after_the_job_and_not_if_it_fails(
    published: list[Any], called: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator().execute(CONTEXT)
    assert published == [PLANNED]

    submit_with(called.parent, monkeypatch, code=3)
    with pytest.raises(AirflowException, match="Error code is: 3"):
        operator().execute(CONTEXT)
    assert published == [PLANNED]


AIRFLOWS_OWN = {
    "AIRFLOW__API_AUTH__JWT_SECRET": "jwt",
    "AIRFLOW__API__SECRET_KEY": "api",
    "AIRFLOW__CORE__FERNET_KEY": "fernet",
    "AIRFLOW_CONN_MAIL": "smtp://ann:password@mail",
    "_AIRFLOW__AS_LIBRARY": "1",
    "AIRFLOW__TIDEMARK__NOTIFIERS": '{"url": "https://hook/secret"}',
    "POSTGRES_PASSWORD": "postgres",
    "SOME_PROGRAMS_TOKEN": "token",
}
JOBS = {
    "AWS_PROFILE": "pipeline",
    "TIDEMARK__STORE__REGION": "eu-1",
    "JAVA_HOME": "/opt/java",
    "SPARK_CONF_DIR": "/conf",
}


@pytest.mark.parametrize("way", ["spark", "spark_connect"])
def test_a_job_gets_what_it_needs_and_nothing_of_airflows(
    way: str, called: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "spark_connect":
        request.getfixturevalue("connect")
    else:
        (called.parent / "python").touch()  # so that the job gets a variable more, PYSPARK_PYTHON
    for name, value in {**AIRFLOWS_OWN, **JOBS}.items():
        monkeypatch.setenv(name, value)
    operator().execute(CONTEXT)
    found = environment(called) if way == "spark" else json.loads(called.read_text())["environment"]
    assert not {name for name in found if name in AIRFLOWS_OWN or "AIRFLOW" in name}
    assert {name: found.get(name) for name in JOBS} == JOBS

    monkeypatch.setenv("AIRFLOW__TIDEMARK__JOB_ENVIRONMENT", "OTHER, SOME_PROGRAMS_TOKEN")
    operator().execute(CONTEXT)
    found = environment(called) if way == "spark" else json.loads(called.read_text())["environment"]
    assert {name for name in found if name in AIRFLOWS_OWN} == {"SOME_PROGRAMS_TOKEN"}


@pytest.fixture
def hosts() -> Iterator[None]:
    """Jobs of this test get hosts of their own."""
    with own_hosts():
        yield


@pytest.fixture
def connect(hosts: None, called: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A connection to a Connect server, and a job of which the program writes down what it was told."""
    as_connect(called, CLIENT.format(python=sys.executable, path=called), monkeypatch)
    return called.with_name("python")


def as_connect(called: Path, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let jobs run on Connect, all of which are ``job``, as forks of this Python."""
    python = called.with_name("python")
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    jobs = called.with_name("jobs")
    jobs.mkdir(exist_ok=True)
    (jobs / "run_plan.py").write_text("if __name__ == '__main__':\n" + textwrap.indent(job, "    "))
    connection = {"conn_type": "spark_connect", "host": "server", "port": 15002, "password": TOKEN}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW__TIDEMARK__SPARK_JOBS", str(jobs))


def test_a_connection_of_type_spark_connect_runs_the_job_as_a_client(
    connect: Path, called: Path, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        operator().execute(CONTEXT)

    told = json.loads(called.read_text())
    assert told["arguments"] == [
        *("--topics", str(world.topics_file)),
        *("--cluster", CLUSTER, "--lineage", "off", "--topic", "orders"),
        *("--plan", PLANNED["plan"]),
    ]
    assert told["environment"]["SPARK_REMOTE"] == f"sc://server:15002/;token={TOKEN}"
    assert "a line of the job" in caplog.text
    assert TOKEN not in caplog.text


def test_a_job_that_fails_on_connect_fails_the_task_with_its_last_lines(
    connect: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_JOB_CODE", "3")

    with pytest.raises(AirflowException, match=r"run_plan.py ended with code 3; its last lines:\na line of the job"):
        operator().execute(CONTEXT)


@pytest.mark.usefixtures("connect")
def test_an_environment_without_sparks_python_is_named(called: Path) -> None:
    called.with_name("python").unlink()

    with pytest.raises(AirflowFailException, match=r"\[tidemark\] spark_python"):
        operator().execute(CONTEXT)


@pytest.mark.usefixtures("hosts")
@pytest.mark.parametrize("way", ["spark", "spark_connect"])
@pytest.mark.parametrize("end", ["killed", "timed out"])
def test_a_task_that_is_ended_ends_all_of_its_job(
    way: str, end: str, called: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow calls on_kill from a signal's handler in the main thread; a timeout raises there, then calls it."""
    started = f"#!/bin/sh\n{sys.executable} -c '{STUBBORN.format(path=called)}'\n"
    if way == "spark":
        program = called.with_name("spark-submit")
        program.write_text(started)
        program.chmod(0o755)
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": way, "host": "local"}))
        monkeypatch.setattr(child_processes, "GRACE_SECONDS", 0.3)
    else:
        as_connect(called, f"import subprocess\nsubprocess.run({started!r}, shell=True)\n", monkeypatch)
    job = operator()

    def on_alarm(_number: int, _frame: object) -> None:
        if called.exists():
            if end == "timed out":
                raise AirflowTaskTimeout
            job.on_kill()
        else:
            signal.setitimer(signal.ITIMER_REAL, 0.05)

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises((AirflowException, AirflowTaskTimeout)):
            job.execute(CONTEXT)
        job.on_kill()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    grandchild = ProcessRecord("job", int(called.read_text()), started=called.stat().st_mtime)
    wait_until(lambda: grandchild.find() is None, what="the job to be gone")
