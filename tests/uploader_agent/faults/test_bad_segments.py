"""Every structural place of a batch, damaged one by one on a disk made by hand: named, kept, stopped before, mended."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest

from tests.tidemark.kafka_log.build import FIELDS, HEADER
from tests.uploader_agent.fakes import ID, World, records
from tidemark.formats.keys import TopicPartition
from tidemark.kafka_log import scan_batches
from uploader_agent.broker.admin import Led

OTHER = TopicPartition("orders", 1)
AT = {
    "base_offset": (0, 8),
    "length": (8, 4),
    "leader_epoch": (12, 4),
    "magic": (16, 1),
    "crc": (17, 4),
    "attributes": (21, 2),
    "last_offset_delta": (23, 4),
    "base_timestamp": (27, 8),
    "max_timestamp": (35, 8),
    "producer_id": (43, 8),
    "producer_epoch": (51, 2),
    "base_sequence": (53, 4),
    "record_count": (57, 4),
    "body": (61, 20),
}
"""First byte and width of each structural place of a v2 batch (``DefaultRecordBatch``)."""

Damage = Callable[[bytes, int, int, random.Random], bytes]


def test_the_places_are_all_there() -> None:
    assert [*AT][:-1] == FIELDS
    assert sum(width for name, (_, width) in AT.items() if name != "body") == HEADER.size


def flip(place: str) -> Damage:
    """Flip one bit of each byte of a place in turn is too much for one segment: a random one of them."""

    def change(content: bytes, start: int, _end: int, rng: random.Random) -> bytes:
        first, width = AT[place]
        return flipped(content, start + first + rng.randrange(width), 1 << rng.randrange(8))

    return change


def flipped(content: bytes, at: int, bits: int) -> bytes:
    changed = bytearray(content)
    changed[at] ^= bits
    return bytes(changed)


def replaced(content: bytes, at: int, new: bytes) -> bytes:
    return content[:at] + new + content[at + len(new) :]


def truncated(content: bytes, start: int, end: int, rng: random.Random) -> bytes:
    return content[: rng.randrange(start + 1, end)]


def lost_batches(content: bytes, start: int, _end: int, _rng: random.Random) -> bytes:
    return content[:start]


def zeros(content: bytes, start: int, end: int, _rng: random.Random) -> bytes:
    return replaced(content, start, bytes(end - start))


def zeros_to_the_end(content: bytes, start: int, _end: int, _rng: random.Random) -> bytes:
    return content[:start] + bytes(len(content) - start)


def future_magic(content: bytes, start: int, _end: int, _rng: random.Random) -> bytes:
    return replaced(content, start + 16, b"\x03")


def longer(content: bytes, start: int, end: int, _rng: random.Random) -> bytes:
    return replaced(content, start + 8, (end - start - 12 + 7).to_bytes(4))


def shorter(content: bytes, start: int, end: int, _rng: random.Random) -> bytes:
    return replaced(content, start + 8, (end - start - 12 - 7).to_bytes(4))


def huge(content: bytes, start: int, _end: int, _rng: random.Random) -> bytes:
    return replaced(content, start + 8, (2**31 - 1).to_bytes(4))


def negative(content: bytes, start: int, _end: int, _rng: random.Random) -> bytes:
    return replaced(content, start + 8, b"\xff\xff\xff\xff")


DAMAGE: dict[str, Damage] = {f"bit of {place}": flip(place) for place in AT} | {
    "truncated": truncated,
    "batches lost at the end": lost_batches,
    "zeros": zeros,
    "zeros to the end": zeros_to_the_end,
    "future magic": future_magic,
    "length too long": longer,
    "length too short": shorter,
    "length huge": huge,
    "length negative": negative,
}


@pytest.mark.parametrize(
    "batch", ["middle", *(pytest.param(one, marks=pytest.mark.drawn(0.25)) for one in ("first", "last"))]
)
@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged(world: World, kind: str, batch: str, rng: random.Random, capsys: pytest.CaptureFixture[str]) -> None:
    """Segment [100, 200) of one partition is damaged at one batch; the next one, and the other partition, are sound."""
    good = records(100, 200)
    starts = [header.position for header in scan_batches([good], "good", 100)]
    number = {"first": 0, "middle": rng.randrange(1, len(starts) - 1), "last": len(starts) - 1}[batch]
    start, end = starts[number], [*starts, len(good)][number + 1]
    bad = DAMAGE[kind](good, start, end, rng)
    assert bad != good
    partition = world.disk.partition().fill(0, 100, 200, end=300)
    partition.log(100).write_bytes(bad)
    world.disk.partition(OTHER).fill(0, 100, end=200)
    world.metadata.leads[OTHER] = Led(3, ID)
    world.once()

    path = partition.log(100)
    assert f"{100:020d}.log" not in world.names(), f"byte {start} of {len(good)}: nobody noticed"
    suffix = world.damaged(100)
    manifest = world.manifest(100, suffix=suffix)
    assert manifest.state == "corrupt"
    assert manifest.damage is not None
    assert (manifest.damage.position, manifest.damage.offset) == (start, 100 + 10 * number)
    said = capsys.readouterr().out
    assert "segment_corrupt" in said
    assert str(path) in said
    assert f"offset={100 + 10 * number}" in said
    assert world.stored(100, "corrupt", suffix=suffix) == bad, "the bytes are kept as they are"
    assert f"{100:020d}.log" not in world.names()
    _, watermark = world.watermark()
    assert watermark.next_offset == 100 + 10 * number, "it stops before the bad batch"
    assert [(gap.start, gap.end, gap.reason) for gap in watermark.gaps] == [(100 + 10 * number, 200, "corrupt")]
    assert world.manifest(200).state == "whole"
    assert world.watermark(OTHER)[1].next_offset == 200, "the other partition is unharmed"

    partition.log(100).write_bytes(good)  # as a new leader's replica has it
    world.broker = dataclasses.replace(world.broker, node_id=2)
    world.metadata.leads[TopicPartition("orders", 0)] = Led(4, ID)
    world.once()
    assert world.watermark()[1].next_offset == 300
    assert world.watermark()[1].gaps == ()
    assert world.manifest(100 + 10 * number).state == "whole", "from the bad batch on"
    assert world.manifest(100, suffix=suffix) == manifest
