from __future__ import annotations

import io
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark.decode import SCHEMA, decode_batches, row_hash_sum, scan_headers
from tidemark.decode.rowhash import SEEDS, xxh64_pair
from tidemark.formats.raw.hashsum import combine

Fields = dict[str, Any]

ROW: Fields = {
    "kafka_incarnation": 0,
    "kafka_partition": 3,
    "kafka_offset": 17,
    "kafka_timestamp": T0 * 1000,
    "kafka_timestamp_type": "create",
    "kafka_key": b"key",
    "kafka_value": b"value",
    "kafka_headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}],
    "kafka_leader_epoch": 5,
}


def reference(rows: list[Fields]) -> int:
    """The sum as the module's docstring defines it."""
    lanes = [0, 0]
    for row in rows:
        fields = [row["kafka_timestamp"], row["kafka_key"], row["kafka_value"]]
        nulls = sum(1 << i for i, field in enumerate(fields) if field is None)
        place = (row["kafka_incarnation"], row["kafka_partition"], row["kafka_offset"])
        fixed = struct.pack("<iiqqII", *place, fields[0] or 0, len(row["kafka_headers"]), nulls)
        for lane, seed in enumerate(SEEDS):
            state = xxhash.xxh64_intdigest(fixed, seed)
            state = xxhash.xxh64_intdigest(row["kafka_key"] or b"", state)
            state = xxhash.xxh64_intdigest(row["kafka_value"] or b"", state)
            for header in row["kafka_headers"]:
                state = xxhash.xxh64_intdigest(header["key"].encode(), state)
                if header["value"] is None:
                    state = xxhash.xxh64_intdigest(b"", state ^ (1 << 64) - 1)
                else:
                    state = xxhash.xxh64_intdigest(header["value"], state)
            lanes[lane] = (lanes[lane] + state) % (1 << 64)
    return lanes[1] << 64 | lanes[0]


def arrow(rows: list[Fields]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def random_rows(rng: random.Random, count: int) -> list[Fields]:
    def maybe(size: int) -> bytes | None:
        return rng.choice([None, b"", rng.randbytes(rng.randint(1, size))])

    return [
        ROW
        | {
            "kafka_incarnation": rng.randint(0, 3),
            "kafka_partition": rng.randint(0, 100),
            "kafka_offset": rng.randrange(2**63),
            "kafka_timestamp": rng.choice([None, 0, -1000, T0 * 1000 + rng.randint(0, 10**9)]),
            "kafka_key": maybe(40),
            "kafka_value": maybe(3000),
            "kafka_headers": [
                {"key": rng.choice(["", "trace", "clé" * 20]), "value": maybe(90)}
                for _ in range(rng.choice([0, 0, 1, 4]))
            ],
        }
        for _ in range(count)
    ]


def test_xxh64_is_xxhash(rng: random.Random) -> None:
    data = rng.randbytes(300)
    view = np.frombuffer(data, np.uint8)
    for size in range(200):
        at, seeds = rng.randint(0, 100), (rng.randrange(1 << 64), rng.randrange(1 << 64))
        low, high = xxh64_pair(view, at, size, *map(np.uint64, seeds))
        assert (int(low), int(high)) == tuple(xxhash.xxh64_intdigest(data[at : at + size], seed) for seed in seeds)


def test_the_sum_is_as_defined(rng: random.Random) -> None:
    rows = random_rows(rng, 500)
    assert row_hash_sum(arrow(rows)) == reference(rows)
    assert row_hash_sum(arrow([ROW])) == reference([ROW])
    assert row_hash_sum(arrow([])) == 0


def test_the_definition_does_not_change() -> None:
    """Evidence is compared over years: this number may never change."""
    assert row_hash_sum(arrow([ROW])) == 70905941900558064733333525725852296251


def test_slices_and_other_layouts_have_the_same_sum(rng: random.Random) -> None:
    rows = random_rows(rng, 100)
    batch = arrow(rows)
    for start, end in [(0, 100), (1, 9), (13, 99), (50, 50)]:
        assert row_hash_sum(batch.slice(start, end - start)) == reference(rows[start:end])
    taken = batch.take(pa.array([7, 3, 7, 99]))
    assert row_hash_sum(taken) == reference([rows[i] for i in (7, 3, 7, 99)])
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch.slice(5, 50))
    assert row_hash_sum(next(iter(pa.ipc.open_stream(sink.getvalue())))) == reference(rows[5:55])


