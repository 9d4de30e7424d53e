"""Spark that is not there, and a task that fails for good: one message each, and no traceback."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from tidemark.errors import AccessDenied, SparkUnavailable, TaskFailed
from tidemark_spark.cluster import connect_client, session
from tidemark_spark.cluster.executor import worker_error
from tidemark_spark.cluster.target import ClusterTarget
from tidemark_spark.jobs.running import run_job


def refused(_common: None, _task: int) -> None:
    """A task that no other attempt can save."""
    raise AccessDenied("s3://raw/a", "give the role s3:GetObject")


def main(master: str) -> None:
    """Say on standard output what becomes of a task on ``master``."""
    try:
        session.spark("tests", ClusterTarget(master)).on_each(refused, None, [1])
    except (SparkUnavailable, TaskFailed) as error:
        sys.stdout.write(f"{type(error).__name__}: {error}\n")


def test_a_connect_server_that_is_not_there_is_told_soon_and_without_the_token(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark's own client asks for ten minutes."""
    monkeypatch.setattr(connect_client, "_CONNECT_SECONDS", 1.0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        port = taken.getsockname()[1]
        assert run_job("warm_up", ["--remote", f"sc://127.0.0.1:{port}/;token=secret;use_ssl=true"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(
        f"SparkUnavailable: 127.0.0.1:{port}: no Spark Connect server answers within 1 s; does it run"
    )
    assert "secret" not in said
    assert len(said.splitlines()) == 1


def test_the_error_of_a_worker_is_taken_from_sparks_report_of_it() -> None:
    report = (
        "org.apache.spark.SparkException: Job aborted due to stage failure: Lost task 0.3 (TID 3) (host executor 1): "
        'org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n  File "store.py", line 1\n'
        "tidemark.errors.AccessDenied: s3://raw/a: give the role s3:GetObject\n\n\tat org.apache.spark.api.python\n"
    )
    assert str(worker_error(report)) == "AccessDenied: s3://raw/a: give the role s3:GetObject"
    assert worker_error(report.replace("tidemark.errors.AccessDenied", "RuntimeError")) is None


@pytest.mark.full
@pytest.mark.parametrize(
    ("master", "said"),
    [
        (
            "local[x",
            "SparkUnavailable: Spark did not start: org.apache.spark.SparkException: Could not parse",
        ),
        ("nonsense", "SparkUnavailable: Spark did not start: "),
        ("local[1]", "TaskFailed: AccessDenied: s3://raw/a: give the role s3:GetObject\n"),
    ],
)
def test_a_master_that_is_none_and_a_task_that_fails_are_one_message(
    starts_spark: None, master: str, said: str
) -> None:
    program = f"from tests.spark.cluster.test_unavailable import main; main({master!r})"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.startswith(said), done.stderr
    assert len(done.stdout.splitlines()) == 1
