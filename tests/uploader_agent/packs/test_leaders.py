"""What a new leader makes of the tails of former ones, and what becomes of tails that nobody leads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.txn_index import txn_entries
from tests.tidemark.kafka_log.build import Record, batch, marker, transactional
from tests.uploader_agent.fakes import ID, OTHER_ID, FakePartition, T, World, records
from tests.uploader_agent.packs.packing import (
    FRESHNESS,
    append,
    care,
    content,
    entries,
    failing,
    look_after_heads,
    pack_and_create_again,
    pack_once,
    packs,
    pieces,
    seals,
    spans,
    tick,
)
from tests.uploader_agent.repair.test_gaps import gap_reasons
from tests.uploader_agent.test_agent import no_errors, remove
from tests.uploader_agent.tested_agent import TestedAgent
from tidemark.errors import AccessDenied, SlowDown, UnknownOutcome
from tidemark.formats.keys import SegmentName
from tidemark.formats.raw.watermark_index import IndexEntry, WatermarkIndex
from tidemark.kafka_log import Lineage, scan_batches
from tidemark.storage import PartitionStore
from uploader_agent.broker.admin import Leader, Led
from uploader_agent.disk.segment_files import SegmentChanged
from uploader_agent.packs.tail import Tail, TailSources, TailState
from uploader_agent.stored.watermark import Fenced
from uploader_agent.upload.segment_upload import UploadRoute


@pytest.fixture
def second(world: World) -> World:
    """Broker 1 has packed [0, 50) under epoch 3; broker 2 leads since under epoch 4, and has as much."""
    world.disk.partition().segment(0, records(0, 50))
    pack_once(world, 50)
    found = world.another(2, leads={T: Led(4, ID)})
    found.disk.partition().segment(0, records(0, 50))
    world.store.puts.clear()
    return found


def lost_leadership(world: World, epoch: int = 4) -> None:
    world.metadata.leads, world.metadata.others = {}, {T: Leader(2, Led(epoch, ID))}


def led_again(world: World, agent: TestedAgent) -> None:
    """Nobody is said to lead for a moment, as when the directory of a log cannot be read; then it is led as before."""
    leads, world.metadata.leads = world.metadata.leads, {}
    agent.refresh()
    agent.components.packs.forget([T])
    world.metadata.leads = leads
    agent.refresh()


def test_a_tick_that_failed_is_not_repeated_for_a_partition_that_was_left(world: World) -> None:
    """It has the same entry in the head as the object that followed it, and knows less of it."""
    partition = world.disk.partition().segment(0, records(0, 30))
    world.metadata.default_high = 30
    with world.agent(freshness=FRESHNESS) as agent:
        tick(agent)
        former = agent.leadership.partitions[T]
        packer = agent.components.packs.of(former.bucket).packer
        append(partition, 0, records(30, 50))
        world.metadata.default_high = 50
        agent.refresh()
        with failing(world, lambda _, key: key.endswith(".pack"), SlowDown("pack", "busy")):
            packer.backlog.add([former])
            again = packer.pack([former])
        assert again == [former]
        led_again(world, agent)
        append(partition, 0, records(50, 70))
        world.metadata.default_high = 70
        tick(agent)
        assert entries(world)[0].tail_end == 70
        packer.backlog.add(again)
        assert packer.pack(again) == []
        assert entries(world)[0].tail_end == 70, "readers have seen it"
        assert packer.backlog.stalled() is None
    assert content(world) == records(0, 70)


def test_a_tick_names_nothing_of_a_partition_that_is_left_meanwhile(world: World) -> None:
    """The object that follows seals without knowing that batches were being packed."""
    world.disk.partition().segment(0, records(0, 50))
    world.metadata.default_high = 50
    with world.agent(freshness=FRESHNESS) as agent:

        def leave(operation: str, key: str) -> None:
            if operation == "put" and key.endswith(".pack"):
                world.store.before = lambda _operation, _key: None
                led_again(world, agent)

        world.store.before = leave
        tick(agent)
        assert (len(packs(world)), entries(world)) == (1, [])
        tick(agent)
        assert entries(world)[0].tail_end == 50
    assert content(world) == records(0, 50)


def test_a_failure_of_a_partition_that_is_left_meanwhile_is_none(world: World) -> None:
    """The trouble was over when the partition was left, and would never be again."""
    world.disk.partition().segment(0, records(0, 50))
    world.metadata.default_high = 50
    with world.agent(freshness=FRESHNESS) as agent:

        def leave(operation: str, key: str) -> None:
            if operation == "put" and key.endswith(".pack"):
                world.metadata.leads = {}
                agent.refresh()
                agent.components.packs.forget([T])
                raise AccessDenied(key, "told so")

        world.store.before = leave
        tick(agent)
        assert not agent.metrics.registry.get_sample_value("tidemark_agent_store_refused")


def test_a_tail_of_former_leaders_is_not_known_before_their_heads_are_read() -> None:
    """A restarted agent trusts its index, which had the end of their tail; its own head has no entry."""
    packed = TailState()
    packed.trust(50)
    assert (packed.tail.known, packed.tail.end, packed.tail.agrees(None)) == (True, 50, False)
    packed.resume(None)
    assert (packed.tail.known, packed.tail.end) == (False, 0)


def test_a_new_leader_goes_on_where_the_former_one_has_packed(world: World, second: World) -> None:
    second.disk.partition().lineage([(3, 0), (4, 50)]).segment(0, records(0, 50) + records(50, 70, epoch=4))
    pack_once(second, 70)
    assert spans(world) == [(0, 50), (50, 70)], "not packed again"
    assert world.watermark()[1].tails == ((3, 1), (4, 2))
    assert content(world) == records(0, 50) + records(50, 70, epoch=4)


def test_heads_are_read_after_the_claim(world: World, second: World) -> None:
    """What a reader has accepted from a former leader before the claim is in place by then."""
    seen: list[str] = []
    world.store.before = lambda operation, key: seen.append(f"{operation} {key}")
    pack_once(second, 50)
    claim = seen.index(f"put {world.keys().watermark}")
    assert f"get {world.control.head(1)}" in seen[claim:]
    assert f"get {world.control.head(1)}" not in seen[:claim]


def test_a_leader_that_cannot_claim_knows_that_nothing_is_packed(world: World) -> None:
    """Otherwise nobody would be told that its rotated segment is not stored."""
    world.disk.partition().segment(0, records(0, 30)).roll(30)
    watermark = world.keys().watermark
    with failing(world, lambda operation, key: (operation, key) == ("put", watermark), AccessDenied(watermark, "x")):
        found = world.once(freshness=FRESHNESS).leadership.partitions[T]
        assert not found.uploader.claimed
        assert (found.packs_known, found.stored_end) == (True, 0)


def test_a_leader_that_cannot_claim_says_what_is_stored_of_its_own_log(world: World) -> None:
    """An election has cut off what ``offset.wm`` says from 10 on, and the gap behind that."""
    world.disk.partition().segment(0, records(0, 20)).fill(30, end=50)
    world.metadata.log_start, world.metadata.default_high = 0, 50
    world.once()
    assert (world.watermark()[1].next_offset, gap_reasons(world)) == (20, [(20, 30, "corrupt")])
    second = world.another(2, leads={T: Led(4, ID)})
    second.disk.partition().lineage([(3, 0), (4, 10)]).segment(0, records(0, 10) + records(10, 40, epoch=4))
    second.metadata.default_high = 40
    watermark = world.keys().watermark
    with (
        failing(second, lambda operation, key: (operation, key) == ("put", watermark), AccessDenied(watermark, "x")),
        second.agent(freshness=FRESHNESS) as agent,
    ):
        tick(agent)
        entry = said(agent, second)
    assert (entry.leader_epoch, entry.next_offset, entry.gaps) == (4, 10, ())


def test_what_a_leader_said_before_its_claim_is_not_trusted_after_a_restart(world: World) -> None:
    """An election has cut off what its log lacks, and nothing else is to be stored: it would never claim."""
    world.disk.partition().segment(0, records(0, 20))
    world.metadata.default_high = 20
    world.once(tail_after="0s")
    second = world.another(2, leads={T: Led(4, ID)})
    second.disk.partition().lineage([(3, 0), (4, 10)]).segment(0, records(0, 10))
    second.metadata.default_high = 10
    watermark = world.keys().watermark
    with (
        failing(second, lambda operation, key: (operation, key) == ("put", watermark), AccessDenied(watermark, "x")),
        second.agent() as agent,
    ):
        agent.refresh()
        with pytest.raises(AccessDenied):
            agent.leadership.partitions[T].uploader.claim()
        entry = said(agent, second)
    assert (entry.next_offset, entry.uploaded_end, entry.packs_known) == (10, 10, False)
    with second.agent() as agent:
        agent.refresh()
        again = agent.leadership.partitions[T]
        again.trust_index(entry)
        assert not again.remote.log.known


def test_nothing_is_surveyed_before_the_log_has_begun_the_epoch(world: World, second: World) -> None:
    """Broker 2 had nothing of the log, and metadata names it before it has noted its epoch."""
    world.once(tail_after="0s")
    assert world.watermark()[1].next_offset == 50
    partition = second.disk.partition().lineage([]).segment(0, b"")
    with second.agent() as agent:
        agent.refresh()
        uploader = agent.leadership.partitions[T].uploader
        with pytest.raises(SegmentChanged, match="is None, and not 4"):
            uploader.learn()
        partition.lineage([(4, 0)])
        uploader.claim()
    written = world.watermark()[1]
    assert (written.next_offset, written.lineage) == (0, ((4, 0),))


def test_nothing_is_claimed_once_the_log_follows_a_later_leader(world: World) -> None:
    """The agent has not heard of it, and the lineage is that leader's."""
    partition = world.disk.partition().segment(0, records(0, 50))
    with world.agent() as agent:
        agent.refresh()
        uploader = agent.leadership.partitions[T].uploader
        uploader.learn()
        partition.lineage([(3, 0), (4, 30)])
        with pytest.raises(Fenced, match=r"follows the leader of epoch 4, and this agent.s is 3"):
            uploader.claim()


