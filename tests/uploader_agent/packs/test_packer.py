"""What ticks leave in the store, on disks made by hand."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path

import pytest

from tests.tidemark.kafka_log.build import legacy, marker, simple, transactional
from tests.uploader_agent.fakes import ID, OTHER_ID, T, World, records
from tests.uploader_agent.packs.packing import (
    FRESHNESS,
    append,
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
from tests.uploader_agent.test_agent import no_errors, remove
from tidemark.errors import UnknownOutcome
from tidemark.formats.keys import SegmentName, TopicPartition
from tidemark.formats.raw.watermark import MOST_TAILS, render
from tidemark.kafka_log import SegmentScanner, SegmentSummary
from uploader_agent.broker.admin import Led
from uploader_agent.packing import packer as packer_module

OTHER = TopicPartition("orders", 1)


def test_new_batches_are_packed_and_the_head_names_them(world: World) -> None:
    partition = world.disk.partition().segment(0, records(0, 30))
    world.metadata.default_high = 30
    with world.agent(freshness=FRESHNESS) as agent:
        tick(agent)
        [first] = packs(world)
        assert (first.range.first, first.range.next, first.range.epochs) == (0, 30, ((3, 0),))
        assert world.watermark()[1].tails == ((3, 1),), "said before anything is packed"
        append(partition, 0, records(30, 50))
        world.metadata.default_high = 50
        tick(agent)
        puts = len(world.store.puts)
        tick(agent)
        assert len(world.store.puts) == puts, "nothing is new"
    [entry] = entries(world)
    assert (entry.tail_end, entry.high_watermark, entry.ranges, entry.lineage) == (50, 50, 2, ((3, 0),))
    assert entry.since == first.range.shipped_at
    assert content(world) == records(0, 50)


def test_nothing_above_the_high_watermark_is_packed(world: World) -> None:
    world.disk.partition().segment(0, records(0, 50))
    pack_once(world, 35)
    assert spans(world) == [(0, 30)], "whole batches below it"


def test_a_topic_without_freshness_or_id_is_not_packed(world: World) -> None:
    world.disk.partition(topic_id=None).segment(0, records(0, 50))
    world.metadata.leads = {T: Led(3, None)}
    pack_once(world, 50)
    other = World(world.root / "other")
    other.disk.partition().segment(0, records(0, 50))
    other.metadata.default_high = 50
    with other.agent(freshness={"payments": "3s"}) as agent:
        tick(agent)
    assert (packs(world), packs(other)) == ([], [])


def test_several_partitions_share_a_pack(world: World) -> None:
    world.disk.partition().segment(0, records(0, 30))
    world.disk.partition(OTHER).segment(0, records(0, 50, value="other"))
    world.metadata.leads[OTHER] = Led(3, ID)
    world.metadata.high = {T: 30, OTHER: 50}
    pack_once(world)
    assert len({one.key for one in packs(world)}) == 1
    assert (content(world), content(world, OTHER)) == (records(0, 30), records(0, 50, value="other"))


def test_a_range_ends_with_its_local_file(world: World) -> None:
    """So that a seal of that file holds whole ranges."""
    partition = world.disk.partition().fill(0, 20, end=40)
    append(partition, 40, records(40, 60))
    pack_once(world, 60)
    assert spans(world) == [(0, 20), (20, 40), (40, 60)]
    assert content(world) == records(0, 60)


def test_a_restarted_agent_goes_on_from_its_head(world: World) -> None:
    partition = world.disk.partition().segment(0, records(0, 30))
    pack_once(world, 30)
    append(partition, 0, records(30, 50))
    pack_once(world, 50)
    [first, second] = packs(world)
    assert second.range.previous is not None
    assert spans(world) == [(0, 30), (30, 50)]
    assert first.key != second.key, "random names"
    assert content(world) == records(0, 50)
    assert entries(world)[0].ranges == 2, "the limits count what the former process has packed"


def test_what_is_sealed_is_not_packed(world: World) -> None:
    partition = world.disk.partition().fill(0, end=30)
    world.once()
    append(partition, 30, records(30, 50))
    pack_once(world, 50)
    assert spans(world) == [(30, 50)]
    [entry] = entries(world)
    assert entry.lineage == ((3, 0),)


def test_a_range_does_not_begin_at_a_hole(world: World) -> None:
    """Without compaction, what is missing there may still be somewhere: the hole is looked into before it is passed."""
    partition = world.disk.partition().segment(0, records(0, 40))
    world.metadata.default_high = 40
    with world.agent(freshness=FRESHNESS) as agent:
        tick(agent)
        append(partition, 0, records(50, 60))
        world.metadata.default_high = 60
        tick(agent)
        assert agent.leadership.partitions[T].packed.tail.stuck_at == 40
    assert spans(world) == [(0, 40)]


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_markers_in_a_range_decide_its_transactions(world: World) -> None:
    """The broker writes its ``.txnindex`` after the marker: there is none on this disk."""
    partition = world.disk.partition().segment(0, transactional(0, 7, 5) + transactional(5, 8, 5))
    with world.agent(freshness=FRESHNESS) as agent:
        world.metadata.default_high = 10
        tick(agent)
        append(partition, 0, marker(10, 7, commit=False) + marker(11, 8, commit=True) + transactional(12, 9, 3))
        world.metadata.default_high = 15
        tick(agent)
    first, second = (one.range for one in packs(world))
    assert [(one.producer_id, one.first_offset) for one in first.open] == [(7, 0), (8, 5)]
    assert [(one.producer_id, one.first_offset, one.last_offset) for one in second.aborts] == [(7, 0, 10)]
    assert [one.producer_id for one in second.open] == [9]


def test_what_is_open_at_the_start_is_known_after_a_restart_and_after_a_seal(world: World) -> None:
    partition = world.disk.partition().segment(0, transactional(0, 7, 5))
    pack_once(world, 5)
    append(partition, 0, records(5, 15))
    pack_once(world, 15)
    world.once(tail_after="0s")
    append(partition, 0, marker(15, 7, commit=False))
    pack_once(world, 16)
    assert [(one.producer_id, one.first_offset) for one in packs(world)[-1].range.aborts] == [(7, 0)]


def test_what_is_open_at_the_start_of_the_first_range_is_known_from_the_local_log(world: World) -> None:
    """Retention has removed where the transaction began; the store never had it."""
    partition = world.disk.partition()
    partition.snapshot(100, {7: 90})
    partition.segment(100, transactional(100, 7, 5) + marker(105, 7, commit=False))
    world.metadata.log_start = 100
    pack_once(world, 106)
    [only] = packs(world)
    assert (only.range.first, only.range.next) == (100, 106)
    assert [(one.producer_id, one.first_offset, one.last_offset) for one in only.range.aborts] == [(7, 90, 105)]


def test_message_formats_without_epochs(world: World) -> None:
    partition = world.disk.partition().lineage([(3, 6)])
    partition.segment(0, legacy(1, 0, 3) + legacy(1, 3, 3, "gzip") + simple(6, 4))
    pack_once(world, 6)
    assert packs(world) == [], "nothing has an epoch yet"
    pack_once(world, 10)
    [one] = packs(world)
    assert (one.range.first, one.range.next, one.range.epochs) == (0, 10, ((-1, 0), (3, 6)))


def test_batches_below_the_first_epoch_are_sealed_and_those_behind_are_packed(world: World) -> None:
    """DeleteRecords takes epochs out of the checkpoint, and the segment with their batches stays."""
    partition = world.disk.partition().lineage([(3, 30)]).segment(0, records(0, 20, epoch=2) + records(20, 50))
    world.metadata.log_start = 30
    world.metadata.default_high = 50
    with world.agent(freshness=FRESHNESS, tail_after="1d") as agent:
        tick(agent)
        assert "below the first epoch" in (error(agent) or "")
        agent.upload_once()
        assert packs(world) == []
        assert world.watermark()[1].next_offset == 50
        append(partition, 0, records(50, 60))
        world.metadata.default_high = 60
        tick(agent)
        no_errors(agent)
    assert spans(world) == [(50, 60)]


# -- lineages ----------------------------------------------------------------------------------------------------------


def test_a_batch_that_is_not_on_the_lineage_is_not_packed(world: World) -> None:
    """A deposed broker has truncated and fetched; its last high watermark is of before."""
    world.begins_epochs = False
    world.disk.partition().segment(0, records(0, 30) + records(30, 50, epoch=4))
    pack_once(world, 50)
    assert packs(world) == []


def test_a_batch_of_an_epoch_that_has_ended_before_it_is_not_packed(world: World) -> None:
    """What an unclean election has cut off, and the broker has not truncated yet."""
    world.begins_epochs = False
    world.disk.partition().lineage([(3, 0), (5, 30)]).segment(0, records(0, 50))
    world.metadata.leads = {T: Led(5, ID)}
    pack_once(world, 50)
    assert packs(world) == []


def test_a_lineage_that_changes_during_the_read_discards_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = world.disk.partition().segment(0, records(0, 50))
    finish = SegmentScanner.finish

    def elected(self: SegmentScanner, **options: bool) -> SegmentSummary:
        partition.lineage([(3, 0), (4, 30)])
        return finish(self, **options)

    monkeypatch.setattr("uploader_agent.packs.reading.SegmentScanner.finish", elected)
    pack_once(world, 50)
    assert packs(world) == []


def test_nothing_is_packed_before_the_log_has_begun_the_epoch(world: World) -> None:
    world.begins_epochs = False
    world.disk.partition().segment(0, records(0, 50))
    world.metadata.leads = {T: Led(4, ID)}
    pack_once(world, 50)
    assert packs(world) == []


# -- the store ---------------------------------------------------------------------------------------------------------


def test_the_head_names_no_pack_that_is_not_stored(world: World) -> None:
    world.disk.partition().segment(0, records(0, 50))
    lost = UnknownOutcome("pack", "told so")
    with failing(world, lambda operation, key: operation in {"put", "head"} and key.endswith(".pack"), lost):
        pack_once(world, 50)
    assert entries(world) == []
    pack_once(world, 50)
    assert content(world) == records(0, 50)


def test_a_pack_whose_reply_is_lost_is_read_back(world: World) -> None:
    world.disk.partition().segment(0, records(0, 50))

    def lose(_operation: str, key: str) -> None:
        if key.endswith(".pack") or "_heads" in key:
            raise UnknownOutcome(key, "told so")

    world.store.after = lose
    pack_once(world, 50)
    assert spans(world) == [(0, 50)]
    assert content(world) == records(0, 50)


def test_a_head_that_another_process_wrote_is_read_again(world: World) -> None:
    """Or a write whose reply was lost: its entries stay, and the chain goes on from them."""
    partition = world.disk.partition().segment(0, records(0, 30))
    world.metadata.default_high = 30
    with world.agent(freshness=FRESHNESS) as first, world.agent(freshness=FRESHNESS) as second:
        tick(first)
        append(partition, 0, records(30, 40))
        world.metadata.default_high = 40
        tick(second)
        append(partition, 0, records(40, 50))
        world.metadata.default_high = 50
        tick(first)
        assert entries(world)[0].tail_end == 40, "the head was another one"
        tick(first)
    assert entries(world)[0].tail_end == 50
    assert content(world) == records(0, 50)


def test_a_head_is_read_again_after_an_error_that_does_not_say_whether_it_was_written(world: World) -> None:
    partition = world.disk.partition().segment(0, records(0, 30))
    world.metadata.default_high = 30

    def odd(operation: str, key: str) -> None:
        if operation == "put" and "_heads" in key:
            raise RuntimeError("what no client library promised to raise")

    with world.agent(freshness=FRESHNESS) as agent:
        world.store.after = odd
        tick(agent)
        world.store.after = lambda _operation, _key: None
        assert len(entries(world)) == 1
        partition.roll(30)
        agent.upload_once()
        look_after_heads(agent)
    assert entries(world) == [], "although there was nothing new to pack"


def test_a_failed_tick_is_repeated(world: World) -> None:
    partition = world.disk.partition().segment(0, records(0, 30))
    world.metadata.default_high = 30
    with world.agent(freshness=FRESHNESS) as agent:
        tick(agent)
        append(partition, 0, records(30, 50))
        world.metadata.default_high = 50
        with failing(world, lambda operation, key: operation == "put" and "_heads" in key, UnknownOutcome("h", "cut")):
            tick(agent)
        assert entries(world)[0].tail_end == 30
        append(partition, 0, records(50, 60))
        world.metadata.default_high = 60
        tick(agent)
    assert content(world) == records(0, 60)
    assert spans(world) == [(0, 30), (30, 50), (30, 60)], "nobody reads the pack of the failed tick"


def test_one_partition_that_fails_holds_up_no_other(world: World) -> None:
    damaged = bytearray(records(0, 30))
    damaged[-3] ^= 1
    world.disk.partition().segment(0, bytes(damaged))
    world.disk.partition(OTHER).segment(0, records(0, 50))
    world.metadata.leads[OTHER] = Led(3, ID)
    agent = pack_once(world, 50)
    assert "checksum" in (error(agent) or "")
    assert content(world, OTHER) == records(0, 50)


def test_a_kill_before_any_write_costs_nothing(tmp_path: Path, rng: random.Random, full: bool) -> None:
    """Whichever write of claims, packs, heads and seals was the last one."""
    numbers = range(1, 17)
    for number in numbers if full else rng.sample(numbers, 5):
        world = World(tmp_path / str(number))
        partition = world.disk.partition().segment(0, records(0, 30))
        world.metadata.default_high = 30
        writes: list[str] = []

        def before(operation: str, key: str, writes: list[str] = writes, number: int = number) -> None:
            if operation == "put":
                writes.append(key)
                if len(writes) >= number:
                    raise UnknownOutcome(key, "killed")

        world.store.before = before
        with world.agent(freshness=FRESHNESS) as agent:
            tick(agent)
            append(partition, 0, records(30, 50))
            world.metadata.default_high = 50
            tick(agent)
            partition.roll(50)
            agent.upload_once()
        world.store.before = lambda _operation, _key: None
        append(partition, 50, records(50, 60))
        pack_once(world, 60)
        assert content(world) == records(0, 60), (number, writes)
        with world.agent(freshness=FRESHNESS, tail_after="0s") as agent:
            agent.upload_once()
            no_errors(agent)
        assert content(world) == records(0, 60), (number, writes)
        assert world.watermark()[1].next_offset == 60, (number, writes)


# -- limits ------------------------------------------------------------------------------------------------------------


def test_a_line_that_would_be_too_long_ends_the_range_earlier(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uploader_agent.packs.reading.MOST_LINE", 900)
    monkeypatch.setattr("uploader_agent.packs.reading._FEW", 0)
    data = b"".join(transactional(base, base, 1) for base in range(20))
    world.disk.partition().segment(0, data)
    agent = pack_once(world, 20)
    [first, *_] = packs(world)
    assert first.range.first == 0
    assert 0 < first.range.next < 20
    assert agent.leadership.partitions[T].packed.tail.seal_to == 20, "what does not fit at all is sealed"


@pytest.mark.parametrize("limit", ["MOST_UNSEALED_RANGES", "MOST_UNSEALED_BYTES", "MOST_UNSEALED_AGE"])
def test_a_partition_is_sealed_when_much_of_it_is_packed(
    world: World, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Although its segment is active, and up to the end of what is packed."""
    size = len(records(0, 30))
    few = {"MOST_UNSEALED_RANGES": 2, "MOST_UNSEALED_BYTES": 2 * size, "MOST_UNSEALED_AGE": timedelta()}
    monkeypatch.setattr(packer_module, limit, few[limit])
    partition = world.disk.partition().segment(0, records(0, 30))
    world.metadata.default_high = 30
    with world.agent(freshness=FRESHNESS, tail_after="1d") as agent:
        tick(agent)
        append(partition, 0, records(30, 60))
        world.metadata.default_high = 60
        tick(agent)
        append(partition, 0, records(60, 70))
        world.metadata.default_high = 70
        agent.upload_once()
        assert world.watermark()[1].next_offset == 60
        parts = world.manifest(0).parts
        assert [(one.first, one.next, one.crc32c) for one in parts] == [
            (one.range.first, one.range.next, one.range.crc32c) for one in packs(world)
        ]
    with world.agent(freshness=FRESHNESS) as agent:
        tick(agent)
    assert content(world) == records(0, 70)
    assert [(one.tail_end, one.ranges) for one in entries(world)] == [(70, 1)]


