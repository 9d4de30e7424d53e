"""PUTs of an agent's own head that take effect late: the outcome was unknown, or the process was killed meanwhile.

A seal of a compacted log must have what the head then names: readers land it from the packs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.uploader_agent.fakes import ID, T, World, records
from tests.uploader_agent.packs.packing import FRESHNESS, append, entries, look_after_heads, pack_once, tick
from tests.uploader_agent.packs.test_damaged_heads import DAMAGES, Damage, spoil
from tests.uploader_agent.packs.test_leaders import ALL, new_leader, sealed_batches
from tests.uploader_agent.test_agent import no_errors
from tidemark.errors import PreconditionFailed, UnknownOutcome
from uploader_agent.broker.admin import Led

LEFT = records(0, 10) + records(40, 50)
"""The records that compaction has left on the disk."""


class LatePut:
    """The next PUT of broker 1's head. Its reply is lost, and it takes effect when it is delivered."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.arrived: bool | None = None
        """True if it has taken effect, False if its condition did not hold any more; None before it is delivered."""
        self._world = world
        self._sent: Callable[[], str] | None = None
        self._put = world.store.put
        monkeypatch.setattr(world.store, "put", self._hold)

    def arrive_before(self, end_of_key: str) -> None:
        """Deliver it right before the next PUT of an object whose key ends so."""

        def before(operation: str, key: str) -> None:
            if operation == "put" and key.endswith(end_of_key) and self.arrived is None:
                self.arrive()

        self._world.store.before = before

    def arrive(self) -> None:
        """Deliver it now."""
        assert self._sent is not None
        try:
            self._sent()
        except PreconditionFailed:
            self.arrived = False
        else:
            self.arrived = True

    def _hold(self, key: str, body: bytes, **options: Any) -> str:
        if key != self._world.control.head(1) or self._sent is not None:
            return self._put(key, body, **options)
        self._sent = partial(self._world.store.inner.put, key, body, **options)
        raise UnknownOutcome(key, "the reply was lost")


@pytest.fixture(params=[True, False], ids=["a head before", "no head before"])
def late(world: World, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> LatePut:
    """The PUT that names [20, 50), or [0, 50) as the first one, from a process that was killed. Compaction follows."""
    partition = world.disk.partition()
    world.metadata.policy = "compact"
    partition.segment(0, records(0, 20))
    if request.param:
        pack_once(world, 20)
    append(partition, 0, records(20, 50))
    put = LatePut(world, monkeypatch)
    pack_once(world, 50)
    partition.segment(0, LEFT).roll(50)
    return put


def named(world: World) -> int:
    """The end of the batches that the head has named."""
    return max((entry.tail_end for entry in entries(world)), default=0)


def test_it_fails_once_a_new_process_seals_a_compacted_log(world: World, late: LatePut) -> None:
    late.arrive_before(".log")
    no_errors(world.once(freshness=FRESHNESS))
    assert late.arrived is False
    assert sealed_batches(world) == [batch for batch in ALL if batch[0] < named(world) or batch[0] in {0, 40}]
    assert world.watermark()[1].next_offset == 50


def test_what_it_names_is_sealed_if_it_arrives_before_the_head_is_put_again(world: World, late: LatePut) -> None:
    late.arrive_before("/1.json")
    no_errors(world.once(freshness=FRESHNESS))
    assert late.arrived is True
    assert sealed_batches(world) == ALL


def test_what_it_names_is_sealed_if_it_is_damaged_once_it_has_arrived(world: World, late: LatePut) -> None:
    """A process that has read the head before does not know what it named last."""
    with world.agent(freshness=FRESHNESS) as agent:
        look_after_heads(agent)
        late.arrive()
        spoil(world)
        look_after_heads(agent)
        agent.upload_once()
        no_errors(agent)
    assert sealed_batches(world) == ALL


@pytest.mark.parametrize("packed", [20, None], ids=["a head before", "no head before"])
@pytest.mark.parametrize("damage", [DAMAGES["garbage"], DAMAGES["removed"]], ids=["garbage", "removed"])
def test_what_a_put_without_a_reply_names_is_sealed_if_it_is_damaged_before_it_is_read_back(
    world: World, monkeypatch: pytest.MonkeyPatch, packed: int | None, damage: Damage
) -> None:
    partition, put = world.disk.partition().segment(0, records(0, packed or 50)), world.store.put
    world.metadata.policy, world.metadata.default_high = "compact", packed or 50

    def cut(key: str, body: bytes, **options: Any) -> str:
        etag = put(key, body, **options)
        if key == world.control.head(1):
            monkeypatch.undo()
            spoil(world, damage)
            raise UnknownOutcome(key, "the reply was lost")
        return etag

    with world.agent(freshness=FRESHNESS) as agent:
        if packed is not None:
            tick(agent)
            append(partition, 0, records(packed, 50))
            world.metadata.default_high = 50
        monkeypatch.setattr(world.store, "put", cut)
        tick(agent)
        partition.segment(0, LEFT).roll(50)
        tick(agent)
        agent.upload_once()
        no_errors(agent)
    assert sealed_batches(world) == ALL


def test_it_fails_once_the_process_that_sent_it_seals_under_another_epoch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = world.disk.partition()
    world.metadata.policy = "compact"
    partition.segment(0, records(0, 20))
    world.metadata.default_high = 20
    with world.agent(freshness=FRESHNESS) as agent:
        tick(agent)
        append(partition, 0, records(20, 50))
        world.metadata.default_high = 50
        late = LatePut(world, monkeypatch)
        tick(agent)
        look_after_heads(agent)
        partition.segment(0, LEFT).roll(50)
        partition.lineage([(3, 0), (5, 50)])
        world.metadata.leads = {T: Led(5, ID)}
        late.arrive_before(".log")
        agent.upload_once()
        no_errors(agent)
    assert late.arrived is False
    assert sealed_batches(world) == [*ALL[:2], ALL[4]]


def test_what_a_deposed_leader_packs_after_its_head_was_read_is_sealed(world: World) -> None:
    """It has claimed before, and packs until it notices."""
    former = world.disk.partition().segment(0, records(0, 30))
    world.metadata.policy, world.metadata.default_high = "compact", 30
    second, partition = new_leader(world, 50)
    partition.segment(0, records(0, 50))
    second.metadata.default_high = 30
    with world.agent(freshness=FRESHNESS) as deposed, second.agent(freshness=FRESHNESS) as leader:
        tick(deposed)
        tick(leader)
        append(former, 0, records(30, 50))
        world.metadata.default_high = 50
        tick(deposed)
        assert named(world) == 50
        partition.segment(0, records(0, 30) + records(40, 50)).segment(50, records(50, 60, epoch=4)).roll(60)
        second.metadata.default_high = 60
        leader.upload_once()
        no_errors(leader)
    assert sealed_batches(world) == [*ALL, (50, 10)]


def test_a_log_that_is_not_compacted_is_sealed_without_another_put(world: World) -> None:
    partition = world.disk.partition().segment(0, records(0, 50))
    pack_once(world, 50)
    partition.roll(50)
    world.store.puts.clear()
    no_errors(world.once(freshness=FRESHNESS))
    assert world.control.head(1) not in world.store.puts
