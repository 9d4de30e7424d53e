"""What an agent makes of its own head when something else has written or removed it, while it runs or before."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable

import pytest
from crc32c import crc32c

from tests.tidemark.kafka_log.build import transactional
from tests.uploader_agent.fakes import ID, T, World, records
from tests.uploader_agent.packs.packing import (
    FRESHNESS,
    append,
    care,
    content,
    entries,
    error,
    failing,
    look_after_heads,
    pack_and_create_again,
    pack_once,
    packs,
    spans,
    tick,
)
from tests.uploader_agent.packs.test_leaders import lost_leadership
from tests.uploader_agent.repair.test_gaps import gap_reasons
from tests.uploader_agent.test_agent import no_errors, remove
from tidemark.errors import AccessDenied, UnknownOutcome
from tidemark.formats import object_sizes
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.head import HeadEntry
from tidemark.formats.raw.pack import TRAILER_SIZE
from tidemark.formats.raw.watermark import render
from uploader_agent.broker.admin import Led

OTHER = TopicPartition("orders", 1)

Damage = Callable[[bytes], bytes | None]
"""What lies under the head's key in place of the head, of which it is given the bytes; None for nothing."""


def changed(**fields: object) -> Damage:
    return lambda head: json.dumps({**json.loads(head), **fields}).encode()


DAMAGES: dict[str, Damage] = {
    "garbage": lambda _: b"\xff\x00 no JSON",
    "empty": lambda _: b"",
    "cut": lambda head: head[:-20],
    "hardly anything": lambda _: b'{"format": 1}',
    "another broker's": changed(broker=2, entries=[]),
    "another cluster's": changed(cluster="elsewhere"),
    "too large": lambda _: b" " * (object_sizes.HEAD + 1),
    "removed": lambda _: None,
}


@pytest.fixture(params=DAMAGES)
def damage(request: pytest.FixtureRequest) -> Damage:
    return DAMAGES[request.param]


def spoil(world: World, damage: Damage = DAMAGES["garbage"]) -> bytes | None:
    """Damage the head of broker 1; what lies there now."""
    key = world.control.head(1)
    body = damage(world.store.inner.get(key).body)
    if body is None:
        world.store.inner.delete(key)
    else:
        world.store.inner.put(key, body)
    return body


def kept(world: World) -> list[bytes]:
    """What was kept aside."""
    folder = "_damaged/test-cluster/1/"
    return [world.store.inner.get(info.key).body for info in world.store.inner.list(folder)]


@pytest.fixture
def begun(world: World) -> World:
    """[0, 30) is packed, and [30, 50) is new."""
    partition = world.disk.partition().segment(0, records(0, 30))
    pack_once(world, 30)
    append(partition, 0, records(30, 50))
    return world


# -- by the process that knows it, and by one that does not ------------------------------------------------------------


def test_a_running_agent_makes_it_again_from_what_it_knows(world: World, damage: Damage) -> None:
    partition = world.disk.partition().segment(0, records(0, 30))
    world.disk.partition(OTHER).segment(0, records(0, 20))
    world.metadata.leads[OTHER] = Led(3, ID)
    world.metadata.high = {T: 30, OTHER: 20}
    with world.agent(freshness=FRESHNESS) as agent:
        tick(agent)
        body = spoil(world, damage)
        append(partition, 0, records(30, 50))
        world.metadata.high[T] = 50
        tick(agent)
        tick(agent)
        [found] = agent.components.packs.damaged()
    assert [(one.partition, one.tail_end, one.ranges) for one in entries(world)] == [(0, 50, 2), (1, 20, 1)]
    assert content(world) == records(0, 50)
    assert kept(world) == ([] if body is None else [body])
    assert found.key == f"{world.store.url}/{world.control.head(1)}"
    assert (found.kept is None) == (body is None)
    assert found.made_at is not None


def test_an_agent_that_starts_makes_it_again_from_its_packs(begun: World, damage: Damage) -> None:
    body = spoil(begun, damage)
    pack_once(begun, 50)
    assert spans(begun) == [(0, 30), (30, 50)], "nothing is packed again"
    [entry] = entries(begun)
    assert (entry.tail_end, entry.ranges, entry.size) == (50, 2, len(records(0, 50)))
    assert entry.since == packs(begun)[0].range.shipped_at, "the limits count from there"
    assert content(begun) == records(0, 50)
    assert kept(begun) == ([] if body is None else [body])


