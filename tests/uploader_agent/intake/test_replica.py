"""The replica of a slot, and the agent on it: what it may conclude from a spool."""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.tidemark.kafka_log.build import simple
from tests.uploader_agent.fakes import CLUSTER, WatchedStore
from tests.uploader_agent.intake.scripted import OTHER_ID, TOPIC, ScriptedCluster, T, batches_in, header_of
from tests.uploader_agent.intake.slots import ScriptedAdmin, ScriptedTime, Slot, settle
from tests.uploader_agent.intake.test_follower import ALL, misfortune, restored
from tests.uploader_agent.intake.test_spool import WRITES, Killed, Killer
from tidemark.errors import Refused
from tidemark.formats.keys import WATERMARK_NAME, ControlKeys, SegmentName, TopicPartition
from tidemark.formats.raw.cluster import FIRST_SLOT
from tidemark.formats.raw.masks import Mask
from tidemark.formats.raw.watermark import parse, render
from tidemark.formats.raw.watermark_index import IndexEntry, WatermarkIndex
from tidemark.formats.table.plan import StoredMasks
from tidemark.kafka_log import OpenTransaction
from tidemark.raw.objects import read_manifest, remove_segment
from tidemark.storage import PartitionStore
from tidemark.store import StoreOptions
from tidemark_spark.erasing.rewriting import SealTask, rewrite
from uploader_agent.broker.admin import BrokerUnavailable
from uploader_agent.disk.log_dirs import find_segments
from uploader_agent.disk.segment_files import Active, SegmentChanged
from uploader_agent.disk.watcher import Watcher
from uploader_agent.intake import replica as replica_module
from uploader_agent.intake.fetching import FetchStopped, Retention, StopReason, TopicAnswer
from uploader_agent.intake.follower import FollowerState, StoredEnd
from uploader_agent.intake.metadata import SlotMetadata
from uploader_agent.intake.replica import SlotReplica, slot_of
from uploader_agent.intake.spool import PartitionSpool
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.partitions.poller import OffsetsAnswer


def every_topic(_topic: str) -> bool:
    return True


def caught_up(slot: Slot, **settings: Any) -> SlotReplica:
    """A replica that has fetched all that there is, and stays open."""
    replica = slot.replica(**settings)
    replica.catch_up(every_topic)
    return replica


def stopped(replica: SlotReplica) -> dict[str, float]:
    """What the metric counts, by reason."""
    [metric] = replica._metrics.stopped_partitions.collect()
    return {sample.labels["reason"]: sample.value for sample in metric.samples if sample.value}


@pytest.fixture
def cluster() -> ScriptedCluster:
    return ScriptedCluster()


@pytest.fixture
def slot(tmp_path: Path, cluster: ScriptedCluster) -> Slot:
    return Slot(tmp_path, cluster)


def test_what_is_fetched_is_stored_and_known_by_its_origin(slot: Slot, cluster: ScriptedCluster) -> None:
    cluster.produce(40)
    cluster.produce(3, commit=False)
    slot.upload_all()
    slot.check_index()
    assert {manifest.origin for manifest in slot.manifests()} == {slot.watermark().origin} == {"fetch"}
    assert slot.index().observed_at.year > 2000


@pytest.mark.parametrize(("batches", "segment"), [(30, 500), (1500, 1 << 20)])
def test_a_new_spool_begins_where_the_store_ends(
    slot: Slot, cluster: ScriptedCluster, batches: int, segment: int
) -> None:
    """The last batch is found in a small segment, and by the index of a larger one."""
    cluster.produce(batches)
    cluster.answer_bytes = 50_000
    slot.upload(tails=True, segment=segment)
    last = header_of(cluster.log.batches[-1])
    assert slot.watermark().next_offset == last.next_offset
    slot.lose_spool()
    cluster.produce(5)
    asked = len(cluster.asked)
    slot.upload(tails=True)
    assert min(wanted.offset for wanted in cluster.asked[asked:]) == last.base_offset, "the last one is compared"
    assert find_segments(slot.spool / str(T))[0].base_offset >= last.next_offset
    slot.check_exact()


def test_a_new_spool_begins_at_the_branch_that_an_unclean_election_has_left(
    slot: Slot, cluster: ScriptedCluster
) -> None:
    cluster.produce(10)
    behind = cluster.log.end
    cluster.produce(10, commit=False)
    cluster.commit(1)
    slot.upload(tails=True)
    assert slot.watermark().next_offset > behind
    slot.lose_spool()
    cluster.elect(2)
    cluster.produce(3)
    settle(cluster)
    slot.upload_all()
    assert slot.watermark().gaps == ()


