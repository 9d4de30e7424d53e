"""Segments that go bad on a real leader's disk: the others' replicas are good, and mend what is in the store."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from tests.support.kafka import KafkaCluster
from tests.support.waiting import wait_until
from tests.uploader_agent.faults.cluster import await_in_sync, bases, create, folder, topic_id
from tests.uploader_agent.faults.conftest import MakeFleet
from tests.uploader_agent.faults.fleet import assert_exact
from tests.uploader_agent.faults.load import Book, send
from tidemark.formats.keys import SegmentName
from tidemark.kafka_log import scan_batches


def flip_in_body(path: Path, start: int, end: int, rng: random.Random) -> None:
    """One bit of the records."""
    body = bytearray(path.read_bytes())
    body[rng.randrange(start + 61, end)] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(body))


def truncate(path: Path, start: int, end: int, rng: random.Random) -> None:
    """The file ends inside the batch."""
    with path.open("r+b") as file:
        file.truncate(rng.randrange(start + 1, end))


def zero(path: Path, start: int, end: int, rng: random.Random) -> None:
    """A block was never written."""
    body = path.read_bytes()
    path.write_bytes(body[:start] + bytes(end - start) + body[end:])


@pytest.mark.parametrize(
    "damage", [flip_in_body, pytest.param(truncate, marks=pytest.mark.full), pytest.param(zero, marks=pytest.mark.full)]
)
def test_mended_from_a_follower(
    kraft3: KafkaCluster,
    make_fleet: MakeFleet,
    rng: random.Random,
    damage: Callable[[Path, int, int, random.Random], None],
) -> None:
    topic, healthy = f"bad-{damage.__name__.replace('_', '-')}", f"good-{damage.__name__.replace('_', '-')}"
    books = {topic: Book(), healthy: Book()}
    for name, book in books.items():
        create(kraft3, name, [[1, 2]], internal_segment_bytes="32768")
        send(kraft3, name, book, 400)
        await_in_sync(kraft3, name, 2)
    place = folder(kraft3.brokers[0], topic, 0)
    base = bases(place)[1]
    log = place / f"{base:020d}.log"
    good = log.read_bytes()
    header = rng.choice(list(scan_batches([good], log.name, base))[1:])
    damage(log, header.position, header.end, rng)
    bad = log.read_bytes()
    assert bad != good
    fleet = make_fleet(kraft3, topic, [topic, healthy], nodes=[1, 2], fill_interval="1s")
    with fleet.running(start=False):
        fleet.agents[1].start()
        fleet.await_rotated(healthy)
        wait_until(lambda: fleet.reader.knows(topic), what="the damaged topic to be seen")
        keys = fleet.reader.keys(topic, topic_id(place), 0)
        found = fleet.reader.watermark(keys)

        def is_recorded() -> bool:
            nonlocal found
            found = fleet.reader.watermark(keys)
            return found is not None and bool(found[1].gaps) and found[1].next_offset >= base

        wait_until(is_recorded, what="what is before the gap to be uploaded, and the gap to be recorded")
        assert found is not None
        assert found[1].next_offset == header.base_offset, "it does not stop before the bad batch"
        assert [(gap.start, gap.reason) for gap in found[1].gaps] == [(header.base_offset, "corrupt")]
        assert str(log) in fleet.agents[1].text()
        kept = keys.segment(SegmentName.of_damage(base, crc32c(bad)), "corrupt")
        assert fleet.store.get(kept).body == bad
        fleet.agents[2].start()
        fleet.await_rotated(topic)
        fleet.settle()
        found = fleet.reader.watermark(keys)
        assert found is not None
        assert found[1].gaps == ()
    assert fleet.store.get(kept).body == bad, "the bad bytes are gone"
    verdicts = [*fleet.judge(topic, books[topic], disk=False), *fleet.judge(healthy, books[healthy])]
    assert_exact(verdicts, f"{damage.__name__} of the batch at offset {header.base_offset}")
