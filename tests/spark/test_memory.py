"""A task's memory does not grow with the segment that it reads."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.world import World, in_process
from tests.support.memory import own_peak
from tests.support.paths import ROOT
from tests.tidemark.records.build import T0, Record, batch
from tidemark.planning import ranges, raw, read_plan
from tidemark.table import open_lake
from tidemark.topics import load_topics
from tidemark_spark.driver import run

RECORDS = 1000
MARGIN = 64 << 20
"""Between runs of the same size, memory differs by less than half of this."""


def convert(topics: Path) -> None:
    """Carry out the only plan, and print rows and the peak of this process's memory in bytes."""
    deployment = load_topics(topics)
    lake = open_lake(deployment, deployment.topics[0])
    [plan] = [read_plan(lake, one.key) for one in lake.store.list(lake.keys.attempts)]
    result = run(lake, plan, in_process)
    sys.stdout.write(f"{result.rows} {own_peak()}\n")


def peak(folder: Path, mebibytes: int, values: bytes) -> int:
    """The peak memory of a process that converts one segment of about this size, in one task."""
    one = batch(0, [Record(k, T0, b"k", values[k : k + 1000]) for k in range(RECORDS)])
    batches = [struct.pack(">q", RECORDS * i) + one[8:] for i in range((mebibytes << 20) // len(one))]
    world = World(folder)
    world.raw.segment(batches)
    world.raw.publish()
    assert len(world.plan().tasks) == 1
    command = [sys.executable, "-m", "tests.spark.test_memory", str(world.topics_file)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=600)
    rows, found = map(int, done.stdout.split())
    assert rows == RECORDS * len(batches)
    return found


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_memory_does_not_grow_with_the_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: random.Random
) -> None:
    for module in (raw, ranges):
        monkeypatch.setattr(module, "TARGET_BYTES", 1 << 40)  # an index that allows no cut
    sizes = (256, 768)
    found = []
    for size in sizes:
        folder = tmp_path / f"{size}"
        folder.mkdir()
        found.append(peak(folder, size, rng.randbytes(2 * RECORDS)))
    sys.stdout.write(f"segments of {sizes} MiB in one task: peaks of {[one >> 20 for one in found]} MiB\n")
    assert found[1] - found[0] < MARGIN


if __name__ == "__main__":
    convert(Path(sys.argv[1]))
