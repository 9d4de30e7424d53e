"""Whole runs under the roles of ``deploy/policies`` alone: landing, upkeep, words on gaps, reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.spark.compaction.test_compaction import merge
from tests.spark.erasing.masked import take_out
from tests.spark.rebuild.rebuilds import carry_out, planned_here
from tests.spark.retention.test_s3 import deployed
from tests.spark.test_vacuum import as_of
from tests.spark.world import World, in_process
from tests.support.erased import erase, index_key
from tests.support.s3 import OwnBuckets
from tests.tidemark.kafka_log.build import simple
from tests.uploader_agent.test_policies import PREFIX, refused, statements
from tidemark.erasure.requests import ErasureFolder, approved, ends_of, read_request
from tidemark.erasure.secret import Secret
from tidemark.errors import AccessDenied
from tidemark.formats.keys import SegmentName
from tidemark.formats.raw.erasure import Approved, SearchedTopic
from tidemark.formats.raw.gaps import Gap
from tidemark.inspection.gap_acknowledgement import gaps_of
from tidemark.remote.topics import RemoteTopics
from tidemark.storage import Storage
from tidemark.store import StoreOptions, open_store
from tidemark.store.s3.clients import forget_clients
from tidemark_spark.erasing.seals import erase_seals
from tidemark_spark.run.vacuum import vacuum

ROLES = ("pipeline", "maintenance", "acknowledge", "page", "reader", "erasure-request", "erasure-approval", "erasure")


@pytest.fixture(scope="module")
def server(own_buckets: Callable[..., OwnBuckets]) -> OwnBuckets:
    server = own_buckets(locked=("raw",), users={name: statements(name, cluster="east") for name in ROLES})
    server.lock_nothing()
    return server


Act = Callable[[str], World]


@pytest.fixture
def act(server: OwnBuckets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Act]:
    """The deployment as a role has it, while an administrator stands for the agents."""

    def as_user(user: str) -> None:
        forget_clients()
        for name, value in server.env(user).items():
            monkeypatch.setenv(name, value)

    as_user("admin")
    agents = open_store(f"s3://{server.raw}", StoreOptions(endpoint_url=server.endpoint, path_style=True))
    first: list[World] = []

    def acting(role: str) -> World:
        as_user(role)
        world = deployed(server, tmp_path, "owner: tidemark", PREFIX, "tables")
        if first:
            world.raw = first[0].raw
        world.raw.store = agents
        first.append(world)
        return world

    yield acting
    forget_clients()


@pytest.mark.essential
def test_landing_upkeep_and_words_each_under_its_role(act: Act) -> None:
    world = act("pipeline")
    for base in (0, 3, 6):
        world.raw.segment(simple(base))
        world.land()
    assert world.next_offset() == 9
    with pytest.raises(AccessDenied):
        world.table.store.delete(f"{world.table.keys.root}/{next(iter(world.seen()._live)).path}")

    world = act("maintenance")
    assert merge(world).status == "landed"
    carry_out(world, planned_here(world))
    vacuum(world.table)
    assert len(world.rows()) == 9
    with pytest.raises(AccessDenied):
        open_store(world.raw.store.url, world.table.deployment.store).put(world.raw.keys().watermark, b"x")

    known = world.raw.partition()
    known.gaps, known.next_offset, known.end = [world.raw.gap(9, 12)], 9, 12
    world.raw.publish()
    for role, start in (("acknowledge", 9), ("page", 10)):
        found = gaps_of(act(role).table, 0)
        word, new = found.acknowledge(start, start + 1, "ada", "disk of broker 1")
        assert new
        assert word.written_as.startswith("key ")
        assert f" by {word.written_as.partition(' by ')[2]}" in word.written_as
    reader = act("reader")
    topics = RemoteTopics(Storage.at(f"{reader.raw.store.url}/{PREFIX}", "east", options=reader.table.deployment.store))
    part = topics.partition("orders", 0)
    assert part is not None
    assert part.end(committed=False) == 9
    at = part.next_stretch(9, committed=False)
    assert isinstance(at, Gap)
    assert (at.start, at.end) == (11, 12), "what nobody gave up"


def test_a_pass_of_erasure_under_its_role(act: Act, server: OwnBuckets) -> None:
    world = act("pipeline")
    for base in (0, 3, 6):
        world.raw.segment(simple(base))
    world.land()
    erase(world.raw, [1, 4])
    admin, until = server.client(), datetime(2099, 1, 1, tzinfo=UTC)
    locked: Any = {"Bucket": server.raw, "Key": world.raw.keys().segment(SegmentName(3), "log")}
    admin.put_object_retention(**locked, Retention={"Mode": "COMPLIANCE", "RetainUntilDate": until})
    [landed] = world.seen()._live
    world = act("erasure")
    take_out(world)
    report = erase_seals(world.table, 1, in_process)
    assert (report.rewritten, report.deleted) == (2, 2)
    assert [(item.key, item.until) for item in report.remaining] == [(locked["Key"], until)]
    for base, left in ((0, []), (3, [locked["Key"]])):
        prefix = world.raw.keys().segment(SegmentName(base), "")
        found = admin.list_object_versions(Bucket=server.raw, Prefix=prefix)["Versions"]
        assert [version["Key"] for version in found if not version["IsLatest"]] == left
    with as_of(world, timedelta(days=1)):
        removed = [one.key for one in vacuum(world.table).removed]  # others are what the test before has left
    assert [key for key in removed if key.endswith(landed.path)] == [f"tables/orders/{landed.path}"]
    assert world.ledger.kind == "fold", "evidence lost its sums"
    assert [row["kafka_offset"] for row in world.rows()] == [0, 2, 3, 5, 6, 7, 8]
    keys, raw = world.raw.keys(), open_store(world.raw.store.url, world.table.deployment.store)
    for kept in (keys.watermark, index_key(world.raw)):
        there: Any = {
            "Bucket": "raw",
            "Key": kept,
            "VersionId": admin.head_object(Bucket=server.raw, Key=kept)["VersionId"],
        }
        assert refused(server.client("erasure").delete_object, **there)
    for key in (keys.watermark, keys.segment(SegmentName(9), "log"), keys.segment(SegmentName(6), "log")):
        with pytest.raises(AccessDenied):
            raw.put(key, b"x")


def test_erasure_takes_two_roles(act: Act) -> None:
    """Whatever a person says: neither role can write the other's half."""
    world = act("pipeline")
    world.raw.segment(simple(0))
    world.land()

    asker = act("erasure-request")
    asking = ErasureFolder.of(asker.table.deployment, "east")
    searched, secret = [SearchedTopic(topic="orders")], Secret("s" * 40)
    ends = {"orders": ends_of(asker.table)}
    assert ends["orders"][0].end == asker.next_offset()
    made = asking.request(searched, ends, [b"ada"], secret, "ada", "DSR-1182")
    stored = read_request(asking.cluster, made.id)
    body = stored.request.model_copy(update={"reason": "another"}).to_bytes()
    with pytest.raises(AccessDenied):
        asking.cluster.store.put(asking.cluster.keys.erasure(made.id, "approval"), b"{}")

    approving = ErasureFolder.of(act("erasure-approval").table.deployment, "east")
    approval, new = approving.approve(stored, "grace", None)
    assert (new, approval.written_as.startswith("key ")) == (True, True)
    assert approval.written_as.partition(" by ")[0] != made.written_as.partition(" by ")[0]
    with pytest.raises(AccessDenied):
        approving.cluster.store.put(approving.cluster.keys.erasure(made.id, "request"), body)

    reading = ErasureFolder.of(act("reader").table.deployment, "east")
    assert isinstance(approved(reading.cluster, made.id), Approved)
