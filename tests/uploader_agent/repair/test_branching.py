"""Going on with the log of a restored broker: one statement, one ``offset.wm``, and both histories in the store."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.uploader_agent.fakes import CLUSTER, ID, FakePartition, T, World, records
from tests.uploader_agent.packs import reader
from tests.uploader_agent.packs.packing import FRESHNESS, append, care, entries, error, pack_once, packs, seals, tick
from tests.uploader_agent.tested_agent import TestedAgent
from tidemark.errors import PreconditionFailed, TidemarkError
from tidemark.formats.keys import SegmentName
from tidemark.formats.raw.watermark import LogRestore, render
from tidemark.intervals import Intervals
from tidemark.kafka_log import scan_batches
from tidemark.planning.maintenance.pack_proof import SETTLED, SealsOfPartition
from tidemark.raw.objects import read_segment
from tidemark.raw.sealed_packs import SealsAround
from tidemark.raw.segments import cover
from tidemark.storage import PartitionStore, Storage, StoredWatermark
from uploader_agent.broker.admin import Leader, Led
from uploader_agent.broker.authority import Authority, MetadataMark
from uploader_agent.repair.branching import Branching, BranchRow, Statement, confirmed
from uploader_agent.repair.reupload import Reupload
from uploader_agent.stored.incarnations import Incarnations

SAID = Statement("ada", "ada@host", "restored a backup")


def restored(world: World, at: int, *bases: int, end: int, value: str = "other", epoch: int = 3) -> FakePartition:
    """The disk with segments at ``bases`` and an active one at ``end``, whose batches are others from ``at`` on."""
    partition = world.disk.partition()
    for path in partition.folder.glob("0*"):
        path.unlink()
    for base, following in pairwise([*bases, end]):
        split = min(max(base, at), following)
        content = records(base, split) + records(split, following, value=value, epoch=epoch)
        partition.segment(base, content)
        partition.snapshot(following)
    return partition.segment(end, b"")


def branching(world: World, epoch: int = 3) -> Branching:
    led = Led(epoch, ID)
    return Branching(T, led, world.disk.log_dirs[0] / str(T), PartitionStore(world.store, world.keys()), 1, ())


def go_on(world: World, **options: bool) -> BranchRow:
    return branching(world).go_on(SAID, lambda: True, **options)


def stored_log(world: World, start: int = 0) -> bytes:
    """What readers of ``offset.wm`` read."""
    keys, store = world.keys(), world.store
    found = PartitionStore(store, keys).watermark()
    assert isinstance(found, StoredWatermark)
    segments = [
        read_segment(PartitionStore(store, keys), listed.name) for listed in PartitionStore(store, keys).manifests()
    ]
    end = found.watermark.next_offset
    pieces, hole = cover([one for one in segments if one], found.lineage, Intervals([(start, end)]))
    assert hole is None
    log = b""
    for segment, first, after in pieces:
        body = store.get(segment.key, if_match=segment.etag).body
        for header in scan_batches([body], segment.key, segment.base):
            if first <= header.base_offset < after:
                log += body[header.position : header.end]
    return log


def read_now(world: World) -> bytes:
    """What readers of heads and ``offset.wm`` read."""
    return reader.content(world.store, reader.pieces(PartitionStore(world.store, world.keys())), 1 << 40)


def errors(agent: TestedAgent) -> dict[str, str]:
    """The errors of an agent's partitions."""
    led = agent.leadership.partitions.values()
    return {str(partition.tp): partition.error for partition in led if partition.error}


def disk_log(partition: FakePartition) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(partition.folder.glob("*.log")))


