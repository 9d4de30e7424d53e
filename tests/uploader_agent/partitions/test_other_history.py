"""A log that is not the stored one, as after a restore of brokers: nothing more is stored of it, and it is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.uploader_agent.cli.test_commands import incarnations
from tests.uploader_agent.fakes import ID, FakePartition, T, World, records
from tests.uploader_agent.tested_agent import TestedAgent
from tidemark.formats.keys import SegmentName
from tidemark.formats.raw.head import Head
from tidemark.formats.raw.watermark_index import IndexEntry, WatermarkIndex
from uploader_agent.agent import Monitor
from uploader_agent.broker.admin import Led
from uploader_agent.partitions import leadership
from uploader_agent.repair.reupload import Reupload
from uploader_agent.stored.foreign_epochs import ForeignEpochs
from uploader_agent.stored.histories import HistoriesPart

FRESH: dict[str, Any] = {"freshness": {".*": "3s"}, "index_interval": "1ms", "metadata_interval": "10ms"}


def restored(world: World, *bases: int, at: int, end: int, epoch: int = 3) -> FakePartition:
    """The disk with segments at ``bases``, the last one active up to ``end``, with other batches from ``at`` on."""
    partition = world.disk.partition()
    for path in partition.folder.glob("0*"):
        path.unlink()
    for base, following in zip(bases, [*bases[1:], end], strict=True):
        split = min(max(base, at), following)
        data = records(base, split, epoch=epoch) + records(split, following, value="other", epoch=epoch)
        partition.segment(base, data)
        partition.snapshot(following)
    world.metadata.high[T] = end
    return partition


def pack(world: World, end: int) -> None:
    """Run an agent until it has packed all up to ``end``."""
    with world.agent(**FRESH, scan_interval="20ms") as agent, agent.running():

        def ends() -> list[int]:
            return [one.packed.tail.end for one in agent.leadership.partitions.values()]

        wait_until(lambda: ends() == [end], what="the pack")


def objects(world: World) -> dict[str, bytes]:
    return {name: world.store.inner.get(world.keys().file(name)).body for name in world.names()}


def entries(world: World) -> tuple[IndexEntry, ...]:
    key = world.control.index(1)
    found = WatermarkIndex.load_or_none(world.store.inner, key)
    return found.entries if found is not None else ()


def entry(world: World) -> IndexEntry:
    [found] = entries(world)
    return found


@contextmanager
def told(world: World, **settings: Any) -> Iterator[TestedAgent]:
    """A running agent that has told of another history."""
    with world.agent(**{**FRESH, **settings}) as agent, agent.running():
        wait_until(lambda: bool(agent.leadership.parted()), what="another history to be certain")
        wait_until(lambda: entry(world).other_history is not None, what="the index to tell of another history")
        yield agent


@pytest.mark.parametrize(
    ("bases", "at", "end"),
    [
        ((0, 100, 250), 120, 400),  # it has gone beyond the store's end
        ((0, 100), 120, 150),  # it ends below that
        ((0, 100), 200, 180),  # and has nothing else yet
        ((0, 100, 200), 120, 200),  # it ends where the store does
        ((0, 150), 120, 200),
    ],
)
def test_a_restored_disk_stops_the_partition_and_says_where_it_parts(
    world: World, bases: tuple[int, ...], at: int, end: int
) -> None:
    world.disk.partition().fill(0, 100, end=200)
    world.once()
    before = objects(world)
    restored(world, *bases, at=at, end=end)
    with told(world) as agent:
        parting = agent.leadership.parted()[0].parting
        trouble, waits = agent.health.trouble(), agent.waits()
        Monitor(agent.components).measure()
        stopped = agent.metrics.registry.get_sample_value("tidemark_agent_stopped_partitions", {"reason": "other_log"})
    assert parting is not None
    assert (parting.at, parting.stored_end, parting.log_end) == (min(at, end), 200, end)
    assert stopped == 1
    assert trouble is not None
    assert f"another history than the stored one from offset {parting.at} on" in trouble
    assert "other_history" in {wait.kind for wait in waits}
    assert objects(world) == before, "nothing of the other log is stored"
    said = entry(world).other_history
    assert said is not None
    assert (said.at, said.stored_end, said.log_end) == (parting.at, 200, end)


def test_a_disk_that_is_restored_under_a_running_agent_is_told(world: World) -> None:
    partition = world.disk.partition().fill(0, 100, end=200)
    with world.agent(**FRESH, scan_interval="20ms") as agent, agent.running():
        wait_until(lambda: bool(world.names()) and world.watermark()[1].next_offset == 200, what="the segments")
        wait_until(lambda: bool(entries(world)), what="the first index with the partition")
        before = objects(world)
        restored(world, 0, 100, 300, at=120, end=400)
        wait_until(lambda: entry(world).other_history is not None, what="the index to tell of another history")
        assert agent.leadership.parted()
    assert objects(world) == before
    assert partition.log(100).exists()


def test_what_was_only_packed_is_compared_as_well(world: World) -> None:
    partition = world.disk.partition().fill(0, end=100)
    partition.segment(100, records(100, 160))
    world.metadata.high[T] = 160
    pack(world, 160)
    for up_to in (180, 160, 140):
        restored(world, 0, 100, at=120, end=up_to)
        with told(world):
            pass
        said = entry(world).other_history
        assert said is not None
        assert (said.at, said.stored_end, said.log_end) == (120, 160, up_to)


def given_again(world: World, *bases: int, at: int, end: int) -> None:
    """The disk was restored up to ``at``, and got other batches under the same epoch up to ``end``; then one began."""
    partition = restored(world, *bases, at=at, end=end)
    partition.segment(bases[-1], partition.log(bases[-1]).read_bytes() + records(end, end + 20, epoch=4))
    partition.lineage([(3, 0), (4, end)])
    world.metadata.leads, world.metadata.high[T] = {T: Led(4, ID)}, end + 20


@pytest.mark.parametrize("end", [125, 130, 200])
def test_an_epoch_that_was_given_again_and_has_ended_is_told(world: World, end: int) -> None:
    """By lineage, what is stored below its new end is on the disk's branch, also if that is within a stored batch."""
    world.disk.partition().fill(0, 100, end=200)
    world.once()
    before = objects(world)
    given_again(world, 0, 100, at=120, end=end)
    with told(world) as agent:
        parting = agent.leadership.parted()[0].parting
    assert parting is not None
    assert parting.at == 120
    assert objects(world) == before


