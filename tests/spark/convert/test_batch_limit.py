"""Batches beyond ``limits.batch``: in quarantine with their bytes, to be landed when the limit allows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.convert.test_parsers import again
from tests.spark.world import World
from tests.tidemark.kafka_log.build import T0, Record, batch, simple
from tidemark.planning import plan_rebuild, plan_replay

SMALL = "limits: {batch: 1MiB}"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def large(base: int, codec: str) -> bytes:
    """Two records of 600 KB each."""
    return batch(base, [Record(i, T0, b"large", bytes(600_000)) for i in range(2)], codec)


def limited(before: World, root: Path, *settings: str) -> World:
    """The same deployment with other settings."""
    world = World(root, *settings)
    world.raw = before.raw
    return world


def test_a_batch_beyond_the_limit_waits_in_quarantine_until_the_limit_is_raised(tmp_path: Path) -> None:
    world = World(tmp_path, SMALL)
    batches = [one for i, codec in enumerate(CODECS) for one in (simple(5 * i, 3), large(5 * i + 3, codec))]
    world.raw.segment(batches)
    result = world.land()
    assert (result.rows, result.quarantined) == (15, 10)
    assert world.next_offset() == 25
    found = {row["kafka_offset"]: row for row in world.quarantine()}
    assert {at: (row["next_offset"], row["batch"]) for at, row in found.items()} == {
        5 * i + 3: (5 * i + 5, batches[2 * i + 1]) for i in range(len(CODECS))
    }
    assert all("bound of a batch" in row["reason"] and "1048576" in row["reason"] for row in found.values())
    assert again(world, plan_replay(world.table)).status == "empty"
    raised = limited(world, tmp_path)
    assert again(raised, plan_replay(raised.table)).rows == 10
    assert raised.quarantine() == []
    assert raised.offsets() == list(range(25))


@pytest.mark.parametrize("codec", CODECS)
def test_a_rebuild_follows_the_limit_down_and_up(codec: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.raw.segment([simple(0, 3), large(3, codec)])
    assert world.land().rows == 5
    lowered = limited(world, tmp_path, SMALL)
    assert again(lowered, plan_rebuild(lowered.table, None)).rows == 3
    assert [row["kafka_offset"] for row in lowered.quarantine()] == [3]
    raised = limited(world, tmp_path)
    assert again(raised, plan_rebuild(raised.table, None)).rows == 5
    assert raised.quarantine() == []


@pytest.mark.parametrize("order", ["batch row", "row batch", "batch row batch row", "row batch row"])
def test_batches_and_rows_without_a_date_share_a_file_in_any_order(order: str, tmp_path: Path) -> None:
    """The rows of a window come before its batches, whatever their offsets."""
    world = World(tmp_path, SMALL)
    at, batches = 0, []
    for kind in order.split():
        batches.append(large(at, "zstd") if kind == "batch" else batch(at, [Record(0, -1, b"k", b"no time")]))
        at += 2 if kind == "batch" else 1
    world.raw.segment(batches)
    world.land()
    assert world.classes() == {"quarantined": at}
    [row] = [one for one in world.evidence() if one["class"] == "quarantined"]
    assert (row["first"], row["next"], row["dt"]) == (0, at, None)
    assert f"_0_{at - 1}_" in row["file"]