def test_a_new_spool_is_compared_with_the_stored_batch_of_its_own_branch(slot: Slot, cluster: ScriptedCluster) -> None:
    """The dead branch has a segment with the same offsets, under the plain name."""
    cluster.produce(5)
    slot.upload(tails=True)
    begun = cluster.log.end
    cluster.produce(1, commit=False)
    cluster.commit(1)
    slot.upload(tails=True)
    count = cluster.log.end - begun
    cluster.elect(2)
    cluster.log.append(simple(begun, count, leader_epoch=cluster.epoch))
    settle(cluster)
    slot.upload(tails=True)
    ends = {manifest.name: manifest.next_offset for manifest in slot.manifests()}
    assert ends[SegmentName(begun)] == ends[SegmentName.of_branch(begun, 1)] == slot.watermark().next_offset
    slot.lose_spool()
    cluster.produce(3)
    slot.upload_all()
    assert slot.watermark().next_offset == cluster.log.end


def test_a_new_spool_is_not_compared_with_a_stored_batch_that_lacks_erased_records(
    slot: Slot, cluster: ScriptedCluster
) -> None:
    cluster.produce(5)
    cluster.log.append(simple(cluster.log.end, 3, leader_epoch=0))
    cluster.commit()
    slot.upload(tails=True)
    keys, store = slot.keys, slot.store.inner
    mask = Mask.of(CLUSTER, TOPIC, T.partition, {0: [cluster.log.end - 1]}, ["0" * 64])
    store.put(key := mask.key(ControlKeys("", CLUSTER)), mask.to_bytes())
    last = read_manifest(PartitionStore(store, keys), max(manifest.name for manifest in slot.manifests()))
    assert last is not None
    assert rewrite(StoreOptions(), SealTask(keys, last, StoredMasks(store=store.url, keys=(key,)), 1)).new is not None
    objects = {name: stored.etag for name, stored in last.manifest.objects.items()}
    remove_segment(PartitionStore(store, keys), last.manifest.name, last.etag, objects)
    slot.lose_spool()
    cluster.produce(3)
    slot.upload(tails=True)
    assert slot.watermark().next_offset == cluster.log.end


def test_a_partition_begins_where_the_first_of_two_processes_says(slot: Slot, cluster: ScriptedCluster) -> None:
    """The other has found no object, and has a spool that begins at an earlier log start."""
    cluster.produce(9)
    twin = Slot(slot.root / "twin", cluster)
    twin.store = WatchedStore(slot.store.inner)
    twin.settings = twin.settings.model_copy(update={"raw": slot.settings.raw})

    def meanwhile(operation: str, key: str) -> None:
        if (operation, key) == ("put", slot.keys.watermark):
            slot.store.before = lambda _operation, _key: None
            cluster.delete_below(header_of(cluster.log.batches[4]).base_offset)
            twin.upload(tails=True)

    slot.store.before = meanwhile
    slot.upload(tails=True)
    watermark = slot.watermark()
    assert (watermark.start_offset, watermark.next_offset) == (cluster.log.start, cluster.log.end)
    cluster.produce(3)
    slot.upload_all()


def test_nobody_says_where_a_partition_begins_before_its_spool_does(slot: Slot, cluster: ScriptedCluster) -> None:
    cluster.produce(9)
    cluster.delete_below(header_of(cluster.log.batches[4]).base_offset)
    with closing(Watcher()) as bell, closing(slot.replica()) as replica:
        replica.catch_up(every_topic)
        replica._fetcher.followers[T].begin_again(cluster.now)
        agent = slot.agent(replica, bell)
        agent.refresh()
        [partition] = agent.leadership.partitions.values()
        with pytest.raises(SegmentChanged, match="tells the first offset"):
            partition.uploader.learn()
        replica.catch_up(every_topic)
        assert partition.look()
        partition.uploader.learn()
        assert partition.remote.log.start == cluster.log.start > 0


def test_new_spools_ask_the_store_side_by_side(tmp_path: Path) -> None:
    cluster = ScriptedCluster(partitions=8).produce(3)
    slot = Slot(tmp_path, cluster)
    slot.upload(tails=True)
    slot.lose_spool()
    meeting = threading.Barrier(8)

    def meet(operation: str, key: str) -> None:
        if (operation, key.rpartition("/")[2]) == ("get", WATERMARK_NAME) and not meeting.broken:
            meeting.wait(10)

    slot.store.before = meet
    with closing(slot.replica()) as replica:
        replica.catch_up(every_topic)
        assert {follower.spool.end for follower in replica._fetcher.line} == {cluster.log.end}


