"""What the page keeps of what it reads, and for how long."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.world import CLUSTER, World, entry
from tidemark.errors import FormatError, StoreError
from tidemark.store.local import LocalStore
from tidemark_airflow.web.packed_indexes import PackedIndexes
from tidemark_airflow.web.reader import Kept


def test_a_value_is_made_once_for_all_who_ask_at_once() -> None:
    made: list[int] = []
    asked = threading.Barrier(8)
    found: list[int] = []

    def make(key: int) -> int:
        made.append(key)
        return key * 2

    kept: Kept[int, int] = Kept(make)

    def ask() -> None:
        asked.wait()
        found.append(kept.get(21))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (made, found) == ([21], [42] * 8)


def test_a_value_is_made_anew_when_it_is_old_or_forgotten_and_an_error_is_not_kept() -> None:
    calls: list[str] = []

    def make(key: str) -> int:
        calls.append(key)
        if len(calls) == 1:
            raise FormatError(key, "is no good")
        return len(calls)

    always: Kept[str, int] = Kept(make, seconds=0.0)
    with pytest.raises(FormatError):
        always.get("a")
    assert (always.get("a"), always.get("a")) == (2, 3)
    lasting: Kept[str, int] = Kept(make, seconds=1000.0, most=2)
    assert (lasting.get("a"), lasting.get("a")) == (4, 4)
    lasting.forget("a")
    assert lasting.get("a") == 5
    assert (lasting.get("b"), lasting.get("c"), lasting.get("a")) == (6, 7, 8), "the oldest makes room"


@pytest.fixture
def gets(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys that are fetched."""
    found: list[str] = []
    get = LocalStore.get

    def counted(store: LocalStore, key: str, **options: Any) -> object:
        found.append(key)
        return get(store, key, **options)

    monkeypatch.setattr(LocalStore, "get", counted)
    return found


def ends(indexes: PackedIndexes, topic: str) -> dict[int, tuple[int, int]]:
    """By partition: broker and next offset."""
    return {partition: (led.broker, led.entry.next_offset) for partition, led in indexes.leaders_of(topic).items()}


def test_only_indexes_that_changed_are_fetched(tmp_path: Path, gets: list[str]) -> None:
    world = World(tmp_path / "world", "orders", "clicks")
    world.put_index(entry("orders", 0, 5), entry("clicks", 0, 7), broker=1)
    world.put_index(entry("orders", 1, 6), broker=2)
    indexes = PackedIndexes(world.deployment, CLUSTER)
    assert ends(indexes, "orders") == {}
    indexes.look()
    assert indexes.failure_of("orders") == ""
    assert ends(indexes, "orders") == {0: (1, 5), 1: (2, 6)}
    assert ends(indexes, "clicks") == {0: (1, 7)}
    assert len(gets) == 2

    world.put_index(entry("orders", 1, 9), entry("orders", 0, 9, epoch=1), broker=2)
    indexes.look()
    assert indexes.failure_of("orders") == ""
    assert ends(indexes, "orders") == {0: (2, 9), 1: (2, 9)}, "a later epoch counts"
    assert gets[2:] == [world.control.index(2)]
    world.raw.delete(world.control.index(2))
    indexes.look()
    assert ends(indexes, "orders") == {0: (1, 5)}


def test_what_was_read_before_outlives_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path / "world")
    world.put_index(entry("orders", 0, 5), broker=1)
    indexes = PackedIndexes(world.deployment, CLUSTER)
    indexes.look()
    world.raw.put(world.control.index(1), b"[]")
    indexes.look()
    assert world.control.index(1) in indexes.failure_of("orders")
    assert ends(indexes, "orders") == {0: (1, 5)}

    def refuse(*_: object, **__: object) -> None:
        raise StoreError("_watermarks", "does not answer")

    monkeypatch.setattr(LocalStore, "list", refuse)
    indexes.look()
    assert "does not answer" in indexes.failure_of("orders")
    assert ends(indexes, "orders") == {0: (1, 5)}
