"""The task that lists tables in catalogs: what it starts, and what it hands over."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException

from tests.plugins.world import World
from tidemark_airflow.operators.spark_job import JobOperator

SECRET = "what-nobody-may-see"
JOB = """\
import json, os, sys
given = os.environ["TIDEMARK_CONNECTIONS"]
found = {{"arguments": sys.argv[1:], "environment": dict(os.environ), "connections": json.load(open(given))}}
found["modes"] = [oct(os.stat(one).st_mode & 0o777) for one in (os.path.dirname(given), given)]
json.dump(found, open({path!r}, "w"))
sys.exit(int(os.environ["TIDEMARK_CODE"]))
"""


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: World) -> Path:
    """Where the stand-in for the job writes its arguments and its environment."""
    catalogs = [
        {"name": "main", "kind": "rest", "connection": "lake_catalog", "namespace": "kafka"},
        {"name": "other", "kind": "glue", "namespace": "kafka", "secrets": {"token": "GLUE_TOKEN"}},
    ]
    lake = f"file://{world.root}/lake"
    topics = [{"topic": "orders", "cluster": "kafka-1"}]
    world.write_topics(raw={"url": f"file://{world.root}/raw"}, lake=lake, topics=topics, catalogs=catalogs)
    path = tmp_path / "called.json"
    (tmp_path / "mirror.py").write_text(JOB.format(path=str(path)))
    connection = {"conn_type": "http", "host": "catalog.example.com", "port": 8181, "login": "me", "password": SECRET}
    for name, value in (
        ("AIRFLOW__TIDEMARK__TOPICS", str(world.topics_file)),
        ("AIRFLOW__TIDEMARK__SPARK_JOBS", str(tmp_path)),
        ("AIRFLOW__TIDEMARK__SPARK_PYTHON", sys.executable),
        ("TIDEMARK_CODE", "0"),
        ("GLUE_TOKEN", SECRET),
        ("AIRFLOW_CONN_LAKE_CATALOG", json.dumps({**connection, "extra": {"scope": "PRINCIPAL_ROLE:ALL"}})),
    ):
        monkeypatch.setenv(name, value)
    return path


def run() -> None:
    JobOperator(task_id="mirror", job="mirror", cluster="kafka-1").execute(cast("Context", {}))


def test_secrets_reach_the_job_by_variables_that_are_named_and_by_a_file_of_its_own(called: Path, world: World) -> None:
    run()
    found: dict[str, Any] = json.loads(called.read_text())
    assert found["arguments"] == ["--topics", str(world.topics_file), "--cluster", "kafka-1", "--lineage", "off"]
    environment = found["environment"]
    assert environment["GLUE_TOKEN"] == SECRET
    assert [name for name, value in environment.items() if SECRET in value] == ["GLUE_TOKEN"]
    assert found["connections"] == {
        "lake_catalog": {
            "uri": "https://catalog.example.com:8181",
            "login": "me",
            "password": SECRET,
            "extra": {"scope": "PRINCIPAL_ROLE:ALL"},
        }
    }
    assert found["modes"] == ["0o700", "0o600"]
    assert not Path(environment["TIDEMARK_CONNECTIONS"]).parent.exists()
    assert not [name for name in environment if name.startswith("AIRFLOW_CONN")]


def test_a_job_that_fails_fails_the_task(called: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_CODE", "1")
    with pytest.raises(AirflowException, match=r"mirror\.py ended with code 1"):
        run()
    assert called.exists()