def test_it_is_made_again_although_nothing_is_new(world: World, damage: Damage) -> None:
    """Readers cannot read what it named until then."""
    world.disk.partition().segment(0, records(0, 30))
    world.metadata.default_high = 30
    with world.agent(freshness=FRESHNESS) as agent:
        tick(agent)
        look_after_heads(agent)
        spoil(world, damage)
        look_after_heads(agent)
        assert [one.tail_end for one in entries(world)] == [30]
    spoil(world, damage)
    with world.agent(freshness=FRESHNESS) as agent:
        look_after_heads(agent)
    assert [one.tail_end for one in entries(world)] == [30]
    assert spans(world) == [(0, 30)]


def test_an_object_that_appears_where_there_was_no_head_is_replaced(world: World) -> None:
    """Nothing is packed, and nothing is new: an agent that needs the heads to fill a hole must not wait for that."""
    world.disk.partition().segment(0, b"")
    with world.agent(freshness=FRESHNESS) as agent:
        tick(agent)
        look_after_heads(agent)
        assert not list(world.store.inner.list(world.control.head(1)))
        world.store.inner.put(world.control.head(1), b"no head")
        look_after_heads(agent)
        look_after_heads(agent)
    assert kept(world) == [b"no head"]
    assert entries(world) == []


def test_a_head_that_was_put_since_is_not_looked_at(world: World) -> None:
    world.disk.partition().segment(0, records(0, 30))
    world.metadata.default_high = 30
    asked: list[str] = []
    world.store.before = lambda operation, key: asked.append(operation) if key == world.control.head(1) else None
    with world.agent(freshness=FRESHNESS) as agent:
        tick(agent)
        look_after_heads(agent)
        assert asked == ["get", "put"]
        look_after_heads(agent)
        look_after_heads(agent)
    assert asked == ["get", "put", "head", "head"]


def test_what_only_packs_have_is_sealed_from_them(begun: World) -> None:
    """The disk has lost it; the head that named it is garbage, and no process has read it."""
    partition = begun.disk.partition()
    pack_once(begun, 50)
    partition.segment(50, records(50, 70))
    remove(partition, 0)
    spoil(begun)
    begun.metadata.default_high, begun.metadata.log_start = 70, 50
    with begun.agent(freshness=FRESHNESS, tail_after="0s") as agent:
        look_after_heads(agent)
        agent.upload_once()
        no_errors(agent)
    assert gap_reasons(begun) == []
    assert content(begun) == records(0, 70)


def test_packs_state_the_transactions_open_where_the_store_begins(world: World) -> None:
    """Retention has removed the start of the transaction, and then all that was packed."""
    partition = world.disk.partition()
    partition.snapshot(100, {7: 90})
    partition.segment(100, transactional(100, 7, 5))
    world.metadata.log_start = 100
    pack_once(world, 105)
    partition.segment(105, records(105, 115))
    remove(partition, 100)
    world.metadata.default_high, world.metadata.log_start = 115, 105
    no_errors(world.once(freshness=FRESHNESS, tail_after="0s"))
    opened = world.manifest(100).open_transactions
    assert [(transaction.producer_id, transaction.first_offset) for transaction in opened] == [(7, 90)]


@pytest.mark.parametrize("epochs", [((3, 0), (5, 60)), ((3, 0), (4, 50), (5, 60))], ids=["no epoch 4", "a late start"])
def test_packs_state_the_epochs_that_retention_has_removed(world: World, epochs: tuple[tuple[int, int], ...]) -> None:
    """``offset.wm`` was written when retention had removed an epoch that it did not know, or the start of it."""
    partition = world.disk.partition().lineage([(3, 0), (4, 30), (5, 60)])
    batches = records(0, 30) + records(30, 60, epoch=4) + records(60, 80, epoch=5)
    partition.segment(0, batches)
    world.metadata.leads = {T: Led(5, ID)}
    pack_once(world, 80)
    base, watermark = world.watermark()
    world.store.inner.put(world.keys().watermark, render(base, watermark.model_copy(update={"lineage": epochs})))
    partition.lineage([(5, 80)])
    partition.segment(80, records(80, 90, epoch=5))
    remove(partition, 0)
    spoil(world)
    world.metadata.default_high, world.metadata.log_start = 90, 80
    with world.agent(freshness=FRESHNESS, tail_after="0s") as agent:
        look_after_heads(agent)
        assert [one.lineage for one in entries(world)] == [((3, 0), (4, 30), (5, 60))]
        agent.upload_once()
        no_errors(agent)
    assert gap_reasons(world) == []
    assert content(world) == batches + records(80, 90, epoch=5)
    assert world.watermark()[1].lineage == ((3, 0), (4, 30), (5, 60))


