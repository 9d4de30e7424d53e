"""Large rebuilds: cut into steps, killed, continued beside other runs, and equal to one that was not cut."""

from __future__ import annotations

import io
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from typing_extensions import override

from tests.spark.convert.test_parsers import function_parser
from tests.spark.erasing.masked import erase, killed
from tests.spark.test_vacuum import OLDER, Died, as_of
from tests.spark.world import Acting, InProcess, World, in_process
from tests.tidemark.kafka_log.build import T0, Record, batch, marker, transactional
from tidemark.errors import ContinuityError, FormatError, StaleRun, TableTampered
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.plan import RUN_LIMIT, RunPlan, RunResult, StoredTask
from tidemark.formats.table.steps import RunStep, digest_of_tasks
from tidemark.planning import find_plan, plan_compaction, plan_ingest, plan_rebuild, plan_replay, write_plan
from tidemark.planning.maintenance.erasure import plan_erasure
from tidemark.planning.maintenance.retention import plan_retain
from tidemark.planning.maintenance.vacuum import RUN_OVER
from tidemark.table.delta_table import live_files, open_delta
from tidemark.table.evidence import read_evidence
from tidemark_spark.cli import run_plan as run_plan_job
from tidemark_spark.kinds.rebuild import Rebuild
from tidemark_spark.model import Common, Executor, Given, Job, Made, Outcome
from tidemark_spark.run import steps
from tidemark_spark.run.driver import run
from tidemark_spark.run.vacuum import vacuum

DAY: Final = 86_400_000
HOURS: Final = timedelta(hours=1)
SETTINGS: Final = (function_parser("sizes"), "retention: {table: 30d, apply: true}")
VALUES: Final = (b"fine!", b"bad", b"", b"longer than others")
"""The parser refuses values of three bytes, and leaves empty ones out."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task for each segment, and three tasks in a step."""
    monkeypatch.setattr("tidemark.raw.byte_ranges.TARGET_BYTES", 1)
    monkeypatch.setattr(steps, "LIMIT_TASKS", 3)