@pytest.mark.parametrize("end", [125, 130, 160])
def test_an_epoch_that_was_given_again_and_has_ended_is_told_of_packs_too(world: World, end: int) -> None:
    partition = world.disk.partition().fill(0, end=100)
    partition.segment(100, records(100, 160))
    world.metadata.high[T] = 160
    pack(world, 160)
    given_again(world, 0, 100, at=120, end=end)
    with told(world) as agent:
        parting = agent.leadership.parted()[0].parting
    assert parting is not None
    assert parting.at == 120
    assert world.watermark()[1].next_offset == 100


def given_again_earlier(world: World, *bases: int, end: int) -> None:
    """The disk was restored empty, and the epoch that was the last one began at once, with other batches up to ``end``.

    By lineage, all that is stored below the end of that epoch is on the disk's branch, also what is of the former one.
    """
    restored(world, *bases, at=0, end=end, epoch=4).lineage([(4, 0)])


@pytest.mark.parametrize("ended", [False, True])  # if it has, no former index is trusted
@pytest.mark.parametrize("begun", [100, 130, 200])
@pytest.mark.parametrize("bases", [(0,), (0, 115)])
def test_an_epoch_that_was_given_again_from_an_earlier_offset_on_is_told(
    world: World, bases: tuple[int, ...], begun: int, ended: bool
) -> None:
    partition = world.disk.partition().fill(0, end=100)
    epochs = [(3, 0), (4, begun)]
    partition.segment(100, records(100, begun) + records(begun, 200, epoch=4))
    partition.snapshot(200)
    partition.segment(200, b"").lineage(epochs)
    world.metadata.leads, world.metadata.high[T] = {T: Led(4, ID)}, 200
    world.once()
    before = objects(world)
    given_again_earlier(world, *bases, end=300)
    if ended:
        partition.segment(300, records(300, 320, epoch=5)).lineage([(4, 0), (5, 300)])
        world.metadata.leads, world.metadata.high[T] = {T: Led(5, ID)}, 320
    with told(world) as agent:
        parting = agent.leadership.parted()[0].parting
    assert parting is not None
    assert parting.at == 0
    assert objects(world) == before