def test_nothing_is_sealed_of_a_compacted_topic_before_it_is_made_again(begun: World) -> None:
    """The cleaner has removed what only packs have: a seal without them would lack it."""
    partition = begun.disk.partition()
    begun.metadata.policy = "compact"
    pack_once(begun, 50)
    partition.segment(0, records(0, 20) + records(40, 50)).roll(50)
    spoil(begun)
    head = begun.control.head(1)
    with failing(begun, lambda operation, key: (operation, key) == ("put", head), AccessDenied(head, "planted")):
        agent = begun.once(freshness=FRESHNESS)
        assert "AccessDenied" in (agent.leadership.partitions[T].error or "")
    assert not [name for name in begun.names() if name.endswith(".log")]
    no_errors(begun.once(freshness=FRESHNESS))
    assert begun.stored(0) == records(0, 50)


def test_what_no_head_has_named_of_a_compacted_topic_is_packed_again(world: World) -> None:
    """A process was killed before its first head; a seal may have been made since without what it had packed."""
    world.disk.partition().segment(0, records(0, 30))
    world.metadata.policy = "compact"
    head = world.control.head(1)
    with failing(world, lambda operation, key: (operation, key) == ("put", head), UnknownOutcome("head", "cut")):
        pack_once(world, 30)
    pack_once(world, 30)
    assert spans(world) == [(0, 30), (0, 30)]
    assert [(one.tail_end, one.ranges) for one in entries(world)] == [(30, 1)]


def test_the_pack_of_a_failed_tick_may_be_named(begun: World) -> None:
    head = begun.control.head(1)
    with failing(begun, lambda operation, key: (operation, key) == ("put", head), UnknownOutcome("head", "cut")):
        pack_once(begun, 50)
    assert [one.tail_end for one in entries(begun)] == [30]
    spoil(begun)
    pack_once(begun, 50)
    assert [(one.tail_end, one.ranges) for one in entries(begun)] == [(50, 2)]
    assert spans(begun) == [(0, 30), (30, 50)]
    assert content(begun) == records(0, 50)


def test_what_only_a_recovered_head_names_of_a_deleted_topic_is_told_by_offset_wm(begun: World) -> None:
    """The topic went before the head could name the last pack; ``offset.wm`` lists the leadership no more by then."""
    head, partition = begun.control.head(1), begun.disk.partition()
    with failing(begun, lambda operation, key: (operation, key) == ("put", head), UnknownOutcome("head", "cut")):
        pack_once(begun, 50)
    remove(partition, 0)
    partition.folder.rename(partition.folder.with_name("orders-0.f00-delete"))
    begun.metadata.leads = {}
    for end in (30, 50):
        with begun.agent(freshness=FRESHNESS) as agent:
            agent.refresh()
            care(agent, 4)
        assert entries(begun) == []
        written = begun.watermark()[1]
        assert (written.next_offset, written.tails) == (end, ())
        spoil(begun)
    assert begun.stored(30) == records(30, 50)


def test_what_is_sealed_is_not_named_again(begun: World) -> None:
    partition = begun.disk.partition()
    pack_once(begun, 50)
    partition.roll(50)
    begun.once()
    begun.disk.partition(OTHER).segment(0, records(0, 20))
    begun.metadata.leads[OTHER] = Led(3, ID)
    begun.metadata.high = {T: 50, OTHER: 20}
    pack_once(begun)
    spoil(begun)
    with begun.agent(freshness=FRESHNESS) as agent:
        look_after_heads(agent)
    assert [(one.partition, one.tail_end) for one in entries(begun)] == [(OTHER.partition, 20)]


def test_it_names_what_was_packed_beyond_the_seals_alone(begun: World) -> None:
    partition = begun.disk.partition().segment(0, records(0, 30)).roll(30)
    begun.once()
    append(partition, 30, records(30, 50))
    pack_once(begun, 50)
    before = entries(begun)
    spoil(begun)
    with begun.agent(freshness=FRESHNESS) as agent:
        look_after_heads(agent)
    [entry] = entries(begun)
    assert (entry.ranges, entry.size, entry.since) == (before[0].ranges, before[0].size, before[0].since)
    assert entry.lineage == before[0].lineage


def test_tails_of_other_leaderships_are_named_again(world: World) -> None:
    """Of a topic that was deleted, and of one that another broker leads now: nobody else has their packs."""
    pack_and_create_again(world)
    pack_once(world, 30)
    before = {(one.topic_id, one.epoch): same(one) for one in entries(world)}
    spoil(world)
    lost_leadership(world)
    with world.agent(freshness=FRESHNESS) as agent:
        agent.refresh()
        care(agent)
        assert agent.components.packs.of_other_leaderships == {T}
    assert {(one.topic_id, one.epoch): same(one) for one in entries(world)} == before
    assert len(before) == 2