def test_a_tail_counts_as_far_as_it_is_on_the_lineage(world: World, second: World) -> None:
    """An unclean election has cut off what broker 1 has packed from 30 on."""
    partition = second.disk.partition().lineage([(3, 0), (4, 30)])
    partition.segment(0, records(0, 30) + records(30, 60, epoch=4, value="other"))
    pack_once(second, 60)
    assert spans(world) == [(0, 50), (30, 60)]
    assert [(start, end) for _, start, end in pieces(world)] == [(0, 30), (30, 60)]
    assert [one.range.epochs for one in packs(world)] == [((3, 0),), ((4, 30),)]


def test_a_head_that_cannot_be_read_costs_bytes_alone(world: World, second: World) -> None:
    world.store.inner.put(world.control.head(1), b"{}")
    second.disk.partition().lineage([(3, 0), (4, 50)]).segment(0, records(0, 50) + records(50, 70, epoch=4))
    pack_once(second, 70)
    assert spans(world) == [(0, 50), (0, 70)]


def test_transactions_that_are_open_at_the_end_of_an_inherited_tail(tmp_path: Path) -> None:
    world = World(tmp_path / "one")
    world.disk.partition().segment(0, transactional(0, 7, 10))
    pack_once(world, 10)
    second = world.another(2, leads={T: Led(4, ID)})
    second.disk.partition().segment(0, transactional(0, 7, 10) + marker(10, 7, commit=False))
    pack_once(second, 11)
    assert [(one.producer_id, one.first_offset) for one in packs(world)[-1].range.aborts] == [(7, 0)]