@pytest.mark.parametrize("begun", [120, 140, 160])
def test_an_epoch_that_was_given_again_from_an_earlier_offset_on_is_told_of_packs_too(world: World, begun: int) -> None:
    """The seals are of the disk's own history, up to where the packs begin."""
    partition = world.disk.partition().fill(0, end=100)
    partition.segment(100, records(100, begun) + records(begun, 160, epoch=4)).lineage([(3, 0), (4, begun)])
    world.metadata.leads, world.metadata.high[T] = {T: Led(4, ID)}, 160
    pack(world, 160)
    partition = restored(world, 0, 100, at=100, end=100)
    partition.segment(100, records(100, 200, epoch=4, value="other")).lineage([(3, 0), (4, 100)])
    world.metadata.high[T] = 200
    with told(world) as agent:
        parting = agent.leadership.parted()[0].parting
    assert parting is not None
    assert parting.at == 100
    assert world.watermark()[1].next_offset == 100


def test_a_packed_range_that_another_log_seals_is_told(world: World) -> None:
    """The seals agree, and the roll comes before any other pack."""
    partition = world.disk.partition().fill(0, end=100)
    partition.segment(100, records(100, 160))
    world.metadata.high[T] = 160
    pack(world, 160)
    restored(world, 0, 100, 200, at=120, end=200)
    agent = world.once()
    assert "another history" in (agent.leadership.partitions[T].error or "")
    assert world.watermark()[1].next_offset == 100


def test_it_goes_on_by_itself_once_the_histories_agree(world: World) -> None:
    world.disk.partition().fill(0, 100, end=200)
    world.once()
    restored(world, 0, 100, 250, at=120, end=300)
    with told(world, scan_interval="20ms", retry_initial="1ms", retry_cap="5ms") as agent:
        restored(world, 0, 100, 250, at=1000, end=300)
        wait_until(lambda: world.watermark()[1].next_offset == 250, what="the rest")
        wait_until(lambda: entry(world).other_history is None, what="the index to say so")
        assert agent.leadership.parted() == []


def test_segments_of_the_other_history_are_held(world: World) -> None:
    """They are the only copy, although the store has other batches at these offsets."""
    world.disk.partition().fill(0, 100, end=200)
    world.once()
    restored(world, 0, 100, 150, at=120, end=300)
    with told(world, scan_interval="20ms") as agent:
        wait_until(lambda: [one.base_offset for one in agent.hold.segments(T, ID)] == [100], what="the hold")


def test_a_leader_that_is_deposed_tells_of_no_other_history(world: World) -> None:
    """Its log may be cut before it hears of that."""
    world.disk.partition().fill(0, 100, end=200)
    world.once()
    restored(world, 0, 100, at=1000, end=150)
    with world.agent() as agent:
        agent.refresh()
        agent.survey()
        assert "another history" in (agent.leadership.partitions[T].error or "")
        assert agent.leadership.parted() == []
        world.metadata.leads = {T: Led(4, ID)}
        agent.refresh()
        assert agent.leadership.parted() == []


def test_an_index_that_states_no_last_batch_is_not_trusted(world: World) -> None:
    world.disk.partition().fill(0, 100, end=200)
    world.once()
    key = world.control.index(1)
    index = WatermarkIndex.from_bytes(world.store.inner.get(key).body, key)
    old = tuple(one.model_copy(update={"last_batch": None}) for one in index.entries)
    world.store.inner.put(key, index.model_copy(update={"entries": old}).to_bytes())
    restored(world, 0, 100, at=120, end=200)
    with told(world):
        pass


def test_a_check_of_an_unchanged_log_asks_the_store_for_nothing(world: World) -> None:
    world.disk.partition().fill(0, 100, end=200)
    world.metadata.high[T] = 200
    world.once()
    asked: list[str] = []
    world.store.before = lambda _, key: asked.append(key) if world.keys().folder in key else None
    with world.agent(**FRESH) as agent, agent.running():

        def states() -> list[tuple[bool, bool, bool]]:
            led = agent.leadership.partitions.values()
            return [(one.remote.log.known, one.remote.log.surveyed, one.uploader.unchecked) for one in led]

        wait_until(lambda: states() == [(True, False, False)], what="a log that was checked, and not surveyed")
    assert asked == []


