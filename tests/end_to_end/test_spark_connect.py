"""Airflow's own processes with a Spark Connect server: by connection alone, without a trace of its token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.live.live_world import LiveWorld
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


LIVE = "tidemark_live__east"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "world", "batch: {age: 0s}")


@pytest.fixture
def live(tmp_path: Path) -> LiveWorld:
    return LiveWorld(tmp_path / "live", "views", "hits", freshness="10s")


@pytest.fixture
def connect(starts_spark: None, tmp_path: Path) -> Iterator[ConnectServer]:
    with ConnectServer(tmp_path / "connect", token=TOKEN) as server:
        yield server


@pytest.fixture
def topics_file(request: pytest.FixtureRequest) -> Path:
    """That of the deployment which the test asks for."""
    name = "live" if "live" in request.fixturenames else "world"
    made: World | LiveWorld = request.getfixturevalue(name)
    return made.topics_file


@pytest.fixture
def airflow(starts_airflow: None, topics_file: Path, connect: ConnectServer, tmp_path: Path) -> Iterator[AirflowStack]:
    dag = LIVE if "live" in topics_file.parts else DAG
    # A token goes without TLS to this name only.
    server = {"conn_type": "spark_connect", "host": "localhost", "port": connect.port, "password": TOKEN}
    env = {
        **pipeline_env(topics_file, tmp_path / "spark-conf", scan_seconds=1),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(server),
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }
    with AirflowStack(
        tmp_path / "airflow", dags=ROOT / "dags", plugins=ROOT / "plugins", env=env, unpaused=[dag]
    ) as stack:
        yield stack


def test_two_topics_land_live_by_one_query(live: LiveWorld, connect: ConnectServer, airflow: AirflowStack) -> None:
    for number, topic in enumerate(live.topics.values(), 1):
        for _ in range(number):
            topic.raw.segment([simple(topic.raw.partition().end)])
        topic.raw.publish()
    wait_until(lambda: all(one.ledger.n for one in live.topics.values()), what="both topics to land")
    wait_until(
        lambda: len(airflow.client.get("/assets/events", source_dag_id=LIVE)["asset_events"]) == 2,
        what="the tables' events",
    )
    for topic in live.topics.values():
        topic.check()
    assert {name: one.ledger.rows for name, one in live.topics.items()} == {"views": 3, "hits": 6}
    landing = live.landing()
    assert {one.status for one in landing.topics} == {"landed"}
    assert landing.ended_at is not None
    wait_until(lambda: connect.online_sessions() == 0, what="the session to be released")


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
