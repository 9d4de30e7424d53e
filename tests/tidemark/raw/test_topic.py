"""Planning over a raw store: what is listed and read, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.world import World
from tests.tidemark.kafka_log.build import marker, simple, transactional
from tidemark import raw_topic as raw
from tidemark.errors import FormatError, PreconditionFailed
from tidemark.formats.keys import SegmentName
from tidemark.formats.raw.manifest import SegmentDamage
from tidemark.formats.raw.watermark_index import WatermarkIndex
from tidemark.planning import find_plan, plan_ingest, read_plan, write_plan
from tidemark.planning.common import code_digest
from tidemark.raw.partition import RawPartition, StoredPartition
from tidemark.raw_topic import RawTopic
from tidemark.storage import StoredWatermark


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An empty deployment."""
    return World(tmp_path)


def view_of(topic: RawTopic, part: RawPartition) -> StoredPartition:
    """What there is of the partition."""
    view = topic.view(part)
    assert view is not None
    return view


def test_a_topic_that_no_agent_has_seen_has_an_empty_plan(world: World) -> None:
    plan = plan_ingest(world.table)
    assert (plan.empty, plan.ledger_n, plan.code) == (True, 0, code_digest())


def test_a_plan_is_written_once_and_read_back(world: World) -> None:
    world.raw.segment([simple(0)])
    world.raw.publish()
    plan = plan_ingest(world.table, attempt=12)
    key = write_plan(world.table, plan)
    assert write_plan(world.table, plan) == key
    assert read_plan(world.table, key) == find_plan(world.table, 12) == plan
    assert find_plan(world.table, 13) is None
    with pytest.raises(PreconditionFailed):
        write_plan(world.table, plan.model_copy(update={"generation": 7}))


@pytest.mark.parametrize("start", [0, 8_000, 300_000, 301_000])
def test_the_segment_that_holds_an_offset_is_found_from_far_below(world: World, start: int) -> None:
    world.raw.segment([simple(0), simple(299_990)], base=0, compacted=True)
    world.raw.segment([simple(299_993), simple(300_998, 10)], base=299_993, compacted=True)
    world.raw.publish()
    topic = RawTopic(world.table)
    part = topic.partition((0, 0))
    segments, complete = topic.segments(view_of(topic, part), start, 301_008, 1 << 40)
    assert [one.base for one in segments] == [base for base in (0, 299_993) if start < 299_993 or base]
    assert complete


def test_a_window_ends_at_its_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "_AT_ONCE", 4)  # manifests are read four at a time then
    for number in range(12):
        world.raw.segment([simple(3 * number)])
    world.raw.publish()
    topic = RawTopic(world.table)
    part = topic.partition((0, 0))
    segments, complete = topic.segments(view_of(topic, part), 0, 36, 1)
    assert (len(segments), complete) == (4, False)


def test_a_transaction_longer_than_the_limit_is_looked_through(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "_AT_ONCE", 4)
    monkeypatch.setattr("tidemark.planning.ingest.TARGET_BYTES", 1)
    for number in range(12):
        world.raw.segment([transactional(3 * number, 7, 3)])
    world.raw.segment([simple(36)])
    world.raw.publish()
    plan = plan_ingest(world.table, limit_bytes=1)
    assert (plan.partitions[0].end, plan.partitions[0].held_by[0].first_offset) == (0, 0)


def test_partitions_without_news_are_not_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.raw.segment([simple(0)])
    world.raw.segment([simple(0)], 1)
    world.land()
    world.raw.segment([simple(3)], 1)
    world.raw.publish()
    read: list[int] = []
    real = RawTopic.stored_watermark

    def stored_watermark(self: RawTopic, part: RawPartition) -> StoredWatermark | None:
        read.append(part.keys.partition)
        return real(self, part)

    monkeypatch.setattr(RawTopic, "stored_watermark", stored_watermark)
    assert [one.partition for one in plan_ingest(world.table).partitions] == [1]
    assert read == [1]


def test_a_partition_that_no_index_names_is_judged_by_its_watermark(world: World) -> None:
    """The topic was deleted: its leader's agent seals the rest, and has no entry any more."""
    world.raw.segment([simple(0)])
    world.land()
    world.raw.segment([simple(3)])
    world.raw.publish()
    [key] = [info.key for info in world.raw.store.list("_watermarks/")]
    index = WatermarkIndex.from_bytes(world.raw.store.get(key).body, key)
    world.raw.store.put(key, index.model_copy(update={"entries": ()}).to_bytes())
    assert [part.end for part in plan_ingest(world.table).partitions] == [6]


def test_a_seal_states_epochs_that_the_watermark_lacks(world: World) -> None:
    """Retention had removed them from the leader's log when it wrote ``offset.wm``; packs had stated them."""
    partition = world.raw.partition()
    partition.lineage, partition.leader_epoch = ((0, 0), (2, 6), (3, 9)), 3
    world.raw.segment([simple(0, leader_epoch=0)], lineage=((0, 0),))
    batches = [simple(3, leader_epoch=1), simple(6, leader_epoch=2)]
    world.raw.segment(batches, lineage=((0, 0), (1, 3), (2, 6)))
    partition.lineage = ((0, 0), (2, 8), (3, 9))
    world.land()
    assert (world.next_offset(), world.ledger.by_partition[0, 0].gaps) == (9, ())


def test_a_damaged_object_is_named(world: World) -> None:
    world.raw.segment([simple(0)])
    world.raw.publish()
    key = world.raw.keys().segment(SegmentName(0), "manifest.json")
    world.raw.store.put(key, b"{}")
    with pytest.raises(FormatError, match=r"0\.manifest\.json"):
        plan_ingest(world.table)
    world.raw.store.put(world.raw.keys().watermark, b"00000000000000000000\n")
    with pytest.raises(FormatError, match="tidemark-agent adopt"):
        plan_ingest(world.table)


def test_an_abort_whose_marker_lies_beyond_damage_is_known(world: World) -> None:
    world.raw.segment([transactional(0, 7, 3), simple(3)])
    damaged = [simple(6), marker(9, 7, commit=False)]
    world.raw.segment(
        damaged, aborted=[(7, 0, 9)], damage=SegmentDamage(position=0, offset=6, rule="seeded"), next_offset=10
    )
    world.raw.partition().open_transactions = ()
    world.raw.segment([simple(10)], base=10)
    world.raw.partition().acknowledged.append(world.raw.gap(6, 10, "corrupt"))
    world.raw.publish()
    (partition,) = plan_ingest(world.table).partitions
    assert partition.end == 13
    assert [(one.producer_id, one.first_offset) for one in partition.aborted] == [(7, 0)]


def test_nothing_heavy_is_imported_to_plan() -> None:
    heavy = {"pyarrow", "numpy", "numba", "pyspark", "deltalake"}
    code = f"import sys, tidemark.planning; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
