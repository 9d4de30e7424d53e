"""Snapshots that list erased rows are forgotten before their files go, and a tag that holds one is named."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.spark.erasing.masked import erase, take_out
from tests.spark.mirror.catalogs import iceberg, settings_of
from tests.spark.test_vacuum import as_of, files
from tests.spark.world import World
from tests.tidemark.kafka_log.build import simple
from tidemark.erasure.reports import ErasureReport, RequestOutcome, write_report
from tidemark.formats.table.statuses import MirrorState
from tidemark.table.delta_table import open_topic_table
from tidemark.topics import load_topics
from tidemark_spark.jobs.mirror import mirror_cluster
from tidemark_spark.run.vacuum import vacuum

HOUR = timedelta(hours=1)
pytestmark = [pytest.mark.usefixtures("kind"), pytest.mark.sampled(1)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two runs that are listed, and an erased offset of the first; replaced files stay for an hour."""
    world = World(tmp_path, "retention: {erased: 1h}")
    line = f"catalogs: [{settings_of(world).model_dump_json(exclude_none=True, exclude={'keep'})}]\n"
    world.topics_file.write_text(line + world.topics_file.read_text())
    world.table = open_topic_table(deployment := load_topics(world.topics_file), deployment.topic("orders"))
    for base in (0, 3):
        world.raw.segment([simple(base)])
        world.land()
        listed(world)
    erase(world, [1])
    result = take_out(world)
    report = ErasureReport(
        cluster="east",
        topic="orders",
        table="orders",
        attempt=result.attempt,
        at=world.table.store.now(),
        by="grace",
        dry_run=False,
        ledger_n=result.ledger_n,
        requests=(RequestOutcome(id="0" * 16, status="erased"),),
    )
    write_report(world.table, report)
    return world


def listed(world: World) -> MirrorState:
    [state] = mirror_cluster(world.table.deployment, "east").tables
    assert not state.error
    return state


def test_files_go_once_the_catalog_has_forgotten_them(world: World) -> None:
    before = files(world)
    with as_of(world, HOUR):
        [item] = vacuum(world.table).remaining
        assert "until mirror.py has expired them" in item.why
    assert listed(world).oldest_ledger == 1, "readers of older snapshots have an hour"
    with as_of(world, HOUR):
        assert vacuum(world.table).removed == ()
    with as_of(world, 2 * HOUR):
        assert listed(world).oldest_ledger == world.ledger.n
        assert len(vacuum(world.table).removed) == 1
    assert len(before - files(world)) == 1
    assert iceberg(world).scan().to_arrow().num_rows == 5
    assert len(iceberg(world).snapshots()) == 1


def test_a_tag_keeps_its_snapshot_and_is_named(world: World) -> None:
    table = iceberg(world)
    first = min(table.snapshots(), key=lambda each: each.timestamp_ms)
    table.manage_snapshots().create_tag(first.snapshot_id, "audit").commit()
    listed(world)
    with as_of(world, 2 * HOUR):
        state = listed(world)
        assert (state.oldest_ledger, state.refs) == (1, {"tag audit": 1})
        report = vacuum(world.table)
        assert report.removed == ()
        [item] = report.remaining
        assert "tag audit of kafka.orders in catalog local lists it" in item.why
    iceberg(world).manage_snapshots().remove_tag("audit").commit()
    with as_of(world, 2 * HOUR):
        assert listed(world).oldest_ledger == world.ledger.n
        assert len(vacuum(world.table).removed) == 1
