"""Rows that a mask hides, and a copy of the others."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa

from tests.tidemark.kafka_log.build import Record, batch
from tidemark.decode import decode_batches, exact_milliseconds, scan_headers
from tidemark.decode.offset_mask import OffsetMask
from tidemark.decode.schema import copied
from tidemark.formats.raw.masks import Mask


def test_a_mask_has_pairs_of_offset_and_epoch(rng: random.Random) -> None:
    for _ in range(50):
        pairs = {(rng.randrange(40), rng.randrange(-1, 3)) for _ in range(rng.randrange(60))}
        parts: list[dict[int, list[int]]] = [{} for _ in range(3)]
        for offset, epoch in pairs:
            for part in rng.sample(parts, rng.randint(1, 3)):  # masks may have the same offset
                part.setdefault(epoch, []).append(offset)
        mask = OffsetMask(Mask.of("east", "orders", 0, part, ["0" * 64]) for part in parts if part)
        offsets = np.arange(50)
        epochs = np.array([rng.randrange(-1, 4) for _ in offsets], np.int32)
        expected = [(offset, epoch) in pairs for offset, epoch in zip(offsets.tolist(), epochs.tolist(), strict=True)]
        assert mask.among(offsets, epochs).tolist() == expected
        assert bool(mask) == bool(pairs)
        assert mask.among(offsets[:0], epochs[:0]).tolist() == []


def decoded(times: list[int]) -> pa.RecordBatch:
    data = batch(0, [Record(i, time, b"%d" % i, None, [("h", b"%d" % i)]) for i, time in enumerate(times)])
    [rows] = decode_batches(data, scan_headers(data, "0.log", 0), name="0.log", partition=0, incarnation=0)
    return rows


def test_a_copy_keeps_all_of_its_rows(rng: random.Random) -> None:
    times = [rng.choice([rng.randrange(1 << 40), 1 << 62, -(1 << 61) - number]) for number in range(40)]
    rows = decoded(times)
    for start in (0, 13):
        part = rows.slice(start)
        indices = np.array(sorted(rng.sample(range(len(part)), 20)))
        found = copied(part, indices)
        assert found.schema == rows.schema
        assert found.to_pylist() == [part.to_pylist()[index] for index in indices]
        chosen = [times[start + index] for index in indices]
        assert exact_milliseconds(found).tolist() == chosen
    assert len(copied(rows, np.empty(0, np.int64))) == 0
