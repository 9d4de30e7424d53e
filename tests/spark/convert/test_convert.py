"""What becomes of each offset, from hand-made segments to rows, evidence and ledger."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.spark.world import World, in_process
from tests.support.erased import erase
from tests.support.raw_builder import EPOCH, UPLOADED_AT
from tests.tidemark.decode.reference import by_kafka_python
from tests.tidemark.kafka_log.build import (
    CODEC_IDS,
    T0,
    Record,
    batch,
    empty,
    legacy,
    marker,
    reseal,
    simple,
    transactional,
    with_records,
)
from tidemark import raw_topic
from tidemark.errors import ConfigError
from tidemark.formats.keys import SegmentName
from tidemark.formats.raw.manifest import SegmentDamage
from tidemark.planning import plan_ingest
from tidemark.raw import byte_ranges
from tidemark.store import open_store
from tidemark_spark.convert import conversion, segment_reader
from tidemark_spark.run.driver import run

DAY = 86_400_000

LARGE = [batch(10 * i, [Record(k, T0, b"k", b"v" * 150) for k in range(10)]) for i in range(40)]
"""The batches of a segment of several ranges, where these have 8 KiB."""


def test_all_codecs_and_formats_give_the_rows_that_kafka_python_reads(world: World) -> None:
    records = [Record(k, T0 + k, b"", None, [("a", b"1"), ("a", None), ("", b"")]) for k in range(5)]
    world.raw.segment([batch(5 * i, records, codec) for i, codec in enumerate(CODEC_IDS)])
    world.raw.partition(1).lineage = ()
    world.raw.segment(legacy(1, 0, 3) + legacy(1, 3, 4, "gzip"), 1)
    result = world.land()
    assert (result.status, result.rows, result.dates) == ("landed", 32, ("2026-02-02",))
    found = [row for row in world.rows() if row["kafka_partition"] == 0]
    expected = by_kafka_python(b"".join(batch(5 * i, records) for i in range(5)))  # it has no snappy here
    fields = [(row["kafka_offset"], row["kafka_key"], row["kafka_value"]) for row in found]
    assert fields == [(one.offset, one.key, one.value) for one in expected]
    headers = [[(one["key"], one["value"]) for one in row["kafka_headers"]] for row in found]
    assert headers == [one.headers for one in expected]
    assert world.offsets(1) == list(range(7))
    assert found[0]["kafka_timestamp"] == datetime.fromtimestamp(T0 / 1000, UTC)
    assert found[0]["kafka_leader_epoch"] == EPOCH


def test_transactions_land_when_they_are_decided(world: World) -> None:
    world.raw.segment([simple(0), transactional(3, 7, 3), transactional(6, 8, 2), marker(8, 8, commit=True), simple(9)])
    assert world.land().rows == 3
    assert world.next_offset() == 3
    assert [one.producer_id for one in world.ledger.by_partition[0, 0].held_by] == [7]
    assert plan_ingest(world.table).empty  # nothing changes while it is open
    world.raw.segment([simple(12), marker(15, 7, commit=False), simple(16)], aborted=[(7, 3, 15)])
    world.land()
    assert world.offsets() == [0, 1, 2, 6, 7, 9, 10, 11, 12, 13, 14, 16, 17, 18]
    assert world.classes() == {"landed": 14, "aborted": 3, "transaction_marker": 2}
    assert world.ledger.by_partition[0, 0].held_by == ()


def test_a_committed_transaction_over_segments_lands_whole(world: World) -> None:
    world.raw.segment([transactional(0, 7, 3)])
    assert world.land().status == "landed"  # that the partition is held is news, once
    world.raw.segment([transactional(3, 7, 3)])
    world.raw.publish()
    assert plan_ingest(world.table).empty
    world.raw.segment([marker(6, 7, commit=True)])
    assert world.land().rows == 6
    assert world.classes() == {"landed": 6, "transaction_marker": 1}


def test_compaction_leaves_holes_that_are_classed(world: World) -> None:
    kept = batch(4, [Record(1), Record(3)], last_offset_delta=5)  # offsets 5 and 7 of 4..9
    world.raw.segment([kept, empty(12, 2), simple(15, 2)], base=0, next_offset=20, compacted=True)
    assert world.land().rows == 4
    assert world.offsets() == [5, 7, 15, 16]
    assert world.classes() == {"landed": 4, "compacted": 16}
    assert world.next_offset() == 20


def test_rows_go_to_the_date_of_their_time_and_insane_ones_to_quarantine(tmp_path: Path) -> None:
    world = World(tmp_path, "time_zone: Europe/Vienna")
    late = round(UPLOADED_AT.timestamp() * 1000)
    times = [T0, T0 + DAY, -1, T0, late, late + DAY + 10 * 60_000, 1_000, (1 << 62), T0 - 3 * DAY]
    times += [0, -2, -T0, 1000 * T0]  # the last in microseconds, as some producers have it
    world.raw.segment([batch(0, [Record(i, time, b"k%d" % i, b"v") for i, time in enumerate(times)])])
    result = world.land()
    assert (result.rows, result.quarantined) == (5, 8)
    assert {row["kafka_offset"]: row["dt"] for row in world.rows()} == {
        0: "2026-02-02",
        1: "2026-02-03",
        3: "2026-02-02",
        4: "2026-11-20",
        8: "2026-01-30",
    }
    refused = {row["kafka_offset"]: row for row in world.quarantine()}
    assert {offset: row["timestamp_ms"] for offset, row in refused.items()} == {
        i: times[i] for i in (2, *range(5, 8), *range(9, 13))
    }
    assert refused[2]["reason"] == "the record has no timestamp"
    assert all("before" in refused[offset]["reason"] for offset in (6, 9, 10, 11))
    assert all("after the upload" in refused[offset]["reason"] for offset in (5, 7, 12))
    assert (refused[5]["kafka_key"], refused[5]["kafka_value"]) == (b"k5", b"v")


def test_a_refused_record_keeps_its_time_beside_an_erased_one(world: World) -> None:
    world.raw.segment([batch(0, [Record(i, time) for i, time in enumerate((1 << 62, T0, 1 << 62, T0))])])
    erase(world.raw, [1])
    world.land()
    assert [(row["kafka_offset"], row["timestamp_ms"]) for row in world.quarantine()] == [(0, 1 << 62), (2, 1 << 62)]
    assert world.offsets() == [3]


def test_a_batch_that_cannot_be_decoded_is_quarantined_whole(world: World) -> None:
    lying = with_records(simple(3), b"\xff" * 40)
    world.raw.segment([simple(0), lying, simple(6)])
    result = world.land()
    assert (result.rows, result.quarantined) == (6, 3)
    assert world.offsets() == [0, 1, 2, 6, 7, 8]
    [row] = world.quarantine()
    assert (row["kafka_offset"], row["next_offset"], row["batch"]) == (3, 6, lying)


def test_a_hole_holds_its_partition_alone(world: World) -> None:
    world.raw.segment([simple(0), simple(5)])  # 3 and 4 are missing inside a segment
    world.raw.segment([simple(0, 9)], 1)
    result = world.land()
    assert result.gaps == ((0, 0, 3, 5),)
    assert (world.offsets(0), world.offsets(1)) == ([0, 1, 2], list(range(9)))
    assert plan_ingest(world.table).empty  # the same bytes are not tried over and over
    known = world.raw.partition()
    known.acknowledged = [world.raw.gap(3, 5)]
    world.land()
    assert world.offsets() == [0, 1, 2, 5, 6, 7]
    assert world.classes() == {"landed": 6, "acknowledged": 2}
    assert world.ledger.by_partition[0, 0].gaps == ()


def test_a_hole_between_segments_is_named_by_the_plan(world: World) -> None:
    world.raw.segment([simple(0)])
    world.raw.segment([simple(5)], base=5)
    world.raw.partition().next_offset = 8
    assert world.land().gaps == ((0, 0, 3, 5),)
    assert world.ledger.by_partition[0, 0].gaps[0].reason == "unknown"
    world.raw.segment([simple(3, 2)], base=3)
    world.raw.partition().end = 8
    world.land()
    assert world.offsets() == list(range(8))


def test_damage_in_raw_holds_its_partition_until_a_good_copy_comes(world: World) -> None:
    good = simple(0) + simple(3) + simple(6)
    key = world.raw.segment(good)
    world.raw.segment([simple(0)], 1)
    damaged = bytearray(good)
    damaged[len(simple(0)) + 70] ^= 1
    world.raw.replace_log(key, bytes(damaged))
    result = world.land()
    assert result.gaps == ((0, 0, 3, 6),)
    assert (world.offsets(0), world.offsets(1)) == ([0, 1, 2], [0, 1, 2])
    assert world.ledger.by_partition[0, 0].gaps[0].reason == "corrupt"
    world.raw.now = datetime.now(UTC)
    world.raw.segment(good, base=0)
    world.land()
    assert world.offsets() == list(range(9))


def test_offsets_past_acknowledged_damage_land(world: World) -> None:
    good = simple(0) + simple(3) + simple(6)
    damaged = bytearray(good)
    damaged[len(simple(0)) + 70] ^= 1
    world.raw.replace_log(world.raw.segment(good), bytes(damaged))
    assert world.land().gaps == ((0, 0, 3, 6),)
    world.raw.acknowledge(3, 6)
    assert world.land().gaps == ()
    assert world.offsets() == [0, 1, 2, 6, 7, 8]
    assert world.classes() == {"landed": 6, "acknowledged": 3}


def test_what_later_tasks_of_a_held_partition_wrote_does_not_count(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_ranges, "TARGET_BYTES", 100)
    world.raw.segment([simple(0), simple(5)])
    world.raw.segment([simple(8)])
    world.raw.segment([simple(11)])
    world.raw.publish()
    plan = world.plan()
    assert len(plan.tasks) == 3
    assert run(world.table, plan, in_process).gaps == ((0, 0, 3, 5),)
    world.check()
    assert world.offsets() == [0, 1, 2]


def test_the_sound_part_of_a_corrupt_segment_lands(world: World) -> None:
    good = simple(0) + simple(3)
    damage = SegmentDamage(position=len(good), offset=6, rule="checksum")
    world.raw.segment(good + b"\xff" * 80, damage=damage)
    known = world.raw.partition()
    known.gaps = [world.raw.gap(6, 9, "corrupt")]
    assert world.land().gaps == ((0, 0, 6, 9),)
    assert world.offsets() == list(range(6))


def test_segments_of_two_leaders_overlap_and_each_offset_lands_once(world: World) -> None:
    first = simple(0, 5) + simple(5, 5) + simple(10, 5)
    world.raw.segment(first)
    second = (simple(5, 5), simple(10, 5), simple(15, 5, leader_epoch=4), simple(20, 5, leader_epoch=4))
    known = world.raw.partition()
    known.lineage, known.leader_epoch = ((EPOCH, 0), (4, 15)), 4
    world.raw.segment(second, base=5)
    assert world.land().rows == 25
    assert world.offsets() == list(range(25))


def test_batches_off_the_lineage_are_left_out(world: World) -> None:
    world.raw.segment([simple(0, 5), simple(5, 5)])  # 5 to 9 of epoch 3 were cut off by an unclean election
    known = world.raw.partition()
    known.lineage, known.leader_epoch = ((EPOCH, 0), (5, 5)), 5
    world.raw.segment([simple(0, 5), *(simple(5 + 2 * i, 2, leader_epoch=5) for i in range(3))], base=0)
    assert world.land().rows == 11
    assert {row["kafka_leader_epoch"] for row in world.rows() if row["kafka_offset"] >= 5} == {5}


def test_an_older_copy_off_the_lineage_gives_its_live_head_only(world: World) -> None:
    world.raw.segment([simple(0, 5), simple(5, 5)])
    known = world.raw.partition()
    known.lineage, known.leader_epoch = ((EPOCH, 0), (5, 5)), 5
    world.raw.segment([simple(5, 2, leader_epoch=5), simple(7, 2, leader_epoch=5)], base=5)
    world.land()
    assert world.offsets() == list(range(9))
    assert [row["kafka_leader_epoch"] for row in world.rows()] == [EPOCH] * 5 + [5] * 4


def elected(world: World, *batches: bytes) -> None:
    """A segment of a branch under epoch 5 begins at offset 0, too."""
    known = world.raw.partition()
    known.lineage, known.leader_epoch = ((5, 0),), 5
    world.raw.segment(batches, base=0)


NEW_BRANCH = [simple(0, 3, leader_epoch=5), simple(3, 3, leader_epoch=5)]


def test_what_an_election_cuts_off_after_the_plan_lands_and_is_cut_off_by_the_next_run(world: World) -> None:
    world.raw.segment([simple(0)])
    world.raw.publish()
    plan = world.plan()
    elected(world, *NEW_BRANCH)
    assert run(world.table, plan, in_process).rows == 3
    world.land()
    assert world.offsets() == list(range(6))
    assert {row["kafka_leader_epoch"] for row in world.rows()} == {5}


def test_a_segment_that_was_made_again_after_the_plan_is_left_to_the_next_run(world: World) -> None:
    key = world.raw.segment([simple(0)])
    world.raw.segment([simple(0)], 1)
    world.raw.publish()
    plan = world.plan()
    world.raw.replace_log(key, simple(0, 4))
    assert run(world.table, plan, in_process).rows == 3
    assert (world.offsets(0), world.offsets(1)) == ([], [0, 1, 2])


def test_a_run_whose_segments_were_all_made_again_is_stale(world: World) -> None:
    key = world.raw.segment([simple(0)])
    world.raw.publish()
    plan = world.plan()
    world.raw.replace_log(key, simple(0, 4))
    assert run(world.table, plan, in_process).status == "stale"
    assert world.ledger.n == 0


def test_a_segment_that_is_made_again_is_noticed_while_it_is_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read before is landed."""
    monkeypatch.setattr(segment_reader, "WINDOW_BYTES", 300)  # two batches
    batches = [simple(3 * number) for number in range(6)]
    key = world.raw.segment(batches)
    world.raw.publish()
    plan = world.plan()
    reads = 0

    class Replacing:
        """A store in which the segment is made again before the second range is read."""

        def __init__(self, *args: Any) -> None:
            self._store = open_store(*args)

        def get_range(self, *args: Any, **options: Any) -> bytes:
            nonlocal reads
            reads += 1
            if reads == 2:
                world.raw.replace_log(key, b"".join([*batches[:-1], simple(15, 4)]))
            return self._store.get_range(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(conversion, "open_store", Replacing)
        result = run(world.table, plan, in_process)
    assert (result.status, result.rows) == ("landed", 6)
    assert world.offsets() == list(range(6))


def test_a_recreated_topic_is_another_incarnation(world: World) -> None:
    world.raw.segment([simple(0, 4)])
    world.raw.segment([simple(0, 2)], 1)
    assert world.raw.recreate("B" * 22) == 1
    world.raw.segment([simple(0, 3)])
    assert world.land().rows == 9
    assert [len(world.offsets(*key)) for key in ((0, 0), (1, 0), (0, 1))] == [4, 2, 3]
    world.raw.segment([simple(4, 4)], incarnation=0)  # the last of the old one, uploaded late
    world.land()
    assert world.offsets(0, 0) == list(range(8))


def test_a_partition_that_is_added_lands_from_its_start(world: World) -> None:
    world.raw.segment([simple(0)])
    assert world.land().rows == 3
    world.raw.segment([simple(0, 5)], 1)
    world.raw.segment([simple(3)])
    world.raw.segment([simple(0, 2)], 9)  # one of many that were added at once, and the first to have data
    assert world.land().rows == 10
    assert [world.next_offset(partition) for partition in (0, 1, 9)] == [6, 5, 2]


def test_a_large_segment_is_cut_by_its_index(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_topic, "TARGET_BYTES", 8192)
    monkeypatch.setattr(byte_ranges, "TARGET_BYTES", 8192)
    monkeypatch.setattr(segment_reader, "WINDOW_BYTES", 1000)  # and read in many windows, some too small for a batch
    world.raw.segment(LARGE)
    world.raw.segment([simple(400)])
    world.raw.publish()
    plan = world.plan()
    parts = [part for task in plan.tasks for part in task.ranges]
    assert len(parts) > 6
    assert [part.from_offset for part in parts[1:]] == [part.to_offset for part in parts[:-1]]
    assert [part.start for part in parts[1:-1]] == [part.end for part in parts[:-2]]
    assert all(task.size < 2 * 8192 for task in plan.tasks)
    assert run(world.table, plan, in_process).rows == 403
    world.check()


@pytest.mark.parametrize("body", [None, b"damage"], ids=["missing", "damaged"])
def test_a_large_segment_without_its_index_is_read_whole(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, body: bytes | None
) -> None:
    monkeypatch.setattr(raw_topic, "TARGET_BYTES", 8192)
    key = world.raw.segment(LARGE).removesuffix("log") + "index"
    world.raw.segment([simple(0)], 1)
    world.raw.store.delete(key) if body is None else world.raw.store.put(key, body)
    world.raw.publish()
    plan = world.plan()
    assert [len(task.ranges) for task in plan.tasks] == [1, 1]
    assert f"log is read whole, since it cannot be cut by its index: {key}: " in caplog.text
    assert run(world.table, plan, in_process).rows == 403
    world.check()


@pytest.mark.parametrize("there", [False, True], ids=["missing", "another"])
def test_a_large_segment_with_another_log_holds_only_its_partition(
    world: World, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    monkeypatch.setattr(raw_topic, "TARGET_BYTES", 8192)
    key = world.raw.segment(LARGE)
    world.raw.segment([simple(0)], 1)
    world.raw.publish()
    if there:
        world.raw.store.put(key, b"".join(reseal(part, leader_epoch=5) for part in LARGE))
    else:
        world.raw.store.delete(key)
    assert world.land().rows == 3
    assert [world.next_offset(partition) for partition in (0, 1)] == [0, 3]


def test_an_index_that_lies_cuts_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_topic, "TARGET_BYTES", 4096)
    world.raw.segment([simple(3 * i) for i in range(100)])
    lies = b"".join(struct.pack(">ii", 3 * i, 1500 * i + 7) for i in range(1, 8))
    world.raw.store.put(world.raw.keys().segment(SegmentName(0), "index"), lies)
    assert world.land().rows == 300


def test_small_segments_share_a_task_and_a_run_has_limits(world: World) -> None:
    for i in range(12):
        world.raw.segment([simple(3 * i)])
    world.raw.publish()
    assert len(plan_ingest(world.table).tasks) == 1
    result = world.land()
    assert (result.files, result.rows) == (1, 36)


def test_limits_split_the_work_into_runs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (raw_topic, byte_ranges):
        monkeypatch.setattr(module, "TARGET_BYTES", 300)
    monkeypatch.setattr("tidemark.planning.ingest.TARGET_BYTES", 300)
    for i in range(8):
        world.raw.segment([simple(3 * i)])
    world.raw.segment([simple(0)], 1)
    seen = []
    while (result := world.land(limit_bytes=1)).status == "landed":
        seen.append(result.rows)
    assert sum(seen) == 27
    assert len(seen) > 3
    assert world.offsets() == list(range(24))


def test_offsets_below_the_log_start_are_classed_as_deleted(world: World) -> None:
    known = world.raw.partition()
    known.start_offset, known.end = 100, 100
    world.raw.segment([simple(100)])
    world.land()
    assert world.classes() == {"deleted_before_upload": 100, "landed": 3}
    assert world.ledger.by_partition[0, 0].start_offset == 100


def test_a_topic_keeps_only_the_columns_it_wants(tmp_path: Path) -> None:
    world = World(tmp_path, "keep: [value, timestamp]")
    world.raw.segment([simple(0)])
    world.raw.publish()
    run(world.table, world.plan(), in_process)
    [row, *_] = world.rows()
    names = ["kafka_incarnation", "kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_value", "dt"]
    assert list(row) == names
    more = World(tmp_path)  # the same table, with all columns
    more.raw.segment([simple(3)], base=3)
    more.raw.partition().lineage = ((EPOCH, 0),)
    more.raw.publish()
    with pytest.raises(ConfigError, match="made without kafka_headers, kafka_key"):
        run(more.table, more.plan(), in_process)


def test_batches_with_append_time_have_the_brokers_time(world: World) -> None:
    stamped = reseal(simple(0), attributes=0x08, max_timestamp=T0 + DAY)
    world.raw.segment([stamped])
    world.land()
    assert {(row["kafka_timestamp_type"], row["dt"]) for row in world.rows()} == {("append", "2026-02-03")}


def test_more_dates_than_files_may_be_open(world: World) -> None:
    days = list(range(12)) + list(range(12))
    world.raw.segment([batch(0, [Record(i, T0 + day * DAY) for i, day in enumerate(days)])])
    world.raw.segment([batch(24, [Record(i, T0 + day * DAY) for i, day in enumerate(days)])])
    result = world.land()
    assert (result.rows, result.files) == (48, 12)  # the rows of the last four are spilled
    assert len({row["dt"] for row in world.rows()}) == 12
    assert world.ledger.dates_changed[0] == date(2026, 2, 2).isoformat()