@pytest.mark.parametrize("version", ["today's", "earlier"])
def test_the_last_batch_of_a_segment_that_was_stored_by_an_earlier_version_is_read(world: World, version: str) -> None:
    world.disk.partition().fill(0, 100, end=200)
    world.once()
    if version == "earlier":
        for base in (0, 100):
            old = world.manifest(base).model_copy(update={"last_batch": None})
            world.store.inner.put(world.keys().file(f"{base:020d}.manifest.json"), old.to_bytes())
    world.metadata.leads = {T: Led(4, ID)}
    restored(world, 0, 100, at=190, end=200).lineage([(3, 0), (4, 200)])
    with told(world):
        pass


@pytest.mark.parametrize("segments", [True, False])
def test_a_foreign_epoch_is_not_overcome_where_its_leader_has_sealed(
    world: World, monkeypatch: pytest.MonkeyPatch, *, segments: bool
) -> None:
    """Restored metadata give lower epochs; a damaged ``offset.wm`` alone has no segments."""
    monkeypatch.setattr(ForeignEpochs, "judge", lambda *_: True)
    partition = world.disk.partition().fill(0, end=100)
    world.once()
    world.metadata.leads = {T: Led(7, ID)}
    if segments:
        partition.fill(0, 100, end=200)
        partition.segment(100, records(100, 200, epoch=7)).lineage([(3, 0), (7, 100)])
    world.once()
    restored(world, 0, at=100, end=150).lineage([(3, 0)])
    world.metadata.leads = {T: Led(3, ID)}
    agent = world.once(tail_after="0s")
    assert ("another history" in (agent.leadership.partitions[T].error or "")) == segments
    assert (world.watermark()[1].leader_epoch == 7) == segments


def test_a_lower_epoch_counts_once_nothing_else_was_said_for_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.disk.partition().fill(0, end=100)
    world.metadata.leads = {T: Led(5, ID)}
    with world.agent() as agent:
        agent.refresh()
        world.metadata.leads = {T: Led(3, ID)}
        agent.refresh()
        assert agent.leadership.partitions[T].led.leader_epoch == 5
        monkeypatch.setattr(leadership, "_LOWER_EPOCH_SECONDS", 0.0)
        agent.refresh()
        assert agent.leadership.partitions[T].led.leader_epoch == 3


def test_nothing_is_uploaded_again_from_another_history(world: World) -> None:
    world.disk.partition().fill(0, 100, end=200)
    world.once()
    world.store.inner.delete(world.keys().file(f"{0:020d}.index"))
    before = objects(world)
    restored(world, 0, 100, 250, at=120, end=300)
    checkpoint = world.disk.log_dirs[0] / "replication-offset-checkpoint"
    checkpoint.write_text(f"0\n1\n{T.topic} {T.partition} 300\n")
    again = Reupload(incarnations(world), 1, world.disk.log_dirs, T, lambda _: None)
    with pytest.raises(HistoriesPart, match="another history than the stored one from offset 120 on"):
        list(again.run())
    assert objects(world) == before


def test_nothing_is_uploaded_again_from_an_epoch_that_was_given_again_from_an_earlier_offset_on(world: World) -> None:
    world.disk.partition().fill(0, 100, end=200).lineage([(3, 0), (4, 200)])
    world.metadata.leads, world.metadata.high[T] = {T: Led(4, ID)}, 200
    world.once()
    before = objects(world)
    given_again_earlier(world, 0, 250, end=300)
    checkpoint = world.disk.log_dirs[0] / "replication-offset-checkpoint"
    checkpoint.write_text(f"0\n1\n{T.topic} {T.partition} 300\n")
    again = Reupload(incarnations(world), 1, world.disk.log_dirs, T, lambda _: None)
    with pytest.raises(HistoriesPart, match="another history than the stored one from offset 0 on"):
        list(again.run())
    assert objects(world) == before