@pytest.mark.parametrize("at", [0, 50, 100, 150, 200, 290])
@pytest.mark.parametrize(("bases", "end"), [((0, 100, 200, 300), 400), ((0, 130), 500), ((0,), 300)])
def test_the_store_has_the_disks_log_and_still_the_former_one(
    world: World, at: int, bases: tuple[int, ...], end: int
) -> None:
    """Wherever the segments of the restored disk begin and end."""
    world.disk.partition().fill(0, 100, 200, end=300)
    world.once()
    former = {name: world.store.get(world.keys().file(name)).body for name in world.names() if name != "offset.wm"}
    partition = restored(world, at, *bases, end=end)
    row = branching(world).look()
    assert (row.at, row.stored_end, row.log_end, row.outcome) == (at, 300, end, "would branch")
    assert world.watermark()[1].restores == ()
    assert go_on(world).outcome == "branched"
    base, written = world.watermark()
    assert (written.restores, written.next_offset, written.order) == ((at,), at, (1, 3, at))
    assert base == max([one for one in (0, 100, 200) if one < at], default=0)
    agent = world.once()
    assert errors(agent) == {}
    assert world.watermark()[1].next_offset == end
    assert stored_log(world) == disk_log(partition)
    assert former.items() <= {name: world.store.get(world.keys().file(name)).body for name in world.names()}.items()
    assert go_on(world).outcome == "one history", "the command repeated does nothing"
    again = world.names()
    world.once()
    assert world.names() == again


def test_the_statement_says_who_went_on_and_from_what(world: World) -> None:
    world.disk.partition().fill(0, 100, end=200)
    world.once()
    before = world.watermark()[1]
    restored(world, 100, 0, 100, end=250)
    go_on(world)
    said = LogRestore.load(world.store, world.control.restore(T.topic, T.partition, 1))
    assert (said.number, said.start, said.stored_end, said.log_end, said.broker) == (1, 100, 200, 250, 1)
    assert (said.by, said.written_as, said.reason, said.replaced) == (*SAID, before)
    assert "from offset 100 on" in said.difference


@pytest.mark.parametrize("dies_after", ["_restores", "offset.wm"])
def test_killed_after_each_write_it_ends_alike(world: World, dies_after: str) -> None:
    world.disk.partition().fill(0, 100, end=200)
    world.once()
    partition = restored(world, 100, 0, 100, end=250)

    def die(_operation: str, key: str) -> None:
        if dies_after in key:
            raise KeyboardInterrupt

    world.store.after = die
    with pytest.raises(KeyboardInterrupt):
        go_on(world)
    world.store.after = lambda _operation, _key: None
    done = dies_after == "offset.wm"
    assert world.watermark()[1].restores == ((100,) if done else ())
    assert go_on(world).outcome == ("one history" if done else "branched")
    assert world.watermark()[1].restores == (100,)
    world.once()
    assert stored_log(world) == disk_log(partition)


def test_an_offset_wm_that_somebody_has_written_meanwhile_stays(world: World) -> None:
    world.disk.partition().fill(0, 100, end=200)
    world.once()
    restored(world, 100, 0, 100, end=250)
    base, before = world.watermark()

    def write(operation: str, key: str) -> None:
        if "_restores" in key:
            world.store.inner.put(world.keys().watermark, render(base, before.model_copy(update={"broker": 2})))

    world.store.after = write
    with pytest.raises(PreconditionFailed):
        go_on(world)
    assert world.watermark()[1].restores == ()


def test_two_restores(world: World) -> None:
    world.disk.partition().fill(0, 100, 200, end=300)
    world.once()
    restored(world, 200, 0, 100, 200, end=400, value="one")
    go_on(world)
    world.once()
    partition = restored(world, 150, 0, 100, 200, end=350, value="two")
    row = go_on(world)
    assert (row.at, row.stored_end) == (150, 400)
    assert world.watermark()[1].restores == (200, 150)
    assert errors(world.once()) == {}
    assert stored_log(world) == disk_log(partition)
    assert {"00000000000000000200.log", "00000000000000000200.log-r1", "00000000000000000200.log-r2"} <= {
        *world.names()
    }


