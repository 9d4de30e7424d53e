"""A live landing: every topic by itself, all in one query, whatever happens to any of them or to the job."""

from __future__ import annotations

import json
import multiprocessing
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.spark.inline import Inline
from tests.spark.jobs.programs import Programs
from tests.spark.live import killed
from tests.spark.live.live_world import LiveWorld
from tests.spark.run.racer import PRELOADED
from tests.spark.world import in_process
from tests.support.waiting import HUNG
from tests.tidemark.kafka_log.build import T0, Record, batch, simple
from tidemark import topics as topic_settings
from tidemark.errors import SparkUnavailable
from tidemark.formats.table.plan import RunResult
from tidemark.planning import find_plan, plan_ingest
from tidemark.raw_topic import RawTopic
from tidemark.store import Store
from tidemark.table.log_copy import LogCopy
from tidemark_spark.jobs.running import run_job
from tidemark_spark.live import landing as module
from tidemark_spark.live.shared_query import MOST_TASKS, Numbered, bundles, convert_all
from tidemark_spark.run.driver import run


class Counted(Inline):
    """Counts the queries."""

    def __init__(self) -> None:
        self.tasks: list[int] = []

    def on_each(self, work: Callable[[Any, Any], Any], common: Any, tasks: Sequence[Any]) -> list[Any]:
        self.tasks.append(len(tasks))
        return super().on_each(work, common, tasks)


@pytest.fixture
def live(tmp_path: Path) -> LiveWorld:
    return LiveWorld(tmp_path, "orders", "clicks", "views")


def arguments(live: LiveWorld) -> list[str]:
    return ["--topics", str(live.topics_file), "--cluster", "east"]


def upload(live: LiveWorld, *topics: str, partitions: int = 2) -> None:
    for topic in topics or live.topics:
        raw = live.topics[topic].raw
        for partition in range(partitions):
            raw.segment([simple(raw.partition(partition).end)], partition)


def land(live: LiveWorld, executor: Inline | None = None) -> dict[str, str]:
    assert run_job("land_live", arguments(live), executor or Inline()) == 0
    for topic in live.topics.values():
        topic.check()
    return live.statuses()