def test_a_seal_lists_the_ranges_of_former_leaders_and_drops_their_tails(world: World, second: World) -> None:
    partition = second.disk.partition().lineage([(3, 0), (4, 50)])
    append(partition, 0, records(50, 70, epoch=4))
    second.metadata.default_high = 70
    with second.agent(freshness=FRESHNESS, tail_after="1d") as agent:
        tick(agent)
        partition.roll(70)
        agent.upload_once()
        no_errors(agent)
        look_after_heads(agent)
    assert [(one.first, one.next) for one in world.manifest(0).parts] == [(0, 50), (50, 70)]
    assert world.watermark()[1].tails == ((4, 2),), "the end of epoch 3 is sealed; epoch 4 has none"
    assert entries(world, 2) == []


def test_an_entry_of_a_former_leadership_stays_until_its_epoch_is_sealed(world: World, second: World) -> None:
    lost_leadership(world)
    with world.agent(freshness=FRESHNESS) as agent:
        agent.refresh()
        care(agent, 3)
        assert len(entries(world)) == 1
        assert agent.components.packs.of_other_leaderships == {T}
        second.disk.partition().lineage([(3, 0), (4, 50)])
        pack_once(second, 50)
        care(agent)
        assert len(entries(world)) == 1, "also over a restart, and when another leader goes on"
        second.once(tail_after="0s")
        care(agent, 2)
    assert entries(world) == []
    assert content(world) == records(0, 50)


def test_a_tail_that_the_log_has_left_is_sealed_on_its_own_branch(world: World, second: World) -> None:
    """The log may return to it, after another unclean election."""
    partition = second.disk.partition().lineage([(3, 0), (4, 30)])
    partition.segment(0, records(0, 30) + records(30, 60, epoch=4, value="other")).roll(60)
    second.metadata.default_high = 60
    second.once()
    lost_leadership(world)
    with world.agent(freshness=FRESHNESS) as agent:
        agent.refresh()
        care(agent, 3)
    assert entries(world) == []
    assert [(one.base, one.end) for one in seals(world)] == [(0, 60), (30, 50)]
    assert world.stored(30) == records(30, 50)