def test_an_unclean_election_after_a_restore_that_gives_a_dead_epoch_again(world: World) -> None:
    """Epoch 4 had stored offsets before the restore, and again after it."""
    partition = world.disk.partition().fill(0, 100, end=200)
    world.once()
    partition.segment(200, records(200, 300, epoch=4)).roll(300).lineage([(3, 0), (4, 200)])
    world.metadata.leads = {T: Led(4, ID)}
    world.once()
    assert world.watermark()[1].order == (0, 4, 300)
    world.metadata.leads = {T: Led(3, ID)}
    restored(world, 150, 0, 100, end=260, value="other").lineage([(3, 0)])
    go_on(world)
    assert errors(world.once()) == {}
    assert world.watermark()[1].order == (1, 3, 260)
    partition = restored(world, 150, 0, 100, end=220, value="other")
    partition.segment(220, records(220, 280, epoch=4, value="last")).roll(280).lineage([(3, 0), (4, 220)])
    world.metadata.leads = {T: Led(4, ID)}
    assert errors(world.once()) == {}
    assert world.watermark()[1].order == (1, 4, 280)
    assert stored_log(world) == disk_log(partition)


@pytest.mark.parametrize("begun", [100, 150, 200])
@pytest.mark.parametrize("bases", [(0,), (0, 130)])
def test_an_epoch_that_is_given_again_from_an_earlier_offset_on(
    world: World, bases: tuple[int, ...], begun: int
) -> None:
    """By the lineages alone, all that is stored is on the disk's branch."""
    partition = world.disk.partition().fill(0, end=100)
    partition.segment(100, records(100, begun) + records(begun, 200, epoch=4))
    partition.snapshot(200)
    partition.segment(200, b"").lineage([(3, 0), (4, begun)])
    world.metadata.leads, world.metadata.high[T] = {T: Led(4, ID)}, 200
    world.once()
    partition = restored(world, 0, *bases, end=300, epoch=4).lineage([(4, 0)])
    world.metadata.high[T] = 300
    row = branching(world, 4).go_on(SAID, lambda: True)
    assert (row.at, row.stored_end, row.log_end, row.outcome) == (0, 200, 300, "branched")
    assert errors(world.once()) == {}
    assert world.watermark()[1].next_offset == 300
    assert stored_log(world) == disk_log(partition)


def test_metadata_restored_alone_gives_an_earlier_epoch(world: World) -> None:
    """The lineages tell it, but no agent follows a leader under an earlier epoch."""
    partition = world.disk.partition().fill(0, 100, end=150).lineage([(3, 0), (5, 150)])
    partition.segment(150, records(150, 200, epoch=5)).roll(200)
    world.metadata.leads = {T: Led(5, ID)}
    world.once()
    with pytest.raises(TidemarkError, match="the newest leader epoch of its log is 5, and this broker leads under 3"):
        branching(world, 3).look()
    for path in partition.folder.glob("*200.*"):
        path.unlink()
    partition.segment(150, records(150, 240, epoch=4)).roll(240).lineage([(3, 0), (4, 150)])
    world.metadata.leads = {T: Led(4, ID)}
    assert "Fenced" in str(errors(world.once()))
    row = branching(world, 4).go_on(SAID, lambda: True)
    assert row.at == 150
    assert errors(world.once()) == {}
    assert world.watermark()[1].order == (1, 4, 240)
    assert stored_log(world) == disk_log(partition)


def test_an_earlier_epoch_over_the_same_records(world: World) -> None:
    world.disk.partition().fill(0, 100, end=200)
    world.once()
    base, before = world.watermark()
    later = before.model_copy(update={"leader_epoch": 9, "lineage": ((3, 0), (9, 200))})
    world.store.put(world.keys().watermark, render(base, later))
    row = branching(world).go_on(SAID, lambda: True)
    assert (row.at, row.outcome) == (200, "branched")
    partition = world.disk.partition().fill(0, 100, 200, end=260)
    assert errors(world.once()) == {}
    assert world.watermark()[1].order == (1, 3, 260)
    assert stored_log(world) == disk_log(partition)


def test_a_broker_that_nobody_confirms_as_leader_is_refused(world: World) -> None:
    world.disk.partition().fill(0, 100, end=200)
    world.once()
    restored(world, 100, 0, 100, end=250)
    with pytest.raises(TidemarkError, match="does not confirm that this broker leads orders-0 under epoch 3"):
        branching(world).go_on(SAID, lambda: False)
    assert world.store.puts[-1].endswith("/1.json")
    assert world.watermark()[1].restores == ()