def same(entry: HeadEntry) -> HeadEntry:
    """What of an entry packs and ``offset.wm`` tell."""
    unknown = {"observed_at": None, "oldest_unstored": None, "high_watermark": entry.tail_end}
    return entry.model_copy(update=unknown)


def test_an_epoch_of_which_nothing_is_packed_ends_the_lineage(world: World) -> None:
    """A leader may have packed only what former ones wrote; a dead branch's ``offset.wm`` does not know its epoch."""
    world.disk.partition().segment(0, records(0, 30))
    world.metadata.leads = {T: Led(4, ID)}
    pack_once(world, 30)
    [before] = entries(world)
    assert before.lineage == ((3, 0), (4, 30))
    other = world.another(2, leads={T: Led(5, ID)})
    other.disk.partition().lineage([(3, 0), (5, 20)]).segment(0, records(0, 20) + records(20, 40, epoch=5))
    pack_once(other, 40)
    spoil(world)
    lost_leadership(world, 5)
    with world.agent(freshness=FRESHNESS) as agent:
        agent.refresh()
        look_after_heads(agent)
    assert same(entries(world)[0]) == same(before)


# -- other writers, and failures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["before the copy is made", "when it is made", "before the head is put"])
def test_exactly_the_damaged_version_is_replaced(begun: World, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process of this broker is faster: its head is no damage, and stays."""
    head = begun.control.head(1)
    sound = begun.store.inner.get(head).body
    spoil(begun)
    faster, copy = itertools.count(), begun.store.copy

    def put(at: str) -> None:
        if at == moment and next(faster) == 0:
            begun.store.inner.put(head, sound)

    def copied(source: str, target: str, *, source_etag: str) -> str:
        put("before the copy is made")
        etag = copy(source, target, source_etag=source_etag)
        put("when it is made")
        return etag

    begun.store.before = lambda operation, key: (
        put("before the head is put") if (operation, key) == ("put", head) else None
    )
    monkeypatch.setattr(begun.store, "copy", copied)
    begun.metadata.default_high = 50
    with begun.agent(freshness=FRESHNESS) as agent:
        tick(agent)
        assert begun.store.inner.get(head).body == sound
        tick(agent)
    assert content(begun) == records(0, 50)


def test_nothing_is_replaced_that_is_not_kept(begun: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a policy of before, for example. The agent says so, and mends it once it may."""
    body = spoil(begun)
    begun.metadata.default_high = 50

    def copy(_source: str, target: str, *, source_etag: str) -> str:
        raise AccessDenied(target, f"told so, of {source_etag}")

    with begun.agent(freshness=FRESHNESS) as agent:
        with monkeypatch.context() as patch:
            patch.setattr(begun.store, "copy", copy)
            tick(agent)
            tick(agent)
            assert begun.store.inner.get(begun.control.head(1)).body == body
            [found] = agent.components.packs.damaged()
            assert (found.kept, found.made_at) == (None, None)
            assert "AccessDenied" in (error(agent) or "")
            assert "AccessDenied" in str(agent.components.packs.stalled())
        tick(agent)
        [made] = agent.components.packs.damaged()
        assert made.found_at == found.found_at
        assert made.made_at is not None
        assert agent.components.packs.stalled() is None
    assert content(begun) == records(0, 50)


@pytest.mark.parametrize("number", range(3))
def test_a_kill_while_it_is_made_again_costs_nothing(begun: World, number: int) -> None:
    """Before the copy, after it, and after the head was put."""
    body, steps = spoil(begun), itertools.count()
    begun.metadata.default_high = 50

    def step(_operation: str, key: str) -> None:
        if ("_damaged" in key or key == begun.control.head(1)) and next(steps) == number:
            raise UnknownOutcome(key, "killed")

    begun.store.before = lambda operation, key: step(operation, key) if operation == "put" else None
    begun.store.after = step
    with begun.agent(freshness=FRESHNESS) as agent:
        tick(agent)
    begun.store.before = begun.store.after = lambda _operation, _key: None
    pack_once(begun, 50)
    assert content(begun) == records(0, 50)
    assert kept(begun) == [body]


def test_a_pack_that_is_damaged_too_costs_its_own_ranges_alone(begun: World) -> None:
    begun.disk.partition(OTHER).segment(0, records(0, 20, value="other"))
    begun.metadata.leads[OTHER] = Led(3, ID)
    begun.metadata.high = {T: 30, OTHER: 20}
    pack_once(begun)
    [second] = [one.key for one in packs(begun) if one.range.partition == OTHER.partition]
    begun.store.inner.put(second, b"no pack")
    spoil(begun)
    with begun.agent(freshness=FRESHNESS) as agent:
        look_after_heads(agent)
        assert [(one.partition, one.tail_end) for one in entries(begun)] == [(T.partition, 30)]
        begun.store.inner.delete(second)
        tick(agent)
    assert content(begun, OTHER) == records(0, 20, value="other"), "it is packed again from the disk"


def test_an_offset_wm_that_is_damaged_holds_up_no_other_partition(world: World) -> None:
    """Not even one that has its ranges in the same pack."""
    world.disk.partition().segment(0, records(0, 30))
    world.disk.partition(OTHER).segment(0, records(0, 20))
    world.metadata.leads[OTHER] = Led(3, ID)
    world.metadata.high = {T: 30, OTHER: 20}
    pack_once(world)
    assert len({one.key for one in packs(world)}) == 1
    world.store.inner.put(world.keys(OTHER).watermark, b"garbage")
    spoil(world)
    with world.agent(freshness=FRESHNESS) as agent:
        look_after_heads(agent)
    assert [(one.partition, one.tail_end) for one in entries(world)] == [(0, 30), (1, 20)], "that one may need it, too"


def later_pack(world: World) -> str:
    """Give the pack of the head's only entry a later version; returns its key."""
    [key] = {packed.key for packed in packs(world)}
    body = world.store.inner.get(key).body
    start = body[-TRAILER_SIZE:-4].replace(b"TMPACK\0\1", b"TMPACK\0\2")
    world.store.inner.put(key, body[:-TRAILER_SIZE] + start + crc32c(start).to_bytes(4))
    return key


def later_watermark(world: World) -> str:
    key = world.keys().watermark
    line = {"format": 3, "needs": "1.4"}
    world.store.inner.put(key, b"0" * 20 + b"\n" + json.dumps(line).encode())
    return key


def test_a_head_of_a_later_version_is_left_alone(begun: World) -> None:
    """It is whole: what that version said in it would be lost."""
    body = spoil(begun, changed(format=2, needs="1.4"))
    with begun.agent(freshness=FRESHNESS) as agent:
        look_after_heads(agent)
        tick(agent)
    assert begun.store.inner.get(begun.control.head(1)).body == body
    assert kept(begun) == []


@pytest.mark.parametrize("later", [later_pack, later_watermark])
def test_no_head_is_made_from_objects_of_a_later_version(begun: World, later: Callable[[World], str]) -> None:
    """Without what they say it would leave out ranges that it has named."""
    later(begun)
    body = spoil(begun)
    with begun.agent(freshness=FRESHNESS) as agent:
        look_after_heads(agent)
    assert begun.store.inner.get(begun.control.head(1)).body == body


@pytest.mark.parametrize("request_", [("list", "_tails/"), ("get", "offset.wm")], ids=["packs", "offset.wm"])
def test_a_store_that_fails_meanwhile_is_asked_again(begun: World, request_: tuple[str, str]) -> None:
    """Nothing is begun anew because something could not be read."""
    body, (wanted, name) = spoil(begun), request_
    with begun.agent(freshness=FRESHNESS) as agent:
        with failing(begun, lambda operation, key: operation == wanted and name in key, UnknownOutcome("it", "cut")):
            look_after_heads(agent)
        assert begun.store.inner.get(begun.control.head(1)).body == body
        look_after_heads(agent)
    assert [one.tail_end for one in entries(begun)] == [30]


def test_a_command_that_writes_nothing_leaves_it_alone(begun: World) -> None:
    body = spoil(begun)
    with begun.agent(read_only=True, freshness=FRESHNESS) as agent:
        agent.survey()
        assert "FormatError" in (error(agent) or "")
    assert begun.store.inner.get(begun.control.head(1)).body == body
    assert kept(begun) == []


def test_each_damage_has_a_name_of_its_own(begun: World) -> None:
    bodies: list[bytes | None] = []
    with begun.agent(freshness=FRESHNESS) as agent:
        for name in ("garbage", "empty", "garbage"):
            bodies.append(spoil(begun, DAMAGES[name]))
            look_after_heads(agent)
            look_after_heads(agent)
    assert Counter(kept(begun)) == Counter(bodies)
