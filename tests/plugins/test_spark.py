from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from tests.plugins.world import CLUSTER, World
from tidemark.table import Lake
from tidemark_airflow import spark
from tidemark_airflow.spark import ConvertOperator

# The provider leaves the pipe of its child to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning"
)

CONTEXT = cast("Context", {})
PLANNED = {"empty": False, "attempt": "42", "plan": "_tidemark/kafka-1/orders/attempts/42.json"}
NOTHING = {"empty": True, "attempt": "1", "plan": ""}
RECORDER = """\
import os, sys
open({path!r}, "w").write("\\n".join([os.environ.get("PYSPARK_PYTHON", ""), *sys.argv[1:]]))
sys.exit({code})
"""


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

    def publish(_context: Context, _lake: Lake, planned: Any) -> bool:
        plans.append(planned)
        return len(plans) > 1

    monkeypatch.setattr(spark, "publish", publish)
    return plans


def submit_with(folder: Path, monkeypatch: pytest.MonkeyPatch, *, code: int) -> None:
    (folder / "record.py").write_text(RECORDER.format(path=str(folder / "called"), code=code))
    submit = folder / "spark-submit"
    submit.write_text(f'#!/bin/sh\nexec {sys.executable} {folder}/record.py "$@"\n')
    submit.chmod(0o755)
    monkeypatch.setenv("TIDEMARK_SPARK_SUBMIT", str(submit))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)


def operator(planned: dict[str, Any] | None = None) -> ConvertOperator:
    return ConvertOperator(task_id="convert", cluster=CLUSTER, topic="orders", planned=planned or PLANNED)


def test_it_submits_the_plan(called: Path, world: World) -> None:
    (called.parent / "python").touch()
    operator().execute(CONTEXT)

    python, *arguments = called.read_text().splitlines()
    assert python == str(called.parent / "python")
    at = next(n for n, argument in enumerate(arguments) if argument.endswith("spark/jobs/convert.py"))
    assert arguments[:at] == ["--master", "local[2]", "--name", "tidemark-orders"]
    assert arguments[at + 1 :] == [
        *("--topics", str(world.topics_file)),
        *("--cluster", CLUSTER, "--topic", "orders"),
        *("--plan", PLANNED["plan"]),
    ]


def test_a_python_that_the_deployment_names_is_left_alone(called: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    operator().execute(CONTEXT)

    assert called.read_text().startswith("/opt/python\n")


def test_where_there_is_no_python_beside_spark_submit_none_is_named(called: Path) -> None:
    operator().execute(CONTEXT)

    assert called.read_text().startswith("\n")


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
