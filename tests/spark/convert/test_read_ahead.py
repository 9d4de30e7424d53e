"""Small ranges are read several at a time, in bounded memory; an error comes when it is its range's turn."""

from __future__ import annotations

import threading
from contextlib import closing
from datetime import UTC, datetime

import pytest

from tidemark.concurrency import THREADS
from tidemark.errors import NotFound
from tidemark.formats.table.plan import SegmentRange
from tidemark.store import StoreOptions
from tidemark_spark.convert import read_ahead as module
from tidemark_spark.convert.read_ahead import SMALL, read_ahead


def ranges(*sizes: int) -> list[SegmentRange]:
    """Ranges of packs ``0``, ``1``, … of these sizes."""
    return [
        SegmentRange(
            store="file:///raw",
            key=str(number),
            etag="",
            base_offset=number,
            start=0,
            end=size,
            from_offset=number,
            to_offset=number + 1,
            uploaded_at=datetime(2026, 2, 2, tzinfo=UTC),
        )
        for number, size in enumerate(sizes)
    ]


class SlowStore:
    """Answers once ``together`` requests are under way, or at once; a key of ``gone`` is not there."""

    def __init__(self, together: int = 1, gone: tuple[str, ...] = ()) -> None:
        self._barrier, self._gone = threading.Barrier(together), gone
        self.asked: list[str] = []

    def get_range(self, key: str, start: int, end: int, *, if_match: str | None = None) -> bytes:
        self.asked.append(key)
        assert if_match is None, "packs have no ETag"
        self._barrier.wait(30)
        if key in self._gone:
            raise NotFound(key, "is not there")
        return key.encode() * (end - start)


def served(monkeypatch: pytest.MonkeyPatch, store: SlowStore) -> None:
    monkeypatch.setattr(module, "open_store", lambda *_: store)


def test_small_ranges_are_read_side_by_side_and_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    served(monkeypatch, SlowStore(together=THREADS))
    parts = ranges(*[3] * (5 * THREADS))
    found = [ahead.result() for _, ahead in read_ahead(parts, StoreOptions()) if ahead]
    assert found == [part.key.encode() * 3 for part in parts]


def test_no_more_is_under_way_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    store = SlowStore()
    served(monkeypatch, store)
    with closing(read_ahead(ranges(*[3] * 100), StoreOptions())) as found:
        for number, _ in zip(range(10), found, strict=False):
            assert len(store.asked) <= number + 16
    assert len(store.asked) <= 10 + 16, "nothing is asked for once it is closed"


def test_large_ranges_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    store = SlowStore()
    served(monkeypatch, store)
    found = list(read_ahead(ranges(3, SMALL + 1, 3), StoreOptions()))
    assert [ahead is None for _, ahead in found] == [False, True, False]
    store.asked.clear()
    assert [ahead for _, ahead in read_ahead(ranges(3, SMALL + 1), StoreOptions())] == [None, None]
    assert store.asked == [], "one alone is read when it is its turn"


def test_an_error_comes_with_its_range(monkeypatch: pytest.MonkeyPatch) -> None:
    served(monkeypatch, SlowStore(gone=("1",)))
    with closing(read_ahead(ranges(3, 3, 3), StoreOptions())) as found:
        ahead = [ahead for _, ahead in found if ahead]
    assert (ahead[0].result(), ahead[2].result()) == (b"000", b"222")
    with pytest.raises(NotFound):
        ahead[1].result()