def test_what_is_open_where_the_log_left_a_tail_is_known_from_the_seal_of_the_new_branch(world: World) -> None:
    """Retention may have removed the pack with the range before."""
    partition = world.disk.partition().segment(0, transactional(0, 7, 10))
    pack_once(world, 10)
    append(partition, 0, records(10, 30) + marker(30, 7, commit=False) + records(31, 50))
    pack_once(world, 50)
    world.store.inner.delete(packs(world)[0].key)
    second = world.another(2, leads={T: Led(4, ID)})
    partition = second.disk.partition().lineage([(3, 0), (4, 30)])
    partition.segment(0, transactional(0, 7, 10) + records(10, 30) + records(30, 60, epoch=4)).roll(60)
    second.metadata.default_high = 60
    second.once()
    lost_leadership(world)
    with world.agent(freshness=FRESHNESS) as agent:
        agent.refresh()
        care(agent, 3)
    assert [(one.base, one.end) for one in seals(world)] == [(0, 60), (30, 50)]
    assert txn_entries(world.stored(30, "txnindex")) == [(7, 0, 30, 31)]


def test_the_tail_of_a_deleted_topic_is_sealed_from_its_packs(world: World) -> None:
    partition = world.disk.partition().segment(0, transactional(0, 7, 10))
    pack_once(world, 10)
    append(partition, 0, marker(10, 7, commit=False) + records(11, 51))
    pack_once(world, 51)
    expected = content(world)
    remove(partition, 0)
    partition.folder.rename(partition.folder.with_name("orders-0.f00-delete"))
    world.metadata.leads = {}
    with world.agent(freshness=FRESHNESS) as agent:
        agent.refresh()
        care(agent, 4)
    assert entries(world) == []
    [seal] = seals(world)
    assert (seal.base, seal.end) == (0, 51)
    assert world.store.inner.get(seal.key).body == expected
    assert seal.aborts is not None, "the index of aborted transactions follows from the bytes"
    written = world.watermark()[1]
    assert (written.next_offset, written.leader_epoch, written.tails) == (51, 3, ())
    assert [(one.first, one.next) for one in world.manifest(0).parts] == [(0, 10), (10, 51)]


def test_what_is_open_where_a_seal_from_packs_begins_is_known_from_the_seal_before(world: World) -> None:
    partition = world.disk.partition().segment(0, transactional(0, 7, 10))
    world.metadata.default_high = 10
    world.once(tail_after="0s")
    append(partition, 0, marker(10, 7, commit=False) + records(11, 31))
    pack_once(world, 31)
    remove(partition, 0)
    partition.folder.rename(partition.folder.with_name("orders-0.f00-delete"))
    world.metadata.leads = {}
    with world.agent(freshness=FRESHNESS) as agent:
        agent.refresh()
        care(agent, 4)
    assert [(one.base, one.end) for one in seals(world)] == [(0, 10), (10, 31)]
    assert txn_entries(world.stored(10, "txnindex")) == [(7, 0, 10, 11)]


def test_the_tail_of_a_topic_that_was_created_again_is_sealed(world: World) -> None:
    pack_and_create_again(world)
    world.metadata.default_high = 30
    with world.agent(freshness=FRESHNESS) as agent:
        tick(agent)
        care(agent, 4)
    assert world.stored(0) == records(0, 50, value="old")
    assert [one.topic_id for one in entries(world)] == [OTHER_ID]


def test_a_topic_that_is_led_elsewhere_is_not_taken_for_deleted(world: World, second: World) -> None:
    lost_leadership(world)
    with world.agent(freshness=FRESHNESS) as agent:
        agent.refresh()
        care(agent, 4)
    assert seals(world) == []
    assert len(entries(world)) == 1


# -- what the local log does not have any more -------------------------------------------------------------------------


def test_bytes_that_the_log_no_longer_has_come_from_the_packs_and_not_into_a_gap(world: World) -> None:
    partition = world.disk.partition().segment(0, records(0, 30))
    pack_once(world, 30)
    append(partition, 0, records(30, 50))
    pack_once(world, 50)
    remove(partition, 0)
    partition.fill(50, end=80)
    world.metadata.log_start, world.metadata.default_high = 50, 80
    no_errors(world.once(freshness=FRESHNESS))
    assert gap_reasons(world) == []
    assert world.stored(0) == records(0, 50)
    assert world.stored(50) == records(50, 80)
    assert world.watermark()[1].next_offset == 80


