"""Airflow's own processes with a Spark Connect server: by connection alone, without a trace of its token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.world import World
from tests.support.airflow import AirflowStack
from tests.support.paths import ROOT
from tests.support.pipeline import pipeline_env
from tests.support.spark import ConnectServer
from tests.support.waiting import wait_until
from tests.tidemark.kafka_log.build import simple

DAG = "tidemark_ingest__east__orders"
TOKEN = "token-that-nobody-may-find"
SECRET = "secret-that-nobody-may-find"

pytestmark = pytest.mark.full


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "world", "batch: {age: 0s}")


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[ConnectServer]:
    with ConnectServer(tmp_path / "connect", token=TOKEN) as server:
        yield server


@pytest.fixture
def airflow(world: World, connect: ConnectServer, tmp_path: Path) -> Iterator[AirflowStack]:
    # A token goes without TLS to this name only.
    server = {"conn_type": "spark_connect", "host": "localhost", "port": connect.port, "password": TOKEN}
    env = {
        **pipeline_env(world.topics_file, tmp_path / "spark-conf", scan_seconds=1),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(server),
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }
    with AirflowStack(
        tmp_path / "airflow", dags=ROOT / "dags", plugins=ROOT / "plugins", env=env, unpaused=[DAG]
    ) as stack:
        yield stack


def test_a_topic_lands_by_spark_connect(world: World, connect: ConnectServer, airflow: AirflowStack) -> None:
    world.raw.segment([simple(0)])
    world.raw.publish()
    wait_until(lambda: world.ledger.n == 1, what="the segment to land")
    wait_until(
        lambda: bool(airflow.client.get("/assets/events", source_dag_id=DAG)["asset_events"]),
        what="the table's event",
    )
    world.check()
    assert world.ledger.rows == 3
    wait_until(lambda: connect.online_sessions() == 0, what="the session to be released")

    files = [path for path in airflow.home.rglob("*") if path.is_file()]
    assert any(b"Spark Connect: " in path.read_bytes() for path in files if path.suffix == ".log")
    assert any(path.name == "airflow.db" for path in files)
    assert not [path for path in files for secret in (TOKEN, SECRET) if secret.encode() in path.read_bytes()]
