"""A lake that moves to another bucket or prefix: docs/operations.md, Another bucket or region, followed literally."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path

import pytest

from tests.spark.audit.test_audit import audited
from tests.spark.compaction.test_compaction import merge
from tests.spark.mirror.catalogs import check as check_catalog
from tests.spark.mirror.catalogs import reader, sql_catalog
from tests.spark.run.test_runs import rebuild, spread
from tests.spark.state.replay import advance, check
from tests.spark.test_lost_lake import content
from tests.spark.world import World
from tests.support.s3 import S3Server
from tests.tidemark.kafka_log.build import simple
from tidemark.catalogs import CatalogSettings
from tidemark.store import open_store
from tidemark.store.schemes import split_store_url
from tidemark.table.delta_table import open_topic_table
from tidemark.table.state_table import StateTable
from tidemark.topics import load_topics
from tidemark_spark.jobs.mirror import mirror_cluster
from tidemark_spark.run.vacuum import vacuum

TABLES = ("kafka.orders", "kafka.orders_current")
Place = Callable[[str], str]
"""The URL of a lake by its name."""


@pytest.fixture(params=["directory", pytest.param("s3", marks=[pytest.mark.full, pytest.mark.s3])])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Place, Sequence[str]]:
    """Where lakes lie, and the settings of their store: a bucket for each lake."""
    if request.param == "directory":
        return (lambda name: f"file://{tmp_path}/{name}"), ()
    server: S3Server = request.getfixturevalue("s3")
    monkeypatch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")  # for pyiceberg's and delta-rs's own readers
    mark = uuid.uuid4().hex[:8]

    def bucket(name: str) -> str:
        client, full = server.client(), f"{name}-{mark}"
        if full not in {found["Name"] for found in client.list_buckets()["Buckets"]}:
            client.create_bucket(Bucket=full)
        return f"s3://{full}/{name}"

    return bucket, (f"endpoint_url: {server.endpoint}", "region: us-east-1", "path_style: true")


def copied(world: World, lake: str) -> int:
    """Copy all objects of the lake to ``lake``, and remove them: what names the old place is found out."""
    options, old = world.table.deployment.store, world.table.deployment.lake
    (source, before), (target, after) = split_store_url(old), split_store_url(lake)
    from_store, to_store = open_store(source, options), open_store(target, options)
    keys = [info.key for info in from_store.list(f"{before}/" if before else "")]
    for key in keys:
        to_store.put("/".join(filter(None, (after, key.removeprefix(before).lstrip("/")))), from_store.get(key).body)
        from_store.delete(key)
    return len(keys)


def pointed(world: World, root: Path, lake: str) -> World:
    """The same topic with another ``lake`` in its topics file."""
    root.mkdir()
    file = root / "topics.yaml"
    file.write_text(world.topics_file.read_text().replace(world.table.deployment.lake, lake))
    deployment = load_topics(file)
    found = copy(world)
    found.topics_file, found.table = file, open_topic_table(deployment, deployment.topics[0])
    return found


def with_catalog(world: World, catalog: CatalogSettings) -> World:
    """The same with a catalog in the topics file."""
    line = f"catalogs: [{json.dumps(catalog.model_dump(mode='json', exclude_none=True))}]\n"
    world.topics_file.write_text(line + world.topics_file.read_text())
    deployment = load_topics(world.topics_file)
    world.table = open_topic_table(deployment, deployment.topics[0])
    return world


def errors_of_catalogs(world: World) -> list[str]:
    """What the mirror job says of tables that it cannot list."""
    return [table.error for table in mirror_cluster(world.table.deployment, "east").tables if table.error]


def test_tables_go_on_in_another_place(place: tuple[Place, Sequence[str]], tmp_path: Path) -> None:
    urls, store = place
    properties = {"s3.endpoint": store[0].partition(" ")[2]} if store else {}
    catalog = sql_catalog(tmp_path, properties=properties)
    world = World(tmp_path, "state: {}", raw=urls("raw"), lake=urls("first"), store=store)
    world = with_catalog(world, catalog)
    spread(world)
    world.land()
    world.raw.segment(simple(22))
    world.land()
    rebuild(world, "2026-02-03")
    merge(world)
    advance(world)
    assert errors_of_catalogs(world) == []
    before = content(world)

    second = pointed(world, tmp_path / "second", urls("second"))
    assert copied(world, second.table.deployment.lake)
    assert content(second) == before
    assert audited(second).findings == ()
    told = errors_of_catalogs(second)
    assert ["if the lake has moved, remove the table there" in error for error in told] == [True, True]
    for name in TABLES:
        reader(catalog).drop_table(name)
    assert errors_of_catalogs(second) == []

    second.raw.segment(simple(25))
    assert second.land().status == "landed"
    merge(second)
    vacuum(second.table)
    advance(second)
    check(second)
    assert errors_of_catalogs(second) == []
    check_catalog(second, catalog)
    assert {reader(catalog).load_table(name).location() for name in TABLES} == {
        second.table.url,
        StateTable.open(second.table).url,
    }
    assert audited(second).findings == ()
    assert len(second.rows()) == len(before["rows"]) + 3
    assert [*world.table.store.list("")] == [], "nothing is written to the old place"
