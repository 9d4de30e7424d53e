"""Erased records: a consumer gets none of them from storage, in any mode. What Kafka has is Kafka's."""

from __future__ import annotations

from typing import Any

import pytest

from tests.consumer.test_tiers import Made, values
from tests.consumer.world import World, origins, read_to, read_until
from tests.support.erased import erase, index_key
from tests.support.waiting import wait_until
from tidemark import Mode
from tidemark.errors import FormatError
from tidemark.remote import topics

COUNT, STORED, DELETED = 100, 80, 60
ERASED = {0, *range(5, 10), 19, 40, 59, 70, 79}
LEFT = [one for one in range(STORED) if one not in ERASED]


@pytest.fixture
def made(local_world: World, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Kafka has offsets 60 to 99 of a hundred, storage 0 to 79. Each look reads the index of masks."""
    monkeypatch.setattr(topics, "MASKS_MAX_AGE", 0.0)
    found = Made(local_world, f"erased-{local_world.folder.name}", COUNT, DELETED)
    for start in range(0, STORED, 20):
        found.segment(start, start + 20)
    found.raw.publish()
    return found


def test_storage_gives_no_erased_record(made: Made) -> None:
    erase(made.raw, ERASED, epoch=0)
    with made.consumer(Mode.REMOTE_ONLY, 0, group_id=f"g-{made.topic}") as consumer:
        assert values(read_to(consumer, {made.tp: STORED})) == LEFT
        assert consumer.position(made.tp) == STORED
        consumer.seek(made.tp, 0)
        found: list[int] = []
        while consumer.position(made.tp) < STORED:
            for rows in consumer.poll_arrow(timeout_ms=1000, max_bytes=500).values():
                found += rows["kafka_offset"].to_pylist()
        assert found == LEFT
        consumer.commit()
        assert consumer.committed(made.tp) == STORED
        first = 1_700_000_000_000
        assert [consumer.offsets_for_times({made.tp: first + one})[made.tp].offset for one in (0, 5, 19)] == [1, 10, 20]


def test_what_kafka_has_comes_from_kafka(made: Made) -> None:
    erase(made.raw, ERASED, epoch=0)
    with made.consumer(Mode.REMOTE_PREFERRED, 0) as consumer:
        assert values(read_to(consumer, {made.tp: COUNT})) == [*LEFT, *range(STORED, COUNT)]
        assert origins(consumer, made.tp)["remote"] == len(LEFT)
    with made.consumer(Mode.KAFKA_PREFERRED, DELETED) as consumer:
        assert values(read_to(consumer, {made.tp: COUNT})) == list(range(DELETED, COUNT))


def test_an_open_consumer_follows_the_masks(made: Made) -> None:
    with made.consumer(Mode.REMOTE_ONLY, 0) as consumer:
        first = values(read_until(consumer, bool, max_records=3))
        erase(made.raw, ERASED, epoch=0)
        remote: Any = consumer._remote
        wait_until(lambda: remote._entries[made.tp].get().basis[1], what="the masks of the partition")
        rest = values(read_to(consumer, {made.tp: STORED}))
        assert rest == [one for one in LEFT if one > first[-1]]


def test_without_its_masks_storage_gives_nothing(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    erase(made.raw, ERASED, epoch=0)
    index, key = made.raw.store.get(index_key(made.raw)).body, index_key(made.raw)
    made.raw.store.put(key, b"{")
    with made.consumer(Mode.REMOTE_ONLY, 0) as consumer:
        for _ in range(2):
            with pytest.raises(FormatError, match="_erased"):
                read_until(consumer, bool)
        made.raw.store.put(key, index)
        assert values(read_to(consumer, {made.tp: STORED})) == LEFT
    made.raw.store.put(key, b"{")
    with made.consumer(Mode.REMOTE_PREFERRED, DELETED) as consumer:
        assert values(read_to(consumer, {made.tp: COUNT})) == list(range(DELETED, COUNT))
        assert origins(consumer, made.tp).get("remote", 0) == 0
    assert any("cannot be read, reading from Kafka" in line and "_erased" in line for line in caplog.messages)
