"""The whole system at work: agent, watermarks, Airflow, Spark, table; and a date made again by the backfill's form."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.end_to_end.deployment import SmallDeployment
from tests.end_to_end.rows import consumed, landed
from tests.end_to_end.test_whole_path import SMALL, send
from tests.support.airflow import AirflowStack
from tests.support.paths import ROOT
from tests.support.pipeline import pipeline_env
from tests.support.waiting import wait_until
from tidemark.table import committed_ledger, live_files, open_table

DATE = "2026-11-19"
BACKFILL = "tidemark_backfill"


@pytest.fixture
def airflow(small: SmallDeployment, tmp_path: Path) -> Iterator[AirflowStack]:
    """Airflow with Tidemark's own DAGs, and the real spark-submit."""
    env = small.s3.env() | pipeline_env(small.topics_file, tmp_path / "spark-conf", scan_seconds=1)
    dags = [f"tidemark_ingest__test__{small.topics[0]}", BACKFILL]
    with AirflowStack(
        tmp_path / "airflow", dags=ROOT / "dags", plugins=ROOT / "plugins", env=env, unpaused=dags
    ) as stack:
        yield stack


def test_watermarks_land_a_topic_and_a_form_makes_a_date_again(
    small: SmallDeployment, airflow: AirflowStack, rng: random.Random, full: bool
) -> None:
    topic, bootstrap = small.topics[0], small.kafka.bootstrap
    lake = small.lake(topic)
    small.kafka.create_topic(topic, partitions=2, config=SMALL)
    send(Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd"}), topic, rng, 4_000, 2)
    with small.running_agent():
        wait_until(lambda: committed_ledger(lake).rows == 4_000, what="all records to land")
    assert set(landed(lake)) == consumed(bootstrap, topic)
    if full:  # else by test_backfill.py, without Spark, and by tests/spark, without Airflow
        remake(small, airflow, topic)


def remake(small: SmallDeployment, airflow: AirflowStack, topic: str) -> None:
    """A date of the topic, by the form."""
    bootstrap, lake = small.kafka.bootstrap, small.lake(topic)
    before = files(small, topic)
    dates = {"from_date": DATE, "to_date": DATE}
    form = {"topics": [f"test/{topic}"], **dates, "dry_run": False, "differences": False, "reason": "a test"}
    run = airflow.client.trigger(BACKFILL, form)
    assert airflow.client.wait_for_run(BACKFILL, run) == "success"

    after = files(small, topic)
    assert committed_ledger(lake).kind == "rebuild"
    assert {path for path in before if DATE not in path} == {path for path in after if DATE not in path}
    assert not {path for path in before & after if DATE in path}, "the date's files are other ones now"
    rows = landed(lake)
    assert len(rows) == len(set(rows)) == 4_000
    assert set(rows) == consumed(bootstrap, topic)
    events = airflow.client.get("/assets/events", source_dag_id=BACKFILL)["asset_events"]
    assert (topic, DATE) in {(event["name"], event["partition_key"]) for event in events}
    assert {event["partition_key"] for event in events} == {DATE}


def files(small: SmallDeployment, topic: str) -> set[str]:
    table = open_table(small.lake(topic))
    assert table is not None
    return {file.path for file in live_files(table)}
