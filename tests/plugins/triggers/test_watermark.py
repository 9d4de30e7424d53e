from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable
from datetime import timedelta
from importlib import import_module
from typing import Any, TypeVar

import pytest
from airflow.triggers.base import TriggerEvent
from airflow.triggers.shared_stream import SharedStreamManager

from tests.plugins.world import CLUSTER, World, entry, row, state
from tidemark.formats.table.ledger import Ledger, Published
from tidemark.timestamps import utc_now
from tidemark_airflow.triggers import watermark as module
from tidemark_airflow.triggers.index_scanner import IndexScanner, Scan, Source
from tidemark_airflow.triggers.readiness import Baseline
from tidemark_airflow.triggers.watermark import WatermarkTrigger

Result = TypeVar("Result")


def run(awaitable: Awaitable[Result]) -> Result:
    """Its result, within a deadline that no healthy test comes near."""

    async def main() -> Result:
        async with asyncio.timeout(30):
            return await awaitable

    return asyncio.run(main())


def make(world: World, topic: str = "orders") -> WatermarkTrigger:
    deployment = world.deployment
    settings = deployment.topic(topic)
    ledger = Ledger.genesis(settings.cluster, settings.topic, settings.table)
    return WatermarkTrigger(
        source=Source.of(deployment, settings.cluster, 0.01).model_dump(mode="json"),
        baseline=Baseline.of(settings, ledger, Published(at=utc_now()), utc_now()).model_dump(mode="json"),
    )


async def stream(scans: Iterable[Scan]) -> AsyncIterator[Scan]:
    for scan in scans:
        yield scan


async def events(trigger: WatermarkTrigger, *scans: Scan) -> list[Any]:
    return [event.payload async for event in trigger.filter_shared_stream(stream(scans))]


def test_it_is_made_again_from_what_it_serializes(world: World) -> None:
    trigger = make(world)
    path, kwargs = trigger.serialize()
    name, _, attribute = path.rpartition(".")

    again = getattr(import_module(name), attribute)(**kwargs)

    assert isinstance(again, WatermarkTrigger)
    assert again.serialize() == (path, kwargs)
    assert again.shared_stream_key() == trigger.shared_stream_key()
    assert str(kwargs).count("password") == 0


def test_it_fires_once_for_its_own_topic(world: World) -> None:
    other = Scan({"clicks": [row("clicks", next_offset=7)]})
    own = Scan({"clicks": [row("clicks", next_offset=7)], "orders": [row(next_offset=3)]})

    assert run(events(make(world), other, other)) == []
    [event] = run(events(make(world), other, own, own))
    assert (event["status"], event["partitions"]) == ("advanced", 1)


def test_what_live_landings_have_landed_meanwhile_starts_no_run(world: World) -> None:
    trigger = make(world)
    trigger.baseline = trigger.baseline.model_copy(update={"live": True})
    table = world.table()
    ledger = Ledger.genesis(CLUSTER, "orders", "orders").model_copy(update={"n": 1, "partitions": (state(0, 3),)})
    table.store.put(table.keys.deployment.committed_ledger("orders"), ledger.to_bytes())

    assert run(events(trigger, Scan({"orders": [row(next_offset=3)]}), Scan({"orders": [row(next_offset=3)]}))) == []
    [event] = run(events(trigger, Scan({"orders": [row(next_offset=4)]}), Scan({"orders": [row(next_offset=4)]})))
    assert event["status"] == "advanced"


def test_it_runs_alone_where_no_triggerer_shares_the_scan(world: World) -> None:
    world.put_index(entry(next_offset=3))

    async def first() -> TriggerEvent:
        return await anext(make(world).run())

    assert run(first()).payload["status"] == "advanced"


def test_a_store_that_stays_unreadable_is_an_event(world: World) -> None:
    trigger = make(world)
    trigger.baseline = trigger.baseline.model_copy(update={"late_after": timedelta(0)})
    failing = Scan({}, failing_since=utc_now() - timedelta(hours=1), failure="403 from the store")

    [event] = run(events(trigger, Scan({}), failing, failing))

    assert (event["status"], event["reason"]) == ("failed", "403 from the store")


def test_an_outage_shorter_than_the_freshness_objective_is_no_event(world: World) -> None:
    failing = Scan({}, failing_since=utc_now() - timedelta(hours=1), failure="403 from the store")

    assert run(events(make(world), failing, failing)) == []


def test_a_quiet_topic_looks_at_its_configuration_now_and_then(world: World) -> None:
    trigger = make(world)
    trigger.baseline = trigger.baseline.model_copy(update={"look_again_at": utc_now()})

    [event] = run(events(trigger, Scan({}), Scan({}), Scan({})))

    assert event["status"] == "refresh"


def test_all_topics_of_a_cluster_share_one_scan(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"topic-{n}" for n in range(40)]
    world = World(tmp_path, *names)
    made: list[IndexScanner] = []

    class Recorded(IndexScanner):
        def __init__(self, source: Source) -> None:
            super().__init__(source)
            made.append(self)

    monkeypatch.setattr(module, "IndexScanner", Recorded)

    async def fired(manager: SharedStreamManager, number: int, trigger: WatermarkTrigger) -> Any:
        shared = manager.subscribe(trigger_id=number, trigger=trigger, key=trigger.shared_stream_key())
        event = await anext(trigger.filter_shared_stream(shared))
        return event.payload["status"]

    async def main() -> list[Any]:
        manager = SharedStreamManager()
        tasks = [asyncio.create_task(fired(manager, n, make(world, name))) for n, name in enumerate(names)]
        await asyncio.sleep(0)
        world.put_index(*(entry(name, next_offset=1) for name in names))
        try:
            return await asyncio.gather(*tasks)
        finally:
            await manager.stop_all()

    assert run(main()) == ["advanced"] * 40
    assert len(made) == 1


def test_topics_of_different_deployments_do_not_share(world: World, tmp_path: Any) -> None:
    assert make(world).shared_stream_key() != make(World(tmp_path / "other")).shared_stream_key()
