"""A partition as a strip of offsets."""

from __future__ import annotations

import random

import pytest

from tests.plugins.world import entry, gap, state
from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.watermark_index import IndexEntry
from tidemark.formats.table.ledger import PartitionState
from tidemark.kafka_log import OpenTransaction
from tidemark_airflow.web.responses import spans_of

OPEN = OpenTransaction(producer_id=1, producer_epoch=0, first_offset=40)
BEYOND = entry(next_offset=50, gaps=[gap(50, 60)], uploaded_end=80, log_end=90)


@pytest.mark.parametrize(
    ("landed", "known", "gaps", "strip"),
    [
        pytest.param(None, None, [], [], id="nothing is known"),
        pytest.param(state(0, 9), None, [], [("landed", 0, 9)], id="nobody leads it"),
        pytest.param(None, entry(next_offset=9), [], [("uploaded", 0, 9)], id="never landed"),
        pytest.param(
            state(0, 30),
            entry(next_offset=50, log_end=70),
            [],
            [("landed", 0, 30), ("uploaded", 30, 50), ("log", 50, 70)],
            id="behind",
        ),
        pytest.param(
            state(0, 30, held_by=[OPEN]),
            entry(next_offset=50, log_end=70),
            [],
            [("landed", 0, 30), ("held", 30, 50), ("log", 50, 70)],
            id="held",
        ),
        pytest.param(
            state(0, 50),
            BEYOND,
            [gap(50, 60)],
            [("landed", 0, 50), ("gap", 50, 60), ("uploaded", 60, 80), ("log", 80, 90)],
            id="uploaded beyond a gap",
        ),
        pytest.param(
            state(0, 55),
            BEYOND,
            [gap(50, 60)],
            [("landed", 0, 55), ("gap", 55, 60), ("uploaded", 60, 80), ("log", 80, 90)],
            id="a gap that is half passed",
        ),
        pytest.param(
            state(0, 60),
            BEYOND,
            [gap(50, 60)],
            [("landed", 0, 60), ("uploaded", 60, 80), ("log", 80, 90)],
            id="a gap that is passed",
        ),
        pytest.param(None, None, [gap(0, 40)], [("gap", 0, 40)], id="the very first offsets are missing"),
    ],
)
def test_a_strip(
    landed: PartitionState | None, known: IndexEntry | None, gaps: list[Gap], strip: list[tuple[str, int, int]]
) -> None:
    assert [(one.kind, one.start, one.end) for one in spans_of(landed, known, gaps)] == strip


def test_a_strip_has_no_hole_and_nothing_twice(rng: random.Random) -> None:
    for _ in range(300):
        landed, uploaded, log_end = (rng.randrange(100) for _ in range(3))
        starts = sorted(rng.sample(range(120), 4))
        gaps = [gap(starts[0], starts[1]), gap(starts[2], starts[3])]
        spans = spans_of(state(0, landed), entry(next_offset=uploaded, log_end=log_end), gaps)
        assert all(one.start < one.end for one in spans)
        assert [one.end for one in spans[:-1]] == [one.start for one in spans[1:]]
        assert max((one.end for one in spans), default=0) >= max(landed, uploaded, log_end)
