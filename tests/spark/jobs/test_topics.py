"""A job for several topics: one that fails does not keep the others from their work, and is named."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.spark.inline import Inline
from tests.spark.world import World
from tests.tidemark.kafka_log.build import simple
from tidemark.errors import ConfigError, SparkUnavailable, StoreError
from tidemark.formats.table.statuses import AuditedPart, StateStatus
from tidemark.jobs.registry import VacuumOptions
from tidemark.table.delta_table import TopicTable
from tidemark.timestamps import utc_now
from tidemark_spark.jobs import state
from tidemark_spark.jobs.running import RunningJob, run_job

TOPICS = ("clicks", "orders", "views")


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Three topics, of which ``orders`` has landed."""
    made = World(tmp_path)
    lines = made.topics_file.read_text().splitlines()
    made.topics_file.write_text("\n".join([*lines, *(f"  - topic: {topic}" for topic in ("clicks", "views"))]) + "\n")
    made.raw.segment([simple(0)])
    made.land()
    return made


def running(world: World, *topics: str) -> RunningJob:
    return RunningJob(VacuumOptions.of(topics=world.topics_file, topic=topics))


def worked(world: World, fail: Callable[[str], int], *topics: str) -> tuple[int, list[str]]:
    """The exit code of a job for ``topics``, and the topics that it came to; ``fail`` is its work."""
    came: list[str] = []

    def work(table: TopicTable) -> int:
        came.append(table.topic.topic)
        return fail(table.topic.topic)

    return running(world, *topics).on_each_table(work), came


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (StoreError("raw", "does not answer"), "StoreError: raw: does not answer"),
        (ValueError("a defect"), "ValueError: a"),
    ],
)
def test_the_others_do_their_work(world: World, capsys: Any, error: Exception, told: str) -> None:
    def work(topic: str) -> int:
        if topic != "orders":
            raise error
        return 0

    assert worked(world, work, *TOPICS) == (1, [*TOPICS])
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "failed for 2 of 3 topics: east/clicks, east/views"
    assert told in "\n".join(lines)


def test_a_topic_whose_work_ends_badly_is_named_too(world: World, capsys: Any) -> None:
    assert worked(world, lambda topic: int(topic == "views"), *TOPICS) == (1, [*TOPICS])
    assert capsys.readouterr().err.splitlines() == [
        *(f"topic east/{topic}" for topic in TOPICS),
        "failed for 1 of 3 topics: east/views",
    ]


def test_if_all_is_well_nothing_is_told(world: World, capsys: Any) -> None:
    assert worked(world, lambda _: 0, *TOPICS) == (0, [*TOPICS])
    assert "failed" not in capsys.readouterr().err


def test_without_spark_no_other_topic_is_begun(world: World) -> None:
    came: list[str] = []

    def work(table: TopicTable) -> int:
        came.append(table.topic.topic)
        raise SparkUnavailable("no Spark")

    with pytest.raises(SparkUnavailable):
        running(world, *TOPICS).on_each_table(work)
    assert came == ["clicks"]


def test_the_error_of_an_only_topic_is_the_jobs(world: World, capsys: Any) -> None:
    def work(_: str) -> int:
        raise StoreError("raw", "does not answer")

    with pytest.raises(StoreError):
        worked(world, work, "orders")
    assert capsys.readouterr().err == ""


def test_a_topic_that_the_file_does_not_have_stops_the_job_before_it_begins(world: World) -> None:
    with pytest.raises(ConfigError, match="nothing"):
        worked(world, lambda _: 0, "orders", "nothing")


def test_a_vacuum_of_several_topics_names_those_without_data(world: World, capsys: Any) -> None:
    """No agent has ever seen two of them."""
    named = [word for topic in TOPICS for word in ("--topic", topic)]
    assert run_job("vacuum", ["--topics", str(world.topics_file), *named]) == 1
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 1
    assert told.err.splitlines()[-1] == "failed for 2 of 3 topics: east/clicks, east/views"


def test_a_compaction_of_several_topics_names_those_without_data(world: World, capsys: Any) -> None:
    arguments = ["--topics", str(world.topics_file), "--topic", "clicks", "--topic", "orders"]
    assert run_job("compact", arguments, Inline()) == 1
    told = capsys.readouterr()
    assert "nothing to do" in told.out
    assert told.err.splitlines()[-1] == "failed for 1 of 2 topics: east/clicks"
    assert run_job("compact", [*arguments, "--attempt", "7"], Inline()) == 2
    assert "--attempt: is of one topic" in capsys.readouterr().err


def test_an_audit_passes_over_what_has_passed_since(world: World, capsys: Any) -> None:
    def audited(*more: str) -> int:
        """The number of reports that one more audit adds."""
        before = reports()
        assert run_job("audit", ["--topics", str(world.topics_file), "--topic", "orders", *more], Inline()) == 0
        return reports() - before

    def reports() -> int:
        return len(list(world.table.store.list(world.table.keys.audits)))

    before = utc_now()
    long_ago, soon = (before - timedelta(days=1)).isoformat(), (before + timedelta(days=1)).isoformat()
    assert audited("--since", long_ago) == 1, "there was none"
    assert audited("--since", before.isoformat()) == 0
    assert audited("--since", soon) == 1, "the last is older"
    assert audited("--since", before.isoformat(), "--dt", "2026-11-20") == 1, "of other dates"
    arguments = ["--topics", str(world.topics_file), "--topic", "orders", "--since", "2026-11-21T03:00:00"]
    assert run_job("audit", arguments, Inline()) == 2
    assert "has no time zone" in capsys.readouterr().err


def test_an_audit_that_differed_is_repeated(world: World) -> None:
    arguments = ["--topics", str(world.topics_file), "--topic", "orders"]
    before = utc_now().isoformat()
    [file] = [row["file"] for row in world.evidence() if row["file"]]
    world.table.store.delete(f"{world.table.keys.root}/{file}")
    for _ in range(2):
        assert run_job("audit", [*arguments, "--since", before], Inline()) == 1


@pytest.mark.parametrize(("different", "minutes", "passes"), [(0, 1, True), (0, -1, False), (1, 1, False)])
def test_an_audit_of_a_state_passes_over_a_part_that_has_passed_since(
    world: World, monkeypatch: pytest.MonkeyPatch, different: int, minutes: int, passes: bool
) -> None:
    since = utc_now()
    part = AuditedPart(at=since + timedelta(minutes=minutes), n=1, different=different)
    status = StateStatus(cluster="east", topic="orders", table="orders_current", at=since, audits={3: part})
    monkeypatch.setattr(state, "state_status", lambda _: status)
    assert state._passed_since(world.table, 3, since) is passes
    assert not state._passed_since(world.table, 4, since)


def test_a_time_is_an_option_of_audits_alone(world: World, capsys: Any) -> None:
    arguments = ["--topics", str(world.topics_file), "--topic", "orders", "--since", utc_now().isoformat()]
    assert run_job("state", arguments, Inline()) == 2
    assert "--since: is an option of --audit" in capsys.readouterr().err