def test_one_history_needs_no_branch(world: World) -> None:
    world.disk.partition().fill(0, 100, end=200)
    world.once()
    assert branching(world).look().outcome == "one history"
    assert go_on(world) == BranchRow("orders-0", None, 200, 200, "one history", "the log on the disk is the stored one")


def test_a_log_that_begins_where_they_part_may_part_below(world: World) -> None:
    world.disk.partition().fill(0, 100, end=200)
    world.once()
    partition = restored(world, 50, 0, 100, end=250)
    partition.log(0).unlink()
    with pytest.raises(TidemarkError, match="the disk's log begins at 100, where it differs already"):
        go_on(world)
    assert go_on(world, unproved=True).at == 100
    world.once()
    assert stored_log(world, 100) == disk_log(partition)


def test_nothing_stored_is_no_history(world: World) -> None:
    world.disk.partition().fill(0, end=100)
    with pytest.raises(TidemarkError, match="the store has nothing of this topic id yet"):
        branching(world).look()


class Quorum(Authority):
    """Confirms its mark at the third question, of the second mark."""

    def __init__(self, leader: Leader | None) -> None:
        self._leader, self.answers, self.marks = leader, [None, False, True], 0

    def mark(self) -> MetadataMark:
        self.marks += 1
        return MetadataMark(1, 1, self.marks)

    def confirms(self, mark: MetadataMark) -> bool | None:
        return self.answers.pop(0) if self.answers else False

    def leader(self, _: object) -> Leader | None:
        return self._leader


@pytest.mark.parametrize(
    ("leader", "right"),
    [(Leader(1, Led(3, ID)), True), (Leader(2, Led(3, ID)), False), (Leader(1, Led(4, ID)), False), (None, False)],
)
def test_the_cluster_confirms_this_very_leadership(leader: Leader | None, right: bool) -> None:
    quorum, slept = Quorum(leader), list[float]()
    assert confirmed(quorum, T, 1, Led(3, ID), slept.append) is right
    assert (quorum.marks, len(slept)) == (2, 3)


def test_a_cluster_that_never_confirms_ends_the_wait() -> None:
    quorum = Quorum(Leader(1, Led(3, ID)))
    quorum.answers = []
    assert confirmed(quorum, T, 1, Led(3, ID), lambda _: None) is False


@pytest.mark.parametrize(("at", "up_to"), [(100, 130), (120, 200), (130, 130), (150, 140), (160, 160)])
def test_packs_of_the_former_history_are_sealed_in_it_and_the_agent_packs_on(world: World, at: int, up_to: int) -> None:
    """Under the same epoch of the same broker, so that the head has an entry for each history."""
    partition = world.disk.partition().fill(0, end=100)
    partition.segment(100, records(100, 160))
    pack_once(world, 160)
    assert world.watermark()[1].next_offset == 0
    former = partition.log(0).read_bytes() + partition.log(100).read_bytes()
    partition = restored(world, at, 0, 100, end=up_to)
    partition.log(up_to).unlink()
    world.metadata.default_high = up_to
    same = at >= min(up_to, 160)
    if same and up_to >= 160:
        assert branching(world).look().outcome == "one history"
        return
    row = go_on(world)
    assert (row.at, row.stored_end) == (min(at, up_to), 160)
    assert world.watermark()[1].tails == ()
    with world.agent(freshness=FRESHNESS) as agent:
        tick(agent)
        assert error(agent) is None
        assert read_now(world) == disk_log(partition)
        care(agent, 3)
    assert read_now(world) == disk_log(partition)
    assert [one.restores for one in entries(world)] == [world.watermark()[1].restores]
    dead = [one for one in seals(world) if not one.lineage.restores]
    assert max(one.end for one in dead) == 160
    assert former.endswith(world.store.get(max(dead, key=lambda one: one.base).key).body)
    append(partition, 100, records(up_to, up_to + 30, value="later"))
    partition.roll(up_to + 30)
    world.metadata.default_high = up_to + 30
    assert errors(world.once(freshness=FRESHNESS)) == {}
    assert world.watermark()[1].next_offset == up_to + 30
    assert stored_log(world) == read_now(world) == disk_log(partition)