def test_the_order_of_rows_does_not_matter_and_parts_add_up(rng: random.Random) -> None:
    rows = random_rows(rng, 60)
    whole = row_hash_sum(arrow(rows))
    rng.shuffle(rows)
    assert row_hash_sum(arrow(rows)) == whole
    assert combine(row_hash_sum(arrow(rows[:20])), row_hash_sum(arrow(rows[20:]))) == whole
    assert combine(whole, 0) == whole
    assert combine((1 << 128) - 1, (1 << 128) - 1) == ((1 << 64) - 2 << 64) | ((1 << 64) - 2)


@pytest.mark.parametrize(
    "change",
    [
        {"kafka_incarnation": 1},
        {"kafka_partition": 4},
        {"kafka_offset": 18},
        {"kafka_timestamp": T0 * 1000 + 1000},
        {"kafka_key": None},
        {"kafka_key": b""},
        {"kafka_key": b"keyv", "kafka_value": b"alue"},
        {"kafka_value": None},
        {"kafka_value": b""},
        {"kafka_value": b"valuf"},
        {"kafka_headers": []},
        {"kafka_headers": ROW["kafka_headers"][::-1]},
        {"kafka_headers": ROW["kafka_headers"][:1]},
        {"kafka_headers": [{"key": "a", "value": None}, {"key": "b", "value": b"2"}]},
        {"kafka_headers": [{"key": "a", "value": b""}, {"key": "b", "value": b"2"}]},
        {"kafka_headers": [{"key": "a1", "value": b""}, {"key": "b", "value": b"2"}]},
        {"kafka_headers": [{"key": "a", "value": b"1b"}, {"key": "", "value": b"2"}]},
    ],
)
def test_any_change_shows(change: Fields) -> None:
    assert row_hash_sum(arrow([ROW | change])) != row_hash_sum(arrow([ROW]))


def test_null_and_empty_differ_pairwise() -> None:
    sums = {
        row_hash_sum(arrow([ROW | {"kafka_key": key, "kafka_value": value, "kafka_timestamp": timestamp}]))
        for key in (None, b"")
        for value in (None, b"")
        for timestamp in (None, 0)
    }
    assert len(sums) == 8


def test_a_row_twice_shows() -> None:
    assert row_hash_sum(arrow([ROW, ROW])) not in (0, row_hash_sum(arrow([ROW])))


def test_decoded_rows_have_the_same_sum_after_parquet(tmp_path: Path, rng: random.Random) -> None:
    records = [
        Record(i, T0 + i, rng.choice([None, b"", b"k"]), rng.randbytes(rng.randint(0, 500)), [("h", None), ("g", b"")])
        for i in range(2000)
    ]
    data = batch(0, records, "zstd")
    headers = scan_headers(data, "segment.log", 0)
    batches = list(decode_batches(data, headers, name="segment.log", partition=1, incarnation=0))
    written = 0
    for rows in batches:
        written = combine(written, row_hash_sum(rows))
    pq.write_table(pa.Table.from_batches(batches), tmp_path / "x.parquet", row_group_size=300)
    read = 0
    for rows in pq.ParquetFile(tmp_path / "x.parquet").iter_batches(batch_size=170):
        read = combine(read, row_hash_sum(rows))
    assert read == written != 0


def test_other_types_are_refused() -> None:
    batch = arrow([ROW])
    index = batch.schema.get_field_index("kafka_timestamp")
    seconds = batch.set_column(index, "kafka_timestamp", batch.column(index).cast(pa.timestamp("ms", tz="UTC")))
    with pytest.raises(ValueError, match="kafka_timestamp is"):
        row_hash_sum(seconds)


def test_columns_that_point_out_of_their_data_are_refused() -> None:
    batch = arrow([ROW])
    offsets = np.array([0, 3], np.int32)
    bad = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(offsets.data), pa.py_buffer(b"abc")])
    offsets[1] = 99
    with pytest.raises(ValueError, match="point out"):
        row_hash_sum(batch.set_column(batch.schema.get_field_index("kafka_value"), "kafka_value", bad))