@pytest.mark.parametrize("log_start", [125, 180, 205, 245])
@pytest.mark.parametrize("segments", [(0,), (0, 100), (0, 150), (0, 100, 200)])
def test_a_branch_whose_first_records_were_deleted_is_no_other_history(
    world: World, segments: tuple[int, ...], log_start: int
) -> None:
    """An unclean election left the stored log at 120; DeleteRecords moved the epoch's start in the checkpoint up."""
    world.disk.partition().fill(0, 100, end=200)
    world.once()
    partition = world.disk.partition()
    for path in partition.folder.glob("0*"):
        path.unlink()
    for base, following in zip(segments, [*segments[1:], 260], strict=True):
        split = min(max(base, 120), following)
        partition.segment(base, records(base, split) + records(split, following, value="other", epoch=5))
        partition.snapshot(following)
    partition.segment(260, b"").lineage([(5, log_start)])
    world.metadata.leads[T], world.metadata.log_start = Led(5, ID), log_start
    agent = world.once()
    assert agent.leadership.partitions[T].error is None
    _, watermark = world.watermark()
    assert (watermark.next_offset, watermark.lineage, watermark.gaps) == (260, ((3, 0), (5, 120)), ())


def test_a_new_leader_that_was_behind_the_start_of_the_store_moves_the_start_back(world: World) -> None:
    """An unclean election of a replica whose disk was replaced: offsets that retention had removed are given again."""
    world.disk.partition().lineage([(3, 100)]).fill(100, 200, end=300)
    world.metadata.log_start = 100
    world.once()
    assert world.watermark()[1].start_offset == 100
    partition = world.disk.partition()
    for path in partition.folder.glob("0*"):
        path.unlink()
    partition.fill(0, 40, end=70, epoch=5).lineage([(5, 0)])
    world.metadata.leads[T], world.metadata.log_start = Led(5, ID), 0
    agent = world.once()
    assert agent.leadership.partitions[T].error is None
    _, watermark = world.watermark()
    assert (watermark.start_offset, watermark.next_offset, watermark.lineage) == (0, 70, ((5, 0),))
    assert watermark.gaps == ()


@pytest.mark.parametrize("rolled", [200, 250], ids=["at the same offset", "later"])
@pytest.mark.parametrize("at", [100, 120, 180])
def test_a_segment_that_was_uploaded_before_the_restore_and_has_no_manifest_is_compared(
    world: World, at: int, rolled: int
) -> None:
    """Nothing says that it is stored until this agent adopts it."""
    world.disk.partition().fill(0, 100, end=100)
    world.once()
    world.store.inner.put(world.keys().segment(SegmentName(100), "log"), records(100, 200))
    restored(world, 0, 100, 150, rolled, at=at, end=300)
    with told(world) as agent:
        parting = agent.leadership.parted()[0].parting
    assert parting is not None
    assert parting.at == at
    assert world.watermark()[1].next_offset == 100


@pytest.mark.parametrize("restarted", [False, True])
def test_a_segment_that_is_adopted_below_one_of_this_log_is_compared(world: World, *, restarted: bool) -> None:
    """A former agent's request arrived late. The segment above is the newest that is stored, and is the disk's."""
    world.disk.partition().fill(0, 100, end=100)
    world.once()
    restored(world, 0, 100, 150, 250, at=120, end=300)
    late = world.keys().segment(SegmentName(100), "log")
    first, above = (world.keys().file(f"{base:020d}.manifest.json") for base in (100, 150))

    def before(operation: str, key: str) -> None:
        if operation == "put" and key == late:
            world.store.inner.put(late, records(100, 200))
        if operation == "put" and key == first:
            wait_until(lambda: above in world.store.puts, what="the segment above")

    world.store.before = before
    for _ in range(1 + restarted):
        with told(world) as agent:
            parting = agent.leadership.parted()[0].parting
        assert parting is not None
        assert parting.at == 120
    assert above in world.store.puts


def test_a_restored_log_that_a_later_epoch_in_the_store_fences_is_waited_for(world: World) -> None:
    """Its end is below the stored one, so that it has nothing new; that the metadata were restored is proved later."""
    partition = world.disk.partition().fill(0, end=100)
    partition.segment(100, records(100, 160))
    world.metadata.high[T] = 160
    pack(world, 160)
    second = world.another(2, leads={T: Led(5, ID)})
    second.disk.partition().lineage([(3, 0), (5, 160)]).fill(0, 100, end=160)
    second.once()
    assert world.watermark()[1].leader_epoch == 5
    restored(world, 0, 100, at=1000, end=140)
    with world.agent(**FRESH) as agent, agent.running():
        wanted = "its log ends below 160, where its stored offsets end"
        wait_until(lambda: any(wanted in wait.reason for wait in agent.waits()), what="the wait")
        [wait] = agent.waits()
    assert wait.kind == "leadership"
    assert "broker 2 leads it under epoch 5" in wait.reason


