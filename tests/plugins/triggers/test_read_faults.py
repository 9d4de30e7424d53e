"""The triggerer's scan and the page, where 7 of 100 requests are cut, lost or refused: each look is complete."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plugins.world import CLUSTER, World, entry
from tests.support.faulty_s3 import proxy
from tests.support.proxy import Fault, FaultProxy, Rule
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.watermark_index import WatermarkIndex
from tidemark.store import open_store
from tidemark.timestamps import utc_now
from tidemark_airflow.triggers.index_scanner import IndexScanner, Source
from tidemark_airflow.triggers.readiness import WatermarkRow
from tidemark_airflow.web.packed_indexes import PackedIndexes

__all__ = ["proxy"]

FAULTS = (Fault.CUT_MID_BODY, Fault.LOSE_REPLY, Fault.ERROR, Fault.UNAVAILABLE, Fault.SLOW_DOWN)
BROKERS = 5


@pytest.mark.parametrize("rounds", [15, pytest.param(300, marks=pytest.mark.full)])
def test_every_look_is_complete(
    rounds: int, proxy: FaultProxy, tmp_path: Path, tried: Callable[[str, int], None]
) -> None:
    name = uuid.uuid4().hex
    world = World(tmp_path, "orders")
    world.write_topics(
        cluster=CLUSTER, raw={"url": f"s3://raw/{name}"}, lake=f"s3://lake/{name}", topics=[{"topic": "orders"}]
    )
    raw, control = open_store("s3://raw"), ControlKeys(name, CLUSTER)
    scanner, indexes = IndexScanner(Source.of(world.deployment, CLUSTER, 1)), PackedIndexes(world.deployment, CLUSTER)
    for number in range(1, rounds + 1):
        proxy.rules = []
        for broker in range(BROKERS):
            entries = (entry("orders", broker, number),)
            index = WatermarkIndex(
                cluster=CLUSTER, broker=broker, agent_version="test", written_at=utc_now(), entries=entries
            )
            raw.put(control.index(broker), index.to_bytes())
        proxy.rules = [Rule(fault, 0.07 / len(FAULTS)) for fault in FAULTS]
        scan = scanner.scan()
        indexes.look()
        assert scan.failing_since is None
        expected = dict.fromkeys(range(BROKERS), number)
        assert {mark.partition: mark.next_offset for mark in map(WatermarkRow._make, scan.topics["orders"])} == expected
        found = indexes.leaders_of("orders")
        assert {partition: led.entry.next_offset for partition, led in found.items()} == expected
        assert indexes.failure_of("orders") == ""
    tried("looks of sensor and page under 7 % faults", rounds)
    assert proxy.counts()
