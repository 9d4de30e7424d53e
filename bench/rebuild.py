"""Memory of the driver of a large rebuild: a plan of many tasks, whose outcomes are made up, up to its evidence object.

Without Spark, in a directory. The plan's segments do not exist, and no file is written but those of the steps.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from bench.data import HOME
from bench.measure import Row
from tidemark.formats.table.plan import PartitionPlan, RunPlan, SegmentRange, SegmentTask
from tidemark.formats.table.steps import DataFile
from tidemark.planning import write_plan
from tidemark.planning.common import following
from tidemark.table.delta_table import TopicTable, committed_ledger, open_topic_table
from tidemark.table.evidence import EvidenceRow
from tidemark.topics import load_topics
from tidemark_spark.kinds.rebuild import Rebuild
from tidemark_spark.model import Common, Executor, Given, Made, Outcome
from tidemark_spark.run import steps
from tidemark_spark.run.steps import carry_out_steps

TASKS: Final = (5_000, 20_000)
_PARTITIONS: Final = 100
_OFFSETS: Final = 60_000
"""Offsets of a task."""
_DATES: Final = 4
"""Dates of a task: a file and a row of evidence each."""


def measure() -> list[Row]:
    """Figures of a fresh process for each number of tasks."""
    rows = []
    for count in TASKS:
        folder = HOME / "rebuild"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        command = [sys.executable, "-m", "bench.rebuild", str(folder), str(count)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found: dict[str, float] = json.loads(done)
        note = f"{count:,} tasks, {count * _DATES:,} files"
        rows += [
            Row("rebuild", "all steps: most memory beyond imports and plan", "MiB RSS", (found["steps"],), note),
            Row("rebuild", "up to the evidence: the same", "MiB RSS", (found["all"],), note),
            Row("rebuild", "checking and storing a step", "CPU-s", (found["step"],), note),
        ]
    return rows


class _MadeUp(Executor):
    """Outcomes of tasks that nobody carries out; ``seconds`` is the processor time that this takes."""

    seconds: float = 0

    def on_each(self, work: Callable[[Common, Given], Made], common: Common, tasks: Sequence[Given]) -> list[Made]:
        begun = time.process_time()
        made: list[Any] = [_outcome(task) for task in tasks]
        self.seconds += time.process_time() - begun
        return made

    def finished(self) -> int:
        return 0


def _outcome(task: Any) -> Outcome:
    number, size = task.from_offset // _OFFSETS, _OFFSETS // _DATES
    files: list[DataFile] = []
    evidence: list[EvidenceRow] = []
    for at in range(_DATES):
        dt, first = date(2026, 2, 1) + timedelta(number // 8 % 300 + at), task.from_offset + at * size
        path = f"dt={dt}/0_{task.partition}_{first}_{first + size - 1}_{number * 7919 + at:012x}.parquet"
        files.append(DataFile(path, 16 << 20, size, dt, task.partition, first, first + size - 1, first, first + size))
        span = 0, task.partition, first, first + size
        evidence.append(
            EvidenceRow(*span, "landed", size, dt, task.ranges[0].key, 0, 64 << 20, (1 << 127) + first * 7919, path)
        )
    return Outcome(0, task.partition, task.from_offset, task.to_offset, tuple(files), tuple(evidence), None, 64 << 20)


def _plan(table: TopicTable, count: int) -> RunPlan:
    each = count // _PARTITIONS
    tasks = [_task(partition, number) for partition in range(_PARTITIONS) for number in range(each)]
    parts = [
        PartitionPlan(
            incarnation=0,
            topic_id=None,
            partition=number,
            start=0,
            end=each * _OFFSETS,
            leader_epoch=0,
            lineage=((0, 0),),
        )
        for number in range(_PARTITIONS)
    ]
    shared = following(table, committed_ledger(table))
    return RunPlan(**shared, kind="rebuild", partitions=tuple(parts), tasks=tuple(tasks))


def _task(partition: int, number: int) -> SegmentTask:
    first = number * _OFFSETS
    part = SegmentRange(
        store="file:///nowhere",
        key=f"east/orders-{partition}/{first:020d}.log",
        etag=f"{partition}-{number}",
        base_offset=first,
        start=0,
        end=64 << 20,
        from_offset=first,
        to_offset=first + _OFFSETS,
        uploaded_at="2026-02-01T00:00:00Z",  # type: ignore[arg-type] # pydantic parses it
    )
    return SegmentTask(incarnation=0, topic_id=None, partition=partition, ranges=(part,))


def main() -> None:
    """Measure a rebuild in a folder; print the figures as JSON."""
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    (folder / "lake").mkdir()
    path = folder / "topics.yaml"
    topics = "topics: [{topic: orders, cluster: east}]"
    path.write_text(f"raw: {{url: 'file://{folder}'}}\nlake: 'file://{folder}/lake'\n{topics}\n")
    deployment = load_topics(path)
    table = open_topic_table(deployment, deployment.topic("orders"))
    plan = _plan(table, count)
    write_plan(table, plan)
    pa.array([0]).to_numpy()  # which loads pandas
    executor, before = _MadeUp(), _most()
    begun, of_steps = time.process_time(), list[float]()
    real = steps._Steps._read

    def read(self: Any, span: Any) -> list[Outcome]:
        of_steps.append(time.process_time())
        if len(of_steps) == 1:
            of_steps.append(_most() - before)
        return real(self, span)

    steps._Steps._read = read  # type: ignore[method-assign] # the end of the last step
    kind, outcomes = carry_out_steps(Rebuild(table, plan), executor)
    assert isinstance(kind, Rebuild)
    kind.stored_evidence(kind.account(outcomes))
    number = len([info for info in table.store.list(table.keys.steps) if info.key.endswith(".json")])
    took = (of_steps[0] - begun - executor.seconds) / number
    sys.stdout.write(json.dumps({"steps": of_steps[1], "all": _most() - before, "step": took}))


def _most() -> float:
    """The most memory so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
