"""Planning over more segments than a store has at first: what it takes of memory and of steps."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.many import OFFSETS
from tests.support.paths import ROOT, env_python
from tests.tidemark.raw.test_planned_ranges import segment
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage
from tidemark.raw import segments
from tidemark.raw.segments import Segment, cover, live_until


def test_a_driver_plans_tens_of_thousands_of_small_segments_in_bounded_memory(tmp_path: Path, full: bool) -> None:
    count = 100_000 if full else 10_000
    command = [env_python("dev"), "-m", "tests.support.many", str(count), "10000", tmp_path]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert (found["ranges"], found["offsets"]) == (count, count * OFFSETS)
    assert found["peak_bytes"] < (1 << 30) * count // 100_000 + (128 << 20)


def test_to_cover_many_segments_looks_at_each_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def counted(one: Segment, lineage: Lineage, offset: int) -> int:
        looked.append(offset)
        return live_until(one, lineage, offset)

    monkeypatch.setattr(segments, "live_until", counted)
    many = [segment(base, base + 12) for base in range(0, 10_000, 10)]
    pieces, hole = cover(many, Lineage(((0, 0),)), Intervals([(0, 10_000)]))
    assert (len(pieces), hole) == (1000, None)
    assert len(looked) < 3 * len(many)
