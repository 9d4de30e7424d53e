"""A head's entries, kept as JSON."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tidemark.formats.raw.head import EntryKey, HeadEntry, entry_json
from tidemark.formats.raw.pack import RangePointer
from uploader_agent.packs.broker_head import EntryLines


def entry(partition: int, tail_end: int) -> HeadEntry:
    return HeadEntry(
        topic="orders",
        topic_id="9qjWLzpzSeKF3tvzv1l6bQ",
        partition=partition,
        epoch=3,
        lineage=((3, 0),),
        tail_end=tail_end,
        last=RangePointer(pack=f"1/{'0' * 32}.pack", position=10, length=20),
        high_watermark=tail_end,
        observed_at=datetime(2026, 11, 23, tzinfo=UTC),
        oldest_unstored=0.0,
    )


def test_entries_are_what_was_put() -> None:
    first, second = entry(0, 10), entry(1, 20)
    entries = EntryLines([first, second])
    assert dict(entries) == {first.key: first, second.key: second}
    assert [*entries.lines] == [entry_json(first), entry_json(second)]
    assert (entries.tail_end(second.key), entries.tail_end(EntryKey("A" * 22, 0, 3))) == (20, None)


def test_a_copy_changes_alone() -> None:
    entries = EntryLines([entry(0, 10)])
    other = entries.copy()
    assert other.put(entry(0, 30), most=1 << 20)
    other.remove(entry(0, 30).key)
    assert (len(other), entries.tail_end(entry(0, 10).key)) == (0, 10)


@pytest.mark.parametrize("room", [0, -1])
def test_entries_stay_within_a_size(room: int) -> None:
    """Every change counts: of an entry that is replaced, removed or added."""
    entries = EntryLines([entry(0, 10), entry(1, 20)])
    assert entries.put(entry(0, 1 << 40), most=1 << 20)
    entries.remove(entry(1, 20).key)
    kept = len(entry_json(entry(0, 1 << 40))) + 1
    added = len(entry_json(entry(2, 30))) + 1
    assert entries.put(entry(2, 30), most=kept + added + room) == (room == 0)
    assert (entry(2, 30).key in entries) == (room == 0)