def test_packs_of_a_dead_history_are_claimed_by_no_seal_of_the_live_one(world: World) -> None:
    """Else they would be put into segments that seem to lack them, or be kept for ever."""
    partition = world.disk.partition().fill(0, end=100)
    partition.segment(100, records(100, 160))
    pack_once(world, 160)
    partition = restored(world, 120, 0, 100, end=160)
    go_on(world)
    world.once()
    ranges = packs(world)
    around = SealsAround(PartitionStore(world.store, world.keys()), world.watermark()[1].history)
    around.look(0, 400)
    assert around.lacking(ranges, lambda error: pytest.fail(str(error))) == []
    proof = SealsOfPartition(PartitionStore(world.store, world.keys()), world.store.now() + 2 * SETTLED)
    proof.look(0, 400)
    whys = [proof.why_needed(packed, compare=True) for packed in ranges]
    assert [why for why in whys if why is not None] != [], "the former history is not sealed yet"
    with world.agent(freshness=FRESHNESS) as agent:
        agent.survey()
        care(agent, 3)
    proof = SealsOfPartition(PartitionStore(world.store, world.keys()), world.store.now() + 2 * SETTLED)
    proof.look(0, 400)
    assert [proof.why_needed(packed, compare=True) for packed in ranges] == [None] * len(ranges)


def test_a_running_agent_goes_on_by_itself(world: World) -> None:
    partition = world.disk.partition().fill(0, 100, end=200)
    settings: dict[str, Any] = {
        "scan_interval": "20ms",
        "metadata_interval": "10ms",
        "index_interval": "1ms",
    }
    world.metadata.default_high = 200
    with world.agent(**settings) as agent, agent.running():
        wait_until(lambda: bool(world.names()) and world.watermark()[1].next_offset == 200, what="the segments")
        partition = restored(world, 100, 0, 100, 230, end=260)
        world.metadata.default_high = 260
        wait_until(lambda: bool(agent.leadership.parted()), what="the agent to find another history")
        go_on(world)
        wait_until(lambda: world.watermark()[1].next_offset == 260, what="the disk's log")
        wait_until(lambda: not agent.leadership.parted(), what="the end of the stop")
    assert stored_log(world) == disk_log(partition)


@pytest.mark.parametrize("extension", ["log", "index", "manifest.json"])
def test_what_the_store_loses_of_the_present_history_is_uploaded_again(world: World, extension: str) -> None:
    world.disk.partition().fill(0, 100, end=200)
    world.once()
    partition = restored(world, 100, 0, 100, end=250)
    go_on(world)
    world.once()
    (world.disk.log_dirs[0] / "replication-offset-checkpoint").write_text("0\n1\norders 0 250\n")
    former = world.stored(100)
    world.store.inner.delete(world.keys().segment(SegmentName(100, "r1"), extension))
    incarnations = Incarnations(Storage(CLUSTER, world.settings().raw, opener=lambda _: world.store), record=True)
    rows = [*Reupload(incarnations, 1, world.disk.log_dirs, T, lambda _seconds: None).run()]
    assert [(row.base_offset, row.next_offset) for row in rows if row.outcome in {"brought", "rebuilt"}] == [(100, 250)]
    assert stored_log(world) == disk_log(partition)
    assert world.stored(100) == former


def test_a_replica_fills_a_gap_of_the_present_history(world: World) -> None:
    world.disk.partition().fill(0, 100, end=200)
    world.once()
    partition = restored(world, 100, 0, 100, 150, end=250)
    follower = world.another(2, leads={}, others={T: Leader(1, Led(3, ID), (1, 2))})
    copy = restored(follower, 100, 0, 100, 150, end=250)
    (follower.disk.log_dirs[0] / "replication-offset-checkpoint").write_text("0\n1\norders 0 250\n")
    go_on(world)
    lost = partition.log(100).read_bytes()
    for path in partition.folder.glob("*100.*"):
        path.unlink()
    world.metadata.log_start = 150
    world.once()
    assert [(gap.start, gap.end) for gap in world.watermark()[1].gaps] == [(100, 150)]
    follower.once()
    world.once()
    assert world.watermark()[1].gaps == ()
    assert world.stored(100, suffix="r1") == lost == copy.log(100).read_bytes()