def test_what_is_open_where_a_lost_range_begins_is_known_from_the_range_before(world: World) -> None:
    """No seal has that yet: its segment waits on the disk."""
    partition = world.disk.partition().segment(0, transactional(0, 7, 10))
    pack_once(world, 10)
    partition.segment(10, marker(10, 7, commit=False) + records(11, 31))
    pack_once(world, 31)
    remove(partition, 10)
    partition.fill(31, end=50)
    world.metadata.default_high = 50
    no_errors(world.once(freshness=FRESHNESS))
    assert gap_reasons(world) == []
    assert [(one.base, one.end) for one in seals(world)] == [(0, 10), (10, 31), (31, 50)]
    assert txn_entries(world.stored(10, "txnindex")) == [(7, 0, 10, 11)]


def test_packed_bytes_below_the_start_to_which_retention_has_cut_the_lineage(world: World) -> None:
    """The agent had them from files that it held. Neither its claim nor its head knows an epoch there."""
    partition = world.disk.partition().fill(0, end=50).segment(50, records(50, 80))
    world.metadata.default_high = 80
    with world.agent(freshness=FRESHNESS, tail_after="1d") as agent:
        agent.refresh()
        partition.retire(0)
        partition.lineage([(3, 50)])
        tick(agent)
    assert [one.lineage for one in entries(world)] == [((3, 50),)]
    assert world.watermark()[1].lineage == ((3, 50),)
    partition.unlink_deleted()
    partition.roll(80)
    world.metadata.log_start = 50
    no_errors(world.once(freshness=FRESHNESS))
    assert gap_reasons(world) == []
    assert content(world) == records(0, 80)


def test_only_what_no_pack_has_is_a_gap(world: World) -> None:
    partition = world.disk.partition().segment(0, records(0, 30))
    pack_once(world, 30)
    remove(partition, 0)
    partition.fill(50, end=80)
    world.metadata.log_start, world.metadata.default_high = 50, 80
    no_errors(world.once(freshness=FRESHNESS))
    assert gap_reasons(world) == [(30, 50, "deleted_before_upload")]
    assert world.stored(0) == records(0, 30)


def test_a_seal_of_another_branch_fills_no_gap_below_the_start_to_which_retention_has_cut_the_lineage(
    world: World,
) -> None:
    """``offset.wm`` has what the log has forgotten."""
    world.disk.partition().segment(0, records(0, 20))
    world.metadata.default_high = 20
    world.once(tail_after="0s")
    second = world.another(2, leads={T: Led(4, ID)})
    partition = second.disk.partition().lineage([(4, 0)]).segment(0, records(0, 30, epoch=4))
    with second.agent() as agent:
        agent.refresh()
        agent.leadership.partitions[T].uploader.claim()
    remove(partition, 0)
    partition.lineage([(4, 30)])
    partition.segment(30, b"")
    second.metadata.log_start, second.metadata.default_high = 30, 30
    second.once()
    assert gap_reasons(world) == [(0, 30, "deleted_before_upload")]


def test_heads_of_all_tails_are_read_before_a_gap(world: World, second: World) -> None:
    """Broker 1 has packed what broker 2 no longer has."""
    partition = second.disk.partition()
    remove(partition, 0)
    partition.lineage([(3, 50), (4, 60)])
    partition.segment(50, records(50, 60) + records(60, 80, epoch=4)).roll(80)
    second.metadata.log_start, second.metadata.default_high = 50, 80
    no_errors(second.once(freshness=FRESHNESS))
    assert gap_reasons(world) == []
    assert world.stored(0) == records(0, 50)


def test_what_an_election_has_cut_off_is_not_sealed_from_packs(world: World, second: World) -> None:
    partition = second.disk.partition()
    remove(partition, 0)
    partition.lineage([(3, 0), (4, 30)])
    partition.segment(40, records(40, 80, epoch=4)).roll(80)
    second.metadata.log_start, second.metadata.default_high = 40, 80
    no_errors(second.once(freshness=FRESHNESS))
    assert world.stored(0) == records(0, 30)
    assert gap_reasons(world) == [(30, 40, "deleted_before_upload")]


def test_a_run_from_packs_ends_before_a_hole(world: World, second: World) -> None:
    """A pack is gone, and nobody knows which transactions are open behind it."""
    partition = second.disk.partition().lineage([(3, 0), (4, 50)])
    for start, end in ((50, 60), (60, 80)):
        append(partition, 0, records(start, end, epoch=4))
        pack_once(second, end)
    assert spans(world) == [(0, 50), (50, 60), (60, 80)]
    world.store.inner.delete(packs(world)[1].key)
    remove(partition, 0)
    partition.segment(80, records(80, 100, epoch=4)).roll(100)
    second.metadata.log_start, second.metadata.default_high = 80, 100
    no_errors(second.once(freshness=FRESHNESS))
    assert (world.manifest(0).next_offset, world.stored(0)) == (50, records(0, 50))
    assert gap_reasons(world) == [(50, 80, "deleted_before_upload")]


