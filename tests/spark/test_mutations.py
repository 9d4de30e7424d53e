"""Base offsets and leader epochs lie outside a batch's checksum: what damages them is caught all the same."""

from __future__ import annotations

import random
import struct

from tests.spark.convert.test_parts import judged
from tests.tidemark.kafka_log.build import simple
from tidemark.errors import SegmentError

LINEAGE = ((3, 0), (4, 12), (7, 20))
BATCHES = [simple(4 * i, 4, leader_epoch=max(epoch for epoch, start in LINEAGE if start <= 4 * i)) for i in range(8)]
END = 32


def caught(batches: list[bytes]) -> str:
    """How the segment's first broken rule shows: the scan, or continuity on the lineage; empty if nothing does."""
    try:
        verdict = judged(b"".join(batches), 0, END, lineage=LINEAGE)
    except SegmentError:
        return "scan"
    return "hole" if verdict.stop or verdict.next_offset < END else ""


def test_a_changed_base_offset_or_epoch_is_caught(rng: random.Random, full: bool) -> None:
    assert not caught(BATCHES)
    seen: set[tuple[str, str]] = set()
    for _ in range(100_000 if full else 2000):
        batches = list(BATCHES)
        at = rng.randrange(len(batches))
        raw = bytearray(batches[at])
        field, place, width = rng.choice([("base offset", 0, 8), ("epoch", 12, 4)])
        if rng.random() < 0.5:
            raw[place + rng.randrange(width)] ^= 1 << rng.randrange(8)
        else:
            (value,) = struct.unpack_from(">q" if width == 8 else ">i", raw, place)
            value += rng.choice([-5, -4, -1, 1, 2, 3, 4, 8])
            struct.pack_into(">q" if width == 8 else ">i", raw, place, value)
        batches[at] = bytes(raw)
        how = caught(batches)
        assert how, (field, at, bytes(raw[:16]).hex())
        seen.add((field, how))
    assert seen == {(field, how) for field in ("base offset", "epoch") for how in ("scan", "hole")}