def test_offsets_that_the_brokers_still_have_are_never_called_lost(slot: Slot, cluster: ScriptedCluster) -> None:
    """A spool that begins above them, whatever the cause, is begun again."""

    def begin_above(slot: Slot) -> None:
        cluster.produce(12)
        slot.upload(tails=True)
        cluster.produce(12)
        with patch.object(SlotReplica, "_stored_end", lambda *_: StoredEnd(cluster.log.end - 1)):
            slot.lose_spool()
            slot.upload(tails=True)

    begin_above(slot)
    assert slot.watermark().gaps == ()
    slot.upload_all()
    with patch.object(SlotReplica, "lost_below", lambda _self, end, _offsets: end):
        begin_above(slot)
    assert slot.watermark().gaps, "without the rule they would be"


def test_offsets_that_retention_has_removed_before_the_fetch_are_a_gap_with_its_reason(
    slot: Slot, cluster: ScriptedCluster
) -> None:
    cluster.produce(20)
    slot.upload()
    cluster.produce(10)
    before = cluster.log.end
    cluster.produce(10)
    cluster.delete_below(before)
    slot.upload_all()
    [gap] = slot.watermark().gaps
    assert (gap.end, gap.reason) == (before, "deleted_before_upload")
    assert not [manifest for manifest in slot.manifests() if manifest.state != "whole"]


def test_what_the_spool_has_below_the_gap_is_stored(slot: Slot, cluster: ScriptedCluster) -> None:
    """The active segment ends where retention has passed it, and is sealed with what it has."""
    cluster.produce(9)
    had = cluster.log.end
    slot.replica().catch_up(every_topic)
    cluster.produce(10)
    before = cluster.log.end
    cluster.produce(10)
    cluster.delete_below(before)
    slot.upload_all()
    assert [(gap.start, gap.end) for gap in slot.watermark().gaps] == [(had, before)]


def test_segments_that_offset_wm_accounts_for_leave_the_spool(slot: Slot, cluster: ScriptedCluster) -> None:
    cluster.produce(60)
    slot.replica().catch_up(every_topic)
    folder = slot.spool / str(T)
    assert len(find_segments(folder)) > 3
    slot.upload(tails=True)
    assert len(find_segments(folder)) == 1
    cluster.produce(20)
    slot.upload_all()


def test_the_rest_of_a_deleted_topic_is_stored_and_the_next_one_followed(slot: Slot, cluster: ScriptedCluster) -> None:
    """Kafka removes a deleted topic's files; a spool keeps what it has until the store has it."""
    cluster.produce(20)
    replica = caught_up(slot)
    end, first = cluster.log.end, cluster.topic_id
    cluster.make_again()
    cluster.produce(4)
    slot.upload_with(replica, tails=True)
    assert (slot.watermark().topic_id, slot.watermark().next_offset) == (first, end)
    slot.upload_with(replica, tails=True)
    slot.upload_with(replica, tails=True)
    replica.close()
    place = slot.watermark(f"{T.topic}@{OTHER_ID}")
    assert (place.topic_id, place.next_offset) == (OTHER_ID, cluster.log.end)


def test_a_topic_that_was_deleted_while_nobody_followed_it_is_over_after_a_minute(
    slot: Slot, cluster: ScriptedCluster
) -> None:
    cluster.produce(20)
    end = cluster.log.end
    slot.replica().catch_up(every_topic)
    cluster.exists = False
    replica = caught_up(slot)
    replica.catch_up(every_topic)
    assert (cluster.now >= 60, replica.over) == (True, {(T, cluster.topic_id): end})
    slot.upload_with(replica, tails=True)
    assert slot.watermark().next_offset == end
    replica.catch_up(every_topic)
    assert not (slot.spool / str(T)).exists()


def test_a_full_spool_stops_fetching_and_ends_its_segments_to_be_sealed(slot: Slot, cluster: ScriptedCluster) -> None:
    cluster.produce(40)
    replica = caught_up(slot, spool_max=600, segment=1 << 20)
    replica.close()
    got = batches_in(slot.spool / str(T))
    assert 0 < len(got) < 40
    assert find_segments(slot.spool / str(T))[-1].size == 0
    slot.upload(tails=True)
    slot.upload_all()


def turns(replica: SlotReplica, cluster: ScriptedCluster, seconds: float) -> None:
    """Let ``seconds`` pass."""
    until = cluster.now + seconds
    while cluster.now < until:
        replica._turn()


def test_a_full_spool_follows_an_election_and_a_deletion(slot: Slot, cluster: ScriptedCluster) -> None:
    """Otherwise nothing of it could be sealed, and it would never have room again."""
    cluster.produce(40)
    replica = caught_up(slot, spool_max=600, segment=1 << 20)
    follower = replica._fetcher.followers[T]
    cluster.elect(2)
    cluster.commit()
    turns(replica, cluster, 15)
    assert (replica._full, follower.spool.lineage.entries[-1][0]) == (True, cluster.epoch)
    cluster.exists = False
    turns(replica, cluster, 90)
    assert replica.over == {(T, cluster.topic_id): follower.spool.end}
    replica.close()


