"""What one pass of the agent leaves in the store, on disks made by hand."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from crc32c import crc32c

from tests.support.raw_builder import word
from tests.tidemark.kafka_log.build import Record, batch, marker, transactional
from tests.uploader_agent.fakes import CLUSTER, ID, OTHER_ID, FakePartition, T, World, records
from tests.uploader_agent.packs.packing import pack_once
from tests.uploader_agent.tested_agent import TestedAgent
from tidemark.errors import AccessDenied, NotFound, UnknownOutcome
from tidemark.formats.keys import SegmentName, TopicPartition
from tidemark.formats.raw.incarnations import TopicIncarnations
from tidemark.formats.raw.watermark_index import WatermarkIndex
from uploader_agent.broker.admin import Led
from uploader_agent.tuning import STANDARD


def no_errors(agent: TestedAgent) -> None:
    assert {str(at): one.error for at, one in agent.leadership.partitions.items() if one.error} == {}


def test_rotated_and_committed_segments_go_and_nothing_else(world: World) -> None:
    partition = world.disk.partition().fill(0, 100, 200, end=300)
    world.metadata.default_high = 250
    agent = world.once()
    no_errors(agent)
    assert world.names() == [
        *(f"{0:020d}.{kind}" for kind in ("index", "log", "manifest.json", "timeindex")),
        *(f"{100:020d}.{kind}" for kind in ("index", "log", "manifest.json", "timeindex")),
        "offset.wm",
    ]
    for base in (0, 100):
        assert world.stored(base) == partition.log(base).read_bytes()
    base, watermark = world.watermark()
    assert (base, watermark.next_offset, watermark.start_offset, watermark.leader_epoch) == (100, 200, 0, 3)
    assert watermark.lineage == ((3, 0),)
    assert watermark.ranges_above == ()
    assert watermark.gaps == ()


def test_manifest_says_what_the_bytes_are(world: World) -> None:
    partition = world.disk.partition().fill(0, end=95)
    world.once()
    manifest, content = world.manifest(0), partition.log(0).read_bytes()
    assert (manifest.cluster, manifest.topic, manifest.topic_id, manifest.partition) == (CLUSTER, "orders", ID, 0)
    assert (manifest.base_offset, manifest.last_batch_end, manifest.next_offset) == (0, 95, 95)
    assert (manifest.batch_count, manifest.magics, manifest.codecs, manifest.state) == (10, (2,), ("none",), "whole")
    total = manifest.objects[f"{0:020d}.log"]
    assert (total.size, total.crc32c) == (len(content), f"{crc32c(content):08x}")
    assert total.etag == world.store.head(world.keys().segment(SegmentName(0), "log")).etag
    assert manifest.rotated_at is not None
    assert manifest.uploaded_at >= manifest.rotated_at


def test_second_pass_puts_nothing_but_the_index(world: World) -> None:
    world.disk.partition().fill(0, 100, end=200)
    world.once()
    world.store.puts.clear()
    world.once()
    assert world.store.puts == [world.control.index(1)]


def test_index_tells_all_at_a_glance(world: World) -> None:
    world.disk.partition().fill(0, 100, end=200).segment(200, records(200, 230))
    world.metadata.default_high = 225
    world.once()
    key = world.control.index(1)
    [entry] = WatermarkIndex.from_bytes(world.store.get(key).body, key).entries
    assert (entry.topic, entry.partition, entry.topic_id, entry.incarnation) == ("orders", 0, ID, 0)
    assert (entry.next_offset, entry.uploaded_end, entry.high_watermark, entry.log_end_offset) == (200, 200, 225, 230)
    newest = world.store.head(world.keys().segment(SegmentName(100), "log"))
    assert entry.bytes_per_offset == round(newest.size / 100, 3)
    header_times = (1_770_000_000_000, 1_770_000_000_009)
    assert (entry.active_first_timestamp, entry.active_max_timestamp) == header_times


def test_two_log_dirs_and_a_stranger(tmp_path: pytest.TempPathFactory, world: World) -> None:
    two = World(world.root / "two", log_dirs=2)
    other = TopicPartition("orders", 1)
    two.metadata.leads[other] = Led(3, ID)
    two.disk.partition().fill(0, end=50)
    two.disk.partition(other, log_dir=1).fill(0, end=70)
    (two.disk.log_dirs[1] / "not a partition").mkdir()
    (two.disk.log_dirs[0] / "orders-7.0123abc-delete").mkdir()
    no_errors(two.once())
    assert [two.watermark(at)[1].next_offset for at in (T, other)] == [50, 70]


def test_partition_of_another_leader_is_left_alone(world: World) -> None:
    world.disk.partition().fill(0, end=50)
    world.metadata.leads.clear()
    world.once()
    assert world.names() == []


@pytest.mark.parametrize("packed", [False, True], ids=["", "packed"])
def test_all_tails_are_sealed_before_a_broker_is_taken_away(world: World, *, packed: bool) -> None:
    """As far as they are committed at the first look: a producer that goes on does not keep the command busy."""
    world.disk.partition().segment(0, records(0, 50))
    if packed:
        pack_once(world, 30)
    world.metadata.default_high = 40
    world.once()
    assert SegmentName(0).file("log") not in world.names(), "a tail that is not quiet stays"

    def produces(operation: str, key: str) -> None:
        if operation == "put" and key.endswith(".log"):
            world.metadata.default_high += 10

    world.store.before = produces
    with world.agent() as agent:
        agent.upload_once(tails=True)
        no_errors(agent)
    assert world.stored(0) == records(0, 40)
    assert [name for name in world.names() if name.endswith(".log")] == [SegmentName(0).file("log")]
    assert world.watermark()[1].next_offset == 40


def test_a_quiet_tail_is_sealed_and_what_follows_is_a_segment_of_its_own(world: World) -> None:
    partition = world.disk.partition().fill(0, end=100).segment(100, records(100, 130))
    world.metadata.default_high = 120
    world.once(tail_after="1h")
    assert world.watermark()[1].next_offset == 100, "an active segment that was just written to stays"

    old = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    os.utime(partition.log(100), (old, old))
    no_errors(world.once(tail_after="1h"))
    first = world.manifest(100)
    assert (first.state, first.next_offset, first.rotated_at) == ("whole", 120, None)
    assert world.stored(100) == records(100, 120), "up to the high watermark, no further"
    assert (world.watermark()[0], world.watermark()[1].next_offset) == (100, 120)

    world.metadata.default_high = 130
    no_errors(world.once(tail_after="1h"))
    assert world.stored(120) == records(120, 130)
    assert world.watermark()[1].next_offset == 130

    partition.segment(100, records(100, 150)).roll(150)
    world.metadata.default_high = 150
    no_errors(world.once(tail_after="1h"))
    assert [(world.manifest(base).next_offset, world.stored(base)) for base in (100, 120, 130)] == [
        (120, records(100, 120)),
        (130, records(120, 130)),
        (150, records(130, 150)),
    ]
    assert world.manifest(100) == first
    assert world.manifest(130).rotated_at is not None
    assert world.watermark()[1].next_offset == 150
    segments = [key for key in world.store.puts if key.startswith(world.keys().folder) and not key.endswith(".wm")]
    assert len(segments) == len(set(segments)), "no object is written twice"


def test_rotated_right_at_the_end_of_a_sealed_tail(world: World) -> None:
    partition = world.disk.partition().segment(0, records(0, 50))
    world.metadata.default_high = 50
    world.once(tail_after="0s")
    partition.roll(50)
    world.store.puts.clear()
    world.once(tail_after="0s")
    assert world.store.puts == [world.control.index(1)], "there is nothing left to seal"


@pytest.mark.parametrize("hint", ["index", "no index", "stale index"])
def test_a_run_begins_at_its_own_batch_wherever_the_index_points(world: World, hint: str) -> None:
    partition = world.disk.partition()
    content = records(0, 90)
    partition.segment(0, content)
    world.metadata.default_high = 70
    world.once(tail_after="0s")
    index = partition.log(0).with_suffix(".index")
    if hint == "no index":
        index.unlink()
    elif hint == "stale index":  # of a log that was truncated: an offset and a byte where no batch begins
        index.write_bytes(struct.pack(">ii", 39, len(records(0, 30)) + 7))
    partition.roll(90)
    world.metadata.default_high = 90
    no_errors(world.once())
    assert world.stored(70) == records(70, 90)
    assert (world.manifest(70).next_offset, world.manifest(70).batch_count) == (90, 2)


@pytest.mark.parametrize(
    ("epoch", "damaged", "rule"),
    [(3, True, "checksum"), (2, False, "leader epoch 2 is not 3")],
    ids=["a record", "an epoch"],
)
def test_an_active_segment_that_is_damaged_is_not_sealed(world: World, epoch: int, damaged: bool, rule: str) -> None:
    """It may be read again: a person may restore the replica."""
    content = records(0, 10, epoch=epoch) + records(10, 50)
    world.disk.partition().segment(0, flipped(content) if damaged else content)
    world.metadata.default_high = 50
    agent = world.once(tail_after="0s")
    assert rule in (agent.leadership.partitions[T].error or "")
    assert world.names() == ["offset.wm"]


def test_what_a_later_leader_wrote_is_not_sealed_under_a_former_leadership(world: World) -> None:
    """The deposed broker has truncated its log and fetches; its last answered high watermark is of before."""
    world.disk.partition().lineage([(3, 0), (4, 30)]).segment(0, records(0, 30) + records(30, 50, epoch=4))
    world.metadata.default_high = 50
    world.once(tail_after="0s")
    assert [name for name in world.names() if name.endswith(".log")] == []
    world.metadata.leads = {T: Led(4, ID)}
    world.once(tail_after="0s")
    assert world.watermark()[1].next_offset == 50


def test_same_bytes_from_another_broker_are_adopted(world: World) -> None:
    world.disk.partition().fill(0, end=50)
    log = world.keys().segment(SegmentName(0), "log")
    etag = world.store.inner.put(log, records(0, 50))
    no_errors(world.once())
    assert world.store.head(log).etag == etag
    assert log not in world.store.puts
    assert world.watermark()[1].next_offset == 50


def test_longer_segment_of_another_leader_stands(world: World) -> None:
    """Replicas roll where they like: what they have below our base is ours, too."""
    follower = World(world.root / "follower")
    follower.store, follower.endpoint = world.store, world.endpoint
    world.disk.partition().fill(0, end=100)
    world.once()
    follower.metadata.leads = {T: Led(4, ID)}
    partition = follower.disk.partition().lineage([(3, 0), (4, 100)]).fill(0, 60, end=130)
    partition.segment(60, records(60, 100) + records(100, 130, epoch=4))
    no_errors(follower.once())
    assert follower.stored(0) == records(0, 100)
    assert world.watermark()[1].next_offset == 130
    assert world.watermark()[1].leader_epoch == 4
    assert world.watermark()[1].lineage == ((3, 0), (4, 100))


def test_a_branch_that_an_election_cut_off_keeps_its_objects(world: World) -> None:
    """After an unclean election the same base and size hold other data: both stay."""
    partition = world.disk.partition().fill(0, 100, end=200)
    world.once()
    before = {name: world.store.get(world.keys().file(name)) for name in world.names() if name != "offset.wm"}
    world.metadata.leads = {T: Led(5, ID)}
    partition.lineage([(3, 0), (5, 100)])
    partition.fill(0, 100, end=200, epoch=3)
    partition.segment(100, records(100, 200, epoch=5))
    no_errors(world.once())
    assert world.stored(100, suffix="5") == records(100, 200, epoch=5)
    assert world.manifest(100, suffix="5").lineage == ((3, 0), (5, 100))
    assert {name: world.store.get(world.keys().file(name)) for name in before} == before
    _, watermark = world.watermark()
    assert (watermark.leader_epoch, watermark.next_offset, watermark.lineage) == (5, 200, ((3, 0), (5, 100)))


def test_truncated_log_takes_the_watermark_back_under_a_higher_epoch(world: World) -> None:
    partition = world.disk.partition().fill(0, 100, end=200)
    world.once()
    for path in partition.folder.glob(f"{200:020d}.*"):
        path.unlink()
    partition.segment(100, records(100, 150))
    partition.lineage([(3, 0), (4, 150)])
    world.metadata.leads, world.metadata.default_high = {T: Led(4, ID)}, 150
    world.once()
    _, watermark = world.watermark()
    assert (watermark.leader_epoch, watermark.next_offset) == (4, 150)
    assert watermark.lineage == ((3, 0), (4, 150)), "a reader knows of the cut before anything is stored above it"


def test_open_transactions_are_carried_from_segment_to_segment(world: World) -> None:
    partition = world.disk.partition().segment(0, transactional(0, 7, 10) + transactional(10, 8, 10))
    partition.segment(20, marker(20, 8, commit=True) + transactional(21, 9, 9))
    partition.segment(30, b"")
    world.once(upload={"concurrency": 1}, retry_initial="1ms", retry_cap="5ms")
    opened = [
        [(one.producer_id, one.first_offset) for one in world.manifest(base).open_transactions] for base in (0, 20)
    ]
    assert opened == [[(7, 0), (8, 10)], [(7, 0), (9, 21)]]


@pytest.mark.parametrize("length", [222, 231, 249])
def test_a_topic_of_a_long_name_made_again_is_stored_in_a_directory(world: World, length: int) -> None:
    at = TopicPartition("t" * length, 0)
    world.metadata.leads = {at: Led(3, ID)}
    world.disk.partition(at).fill(0, end=100)
    world.once()
    assert world.watermark(at)[1].next_offset == 100
    shutil.rmtree(world.disk.log_dirs[0] / str(at))
    world.metadata.leads = {at: Led(0, OTHER_ID)}
    world.disk.partition(at, topic_id=OTHER_ID).lineage([(0, 0)]).segment(0, records(0, 40, epoch=0)).roll(40)
    for _ in range(2):
        no_errors(world.once())
        assert world.watermark(at, place=f"{'t' * 221}@{OTHER_ID}")[1].next_offset == 40
    assert world.watermark(at)[1].next_offset == 100, "the first incarnation's stay"


@pytest.mark.parametrize("place", ["plain", "later"])
def test_topic_made_again_lies_elsewhere(world: World, place: str) -> None:
    partition = world.disk.partition().fill(0, end=100)
    world.once()
    before = world.stored(0)
    world.metadata.leads = {T: Led(0, OTHER_ID)}
    if place == "plain":  # the directory still is the old one: the broker has not renamed it yet
        world.once()
        assert not list(world.store.list(f"{CLUSTER}/orders@"))
        with pytest.raises(NotFound):
            world.watermark(place=f"orders@{OTHER_ID}")
        return
    again = world.disk.partition(topic_id=OTHER_ID).lineage([(0, 0)])
    for path in partition.folder.glob("*0*"):
        path.unlink()
    again.fill(0, end=40, value="new", epoch=0)
    no_errors(world.once())
    assert world.stored(0) == before
    assert world.watermark(place=f"orders@{OTHER_ID}")[1].next_offset == 40
    key = world.control.incarnations("orders")
    incarnations = TopicIncarnations.from_bytes(world.store.get(key).body, key).incarnations
    assert [(incarnation.topic_id, incarnation.place) for incarnation in incarnations] == [
        (ID, "orders"),
        (OTHER_ID, f"orders@{OTHER_ID}"),
    ]
    assert incarnations[0].ended_at is not None
    index = WatermarkIndex.from_bytes(world.store.get(world.control.index(1)).body, "index")
    assert index.entries[0].incarnation == 1


def test_hole_at_the_head_is_recorded_and_the_rest_goes(world: World) -> None:
    partition = world.disk.partition().fill(0, 100, end=200)
    world.once()
    remove(partition, 0, 100, 200)
    partition.fill(300, 400, end=500)
    world.metadata.log_start = 300
    agent = world.once()
    no_errors(agent)
    base, watermark = world.watermark()
    assert (base, watermark.next_offset, watermark.ranges_above) == (100, 200, ((300, 500),))
    [gap] = watermark.gaps
    assert (gap.start, gap.end, gap.reason) == (200, 300, "deleted_before_upload")
    world.once()
    assert world.watermark()[1].gaps == (gap,), "the time of its detection stays"

    key = world.control.acknowledgement("orders", 0, 200, 300)
    world.store.inner.put(key, word(200, 300).to_bytes())
    world.once()
    base, watermark = world.watermark()
    assert (base, watermark.next_offset, watermark.ranges_above, watermark.gaps) == (400, 500, (), ())
    assert watermark.acknowledged_gaps[0].start == 200
    remove(partition, 300)
    partition.roll(600)
    partition.segment(500, records(500, 600))
    world.once()
    assert world.watermark()[1].next_offset == 600


def remove(partition: FakePartition, *bases: int) -> None:
    for base in bases:
        for path in partition.folder.glob(f"{base:020d}.*"):
            path.unlink()


def flipped(content: bytes) -> bytes:
    damaged = bytearray(content)
    damaged[-3] ^= 1
    return bytes(damaged)


def lying(content: bytes) -> bytes:
    """The third batch claims to be longer than it is."""
    return content[: len(content) // 2] + b"\0\0\0\0\0\0\0\x32\x7f\xff\xff\xff" + content[len(content) // 2 + 12 :]


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        (lambda _: b"", "last batches are lost"),
        (lambda content: content[:-7], "end inside"),
        (lambda content: content[: len(content) // 2], "last batches are lost"),
        (flipped, "checksum"),
        (lying, "length field"),
    ],
    ids=["empty", "truncated", "cut at a batch", "flipped bit", "lying length"],
)
def test_damaged_segment_is_kept_whole_and_holds_its_partition_alone(
    world: World, damage: Callable[[bytes], bytes], rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    healthy = TopicPartition("orders", 1)
    world.metadata.leads[healthy] = Led(3, ID)
    world.disk.partition(healthy).fill(0, 100, end=200)
    partition = world.disk.partition().fill(0, 100, 200, end=300)
    content = damage(records(100, 200))
    partition.segment(100, content)
    no_errors(world.once())
    manifest = world.manifest(100, suffix=world.damaged(100))
    assert manifest.state == "corrupt"
    assert manifest.damage is not None
    assert rule in manifest.damage.rule
    assert 100 <= manifest.damage.offset < 200
    assert world.stored(100, "corrupt", suffix=world.damaged(100)) == content
    assert not [name for name in world.names() if name.startswith(f"{100:020d}") and name.endswith("log")]
    _, watermark = world.watermark()
    assert watermark.next_offset == manifest.damage.offset
    assert [(gap.start, gap.end, gap.reason) for gap in watermark.gaps] == [(watermark.next_offset, 200, "corrupt")]
    assert watermark.ranges_above == ((200, 300),)
    assert world.watermark(healthy)[1].next_offset == 200
    shown = capsys.readouterr()
    assert str(partition.log(100)) in shown.out + shown.err
    world.store.puts.clear()
    world.once()
    assert world.store.puts == [world.control.index(1)], "it is not sent again"


def test_good_copy_of_another_replica_completes_a_corrupt_one(world: World) -> None:
    partition = world.disk.partition().fill(0, 100, end=200).segment(0, flipped(records(0, 100)))
    world.once()
    partition.segment(0, records(0, 100))
    world.broker = world.broker.__class__(2, *[getattr(world.broker, name) for name in world.broker.__slots__[1:]])
    world.metadata.leads = {T: Led(4, ID)}
    no_errors(world.once())
    kept = world.manifest(0, suffix=world.damaged(0))
    assert (kept.state, kept.next_offset) == ("corrupt", 100), "it stays as it was stored"
    assert (world.manifest(90).state, world.stored(90)) == ("whole", records(90, 100))
    assert world.watermark()[1].next_offset == 200
    assert world.watermark()[1].gaps == ()


def test_compacted_topic_may_lack_its_tail(world: World) -> None:
    world.metadata.policy = "compact,delete"
    world.disk.partition().fill(0, 100, end=200).segment(0, batch(3, [Record(0)]))
    world.once()
    assert (world.manifest(0).last_batch_end, world.manifest(0).next_offset, world.manifest(0).state) == (
        4,
        100,
        "whole",
    )
    assert world.watermark()[1].next_offset == 200


@pytest.mark.parametrize(
    ("cleaned", "state", "policy"),
    [
        ("0\n1\norders 0 100\n", "whole", "compact,delete"),
        ("0\n2\norders 1 100\norders 0 100\n", "whole", "compact,delete"),
        ("0\n1\nborders 0 100\n", "corrupt", "delete"),
        ("0\n1\norders 0 0\n", "corrupt", "delete"),
        (None, "corrupt", "delete"),
        ("0\n9\norders 0 100\n", "whole", "unknown"),
    ],
)
def test_what_was_compacted_once_is_not_corrupt(world: World, cleaned: str | None, state: str, policy: str) -> None:
    world.disk.partition().segment(0, records(0, 40)).roll(50)
    if cleaned is not None:
        (world.disk.log_dirs[0] / "cleaner-offset-checkpoint").write_text(cleaned)
    no_errors(world.once())
    manifest = world.manifest(0, suffix=world.damaged(0) if state == "corrupt" else "")
    assert (manifest.state, manifest.cleanup_policy) == (state, policy)


def test_checkpoint_serves_while_the_broker_is_down(world: World) -> None:
    world.disk.partition().fill(0, 100, end=200)
    (world.disk.log_dirs[0] / "replication-offset-checkpoint").write_text("0\n1\norders 0 150\n")
    with world.agent() as agent:
        agent.refresh()
        agent.leadership.partitions[T].observation = None
        world.metadata.down = True
        agent.upload_once()
    assert world.manifest(0).offsets_from == "checkpoint"
    assert world.manifest(0).last_stable_offset is None
    assert world.watermark()[1].next_offset == 100


def test_failing_store_holds_up_one_partition_and_is_tried_again(world: World) -> None:
    other = TopicPartition("orders", 1)
    world.metadata.leads[other] = Led(3, ID)
    world.disk.partition().fill(0, end=50)
    world.disk.partition(other).fill(0, end=50)
    sick = world.keys().segment(SegmentName(0), "log")

    def fail(operation: str, key: str) -> None:
        if key == sick and operation == "put":
            raise AccessDenied(key, "told so")

    world.store.before = fail
    agent = world.once()
    assert "AccessDenied" in (agent.leadership.partitions[T].error or "")
    assert world.watermark(other)[1].next_offset == 50
    assert world.store.puts.count(sick) == 0
    world.store.before = lambda _operation, _key: None
    no_errors(world.once())
    assert world.watermark()[1].next_offset == 50


@pytest.mark.parametrize("took_effect", [True, False])
@pytest.mark.parametrize("kind", ["log", "index", "manifest.json", "offset.wm"])
def test_unknown_outcome_is_resolved_by_reading(world: World, kind: str, took_effect: bool) -> None:
    world.disk.partition().fill(0, end=50)
    lost: list[str] = []

    def lose(operation: str, key: str) -> None:
        if operation == "put" and key.endswith(kind) and not lost:
            lost.append(key)
            raise UnknownOutcome(key, "told so")

    if took_effect:
        world.store.after = lose
    else:
        world.store.before = lose
    no_errors(world.once())
    assert lost
    assert world.watermark()[1].next_offset == 50
    assert world.stored(0) == records(0, 50)


def test_a_later_leader_fences(world: World) -> None:
    partition = world.disk.partition().fill(0, end=50)
    world.metadata.leads = {T: Led(9, ID)}
    world.once()
    partition.roll(100)
    partition.segment(50, records(50, 100))
    world.metadata.leads = {T: Led(3, ID)}
    agent = world.once()
    assert "offset.wm: broker 1 leads it under epoch 9" in (agent.leadership.partitions[T].error or "")
    assert world.watermark()[1].next_offset == 50
    assert world.names().count(f"{50:020d}.manifest.json") == 0


def test_a_cap_of_the_bandwidth_gives_uploads_the_time_that_they_need(world: World) -> None:
    with world.agent(upload={"concurrency": 4, "bandwidth": "1MiB"}) as agent:
        assert agent.health.stuck_after == STANDARD.stuck_after + timedelta(seconds=4096)
        agent.reconfigure(world.settings(upload={"concurrency": 4}), "agent.yaml")
        assert agent.health.stuck_after == STANDARD.stuck_after
