"""Copies of real segments, read without the plugin: equal to the broker's files, and to what a consumer read."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.support.kafka_tier import Fixture, Row, bare, rows_of
from tidemark.decode.batch_headers import scan_headers
from tidemark.decode.decoder import decode_batches
from tidemark.decode.schema import SCHEMA
from tidemark.kafka_log import Lineage, open_transactions, parse_producer_snapshot, parse_txn_index
from tidemark.kafka_tier.copies import SegmentCopy, belongs, newness, prove

COPIES = {"plain": 40, "compressed": 37, "encrypted": 37, "both": 37, "epochs": 26}


def opened(archive: Fixture) -> Iterator[SegmentCopy]:
    tier = archive.tier()
    for topic in archive.topics:
        yield from (SegmentCopy.open(tier, listed) for listed in archive.copies(topic) if not listed.missing)


def history_of(copies: list[SegmentCopy]) -> Lineage:
    return max(copies, key=lambda copy: newness(copy.manifest.about)).indexes().history


def by_partition(archive: Fixture) -> dict[tuple[str, int], list[SegmentCopy]]:
    found: defaultdict[tuple[str, int], list[SegmentCopy]] = defaultdict(list)
    for copy in opened(archive):
        found[copy.name.topic, copy.name.partition].append(copy)
    return found


def sums_of(archive: Fixture) -> dict[tuple[str, str], set[str]]:
    """The SHA-256 of the brokers' own files by partition and file, taken while all were local."""
    found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    snapshots: list[Any] = archive.facts.get("snapshots", [])
    for partition, files in [
        *archive.facts["local_sha256"].items(),
        *((s["partition"], s["files"]) for s in snapshots),
    ]:
        for name, file in files.items():
            if isinstance(file, dict):
                found[partition, name].add(file["sha256"])
    return found


def test_each_copy_is_the_brokers_own_files(archive: Fixture) -> None:
    sums, copies = sums_of(archive), list(opened(archive))
    for copy in copies:
        name, indexes = copy.name, copy.indexes()
        files = {
            f"{name.base:020d}.log": b"".join(copy.log()),
            f"{name.base:020d}.index": indexes.offsets,
            f"{name.base:020d}.timeindex": indexes.times,
            f"{copy.manifest.about.next_offset:020d}.snapshot": indexes.producers,
        }
        if indexes.aborted:
            files[f"{name.base:020d}.txnindex"] = indexes.aborted
        for file, body in files.items():
            assert hashlib.sha256(body).hexdigest() in sums[f"{name.topic}-{name.partition}", file], (name, file)
    assert len(copies) == COPIES[archive.root.name]


def test_the_history_from_the_store_alone_is_the_brokers(archive: Fixture) -> None:
    for (topic, number), copies in by_partition(archive).items():
        fact = archive.partition(topic, number)
        _, _, *lines = fact["leader_epoch_checkpoint"].split("\n")
        checkpoint = [(int(one), int(start)) for one, start in (line.split() for line in lines if line)]
        known = [entry for entry in checkpoint if entry[1] <= fact["latest_tiered"]]
        history = history_of(copies)
        assert history.epochs >= {epoch for epoch, _ in known}
        assert [entry for entry in history.entries if entry[1] > known[0][1]] == known[1:]


def test_copies_of_the_history_touch_and_reach_the_end_of_the_tier(archive: Fixture) -> None:
    others = 0
    for (topic, number), copies in by_partition(archive).items():
        history, fact = history_of(copies), archive.partition(topic, number)
        own = [copy for copy in copies if belongs(copy.manifest.about, history)]
        others += len(copies) - len(own)
        at = fact["log_start"]
        while reaching := [copy for copy in own if copy.name.base <= at < copy.manifest.about.next_offset]:
            at = max(copy.manifest.about.next_offset for copy in reaching)
        assert at == fact["latest_tiered"] + 1, topic
    assert others == (10 if archive.root.name == "epochs" else 0), "of the history that an unclean election cut off"


def test_each_copy_is_proved_and_has_the_consumers_records(archive: Fixture) -> None:
    compared = 0
    for (topic, number), copies in by_partition(archive).items():
        history, fact = history_of(copies), archive.partition(topic, number)
        logs: dict[int, bytes] = {}
        aborted, known = [], None
        for copy in copies:
            if not belongs(copy.manifest.about, history):
                continue
            pieces: list[bytes] = []
            proved = prove(copy, history, known, pieces.append)
            at_end = open_transactions(parse_producer_snapshot(copy.indexes().producers, "snapshot"))
            assert proved.open_transactions == at_end, "what follows from the batches is what the broker knew"
            assert proved.has_holes == (topic == "accounts" and copy.name.base == 0), copy.name
            known = proved.open_transactions
            logs[copy.name.base] = b"".join(pieces)
            aborted += parse_txn_index(proved.files.get("txnindex", b""), "txnindex")
        for isolation in ("read_uncommitted", "read_committed"):
            rows = [
                row for base, log in logs.items() for row in decoded(log, base) if row["offset"] >= fact["log_start"]
            ]
            if isolation == "read_committed":
                transactional = {o for base, log in logs.items() for o in transactional_offsets(log, base)}
                rows = [
                    row
                    for row in rows
                    if not any(
                        pid == one.producer_id and one.first_offset <= row["offset"] <= one.last_offset
                        for offset, pid in transactional
                        if offset == row["offset"]
                        for one in aborted
                    )
                ]
            wanted = [bare(row) for row in archive.expected(topic, number, isolation)]
            assert rows == wanted, (topic, isolation)
            compared += len(rows)
    assert compared > 1000


def decoded(log: bytes, base: int) -> list[Row]:
    headers = scan_headers(log, "log", base)
    batches = decode_batches(log, headers, name="log", partition=0, incarnation=0)
    return rows_of(pa.Table.from_batches(list(batches), schema=SCHEMA))


def transactional_offsets(log: bytes, base: int) -> set[tuple[int, int]]:
    """(offset, producer id) of the records in transactions."""
    return {
        (int(header["base_offset"]) + delta, int(header["producer_id"]))
        for header in scan_headers(log, "log", base)
        if header["attributes"] & 16
        for delta in range(int(header["last_offset_delta"]) + 1)
    }


def test_two_lives_of_a_topic_are_two_folders(unpacked: dict[str, Fixture]) -> None:
    plain = unpacked["plain"]
    [life] = {copy.name.topic_id for copy in plain.copies("reborn")}
    assert len(life) == len("w" * 22)


def test_an_unfinished_copy_is_listed_without_its_manifest(archive: Fixture) -> None:
    missing = [
        (copy.name.base, copy.missing) for topic in archive.topics for copy in archive.copies(topic) if copy.missing
    ]
    assert missing == ([] if archive.root.name == "epochs" else [(0, ["rsm-manifest"])])


@pytest.mark.parametrize("size", [1, 5000])
def test_pieces_of_any_size_give_the_same_log(
    unpacked: dict[str, Fixture], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = unpacked["both"]
    listed = [copy for copy in both.copies("exact") if not copy.missing]
    copies = [SegmentCopy.open(both.tier(), copy) for copy in listed]
    assert {len(copy.manifest.chunks("key")) for copy in copies} == {2}
    whole = [b"".join(copy.log()) for copy in copies]
    monkeypatch.setattr("tidemark.kafka_tier.copies.PIECE_BYTES", size)
    assert [b"".join(copy.log()) for copy in copies] == whole
