"""The clean-up: every rule with something that goes and something that stays, and kills in the midst of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.spark.run.test_truncation import damaged_below_the_cut
from tests.spark.world import Acting, World, in_process
from tests.tidemark.kafka_log.build import T0, Record, batch, simple
from tidemark.errors import ContinuityError, NotFound, TableTampered
from tidemark.formats.table.plan import RUN_LIMIT, RunPlan, RunResult, SegmentTask
from tidemark.planning import plan_ingest, plan_rebuild, plan_replay, write_plan
from tidemark.planning.maintenance import fold as rules
from tidemark.planning.maintenance.vacuum import MARGIN, TOMBSTONES, judge
from tidemark.raw import objects
from tidemark.table.evidence import evidence_key
from tidemark_spark.jobs.running import run_job
from tidemark_spark.model import Job, Outcome
from tidemark_spark.run import commit, driver
from tidemark_spark.run import vacuum as cleaning
from tidemark_spark.run.driver import run
from tidemark_spark.run.vacuum import vacuum

DT = "2026-02-02"
OLD = RUN_LIMIT + MARGIN + timedelta(minutes=1)
OLDER = OLD + TOMBSTONES


class Died(Exception):
    """Planted where a process is killed."""


def aged(world: World, plan: RunPlan, age: timedelta) -> None:
    """Let the plan's object say that it was made ``age`` earlier than it was."""
    fresh = plan.model_copy(update={"created_at": plan.created_at - age})
    world.table.store.put(world.table.keys.attempt(plan.attempt), fresh.to_bytes())


def age_all(world: World, age: timedelta) -> None:
    """Let everything that was planned so far be this much older."""
    for found in list(world.table.store.list(world.table.keys.attempts)):
        aged(world, RunPlan.from_bytes(world.table.store.get(found.key).body, found.key), age)


@contextmanager
def as_of(world: World, age: timedelta) -> Iterator[None]:
    """The store's clock is ahead by ``age``."""
    real = type(world.table.store).now
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(world.table.store), "now", lambda store: real(store) + age)
        yield


def die(world: World, plan: RunPlan) -> None:
    """Run ``plan`` up to its evidence, with its files written and refused rows beside them."""
    with pytest.MonkeyPatch.context() as patch:

        def dying(*_: object) -> None:
            raise Died

        patch.setattr(driver, "publish", dying)
        with pytest.raises(Died):
            run(world.table, plan, in_process)


@contextmanager
def dying_after(point: str) -> Iterator[None]:
    """Who publishes is killed right after ``point``, a function of the driver or of the commit; it must get there."""
    where = driver if point in {"_write_evidence", "update_markers"} else commit
    real = getattr(where, point)

    def dying(*arguments: Any, **options: Any) -> None:
        real(*arguments, **options)
        raise Died

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, point, dying)
        with pytest.raises(Died):
            yield


def files(world: World) -> set[str]:
    """All objects of the table and its quarantine but for the log."""
    found = [one.key for one in world.table.store.list("") if "_delta_log" not in one.key]
    return {key for key in found if key.startswith(("orders/", "orders__quarantine/"))}


def why(world: World, **options: Any) -> dict[str, str]:
    """What a vacuum removes."""
    return {one.key: one.why for one in vacuum(world.table, **options).removed}


def exists(world: World, key: str) -> bool:
    """Whether there is such an object."""
    try:
        world.table.store.head(key)
    except NotFound:
        return False
    return True


def with_a_dead_run(world: World) -> tuple[RunPlan, set[str]]:
    """A landed run with refused rows, and a dead one with such; returns the dead one's plan and its files."""
    world.raw.segment([batch(0, [Record(0), Record(1, -1)])])
    world.land()
    before = files(world)
    world.raw.segment([batch(2, [Record(0), Record(1, -1), Record(2, T0 + 86_400_000)])])
    world.raw.publish()
    plan = world.plan()
    die(world, plan)
    return plan, files(world) - before


def test_a_dead_runs_files_and_evidence_go_when_it_can_commit_no_more(world: World) -> None:
    plan, left = with_a_dead_run(world)
    kept = files(world) - left
    assert len(left) == 3  # two dates and refused rows
    aged(world, plan, RUN_LIMIT + MARGIN / 2)
    assert why(world) == {}
    aged(world, plan, OLD)
    expected = dict.fromkeys(left, "dead")
    assert why(world, dry_run=True) == expected
    assert files(world) == kept | left
    assert exists(world, evidence_key(world.table, plan.attempt))
    assert why(world) == expected
    assert files(world) == kept
    for key in (evidence_key(world.table, plan.attempt), world.table.keys.attempt(plan.attempt)):
        assert not exists(world, key)
    world.check()
    assert why(world) == {}
    assert world.land().rows == 2
    world.check()


