"""Watermark indexes are read where they changed, and one that cannot be read costs its broker alone."""

from __future__ import annotations

import gc
from datetime import timedelta
from pathlib import Path

import pytest

from tests.plugins.world import entry
from tests.support.bad_objects import BODIES, LATER, refused, spoil
from tidemark.errors import AccessDenied, FormatError
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.watermark_index import IndexEntry, WatermarkIndex, merge, parse_index
from tidemark.formats.table import object_cache
from tidemark.formats.table.object_cache import ObjectCache, ReadError
from tidemark.storage import ClusterStore
from tidemark.store import Store, open_store
from tidemark.timestamps import utc_now

__all__ = ["refused"]

FOLDER = "_watermarks/c/"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"file://{tmp_path}")


def of_cluster(store: Store) -> ClusterStore:
    return ClusterStore(store, ControlKeys("", "c"))


def put(store: Store, broker: int, *entries: IndexEntry, key: str = "") -> None:
    index = WatermarkIndex(cluster="c", broker=broker, agent_version="1", written_at=utc_now(), entries=entries)
    store.put(key or f"{FOLDER}{broker}.json", index.to_bytes())


def test_each_index_is_read_again_when_it_has_changed(store: Store) -> None:
    indexes = ObjectCache(store, FOLDER, parse_index, skip=(f"{FOLDER}9.json",))
    for broker in (1, 2, 9):
        put(store, broker)
    store.put(f"{FOLDER}note.txt", b"no index")
    assert (indexes.look(), indexes.look()) == (2, 0)
    put(store, 2, entry("orders", 0, 5))
    first = indexes.kept[f"{FOLDER}1.json"]
    assert indexes.look() == 1
    assert indexes.kept[f"{FOLDER}1.json"] is first
    assert indexes.kept[f"{FOLDER}2.json"].entries[0].next_offset == 5
    store.delete(f"{FOLDER}1.json")
    assert indexes.look() == 0
    assert list(indexes.kept) == [f"{FOLDER}2.json"]


@pytest.mark.parametrize("what", [*BODIES, "another broker's"])
def test_one_that_is_not_valid_is_told_of_once_and_not_read_again(store: Store, tmp_path: Path, what: str) -> None:
    told: list[tuple[str, str]] = []

    def tell(key: str, error: ReadError) -> None:
        told.append((key, type(error).__name__))

    indexes = ObjectCache(store, FOLDER, parse_index, on_failure=tell)
    put(store, 1, entry("orders", 0, 5))
    put(store, 2)
    indexes.look()
    if what in BODIES:
        spoil(tmp_path, f"{FOLDER}1.json", what)
    else:
        put(store, 7, key=f"{FOLDER}1.json")
    assert (indexes.look(), indexes.look()) == (1, 0)
    indexes.check()
    error = "LaterFormat" if what == LATER else "FormatError"
    assert told == [(f"{FOLDER}1.json", error)]
    assert list(indexes.failures) == [f"{FOLDER}1.json"]
    assert indexes.kept[f"{FOLDER}1.json"].entries[0].next_offset == 5, "what its broker said before still counts"
    put(store, 1, entry("orders", 0, 6))
    indexes.look()
    assert (indexes.kept[f"{FOLDER}1.json"].entries[0].next_offset, indexes.failures) == (6, {})


def test_one_that_the_store_does_not_give_is_asked_for_again(store: Store, refused: set[str]) -> None:
    for broker in (1, 2):
        put(store, broker)
    indexes = ObjectCache(store, FOLDER, parse_index)
    refused.add(f"{FOLDER}1.json")
    assert (indexes.look(), indexes.look()) == (2, 1)
    indexes.check()
    refused.add(f"{FOLDER}2.json")
    put(store, 2)
    indexes.look()
    with pytest.raises(AccessDenied):
        indexes.check()
    with pytest.raises(AccessDenied):
        of_cluster(store).indexes()
    refused.clear()
    assert indexes.look() == 2
    assert indexes.failures == {}


def test_an_error_that_is_kept_does_not_keep_the_object(store: Store) -> None:
    body = b"[" * 1_000_003
    store.put(f"{FOLDER}1.json", body)
    indexes = of_cluster(store).indexes()
    assert indexes.failures
    gc.collect()
    bodies = [one for error in indexes.failures.values() for one in _reachable(error) if one == body]
    assert not bodies


def _reachable(error: BaseException | None) -> list[object]:
    """The local values of all frames that ``error`` and its causes hold."""
    found: list[object] = []
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            found += trace.tb_frame.f_locals.values()
            trace = trace.tb_next
        error = error.__cause__ or error.__context__
    return found


def test_a_folder_with_more_objects_than_brokers_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_cache, "_MOST", 2)
    for broker in (1, 2):
        put(store, broker)
    indexes = of_cluster(store).indexes()
    put(store, 3)
    with pytest.raises(FormatError, match="more than 2 objects"):
        indexes.look()
    assert len(indexes.kept) == 2


def test_of_equal_offsets_the_latest_statement_counts(store: Store) -> None:
    now = utc_now() - timedelta(hours=1)
    put(store, 1, entry("orders", 0, 5, observed_at=now))
    put(store, 2, entry("orders", 0, 5, observed_at=now - timedelta(minutes=1)))
    put(store, 3, entry("orders", 0, 4, observed_at=now + timedelta(minutes=1)))
    [counting] = merge(of_cluster(store).indexes().kept.values()).values()
    assert (counting.next_offset, counting.observed_at) == (5, now)
