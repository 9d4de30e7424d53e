"""The rules of retention that are pure: which offsets are classed, when a segment is done, and why one stays."""

from __future__ import annotations

import random
from array import array
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from tidemark.formats.raw.manifest import ObjectSum, SegmentManifest
from tidemark.formats.raw.watermark import Watermark
from tidemark.formats.table.ledger import PartitionState
from tidemark.intervals import Intervals
from tidemark.planning.maintenance.retention import Classed, Keeping, done_at

UPLOADED = datetime(2026, 11, 20, tzinfo=UTC)
LATER = UPLOADED + timedelta(days=30)
LOG = f"{100:020d}.log"
DAMAGE = {"position": 0, "offset": 100, "rule": "seeded"}


def manifest(**fields: Any) -> SegmentManifest:
    """[100, 200), uploaded and rolled at ``UPLOADED``."""
    known = {
        "cluster": "east",
        "topic": "orders",
        "topic_id": None,
        "partition": 0,
        "base_offset": 100,
        "last_batch_end": 200,
        "next_offset": 200,
        "lineage": ((3, 0),),
        "first_timestamp": 0,
        "max_timestamp": 0,
        "batch_count": 1,
        "magics": (2,),
        "codecs": ("none",),
        "open_transactions": (),
        "log_start_offset": 0,
        "high_watermark": 200,
        "last_stable_offset": None,
        "offsets_from": "broker",
        "cleanup_policy": "delete",
        "rotated_at": UPLOADED,
        "uploaded_at": UPLOADED,
        "broker": 1,
        "agent_version": "test",
        "state": "whole",
        "objects": {LOG: ObjectSum(size=1, crc32c="00000000", etag="a")},
    }
    return SegmentManifest.model_validate(known | fields)


def keeping(**fields: Any) -> Keeping:
    """All of [0, 300) is landed and classed; the last segment starts at 200."""
    state: dict[str, Any] = {"incarnation": 0, "topic_id": None, "partition": 0, "start_offset": 0, "next_offset": 300}
    mark = {
        "topic_id": None,
        "start_offset": 0,
        "leader_epoch": 3,
        "next_offset": 300,
        "lineage": ((3, 0),),
        "broker": 1,
        "written_at": UPLOADED,
    }
    own = {name: fields.pop(name) for name in list(fields) if name in {"classed", "busy", "line_1", "before"}}
    state |= {"leader_epoch": 3, "lineage": ((3, 0),), "next_offset": fields.pop("landed", 300)}
    state["verdicts_end"] = state["next_offset"]
    return Keeping(
        PartitionState.model_validate(state),
        Watermark.model_validate(mark | fields),
        own.get("line_1", 200),
        Intervals(own.get("classed", [(0, 300)])),
        own.get("busy", ()),
        own.get("before", LATER),
        timedelta(days=1),
    )


def test_a_segment_goes_where_nothing_is_against_it() -> None:
    assert keeping().partition_stays() is None
    assert keeping().segment_stays(manifest(), {LOG: "a"}, "log") is None


@pytest.mark.parametrize(
    ("known", "fields", "etag", "why"),
    [
        ({}, {"state": "corrupt", "damage": DAMAGE}, "a", "it is corrupt"),
        ({"landed": 199}, {}, "a", "it is not landed: the ledger continues at 199"),
        ({"next_offset": 199}, {}, "a", "it is not landed: the ledger continues at 300"),
        ({"classed": [(0, 150), (151, 300)]}, {}, "a", "the evidence does not give each of its offsets one class"),
        ({"line_1": 199}, {}, "a", "agents continue from segment 199"),
        ({"before": UPLOADED}, {}, "a", "its last record or upload is of 2026-11-20 00:00 UTC"),
        ({"busy": ("log",)}, {}, "a", "a run that may still commit reads it"),
        ({}, {}, "c", f"{LOG} is not the version that its manifest describes, or is gone"),
    ],
)
def test_why_a_segment_stays(known: dict[str, Any], fields: dict[str, Any], etag: str, why: str) -> None:
    assert keeping(**known).segment_stays(manifest(**fields), {LOG: etag}, "log") == why


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, UPLOADED),
        ({"rotated_at": UPLOADED + timedelta(hours=1)}, UPLOADED + timedelta(hours=1)),
        ({"rotated_at": None}, UPLOADED),
        ({"max_timestamp": None}, UPLOADED),
        ({"max_timestamp": -5}, UPLOADED),
        ({"max_timestamp": round(UPLOADED.timestamp() * 1000) + 60_000}, UPLOADED + timedelta(minutes=1)),
        ({"max_timestamp": 1 << 62}, UPLOADED + timedelta(days=1)),
    ],
)
def test_when_a_segment_is_done(fields: dict[str, Any], expected: datetime) -> None:
    """A clock that is far ahead must not keep raw for ever."""
    assert done_at(manifest(**fields), timedelta(days=1)) == expected


def test_offsets_are_classed_where_the_rows_count_exactly(rng: random.Random) -> None:
    """Against a count offset by offset; each run of bytes has classes that lie in one another."""
    for _ in range(300):
        classed, at, sound = Classed(), 0, []
        for _ in range(rng.randint(1, 5)):
            size = rng.randint(1, 12)
            owners = [rng.choice("abc") for _ in range(size)]
            fault = rng.choice([0, 0, -1, 1])
            rows = []
            for name in sorted(set(owners)):
                mine = [at + i for i, owner in enumerate(owners) if owner == name]
                rows.append([mine[0], mine[-1] + 1, len(mine)])
            broken = rng.choice(rows)
            broken[2] += fault
            for row in rows:
                classed.add(*(array("q", [number]).tobytes() for number in row))
            for start, end in overlapping(rows):
                if not fault or not start <= broken[0] < end:
                    sound.append((start, end))
            at += size
        assert classed.offsets() == Intervals(sound)


def overlapping(rows: list[list[int]]) -> list[tuple[int, int]]:
    """The runs of rows that overlap; two that only touch are two."""
    shared = {offset: sum(first < offset < after for first, after, _ in rows) for row in rows for offset in row[:2]}
    edges = sorted(offset for offset, count in shared.items() if not count)
    return list(pairwise(edges))
