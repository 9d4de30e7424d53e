"""A process that lands, rebuilds or compacts made-up offsets of a table over and over, until it is killed.

Everything from the plan's check to the result is the real thing but for the conversion, which makes rows up, and for
the store, which loses replies and refuses requests now and then.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO
from unittest.mock import patch

import boto3  # noqa: F401 - loaded once, before the processes are forked
import pyarrow as pa

from tests.spark.world import Acting, World, in_process
from tidemark.decode.rowhash import row_hash_sum
from tidemark.decode.schema import SCHEMA
from tidemark.errors import TidemarkError, UnknownOutcome
from tidemark.formats.table.ledger import new_attempt
from tidemark.formats.table.plan import BranchCut, PartitionPlan, RunPlan, SegmentRange, SegmentTask
from tidemark.planning import plan_compaction, write_plan
from tidemark.store import Store
from tidemark.table.delta_table import TopicTable, ledger_of, live_files, open_delta
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.timestamps import utc_now
from tidemark_spark.convert.row_sink import Sink
from tidemark_spark.model import Job, Outcome
from tidemark_spark.run import commit as publish
from tidemark_spark.run import delta_log
from tidemark_spark.run.driver import run

PRELOADED = ["tests.spark.run.racer", "tests.spark.killed_driver"]
"""What the server that forks processes for tests loads; there is one in a process of pytest, and it starts once."""
PARTITIONS = 4
DT = "2026-02-02"
_FAULTS = 0.04


class Faulty:
    """A store whose writes fail now and then, before or after they took effect; the caller cannot tell."""

    def __init__(self, store: Store, rng: random.Random) -> None:
        self._store, self._rng = store, rng

    def put(self, key: str, body: bytes | BinaryIO, **conditions: Any) -> str:
        """See :class:`Store`."""
        if self._rng.random() < _FAULTS:
            raise UnknownOutcome(key, "planted: the request was lost")
        etag = self._store.put(key, body, **conditions)
        if self._rng.random() < _FAULTS:
            raise UnknownOutcome(key, "planted: the reply was lost")
        return etag

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def make_rows(partition: int, offsets: Sequence[int]) -> pa.RecordBatch:
    """Rows of an incarnation 0 at ``offsets``, a millisecond apart, on 2026-02-02."""
    columns: dict[str, list[Any]] = {
        "kafka_incarnation": [0] * len(offsets),
        "kafka_partition": [partition] * len(offsets),
        "kafka_offset": list(offsets),
        "kafka_timestamp": [1_770_000_000_000_000 + offset * 1000 for offset in offsets],
        "kafka_timestamp_type": ["create"] * len(offsets),
        "kafka_key": [b"%d" % offset for offset in offsets],
        "kafka_value": [None] * len(offsets),
        "kafka_headers": [[] for _ in offsets],
        "kafka_leader_epoch": [0] * len(offsets),
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


row_hash_sum(make_rows(0, [0]))  # compiled once, before the processes are forked


def ingest(table: TopicTable, rng: random.Random) -> None:
    """Land a few offsets of a partition."""
    partition = rng.randrange(PARTITIONS)
    ledger = ledger_of(table, open_delta(table))
    state = ledger.by_partition.get((0, partition))
    start = state.next_offset if state else 0
    plan = _plan(table, "ingest", {partition: (start, start + rng.randint(1, 9))})
    part = plan.partitions[0].model_copy(update={"branch": state.branch if state else 0})
    _carry_out(table, rng, plan.model_copy(update={"partitions": (part,)}))


def elect(table: TopicTable, rng: random.Random) -> None:
    """Cut a few landed offsets of a partition off, and land others in their place."""
    standing = EffectiveEvidence.of(table)
    state = rng.choice(standing.ledger.partitions) if standing.ledger.partitions else None
    if state is None or state.next_offset < 2:
        return
    at = rng.randrange(max(1, state.next_offset - 12), state.next_offset)
    reach = standing.from_offset(state.key, at)
    cut = BranchCut(
        at=at,
        old_next=state.next_offset,
        old_verdicts_end=state.verdicts_end,
        leader_epoch=0,
        lineage=(),
        removes=reach.files,
    )
    span = reach.start, at + rng.randint(1, 9)
    plan = _plan(table, "ingest", {state.partition: span})
    part = plan.partitions[0].model_copy(update={"branch": state.branch, "cut": cut})
    _carry_out(table, rng, plan.model_copy(update={"partitions": (part,), "removes": cut.removes}))


def rebuild(table: TopicTable, rng: random.Random) -> None:
    """Make the rows of some files again, in one task per partition."""
    delta = open_delta(table)
    files = live_files(delta) if delta is not None else []
    picked = [one.path for one in rng.sample(files, min(4, len(files)))]
    spans: dict[int, tuple[int, int]] = {}
    for path in picked:
        _, partition, first, last, _ = path.partition("/")[2].split("_")
        low, high = spans.get(int(partition), (int(first), int(last) + 1))
        spans[int(partition)] = min(low, int(first)), max(high, int(last) + 1)
    # All files within the spans go, so that the spans are what the new files hold.
    removes = [one.path for one in files if _within(one.path, spans)]
    if len(removes) > 1:
        plan = _plan(table, "rebuild", spans)
        _carry_out(table, rng, plan.model_copy(update={"dates": (DT,), "removes": tuple(removes), "generation": 1}))


def compact(table: TopicTable, rng: random.Random) -> None:
    """Merge what can be merged, by the real job."""
    plan = plan_compaction(table, files=rng.randint(2, 6))
    if not plan.empty:
        write_plan(table, plan)
        run(table, plan, in_process)


def _within(path: str, spans: dict[int, tuple[int, int]]) -> bool:
    _, partition, first, last, _ = path.partition("/")[2].split("_")
    start, end = spans.get(int(partition), (0, 0))
    return start <= int(first) and int(last) < end


def _carry_out(table: TopicTable, rng: random.Random, plan: RunPlan) -> None:
    write_plan(table, plan)
    run(table, plan, _convert)


@Acting
def _convert(_work: object, job: Job, tasks: Sequence[SegmentTask]) -> list[Outcome]:
    """Made-up rows, through the real sink."""
    outcomes = []
    for task in tasks:
        with Sink(job, task) as sink:
            sink.rows(0, task.ranges[0], make_rows(task.partition, range(task.from_offset, task.to_offset)))
            files, evidence = sink.close()
        outcomes.append(
            Outcome(0, task.partition, task.from_offset, task.to_offset, tuple(files), tuple(evidence), None, 0)
        )
    return outcomes


def _plan(table: TopicTable, kind: str, spans: dict[int, tuple[int, int]]) -> RunPlan:
    fields = {
        "attempt": new_attempt(),
        "kind": kind,
        "cluster": "east",
        "topic": "orders",
        "table": "orders",
        "ledger_n": 0,
        "ledger_attempt": 0,
        "configuration": table.topic.digest,
        "code": "c",
        "created_at": utc_now(),
        "partitions": [_partition(partition, *span) for partition, span in sorted(spans.items())],
        "tasks": [_task(partition, *span) for partition, span in sorted(spans.items())],
    }
    return RunPlan.model_validate(fields)


def _partition(partition: int, start: int, end: int) -> PartitionPlan:
    return PartitionPlan(
        incarnation=0, topic_id=None, partition=partition, start=start, end=end, leader_epoch=0, lineage=()
    )


def _task(partition: int, start: int, end: int) -> SegmentTask:
    source = SegmentRange(
        store="file:///none",
        key=f"orders-{partition}/{start:020d}.log",
        etag="",
        base_offset=start,
        start=0,
        end=1,
        from_offset=start,
        to_offset=end,
        uploaded_at=utc_now(),
    )
    return SegmentTask(incarnation=0, topic_id=None, partition=partition, ranges=(source,))


def race(kind: str, seed: int, root: Path, raw: str, lake: str, environment: dict[str, str]) -> None:
    """Ingest, elect, rebuild or compact for ever; what fails as it may is tried again with a fresh plan."""
    os.environ.update(environment)
    rng = random.Random(seed)
    world = World(root / str(os.getpid()), raw=raw, lake=lake)
    faulty = world.table._replace(store=Faulty(world.table.store, rng))
    patch.object(publish, "commit", _losing(rng)).start()
    while True:
        try:
            _KINDS[kind](faulty, rng)
        except TidemarkError:
            continue


_KINDS = {"ingest": ingest, "elect": elect, "rebuild": rebuild, "compact": compact}


def _losing(rng: random.Random) -> Any:
    """The real commit, of which the caller sometimes hears nothing."""
    real = delta_log.commit

    def commit(*arguments: Any) -> None:
        real(*arguments)
        if rng.random() < _FAULTS:
            raise OSError("planted: the reply was lost")

    return commit