def test_what_a_former_leader_packs_until_the_claim_is_no_gap(world: World, second: World) -> None:
    """Its head is read after the claim, and no gap is recorded before."""
    former, partition = world.disk.partition(), second.disk.partition()
    remove(partition, 0)
    partition.lineage([(3, 80), (4, 90)])
    partition.segment(80, records(80, 90) + records(90, 100, epoch=4)).roll(100)
    second.metadata.log_start, second.metadata.default_high = 80, 100

    def pack_before_the_claim(operation: str, key: str) -> None:
        if (operation, key) == ("put", world.keys().watermark):
            world.store.before = lambda _operation, _key: None
            append(former, 0, records(50, 70))
            pack_once(world, 70)

    world.store.before = pack_before_the_claim
    no_errors(second.once(freshness=FRESHNESS))
    assert gap_reasons(world) == [(70, 80, "deleted_before_upload")]
    assert world.stored(0) == records(0, 70)


@pytest.mark.parametrize("broker", [1, 3], ids=["the broker that packed it", "another replica"])
def test_a_log_that_returns_to_a_branch_finds_what_was_packed_there(world: World, second: World, broker: int) -> None:
    """A leader of another branch has dropped the tail from ``offset.wm``, and nobody has sealed it yet."""
    second.disk.partition().lineage([(4, 0)]).segment(0, records(0, 20, epoch=4, value="other")).roll(20)
    second.metadata.default_high = 20
    second.once()
    assert world.watermark()[1].tails == ()
    third = world.another(broker, leads={T: Led(5, ID)}, replicas=(1, 2, 3))
    partition = third.disk.partition()
    if broker == 1:
        remove(partition, 0)
    partition.lineage([(3, 40), (5, 50)])
    partition.segment(40, records(40, 50) + records(50, 80, epoch=5)).roll(80)
    third.metadata.log_start, third.metadata.default_high = 40, 80
    no_errors(third.once(freshness=FRESHNESS))
    assert gap_reasons(world) == []
    assert content(world) == records(0, 50) + records(50, 80, epoch=5)


# -- what compaction has removed since ---------------------------------------------------------------------------------


@pytest.fixture
def compacted(world: World) -> World:
    """[0, 20), [20, 40) and [40, 50) are packed of a compacted topic, in segments that begin at 0."""
    partition = world.disk.partition()
    world.metadata.policy = "compact"
    partition.segment(0, b"")
    for start, end in ((0, 20), (20, 40), (40, 50)):
        append(partition, 0, records(start, end))
        pack_once(world, end)
    return world


def new_leader(world: World, start: int) -> tuple[World, FakePartition]:
    """Broker 2, which leads the compacted topic under epoch 4 from the offset ``start`` on, and its partition."""
    found = world.another(2, leads={T: Led(4, ID)})
    found.metadata.policy = "compact"
    partition = found.disk.partition().lineage([(3, 0), (4, start)])
    return found, partition


def sealed_batches(world: World) -> list[tuple[int, int]]:
    """The offsets and record counts of all batches in the partition's segments."""
    found: list[tuple[int, int]] = []
    for seal in seals(world):
        body = world.store.inner.get(seal.key).body
        found += [(header.base_offset, header.record_count) for header in scan_batches([body], seal.key, seal.base)]
    return found


ALL = [(offset, 10) for offset in range(0, 50, 10)]
"""The batches that were packed of the compacted topic, by base offset and number of records."""


def test_what_compaction_has_removed_since_is_sealed_from_the_packs(world: World) -> None:
    """Otherwise a rebuild from raw would find fewer rows than have landed."""
    partition = world.disk.partition()
    world.metadata.policy = "compact"
    partition.segment(0, records(0, 50))
    pack_once(world, 50)
    partition.segment(0, records(0, 10) + records(30, 40) + records(50, 60)).roll(60)
    world.metadata.default_high = 60
    agent = world.once(freshness=FRESHNESS)
    no_errors(agent)
    assert world.stored(0) == records(0, 50)
    assert world.stored(50) == records(50, 60)
    assert [(part.first, part.next) for part in world.manifest(0).parts] == [(0, 50)]
    assert world.manifest(0).compacted


