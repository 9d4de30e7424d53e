"""Words on gaps and tombstones are believed by what they say and where they lie, never by a name alone."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.raw_builder import word
from tidemark.errors import FormatError
from tidemark.formats import tombstones
from tidemark.formats.acknowledgements import acknowledged
from tidemark.formats.keys import ControlKeys, Endpoint, PartitionKeys
from tidemark.formats.tombstones import Tombstone
from tidemark.intervals import Intervals
from tidemark.store import LocalStore, Store
from tidemark.timestamps import stamp

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
CONTROL = ControlKeys("", "east")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return LocalStore(tmp_path)


@pytest.fixture
def keys(store: Store) -> PartitionKeys:
    return PartitionKeys(Endpoint(store.url), "east", "orders", 0)


def stone(**changes: Any) -> Tombstone:
    """Of [0, 300)."""
    segments: list[dict[str, Any]] = [
        {"base_offset": base, "next_offset": base + 100, "uploaded_at": AT, "manifest_etag": "e", "objects": {}}
        for base in (0, 100, 200)
    ]
    said: dict[str, Any] = {
        "cluster": "east", "topic": "orders", "topic_id": None, "incarnation": 0, "partition": 0, "from": 0, "to": 300,
        "by": "ada", "written_as": "ada@host", "at": AT, "window": "1d", "report": "r.json", "ledger_n": 3,
        "ledger_attempt": 7, "segments": segments,
    }  # fmt: skip
    return Tombstone.model_validate({**said, **changes})


def stone_key(keys: PartitionKeys, start: int = 0, end: int = 300, at: datetime = AT) -> str:
    return CONTROL.tombstone(keys.place, keys.partition, start, end, stamp(at))


def test_a_tombstone_in_its_place_is_believed(store: Store, keys: PartitionKeys) -> None:
    key = stone_key(keys)
    store.put(key, stone().to_bytes())
    assert tombstones.removed(store, keys) == Intervals([(0, 300)])
    later = stone(**{"from": 0, "to": 200, "segments": stone().segments[:2]})
    store.put(stone_key(keys, 0, 200), later.to_bytes())
    assert [(one.start, one.end) for one in tombstones.listed(store, keys)] == [(0, 200), (0, 300)]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "object"),
        (b"{}", "cluster"),
        (stone(cluster="west").to_bytes(), "is about west/orders-0"),
        (stone(topic="clicks").to_bytes(), "is about east/clicks-0"),
        (stone(partition=1).to_bytes(), "is about east/orders-1"),
        (stone(incarnation=1, topic_id="A" * 22).to_bytes(), "is about east/orders@"),
        (stone(incarnation=1).to_bytes(), "needs its topic id"),
        (stone(topic="..").to_bytes(), "topic name"),
        (stone(to=301).to_bytes(), "is about offsets 0 to 301"),
        (stone(at=datetime(2026, 11, 21, tzinfo=UTC)).to_bytes(), "but its key names others"),
        (stone(segments=stone().segments[:2]).to_bytes(), "do not reach from 0 to 300"),
        (stone().to_bytes().replace(b'"by":"ada"', b'"by":""'), "by"),
        (stone().to_bytes().replace(b'"report":"r.json"', b'"report":""'), "report"),
        (stone().to_bytes().replace(b',"written_as":"ada@host"', b""), "written_as"),
    ],
)
def test_a_tombstone_that_does_not_hold_is_named(store: Store, keys: PartitionKeys, body: bytes, told: str) -> None:
    store.put(stone_key(keys), body)
    with pytest.raises(FormatError, match="_tombstones/east/orders-0/") as caught:
        tombstones.removed(store, keys)
    assert told in str(caught.value)
    other = PartitionKeys(Endpoint(store.url), "east", "orders", 1)
    assert not tombstones.removed(store, other), "and no other partition minds"


def test_a_tombstone_is_read_again_when_it_is_another(store: Store, keys: PartitionKeys) -> None:
    store.put(stone_key(keys), stone().to_bytes())
    assert tombstones.removed(store, keys)
    store.put(stone_key(keys), b"{}")
    with pytest.raises(FormatError):
        tombstones.removed(store, keys)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"{}", "cluster"),
        (word(0, 100, cluster="west").to_bytes(), "is about west/orders-0"),
        (word(0, 100, "clicks", cluster="east").to_bytes(), "is about east/clicks-0"),
        (word(0, 100, partition=1, cluster="east").to_bytes(), "is about east/orders-1"),
        (word(0, 200, cluster="east").to_bytes(), "is about offsets 0 to 200"),
    ],
)
def test_a_word_that_does_not_hold_is_named(store: Store, keys: PartitionKeys, body: bytes, told: str) -> None:
    key = CONTROL.acknowledgement("orders", 0, 0, 100)
    store.put(key, word(0, 100, cluster="east").to_bytes())
    assert acknowledged(store, CONTROL, keys) == Intervals([(0, 100)])
    store.put(key, body)
    with pytest.raises(FormatError, match=r"_acks/east/orders-0/0-100\.json") as caught:
        acknowledged(store, CONTROL, keys)
    assert told in str(caught.value)
