"""Raw segments go from the old end alone, where everything holds, after a tombstone, and only as they were judged."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.spark.audit.test_audit import audited, rewrite_evidence
from tests.spark.retention.test_table import PAST
from tests.spark.world import World
from tests.support.raw_builder import EPOCH, UPLOADED_AT
from tests.tidemark.kafka_log.build import marker, simple, transactional
from tidemark.cli.continuity import continuity_of
from tidemark.decode.schema import SCHEMA
from tidemark.errors import ContinuityError
from tidemark.formats.keys import SegmentName
from tidemark.formats.raw.manifest import SegmentDamage
from tidemark.formats.table.plan import SegmentRange, SegmentTask
from tidemark.planning import plan_rebuild, write_plan
from tidemark.planning.maintenance.retention import PartitionGoes, RetentionReport
from tidemark.raw import tombstones
from tidemark.storage import PartitionStore
from tidemark.store.local import LocalStore
from tidemark.table.delta_table import open_topic_table
from tidemark.topics import load_topics
from tidemark_spark.datasource import RowBounds, SegmentReader
from tidemark_spark.jobs.retain import retain

NOW = UPLOADED_AT + timedelta(days=31)
OPTED_IN = "retention: {raw: 30d, apply: true}"


def five(root: Path) -> World:
    """Partition 0 has [0, 15) in five segments, landed."""
    world = World(root, OPTED_IN)
    for base in range(0, 15, 3):
        world.raw.segment(simple(base))
    world.land()
    return world


@pytest.fixture
def world(tmp_path: Path) -> World:
    return five(tmp_path)


def reported(world: World, at: datetime, **options: bool) -> RetentionReport:
    return retain(world.table, "raw", at, "ada", **options)


def judged(world: World) -> PartitionGoes:
    """What may go of partition 0, by a dry run."""
    return reported(world, NOW - timedelta(hours=1), dry_run=True).partitions[0]


def remove(world: World, at: datetime = NOW, partition: int = 0) -> PartitionGoes:
    """A report, and a day later what it allows."""
    reported(world, at, dry_run=True)
    found = reported(world, at + timedelta(days=1)).partitions[partition]
    world.check()
    return found


def bases(world: World, partition: int = 0, incarnation: int = 0) -> dict[int, set[str]]:
    """The extensions there are by base offset."""
    keys = world.raw.keys(partition, incarnation)
    found: dict[int, set[str]] = {}
    for info in world.raw.store.list(keys.folder):
        if (parsed := keys.segment_of(info.key)) is not None:
            found.setdefault(parsed[0].base, set()).add(parsed[1])
    return found


def buried(world: World) -> list[tuple[int, int]]:
    return [(one.start, one.end) for one in tombstones.listed(PartitionStore(world.raw.store, world.raw.keys()))]


def test_all_but_the_last_segment_goes_and_a_tombstone_stays(world: World) -> None:
    mark = world.raw.store.get(world.raw.keys().watermark)
    sizes = sum(one.size for one in world.raw.store.list(world.raw.keys().folder) if ".log" in one.key)
    found = remove(world)
    assert (found.start, found.end, found.segments, found.removed_to) == (0, 12, 4, 12)
    assert found.bytes == sizes * 4 // 5
    assert found.stays == "segment 12 stays: agents continue from segment 12"
    assert set(bases(world)) == {12}
    assert world.raw.store.get(world.raw.keys().watermark) == mark
    assert buried(world) == [(0, 12)]
    [named] = tombstones.listed(PartitionStore(world.raw.store, world.raw.keys()))
    stone = tombstones.read(PartitionStore(world.raw.store, world.raw.keys()), named.key)
    assert [one.base_offset for one in stone.segments] == [0, 3, 6, 9]
    assert (stone.by, stone.window, stone.ledger_n) == ("ada", timedelta(days=30), world.ledger.n)
    assert world.table.store.get(stone.report).body
    assert continuity_of(world.table)["sound"]
    again = remove(world, NOW + timedelta(days=3))
    assert (again.segments, again.leftover) == (0, 0)
    assert buried(world) == [(0, 12)]


def test_nothing_goes_before_a_report_that_is_a_day_old_named_it(world: World) -> None:
    assert reported(world, NOW - timedelta(hours=23)).partitions[0].segments == 4
    assert reported(world, NOW).partitions[0].removed_to == 0
    world.raw.segment(simple(15))
    world.land()
    later = reported(world, NOW + timedelta(days=1)).partitions[0]
    assert (later.end, later.removed_to) == (15, 12), "what nobody could have seen stays"
    assert set(bases(world)) == {12, 15}


@pytest.mark.parametrize("settings", ["retention: {raw: 30d}", "retention: {apply: true}"])
def test_nothing_goes_of_a_topic_that_has_not_opted_in_or_has_no_policy(tmp_path: Path, settings: str) -> None:
    world = World(tmp_path, settings)
    for base in range(0, 6, 3):
        world.raw.segment(simple(base))
    world.land()
    assert remove(world).removed_to == 0
    assert set(bases(world)) == {0, 3}
    assert buried(world) == []


# What keeps the segment [3, 6), and with it all above; each of these seeds it.


def corrupt(world: World) -> None:
    body = simple(3)
    world.raw.segment(body, base=3, damage=SegmentDamage(position=len(body), offset=6, rule="planted"))


def uploaded_again(world: World) -> None:
    world.raw.now = NOW
    world.raw.segment(simple(3), base=3)


def overlapped(world: World) -> None:
    world.raw.now = NOW
    world.raw.segment(simple(4), base=4)


def of_another_branch(world: World) -> None:
    """An agent ended between the log and the manifest."""
    world.raw.store.put(world.raw.keys().segment(SegmentName(3), "log"), simple(3, leader_epoch=EPOCH + 1))


def without_its_index(world: World) -> None:
    world.raw.store.delete(world.raw.keys().segment(SegmentName(3), "index"))


def without_evidence(world: World) -> None:
    rewrite_evidence(world, lambda rows: rows.__setitem__(slice(None), [one for one in rows if one["first"] != 3]))


def classed_twice(world: World) -> None:
    more = {"class": "compacted", "first": 4, "next": 5, "rows": 1, "file": None}
    rewrite_evidence(world, lambda rows: rows.append(rows[0] | more))


def being_read(world: World) -> None:
    plan = world.plan()
    part = SegmentRange(
        store=world.raw.store.url,
        key=world.raw.keys().segment(SegmentName(3), "log"),
        etag="",
        base_offset=3,
        start=0,
        end=1,
        from_offset=3,
        to_offset=6,
        uploaded_at=NOW,
    )
    task = SegmentTask(incarnation=0, topic_id=None, partition=0, ranges=(part,))
    write_plan(world.table, plan.model_copy(update={"attempt": plan.attempt + 1, "kind": "rebuild", "tasks": (task,)}))


@pytest.mark.parametrize(
    ("seed", "reason"),
    [
        (corrupt, "it is corrupt"),
        (uploaded_again, "its last record or upload is of 2026-12-21 12:01 UTC"),
        (overlapped, "segment 4 stays: its last record or upload is of 2026-12-21 12:01 UTC"),
        (of_another_branch, "00000000000000000003.log is not the version that its manifest describes, or is gone"),
        (without_its_index, "00000000000000000003.index is not the version that its manifest describes, or is gone"),
        (without_evidence, "the evidence does not give each of its offsets one class"),
        (classed_twice, "the evidence does not give each of its offsets one class"),
        (being_read, "a run that may still commit reads it"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_segment_stays_and_all_above_it(world: World, seed: Callable[[World], None], reason: str) -> None:
    assert judged(world).end == 12
    seed(world)
    reported(world, NOW, dry_run=True)
    found = reported(world, NOW + timedelta(days=1)).partitions[0]
    assert reason in found.stays
    assert (found.end, found.removed_to) == (3, 3)
    assert set(range(0, 15, 3)) - set(bases(world)) == {0}


def test_a_segment_of_an_open_transaction_stays(tmp_path: Path) -> None:
    world = World(tmp_path, OPTED_IN)
    for body in (simple(0), transactional(3, 7, 3), simple(6), simple(9)):
        world.raw.segment(body)
    world.land()
    assert remove(world).stays == "segment 3 stays: it is not landed: the ledger continues at 3"
    world.raw.segment([marker(12, 7, commit=False)], aborted=[(7, 3, 12)])
    world.raw.segment(simple(13))
    world.land()
    assert remove(world, NOW + timedelta(days=3)).removed_to == 13
    assert audited(world).passed
    assert set(bases(world)) == {13}


def gap(world: World) -> None:
    known = world.raw.partition()
    known.gaps, known.next_offset = [world.raw.gap(15, 20)], 15


def leaving(world: World) -> None:
    known = world.raw.partition()
    known.lineage, known.leader_epoch = ((EPOCH, 0), (EPOCH + 1, 7)), EPOCH + 1


@pytest.mark.parametrize(
    ("seed", "reason"),
    [
        (gap, "it has an open gap at offset 15, which agents still search for"),
        (leaving, "it leaves a branch of its log at offset 7"),
    ],
)
def test_a_partition_stays_as_a_whole(world: World, seed: Callable[[World], None], reason: str) -> None:
    assert judged(world).end == 12
    seed(world)
    world.raw.publish()
    assert remove(world).stays == reason
    assert len(bases(world)) == 5


def test_partitions_and_incarnations_go_apart(world: World) -> None:
    for base in (0, 3):
        world.raw.segment(simple(base), 1)
    again = world.raw.recreate("B" * 22)
    for base in (0, 3):
        world.raw.segment(simple(base), incarnation=again)
    world.land()
    reported(world, NOW, dry_run=True)
    found = reported(world, NOW + timedelta(days=1)).partitions
    assert [(one.incarnation, one.partition, one.removed_to) for one in found] == [(0, 0, 12), (0, 1, 3), (1, 0, 3)]
    world.check()
    assert set(bases(world, 0, again)) == {3}


# What readers make of it.


def test_ingestion_goes_on_and_audits_prove_by_evidence(world: World) -> None:
    rows = world.rows()
    remove(world)
    assert world.rows() == rows
    report = audited(world)
    assert report.passed, report.text()
    assert report.partitions[0].by_evidence == ((0, 12),)
    world.raw.segment(simple(15))
    assert world.land().rows == 3


def test_a_rebuild_of_what_is_gone_names_the_tombstone(world: World) -> None:
    remove(world)
    [stone] = tombstones.listed(PartitionStore(world.raw.store, world.raw.keys()))
    with pytest.raises(ContinuityError, match=rf"no offsets 0 to 12 any more: retention removed them, see {stone.key}"):
        plan_rebuild(world.table, [PAST])


def _begin_another_table(world: World) -> None:
    remove(world)
    world.topics_file.write_text(
        world.topics_file.read_text().replace("topic: orders", "topic: orders\n    table: two")
    )
    deployment = load_topics(world.topics_file)
    world.table = open_topic_table(deployment, deployment.topic("orders"))
    world.land()


def test_a_new_table_begins_where_raw_does(world: World) -> None:
    _begin_another_table(world)
    assert world.offsets() == [12, 13, 14]
    assert world.classes() == {"expired": 12, "landed": 3}
    assert continuity_of(world.table)["sound"]
    assert audited(world).passed


def test_the_source_reads_what_there_is(world: World) -> None:
    remove(world)
    reader = SegmentReader(world.table, SCHEMA, RowBounds(), committed=True, fail_on_loss=True)
    found = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert [offset for one in found for offset in one.column("kafka_offset").to_pylist()] == [12, 13, 14]


def test_a_partition_of_which_nothing_goes_takes_four_requests(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/sizing.md has it; of those that may go, the manifests are read besides."""
    remove(world)
    asked: list[str] = []

    def watch(name: str) -> None:
        real = getattr(LocalStore, name)

        def watched(store: LocalStore, key: str, **options: Any) -> Any:
            asked.extend([key] if "orders-0/" in key else [])
            return real(store, key, **options)

        monkeypatch.setattr(LocalStore, name, watched)

    watch("get")
    watch("list")
    judged(world)
    keys = world.raw.keys()
    folders = ["_tombstones/east/orders-0/", keys.folder]
    assert sorted(asked) == sorted([*folders, keys.watermark, keys.segment(SegmentName(12), "manifest.json")])


