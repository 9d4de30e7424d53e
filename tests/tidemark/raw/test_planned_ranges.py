"""The pure rules of planning: which segment speaks for an offset, what is decided, how ranges and tasks are cut."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.ledgers import landed
from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.watermark import Watermark
from tidemark.formats.table.ledger import PartitionState
from tidemark.formats.table.plan import SegmentRange
from tidemark.intervals import Interval, Intervals
from tidemark.kafka_log import AbortedTransaction, Lineage, OpenTransaction
from tidemark.planning.partition_plan import KnownPartition, changes_anything, decide
from tidemark.raw.byte_ranges import TARGET_BYTES, BatchCut, ranges_of, tasks_of, within
from tidemark.raw.segments import Segment, SegmentPiece, aborted_from, cover, decided_end, live_until

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def segment(base: int, end: int, *epochs: tuple[int, int], size: int = 1000, **more: Any) -> Segment:
    """A segment of offsets ``[base, end)`` on the lineage ``epochs``."""
    fields: dict[str, Any] = {
        "store": "file:///raw",
        "key": f"{base:020d}.log",
        "etag": f"e{base}",
        "size": size,
        "base": base,
        "end": end,
        "origin": "disk",
        "compacted": False,
        "lineage": Lineage(epochs or ((0, 0),)),
        "open_transactions": (),
        "uploaded_at": NOON,
        "has_index": True,
        "aborts": None,
    }
    return Segment(**(fields | more))


def watermark(next_offset: int, *epochs: tuple[int, int], **more: Any) -> Watermark:
    """A watermark of a partition that starts at offset 0."""
    fields = {"topic_id": None, "start_offset": 0, "leader_epoch": 0, "broker": 1, "written_at": NOON}
    return Watermark.model_validate({**fields, "next_offset": next_offset, "lineage": epochs or ((0, 0),), **more})


def state(next_offset: int, *epochs: tuple[int, int], gaps: tuple[Gap, ...] = ()) -> PartitionState:
    """What the ledger knows of the partition."""
    return landed(next_offset, lineage=epochs or ((0, 0),), gaps=gaps)


def open_at(*offsets: int) -> tuple[OpenTransaction, ...]:
    return tuple(OpenTransaction(producer_id=at, producer_epoch=0, first_offset=at) for at in offsets)


def spans(pieces: list[SegmentPiece]) -> list[tuple[int, int, int]]:
    return [(one.segment.base, one.start, one.end) for one in pieces]


def test_overlapping_segments_give_each_offset_once() -> None:
    segments = [segment(0, 100), segment(40, 120), segment(100, 200), segment(90, 150)]
    pieces, hole = cover(segments, Lineage(((0, 0),)), Intervals([(10, 180)]))
    assert (spans(pieces), hole) == ([(0, 10, 100), (100, 100, 180)], None)


def test_a_segment_speaks_only_as_far_as_its_lineage_agrees() -> None:
    newest = Lineage(((0, 0), (4, 50)))
    old, new = segment(0, 100, (0, 0), (3, 60)), segment(50, 120, (0, 0), (4, 50))
    assert live_until(old, newest, 10) == 50
    assert live_until(old, newest, 70) == 70
    assert live_until(new, newest, 49) == 49
    pieces, hole = cover([old, new], newest, Intervals([(0, 120)]))
    assert (spans(pieces), hole) == ([(0, 0, 50), (50, 50, 120)], None)


def test_a_log_that_returned_to_an_older_branch_uses_what_agrees() -> None:
    newest = Lineage(((0, 0), (2, 30), (5, 80)))
    older, between = segment(0, 80, (0, 0), (2, 30)), segment(40, 90, (0, 0), (4, 40))
    pieces, hole = cover([older, between], newest, Intervals([(0, 90)]))
    assert (spans(pieces), hole) == ([(0, 0, 80)], Interval(80, 90))


def test_a_hole_ends_where_a_segment_speaks_again() -> None:
    pieces, hole = cover([segment(0, 10), segment(30, 40)], Lineage(((0, 0),)), Intervals([(0, 40)]))
    assert (spans(pieces), hole) == ([(0, 0, 10)], Interval(10, 30))


def test_cover_is_exact_for_random_segments(rng: random.Random) -> None:
    for _ in range(300):
        made = [(start, start + rng.randint(1, 20)) for start in (rng.randrange(60) for _ in range(rng.randint(1, 8)))]
        segments = [segment(start, end) for start, end in made]
        rng.shuffle(segments)
        pieces, hole = cover(segments, Lineage(((0, 0),)), Intervals([(5, 50)]))
        reached = hole.start if hole else 50
        expected = Intervals(made).contiguous_from(5)
        assert reached == min(expected, 50)
        ends = [5, *(one.end for one in pieces)]
        assert [one.start for one in pieces] == ends[:-1]
        assert ends[-1] == reached
        assert all(one.segment.base <= one.start < one.end <= one.segment.end for one in pieces)


def test_the_first_open_transaction_holds_back() -> None:
    assert decided_end(100, open_at(40, 70)) == (40, open_at(40))
    assert decided_end(40, open_at(40)) == (40, ())
    assert decided_end(100, ()) == (100, ())


def test_aborted_transactions_are_kept_once_from_the_start_on() -> None:
    found = [AbortedTransaction(1, 0, 9), AbortedTransaction(2, 5, 20), AbortedTransaction(2, 5, 20)]
    assert aborted_from(10, found) == (AbortedTransaction(2, 5, 20),)


def test_ranges_are_contiguous_and_cut_to_the_piece() -> None:
    piece = SegmentPiece(segment(0, 100, size=3000), 20, 90)
    parts = ranges_of(piece, [BatchCut(1000, 30), BatchCut(2000, 60)])
    assert [(one.start, one.end, one.from_offset, one.to_offset) for one in parts] == [
        (0, 1000, 20, 30),
        (1000, 2000, 30, 60),
        (2000, 3000, 60, 90),
    ]
    late = ranges_of(piece._replace(start=60), [BatchCut(1000, 30), BatchCut(2000, 60)])
    assert [(one.start, one.from_offset) for one in late] == [(2000, 60)]


def test_consecutive_ranges_share_a_task_up_to_its_size() -> None:
    def part(start: int, end: int, size: int) -> SegmentRange:
        return ranges_of(SegmentPiece(segment(start, end, size=size), start, end), [])[0]

    half = TARGET_BYTES // 2
    parts = [part(0, 10, half), part(10, 20, half), part(20, 30, half), part(40, 50, 1), part(50, 60, 2 * TARGET_BYTES)]
    tasks = tasks_of(0, None, 0, parts)
    assert [(one.from_offset, one.to_offset) for one in tasks] == [(0, 20), (20, 30), (40, 50), (50, 60)]
    assert [one.from_offset for one in within(tasks, 1, 10)] == [0]
    assert [one.from_offset for one in within(tasks, TARGET_BYTES + half, 10)] == [0, 20]
    assert [one.from_offset for one in within(tasks, 1 << 40, 3)] == [0, 20, 40]


def test_a_partition_goes_from_the_ledger_to_the_watermark() -> None:
    plan, pieces, _ = decide(KnownPartition(0, 0, watermark(150), state(40), [segment(0, 100), segment(100, 150)]))
    assert (plan.start, plan.end, plan.gaps, plan.held_by) == (40, 150, (), ())
    assert spans(pieces) == [(0, 40, 100), (100, 100, 150)]


def test_what_is_open_at_the_end_of_the_last_segment_holds_back() -> None:
    segments = [segment(0, 100, open_transactions=open_at(50)), segment(100, 200, open_transactions=open_at(120, 160))]
    plan, pieces, _ = decide(KnownPartition(0, 0, watermark(200), None, segments))
    assert (plan.end, plan.held_by) == (120, open_at(120))
    assert spans(pieces)[-1] == (100, 100, 120)


def test_a_dead_branch_decides_no_transaction() -> None:
    newest = ((0, 0), (4, 150))
    segments = [
        segment(0, 100, open_transactions=open_at(90)),
        segment(100, 200, (0, 0)),  # its markers beyond 150 were cut off
    ]
    plan, *_ = decide(KnownPartition(0, 0, watermark(150, *newest), None, segments))
    assert (plan.end, plan.held_by) == (90, open_at(90))


def test_a_dead_branch_decides_nothing_before_the_new_one_is_stored() -> None:
    """The lineage of a claim says that an epoch begins where nothing is stored yet."""
    segments = [segment(0, 100, open_transactions=open_at(90)), segment(100, 200)]
    plan, *_ = decide(KnownPartition(0, 0, watermark(150, (0, 0), (4, 150)), None, segments))
    assert (plan.end, plan.held_by) == (90, open_at(90))
    newest = watermark(300, (0, 0), (4, 150))
    plan, *_ = decide(KnownPartition(0, 0, newest, None, [*segments, segment(150, 300, (0, 0), (4, 150))]))
    assert (plan.end, plan.held_by) == (300, ())


def test_a_hole_is_named_by_the_agent_if_it_can() -> None:
    gap = {"from": 100, "to": 120, "reason": "failed_disk", "detected_at": NOON}
    known = KnownPartition(0, 0, watermark(100, gaps=[gap]), None, [segment(0, 100)])
    plan, *_ = decide(known)
    assert [(one.start, one.end, one.reason) for one in plan.gaps] == [(100, 120, "failed_disk")]
    plan, *_ = decide(KnownPartition(0, 0, watermark(150), None, [segment(0, 100), segment(120, 150)]))
    assert [(one.start, one.end, one.reason) for one in plan.gaps] == [(100, 120, "unknown")]


def test_a_gap_that_is_known_keeps_the_time_of_its_detection() -> None:
    early = Gap.model_validate({"from": 100, "to": 120, "reason": "unknown", "detected_at": NOON - timedelta(days=1)})
    known = KnownPartition(0, 0, watermark(150), state(100, gaps=(early,)), [segment(0, 100), segment(120, 150)])
    assert decide(known).plan.gaps == (early,)
    assert not changes_anything(decide(known).plan, known.state)


def test_acknowledged_offsets_are_passed() -> None:
    gap = {"from": 100, "to": 120, "reason": "failed_disk", "detected_at": NOON}
    segments = [segment(0, 100), segment(120, 150)]
    plan, pieces, _ = decide(KnownPartition(0, 0, watermark(150, acknowledged_gaps=[gap]), None, segments))
    assert (plan.end, plan.acknowledged, plan.gaps) == (150, ((100, 120),), ())
    assert spans(pieces) == [(0, 0, 100), (120, 120, 150)]


def test_what_a_task_found_holds_until_another_copy_comes() -> None:
    fields = {"from": 40, "to": 50, "reason": "corrupt", "detected_at": NOON + timedelta(hours=1)}
    found = Gap.model_validate({**fields, "read": True})
    same = KnownPartition(0, 0, watermark(100), state(40, gaps=(found,)), [segment(0, 100)])
    plan, pieces, _ = decide(same)
    assert (plan.end, plan.gaps, pieces) == (40, (found,), [])
    assert not changes_anything(plan, same.state)
    fresh = segment(0, 100, uploaded_at=NOON + timedelta(hours=2))
    plan, *_ = decide(KnownPartition(0, 0, watermark(100), same.state, [fresh]))
    assert (plan.end, plan.gaps) == (100, ())


def test_a_hole_ends_with_a_segment_that_is_older_than_its_gap() -> None:
    """Its manifest was late in a copy of raw, or a person has restored it."""
    known = KnownPartition(0, 0, watermark(100), state(40), [segment(0, 40), segment(60, 100)])
    hole = decide(known).plan.gaps
    assert [(gap.start, gap.end, gap.read) for gap in hole] == [(40, 60, False)]
    there = [segment(0, 40), segment(40, 60, uploaded_at=hole[0].detected_at - timedelta(hours=1)), segment(60, 100)]
    plan, *_ = decide(KnownPartition(0, 0, watermark(100), state(40, gaps=hole), there))
    assert (plan.end, plan.gaps) == (100, ())


def test_an_unclean_election_below_the_ledger_holds() -> None:
    plan, pieces, _ = decide(
        KnownPartition(0, 0, watermark(120, (0, 0), (5, 30)), state(40), [segment(30, 120, (0, 0), (5, 30))])
    )
    assert (plan.end, pieces) == (40, [])
    assert [(one.start, one.end, one.reason) for one in plan.gaps] == [(30, 40, "unclean_election")]


def test_a_partition_that_is_held_keeps_below_where_its_markers_lie() -> None:
    """A log that returns to the branch may leave it again above what has landed."""
    before = state(40).model_copy(update={"verdicts_end": 90})
    known = KnownPartition(0, 0, watermark(60, (0, 0), (4, 30)), before, [segment(30, 60, (0, 0), (4, 30))])
    plan, *_ = decide(known)
    assert changes_anything(plan, before)
    assert (plan.end, plan.verdicts_end) == (40, 90)


def test_offsets_below_the_log_start_count_as_deleted_the_first_time() -> None:
    mark = watermark(150, start_offset=100)
    assert decide(KnownPartition(0, 0, mark, None, [segment(100, 150)])).plan.deleted_before_upload == ((0, 100),)
    plan, *_ = decide(KnownPartition(0, 0, mark, state(40), [segment(100, 150)]))
    assert [(one.start, one.end, one.reason) for one in plan.gaps] == [(40, 100, "deleted_before_upload")]


@pytest.mark.parametrize("held", [(), open_at(40)])
def test_a_plan_that_would_change_nothing_is_none(held: tuple[OpenTransaction, ...]) -> None:
    known = state(40).model_copy(update={"held_by": held})
    plan, *_ = decide(KnownPartition(0, 0, watermark(60), known, [segment(0, 60, open_transactions=open_at(40))]))
    assert changes_anything(plan, known) is not bool(held)
