"""Names, checkpoints, snapshots and indexes; the literal bytes were taken from brokers 3.9.2 and 4.3.1."""

from __future__ import annotations

import random
import struct
from itertools import pairwise

import pytest
from crc32c import crc32c

from tests.tidemark.kafka_log.build import Record, batch, legacy, simple
from tidemark.errors import FormatError
from tidemark.kafka_log import (
    AbortedTransaction,
    Lineage,
    OffsetIndexEntry,
    OpenTransaction,
    ProducerEntry,
    confirms_cut,
    cut_points,
    open_transactions,
    parse_leader_epoch_checkpoint,
    parse_meta_properties,
    parse_offset_checkpoint,
    parse_offset_index,
    parse_partition_metadata,
    parse_producer_snapshot,
    parse_segment_file,
    parse_time_index,
    parse_txn_index,
    segment_name,
)

SNAPSHOTS = {
    "3.9.2": "0001e5690048000000040000000000000000000000000027000000000000005a00000009000001a1fda3d4ad00000000ffff"
    "ffffffffffff0000000000000001000000000027000000000000006400000009000001a1fda3d4b100000000ffffffffffff"
    "ffff0000000000000002000000000002000000000000006e00000002000001a1fda3d4b4ffffffff000000000000006c0000"
    "000000000003000000000013000000000000006900000003000001a1fda3d4a3ffffffffffffffffffffffff",
    "4.3.1": "000168645ee8000000040000000000000000000000000027000000000000005a00000009000001a1fda3ecbc00000000ffff"
    "ffffffffffff0000000000000001000000000027000000000000006400000009000001a1fda3ecc000000000ffffffffffff"
    "ffff0000000000000002000000000002000000000000006e00000002000001a1fda3ecc2ffffffff000000000000006c0000"
    "000000000003000000000013000000000000006900000003000001a1fda3ecb3ffffffffffffffffffffffff",
}
TXN_INDEX = "00000000000000000001000000000000005b000000000000006b000000000000006c"


@pytest.mark.parametrize(("base", "name"), [(0, "0" * 20), (42, "0" * 18 + "42"), (2**62, "04611686018427387904")])
def test_names_are_twenty_digits(base: int, name: str) -> None:
    assert segment_name(base) == name
    for kind in ("log", "index", "timeindex", "txnindex", "snapshot"):
        assert parse_segment_file(f"{name}.{kind}") == (base, kind)


@pytest.mark.parametrize(
    "name",
    [
        "00000000000000000042.log.deleted",
        "00000000000000000042.log.cleaned",
        "00000000000000000042.log.swap",
        "0000000000000000042.log",
        "000000000000000000042.log",
        "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٤٢.log",
        "00000000000000000042.log\n",
        "00000000000000000042",
        "-0000000000000000042.log",
        "09223372036854775807.log",
        "leader-epoch-checkpoint",
    ],
)
def test_other_names_are_no_segment_files(name: str) -> None:
    assert parse_segment_file(name) is None


@pytest.mark.parametrize("offset", [-1, 2**63 - 1])
def test_there_is_no_name_for_an_impossible_offset(offset: int) -> None:
    with pytest.raises(ValueError, match="not an offset"):
        segment_name(offset)


@pytest.mark.parametrize("version", SNAPSHOTS)
def test_a_brokers_producer_snapshot(version: str) -> None:
    entries = parse_producer_snapshot(bytes.fromhex(SNAPSHOTS[version]), "x.snapshot")
    assert [entry.producer_id for entry in entries] == [0, 1, 2, 3]
    timestamp = {"3.9.2": 1795256734900, "4.3.1": 1795256741058}[version]
    assert entries[2] == ProducerEntry(2, 0, 2, 110, 2, timestamp, -1, 108)
    assert open_transactions(entries) == (OpenTransaction(2, 0, 108),)


