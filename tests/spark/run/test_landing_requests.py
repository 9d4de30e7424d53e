"""What the processes of a landing ask the lake for: each reads the Delta log's new versions, and each ledger once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.spark.world import World, in_process
from tests.support.requests import Requests
from tests.tidemark.kafka_log.build import simple
from tidemark import user_cache
from tidemark.planning import plan_ingest, read_plan, write_plan
from tidemark.table import log_copy
from tidemark.table.delta_table import TopicTable, committed_ledger, open_topic_table
from tidemark_spark.run.driver import run

LANDED = 7
"""Versions before the landing, all in one folder without a checkpoint."""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A table with some commits, in a lake that is no directory as far as copies of its log know."""
    other = user_cache.folder  # that of compiled kernels stays
    own = tmp_path / "cache"
    monkeypatch.setattr(user_cache, "folder", lambda kind: own if kind == "delta-logs" else other(kind))
    monkeypatch.setattr(log_copy, "DIRECTORY", "")
    world = World(tmp_path)
    for _ in range(LANDED):
        world.raw.segment([simple(world.raw.partition().end)])
        world.land()
    return world


def test_a_landing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.raw.segment([simple(world.raw.partition().end)])
    world.raw.publish()
    requests = Requests(monkeypatch)
    seen: dict[str, Counter[str]] = {}

    @contextmanager
    def process(name: str) -> Iterator[TopicTable]:
        requests.clear()
        yield open_topic_table(world.table.deployment, world.table.topic)
        log, ledgers = f"{world.table.keys.root}/_delta_log/", f"{world.table.keys.ledgers}"
        seen[name] = Counter(
            lists=requests.lists.count(log),
            versions=sum(key.startswith(f"{log}0") for key in requests.gets),
            ledgers=sum(key.startswith(ledgers) for key in requests.gets),
        )

    with process("another one, before") as table:
        committed_ledger(table)
    with process("the sensor") as table:
        ledger = committed_ledger(table)
        plan = write_plan(table, plan_ingest(table))
    with process("the job") as table:
        result = run(table, read_plan(table, plan), in_process)
    with process("the event") as table:
        assert committed_ledger(table).n == result.ledger_n == ledger.n + 1
    assert seen["another one, before"] == {"lists": 1, "versions": LANDED + 1, "ledgers": 1}
    del seen["another one, before"]
    assert seen == {
        "the sensor": {"lists": 2, "versions": 0, "ledgers": 1},
        "the job": {"lists": 2, "versions": 0, "ledgers": 1},
        "the event": {"lists": 1, "versions": 1, "ledgers": 1},
    }