def produce(world: World, rng: random.Random, partition: int) -> None:
    """A segment: rows of three dates, some refused, some without a sane time; now and then an aborted transaction."""
    at = world.raw.partition(partition).end
    count = rng.randint(1, 5)
    times = [rng.choice([T0 + rng.randrange(3) * DAY, T0, -1]) for _ in range(count)]
    rows = [Record(i, time, b"k%d" % i, rng.choice(VALUES)) for i, time in enumerate(times)]
    if rng.random() < 0.2:
        data = [batch(at, rows), transactional(at + count, 7, 2), marker(at + count + 2, 7, commit=False)]
        world.raw.segment(data, partition, aborted=[(7, at + count, at + count + 2)])
    else:
        world.raw.segment([batch(at, rows)], partition)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two partitions of ten segments; a rebuild of all has 20 tasks in seven steps."""
    world = World(tmp_path, *SETTINGS)
    for number in range(20):
        produce(world, random.Random(number), number % 2)
    world.land()
    return world


def planned(world: World, dates: Sequence[str] | None = None) -> RunPlan:
    """The rebuild of ``dates``, or of all, written."""
    plan = plan_rebuild(world.table, dates)
    write_plan(world.table, plan)
    return plan


class Counting(InProcess):
    """Carries tasks out here, and counts them. In the midst of the call ``dies``, its process is killed."""

    def __init__(self, dies: int | None = None, *, before: Callable[[int], None] = lambda _: None) -> None:
        self.calls: list[int] = []
        self._dies, self._before = dies, before

    @override
    def on_each(self, work: Callable[[Common, Given], Made], common: Common, tasks: Sequence[Given]) -> list[Made]:
        self._before(len(self.calls))
        self.calls.append(len(tasks))
        if self._dies == len(self.calls) - 1:
            super().on_each(work, common, tasks[:1])
            raise Died
        return super().on_each(work, common, tasks)[::-1]


def died(world: World, plan: RunPlan, at: int) -> None:
    """Run ``plan`` until it dies in the step ``at``."""
    with pytest.raises(Died):
        run(world.table, plan, Counting(at))


def step_keys(world: World) -> list[str]:
    return [info.key for info in world.table.store.list(world.table.keys.steps)]


def stored(world: World, plan: RunPlan) -> RunPlan:
    return RunPlan.load(world.table.store, world.table.keys.attempt(plan.attempt))


def sliced(evidence: bytes, start: int, count: int | None = None) -> bytes:
    """Some rows of an evidence object."""
    sink = io.BytesIO()
    pq.write_table(pq.read_table(io.BytesIO(evidence)).slice(start, count), sink)
    return sink.getvalue()


def test_no_step_has_more_than_the_limits_of_an_ingest(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, counting = planned(world), Counting()
    assert run(world.table, plan, counting).status == "landed"
    assert counting.calls == [3, 3, 3, 3, 3, 3, 2]
    world.check()
    plan, counting = planned(world), Counting()
    monkeypatch.setattr(steps, "LIMIT_BYTES", sum(task.size for task in plan.tasks[:2]))
    assert run(world.table, plan, counting).status == "landed"
    assert max(counting.calls) <= 3
    assert len(counting.calls) > 7
    world.check()


def test_the_log_says_how_to_go_on(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(world)
    died(world, plan, 1)
    key = world.table.keys.attempt(plan.attempt)
    assert f"20 tasks in steps; if the job is killed, run_plan.py --plan {key} goes on" in capsys.readouterr().err
    options = ["--topics", str(world.topics_file), "--topic", "orders", "--plan", key]
    assert run_plan_job.main(options, in_process) == 0
    assert world.ledger.attempt == plan.attempt
    world.check()


def test_a_rebuild_within_the_limits_stores_no_step(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "LIMIT_TASKS", 20)
    counting = Counting()
    assert run(world.table, planned(world), counting).status == "landed"
    assert counting.calls == [20]
    assert step_keys(world) == []


def test_a_job_goes_on_with_the_tasks_that_are_left(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(world)
    died(world, plan, 3)
    keys = {world.table.keys.step(plan.attempt, at, at + 3) for at in (0, 3, 6)}
    beside = {world.table.keys.step_evidence(plan.attempt, at, at + 3) for at in (0, 3, 6)}
    assert {*step_keys(world)} == keys | beside
    monkeypatch.setattr(steps, "LIMIT_TASKS", 4)  # of another version
    counting = Counting(1)
    with pytest.raises(Died):
        run(world.table, plan, counting)
    assert counting.calls == [4, 4]
    world.table.store.delete(world.table.keys.step(plan.attempt, 3, 6))
    world.table.store.delete(world.table.keys.step_evidence(plan.attempt, 3, 6))
    counting = Counting()
    assert run(world.table, plan, counting).status == "landed"
    assert counting.calls == [3, 4, 3]  # what is missing before a stored step ends there
    world.check()
    counting = Counting()
    assert run(world.table, plan, counting).status == "landed"
    assert counting.calls == []


def test_of_two_versions_limits_each_task_counts_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(world)
    died(world, plan, 2)
    for first, end in ((0, 3), (3, 6)):  # as if another version's job had made the first task's step beside it
        monkeypatch.setattr(steps, "LIMIT_TASKS", 2)
        step = RunStep.load(world.table.store, world.table.keys.step(plan.attempt, first, end))
        rows = sum(outcome.evidence for outcome in step.outcomes[:2])
        body = sliced(world.table.store.get(world.table.keys.step_evidence(plan.attempt, first, end)).body, 0, rows)
        other = step.model_copy(
            update={
                "end": first + 2,
                "outcomes": step.outcomes[:2],
                "tasks": digest_of_tasks(plan.tasks[first : first + 2]),
                "evidence": sha256(body).hexdigest(),
            }
        )
        world.table.store.put(world.table.keys.step_evidence(plan.attempt, first, first + 2), body)
        world.table.store.put(world.table.keys.step(plan.attempt, first, first + 2), other.to_bytes())
    assert run(world.table, plan, Counting()).status == "landed"
    world.check()


@pytest.mark.parametrize(
    ("spoilt", "match"),
    [
        pytest.param(lambda made: made[1:], "3 tasks .*, 2 have reached their end, with 2 outcomes", id="forgotten"),
        pytest.param(
            lambda made: [*made, made[0]], "3 tasks .*, 3 have reached their end, with 4 outcomes", id="twice"
        ),
        pytest.param(
            lambda made: [*made[1:], made[1]], "3 tasks .*, 2 have reached their end, with 3 outcomes", id="another's"
        ),
    ],
)
def test_a_step_whose_outcomes_are_others_is_not_stored(
    world: World, spoilt: Callable[[list[Outcome]], list[Outcome]], match: str
) -> None:
    plan = planned(world)
    with pytest.raises(ContinuityError, match=match):
        run(world.table, plan, Acting(lambda *work: spoilt(in_process.on_each(*work))))
    assert step_keys(world) == []
    assert run(world.table, plan, in_process).status == "landed"
    world.check()


def test_a_step_with_an_offset_without_a_class_is_not_stored(world: World) -> None:
    plan = planned(world)

    @Acting
    def short(*work: Any) -> list[Outcome]:
        return [replace(made, evidence=made.evidence[1:]) for made in in_process.on_each(*work)]

    with pytest.raises(ContinuityError, match="offsets have a class from"):
        run(world.table, plan, short)
    assert step_keys(world) == []


@pytest.mark.parametrize("part", ["attempt", "first", "tasks", "outcomes", "evidence"])
def test_a_step_of_something_else_is_refused(world: World, part: str) -> None:
    plan, other = planned(world), planned(world, ["2026-02-02"])
    died(world, plan, 2)
    died(world, other, 2)
    store, keys = world.table.store, world.table.keys
    key, beside = keys.step(plan.attempt, 0, 3), keys.step_evidence(plan.attempt, 0, 3)
    ours, theirs = RunStep.load(store, key), RunStep.load(store, keys.step(other.attempt, 0, 3))
    changes: dict[str, Any] = {
        "attempt": theirs,
        "first": ours.model_copy(update={"first": 3, "end": 6}),
        "tasks": ours.model_copy(update={"tasks": "0" * 64}),
        "outcomes": ours.model_copy(update={"outcomes": ours.outcomes[1:]}),
        "evidence": ours,
    }
    store.put(key, changes[part].to_bytes())
    if part == "evidence":
        store.put(beside, sliced(store.get(beside).body, 1))
    ledger = world.ledger
    with pytest.raises(FormatError, match=rf"{key}.*is no step of its plan: delete it and {beside}"):
        run(world.table, plan, in_process)
    assert world.ledger == ledger
    store.delete(key)
    store.delete(beside)
    assert run(world.table, plan, in_process).status == "landed"
    world.check()


def test_a_step_that_was_carried_out_with_other_bytes_before_is_stale(world: World) -> None:
    plan = planned(world)
    died(world, plan, 1)
    beside = world.table.keys.step_evidence(plan.attempt, 0, 3)
    world.table.store.put(world.table.keys.step_evidence(plan.attempt, 3, 6), world.table.store.get(beside).body)
    counting, ledger = Counting(), world.ledger
    assert run(world.table, plan, counting).status == "stale"
    assert (counting.calls, world.ledger) == ([3], ledger)
    assert world.table.keys.step(plan.attempt, 3, 6) not in step_keys(world)


def test_a_step_counts_only_once_its_evidence_is_stored(world: World) -> None:
    keys, plan = list[str](), planned(world)
    for writes in range(9):  # files of three tasks, some refused, and the two objects of the step
        plan = planned(world, ["2026-02-03"])
        with pytest.raises(Died), killed(writes):
            run(world.table, plan, in_process)
        keys = step_keys(world)
        assert [key for key in keys if key.endswith(".json") and f"{key[:-5]}.parquet" not in keys] == []
    assert any(key.endswith(".json") for key in keys)
    assert run(world.table, plan, in_process).status == "landed"
    world.check()


def test_a_segment_that_was_replaced_between_steps_is_refused_as_ever(world: World) -> None:
    plan = planned(world)
    died(world, plan, 2)
    left = plan.tasks[-1].ranges[0].key
    body = world.raw.store.get(left).body
    world.raw.store.put(left, body + b"x")
    with pytest.raises(ContinuityError, match="cannot be made again"):
        run(world.table, plan, in_process)
    world.raw.store.put(left, body)
    world.check()


def test_who_is_overtaken_stops_before_the_next_step(world: World) -> None:
    plan = planned(world)

    def overtaken(call: int) -> None:
        if call == 2:
            other = planned(world, ["2026-02-02"])
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(steps, "LIMIT_TASKS", 100)
                assert run(world.table, other, in_process).status == "landed"

    counting = Counting(before=overtaken)
    assert run(world.table, plan, counting).status == "stale"
    assert counting.calls == [3, 3, 3]
    world.check()


def test_who_finds_other_hands_in_the_table_stops_before_the_next_step(world: World) -> None:
    def changed(call: int) -> None:
        if call == 1:
            DeltaTable(world.table.url).delete("kafka_offset = 0")

    counting = Counting(before=changed)
    with pytest.raises(TableTampered):
        run(world.table, planned(world), counting)
    assert counting.calls == [3, 3]


def test_a_step_of_other_code_goes_on_nowhere(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(world)
    died(world, plan, 2)
    monkeypatch.setattr(steps, "code_digest", lambda: "0" * 16)
    counting = Counting()
    assert run(world.table, plan, counting).status == "stale"
    assert counting.calls == []


def test_a_rebuild_of_five_days_lands_and_no_vacuum_takes_what_it_needs(world: World) -> None:
    plan = planned(world)
    for day in range(5):
        with as_of(world, day * 25 * HOURS):
            died(world, stored(world, plan), 1)
            vacuum(world.table)
            assert len(step_keys(world)) == 2 * (day + 1)
    with as_of(world, 5 * 25 * HOURS):
        assert run(world.table, stored(world, plan), Counting()).status == "landed"
        world.check()
    replaced = {f"{world.table.keys.root}/{path}" for path in plan.removes}
    for days, there in ((12, True), (16, False)):  # seven days, for readers, count from the commit
        with as_of(world, days * 24 * HOURS):
            vacuum(world.table)
            assert ({info.key for info in world.table.store.list(world.table.keys.root)} >= replaced) is there
    assert step_keys(world) == []
    world.check()


def test_a_rebuild_that_nobody_goes_on_with_is_over(world: World) -> None:
    plan = planned(world)
    died(world, plan, 3)
    before = _objects(world)
    with as_of(world, RUN_LIMIT - HOURS):
        vacuum(world.table)
        assert len(step_keys(world)) == 6
    with as_of(world, RUN_LIMIT + HOURS / 2):
        vacuum(world.table)
        assert len(step_keys(world)) == 6
        counting = Counting()
        assert run(world.table, stored(world, plan), counting).status == "stale"
        assert counting.calls == []
    with as_of(world, RUN_OVER + HOURS):
        vacuum(world.table)
        assert step_keys(world) == []
        assert _objects(world) < before
        assert run(world.table, plan, Counting()).status == "stale"
    world.check()


def test_steps_of_which_no_plan_tells_go_when_they_are_old(world: World) -> None:
    plan = planned(world)
    died(world, plan, 1)
    world.table.store.delete(world.table.keys.attempt(plan.attempt))
    vacuum(world.table)
    assert len(step_keys(world)) == 2
    with as_of(world, RUN_OVER + HOURS):
        vacuum(world.table, dry_run=True)
        assert len(step_keys(world)) == 2
        assert vacuum(world.table).reports >= 2
        assert step_keys(world) == []


def test_two_jobs_of_one_attempt_land_once(world: World) -> None:
    plan = planned(world)

    def twin(call: int) -> None:
        if call == 2:
            assert run(world.table, plan, in_process).status == "landed"
            vacuum(world.table)
            assert step_keys(world) == []

    counting = Counting(before=twin)
    assert run(world.table, plan, counting).status == "landed"
    assert counting.calls == [3, 3, 3]
    world.check()


def test_a_plan_that_another_job_has_renewed_is_as_young_as_that(world: World) -> None:
    plan = planned(world)
    with as_of(world, 40 * HOURS):
        died(world, plan, 1)
        young = stored(world, plan)
        assert young.created_at - plan.created_at > 39 * HOURS
        assert young.model_copy(update={"created_at": plan.created_at}) == plan
        assert steps.renewed(Rebuild(world.table, plan)).plan == young
    with as_of(world, 60 * HOURS):
        assert run(world.table, plan, in_process).status == "stale", "it holds the old plan"
        assert run(world.table, young, in_process).status == "landed"


def test_a_plan_that_can_commit_no_more_is_never_renewed(world: World) -> None:
    plan = planned(world)
    with as_of(world, RUN_LIMIT + HOURS), pytest.raises(StaleRun, match="was planned more than 2 days"):
        steps.renewed(Rebuild(world.table, plan))
    other = planned(world)
    store, keys = world.table.store, world.table.keys
    store.put(keys.attempt(plan.attempt), other.to_bytes())
    with as_of(world, 2 * HOURS), pytest.raises(StaleRun, match="is gone, or another plan now"):
        steps.renewed(Rebuild(world.table, plan))
    store.delete(keys.attempt(plan.attempt))
    with as_of(world, 2 * HOURS), pytest.raises(StaleRun, match="is gone, or another plan now"):
        steps.renewed(Rebuild(world.table, plan))
    assert keys.attempt(plan.attempt) not in {info.key for info in store.list(keys.attempts)}


def test_of_two_renewals_at_once_one_is_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(world)
    store, key = world.table.store, world.table.keys.attempt(plan.attempt)
    young = plan.model_copy(update={"created_at": plan.created_at + 2 * HOURS})
    real = type(store).put

    def other_first(self: Any, name: str, *given: Any, **options: Any) -> str:
        if name == key and options.get("if_match"):
            monkeypatch.undo()
            real(self, key, young.to_bytes())
        return real(self, name, *given, **options)

    with as_of(world, 2 * HOURS + timedelta(minutes=1)):
        monkeypatch.setattr(type(store), "put", other_first)
        assert steps.renewed(Rebuild(world.table, plan)).plan == young
    assert stored(world, plan) == young


def test_erased_records_make_it_stale_and_its_sums_are_named_until_they_go(world: World) -> None:
    plan = planned(world)
    died(world, plan, 3)
    offset = world.offsets()[0]
    erase(world, [offset])
    erasure = plan_erasure(world.table)
    assert erasure is not None
    write_plan(world.table, erasure)
    assert run(world.table, erasure, in_process).status == "landed"
    counting = Counting()
    assert run(world.table, plan, counting).status == "stale"
    assert counting.calls == []
    named = {item.key: item.until for item in vacuum(world.table).remaining}
    sums = {key for key in step_keys(world) if key.endswith(".parquet")}
    assert len(sums) == 3
    assert {key: named[key] for key in sums} == dict.fromkeys(sums, plan.created_at + RUN_OVER)


# -- random schedules --------------------------------------------------------------------------------------------------


def _objects(world: World) -> set[str]:
    """The data files of the table and its quarantine, live or not."""
    store, keys = world.table.store, world.table.keys
    found = (info.key for folder in (keys.root, keys.quarantine) for info in store.list(f"{folder}/"))
    return {key for key in found if key.endswith(".parquet") and "/_delta_log/" not in key}


class Cut:
    """A rebuild that is killed and gone on with, beside other runs; and the same one uncut, beside the same runs."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.rng, self.root, self.hours = rng, root, 0
        self.world = World(root, *SETTINGS)
        self.beside: list[RunPlan] = []
        for _ in range(rng.randint(3, 5)):
            for _ in range(rng.randint(1, 5)):
                produce(self.world, rng, rng.randrange(3))
            self.world.land()
            if rng.random() < 0.3:
                self._erase()
            if rng.random() < 0.2:
                self._carry_out(plan_retain(self.world.table, datetime(2026, 3, 5, 12, tzinfo=UTC))[0])
            if rng.random() < 0.3:
                self._carry_out(plan_replay(self.world.table))
        expired = {dt for dt, state in self.world.ledger.dates.items() if state.state == "expired"}
        there = sorted({*self.world.ledger.dates} - expired)
        dates = None if rng.random() < 0.4 or not there else sorted(rng.sample(there, rng.randint(1, len(there))))
        self.plan = planned(self.world, dates)
        shutil.copytree(root / "lake", root / "uncut" / "lake")

    def _erase(self) -> None:
        partition = self.rng.randrange(3)
        offsets = self.world.offsets(partition)
        if offsets:
            erase(self.world, sorted(self.rng.sample(offsets, min(2, len(offsets)))), partition)
            erasure = plan_erasure(self.world.table)
            if erasure is not None:
                self._carry_out(erasure)

    def _carry_out(self, plan: RunPlan) -> None:
        if not plan.empty:
            write_plan(self.world.table, plan)
            run(self.world.table, plan, in_process)

    def _ingest(self) -> None:
        produce(self.world, self.rng, self.rng.randrange(3))
        self.world.raw.publish()
        self._carry_out(plan_ingest(self.world.table))

    def _between(self) -> None:
        """What may come between two tries, or beside one; the plans that landed are noted."""
        before = self.world.ledger.n
        try:
            self._something()
        finally:
            landed, table = [], self.world.table
            ledger = self.world.ledger
            while ledger.n > before:
                landed.append(RunPlan.load(table.store, table.keys.attempt(ledger.attempt)))
                assert ledger.parent is not None
                ledger = Ledger.load(table.store, table.keys.ledger(ledger.parent.n, ledger.parent.attempt))
            self.beside += reversed(landed)

    def _something(self) -> None:
        rng, table = self.rng, self.world.table
        chosen = rng.random()
        if chosen < 0.35:
            self._ingest()
        elif chosen < 0.45:
            self._carry_out(plan_compaction(table, files=3))
        elif chosen < 0.48:
            self._erase()
        elif chosen < 0.51:
            self._carry_out(plan_retain(table, datetime(2026, 3, 5, 12, tzinfo=UTC))[0])
        elif chosen < 0.8:
            vacuum(table)
        else:
            self.hours += rng.choice([1, 5, 20, 30])

    @contextmanager
    def _clock(self) -> Iterator[None]:
        with as_of(self.world, self.hours * HOURS):
            yield

    def _executing(self) -> Executor:
        """Carries tasks out, and may be killed before or after any task; other things happen meanwhile."""
        rng = self.rng

        @Acting
        def execute(work: Any, job: Job, tasks: Sequence[StoredTask]) -> list[Outcome]:
            assert len(tasks) <= 3
            made: list[Outcome] = []
            for task in tasks:
                if rng.random() < 0.06:
                    raise Died
                made += in_process.on_each(work, job, [task])
            if rng.random() < 0.15:
                self._between()
            if rng.random() < 0.03:
                self._attempt()
            rng.shuffle(made)
            return made

        return execute

    def _attempt(self) -> RunResult | None:
        """A job; None if it is killed."""
        fault = killed(self.rng.randrange(60), lambda: self.rng.random() < 0.5) if self.rng.random() < 0.5 else None
        plan = RunPlan.load(self.world.table.store, self.world.table.keys.attempt(self.plan.attempt))
        try:
            with fault or nullcontext():
                return run(self.world.table, plan, self._executing())
        except Died:
            return None

    def cut(self) -> RunResult:
        """The result of the job that is not killed."""
        while True:
            with self._clock():
                plan = RunPlan.load(self.world.table.store, self.world.table.keys.attempt(self.plan.attempt))
                old = self.world.table.store.now() - plan.created_at > RUN_LIMIT
                landed = self.plan.attempt in self.world.ledger.landed
                result = self._attempt()
                if result is not None:
                    assert result.status == "landed" or not landed
                    assert result.status == "stale" or not old or landed
                    return result
                if self.plan.attempt not in self.world.ledger.landed:
                    self._between()

    def uncut(self) -> tuple[World, RunResult]:
        """The same run in one step, in a copy of the lake, with the same runs beside it."""
        other = World(self.root / "uncut", *SETTINGS, raw=f"file://{self.root}/raw")
        other.raw = self.world.raw

        @Acting
        def execute(*work: Any) -> list[Outcome]:
            made: list[Outcome] = in_process.on_each(*work)
            for plan in self.beside:
                write_plan(other.table, plan)
                run(other.table, plan, in_process)
            return made

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(steps, "LIMIT_TASKS", 1 << 20)
            return other, run(other.table, self.plan, execute)