@pytest.mark.parametrize("body", [b"{}", b'{"format":2}'])
def test_a_tombstone_that_does_not_hold_removes_nothing(world: World, body: bytes) -> None:
    """What it named stays, and it is named."""
    remove(world)
    [named] = tombstones.named(PartitionStore(world.raw.store, world.raw.keys()))
    world.raw.store.put(world.raw.keys().segment(SegmentName(3), "log"), b"left")
    world.raw.store.put(named.key, body)
    reported(world, NOW + timedelta(days=2), dry_run=True)
    found = reported(world, NOW + timedelta(days=3)).partitions[0]
    assert named.key in found.stays
    assert found.leftover == 0
    assert world.raw.store.get(world.raw.keys().segment(SegmentName(3), "log")).body == b"left"


def test_what_had_expired_before_the_first_run_lands_from_a_branch_that_left_the_log_there(world: World) -> None:
    _begin_another_table(world)
    known = world.raw.partition(0)
    known.lineage, known.leader_epoch = ((EPOCH, 0), (5, 10)), 5
    world.raw.segment(simple(10, 4, leader_epoch=5), base=10)
    world.land()
    assert world.classes() == {"expired": 10, "landed": 4}
    assert world.offsets() == [10, 11, 12, 13]
    assert audited(world).passed
