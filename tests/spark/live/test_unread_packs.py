"""A pack that the store does not give stops the partitions that need it, and nothing else of a landing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.spark.inline import Inline
from tests.spark.live.live_world import LiveWorld
from tests.spark.world import in_process
from tests.support.live_end import Packed, Packer
from tests.tidemark.kafka_log.build import simple
from tidemark.errors import AccessDenied, NotFound, StoreError, UnknownOutcome
from tidemark.formats.table.statuses import UnreadStatus
from tidemark.planning import plan_rebuild
from tidemark.store import LocalStore
from tidemark_spark.convert import conversion
from tidemark_spark.jobs.running import run_job
from tidemark_spark.live.landing import BACKOFF
from tidemark_spark.run.driver import run

ERRORS = (AccessDenied, UnknownOutcome, StoreError, NotFound)


class Outage:
    """Reads of the ``packs`` fail with ``error``, but for the first ``served`` of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.packs: set[str] = set()
        self.error: type[StoreError] = AccessDenied
        self.served = 0
        self.reads = Counter[str]()
        real = LocalStore.get_range

        def get_range(store: LocalStore, key: str, start: int, end: int, *, if_match: str | None = None) -> bytes:
            self.reads[key] += 1
            if key in self.packs and self.reads[key] > self.served:
                raise self.error(key, "is not given")
            return real(store, key, start, end, if_match=if_match)

        monkeypatch.setattr(LocalStore, "get_range", get_range)


@pytest.fixture
def live(tmp_path: Path) -> LiveWorld:
    return LiveWorld(tmp_path, "orders", "clicks", "views")


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Outage:
    monkeypatch.setattr(conversion, "_outages", {})
    return Outage(monkeypatch)


def packed(live: LiveWorld) -> dict[str, list[Packed]]:
    """A pack of two partitions of each topic, and one of a third partition."""
    made: dict[str, list[Packed]] = {}
    for number, (topic, world) in enumerate(live.topics.items(), 1):
        packer = Packer(world.raw, broker=number)
        made[topic] = []
        for partitions in ((0, 1), (2,)):
            made[topic] += packer.pack_all(
                (simple(world.raw.partition(one).end), one, None, (), False, None, None) for one in partitions
            )
            for one in partitions:
                packer._note(one, None, None)
        packer.put_head()
    return made


def land(live: LiveWorld) -> dict[str, str]:
    live.due()
    assert run_job("land_live", ["--topics", str(live.topics_file), "--cluster", "east"], Inline()) == 0
    for topic in live.topics.values():
        topic.check()
    return live.statuses()


def ends(live: LiveWorld, topic: str) -> list[int]:
    found = live.topics[topic].ledger.by_partition
    return [found[0, one].next_offset if (0, one) in found else 0 for one in range(3)]


def unread(live: LiveWorld, topic: str) -> list[str]:
    table = live.topics[topic].table
    return UnreadStatus.load(table.store, table.keys.deployment.unread(topic)).objects


@pytest.mark.sampled(4)
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("served", [0, 2], ids=["the plan cannot read it", "the tasks cannot"])
def test_a_pack_that_is_not_given_stops_its_partitions_alone(
    live: LiveWorld, outage: Outage, monkeypatch: pytest.MonkeyPatch, error: type[StoreError], served: int
) -> None:
    pack = packed(live)["orders"][0].key
    outage.packs, outage.error, outage.served = {pack}, error, served

    assert land(live) == {"orders": "landed", "clicks": "landed", "views": "landed"}
    assert [ends(live, topic) for topic in live.topics] == [[0, 0, 3], [3, 3, 3], [3, 3, 3]]
    assert [one.again_at for one in live.landing().topics] == [None] * 3, "none is held"
    if error is not NotFound:
        assert unread(live, "orders") == [pack]
    asked_by_each = served and error is NotFound  # which is an answer, and takes no time
    assert outage.reads[pack] == served + (2 if asked_by_each else 1)

    outage.packs = set()
    monkeypatch.setattr(conversion, "_OUTAGE_SECONDS", 0.0)
    assert land(live)["orders"] == "landed"
    assert ends(live, "orders") == [3, 3, 3]
    if error is not NotFound:
        assert unread(live, "orders") == []


def test_a_topic_of_which_nothing_can_be_read_is_tried_again_soon_or_when_it_moves(
    live: LiveWorld, outage: Outage
) -> None:
    outage.packs = {one.key for one in packed(live)["orders"]}

    assert land(live) == {"orders": "empty", "clicks": "landed", "views": "landed"}
    landing = live.landing()
    again_at = landing.topics[0].again_at
    assert again_at is not None
    pause = again_at - landing.began_at
    assert pause < timedelta(seconds=BACKOFF.longest), "as soon as after a failure, and no sooner than it moves"
    assert len(unread(live, "orders")) == 2


def test_a_head_that_is_not_given_keeps_no_other_topic(live: LiveWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    packed(live)
    orders = live.topics["orders"].raw
    orders.segment([simple(0)], partition=5)
    real: Callable[..., object] = LocalStore.get

    def get(store: LocalStore, key: str, **of: object) -> object:
        if key == "_heads/east/1.json":
            raise AccessDenied(key, "is not given")
        return real(store, key, **of)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "get", get)
        assert land(live) == {"orders": "landed", "clicks": "landed", "views": "landed"}
    assert live.topics["orders"].rows()
    assert ends(live, "orders") == [0, 0, 0]
    assert unread(live, "orders") == ["_heads/east/1.json"]
    land(live)
    assert ends(live, "orders") == [3, 3, 3]


def test_a_rebuild_does_without_no_pack(live: LiveWorld, outage: Outage) -> None:
    """What it cannot read would be missing; Spark tries its tasks again."""
    pack = packed(live)["orders"][0].key
    land(live)
    orders = live.topics["orders"]
    outage.packs = {pack}
    with pytest.raises(AccessDenied):
        plan_rebuild(orders.table, None)
    outage.packs = set()
    plan = plan_rebuild(orders.table, None)
    outage.packs = {pack}
    with pytest.raises(AccessDenied):
        run(orders.table, plan, in_process)