def test_what_comes_while_the_spool_is_full_ends_its_segment_too(slot: Slot, cluster: ScriptedCluster) -> None:
    """Otherwise it is not sealed, and where it fills the spool by itself, that never has room again."""
    cluster.produce(40)
    replica = caught_up(slot, spool_max=600, segment=1 << 20)
    follower = replica._fetcher.followers[T]
    before = follower.spool.end
    follower.state = FollowerState.WAITING  # as after an error of its leader, which it then asks once more
    turns(replica, cluster, 5)
    assert replica._full
    assert follower.spool.end != before
    assert find_segments(slot.spool / str(T))[-1].size == 0
    replica.close()


def test_a_topic_that_is_deleted_while_its_leader_does_not_answer_is_over(slot: Slot, cluster: ScriptedCluster) -> None:
    cluster.produce(20)
    replica = caught_up(slot)
    replica._fetcher.followers[T].unanswered(BrokerUnavailable("lost on the way"), cluster.now)
    cluster.exists = False
    turns(replica, cluster, 90)
    assert replica.over == {(T, cluster.topic_id): cluster.log.end}
    replica.close()


def test_what_a_deleted_topics_spool_lacks_is_lost(slot: Slot, cluster: ScriptedCluster) -> None:
    """And the next topic of that name is followed."""
    cluster.produce(20)
    slot.upload(tails=True)
    slot.lose_spool()
    cluster.produce(10)
    start = cluster.log.end
    cluster.produce(10)
    cluster.delete_below(start)
    replica = caught_up(slot)
    end, old = cluster.log.end, slot.watermark()
    cluster.make_again()
    cluster.produce(4)
    for _ in range(3):
        slot.upload_with(replica, tails=True)
    replica.close()
    said = slot.watermark()
    assert [(gap.start, gap.end, gap.reason) for gap in said.gaps] == [
        (old.next_offset, start, "deleted_before_upload")
    ]
    assert said.accounted_end == end
    assert slot.watermark(f"{T.topic}@{OTHER_ID}").next_offset == cluster.log.end


def test_a_restarted_replica_learns_what_the_store_has(slot: Slot, cluster: ScriptedCluster) -> None:
    """Of gaps, too. Otherwise a full spool would not make room."""
    cluster.produce(20)
    slot.upload()
    cluster.produce(10)
    start = cluster.log.end
    cluster.produce(10)
    cluster.delete_below(start)
    slot.upload(tails=True)
    assert slot.watermark().gaps
    replica = slot.replica()
    slot.upload_with(replica)
    replica._take_news()
    replica.close()
    assert replica._stored == {(T, cluster.topic_id): cluster.log.end}
    assert len(find_segments(slot.spool / str(T))) == 1


def test_no_error_ends_the_thread(slot: Slot, cluster: ScriptedCluster) -> None:
    """All partitions need it, and the files are opened again as after a kill."""
    replica, turned = slot.replica(), itertools.count()

    def turn(replica: SlotReplica) -> None:
        if next(turned):
            replica.worker.stop()
        else:
            raise RuntimeError("what no client library promised to raise")

    with patch.object(SlotReplica, "_turn", turn), patch.object(replica_module, "_PAUSE_SECONDS", 0.0):
        replica.worker.run()
    assert next(turned) == 2


def test_a_disk_error_has_the_spool_opened_again(slot: Slot, cluster: ScriptedCluster) -> None:
    cluster.produce(20)
    replica, failed = slot.replica(), itertools.count()
    append = PartitionSpool.append

    def once(spool: PartitionSpool, batches: memoryview, *about: Any) -> None:
        if next(failed) == 1:
            os.pwrite(spool._last or -1, bytes(batches[:50]), spool._last_size)
            raise OSError(28, "No space left on device")
        append(spool, batches, *about)

    def stop_when_caught_up(replica: SlotReplica) -> None:
        turn(replica)
        follower = replica._fetcher.followers.get(T)
        if follower is not None and follower.spool.end == cluster.log.end:
            replica.worker.stop()

    turn = SlotReplica._turn
    with (
        patch.object(PartitionSpool, "append", once),
        patch.object(replica_module, "_PAUSE_SECONDS", 0.0),
        patch.object(SlotReplica, "_turn", stop_when_caught_up),
    ):
        replica.worker.run()
    assert next(failed) > 2
    assert batches_in(slot.spool / str(T)) == cluster.log.batches