def test_a_snapshot_of_another_version_or_size_is_refused() -> None:
    raw = bytes.fromhex(SNAPSHOTS["4.3.1"])
    for damaged, rule in [
        (b"", "too few"),
        (b"\x00\x02" + raw[2:], "version 2"),
        (raw[:-1], "checksum"),
        (raw[:6] + reseal_snapshot(raw[6:] + b"x"), "checksum"),
    ]:
        with pytest.raises(FormatError, match=rule):
            parse_producer_snapshot(damaged, "x.snapshot")
    for body in (struct.pack(">i", 5) + raw[10:], struct.pack(">i", -1) + raw[10:]):
        with pytest.raises(FormatError, match="do not fit"):
            parse_producer_snapshot(b"\x00\x01" + reseal_snapshot(body), "x.snapshot")


def reseal_snapshot(body: bytes) -> bytes:
    return struct.pack(">I", crc32c(body)) + body


def test_any_flipped_bit_of_a_snapshot_is_found() -> None:
    raw = bytes.fromhex(SNAPSHOTS["3.9.2"])
    for position in range(len(raw)):
        damaged = bytearray(raw)
        damaged[position] ^= 4
        with pytest.raises(FormatError):
            parse_producer_snapshot(bytes(damaged), "x.snapshot")


def test_a_brokers_transaction_index() -> None:
    assert parse_txn_index(bytes.fromhex(TXN_INDEX), "x.txnindex") == [AbortedTransaction(1, 91, 107)]
    assert parse_txn_index(b"", "x.txnindex") == []


@pytest.mark.parametrize(
    ("raw", "rule"),
    [
        (bytes(33), "whole number"),
        (struct.pack(">hqqqq", 1, 1, 1, 2, 3), "version 1"),
        (struct.pack(">hqqqq", 0, 1, 5, 4, 3), "ends before"),
        (struct.pack(">hqqqq", 0, 1, -5, 4, 3), "ends before"),
        (bytes.fromhex(TXN_INDEX) * 2, "does not increase"),
    ],
)
def test_a_damaged_transaction_index_is_refused(raw: bytes, rule: str) -> None:
    with pytest.raises(FormatError, match=rule):
        parse_txn_index(raw, "x.txnindex")


def test_offset_checkpoints() -> None:
    text = "0\n2\n__transaction_state 0 40\ntxn.a-b_c 12 165\n"
    assert parse_offset_checkpoint(text, "f") == {("__transaction_state", 0): 40, ("txn.a-b_c", 12): 165}
    assert parse_offset_checkpoint("0\n0\n", "f") == {}
    assert parse_offset_checkpoint("", "f") == {}  # as a broker creates it


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("1\n0\n", "version 0"),
        ("0\n", "version 0"),
        ("0\n2\na 0 1\n", "number of the lines"),
        ("0\nx\n", "number of the lines"),
        ("0\n1\na 0\n", "line 3"),
        ("0\n1\na 0 x\n", "line 3"),
        ("0\n1\na b 0 7\n", "line 3"),
    ],
)
def test_a_damaged_checkpoint_is_refused(text: str, rule: str) -> None:
    with pytest.raises(FormatError, match=rule):
        parse_offset_checkpoint(text, "f")


def test_the_leader_epoch_checkpoint() -> None:
    assert parse_leader_epoch_checkpoint("0\n2\n0 0\n5 6000\n", "f") == Lineage(((0, 0), (5, 6000)))
    with pytest.raises(FormatError, match="cannot follow"):
        parse_leader_epoch_checkpoint("0\n2\n5 0\n4 6000\n", "f")
    with pytest.raises(FormatError, match="line 3"):
        parse_leader_epoch_checkpoint("0\n1\n5 0 0\n", "f")


def test_partition_metadata() -> None:
    assert parse_partition_metadata("version: 0\ntopic_id: EujxbEa1RM69HYVAr6D8Jw", "f") == "EujxbEa1RM69HYVAr6D8Jw"
    for text in ("version: 1\ntopic_id: EujxbEa1RM69HYVAr6D8Jw\n", "version: 0\ntopic_id: short\n", "version: 0\n", ""):
        with pytest.raises(FormatError):
            parse_partition_metadata(text, "f")


