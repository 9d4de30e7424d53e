"""The hourly compaction of topics that land every minute: all of a cluster, each by itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.spark.inline import Inline
from tests.spark.live.live_world import LiveWorld
from tests.tidemark.kafka_log.build import simple
from tidemark.planning.maintenance import compaction, fold
from tidemark.table.delta_table import live_files
from tidemark_spark.jobs.running import run_job


@pytest.fixture
def live(tmp_path: Path) -> LiveWorld:
    """Two topics of which several small files have landed, and one of which a single one has."""
    world = LiveWorld(tmp_path, "orders", "clicks", "views")
    for number in range(4):
        for topic in ("orders", "clicks") if number else world.topics:
            raw = world.topics[topic].raw
            raw.segment([simple(raw.partition().end)])
        world.due()
        assert run_job("land_live", arguments(world), Inline()) == 0
    return world


def arguments(world: LiveWorld) -> list[str]:
    return ["--topics", str(world.topics_file), "--cluster", "east"]


def files(world: LiveWorld) -> dict[str, int]:
    for topic in world.topics.values():
        topic.check()
    return {name: len(live_files(DeltaTable(one.table.url))) for name, one in world.topics.items()}


def test_every_topic_with_many_small_files_is_compacted(live: LiveWorld, capsys: pytest.CaptureFixture[str]) -> None:
    before = {name: one.rows() for name, one in live.topics.items()}
    assert files(live) == {"orders": 4, "clicks": 4, "views": 1}
    capsys.readouterr()
    assert run_job("compact_live", arguments(live), Inline()) == 0
    assert [json.loads(line)["status"] for line in capsys.readouterr().out.splitlines()] == ["landed", "landed"]
    assert files(live) == {"orders": 1, "clicks": 1, "views": 1}
    assert {name: one.rows() for name, one in live.topics.items()} == before
    assert run_job("compact_live", arguments(live), Inline()) == 0
    assert not capsys.readouterr().out, "nothing is left to merge"


def test_an_hour_of_landings_leaves_a_file_of_each_partition(tmp_path: Path) -> None:
    """By the settings that a topic has unless it says otherwise, for which a few files are none."""
    world = LiveWorld(tmp_path, "orders")
    orders, left = world.topics["orders"], 0
    for hour in range(1, 4):
        for landing in range(5):
            for partition in (0, 1) if landing % 2 else (0,):
                orders.raw.segment([simple(orders.raw.partition(partition).end)], partition)
            world.due()
            assert run_job("land_live", arguments(world), Inline()) == 0
        assert files(world)["orders"] > 2
        assert run_job("compact_live", arguments(world), Inline()) == 0
        left = files(world)["orders"]
        assert left <= 2 * hour
    assert run_job("compact_live", arguments(world), Inline()) == 0
    assert files(world)["orders"] == left, "nothing more can be merged"


def test_what_one_run_leaves_the_next_one_merges_at_once(live: LiveWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour of landings of many partitions is more than a run takes."""
    orders = live.topics["orders"]
    for _ in range(4):
        for partition in range(1, 4):
            orders.raw.segment([simple(orders.raw.partition(partition).end)], partition)
        live.due("orders")
        assert run_job("land_live", arguments(live), Inline()) == 0
    monkeypatch.setattr(compaction, "RUN_FILES", 4)
    assert files(live)["orders"] == 16
    assert run_job("compact_live", arguments(live), Inline()) == 0
    assert files(live)["orders"] == 4


def test_a_table_that_cannot_be_compacted_does_not_keep_the_others(
    live: LiveWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    DeltaTable(live.topics["orders"].table.url).delete("kafka_offset = 1")
    assert run_job("compact_live", arguments(live), Inline()) == 1
    assert capsys.readouterr().err.startswith("orders: ")
    live.topics["clicks"].check()
    assert len(live_files(DeltaTable(live.topics["clicks"].table.url))) == 1


def test_evidence_is_folded_and_a_landing_that_is_carried_out_again_lands_once(
    live: LiveWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "FOLD_FROM", 3)
    monkeypatch.setattr(fold, "KEPT", 0)
    orders, landing = live.topics["orders"], live.landing()
    before = orders.rows()
    assert run_job("compact_live", arguments(live), Inline()) == 0
    assert len(orders.ledger.landed) == 1
    n = orders.ledger.n
    live.store.put(live.key, landing.model_copy(update={"ended_at": None}).to_bytes())
    assert run_job("land_live", arguments(live), Inline()) == 0
    assert live.statuses() == {"orders": "landed", "clicks": "landed"} | {"views": live.statuses()["views"]}
    assert (orders.rows(), orders.ledger.n) == (before, n)
    orders.check()


def test_a_cluster_is_needed(live: LiveWorld, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_job("compact_live", arguments(live)[:2], Inline()) == 2
    assert "--cluster: must be a cluster of the topics file, which has: east" in capsys.readouterr().err
