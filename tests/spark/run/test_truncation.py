"""Unclean elections that cut off landed rows, and logs that return to an older branch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.spark.world import Acting, World, in_process, outcomes_of
from tests.support.raw_builder import EPOCH
from tests.tidemark.kafka_log.build import T0, Record, batch, marker, reseal, simple, transactional
from tidemark.errors import ContinuityError
from tidemark.formats.keys import SegmentName
from tidemark.formats.table.plan import RunPlan, RunResult, SegmentTask
from tidemark.kafka_log import OpenTransaction
from tidemark.planning import plan_ingest, plan_rebuild, write_plan
from tidemark.table.delta_table import LiveFiles, live_files
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark_spark.kinds.ingest import Ingest
from tidemark_spark.kinds.registry import kind_of
from tidemark_spark.model import CarriedOut, Job, Outcome
from tidemark_spark.run import commit as publish
from tidemark_spark.run import driver
from tidemark_spark.run.commit import rebased
from tidemark_spark.run.driver import run

DAY = 86_400_000
FUNCTION = (
    "parser: {kind: function, function: 'tests.spark.convert.parsing:sizes', columns: [{name: size, type: int32}]}"
)


def branch(world: World, *lineage: tuple[int, int], partition: int = 0) -> None:
    """A new leader, whose lineage this is."""
    known = world.raw.partition(partition)
    known.lineage, known.leader_epoch, known.open_transactions = lineage, lineage[-1][0], ()


def files(world: World) -> set[str]:
    """The paths of the live files."""
    return {one.path for one in live_files(DeltaTable(world.table.url))}


def epochs(world: World) -> list[int]:
    """The epoch of each row, by offset."""
    return [row["kafka_leader_epoch"] for row in world.rows()]


def cut_at_six(world: World) -> None:
    """Ten offsets landed in two files; then the last four are cut off, and eight others written."""
    ten(world)
    elect(world)


def ten(world: World) -> None:
    """Ten offsets in two files."""
    world.raw.segment([simple(0), simple(3)])
    world.land()
    world.raw.segment([simple(6, 2), simple(8, 2)])
    world.land()


def elect(world: World) -> None:
    """The last four are cut off, and eight others written."""
    branch(world, (EPOCH, 0), (5, 6))
    world.raw.segment([simple(6, 5, leader_epoch=5), simple(11, leader_epoch=5)], base=6)
    world.raw.publish()


def test_files_above_the_cut_go_in_the_commit_that_lands_the_new_branch(world: World) -> None:
    cut_at_six(world)
    below = {path for path in files(world) if "_0_5_" in path}
    assert len(below) == 1
    result = world.land()
    assert (result.status, result.rows, result.gaps) == ("landed", 8, ())
    assert below < files(world)
    assert (world.offsets(), epochs(world)) == (list(range(14)), [EPOCH] * 6 + [5] * 8)
    assert world.classes() == {"landed": 14}
    [truncated] = [row for row in world.evidence() if row["class"] == "truncated"]
    assert (truncated["first"], truncated["next"], truncated["rows"]) == (6, 10, 4)
    state = world.ledger.by_partition[0, 0]
    assert (state.branch, state.lineage, state.start_offset, state.gaps) == (1, ((EPOCH, 0), (5, 6)), 0, ())
    assert plan_ingest(world.table).empty
    assert plan_rebuild(world.table, ["2026-02-02"]).partitions[0].end == 14


def test_a_file_across_the_cut_is_written_again_without_what_is_cut_off(world: World) -> None:
    world.raw.segment([simple(0), simple(3), simple(6), simple(9)])
    world.raw.segment([simple(0)], 1)
    world.land()
    other = {path for path in files(world) if "/0_1_" in path}
    branch(world, (EPOCH, 0), (5, 6))
    world.raw.segment([simple(6, 1, leader_epoch=5)], base=6)
    assert world.land().rows == 7
    assert epochs(world) == [EPOCH] * 6 + [5] + [EPOCH] * 3
    assert {path.rpartition("_")[0] for path in files(world) - other} == {
        "dt=2026-02-02/0_0_0_5",
        "dt=2026-02-02/0_0_6_6",
    }
    assert other < files(world)
    assert world.next_offset() == 7  # fewer than had landed


def test_dates_that_lose_or_get_rows_are_reopened(world: World) -> None:
    world.raw.segment([batch(0, [Record(i, T0 + i * DAY) for i in range(2)])])
    world.raw.segment([batch(2, [Record(i, T0 + (i + 1) * DAY) for i in range(2)])])
    world.land()
    ledger = world.ledger
    final = {dt: one.model_copy(update={"state": "final"}) for dt, one in ledger.dates.items()}
    ledger = ledger.model_copy(update={"dates": final})
    branch(world, (EPOCH, 0), (5, 2))
    world.raw.segment([batch(2, [Record(0, T0 + DAY), Record(1, T0 + DAY)], leader_epoch=5)], base=2)
    world.raw.publish()
    plan = world.plan()
    change = Ingest(world.table, plan).account(outcomes_of(world.table, plan))
    dates = rebased(kind_of(world.table, plan), ledger, change, live_files(DeltaTable(world.table.url))).dates
    assert {dt: (one.state, one.rows, one.late_rows) for dt, one in dates.items()} == {
        "2026-02-02": ("final", 1, 0),
        "2026-02-03": ("reopened", 3, 1),
        "2026-02-04": ("reopened", 0, 0),
    }


def test_quarantined_and_filtered_rows_above_the_cut_hold_no_more(tmp_path: Path) -> None:
    world = World(tmp_path, FUNCTION)
    values = [b"fine!", b"bad", b"", b"fine!", b"bad", b""]

    def written(base: int, part: Sequence[bytes], epoch: int = EPOCH) -> bytes:
        return batch(base, [Record(i, T0 + i, None, value) for i, value in enumerate(part)], leader_epoch=epoch)

    world.raw.segment([written(0, values[:3]), written(3, values[3:])])
    world.raw.segment([written(6, values)])
    world.land()
    assert world.classes() == {"landed": 4, "quarantined": 4, "filtered": 4}
    branch(world, (EPOCH, 0), (5, 3))
    world.raw.segment([written(3, [b"bad", b"bad"], 5)], base=3)
    world.land()
    assert world.classes() == {"landed": 1, "quarantined": 3, "filtered": 1}
    assert sorted(row["kafka_offset"] for row in world.quarantine()) == [1, 3, 4]
    assert world.offsets() == [0]


def test_a_log_that_returns_to_the_older_branch_has_its_rows_again(world: World) -> None:
    cut_at_six(world)
    world.land()
    branch(world, (EPOCH, 0), (7, 9))
    world.raw.segment([simple(6, 2), simple(8, 2)], base=6, lineage=((EPOCH, 0),))
    world.raw.segment([simple(9, 4, leader_epoch=7)], base=9)
    assert world.land().status == "landed"
    assert epochs(world) == [EPOCH] * 9 + [7] * 4
    cuts = [(row["first"], row["next"]) for row in world.evidence() if row["class"] == "truncated"]
    assert cuts == [(6, 10), (6, 14)]
    assert world.ledger.by_partition[0, 0].branch == 2
    world.raw.segment([simple(13, leader_epoch=7)])
    assert world.land().rows == 3


def test_a_log_that_returned_before_the_next_run_keeps_its_rows(world: World) -> None:
    world.raw.segment([simple(0, 5), simple(5, 5)])
    world.land()
    before = files(world)
    branch(world, (EPOCH, 0), (7, 10))  # epoch 5 had cut it at 5, and lost that again
    world.raw.segment([simple(10, leader_epoch=7)], base=10)
    assert world.land().rows == 3
    assert before < files(world)
    assert world.ledger.by_partition[0, 0].branch == 0


def test_a_truncation_waits_for_the_new_branch(world: World) -> None:
    world.raw.segment([simple(0, 5), simple(5, 5)])
    world.land()
    before = world.rows()
    known = world.raw.partition()
    known.leader_epoch, known.next_offset = 5, 5  # the agent cut the watermark, and has uploaded nothing yet
    known.lineage = ((EPOCH, 0), (5, 5))
    assert world.land().gaps == ((0, 0, 5, 10),)
    assert world.ledger.by_partition[0, 0].gaps[0].reason == "unclean_election"
    assert world.rows() == before
    assert plan_ingest(world.table).empty
    branch(world, (EPOCH, 0), (5, 5))
    world.raw.segment([simple(5, 2, leader_epoch=5)], base=5)
    known.next_offset = None
    assert world.land().gaps == ()
    assert epochs(world) == [EPOCH] * 5 + [5] * 2


def test_a_watermark_that_goes_back_without_a_truncation_takes_nothing_away(world: World) -> None:
    world.raw.segment([simple(0, 5), simple(5, 5)])
    world.land()
    known = world.raw.partition()
    known.leader_epoch, known.next_offset = 5, 5
    assert world.land().gaps == ()
    assert world.offsets() == list(range(10))


@pytest.mark.parametrize("commit", [False, True])
def test_a_transaction_whose_marker_was_cut_off_is_decided_anew(world: World, commit: bool) -> None:
    world.raw.segment([simple(0), transactional(3, 7, 2)])
    world.raw.segment([simple(5)])
    world.raw.segment([marker(8, 7, commit=not commit), simple(9)], aborted=[(7, 3, 8)] if commit else [])
    world.land()
    assert world.classes()["aborted"] == (2 if commit else 0)
    branch(world, (EPOCH, 0), (5, 7))
    opened = OpenTransaction(producer_id=7, producer_epoch=0, first_offset=3)
    world.raw.partition().open_transactions = (opened,)
    world.raw.segment([simple(7, leader_epoch=5)], base=7)
    world.land()
    assert world.next_offset() == 3  # undecided again
    assert world.offsets() == [0, 1, 2]
    ending = reseal(marker(10, 7, commit=commit), leader_epoch=5)
    world.raw.segment([ending, simple(11, leader_epoch=5)], aborted=[] if commit else [(7, 3, 10)])
    world.land()
    assert world.offsets() == [0, 1, 2, *([3, 4] if commit else []), *range(5, 10), 11, 12, 13]
    assert world.classes()["transaction_marker"] == 1


def test_a_transaction_that_the_new_branch_ends_at_once_is_decided_by_it(world: World) -> None:
    world.raw.segment([simple(0), transactional(3, 7, 2)])
    world.raw.segment([simple(5), marker(8, 7, commit=True)])
    world.land()
    assert world.offsets() == list(range(8))
    branch(world, (EPOCH, 0), (5, 8))
    opened = OpenTransaction(producer_id=7, producer_epoch=0, first_offset=3)
    world.raw.partition().open_transactions = (opened,)
    ending = reseal(marker(8, 7, commit=False), leader_epoch=5)
    world.raw.segment([ending, simple(9, leader_epoch=5)], base=8, aborted=[(7, 3, 8)])
    world.land()
    assert world.offsets() == [0, 1, 2, 5, 6, 7, 9, 10, 11]


def test_an_abort_that_was_cut_off_says_nothing(world: World) -> None:
    world.raw.segment([transactional(0, 7, 2), simple(2)])
    world.raw.segment([marker(5, 7, commit=False), simple(6)], aborted=[(7, 0, 5)])
    branch(world, (EPOCH, 0), (5, 5))
    opened = OpenTransaction(producer_id=7, producer_epoch=0, first_offset=0)
    world.raw.partition().open_transactions = (opened,)
    whole = [transactional(0, 7, 2), simple(2), reseal(marker(5, 7, commit=True), leader_epoch=5)]
    world.raw.segment([*whole, simple(6, leader_epoch=5)], base=0)
    world.land()
    assert world.offsets() == [0, 1, 2, 3, 4, 6, 7, 8]


def held_by_another(world: World, *, commit: bool = True) -> None:
    """Of the transaction at 3, the marker at 7 lies above what has landed: the transaction at 5 holds that back."""
    world.raw.segment([simple(0), transactional(3, 7, 2), transactional(5, 8, 2)])
    ending = [marker(7, 7, commit=commit), simple(8)]
    world.raw.segment(ending, aborted=[] if commit else [(7, 3, 7)])
    world.land()
    assert world.next_offset() == 5
    assert world.offsets() == [0, 1, 2, *([3, 4] if commit else [])]


OPEN_AT_3 = OpenTransaction(producer_id=7, producer_epoch=0, first_offset=3)
OPEN_AT_5 = OpenTransaction(producer_id=8, producer_epoch=0, first_offset=5)


@pytest.mark.parametrize("commit", [False, True])
def test_a_marker_above_what_has_landed_is_cut_off(world: World, commit: bool) -> None:
    held_by_another(world, commit=not commit)
    branch(world, (EPOCH, 0), (5, 7))
    world.raw.partition().open_transactions = (OPEN_AT_3, OPEN_AT_5)
    world.raw.segment([simple(7, 2, leader_epoch=5)], base=7)
    world.land()
    assert world.next_offset() == 3  # undecided again
    assert world.offsets() == [0, 1, 2]
    assert world.ledger.by_partition[0, 0].branch == 1
    assert plan_ingest(world.table).empty
    ending = [reseal(marker(9 + at, 7 + at, commit=commit or at == 1), leader_epoch=5) for at in range(2)]
    world.raw.partition().open_transactions = ()
    world.raw.segment(ending, aborted=[] if commit else [(7, 3, 9)])
    world.land()
    assert world.offsets() == [0, 1, 2, *([3, 4] if commit else []), 5, 6, 7, 8]
    assert world.next_offset() == 11
    assert [row for row in world.evidence() if row["class"] == "truncated"] == []


def test_a_marker_above_what_has_landed_stands_until_the_new_branch_has_something(world: World) -> None:
    held_by_another(world)
    known = world.raw.partition()
    known.leader_epoch, known.next_offset = 5, 7  # the agent cut the watermark, and has uploaded nothing yet
    known.lineage = ((EPOCH, 0), (5, 7))
    assert plan_ingest(world.table).empty
    known.next_offset = None
    branch(world, (EPOCH, 0), (5, 7))
    known.open_transactions = (OPEN_AT_5,)
    world.raw.segment([reseal(marker(7, 7, commit=False), leader_epoch=5)], base=7, aborted=[(7, 3, 7)])
    world.land()
    assert (world.next_offset(), world.offsets()) == (5, [0, 1, 2])


def test_a_cut_above_all_markers_that_count_takes_nothing_away(world: World) -> None:
    held_by_another(world)
    before = files(world)
    branch(world, (EPOCH, 0), (5, 10))
    world.raw.partition().open_transactions = (OPEN_AT_5,)
    world.raw.segment([simple(10, 2, leader_epoch=5)], base=10)
    world.land()
    assert (world.next_offset(), world.offsets()) == (5, [0, 1, 2, 3, 4])
    assert plan_ingest(world.table).empty
    world.raw.partition().open_transactions = ()
    world.raw.segment([reseal(marker(12, 8, commit=True), leader_epoch=5)])
    world.land()
    assert world.offsets() == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11]
    assert world.next_offset() == 13
    assert len(before - files(world)) <= 1


def test_a_log_that_is_cut_above_its_markers_and_lands_on_is_not_cut_again(world: World) -> None:
    """The markers that decided what has landed are those of the newest run that landed something."""
    held_by_another(world)
    branch(world, (EPOCH, 0), (5, 11))
    world.raw.segment([reseal(marker(11, 8, commit=True), leader_epoch=5), simple(12, leader_epoch=5)])
    world.land()
    state = world.ledger.by_partition[0, 0]
    assert (state.next_offset, state.verdicts_end, state.branch) == (15, 15, 0)


def test_raw_that_is_gone_below_the_cut_holds_the_partition_alone(world: World) -> None:
    world.raw.segment([simple(0, 5), simple(5, 5)])
    world.raw.segment([simple(0)], 1)
    world.land()
    before = world.offsets()
    branch(world, (EPOCH, 0), (5, 7))
    world.raw.segment([simple(7, leader_epoch=5)], base=7)
    world.raw.segment([simple(3)], 1)
    world.raw.store.delete(world.raw.keys(0).segment(SegmentName(0), "manifest.json"))
    assert world.land().gaps == ((0, 0, 7, 10),)
    assert (world.offsets(), world.offsets(1)) == (before, list(range(6)))
    assert plan_ingest(world.table).empty


def damaged_below_the_cut(world: World, last: bytes) -> None:
    """Nine offsets landed, of which ``last`` has three; then these are cut off, and the batch before is damaged."""
    log = b"".join([simple(0), simple(3), last])
    key = world.raw.segment(log)
    world.raw.segment([simple(0)], 1)
    world.land()
    broken = bytearray(log)
    broken[len(simple(0)) + 70] ^= 1
    world.raw.replace_log(key, bytes(broken))
    branch(world, (EPOCH, 0), (5, 6))
    world.raw.segment([simple(6, 4, leader_epoch=5)], base=6)
    world.raw.segment([simple(3)], 1)


def test_damage_below_the_cut_holds_the_partition_until_a_good_copy_comes(world: World) -> None:
    damaged_below_the_cut(world, simple(6))
    assert world.land().gaps == ((0, 0, 3, 9),)
    assert (world.offsets(), world.offsets(1)) == (list(range(9)), list(range(6)))
    assert plan_ingest(world.table).empty
    world.raw.now = datetime.now(UTC)
    world.raw.segment([simple(0), simple(3), simple(6)], base=0, lineage=((EPOCH, 0),))
    world.raw.partition().end = 10
    assert world.land().gaps == ()
    assert epochs(world)[:10] == [EPOCH] * 6 + [5] * 4


def test_a_limit_of_bytes_never_leaves_rows_below_the_cut_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.raw.byte_ranges.TARGET_BYTES", 100)
    monkeypatch.setattr("tidemark.planning.ingest.TARGET_BYTES", 100)
    for base in range(0, 12, 3):
        world.raw.segment([simple(base)])
    world.land(limit_bytes=1 << 20)
    world.raw.segment([simple(0), simple(3), simple(6), simple(9)], base=0)
    result = run(world.table, rebuilt(world), in_process)
    assert result.status == "landed"
    branch(world, (EPOCH, 0), (5, 9))
    for base in range(9, 18, 3):
        world.raw.segment([simple(base, leader_epoch=5)], base=base)
    world.land(limit_bytes=1)
    assert world.next_offset() >= 10
    assert epochs(world)[:9] == [EPOCH] * 9
    while not plan_ingest(world.table, limit_bytes=1).empty:
        world.land(limit_bytes=1)
    assert epochs(world) == [EPOCH] * 9 + [5] * 9


def rebuilt(world: World) -> RunPlan:
    """A rebuild of the only date, written."""
    plan = plan_rebuild(world.table, ["2026-02-02"])
    write_plan(world.table, plan)
    return plan


def test_of_two_runs_that_leave_a_branch_one_lands(world: World) -> None:
    cut_at_six(world)
    plans = [world.plan(), world.plan()]
    assert [run(world.table, plan, in_process).status for plan in plans] == ["landed", "stale"]
    world.check()


def test_a_rebuild_of_the_same_files_makes_the_run_stale_and_the_other_way_round(tmp_path: Path) -> None:
    for first in ("rebuild", "ingest"):
        world = World(tmp_path / first)
        ten(world)
        remade = rebuilt(world)
        outcomes = outcomes_of(world.table, remade)
        elect(world)
        plan = world.plan()
        runs = [remade, plan] if first == "rebuild" else [plan, remade]
        made = {remade.attempt: CarriedOut(outcomes), plan.attempt: in_process}
        found = [run(world.table, one, made[one.attempt]).status for one in runs]
        assert found == ["landed", "stale"], first
        world.check()
        world.land()
        assert epochs(world) == [EPOCH] * 6 + [5] * 8


def test_a_run_planned_on_the_branch_that_was_left_is_stale(world: World) -> None:
    world.raw.segment([simple(0), simple(3, 3)])
    world.land()
    world.raw.segment([simple(6)])
    world.raw.publish()
    old = world.plan()
    branch(world, (EPOCH, 0), (5, 3))
    world.raw.segment([simple(3, 3, leader_epoch=5)], base=3)
    world.land()
    assert world.next_offset() == old.partitions[0].start == 6
    assert run(world.table, old, in_process).status == "stale"
    world.check()


def test_of_two_runs_that_leave_a_branch_without_a_file_one_lands(world: World) -> None:
    world.raw.segment([transactional(0, 7, 2)])
    world.raw.segment([marker(2, 7, commit=False)], aborted=[(7, 0, 2)])
    world.land()
    branch(world, (EPOCH, 0), (5, 2))
    world.raw.partition().open_transactions = (OpenTransaction(producer_id=7, producer_epoch=0, first_offset=0),)
    ending = reseal(marker(2, 7, commit=False), leader_epoch=5)
    world.raw.segment([ending], base=2, aborted=[(7, 0, 2)])
    world.raw.publish()
    plans = [world.plan(), world.plan()]
    assert plans[0].removes == ()
    assert [run(world.table, plan, in_process).status for plan in plans] == ["landed", "stale"]
    world.check()
    assert (world.next_offset(), world.classes()) == (3, {"aborted": 2, "transaction_marker": 1})


def test_files_whose_dates_interleave_are_all_found(world: World) -> None:
    days = [0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1]  # the second file lies across the cut, the first across its start
    for base in range(0, 12, 4):
        world.raw.segment([batch(base, [Record(i, T0 + day * DAY) for i, day in enumerate(days[base : base + 4])])])
    world.land()
    assert len(files(world)) == 2
    branch(world, (EPOCH, 0), (5, 8))
    world.raw.segment([simple(8, 2, leader_epoch=5)], base=8)
    world.land()
    assert epochs(world) == [EPOCH] * 8 + [5] * 2


POINTS = ("convert", "_write_evidence", "_written", "commit", "result")


@pytest.mark.parametrize("point", POINTS)
def test_a_run_killed_while_it_leaves_a_branch_is_exact_at_every_instant(
    world: World, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_at_six(world)
    before = world.rows()
    plan = world.plan()
    with monkeypatch.context() as patch:
        _end_after(patch, point)
        with pytest.raises(KeyboardInterrupt):
            run(world.table, plan, _killed if point == "convert" else in_process)
    world.check()
    landed = point in {"commit", "result"}
    assert (world.rows() == before) is not landed
    assert run(world.table, plan, in_process).status == "landed"
    world.check()
    assert epochs(world) == [EPOCH] * 6 + [5] * 8
    assert world.ledger.n == 3


@Acting
def _killed(work: Any, job: Job, tasks: Sequence[SegmentTask]) -> list[Outcome]:
    in_process.on_each(work, job, tasks)
    raise KeyboardInterrupt


def _end_after(patch: pytest.MonkeyPatch, point: str) -> None:
    """Let the function ``point`` be the last that a run calls."""
    places = {"_write_evidence": driver, "_written": publish, "commit": publish}
    if point == "result":
        patch.setattr(driver, "_report", _interrupted)
    elif point in places:
        real = getattr(places[point], point)

        def last(*arguments: object) -> None:
            real(*arguments)
            raise KeyboardInterrupt

        patch.setattr(places[point], point, last)


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_file_that_is_not_wholly_the_partitions_stops_the_plan(world: World) -> None:
    cut_at_six(world)
    ledger = world.ledger
    live = LiveFiles.of(one._replace(rows=one.rows + 1) for one in live_files(DeltaTable(world.table.url)))
    with pytest.raises(ContinuityError, match="of which evidence gives 4 to partition 0"):
        EffectiveEvidence(world.table, ledger, live).from_offset((0, 0), 6)


@pytest.mark.timeout(1800)
def test_random_histories_of_elections_leave_what_the_log_holds(tmp_path: Path, rng: random.Random, full: bool) -> None:
    """With restores of brokers among them, after which epochs are given out again."""
    branches = restores = 0
    for number in range(200 if full else 6):
        history = _History(World(tmp_path / str(number)), rng)
        for _ in range(rng.randint(3, 7)):
            history.go_on()
            if rng.random() < 0.7:
                assert _settled(history.world) in {"landed", "empty"}
        _settled(history.world)
        rows = history.world.rows()
        assert [(row["kafka_offset"], row["kafka_leader_epoch"], row["kafka_value"]) for row in rows] == history.rows
        if rows:  # each offset has one class
            assert sum(history.world.classes().values()) == history.world.next_offset()
        restores += len(history.known.restores)
        branches += history.world.ledger.by_partition[0, 0].branch
    assert branches > (2 if full else 0), "the histories had elections"
    assert restores or not full


class _History:
    """A random history of a log: ``log`` has (base, end, batch, value) of each batch that the leader holds."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self._rng = world, rng
        self.known = world.raw.partition()
        self._log: list[tuple[int, int, bytes, bytes]] = []
        self._begun = self.known.start_offset = self.known.end = rng.choice((0, 0, rng.randint(1, 9)))
        self._lineage, self._latest = [(EPOCH, self._begun)], EPOCH
        self.known.lineage = tuple(self._lineage)

    @property
    def rows(self) -> list[tuple[int, int, bytes]]:
        """The offset, the epoch and the value of each record."""
        return [(at, _epoch(made), value) for base, end, made, value in self._log for at in range(base, end)]

    @property
    def _end(self) -> int:
        return self._log[-1][1] if self._log else self._begun

    def go_on(self) -> None:
        """The log may be cut off; then records are appended, and all of it is uploaded in one or two segments."""
        rng = self._rng
        if rng.random() < 0.5 and self._log:
            self._cut()
        for _ in range(rng.randint(1, 4)):
            self._append()
        cut = rng.randrange(len(self._log))
        for part in (self._log[:cut], self._log[cut:]):
            if part:
                batches = [made for _, _, made, _ in part]
                self.world.raw.segment(batches, base=part[0][0], lineage=tuple(self._lineage))

    def _cut(self) -> None:
        """An unclean election, or a restore, after which the leader may go on under the epoch of before.

        The leader may be behind the offset at which the store began, as one whose disk was replaced.
        """
        self._log = self._log[: self._rng.randint(0, len(self._log) - 1)]
        if not self._log:
            self._begun = self.known.start_offset = self._rng.randint(0, self._begun)
        end = self._end
        self._lineage = [one for one in self._lineage if one[1] < end]
        if restored := self._rng.random() < 0.5:
            self.known.restores = (*self.known.restores, end)
            self._latest = self._lineage[-1][0] if self._lineage else self._latest
        if not restored or not self._lineage or self._rng.random() < 0.5:
            self._latest += 1
            self._lineage.append((self._latest, end))
        branch(self.world, *self._lineage)

    def _append(self) -> None:
        base, count = self._end, self._rng.randint(1, 3)
        epoch = self._lineage[-1][0]
        value = b"%d in history %d" % (epoch, len(self.known.restores))
        records = [Record(i, T0 + self._rng.randrange(3) * DAY, b"k", value) for i in range(count)]
        self._log.append((base, base + count, batch(base, records, leader_epoch=epoch), value))