@pytest.mark.parametrize("leader", ["the broker that packed", "a new leader"])
@pytest.mark.parametrize(
    "left",
    [
        records(0, 10) + records(30, 50),
        records(0, 30),
        records(0, 20),
        b"",
        records(40, 50),
        records(0, 30) + batch(30, [Record(9)], last_offset_delta=9),
    ],
    ids=["in its middle", "at its end", "of its last ranges", "in all of it", "at its start", "in its last batch"],
)
def test_a_segment_that_compaction_has_emptied_is_sealed_from_the_packs(
    compacted: World, left: bytes, leader: str
) -> None:
    """A seal accounts for the offsets up to the next segment, whatever batches are left."""
    world, epoch = compacted, 3
    if leader == "a new leader":
        world, epoch = compacted.another(2, leads={T: Led(4, ID)}), 4
        world.metadata.policy = "compact"
    partition = world.disk.partition().lineage([(3, 0), (4, 50)] if epoch == 4 else [(3, 0)]).segment(0, left)
    partition.segment(50, records(50, 60, epoch=epoch)).roll(60)
    world.metadata.default_high = 60
    for _ in range(2):
        no_errors(world.once(freshness=FRESHNESS))
    assert sealed_batches(world) == [*ALL, (50, 10)]
    assert world.watermark()[1].next_offset == 60
    found = [(part.first, part.next) for seal in seals(world) for part in world.manifest(seal.base).parts]
    assert sorted(found) == [(0, 20), (20, 40), (40, 50)], "retention may delete the packs"


@pytest.mark.parametrize("left", [records(40, 50), b""], ids=["with a batch above", "without one"])
def test_a_range_that_reaches_over_the_end_of_a_segment_is_looked_into(compacted: World, left: bytes) -> None:
    """Another replica rolls elsewhere: its segments end within ranges, and compaction has emptied one of them there."""
    world, partition = new_leader(compacted, 50)
    partition.segment(0, records(0, 20))
    partition.segment(30, left)
    partition.segment(50, records(50, 60, epoch=4)).roll(60)
    world.metadata.default_high = 60
    for _ in range(3):
        no_errors(world.once(freshness=FRESHNESS))
    assert sealed_batches(world) == [*ALL, (50, 10)]


def test_packs_that_hold_no_more_than_a_compacted_segment_leave_it_as_it_is(compacted: World) -> None:
    """A range reaches over its end: the segment is sealed whole, with what it has and packs do not."""
    world, partition = new_leader(compacted, 50)
    partition.segment(0, records(0, 30))
    partition.segment(30, records(30, 50) + records(50, 60, epoch=4)).roll(60)
    world.metadata.default_high = 60
    no_errors(world.once(freshness=FRESHNESS))
    assert [(seal.base, seal.end) for seal in seals(world)] == [(0, 30), (30, 60)]
    assert sealed_batches(world) == [*ALL, (50, 10)]


def test_packs_of_a_branch_that_the_log_has_left_add_nothing(compacted: World) -> None:
    world, partition = new_leader(compacted, 30)
    partition.segment(0, records(0, 10))
    partition.segment(40, records(40, 60, epoch=4, value="other")).roll(60)
    world.metadata.default_high = 60
    for _ in range(2):
        no_errors(world.once(freshness=FRESHNESS))
    assert sealed_batches(world) == [*ALL[:3], (40, 10), (50, 10)]
    assert content(world) == records(0, 30) + records(40, 60, epoch=4, value="other")


def test_what_the_log_has_below_the_first_fuller_range_is_sealed_by_itself(compacted: World) -> None:
    """So that a large segment is not copied to memory for a range at its end."""
    compacted.disk.partition().segment(0, records(0, 30)).roll(50)
    for _ in range(2):
        no_errors(compacted.once(freshness=FRESHNESS))
    assert [(seal.base, seal.end) for seal in seals(compacted)] == [(0, 20), (20, 50)]
    assert sealed_batches(compacted) == ALL


def test_a_chain_is_read_as_far_down_as_the_lowest_run_needs(compacted: World) -> None:
    """Several workers seal runs of one partition, and the upper one may come first."""
    route = UploadRoute(T, ID, Path(str(T)), PartitionStore(compacted.store, compacted.keys()), 2)
    sources = TailSources()
    for start, expected in ((40, [40]), (0, [0, 20, 40]), (20, [20, 40])):
        parts = sources.parts(route, Tail(), {1}, Lineage(((3, 0),)), start)
        assert sorted(part.first for part in parts) == expected


@pytest.mark.parametrize("known", [True, False], ids=["with packs", "without packs"])
def test_a_stored_log_that_lacks_what_packs_hold_is_not_adopted(compacted: World, known: bool) -> None:
    """The agent that stored it did not know the packs, and died before its manifest."""
    left = records(0, 10) + records(30, 50)
    compacted.store.inner.put(compacted.keys().segment(SegmentName(0), "log"), left)
    compacted.disk.partition().segment(0, records(0, 50) if known else left).roll(50)
    if not known:
        for info in compacted.store.inner.list(compacted.control.tails):
            compacted.store.inner.delete(info.key)
    for _ in range(2):
        no_errors(compacted.once(freshness=FRESHNESS))
    names = sorted(name for name in compacted.names() if ".log" in name)
    assert (
        names == ["00000000000000000000.log", "00000000000000000000.log-3"] if known else ["00000000000000000000.log"]
    )
    assert sealed_batches(compacted) == (ALL if known else [ALL[0], *ALL[3:]])