def test_a_landing_copies_the_log_of_a_table_once(live: LiveWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """To plan, to commit, and to tell what it did."""
    upload(live)
    live.due()
    land(live)
    upload(live)
    live.due()
    copied = Counter[str]()
    real = LogCopy._begin

    def counted(self: LogCopy, store: Store, root: str) -> None:
        copied[root.rpartition("/")[2]] += 1
        real(self, store, root)

    with monkeypatch.context() as patch:
        patch.setattr(LogCopy, "_begin", counted)
        assert run_job("land_live", [*arguments(live), "--lineage", "0" * 16], Inline()) == 0
    assert copied == dict.fromkeys(live.topics, 1)
    assert set(live.statuses().values()) == {"landed"}


def test_all_topics_land_by_one_query_each_with_a_plan_and_a_result(live: LiveWorld) -> None:
    upload(live)
    due = live.due()
    counted = Counted()

    assert land(live, counted) == {"orders": "landed", "clicks": "landed", "views": "landed"}
    assert len(counted.tasks) == 1
    for one in due.topics:
        table = live.topics[one.topic].table
        plan = find_plan(table, one.attempt)
        assert plan is not None
        assert (plan.topic, len(plan.tasks)) == (one.topic, 2)
        result = RunResult.load(table.store, table.keys.result(one.attempt))
        assert (result.status, result.rows) == ("landed", len(live.topics[one.topic].rows()))
        assert live.topics[one.topic].ledger.attempt == one.attempt


def test_a_plan_reads_no_watermark_index(live: LiveWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    upload(live)
    live.due()
    monkeypatch.setattr(RawTopic, "_indexes", killed.dies_of(AssertionError))

    assert set(land(live).values()) == {"landed"}


def test_no_date_closes_by_what_the_scan_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.topics._OVERDUE", timedelta(0))
    live = LiveWorld(tmp_path, "orders", more=["lateness: 0s"])
    orders = live.topics["orders"]
    for day in range(2):
        orders.raw.segment(batch(day, [Record(0, T0 + day * 86_400_000)]))
        live.due()
        land(live)
    first, last = sorted(orders.ledger.dates)

    assert [orders.ledger.dates[dt].state for dt in (first, last)] == ["open", "open"]
    assert first in plan_ingest(orders.table).closes, "which the topic's own runs do"


def test_a_landing_that_is_carried_out_again_lands_nothing_twice(live: LiveWorld) -> None:
    upload(live)
    live.due()
    land(live)
    numbers = {name: topic.ledger.n for name, topic in live.topics.items()}
    counted = Counted()

    assert set(land(live, counted).values()) == {"landed"}
    assert {name: topic.ledger.n for name, topic in live.topics.items()} == numbers
    assert counted.tasks == []


def test_without_anything_new_a_topic_is_left_until_there_is(live: LiveWorld) -> None:
    upload(live, "orders")
    live.due()

    assert land(live) == {"orders": "landed", "clicks": "empty", "views": "empty"}
    again = {one.topic: one.again_at for one in live.landing().topics}
    assert again["orders"] is None
    assert again["clicks"] is not None


def test_what_another_run_has_landed_is_stale_and_the_others_land(
    live: LiveWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(live)
    live.due()

    def overtaken(*given: Any) -> Any:
        orders = live.topics["orders"]
        run(orders.table, orders.plan(), in_process)
        return convert_all(*given)

    monkeypatch.setattr(module, "convert_all", overtaken)

    assert land(live) == {"orders": "stale", "clicks": "landed", "views": "landed"}
    assert live.topics["orders"].ledger.n == 1


def test_a_topic_whose_raw_is_damaged_fails_alone(live: LiveWorld) -> None:
    upload(live)
    live.due()
    raw = live.topics["clicks"].raw
    raw.store.put(raw.keys(0).watermark, b"{}")

    assert land(live) == {"orders": "landed", "clicks": "failed", "views": "landed"}
    [failed] = [one for one in live.landing().topics if one.status == "failed"]
    assert "offset.wm" in failed.detail
    assert failed.failures == 1
    assert failed.again_at is not None


@pytest.mark.parametrize("failure", [ValueError, MemoryError])
def test_a_topic_whose_tasks_fail_fails_alone(
    live: LiveWorld, monkeypatch: pytest.MonkeyPatch, failure: type[Exception]
) -> None:
    upload(live)
    live.due()

    class Failing(Counted):
        def on_each(self, work: Callable[[Any, Any], Any], common: Any, tasks: Sequence[Any]) -> list[Any]:
            made = super().on_each(work, common, tasks)
            if any(job.topic.topic == "views" for job in common):
                raise failure("a task was tried four times")
            return made

    failing = Failing()

    assert land(live, failing) == {"orders": "landed", "clicks": "landed", "views": "failed"}
    assert len(failing.tasks) == 4  # all together, and each by itself
    assert live.topics["views"].ledger.n == 0


def test_without_spark_the_landing_stays_to_be_carried_out_again(live: LiveWorld) -> None:
    upload(live)
    due = live.due()

    class NoSpark(Inline):
        def on_each(self, work: Callable[[Any, Any], Any], common: Any, tasks: Sequence[Any]) -> list[Any]:
            raise SparkUnavailable("no server")

    assert run_job("land_live", arguments(live), NoSpark()) == 1
    assert live.landing() == due
    assert set(land(live).values()) == {"landed"}


def test_a_backlog_is_left_to_the_topics_own_runs(live: LiveWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    upload(live)
    live.due()
    size = sum(live.topics["orders"].plan().tasks[0].size for _ in range(1))
    monkeypatch.setattr(module, "LIVE_BYTES", size)

    assert set(land(live).values()) == {"backlog"}
    assert size < topic_settings.LIVE_BYTES
    assert {topic.ledger.n for topic in live.topics.values()} == {0}


def test_a_landing_that_was_replaced_meanwhile_is_left_alone(
    live: LiveWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    upload(live)
    live.due()

    def overtaken(*given: Any) -> Any:
        live.due("orders")
        return convert_all(*given)

    monkeypatch.setattr(module, "convert_all", overtaken)

    assert land(live) == {"orders": "due"}
    assert "another process" in capsys.readouterr().err


@pytest.mark.parametrize("point", killed.POINTS)
def test_a_job_that_is_killed_leaves_the_rest_to_the_next(live: LiveWorld, point: str) -> None:
    upload(live)
    live.due()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=killed.main, args=(point, arguments(live)), daemon=True)
    process.start()
    process.join(HUNG)
    assert process.exitcode == -signal.SIGKILL
    landed = [topic.ledger.n for topic in live.topics.values()]
    assert sum(landed) == {"plans": 0, "query": 0, "first commit": 1, "commits": 3, "result": 3}[point]

    assert set(land(live).values()) == {"landed"}
    assert [topic.ledger.n for topic in live.topics.values()] == [1, 1, 1]


def test_small_tasks_share_a_task_of_spark(live: LiveWorld) -> None:
    upload(live, "orders", partitions=3)
    live.topics["orders"].raw.publish()
    [small, *_] = live.topics["orders"].plan().tasks
    large = small.model_copy(update={"ranges": (small.ranges[0].model_copy(update={"end": 1 << 30}),)})
    tasks = [Numbered(0, small)] * (MOST_TASKS + 1) + [Numbered(1, large), Numbered(2, small)]

    assert [len(one) for one in bundles(tasks)] == [MOST_TASKS, 1, 1, 1]


@pytest.mark.essential
def test_on_spark_one_topic_lands_one_is_damaged_and_one_is_stale(live: LiveWorld, on_spark: Programs) -> None:
    upload(live)
    live.due()
    raw, orders = live.topics["clicks"].raw, live.topics["orders"]
    raw.store.put(raw.keys(1).watermark, b"{}")
    plan = find_plan(orders.table, live.landing().topics[0].attempt)
    assert plan is None
    written = orders.plan(attempt=live.landing().topics[0].attempt)
    run(orders.table, orders.plan(), in_process)
    assert written.attempt not in orders.ledger.landed

    done = on_spark.job("land_live", arguments(live))

    assert done.code == 0, done.errors
    told = {line["topic"]: line["status"] for line in map(json.loads, done.output.splitlines())}
    assert told == live.statuses() == {"orders": "stale", "clicks": "failed", "views": "landed"}
    for name in ("orders", "views"):
        live.topics[name].check()
    assert live.topics["views"].ledger.n == 1