def test_a_disk_error_at_one_of_many_new_spools_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = ScriptedCluster(partitions=30).produce(1)
    replica, real = Slot(tmp_path, cluster).replica(), PartitionSpool.begin
    full = {str(TopicPartition(TOPIC, 7))}

    def init(self: PartitionSpool, root: Path, tp: TopicPartition, topic_id: str, segment_bytes: int) -> None:
        real_init(self, root, tp, topic_id, segment_bytes)
        if str(tp) in full:
            self.close()
            raise OSError(errno.EIO, "Input/output error")

    def begin(self: PartitionSpool, offset: int, opened: Iterable[OpenTransaction] = ()) -> None:
        if self.folder.name in full:
            raise OSError(errno.EIO, "Input/output error")
        real(self, offset, opened)

    def open_spools() -> list[str]:
        return [link for link in map(_target, Path("/proc/self/fd").iterdir()) if link.startswith(str(tmp_path))]

    real_init = PartitionSpool.__init__
    monkeypatch.setattr(PartitionSpool, "__init__", init)
    with pytest.raises(OSError, match="Input/output"):
        replica._turn()
    assert len(replica._fetcher.line) == 29, "the others are there"
    replica.close()
    monkeypatch.setattr(PartitionSpool, "__init__", real_init)
    monkeypatch.setattr(PartitionSpool, "begin", begin)
    with pytest.raises(OSError, match="Input/output"):
        replica.catch_up(every_topic)
    assert open_spools()
    replica.close()
    assert not open_spools()
    full.clear()
    replica.catch_up(every_topic)
    assert {follower.spool.end for follower in replica._fetcher.line} == {cluster.log.end}
    replica.close()


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return ""


def test_a_topic_that_is_excluded_is_followed_no_more(slot: Slot, cluster: ScriptedCluster) -> None:
    cluster.produce(10)
    replica = caught_up(slot)
    had = len(cluster.log.batches)
    cluster.produce(10)
    cluster.now += 60
    replica.catch_up(lambda _: False)
    assert len(batches_in(slot.spool / str(T))) == had
    replica.close()
    slot.upload_all()


