"""What lies on disk, and what may go of it."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.uploader_agent.disk.failing_calls import FailingCalls
from tests.uploader_agent.fakes import ID, OTHER_ID, T, World, records
from tidemark.errors import FormatError
from tidemark.formats.keys import TopicPartition
from tidemark.intervals import Intervals
from uploader_agent.broker.admin import Led
from uploader_agent.broker.properties import read_broker
from uploader_agent.disk.log_dirs import LocalSegment, PartitionFolder, find_partitions, find_segments, topic_id_of
from uploader_agent.disk.segment_files import ActiveReader, Bytes, PartitionFiles, SegmentChanged, checksum
from uploader_agent.upload.local_run import SealRun, quiet_tail, rotated_runs, waiting_for


def test_partitions_by_name(tmp_path: Path) -> None:
    of_kafka = ("a-0.f00-delete", "a-0.f00-future", "a-0.f00-stray", "remote-log-index-cache")
    for name in ("a-0", "a.b_c-10", "a-b-1", *of_kafka, "b-01", "c", "-1"):
        (tmp_path / name).mkdir()
    (tmp_path / "file-0").touch()
    found = find_partitions([tmp_path, tmp_path / "gone"])
    assert sorted(found.partitions) == [TopicPartition("a", 0), TopicPartition("a-b", 1), TopicPartition("a.b_c", 10)]
    assert [path.name for path in found.strangers] == ["-1", "b-01", "c"]
    assert list(found.unreadable) == [tmp_path / "gone"]


def test_the_log_of_the_quorum_is_no_partition(tmp_path: Path) -> None:
    """No broker's answer has it, so it would wait for ever. Kafka's topics of this kind are led like others."""
    names = ("__cluster_metadata-0", "__consumer_offsets-0", "__transaction_state-0", "__cluster_metadata_of_mine-0")
    for name in names:
        (tmp_path / name).mkdir()
    found = find_partitions([tmp_path])
    assert sorted(map(str, found.partitions)) == sorted(names[1:])
    assert found.strangers == ()


def test_segments_by_name(tmp_path: Path) -> None:
    assert find_segments(tmp_path) == [], "a directory that was made just now"
    names = [f"{0:020d}.log", f"{7:020d}.log", f"{3:020d}.log.deleted", f"{5:020d}.log.swap", f"{6:020d}.log.cleaned"]
    for name in [*names, f"{7:020d}.index", f"{9:020d}.snapshot", "12.log", "leader-epoch-checkpoint"]:
        (tmp_path / name).write_bytes(b"12345")
    assert [(one.base_offset, one.next_offset, one.size) for one in find_segments(tmp_path)] == [
        (0, 7, 5),
        (7, None, 5),
    ]
    assert find_segments(tmp_path / "gone") == []


SEGMENTS = [LocalSegment(0, 10, 5, 100.0), LocalSegment(10, 20, 6, 200.0), LocalSegment(20, None, 7, 300.0)]


@pytest.mark.parametrize(
    ("present", "high", "bases"),
    [([], 25, [0, 10]), ([], 20, [0, 10]), ([], 19, [0]), ([], 9, []), ([(0, 10)], 25, [10]), ([(0, 19)], 25, [19])],
)
def test_rotated_runs(present: list[tuple[int, int]], high: int, bases: list[int]) -> None:
    assert [work.base_offset for work in rotated_runs(SEGMENTS, Intervals(present), high)] == bases


def test_a_run_is_what_the_store_lacks_of_a_segment() -> None:
    present = Intervals([(0, 4), (6, 8), (12, 30)])
    assert list(rotated_runs(SEGMENTS, present, 20)) == [
        SealRun(4, 6, 0, 10),
        SealRun(8, 10, 0, 10),
        SealRun(10, 12, 10, 20),
    ]
    runs = rotated_runs(SEGMENTS, Intervals([(3, 10)]), 20)
    assert [(run.base_offset, run.end) == (run.segment, run.segment_end) for run in runs] == [False, True]


def test_waiting_for_the_high_watermark() -> None:
    assert waiting_for(SEGMENTS, Intervals(), 19)
    assert not waiting_for(SEGMENTS, Intervals(), 20)
    assert not waiting_for(SEGMENTS, Intervals([(0, 20)]), 5)


@pytest.mark.parametrize(
    ("present", "high", "quiet_before", "end"),
    [
        ([(0, 20)], 25, 300.0, 25),
        ([(0, 20)], 25, 299.0, None),
        ([(0, 25)], 25, 300.0, None),
        ([(0, 20)], 20, 300.0, None),
        ([], 25, 300.0, 25),
    ],
)
def test_quiet_tail(present: list[tuple[int, int]], high: int, quiet_before: float, end: int | None) -> None:
    expected = [SealRun(20, end, 20, None)] if end else []
    assert list(quiet_tail(SEGMENTS, Intervals(present), high, quiet_before)) == expected
    assert list(quiet_tail([], Intervals(), high, quiet_before)) == []


def test_files_of_another_incarnation_are_not_touched(world: World) -> None:
    folder = world.disk.partition(topic_id=OTHER_ID).folder
    with pytest.raises(SegmentChanged, match="belongs to topic id"):
        PartitionFiles(folder, ID)
    with pytest.raises(SegmentChanged, match="is gone"):
        PartitionFiles(folder / "gone", ID)


def test_directory_is_held_while_a_topic_is_made_again(world: World) -> None:
    partition = world.disk.partition().segment(0, b"old")
    with PartitionFiles(partition.folder, ID) as files:
        partition.folder.rename(partition.folder.with_name("orders-0.f00-delete"))
        world.disk.partition(topic_id=OTHER_ID).segment(0, b"new")
        opened = files.open(f"{0:020d}.log")
        assert opened is not None
        assert opened.read() == b"old"


def test_changes_are_noticed(world: World) -> None:
    path = world.disk.partition().segment(0, b"0123456789").log(0)
    with PartitionFiles(path.parent, ID) as files:
        opened = files.open(path.name)
        assert opened is not None
        assert not opened.has_changed()
        with path.open("ab") as log:
            log.write(b"more")
        assert opened.has_changed()
        assert not opened.has_shrunk()
        assert opened.body().read() == b"0123456789", "a window does not grow"
        assert opened.cut(4).body().read() == b"0123"
        with path.open("r+b") as log:
            log.truncate(3)
        assert opened.has_shrunk()


def test_checksum_of_a_part() -> None:
    assert checksum(Bytes("x", b"123456789")) == 0xE3069283
    assert checksum(Bytes("x", b"123456789rest"), 9) == 0xE3069283
    assert checksum(Bytes("x", b"")) == 0


def test_segment_that_changes_while_it_is_read_is_judged_anew(world: World) -> None:
    """What was sent of the dead branch stays as it was sent, and its manifest tells where it leaves the log."""
    partition = world.disk.partition().fill(0, end=100)
    world.metadata.leads = {T: Led(4, ID)}
    truncated: list[str] = []
    rewritten = records(0, 50) + records(50, 100, epoch=4)

    def truncate(operation: str, key: str) -> None:
        if operation == "put" and key.endswith(".index") and not truncated:
            truncated.append(key)
            partition.lineage([(3, 0), (4, 50)])
            partition.segment(0, rewritten)

    world.store.before = truncate
    world.once()
    assert truncated
    assert (world.stored(0), world.stored(50)) == (records(0, 100), records(50, 100, epoch=4))
    assert (world.manifest(0).lineage, world.manifest(50).lineage) == (((3, 0),), ((3, 0), (4, 50)))
    assert world.watermark()[1].next_offset == 100


def test_the_active_segment_is_followed(world: World) -> None:
    partition, start = world.disk.partition(), 1_770_000_000_000
    reader = ActiveReader()
    assert reader.read(partition.folder, ID) is None, "there is no segment yet"
    partition.segment(0, b"")
    assert reader.read(partition.folder, ID) == (0, 0, 0, -1, None, None)
    whole = records(0, 25)
    partition.segment(0, whole[:-5])
    assert reader.read(partition.folder, ID) == (0, len(whole) - 5, None, 3, start, start + 9), "the last one is torn"
    partition.segment(0, whole)
    assert reader.read(partition.folder, ID) == (0, len(whole), 25, 3, start, start + 9)
    whole = records(0, 4000)
    partition.segment(0, whole)
    for one in (reader, ActiveReader()):
        assert one.read(partition.folder, ID) == (0, len(whole), 4000, 3, start, start + 9)
    partition.segment(4000, bytes(10_000))
    assert reader.read(partition.folder, ID) == (4000, 10_000, 4000, -1, None, None), "preallocated, without a record"
    assert str(T) == "orders-0"


def test_no_link_is_followed_in_a_log_directory(tmp_path: Path, world: World) -> None:
    """Neither to a partition's directory nor to a file of one, whatever lies there; what is named goes no further."""
    secret, [data] = tmp_path / "secret", world.disk.log_dirs
    world.disk.partition().fill(0, 100, end=200)
    elsewhere = World(tmp_path / "elsewhere").disk.partition(TopicPartition("other", 0))
    elsewhere.fill(0, end=100)
    (data / "other-0").symlink_to(elsewhere.folder, target_is_directory=True)
    inventory = find_partitions([data])
    assert (inventory.links, list(inventory.partitions)) == ((data / "other-0",), [T])
    with pytest.raises(SegmentChanged, match="a link"):
        PartitionFiles(data / "other-0", None)

    secret.write_bytes(records(0, 100))
    log = world.disk.partition().log(0)
    log.unlink()
    log.symlink_to(secret)
    with PartitionFiles(log.parent, ID) as files, capture_logs() as told:
        with pytest.raises(OSError, match="a symbolic link") as caught:
            files.open(log.name)
        world.metadata.leads[TopicPartition("other", 0)] = Led(3, ID)
        agent = world.once()
    assert str(log) in str(caught.value)
    assert str(log) in str(agent.leadership.partitions[T].error)
    assert [one["path"] for one in told if one["event"] == "link_ignored"] == [str(data / "other-0")]
    assert not [name for name in world.names() if name.startswith(f"{0:020d}.")]
    assert list(world.store.inner.list("test-cluster/other-0/")) == []

    metadata = log.parent / "partition.metadata"
    text = metadata.read_text()
    metadata.unlink()
    (tmp_path / "metadata").write_text(text)
    metadata.symlink_to(tmp_path / "metadata")
    with pytest.raises(FormatError, match="no link is followed"):
        topic_id_of(log.parent)
    metadata.unlink()
    os.mkfifo(log.parent / "pipe")
    with pytest.raises(OSError, match="not a regular file"), PartitionFiles(log.parent, ID) as files:
        files.open("pipe")