def test_a_log_that_is_doubted_is_compared_though_nothing_of_it_changes(world: World) -> None:
    """The broker was away, and what it has since then ends where the stored log ends."""
    world.disk.partition().fill(0, 100, end=200)
    world.metadata.high[T] = 200
    world.once()
    with world.agent(**FRESH, scan_interval="20ms") as agent, agent.running():
        wait_until(lambda: [one.is_unsettled for one in agent.leadership.partitions.values()] == [False], what="quiet")
        [partition] = agent.leadership.partitions.values()
        partition.uploader.doubt()
        wait_until(lambda: not partition.uploader.unchecked, what="the comparison")


def test_a_head_that_was_put_after_the_last_index_is_compared(world: World) -> None:
    """The log ends where the head's tail ends, so that there is nothing to pack."""
    partition = world.disk.partition().fill(0, end=100)
    index = b""
    for end in (130, 160):
        partition.segment(100, records(100, 130) + records(130, end))
        world.metadata.high[T] = end
        pack(world, end)
        index = index or world.store.inner.get(world.control.index(1)).body
    world.store.inner.put(world.control.index(1), index)
    restored(world, 0, 100, at=130, end=160)
    with told(world, freshness={".*": "1h"}, scan_interval="20ms"):
        pass
    said = entry(world).other_history
    assert said is not None
    assert (said.at, said.stored_end, said.log_end) == (130, 160, 160)


@pytest.mark.parametrize("stored", ["0100.manifest.json", "_heads/"])
def test_what_was_read_before_a_restore_and_is_stored_after_it_is_compared(world: World, stored: str) -> None:
    """The log is replaced, and compared, while a request is under way that makes the log of before count."""
    partition = world.disk.partition().fill(0, end=100)
    partition.segment(100, records(100, 200))
    bases, freshness = [0, 100], "3s"
    if stored != "_heads/":
        bases, freshness = [0, 100, 200], "1h"
        partition.snapshot(200)
        partition.segment(200, b"")
    world.metadata.high[T] = 200
    running: list[TestedAgent] = []

    def before(operation: str, key: str) -> None:
        if operation == "put" and stored in key and running:
            [led] = running.pop().leadership.partitions.values()
            restored(world, *bases, at=120, end=200)
            led.uploader.doubt()
            wait_until(lambda: not led.uploader.unchecked, what="the comparison")

    world.store.before = before
    settings = FRESH | {"freshness": {".*": freshness}, "scan_interval": "20ms"}
    with world.agent(**settings) as agent:
        running.append(agent)
        with agent.running():
            wait_until(lambda: bool(agent.leadership.parted()), what="another history to be certain")
            [parted] = agent.leadership.parted()
    assert parted.parting is not None
    assert parted.parting.at == 120


def test_a_pack_that_is_under_way_when_another_history_is_found_is_not_named(world: World) -> None:
    """It has the disk's newest batches, and would make the parting look as if it were over."""
    partition = world.disk.partition().fill(0, end=100)
    partition.segment(100, b"")
    world.once()
    restored(world, 0, 100, at=1000, end=160)
    running: list[TestedAgent] = []

    def before(operation: str, key: str) -> None:
        if operation == "put" and "_tails/" in key and running:
            [led] = running.pop().leadership.partitions.values()
            restored(world, 0, 100, at=50, end=160)
            led.uploader.doubt()
            wait_until(lambda: led.uploader.parting is not None, what="the parting")

    world.store.before = before
    with world.agent(**FRESH, scan_interval="20ms") as agent:
        running.append(agent)
        with agent.running():
            wait_until(lambda: entry(world).other_history is not None, what="the index to tell of another history")
    assert not running
    heads = [name for name in world.store.puts if "_heads/" in name]
    assert all(Head.from_bytes(world.store.inner.get(name).body, name).entries == () for name in heads)