def test_a_spool_that_cannot_be_used_is_told_and_a_foreign_one_is_not_led(
    slot: Slot, cluster: ScriptedCluster, tmp_path: Path
) -> None:
    cluster.produce(10)
    folder = slot.spool / str(T)
    folder.mkdir(parents=True)
    (folder / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABA\n")
    (folder / "leader-epoch-checkpoint").write_text("damaged")
    slot.upload()
    assert not slot.store.puts or not any(key.endswith(".log") for key in slot.store.puts)
    with closing(slot.replica()) as replica:
        replica.catch_up(every_topic)
        assert stopped(replica) == {"spool": 1}
        shutil.rmtree(folder)
        while cluster.now < 30:
            replica._turn()
        assert stopped(replica) == {}
    slot.upload_all()
    end, slots = slot.watermark().next_offset, 7
    [number] = {slot_of(cluster.topic_id, T.partition, slots)}
    assert slot.settings.fetch is not None
    others = slot.settings.fetch.model_copy(update={"slots": slots, "slot": (number + 1) % slots})
    slot.settings = slot.settings.model_copy(update={"fetch": others})
    cluster.produce(10)
    agent = slot.upload(tails=True)
    assert (agent.leadership.partitions, slot.watermark().next_offset) == ({}, end)


def test_each_partition_has_one_slot_and_few_move_when_there_are_more() -> None:
    of = {slots: [slot_of("AAAAAAAAAAAAAAAAAAAAAQ", number, slots) for number in range(4000)] for slots in (4, 5)}
    assert min(of[4].count(slot) for slot in range(4)) > 850
    moved = [(was, now) for was, now in zip(of[4], of[5], strict=True) if was != now]
    assert {now for _, now in moved} == {4}
    assert 700 < len(moved) < 900


@pytest.mark.parametrize("case", range(15))
def test_random_worlds(tmp_path: Path, seed: int, case: int, monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    """Elections, retention, bad answers, kills, a store that fails, a spool that is lost; then peace: all is exact."""
    random_world(tmp_path, f"{seed}:{case}", monkeypatch, passes=25 if full else 8)


def random_world(tmp_path: Path, seed: str, monkeypatch: pytest.MonkeyPatch, passes: int) -> None:
    rng = random.Random(seed)
    cluster = ScriptedCluster(rng.randrange(1 << 30))
    slot = Slot(tmp_path, cluster)
    calls: dict[str, Callable[..., object]] = {name: getattr(os, name) for name in WRITES}
    for _ in range(passes):
        for _ in range(rng.randint(0, 3)):
            misfortune(cluster, rng)
        cluster.mischief = {fault: rng.choice((0.0, 0.0, 0.1)) for fault in ALL}
        if rng.random() < 0.15:
            slot.lose_spool()
        killer = Killer(rng.choice((1000, 1000, rng.randint(0, 12))))
        with monkeypatch.context() as patched:
            for name, call in calls.items():
                patched.setattr(os, name, killer.around(name, call))
            with suppress(Killed):
                slot.replica().catch_up(every_topic)
        if rng.random() < 0.7:
            left = itertools.count(rng.choice((0, 0, 0, -1, -3, -6)) or -(10**6))
            slot.store.before = lambda operation, key, left=left: _fail_from(left, key)  # type: ignore[misc]
            with suppress(Refused, Killed):
                slot.upload(tails=rng.random() < 0.5)
            slot.store.before = lambda _operation, _key: None
    settle(cluster)
    for _ in range(3):
        slot.upload_all()
    slot.check_index()


def _fail_from(left: itertools.count[int], key: str) -> None:
    if next(left) >= 0:
        raise Refused(key, "the store is away")


def mutants() -> dict[str, Callable[[pytest.MonkeyPatch], None]]:
    """Each breaks one rule by which a spool is no broker's disk."""

    def set_(target: object, name: str, value: object) -> Callable[[pytest.MonkeyPatch], None]:
        return lambda patched: patched.setattr(target, name, value)

    return {
        "an empty segment marks a gap": set_(SlotReplica, "marks_gaps", False),
        "a spool begins where the store ends": set_(SlotReplica, "_stored_end", lambda *_: StoredEnd(1 << 40)),
    }


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rule", mutants())
def test_each_broken_rule_is_seen(tmp_path: Path, seed: int, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def worlds() -> None:
        for case in range(300):
            root = tmp_path / str(case)
            random_world(root, f"{seed}:{case}", monkeypatch, passes=10)
            shutil.rmtree(root)

    mutants()[rule](monkeypatch)
    with pytest.raises(Exception, match=r"."):  # whatever a world says of it
        worlds()


def test_the_log_end_is_the_leaders(slot: Slot, cluster: ScriptedCluster) -> None:
    """A fetcher that is stuck must not look like a topic that is idle."""
    cluster.produce(10)
    slot.upload()
    stuck = slot.replica()
    cluster.produce(10)
    with patch.object(SlotReplica, "catch_up", lambda *_: None):
        slot.upload_with(stuck)
    slot.check_index()
    assert slot.index().log_end_offset > (find_segments(slot.spool / str(T))[-1].base_offset)


def test_what_is_left_of_retention_shrinks_while_nothing_is_fetched(slot: Slot, cluster: ScriptedCluster) -> None:
    cluster.produce(10)
    replica = caught_up(slot)
    replica._measure_retention()
    assert replica.retention_left(T, cluster.topic_id) == 1.0
    newest = replica._fetcher.followers[T].newest
    assert newest is not None
    cluster.produce(10, commit=False)
    cluster.log.high_watermark = cluster.log.end
    replica._fetcher.followers[T].high_watermark = cluster.log.end
    for seconds, left in ((250, 0.75), (900, 0.1), (2000, 0.0)):
        with patch.object(ScriptedTime, "time", lambda _, seconds=seconds: newest / 1000 + seconds):
            replica._measure_retention()
        assert replica.retention_left(T, cluster.topic_id) == left
    with patch.object(SlotReplica, "catch_up", lambda *_: None):
        slot.upload_with(replica)
    assert slot.index().retention_left == 0.0
    replica.close()


def test_what_is_left_of_retention_by_bytes_shrinks_with_what_is_not_fetched(
    slot: Slot, cluster: ScriptedCluster
) -> None:
    cluster.produce(10)
    replica = slot.replica()
    cluster.kept = Retention(None, 1000)
    replica.catch_up(every_topic)
    follower = replica._fetcher.followers[T]
    assert follower.bytes_per_offset is not None
    assert follower.spool.end is not None
    replica._measure_retention()
    assert replica.retention_left(T, cluster.topic_id) == 1.0
    for missing, left in ((400, 0.6), (1500, 0.0)):
        follower.high_watermark = follower.spool.end + round(missing / follower.bytes_per_offset)
        replica._measure_retention()
        assert replica.retention_left(T, cluster.topic_id) == pytest.approx(left, abs=0.05)
    cluster.kept = Retention(None, None)
    replica._retention_at = cluster.now
    replica._measure_retention()
    assert replica.retention_left(T, cluster.topic_id) == 1.0
    replica.close()


def test_an_idle_partition_is_asked_for_its_log_end_alone(slot: Slot, cluster: ScriptedCluster) -> None:
    cluster.produce(10)
    replica = caught_up(slot)
    replica.close()
    admin = ScriptedAdmin(cluster)
    assert slot.settings.fetch is not None
    metadata = SlotMetadata(slot.settings.fetch, FIRST_SLOT, admin, dict)
    led = {T: metadata.leaders([T])[T].led}
    first = metadata.offsets(led)
    assert (metadata.offsets(led), admin.asked) == (first, 1)
    cluster.delete_below(3)
    starts = [metadata.offsets(led)[T].log_start_offset for _ in range(12)]
    assert (starts[0], starts[-1], admin.asked) == (0, 3, 2), "DeleteRecords moves the start of an idle log"
    cluster.produce(1, commit=False)
    said = metadata.offsets(led)[T]
    assert (said.high_watermark, said.log_end, admin.asked) == (first[T].high_watermark, cluster.log.end, 3)
    metadata.offsets(led)
    assert admin.asked == 4, "the high watermark may follow"


def test_a_directory_that_stands_is_not_read_again_and_the_index_stays_as_new_as_the_answers(
    slot: Slot, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, real = list[TopicPartition](), LedPartition.read_active

    def read_active(self: LedPartition) -> Active | None:
        reads.append(self.tp)
        return real(self)

    monkeypatch.setattr(LedPartition, "read_active", read_active)
    cluster.produce(10)
    with closing(Watcher()) as bell, closing(slot.replica()) as replica:
        agent, minutes = slot.agent(replica, bell), itertools.count()
        began = agent.components.runtime.utc_now()
        monkeypatch.setattr(agent.components.runtime, "utc_now", lambda: began + timedelta(minutes=next(minutes)))
        agent.upload_once(tails=True)
        [partition] = agent.leadership.partitions.values()
        spool = replica._fetcher.followers[T].spool

        def entry() -> IndexEntry:
            reads.clear()
            agent.refresh()
            agent.index._write(now=True)
            assert partition.observation is not None
            assert partition.observation.asked_at is not None
            assert partition.observation.asked_at - slot.index().observed_at < timedelta(seconds=1)
            return slot.index()

        def fetch() -> None:
            while spool.end != cluster.log.end:
                replica._turn()

        first = entry()
        stands = entry()
        assert not reads
        assert stands.observed_at > first.observed_at
        assert stands.model_copy(update={"observed_at": first.observed_at}) == first
        cluster.produce(5)
        assert entry().log_end_offset == cluster.log.end, "the spool does not have them yet"
        fetch()
        assert entry().active_base_offset == find_segments(spool.folder)[-1].base_offset
        assert reads
        agent.poller.ask_offsets(agent.leadership.ask([T]))
        cluster.produce(5)
        fetch()
        for answer in agent.poller.answer_all():
            assert isinstance(answer, OffsetsAnswer)
            agent.leadership.observe(answer)
        assert partition.observation is not None
        assert partition.observation.active is not None
        assert partition.observation.active.end == cluster.log.end, "it was appended after the look"
        spool.roll()
        assert entry().active_base_offset == spool.end, "the leader has answered the same"
        replica._left = {(T, cluster.topic_id): 0.5}
        partition.apply_freshness(60.0)
        changed = entry()
        assert (changed.retention_left, changed.freshness) == (0.5, 60.0)


def test_a_partition_that_has_stopped_is_told_once(
    slot: Slot, cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.produce(10)
    replica = caught_up(slot)
    follower = replica._fetcher.followers[T]
    follower.stop(FetchStopped(StopReason.RIGHT, "orders-0: the right READ is missing"))
    for _ in range(3):
        replica._measure()
        follower.unanswered(BrokerUnavailable("the request in flight was lost"), cluster.now)
        assert stopped(replica) == {"right": 1}
    assert capsys.readouterr().out.count("the right READ is missing") == 1
    cluster.now += 301
    replica._measure()
    assert "the right READ is missing" in capsys.readouterr().out


def test_an_observation_of_a_followed_log_is_as_old_as_the_leaders_answer(slot: Slot, cluster: ScriptedCluster) -> None:
    cluster.produce(10)
    agent = slot.upload()
    [partition] = agent.leadership.partitions.values()
    observation, later = partition.observation, agent.components.runtime.utc_now() + timedelta(seconds=1)
    assert observation is not None
    assert observation.asked_at is not None
    assert observation.held_at(later, partition.disk.tail) == observation.asked_at < later


DENIED = FetchStopped(StopReason.RIGHT, "payments: the right DESCRIBE is missing")


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (DENIED, FollowerState.STOPPED),
        (BrokerUnavailable("payments: no leader is available"), FollowerState.WAITING),
        (None, None),
    ],
)
def test_a_topic_that_is_not_described_stops_alone(
    slot: Slot,
    cluster: ScriptedCluster,
    answer: FetchStopped | BrokerUnavailable | None,
    state: FollowerState | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The spool has its directory since it was described, so it is asked for by name; none of this name is deleted."""
    other = TopicPartition("payments", 0)
    PartitionSpool(slot.spool, other, OTHER_ID, 500).close()
    replica, topics = slot.replica(), cluster.topics

    async def refusing(names: Collection[str] | None) -> dict[str, TopicAnswer]:
        asked = answer is not None and names is not None and other.topic in names
        return {**await topics(names), **({other.topic: answer} if asked and answer is not None else {})}

    with patch.object(cluster, "topics", refusing), closing(replica):
        for until in (70, 71):
            cluster.produce(10)
            while cluster.now < until:
                replica._turn()
        assert replica._fetcher.followers[T].spool.end == cluster.log.end, "the other topic goes on"
        follower = replica._fetcher.followers.get(other)
        assert (follower and follower.state, follower and follower.error) == (state, answer)
    assert capsys.readouterr().out.count(str(DENIED)) == (answer is DENIED)


def test_a_topic_that_is_refused_before_it_is_followed_is_told(
    slot: Slot, cluster: ScriptedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refusing(_names: Collection[str] | None) -> dict[str, TopicAnswer]:
        return {"payments": DENIED}

    with patch.object(cluster, "topics", refusing), closing(slot.replica()) as replica:
        while cluster.now < 30:
            replica._turn()
        assert stopped(replica) == {"right": 1}
    assert capsys.readouterr().out.count(str(DENIED)) == 1


def as_if_by_the_disk_agent_of_broker_1(slot: Slot, *, minutes_ago: int) -> None:
    """Have the store say of what the slot wrote that an agent wrote it from its disk, and ran until then."""
    base, written = parse(slot.store.inner.get(slot.keys.watermark).body, slot.keys.watermark)
    assert written is not None
    slot.store.inner.put(slot.keys.watermark, render(base, written.model_copy(update={"origin": "disk", "broker": 1})))
    control = ControlKeys("", CLUSTER)
    body = slot.store.inner.get(control.index(FIRST_SLOT)).body
    index = WatermarkIndex.from_bytes(body, "index")
    at = datetime.now(UTC) - timedelta(minutes=minutes_ago)
    slot.store.inner.delete(control.index(FIRST_SLOT))
    slot.store.inner.put(
        control.index(1), index.model_copy(update={"broker": 1, "written_at": at, "endpoints": None}).to_bytes()
    )


@pytest.mark.parametrize(
    ("policy", "minutes_ago", "refused"),
    [("compact", 1, True), ("compact,delete", 1, True), ("compact", 4, False), ("delete", 1, False)],
)
@pytest.mark.parametrize("elected", [False, True])
def test_one_origin_at_a_time_uploads_a_compacted_log(
    slot: Slot,
    cluster: ScriptedCluster,
    policy: str,
    minutes_ago: int,
    *,
    refused: bool,
    elected: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Beside a disk agent that runs a slot writes nothing; after that agent has stopped it goes on."""
    cluster.cleanup_policy = policy
    cluster.produce(30)
    slot.upload(tails=True)
    as_if_by_the_disk_agent_of_broker_1(slot, minutes_ago=minutes_ago)
    before = slot.watermark(), slot.manifests()
    cluster.produce(30)
    if elected:
        cluster.elect(2)
        cluster.produce(3)
    slot.upload(tails=True)
    said = capsys.readouterr().out
    assert ("orders-0: the agent of broker 1 uploads it by disk, and this one would by fetch" in said) == refused
    assert ((slot.watermark(), slot.manifests()) == before) == refused
    if not refused:
        slot.check_exact()


def test_a_new_spool_is_not_begun_behind_another_logs_batches(slot: Slot, cluster: ScriptedCluster) -> None:
    cluster.produce(30)
    slot.upload(tails=True)
    before = slot.watermark()
    slot.lose_spool()
    restored(cluster)
    cluster.produce(5)
    slot.upload(tails=True)
    replica = caught_up(slot)
    assert "another log has this topic's id" in str(replica._fetcher.followers[T].error)
    replica._measure()
    assert stopped(replica) == {"other_log": 1}
    replica.close()
    assert (slot.watermark().next_offset, batches_in(slot.spool / str(T))) == (before.next_offset, [])


def test_another_log_that_a_slot_has_met_is_told_as_of_a_broker(slot: Slot, cluster: ScriptedCluster) -> None:
    cluster.produce(30)
    slot.upload()
    last, stored = header_of(cluster.log.batches[-1]), slot.manifests()
    restored(cluster)
    cluster.produce(5)
    with closing(Watcher()) as bell, closing(caught_up(slot)) as replica:
        replica._measure()
        agent = slot.agent(replica, bell)
        agent.upload_once()
        trouble = agent.leadership.other_histories()
    told = slot.index().other_history
    assert told is not None
    assert (told.at, told.stored_end, told.log_end) == (last.base_offset, last.next_offset, cluster.log.end)
    assert told.stored is not None
    assert told.stored != told.local
    assert trouble is not None
    assert f"another history than the stored one from offset {last.base_offset} on" in trouble
    assert slot.manifests() == stored