def test_a_partition_that_is_sealed_as_often_is_not_packed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two ticks it gets more than may be packed of it: its bytes would go twice."""
    monkeypatch.setattr(packer_module, "MOST_UNSEALED_BYTES", len(records(0, 30)))
    partition = world.disk.partition().segment(0, records(0, 20))
    with world.agent(freshness=FRESHNESS, tail_after="1d") as agent:
        world.metadata.default_high = 20
        tick(agent)
        append(partition, 0, records(20, 60))
        world.metadata.default_high = 60
        tick(agent)
        assert spans(world) == [(0, 20)]
        agent.upload_once()
    assert world.watermark()[1].next_offset == 60
    assert content(world) == records(0, 60)


def test_a_chain_does_not_become_longer_than_readers_take(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """However late the seals are."""
    monkeypatch.setattr(packer_module, "MOST_CHAIN", 2)
    partition = world.disk.partition().segment(0, b"")
    with world.agent(freshness=FRESHNESS, tail_after="1d") as agent:
        for end in (10, 20, 30, 40):
            append(partition, 0, records(end - 10, end))
            world.metadata.default_high = end
            tick(agent)
        assert spans(world) == [(0, 10), (10, 20)]
        assert "seals are late" in (error(agent) or "")
        agent.upload_once()
        tick(agent)
    assert content(world) == records(0, 40)


def test_a_batch_that_no_pack_takes_is_sealed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uploader_agent.packs.reading.MOST_BYTES", 10)
    world.disk.partition().segment(0, records(0, 30))
    world.metadata.default_high = 30
    with world.agent(freshness=FRESHNESS, tail_after="1d") as agent:
        tick(agent)
        assert "is sealed" in (error(agent) or "")
        agent.upload_once()
    assert packs(world) == []
    assert world.watermark()[1].next_offset == 30


def test_with_as_many_tails_as_there_may_be_it_is_sealed_first(world: World) -> None:
    partition = world.disk.partition().segment(0, records(0, 30))
    with world.agent(freshness=FRESHNESS, tail_after="1d") as agent:
        tick(agent)
    many = tuple((3, broker) for broker in range(100, 100 + MOST_TAILS))
    base, written = world.watermark()
    world.store.inner.put(world.keys().watermark, render(base, written.model_copy(update={"tails": many})))
    before = len(packs(world))
    append(partition, 0, records(30, 50))
    world.metadata.leads, world.metadata.default_high = {T: Led(4, ID)}, 50
    with world.agent(freshness=FRESHNESS, tail_after="1d") as agent:
        tick(agent)
        assert len(packs(world)) == before
        agent.upload_once()
        assert world.watermark()[1].next_offset == 50
        append(partition, 0, records(50, 60, epoch=4))
        world.metadata.default_high = 60
        tick(agent)
        tick(agent)
    assert world.watermark()[1].tails == ((4, 1),)
    assert spans(world)[-1] == (50, 60)


def test_what_is_sealed_leaves_the_head(world: World) -> None:
    partition = world.disk.partition().segment(0, records(0, 30))
    world.disk.partition(OTHER).segment(0, records(0, 30))
    world.metadata.leads[OTHER] = Led(3, ID)
    world.metadata.default_high = 30
    with world.agent(freshness=FRESHNESS) as agent:
        tick(agent)
        partition.roll(30)
        agent.upload_once()
        look_after_heads(agent)
    assert [entry.partition for entry in entries(world)] == [OTHER.partition]


def test_an_entry_stays_while_a_hole_is_below_the_seals(world: World) -> None:
    """The packs that it names are all that is left of the hole."""
    partition = world.disk.partition().segment(0, records(0, 50))
    pack_once(world, 50)
    partition.snapshot(50)
    partition.segment(50, records(50, 80)).roll(80)
    world.metadata.default_high = 80
    first = world.keys().segment(SegmentName(0), "log")
    with (
        failing(world, lambda operation, key: (operation, key) == ("put", first), UnknownOutcome(first, "told so")),
        world.agent(freshness=FRESHNESS) as agent,
    ):
        agent.upload_once()
        assert (world.watermark()[1].next_offset, world.stored(50)) == (0, records(50, 80))
        tick(agent)
        look_after_heads(agent)
    assert [entry.tail_end for entry in entries(world)] == [50]
    remove(partition, 0)
    world.metadata.log_start = 50
    no_errors(world.once(freshness=FRESHNESS))
    assert world.watermark()[1].gaps == ()
    assert world.stored(0) == records(0, 50)


def test_an_entry_stays_until_offset_wm_says_what_is_sealed(world: World) -> None:
    """Readers look at the heads, and then at the seals that ``offset.wm`` has."""
    partition = world.disk.partition().segment(0, records(0, 50))
    pack_once(world, 50)
    partition.roll(50)
    key = world.keys().watermark
    with world.agent(freshness=FRESHNESS) as agent:
        with failing(world, lambda operation, name: (operation, name) == ("put", key), UnknownOutcome(key, "told so")):
            agent.upload_once()
        assert world.stored(0) == records(0, 50)
        look_after_heads(agent)
    assert [entry.tail_end for entry in entries(world)] == [50]


def test_ranges_of_a_deleted_topic_are_not_those_of_the_new_one(world: World) -> None:
    pack_and_create_again(world)
    pack_once(world, 30)
    assert {one.topic_id for one in entries(world)} == {ID, OTHER_ID}, "the other one is still needed"
    assert content(world, place=f"orders@{OTHER_ID}") == records(0, 30, value="new")
