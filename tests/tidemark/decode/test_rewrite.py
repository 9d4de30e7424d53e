"""A rewritten batch has the other records of the old one, and is the same batch otherwise."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count, product
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from kafka.record.default_records import DefaultRecordBatch

from tests.support.java_client import JavaBatch, JavaClient
from tests.support.kafka_broker import KafkaVersion
from tests.tidemark.kafka_log.build import (
    FIELDS,
    HEADER,
    JAVA_LIKE,
    T0,
    Record,
    batch,
    compressed,
    reseal,
    snappy_raw,
    with_records,
)
from tidemark.decode import SCHEMA, decode_batches, scan_headers
from tidemark.decode.decompress import CorruptRecords
from tidemark.decode.rewrite import BatchRewriter
from tidemark.kafka_log import scan_batches

CHANGES = {"length", "crc", "max_timestamp", "record_count"}


def rows(data: bytes) -> pa.Table:
    headers = scan_headers(data, "batch", fields(data)["base_offset"])
    batches = decode_batches(data, headers, name="batch", partition=0, incarnation=0)
    return pa.Table.from_batches(batches, schema=SCHEMA)


def fields(data: bytes) -> dict[str, int]:
    return dict(zip(FIELDS, HEADER.unpack_from(data), strict=True))


def some(rng: random.Random, most: int) -> bytes | None:
    return rng.choice((None, b"", rng.randbytes(rng.randrange(most)), b"x" * rng.randrange(most)))


def drawn(rng: random.Random) -> list[Record]:
    deltas = sorted(rng.sample(range(60), rng.randint(1, 40)))  # compaction has removed others
    return [
        Record(
            delta,
            T0 + rng.randint(-5000, 5000),
            some(rng, 300),
            some(rng, 3000),
            [(rng.choice(("", "trace", "ä")), some(rng, 20)) for _ in range(rng.randrange(3))],
        )
        for delta in deltas
    ]


@pytest.mark.parametrize("codec", JAVA_LIKE)
@pytest.mark.parametrize("attributes", [0x00, 0x08, 0x10, 0x40, 0x58])
def test_a_rewritten_batch_decodes_to_the_other_records(codec: str, attributes: int, rng: random.Random) -> None:
    rewriter = BatchRewriter()
    for _ in range(20):
        records, base = drawn(rng), rng.randrange(1 << 40)
        own = {"producer_id": 4711, "producer_epoch": 3, "base_sequence": 17} if attributes & 0x10 else {}
        old = batch(base, records, codec, attributes, last_offset_delta=rng.randint(records[-1].delta, 99), **own)
        gone = {base + record.delta for record in rng.sample(records, rng.randint(1, len(records)))}
        new, count = rewriter.without(old, gone | {base + 1000})
        before, after = rows(old), rows(new)
        expected = before.filter(pc.invert(pc.is_in(before["kafka_offset"], pa.array(sorted(gone)))))
        assert count == len(gone)
        assert after.equals(expected)
        kept = {name: value for name, value in fields(new).items() if name not in CHANGES}
        if len(after):
            assert kept.items() <= fields(old).items()
            latest = pc.max(expected["kafka_timestamp"]).cast(pa.int64()).as_py() // 1000
            assert fields(new)["max_timestamp"] == latest
            read = DefaultRecordBatch(new)
            assert read.validate_crc()
            assert [record.offset for record in read] == expected["kafka_offset"].to_pylist()
        else:
            assert len(new) == HEADER.size
            other = {"attributes": attributes & ~0x40, "base_timestamp": fields(old)["max_timestamp"]}
            assert kept == {name: value for name, value in (fields(old) | other).items() if name not in CHANGES}
        [header] = scan_batches([new], "new", base)
        assert header.next_offset == base + fields(old)["last_offset_delta"] + 1


@pytest.fixture(scope="module", params=get_args(KafkaVersion))
def java(starts_other: None, request: pytest.FixtureRequest) -> Iterator[JavaClient]:
    """Kafka's own classes, of each version."""
    with JavaClient(request.param) as client:
        yield client


def test_java_reads_a_rewritten_segment_of_every_codec(java: JavaClient, tmp_path: Path, rng: random.Random) -> None:
    segment, rewriter = tmp_path / "segment.log", BatchRewriter()
    wanted: list[JavaBatch] = []
    with segment.open("wb") as file:
        for base, (codec, emptied) in zip(count(0, 100), product(JAVA_LIKE, (False, True)), strict=False):
            records = drawn(rng)
            gone = records if emptied else rng.sample(records, rng.randint(1, len(records) - 1)) if records[1:] else []
            old = batch(base, records, codec, last_offset_delta=99)
            file.write(rewriter.without(old, {base + record.delta for record in gone})[0])
            kept = [(base + each.delta, each.timestamp, each.key, each.value) for each in records if each not in gone]
            wanted.append(JavaBatch(base, base + 99, codec if kept else "none", kept))
    read = java.batches(segment)
    assert read == wanted
    assert [batch.records for batch in read[1::2]] == [[] for _ in JAVA_LIKE], "only their headers are there"


@pytest.mark.parametrize("codec", JAVA_LIKE)
def test_a_batch_without_these_offsets_stays_as_it_is(codec: str) -> None:
    old = batch(5, [Record(0), Record(2)], codec)
    assert BatchRewriter().without(old, {4, 6, 8}) == (old, 0)


def test_a_block_of_librdkafka_is_read_and_large_batches_are_cut_into_blocks() -> None:
    records = [Record(delta, value=b"v" * 5000) for delta in range(50)]
    old = compressed(batch(0, records), "snappy", snappy_raw)
    new, _ = BatchRewriter().without(old, {7})
    assert len(rows(new)) == len(records) - 1


@pytest.mark.parametrize(
    "records",
    [b"\x10", b"\x02\x00" * 9, b"\xff" * 11, b"\x0c\x00\x00\x00\x01\x01\x00" * 2 + b"\x00"],
    ids=["cut", "short", "long number", "bytes behind"],
)
def test_records_that_cannot_be_told_apart_are_refused(records: bytes) -> None:
    with pytest.raises(CorruptRecords):
        BatchRewriter().without(with_records(batch(0, [Record(0)]), records, record_count=2), {0})


def test_a_batch_that_does_not_decompress_is_refused() -> None:
    with pytest.raises(CorruptRecords):
        BatchRewriter().without(reseal(batch(0, [Record(0)], "zstd")[:-3]), {0})
