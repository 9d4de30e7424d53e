"""What heads add to what indexes say of led partitions."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.world import CLUSTER, TOPIC_ID, World, entry
from tests.tidemark.formats.packing import NOON
from tests.tidemark.formats.packing import entry as packed
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.head import Head, HeadEntry, render
from tidemark.formats.raw.watermark_index import LeaderEntry
from tidemark.inspection.agent_reports import led_partitions, with_heads

AT = TopicPartition("orders", 0)
SECOND = timedelta(seconds=1)


def tail(end: int, *, epoch: int = 3, oldest: float | None = 0.0, observed_at: datetime = NOON, **of: Any) -> HeadEntry:
    fields: dict[str, Any] = {
        "topic": "orders",
        "topic_id": TOPIC_ID,
        "partition": 0,
        "epoch": epoch,
        "lineage": [(epoch, 0)],
    }
    return packed(end, **fields, high_watermark=end, oldest_unstored=oldest, observed_at=observed_at, **of)


def head(*entries: HeadEntry) -> Head:
    return Head(cluster=CLUSTER, broker=5, agent="1.4.0", written_at=NOON, entries=entries)


def merged(known: Any, *entries: HeadEntry) -> LeaderEntry:
    return with_heads({AT: LeaderEntry(1, known)}, [head(*entries)])[AT]


INDEXED = entry("orders", 0, 0, epoch=3, log_end=120, observed_at=NOON - 50 * SECOND).model_copy(
    update={"tail_end": 100, "oldest_unstored": 12.0}
)


def test_what_was_packed_since_the_index_was_written() -> None:
    found = merged(INDEXED, tail(120)).entry
    assert (found.stored_end, found.oldest_unstored, found.observed_at) == (120, 0.0, NOON)
    assert (found.high_watermark, found.log_end_offset) == (120, 120)


def test_a_head_that_is_older_than_the_index() -> None:
    found = merged(INDEXED, tail(90, oldest=3.0, observed_at=NOON - 60 * SECOND)).entry
    assert (found.stored_end, found.oldest_unstored, found.observed_at) == (100, 12.0, NOON - 50 * SECOND)


def test_a_head_tells_what_the_index_does_not_know() -> None:
    unknown = INDEXED.model_copy(update={"packs_known": False, "tail_end": None, "oldest_unstored": None})
    found = merged(unknown, tail(110, observed_at=NOON - 60 * SECOND)).entry
    assert (unknown.stored_end, found.stored_end, found.oldest_unstored) == (None, 110, 0.0)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(tail(500, epoch=2), id="of a former leadership, which an election may have cut off"),
        pytest.param(tail(500).model_copy(update={"topic_id": "another-topic-id-00000"}), id="of another topic"),
        pytest.param(tail(500).model_copy(update={"partition": 1}), id="of another partition"),
    ],
)
def test_a_head_of_something_else_says_nothing(other: HeadEntry) -> None:
    assert merged(INDEXED, other) == LeaderEntry(1, INDEXED)


def test_the_next_leader_is_known_by_its_head_first() -> None:
    found = merged(INDEXED, tail(80, epoch=4))
    assert (found.broker, found.entry.leader_epoch, found.entry.stored_end, found.entry.high_watermark) == (
        5,
        4,
        80,
        80,
    )


@pytest.mark.parametrize(("freshness", "end"), [("60s", 120), (None, 100)])
def test_heads_are_read_where_a_topic_has_a_freshness(tmp_path: Path, freshness: str | None, end: int) -> None:
    world = World(tmp_path, "orders", **({"freshness": freshness} if freshness else {}))
    world.put_index(INDEXED)
    key, body = render(head(tail(120)), world.control)
    world.raw.put(key, body)
    world.raw.put(world.control.head(6), b"not a head")
    assert led_partitions(world.deployment, CLUSTER)[AT].entry.stored_end == end