def test_meta_properties_of_both_generations() -> None:
    zookeeper = "#\n#Sat Nov 21 10:25:32 UTC 2026\nbroker.id=1\nversion=0\ncluster.id=A-Nh9ns_RwqvVwNszir4cg\n"
    assert parse_meta_properties(zookeeper, "f")["broker.id"] == "1"
    kraft = "#\nnode.id=1\ndirectory.id=pCbaJraRjKSqr8fQ6Bywzg\nversion=1\ncluster.id=a\\=b\n"
    assert parse_meta_properties(kraft, "f") == {
        "node.id": "1",
        "directory.id": "pCbaJraRjKSqr8fQ6Bywzg",
        "version": "1",
        "cluster.id": "a=b",
    }
    for text in ("version=2\ncluster.id=x\n", "version=1\n", "version=1\ncluster.id\n"):
        with pytest.raises(FormatError):
            parse_meta_properties(text, "f")


def index(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">ii", *entry) for entry in entries)


def test_the_offset_index_counts_while_it_increases_and_points_into_the_log() -> None:
    raw = index((9, 4100), (19, 8300), (29, 12500))
    entries = [OffsetIndexEntry(109, 4100), OffsetIndexEntry(119, 8300), OffsetIndexEntry(129, 12500)]
    assert parse_offset_index(raw, 100, 20_000, "x.index") == entries
    assert parse_offset_index(raw + bytes(8000), 100, 20_000, "x.index") == entries
    assert parse_offset_index(raw, 100, 12_500, "x.index") == entries[:2]
    assert parse_offset_index(raw + index((29, 13000)), 100, 20_000, "x.index") == entries
    assert parse_offset_index(raw + index((30, 12500)), 100, 20_000, "x.index") == entries
    assert parse_offset_index(bytes(800), 100, 20_000, "x.index") == []
    assert parse_offset_index(index((-5, 4100)), 100, 20_000, "x.index") == []
    with pytest.raises(FormatError, match="whole number"):
        parse_offset_index(raw[:-1], 100, 20_000, "x.index")


def test_the_time_index_likewise() -> None:
    raw = struct.pack(">qi", 1000, 9) + struct.pack(">qi", 2000, 19)
    entries = [(1000, 109), (2000, 119)]
    assert parse_time_index(raw + bytes(120), 100, 130, "x.timeindex") == entries
    assert parse_time_index(raw, 100, 119, "x.timeindex") == entries[:1]
    with pytest.raises(FormatError, match="whole number"):
        parse_time_index(raw[:-1], 100, 130, "x.timeindex")


def test_cuts_are_batch_starts_near_multiples_of_the_target(rng: random.Random) -> None:
    entries, position = [], 0
    for number in range(500):
        position += rng.randint(1, 9000)
        entries.append(OffsetIndexEntry(number, position))
    size = position + 5000
    bounds = cut_points(entries, size, 100_000)
    assert bounds[0] == 0
    assert bounds[-1] == size
    assert set(bounds[1:-1]) <= {entry.position for entry in entries}
    lengths = [end - start for start, end in pairwise(bounds)]
    assert all(85_000 < length < 115_000 for length in lengths[:-1])
    assert 50_000 <= lengths[-1] < 165_000
    longer = cut_points([*entries, OffsetIndexEntry(500, position + 100)], size + 10_000_000, 100_000)
    assert longer[: len(bounds) - 1] == bounds[:-1]  # growth moves no cut


def test_a_segment_without_a_useful_index_is_not_cut() -> None:
    assert cut_points([], 10**9, 1000) == [0, 10**9]
    assert cut_points([OffsetIndexEntry(5, 300)], 1000, 64 << 20) == [0, 1000]


def test_a_cut_is_confirmed_by_what_lies_there() -> None:
    log = simple(100) + batch(103, [Record(0), Record(5)]) + legacy(1, 109, 1)
    position = len(simple(100))
    entry = OffsetIndexEntry(108, position)
    assert confirms_cut(log[position : position + 61], entry, 100, len(log))
    assert not confirms_cut(log[position + 1 : position + 62], entry, 100, len(log))
    assert not confirms_cut(log[position : position + 61], entry._replace(last_offset=107), 100, len(log))
    assert not confirms_cut(log[position : position + 61], entry, 100, position + 61)
    assert not confirms_cut(log[position : position + 20], entry, 100, len(log))
    assert not confirms_cut(bytes(61), entry, 100, len(log))
    tail = len(log) - len(legacy(1, 109, 1))
    assert confirms_cut(log[tail:][:61], OffsetIndexEntry(109, tail), 100, len(log))
