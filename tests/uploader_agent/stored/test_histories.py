"""Two histories of one partition: what is no difference, and where two part."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from tests.tidemark.kafka_log.build import compressed, empty, legacy, reseal, simple
from tests.uploader_agent.fakes import ID, FakePartition, World, records
from tidemark.kafka_log import BatchHeader, Lineage, scan_batches
from tidemark.kafka_log.batch import is_same
from tidemark.storage import PartitionStore
from uploader_agent.disk.segment_files import PartitionFiles
from uploader_agent.stored.histories import Parting, find_parting, local_difference

EPOCH = Lineage(((3, 0),))


def header(raw: bytes) -> BatchHeader:
    [one] = scan_batches([raw], "batch", 0)
    return one


def found(world: World, partition: FakePartition, end: int, lineage: Lineage = EPOCH) -> Parting | None:
    with PartitionFiles(partition.folder, ID) as files:
        return find_parting(PartitionStore(world.store, world.keys()), files, lineage, end=end)


WHOLE = simple(40, 10)
THINNED = simple(40, 4, last_offset_delta=9)
REWRITTEN = {
    "records were removed": THINNED,
    "all were": empty(40, 9),
    "tombstones wait for their removal": reseal(WHOLE, attributes=0x40, base_timestamp=1),
}
OTHERS = {
    "another producer": simple(40, 10, producer_id=9),
    "another epoch": simple(40, 10, leader_epoch=4),
    "other records": simple(40, 10, base_timestamp=7),
    "an earlier end": simple(40, 9),
    "a batch that reaches over it": simple(38, 12),
    "a transaction's": simple(40, 10, attributes=0x10),
    "another sequence of the producer": simple(40, 10, base_sequence=1),
    "of an old format": legacy(1, 40, 1),
}


@pytest.mark.parametrize("what", REWRITTEN)
def test_what_compaction_has_left_of_a_batch_is_no_other_batch(what: str) -> None:
    assert is_same(header(WHOLE), header(WHOLE))
    for one, other in [(WHOLE, REWRITTEN[what]), (REWRITTEN[what], WHOLE), (REWRITTEN[what], THINNED)]:
        assert is_same(header(one), header(other)) is not False


@pytest.mark.parametrize("what", OTHERS)
def test_another_batch_at_the_same_offsets_is_told(what: str) -> None:
    assert is_same(header(WHOLE), header(OTHERS[what])) is False
    assert is_same(header(OTHERS[what]), header(WHOLE)) is False
    if what not in {"other records"}:
        assert is_same(header(THINNED), header(OTHERS[what])) is False


def test_messages_of_old_formats_have_only_a_checksum() -> None:
    one, other = header(legacy(1, 40, 1)), header(legacy(1, 40, 1, attributes=0x08))
    assert (is_same(one, one), is_same(one, other)) == (True, False)
    wrapped = header(legacy(1, 40, 3, "gzip")), header(legacy(1, 40, 2, "gzip", gap=2))
    assert is_same(*wrapped) is None, "compaction makes a wrapper smaller"


@pytest.mark.parametrize(("log", "end"), [((300,), 400), ((170, 240), 350), ((130,), 130), ((200, 300), 420)])
@pytest.mark.parametrize("at", [0, 100, 150, 190, 210])
def test_they_part_at_the_first_other_batch(world: World, at: int, log: tuple[int, ...], end: int) -> None:
    """Wherever the segments of the restored disk begin and end."""
    world.disk.partition().fill(0, 100, 200, end=300)
    world.once()
    partition = _restored(world, at, [0, *log], end)
    parting = found(world, partition, 300)
    assert parting is not None
    expected = min(at, end)
    assert (parting.at, parting.stored_end, parting.log_start, parting.log_end) == (expected, 300, 0, end)
    assert parting.stored is not None
    assert parting.stored.base_offset == expected
    assert (parting.local is None) == (end <= at)
    assert f"from offset {expected} on" in str(parting)


def test_the_same_log_parts_nowhere(world: World, rng: random.Random) -> None:
    world.disk.partition().fill(0, 100, 200, end=300)
    world.once()
    for _ in range(20):
        bases = sorted(rng.sample(range(10, 400, 10), 4))
        assert found(world, _restored(world, 1000, [0, *bases[:-1]], 300 + bases[-1]), 300) is None


def test_what_the_disk_no_longer_has_is_no_difference(world: World) -> None:
    world.disk.partition().fill(0, 100, 200, end=300)
    world.once()
    partition = _restored(world, 1000, [0, 300], 400)
    partition.log(0).unlink()
    assert found(world, partition, 300) is None


def test_below_the_start_of_the_disks_log_nothing_is_proved(world: World) -> None:
    world.disk.partition().fill(0, 100, 200, end=300)
    world.once()
    partition = _restored(world, 0, [0, 150], 400)
    partition.log(0).unlink()
    parting = found(world, partition, 300)
    assert parting is not None
    assert (parting.at, parting.log_start) == (150, 150)
    assert "where the disk's log begins" in str(parting)


def test_a_lineage_that_leaves_the_store_within_a_batch_proves_nothing_of_a_log_that_begins_there(world: World) -> None:
    """A log may begin within a stored batch, and `branch` then parts the histories there."""
    world.disk.partition().fill(0, 100, 200, end=300)
    world.once()
    cut = Lineage(((3, 0), (4, 155)))
    partition = _restored(world, 1000, [0], 150)
    partition.segment(150, records(150, 155, value="other") + records(155, 255, epoch=4))
    parting = found(world, partition, 155, cut)
    assert parting is not None
    assert parting.at == 150
    for path in partition.folder.glob("0*"):
        path.unlink()
    partition.segment(155, records(155, 255, epoch=4))
    assert found(world, partition, 155, cut) is None


def test_damage_of_the_disk_is_no_other_history(world: World) -> None:
    partition = world.disk.partition().fill(0, end=100)
    world.once()
    log = bytearray(partition.log(0).read_bytes())
    [*_, last] = scan_batches([bytes(log)], "log", 0)
    log[last.position + 20] ^= 1  # of the checksum, as the header states it
    partition.log(0).write_bytes(log)
    with PartitionFiles(partition.folder, ID) as files:
        assert local_difference(files, last) is None


def test_a_compacted_log_parts_where_what_is_left_differs(world: World) -> None:
    partition = world.disk.partition().fill(0, end=100)
    world.once()
    kept = simple(10, 4, last_offset_delta=9) + simple(50, 10) + simple(90, 2, last_offset_delta=9)
    partition.segment(0, kept)
    assert found(world, partition, 100) is None
    partition.segment(0, kept[:-1] + bytes([kept[-1] ^ 1]))
    partition.segment(0, simple(10, 4, last_offset_delta=9) + compressed(simple(50, 10, producer_id=7), "gzip"))
    parting = found(world, partition, 100)
    assert parting is not None
    assert parting.at == 50


def _restored(world: World, at: int, bases: list[int], end: int) -> FakePartition:
    """The disk with segments at ``bases`` up to ``end``, whose batches are others from ``at`` on."""
    partition = world.disk.partition()
    for path in partition.folder.glob("0*"):
        path.unlink()
    for base, following in pairwise([*sorted({base for base in bases if base < end}), end]):
        split = min(max(base, at), following)
        partition.segment(base, records(base, split) + records(split, following, value="other"))
    return partition.segment(end, b"")
