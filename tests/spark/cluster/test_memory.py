"""A task's memory does not grow with the segment that it reads, and by a multiple of a batch that is large."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.world import World, in_process
from tests.support.memory import own_peak
from tests.support.paths import ROOT
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark import raw_topic
from tidemark.planning import read_plan
from tidemark.raw import byte_ranges
from tidemark.table.delta_table import open_topic_table
from tidemark.topics import WorkLimits, load_topics
from tidemark_spark.run.driver import run

RECORDS = 1000
LIMIT = WorkLimits().batch
JSON = "parser: {kind: json, columns: [{name: name, type: string}]}"
MARGIN = 64 << 20
"""Between runs of the same size, memory differs by less than half of this."""


def convert(topics: Path) -> None:
    """Carry out the only plan, and print rows and the peak of this process's memory in bytes."""
    deployment = load_topics(topics)
    table = open_topic_table(deployment, deployment.topics[0])
    [plan] = [read_plan(table, one.key) for one in table.store.list(table.keys.attempts)]
    result = run(table, plan, in_process)
    sys.stdout.write(f"{result.rows} {own_peak()}\n")


def peak(folder: Path, mebibytes: int, values: bytes) -> int:
    """The peak memory of a process that converts one segment of about this size, in one task."""
    one = batch(0, [Record(k, T0, b"k", values[k : k + 1000]) for k in range(RECORDS)])
    batches = [struct.pack(">q", RECORDS * i) + one[8:] for i in range((mebibytes << 20) // len(one))]
    world = World(folder)
    world.raw.segment(batches)
    return converted(world, rows=RECORDS * len(batches))


def converted(world: World, *, rows: int) -> int:
    """The peak memory of a process that converts what was uploaded, in one task."""
    world.raw.publish()
    assert len(world.plan().tasks) == 1
    command = [sys.executable, "-m", "tests.spark.cluster.test_memory", str(world.topics_file)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=600)
    landed, found = map(int, done.stdout.split())
    assert landed == rows
    return found


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_memory_does_not_grow_with_the_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: random.Random
) -> None:
    for module in (raw_topic, byte_ranges):
        monkeypatch.setattr(module, "TARGET_BYTES", 1 << 40)  # an index that allows no cut
    sizes = (256, 768)
    found = []
    for size in sizes:
        folder = tmp_path / f"{size}"
        folder.mkdir()
        found.append(peak(folder, size, rng.randbytes(2 * RECORDS)))
    sys.stdout.write(f"segments of {sizes} MiB in one task: peaks of {[one >> 20 for one in found]} MiB\n")
    assert found[1] - found[0] < MARGIN


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("settings", "value", "multiple"),
    [
        ("time_zone: UTC", lambda rng, size: rng.randbytes(size), 8),
        (JSON, lambda _, size: b'{"name":"%s"}' % (b"x" * (size - 20)), 13),
    ],
)
def test_a_batch_at_its_limit_takes_a_multiple_of_it(
    settings: str, value: Callable[[random.Random, int], bytes], multiple: int, tmp_path: Path, rng: random.Random
) -> None:
    found = []
    for size in (1 << 20, LIMIT - 1000):
        world = World(tmp_path / f"{size}", settings)
        world.raw.segment([batch(0, [Record(0, T0, b"k", value(rng, size))], "zstd")])
        found.append(converted(world, rows=1))
    sys.stdout.write(f"a batch of {LIMIT >> 20} MiB, {settings}: peaks of {[one >> 20 for one in found]} MiB\n")
    assert found[1] - found[0] < multiple * LIMIT


if __name__ == "__main__":
    convert(Path(sys.argv[1]))