def test_what_is_not_read_yet_is_not_said_to_be_unpacked(world: World, second: World) -> None:
    """A new leadership's index says that it does not know where the stored offsets end until it has read the heads."""

    def refuse(operation: str, key: str) -> None:
        if key == world.control.head(1) and operation == "get":
            raise SlowDown(key, "planted")

    second.metadata.default_high = 50
    world.store.before = refuse
    with second.agent(freshness=FRESHNESS) as agent:
        tick(agent)
        assert agent.leadership.partitions[T].uploader.claimed
        before = said(agent, second)
        world.store.before = lambda _operation, _key: None
        for bucket in agent.components.packs.all:
            bucket.packer.forget(T)
        tick(agent)
        after = said(agent, second)
    assert (before.next_offset, before.stored_end, before.oldest_unstored) == (0, None, None)
    assert (after.next_offset, after.stored_end, after.oldest_unstored) == (0, 50, 0.0)


def test_a_packed_tail_is_said_until_offset_wm_has_passed_it(world: World) -> None:
    """Its seal is stored, and ``offset.wm`` does not have it yet."""
    partition = world.disk.partition().segment(0, records(0, 50))
    world.metadata.default_high = 50
    with world.agent(freshness=FRESHNESS) as agent:
        tick(agent)
        partition.roll(50)
        key = world.keys().watermark
        with failing(world, lambda operation, name: (operation, name) == ("put", key), UnknownOutcome(key, "cut")):
            agent.upload_once()
        assert [(one.base, one.end) for one in seals(world)] == [(0, 50)]
        entry = said(agent, world)
    assert (entry.next_offset, entry.uploaded_end, entry.stored_end) == (0, 50, 50)


def test_a_seal_tells_nothing_of_former_leaders_packs_before_offset_wm_has_it(world: World, second: World) -> None:
    second.disk.partition().lineage([(3, 0), (4, 50)]).roll(50)
    second.metadata.default_high = 50
    with second.agent() as agent:
        agent.refresh()
        led = agent.leadership.partitions[T]
        led.uploader.claim()
        [run] = led.work(None)
        key = world.keys().watermark
        with (
            failing(second, lambda operation, name: (operation, name) == ("put", key), UnknownOutcome(key, "cut")),
            pytest.raises(UnknownOutcome),
        ):
            led.uploader.run(run)
        before = said(agent, second)
        led.uploader.publish()
        after = said(agent, second)
    assert (before.next_offset, before.uploaded_end, before.stored_end, after.stored_end) == (0, 50, None, 50)


def test_without_former_leaders_it_is_known_at_once_that_nothing_is_packed(world: World) -> None:
    world.disk.partition().segment(0, records(0, 50))
    world.metadata.default_high = 50
    with world.agent() as agent:
        agent.refresh()
        agent.leadership.partitions[T].uploader.claim()
        assert said(agent, world).stored_end == 0


def said(agent: TestedAgent, world: World) -> IndexEntry:
    """What the agent's index says, written now."""
    agent.index.set_partitions(agent.leadership.partitions.values(), None)
    agent.index.stop(0)  # which writes, for it was never started
    key = world.control.index(world.broker.node_id)
    [entry] = WatermarkIndex.from_bytes(world.store.inner.get(key).body, key).entries
    return entry


def test_a_stored_log_whose_offsets_are_sealed_gets_no_manifest_when_a_hole_is_searched_for(compacted: World) -> None:
    """It lacks what packs held, and the segment with a name of its own has that."""
    compacted.store.inner.put(compacted.keys().segment(SegmentName(0), "log"), records(0, 10) + records(30, 40))
    partition = compacted.disk.partition().segment(0, records(0, 50)).roll(50)
    no_errors(compacted.once(freshness=FRESHNESS))
    remove(partition, 0)
    remove(partition, 50)
    partition.segment(60, records(60, 80)).roll(80)
    compacted.metadata.log_start = 60
    compacted.metadata.default_high = 80
    no_errors(compacted.once(freshness=FRESHNESS))
    assert [(start, end) for start, end, _ in gap_reasons(compacted)] == [(50, 60)]
    manifests = sorted(name for name in compacted.names() if ".manifest.json" in name)
    assert len(manifests) == 2, manifests
    assert "00000000000000000000.manifest.json" not in manifests
