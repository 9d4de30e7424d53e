from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
import yaml
from airflow.triggers.base import TaskSkippedEvent

from tests.plugins.world import CLUSTER, World, entry, row, state
from tidemark.errors import UnknownOutcome
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.live_landing import LiveLanding, read_landing, write_landing
from tidemark.timestamps import utc_now
from tidemark_airflow.triggers import landing as module
from tidemark_airflow.triggers.committed import CommittedLedgers
from tidemark_airflow.triggers.index_scanner import IndexScanner, Scan, Source
from tidemark_airflow.triggers.landing import LandingTrigger
from tidemark_airflow.triggers.live_readiness import LiveTopic


@pytest.fixture
def live(world: World) -> World:
    content = {"cluster": CLUSTER, "raw": {"url": f"file://{world.root}/raw"}, "lake": f"file://{world.root}/lake"}
    world.write_topics(
        **content, topics=[{"topic": "orders", "freshness": "10s"}, {"topic": "clicks", "freshness": "1h"}]
    )
    return world


def make(world: World) -> LandingTrigger:
    deployment = world.deployment
    return LandingTrigger(
        source=Source.of(deployment, CLUSTER, 0.01).model_dump(mode="json"),
        topics=[LiveTopic.of(topic).model_dump(mode="json") for topic in deployment.live_topics(CLUSTER)],
        topics_file=str(world.topics_file),
    )


def events(trigger: LandingTrigger, *scans: Scan) -> list[Any]:
    async def stream(of: Iterable[Scan]) -> AsyncIterator[Scan]:
        for scan in of:
            yield scan

    async def main() -> list[Any]:
        async with asyncio.timeout(30):
            return [event async for event in trigger.filter_shared_stream(stream(scans))]

    return asyncio.run(main())


def stored(world: World) -> LiveLanding | None:
    deployment = world.deployment
    return read_landing(world.table().store, deployment.deployment_keys(CLUSTER).landing).value


def put_copy(world: World, topic: str, next_offset: int) -> None:
    """As a run does after its commit."""
    table = world.table(topic)
    ledger = Ledger.genesis(CLUSTER, topic, topic).model_copy(update={"n": 1, "partitions": (state(0, next_offset),)})
    table.store.put(table.keys.deployment.committed_ledger(topic), ledger.to_bytes())


def test_it_is_made_again_from_what_it_serializes(live: World) -> None:
    trigger = make(live)
    path, kwargs = trigger.serialize()
    name, _, attribute = path.rpartition(".")

    again = getattr(import_module(name), attribute)(**kwargs)

    assert again.serialize() == (path, kwargs)


def test_it_writes_what_is_due_and_says_so(live: World) -> None:
    put_copy(live, "clicks", 7)
    behind = Scan({"orders": [row(next_offset=3)], "clicks": [row("clicks", next_offset=7)]})

    [event] = events(make(live), Scan({}), behind, behind)

    assert event.payload == {"topics": ["orders"]}
    landing = stored(live)
    assert landing is not None
    assert [one.topic for one in landing.topics] == ["orders"]


def test_what_others_have_landed_meanwhile_is_not_due(live: World) -> None:
    trigger = make(live)
    put_copy(live, "orders", 2)
    behind = Scan({"orders": [row(next_offset=3)]})

    async def scans() -> AsyncIterator[Scan]:
        yield Scan({})
        put_copy(live, "orders", 3)
        yield behind

    async def main() -> list[Any]:
        return [event async for event in trigger.filter_shared_stream(scans())]

    assert asyncio.run(main()) == []
    assert stored(live) is None


def test_a_landing_that_has_not_ended_is_due_at_once_as_it_is(live: World) -> None:
    behind = Scan({"orders": [row(next_offset=3)]})
    events(make(live), behind)
    before = stored(live)

    [event] = events(make(live), Scan({}))

    assert event.payload == {"topics": ["orders"]}
    assert stored(live) == before


def test_after_a_landing_that_has_ended_there_is_another(live: World) -> None:
    behind = Scan({"orders": [row(next_offset=3)]})
    events(make(live), behind)
    first = stored(live)
    assert first is not None
    key = live.deployment.deployment_keys(CLUSTER).landing
    store = live.table().store
    ended = first.model_copy(update={"began_at": utc_now() - timedelta(minutes=1), "ended_at": utc_now()})
    write_landing(store, key, ended, read_landing(store, key).etag)

    events(make(live), behind)

    second = stored(live)
    assert second is not None
    assert second.topics[0].attempt != first.topics[0].attempt


def test_it_goes_on_where_the_lake_does_not_answer(live: World, monkeypatch: pytest.MonkeyPatch) -> None:
    behind = Scan({"orders": [row(next_offset=3)]})
    look = CommittedLedgers.look
    failures = [UnknownOutcome("k", "no answer"), UnknownOutcome("k", "no answer")]

    def fails(self: CommittedLedgers) -> None:
        if failures:
            raise failures.pop()
        look(self)

    monkeypatch.setattr(CommittedLedgers, "look", fails)

    [event] = events(make(live), behind, behind, behind)

    assert event.payload == {"topics": ["orders"]}


def test_a_landing_that_does_not_parse_is_replaced(live: World) -> None:
    live.table().store.put(live.deployment.deployment_keys(CLUSTER).landing, b"{}")

    [event] = events(make(live), Scan({"orders": [row(next_offset=3)]}))

    assert event.payload == {"topics": ["orders"]}
    assert stored(live) is not None


def test_without_anything_to_land_the_run_ends_for_the_next_to_read_the_topics_file(
    live: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_AGAIN_AFTER", timedelta(0))

    [event] = events(make(live), Scan({}), Scan({}))

    assert isinstance(event, TaskSkippedEvent)


def add(world: World, *topics: str) -> None:
    """Name more live topics in the topics file, as a person does."""
    content = yaml.safe_load(world.topics_file.read_text())
    content["topics"] += [{"topic": one, "freshness": "10s"} for one in topics]
    world.write_topics(**content)


def test_a_topic_that_is_added_while_it_waits_is_in_its_event(live: World) -> None:
    nothing, added = Scan({}), Scan({"added": [row("added", next_offset=3)]})

    async def scans() -> AsyncIterator[Scan]:
        yield nothing
        yield added
        add(live, "added")
        yield added

    async def main() -> list[Any]:
        return [event async for event in make(live).filter_shared_stream(scans())]

    [event] = asyncio.run(main())

    assert event.payload == {"topics": ["added"]}


@pytest.mark.parametrize("text", ["topics: [", None])
def test_a_topics_file_that_cannot_be_read_keeps_no_topic_from_landing(live: World, text: str | None) -> None:
    trigger = make(live)
    if text is None:
        live.topics_file.unlink()
    else:
        live.topics_file.write_text(text)

    [event] = events(trigger, Scan({"orders": [row(next_offset=3)]}))

    assert event.payload == {"topics": ["orders"]}


def test_what_the_dag_named_lands_where_the_triggerers_file_is_older(live: World) -> None:
    older = live.topics_file.read_text()
    add(live, "added")
    trigger = make(live)
    live.topics_file.write_text(older)

    [event] = events(trigger, Scan({"added": [row("added", next_offset=3)]}))

    assert event.payload == {"topics": ["added"]}


def test_it_shares_the_scan_of_the_clusters_other_triggers(live: World) -> None:
    live.put_index(entry(next_offset=3))
    scanner = IndexScanner(make(live).source)

    [event] = events(make(live), scanner.scan())

    assert event.payload == {"topics": ["orders"]}