def evidence_of(world: World, attempt: int) -> list[dict[str, Any]]:
    """The evidence rows of an attempt; without sums if a fold forgets those of files that a vacuum has removed."""
    rows = read_evidence(world.table, attempt).to_pylist()
    plan = find_plan(world.table, attempt)
    return [row | {"hash128": None} for row in rows] if plan is not None and plan.forgets else rows


def content(world: World) -> dict[str, Any]:
    """All that a table is, but for times."""
    delta = open_delta(world.table)
    assert delta is not None
    store, keys = world.table.store, world.table.keys
    ledger = world.ledger.model_dump(mode="json")
    del ledger["committed_at"], ledger["parent"]["sha256"]
    for state in ledger["dates"].values():
        del state["changed_at"], state["closed_at"]
    return {
        "files": {file.path: store.get(f"{keys.root}/{file.path}").body for file in live_files(delta)},
        "aside": world.quarantine(),
        "evidence": {attempt: evidence_of(world, attempt) for attempt in world.ledger.landed},
        "ledger": ledger,
    }


@pytest.mark.sampled(5)
@pytest.mark.parametrize("number", range(25))
def test_a_rebuild_that_was_cut_equals_one_that_was_not(
    tmp_path: Path, rng: random.Random, full: bool, number: int
) -> None:
    for turn in range(20 if full else 1):
        schedule = Cut(tmp_path / str(turn), rng)
        ran_before = schedule.plan
        result = schedule.cut()
        with schedule._clock():
            schedule.world.check()
        beside = list(schedule.beside)
        other, expected = schedule.uncut()
        other.check()
        too_old = result.status == "stale" and expected.status == "landed"
        if too_old:
            assert schedule.hours * HOURS > RUN_LIMIT
        else:
            assert result.status == expected.status
            assert content(schedule.world) == content(other), number
            assert _told(result) == _told(expected)
        assert beside == schedule.beside
        with as_of(schedule.world, schedule.hours * HOURS + OLDER):
            vacuum(schedule.world.table)
            schedule.world.check()
            assert step_keys(schedule.world) == []
        with as_of(other, schedule.hours * HOURS + OLDER):
            vacuum(other.table)
        if not too_old:
            assert _objects(schedule.world) == _objects(other)
        assert ran_before.attempt == schedule.plan.attempt
        shutil.rmtree(tmp_path / str(turn))


def _told(result: RunResult) -> dict[str, Any]:
    """``result`` but for what nobody knows any more after a kill between commit and result."""
    return result.model_dump(exclude={"seconds", "bytes_read", "bytes_written", "unknown"})