def _epoch(made: bytes) -> int:
    return int.from_bytes(made[12:16], "big")


def _settled(world: World) -> str:
    result: RunResult = world.land()
    return result.status


def test_a_marker_below_the_end_of_a_dead_segment_decides(world: World) -> None:
    """The dead segment reaches further than the live one with the abort: a rebuild of the date before finds that."""
    world.raw.segment([simple(0), transactional(3, 7, 2), simple(5, 10)])
    branch(world, (EPOCH, 0), (5, 6))
    world.raw.partition().open_transactions = (OPEN_AT_3,)
    later = [Record(at, T0 + DAY) for at in range(3)]
    ending = reseal(marker(9, 7, commit=False), leader_epoch=5)
    world.raw.segment([batch(6, later, leader_epoch=5), ending], base=6, aborted=[(7, 3, 9)])
    world.raw.segment([batch(10, [Record(at, T0 + DAY) for at in range(9)], leader_epoch=5)])
    world.land()
    before = world.rows()
    assert [row["kafka_offset"] for row in before] == [0, 1, 2, 5, 6, 7, 8, *range(10, 19)]
    plan = plan_rebuild(world.table, ["2026-02-02"])
    write_plan(world.table, plan)
    assert run(world.table, plan, in_process).status == "landed"
    assert world.rows() == before
