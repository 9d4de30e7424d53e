"""The transactions that are open where a run begins: from the broker's snapshots, the store, or the log itself."""

from __future__ import annotations

import pytest

from tests.tidemark.kafka_log.build import marker, transactional
from tests.uploader_agent.fakes import ID, FakePartition, T, World
from tests.uploader_agent.hold.test_hold import watching
from tidemark.kafka_log import OpenTransaction
from uploader_agent.disk.segment_files import PartitionFiles, SegmentFiles
from uploader_agent.upload.local_run import SealRun, open_before, open_run

STORED = (OpenTransaction(5, 0, 1),)


@pytest.fixture
def partition(world: World) -> FakePartition:
    """Three transactions that begin in segments of their own, of which one is aborted; no snapshots."""
    made = world.disk.partition().segment(0, transactional(0, 7, 10)).segment(10, transactional(10, 8, 10))
    made.segment(20, transactional(20, 9, 5) + marker(25, 7, commit=False) + transactional(26, 7, 4))
    made.segment(30, b"")
    return made


def opened(files: SegmentFiles, base: int, stored: tuple[OpenTransaction, ...] | None = None) -> dict[int, int]:
    """The first offset of each transaction that is open at ``base``, by producer."""
    work = SealRun(base, 30, base // 10 * 10, base // 10 * 10 + 10)
    run = open_run(files, work)
    assert run is not None
    return {one.producer_id: one.first_offset for one in open_before(files, run, work.segment, stored)}


@pytest.mark.parametrize(
    ("base", "expected"), [(0, {}), (10, {7: 0}), (20, {7: 0, 8: 10}), (25, {7: 0, 8: 10, 9: 20}), (26, {8: 10, 9: 20})]
)
def test_without_snapshots_the_whole_log_before_is_read(
    partition: FakePartition, base: int, expected: dict[int, int]
) -> None:
    with PartitionFiles(partition.folder, ID) as files:
        assert opened(files, base) == expected


def test_the_last_snapshot_before_the_run_counts(partition: FakePartition) -> None:
    partition.snapshot(10)  # it says that nothing is open
    with PartitionFiles(partition.folder, ID) as files:
        assert opened(files, 10) == {}
        assert opened(files, 20) == {8: 10}


def test_a_damaged_snapshot_is_none(partition: FakePartition) -> None:
    (partition.folder / f"{20:020d}.snapshot").write_bytes(b"\0\1torn")
    with PartitionFiles(partition.folder, ID) as files:
        assert opened(files, 20) == {7: 0, 8: 10}


def test_what_is_stored_spares_the_reading(partition: FakePartition) -> None:
    partition.log(0).write_bytes(b"not to be read")
    with PartitionFiles(partition.folder, ID) as files:
        assert opened(files, 20, STORED) == {5: 1}
        assert opened(files, 20, ()) == {}


def test_a_segment_that_is_only_held_is_read_as_well(world: World, partition: FakePartition) -> None:
    with watching(world) as agent:
        partition.retire(0)
        partition.unlink_deleted()
        with agent.hold.files(T, ID, partition.folder) as files:
            assert opened(files, 20) == {7: 0, 8: 10}