def test_a_ledger_that_was_never_committed_goes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.raw.segment([simple(0)])
    world.land()
    world.raw.segment([simple(3)])
    world.raw.publish()
    plan = world.plan()

    def dying(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(commit, "commit", dying)
        with pytest.raises(Died):
            run(world.table, plan, in_process)
    key = world.table.keys.ledger(2, plan.attempt)
    assert exists(world, key)
    vacuum(world.table)
    assert exists(world, key), "it may still be committed"
    age_all(world, OLD)
    vacuum(world.table)
    assert [one.key for one in world.table.store.list(world.table.keys.ledgers)] == [
        world.table.keys.ledger(1, world.ledger.attempt)
    ]
    world.check()


def test_a_run_that_is_too_old_to_commit_is_stale(world: World) -> None:
    plan, _ = with_a_dead_run(world)
    old = plan.model_copy(update={"created_at": plan.created_at - RUN_LIMIT})
    assert run(world.table, old, in_process).status == "stale"
    young = plan.model_copy(update={"created_at": plan.created_at - RUN_LIMIT + timedelta(hours=1)})
    assert run(world.table, young, in_process).status == "landed"


def test_what_a_rebuild_replaced_goes_when_no_reader_can_need_it(world: World) -> None:
    world.raw.segment([batch(0, [Record(0), Record(1, T0 + 86_400_000)])])
    world.land()
    age_all(world, OLDER)
    before = files(world)
    plan = plan_rebuild(world.table, [DT])
    write_plan(world.table, plan)
    run(world.table, plan, in_process)
    replaced = {one for one in before if DT in one}
    aged(world, plan, OLD + TOMBSTONES - timedelta(hours=1))
    assert why(world) == {}
    aged(world, plan, OLDER)
    assert why(world) == dict.fromkeys(replaced, "replaced")
    assert before - replaced <= files(world)
    world.check()
    assert len(world.rows()) == 2


def test_refused_rows_that_a_replay_superseded_go_and_others_stay(tmp_path: Path) -> None:
    world = World(tmp_path, "sane_timestamps: {earliest: 2026-02-02}")
    early = T0 - 86_400_000
    world.raw.segment([batch(0, [Record(0), Record(1, early), Record(2, -1)])])
    world.land()
    held = {one for one in files(world) if "quarantine" in one}
    assert held
    age_all(world, OLDER)
    assert why(world) == {}  # rows that hold
    mended = World(tmp_path, "sane_timestamps: {earliest: 2026-01-01}")
    mended.raw = world.raw
    plan = plan_replay(mended.table)
    write_plan(mended.table, plan)
    assert run(mended.table, plan, in_process).rows == 1
    assert why(mended) == {}
    aged(mended, plan, OLDER)
    assert why(mended) == dict.fromkeys(held, "replaced")
    mended.check()
    assert [row["kafka_offset"] for row in mended.quarantine()] == [2]


def test_refused_rows_above_a_cut_that_was_not_carried_out_stay(world: World) -> None:
    """Raw is damaged below the cut: the run lands, and the partition keeps its branch and its refused rows."""
    damaged_below_the_cut(world, batch(6, [Record(0), Record(1), Record(2, -1)]))
    world.raw.publish()
    plan = world.plan()
    assert plan.supersedes
    assert run(world.table, plan, in_process).status == "landed"
    age_all(world, OLDER)
    assert {*why(world).values()} == {"left out"}, "what the run had made of the new branch"
    vacuum(world.table)
    world.check()
    assert [row["kafka_offset"] for row in world.quarantine()] == [8]


def test_a_dead_replay_takes_no_refused_row_along(world: World) -> None:
    world.raw.segment([batch(0, [Record(0), Record(1, -1)])])
    world.land()
    plan = plan_replay(world.table)
    write_plan(world.table, plan)
    age_all(world, OLDER)
    assert why(world) == {}
    assert len(world.quarantine()) == 1


def test_files_of_a_landed_run_that_its_commit_left_out_go(world: World) -> None:
    world.raw.segment([simple(0)])
    world.raw.publish()
    plan = world.plan()

    @Acting
    def twice(work: Any, job: Job, tasks: Sequence[SegmentTask]) -> list[Outcome]:
        outcomes = in_process.on_each(work, job, tasks)
        path = outcomes[0].files[0].path
        body = world.table.store.get(f"{world.table.keys.root}/{path}").body
        world.table.store.put(f"{world.table.keys.root}/{path.replace('_0_2_', '_0_1_')}", body)
        return outcomes

    assert run(world.table, plan, twice).status == "landed"
    assert why(world) == {}
    aged(world, plan, OLD)
    assert list(why(world).values()) == ["left out"]
    world.check()


def test_what_nobody_tells_of_stays_and_is_reported(world: World) -> None:
    world.raw.segment([simple(0)])
    world.land()
    age_all(world, OLDER)
    root = world.table.keys.root
    for name in ("_SUCCESS", "_notes/a.parquet", f"dt={DT}/mine.parquet", f"dt={DT}/0_0_0_2_0123456789ab.parquet"):
        world.table.store.put(f"{root}/{name}", b"x")
    before = files(world)
    result = vacuum(world.table)
    assert {one.key for one in result.unknown} == {
        f"{root}/dt={DT}/mine.parquet",
        f"{root}/dt={DT}/0_0_0_2_0123456789ab.parquet",
    }
    assert (result.removed, files(world)) == ((), before)


def test_a_table_that_others_changed_is_not_cleaned(world: World) -> None:
    plan, left = with_a_dead_run(world)
    aged(world, plan, OLD)
    DeltaTable(world.table.url).delete("kafka_offset = 0")
    with pytest.raises(TableTampered):
        vacuum(world.table)
    assert left <= files(world)


def test_nothing_goes_while_evidence_is_missing(world: World) -> None:
    plan, left = with_a_dead_run(world)
    age_all(world, OLDER)
    world.table.store.delete(evidence_key(world.table, world.ledger.attempt))
    before = files(world)
    with pytest.raises(ContinuityError, match="evidence of 1 landed runs"):
        vacuum(world.table)
    assert (files(world), left <= before) == (before, True)
    assert exists(world, world.table.keys.attempt(plan.attempt))


@pytest.mark.parametrize("survives", range(5))
def test_a_clean_up_that_dies_is_done_by_the_next(world: World, monkeypatch: pytest.MonkeyPatch, survives: int) -> None:
    plan, left = with_a_dead_run(world)
    aged(world, plan, OLD)
    kept = files(world) - left
    real: Callable[..., None] = type(world.table.store).delete
    done: list[str] = []

    def dying(self: object, key: str, **options: Any) -> None:
        if len(done) == survives:
            raise Died
        real(self, key, **options)
        done.append(key)

    def one_by_one(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        return [function(one) for one in items]

    with monkeypatch.context() as patch:
        for module in (cleaning, objects):
            patch.setattr(module, "in_parallel", one_by_one)
        patch.setattr(type(world.table.store), "delete", dying)
        with pytest.raises(Died):
            vacuum(world.table)
    assert exists(world, world.table.keys.attempt(plan.attempt))
    world.check()
    vacuum(world.table)
    assert files(world) == kept
    assert not exists(world, evidence_key(world.table, plan.attempt))
    assert not exists(world, world.table.keys.attempt(plan.attempt))
    world.check()


def test_an_object_that_changes_after_it_was_listed_stays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, left = with_a_dead_run(world)
    aged(world, plan, OLD)
    changed = min(left)

    def judged(*arguments: Any) -> Any:
        found = real(*arguments)
        if exists(world, changed):
            world.table.store.put(changed, b"written again by a run of the past")
        return found

    real = judge
    monkeypatch.setattr(cleaning, "judge", judged)
    vacuum(world.table)
    assert exists(world, changed)
    assert not left - {changed} & files(world)


@pytest.mark.usefixtures("s3")
def test_dates_and_clean_up_on_a_server(tmp_path: Path) -> None:
    world = World(tmp_path, raw=f"s3://raw/{tmp_path.name}", lake=f"s3://lake/{tmp_path.name}")
    mark = world.table.keys.success(DT)
    world.raw.segment([simple(0)])
    world.land()
    world.raw.observed_at += timedelta(days=60)
    assert world.land().dates == (DT,)
    assert (world.ledger.dates[DT].state, exists(world, mark)) == ("final", True)
    world.raw.segment([simple(3)])
    world.land()
    assert (world.ledger.dates[DT].state, exists(world, mark)) == ("reopened", False)
    world.raw.segment([simple(6)])
    world.raw.publish()
    plan = world.plan()
    die(world, plan)
    aged(world, plan, OLD)
    result = vacuum(world.table)
    assert ([one.why for one in result.removed], result.unknown) == (["dead"], ())
    assert vacuum(world.table).removed == ()
    world.check()


def many(world: World, age: timedelta = OLD) -> None:
    """Runs that landed rows, refused some, and replaced both; all of them are over, if they are so old."""
    for number in range(4):
        records = [Record(0, T0 + number % 2 * 86_400_000), Record(1, -1)]
        world.raw.segment([batch(2 * number, records)])
        world.land()
    plan = plan_rebuild(world.table, [DT])
    write_plan(world.table, plan)
    run(world.table, plan, in_process)
    age_all(world, age)


def evidence_objects(world: World) -> set[str]:
    """The keys of all evidence."""
    return {one.key for one in world.table.store.list(world.table.keys.evidence)}


def truth(world: World) -> tuple[object, ...]:
    """All that evidence and ledger say of the table, whichever objects it stands in."""
    world.check()
    ledger = world.ledger
    return sorted(map(str, world.evidence())), ledger.partitions, ledger.dates, world.rows(), world.quarantine()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fold three attempts already."""
    monkeypatch.setattr(rules, "FOLD_FROM", 2)
    monkeypatch.setattr(rules, "KEPT", 0)


@pytest.mark.usefixtures("few")
def test_landed_attempts_are_folded_and_what_they_say_stays(world: World) -> None:
    many(world)
    before, old = truth(world), evidence_objects(world)
    landed = world.ledger.landed
    assert vacuum(world.table, dry_run=True).folded == len(landed) == 5
    assert world.ledger.landed == landed
    assert vacuum(world.table).folded == 5
    assert [one in landed for one in world.ledger.landed] == [False]
    assert truth(world) == before
    assert vacuum(world.table) == vacuum(world.table, dry_run=True).model_copy(update={"dry_run": False})
    assert old < evidence_objects(world)  # for those who began by the old list
    age_all(world, OLD)
    vacuum(world.table)
    assert evidence_objects(world) == {evidence_key(world.table, world.ledger.landed[0])}
    assert truth(world) == before
    replay = plan_replay(world.table)
    write_plan(world.table, replay)
    assert run(world.table, replay, in_process).status == "empty"
    rebuild = plan_rebuild(world.table, [DT, "2026-02-03"])
    write_plan(world.table, rebuild)
    assert run(world.table, rebuild, in_process).rows == 4
    world.raw.segment([simple(8)])
    assert world.land().rows == 3


@pytest.mark.usefixtures("few")
def test_folds_are_folded_and_files_replaced_before_go_after(world: World) -> None:
    many(world)
    vacuum(world.table)
    for number in range(2):
        world.raw.segment([simple(8 + 3 * number)])
        world.land()
    age_all(world, OLD)
    before = truth(world)
    assert vacuum(world.table).folded == 3
    assert truth(world) == before
    age_all(world, OLDER)
    result = vacuum(world.table)
    assert {one.why for one in result.removed} == {"replaced"}
    assert truth(world) == before
    assert evidence_objects(world) == {evidence_key(world.table, world.ledger.landed[0])}
    vacuum(world.table)
    assert [one.key for one in world.table.store.list(world.table.keys.attempts)] == [
        world.table.keys.attempt(world.ledger.landed[0])
    ]
    assert truth(world) == before


@pytest.mark.usefixtures("few")
def test_a_folded_attempt_that_is_run_again_lands_nothing(world: World) -> None:
    many(world, timedelta())
    key = world.table.keys.attempt(world.ledger.landed[0])
    plan = RunPlan.from_bytes(world.table.store.get(key).body, key)
    landed = world.table.store.get(world.table.keys.result(plan.attempt)).body
    vacuum(world.table)
    n = world.ledger.n
    again = run(world.table, plan, in_process)
    assert (again.status, again.rows) == ("landed", RunResult.from_bytes(landed, key).rows)
    world.table.store.delete(world.table.keys.result(plan.attempt))
    assert run(world.table, plan, in_process).rows == again.rows, "its own evidence tells the same"
    world.raw.segment([simple(8)])
    world.raw.publish()
    late = world.plan()
    late = late.model_copy(update={"created_at": late.created_at + OLD})
    with as_of(world, OLD):
        assert run(world.table, late, in_process).status == "landed"
        assert world.ledger.folds == ()
        assert run(world.table, plan, in_process).status == "stale", "so old a plan cannot land"
    assert world.ledger.n == n + 1


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("point", ["_write_evidence", "_written", "commit", "update_markers"])
def test_a_fold_that_dies_leaves_the_truth_and_is_done_by_the_next(world: World, point: str) -> None:
    many(world)
    before = truth(world)
    with dying_after(point):
        vacuum(world.table)
    assert truth(world) == before
    vacuum(world.table)
    assert len(world.ledger.landed) == 1
    age_all(world, OLD)
    vacuum(world.table)
    assert truth(world) == before
    assert evidence_objects(world) == {evidence_key(world.table, world.ledger.landed[0])}


@pytest.mark.usefixtures("few")
def test_of_two_folds_one_lands(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    many(world)
    before = truth(world)
    overtaken: list[bool] = []

    def write(lake: Any, plan: RunPlan) -> str:
        if not overtaken:
            overtaken.append(True)
            vacuum(lake)
        return real(lake, plan)

    real = write_plan
    monkeypatch.setattr(driver, "write_plan", write)
    vacuum(world.table)
    assert len(world.ledger.landed) == 1
    assert truth(world) == before


@pytest.mark.usefixtures("few")
def test_a_run_that_was_planned_after_a_fold_does_not_ask_for_its_plan(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    many(world, timedelta())
    vacuum(world.table)
    world.raw.segment([simple(8)])
    world.raw.publish()
    plan = world.plan()
    monkeypatch.setattr(rules, "find_plan", lambda *_: pytest.fail("it asks"))
    ledger = world.ledger
    later = plan.model_copy(update={"created_at": ledger.folds[0].at + timedelta(minutes=6)})
    assert not rules.has_landed(world.table, ledger, later)
    assert rules.has_landed(world.table, ledger, later.model_copy(update={"attempt": ledger.landed[0]}))


def test_few_attempts_are_not_folded(world: World) -> None:
    many(world)
    assert vacuum(world.table).folded == 0


@pytest.mark.parametrize(
    ("sizes", "folds"),
    [
        ([2, 2, 2], [0, 1, 2]),
        ([2, 2], []),
        ([40, 2, 2, 2], [1, 2, 3]),
        ([6, 2, 2, 2], [0, 1, 2, 3]),
        ([7, 2, 2, 2], [1, 2, 3]),
        ([7, 2, 2], []),
        ([2, 2, None, 2, 2, 2], [3, 4, 5]),
        ([30, 30, 30, 30], [0, 1, 2]),
        ([2, 51, 2, 2, 2], [2, 3, 4]),
        ([2, 2, 30, 2], []),
    ],
    ids=str,
)
def test_neighbours_are_folded_that_are_small_beside_one_another(
    sizes: list[int | None], folds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "FOLD_FROM", 3)
    monkeypatch.setattr(rules, "FOLD_BYTES", 100)
    monkeypatch.setattr(rules, "KEPT", 2)
    landed = range(len(sizes) + 2)
    assert rules.to_fold(landed, dict(enumerate([*sizes, 2, 2]))) == tuple(folds)


def test_no_evidence_is_folded_more_often_than_it_can_double() -> None:
    """A day of landings every minute, with a look every hour."""
    landed: list[int] = []
    sizes: dict[int, int | None] = {}
    written = 0
    for number in range(10 * 1440):
        landed.append(number)
        sizes[number] = 6000
        folds = rules.to_fold(landed, sizes) if number % 60 == 59 else ()
        if folds:
            size = sum(sizes[one] or 0 for one in folds)
            written += size
            at = landed.index(folds[0])
            landed[at : at + len(folds)] = [-number]
            sizes[-number] = size
    assert len(landed) < 3 * rules.FOLD_FROM
    assert written < 15 * 6000 * 10 * 1440


def test_the_vacuum_as_a_job(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    plan, left = with_a_dead_run(world)
    aged(world, plan, OLD)
    arguments = ["--topics", str(world.topics_file), "--topic", "orders"]
    assert run_job("vacuum", [*arguments, "--dry-run"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["dry_run"], {one["key"] for one in told["removed"]}) == (True, left)
    assert left <= files(world)
    assert run_job("vacuum", arguments) == 0
    assert json.loads(capsys.readouterr().out)["attempts"] == [plan.attempt]
    assert not left & files(world)
    assert not plan_ingest(world.table).empty