def test_a_log_directory_itself_may_be_a_link(tmp_path: Path) -> None:
    """It is resolved once, when the broker's file is read."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\n")
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    properties = tmp_path / "server.properties"
    properties.write_text(f"node.id=1\nprocess.roles=broker\nlog.dirs={tmp_path / 'data'}\n")
    assert read_broker(properties).log_dirs == (tmp_path / "disk",)


def test_an_index_that_points_nowhere_does_not_hide_the_log_end(world: World) -> None:
    """Kafka leaves the entries of a truncated log behind the valid ones."""
    partition = world.disk.partition()
    path = partition.segment(0, records(0, 1000)).log(0)
    path.with_suffix(".index").write_bytes(struct.pack(">iiii", 500, 1001, 900, path.stat().st_size - 7))
    path.with_suffix(".timeindex").write_bytes(struct.pack(">qi", 1_770_000_000_009, 990))
    found = ActiveReader().read(partition.folder, ID)
    assert found is not None
    assert found.end == 1000


def test_a_directory_that_could_not_be_listed_is_listed_again(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    folder.mkdir()
    (folder / f"{0:020d}.log").write_bytes(b"x")
    os.utime(folder, (1_000_000, 1_000_000))
    calls, looked = FailingCalls(tmp_path), PartitionFolder(folder)
    with calls.patched():
        calls.fail(errno.ENOENT, lambda kind, _, number: kind == "scandir" or (kind, number) == ("stat", 2))
        looked.look()
        assert calls.struck.is_set()
        assert looked.listing.segments == []
        calls.heal()
        assert looked.look()
    assert [segment.base_offset for segment in looked.listing.segments] == [0]
