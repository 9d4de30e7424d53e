"""A reply that is lost: what was written is found by reading, and nobody else is suspected of having written it."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from tests.uploader_agent.fakes import World
from tidemark.errors import PreconditionFailed, SlowDown, UnknownOutcome
from tidemark.formats.raw.watermark import parse

OBJECTS = [".log", ".index", ".timeindex", ".manifest.json", "offset.wm", "/orders.json"]
LOST = "told so"


def suspicions(events: list[str]) -> list[str]:
    return [one for one in events if one in {"leadership_lost", "log_truncated"}]


@pytest.mark.parametrize("reading_fails", [False, True], ids=["read back", "found by the next attempt"])
@pytest.mark.parametrize("suffix", OBJECTS)
def test_a_lost_reply_to_a_put_that_landed(world: World, suffix: str, reading_fails: bool) -> None:
    """With ``reading_fails`` the look at what became of it fails as well: another attempt must find it."""
    world.disk.partition().fill(0, 100, end=200)
    lost: list[str] = []
    blind: list[str] = []

    def after(operation: str, key: str) -> None:
        if operation == "put" and key.endswith(suffix) and not lost:
            lost.append(key)
            raise UnknownOutcome(key, LOST)

    def before(operation: str, key: str) -> None:
        if reading_fails and operation in {"get", "head"} and key in lost and not blind:
            blind.append(key)
            raise UnknownOutcome(key, LOST)

    world.store.after, world.store.before = after, before
    with capture_logs() as entries:
        agent = world.once()
    assert lost, "seed"
    assert len(blind) == reading_fails, "seed"
    assert suspicions([one["event"] for one in entries]) == []
    assert [one.error for one in agent.leadership.partitions.values()] == [None]
    assert world.watermark()[1].next_offset == 200
    written = world.store.puts.count(lost[0])
    if suffix != "offset.wm":
        assert written == 1, "it is not written again"
    body = world.store.inner.get(world.keys().watermark).body
    assert parse(body, "offset.wm")[0] == 100
    puts = len(world.store.puts)
    world.store.after = world.store.before = lambda _operation, _key: None
    world.once()
    index = world.control.index(1)
    assert set(world.store.puts[puts:]) <= {index}, "a restart finds all as it must be"


@pytest.mark.parametrize("suffix", OBJECTS)
def test_a_put_that_did_not_land_is_repeated(world: World, suffix: str) -> None:
    world.disk.partition().fill(0, 100, end=200)
    failures: list[str] = []

    def before(operation: str, key: str) -> None:
        if operation == "put" and key.endswith(suffix) and len(failures) < 2:
            failures.append(key)
            raise UnknownOutcome(key, LOST)

    world.store.before = before
    world.once()
    assert len(failures) == 2
    assert world.watermark()[1].next_offset == 200


@pytest.mark.parametrize("suffix", ["offset.wm", "/orders.json", ".manifest.json", ".log"])
def test_a_store_that_only_says_conflict_is_not_asked_without_pause(world: World, suffix: str) -> None:
    """No place repeats by itself without end: a few attempts, then the partition's back-off has its turn."""
    world.disk.partition().fill(0, end=100)
    asked: list[str] = []

    def before(operation: str, key: str) -> None:
        if operation == "put" and key.endswith(suffix):
            asked.append(key)
            raise PreconditionFailed(key, "409 told so")

    world.store.before = before
    agent = world.once()
    failed = sum(
        sample.value
        for family in agent.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "tidemark_agent_failures_total"
    )
    assert failed >= 1
    assert len(asked) <= 3 * failed


def test_slow_down_lowers_the_limit_and_success_raises_it(world: World) -> None:
    world.disk.partition().fill(*range(0, 2000, 100), end=2000)
    told: list[str] = []

    def before(operation: str, key: str) -> None:
        if operation == "put" and key.endswith(".log") and len(told) < 6:
            told.append(key)
            raise SlowDown(key, "503")

    world.store.before = before
    with world.agent(upload={"concurrency": 8}, retry_initial="1ms", retry_cap="5ms") as agent:
        limits: list[float | None] = []
        value = agent.metrics.registry.get_sample_value
        world.store.after = lambda _operation, _key: limits.append(value("tidemark_agent_upload_limit"))
        agent.upload_once()
    seen = [one for one in limits if one]
    assert min(seen) <= 4
    assert seen[-1] > min(seen)
    assert world.watermark()[1].next_offset == 2000
    assert value("tidemark_agent_failures_total", {"kind": "SlowDown"}) == len(told)
