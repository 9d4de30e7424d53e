"""A deployment in one directory: a topics file, what an agent uploads, and what a Spark job commits.

Enough of each for Airflow's side: objects have their real formats and planning is the real one, but a segment has no
record, and the job lands no rows. ``python -m tests.plugins.world`` is that job, with spark-submit's
command line, so that an executable that runs it can stand in for spark-submit.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.support.ledgers import landed
from tests.support.raw_builder import RawBuilder
from tests.tidemark.kafka_log.build import empty
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.watermark_index import DamagedHead, DiskFault, IndexEntry, WatermarkIndex
from tidemark.formats.table.ledger import (
    ATTEMPT_TRANSACTION,
    LEDGER_TRANSACTION,
    DateState,
    Ledger,
    Parent,
    PartitionState,
    new_attempt,
)
from tidemark.formats.table.live_landing import TopicLanding, read_landing, write_landing
from tidemark.formats.table.plan import PartitionPlan, RunPlan, RunResult
from tidemark.formats.table.state_ledger import CommitName, Leaf, StateLedger
from tidemark.jobs.options import OFF, TopicsOptions
from tidemark.jobs.registry import LandLiveOptions, RunPlanOptions, StateOptions
from tidemark.kafka_log import OpenTransaction
from tidemark.openlineage import hand_over
from tidemark.openlineage.facets import LineagePart, joined
from tidemark.openlineage.runs import of_run
from tidemark.planning import plan_ingest, read_plan
from tidemark.store import Store, open_store
from tidemark.table.delta_table import TopicTable, committed_ledger, open_topic_table
from tidemark.table.evidence import EvidenceRow, evidence_key, to_parquet
from tidemark.table.state_table import StateTable
from tidemark.timestamps import utc_now
from tidemark.topics import Deployment, load_topics
from tidemark_airflow.triggers.readiness import Row, row_of

if TYPE_CHECKING:
    from deltalake.transaction import AddAction, RemoveAction

CLUSTER = "kafka-1"
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
DATE = "2026-01-01"
GATE = "gate"
"""While a file of that name is beside the topics file, jobs wait; each makes another with its process id."""


def gap(start: int, end: int) -> Gap:
    """Offsets that the broker deleted before they were uploaded."""
    return Gap.model_validate({"from": start, "to": end, "reason": "deleted_before_upload", "detected_at": LONG_AGO})


def entry(
    topic: str = "orders",
    partition: int = 0,
    next_offset: int = 0,
    *,
    epoch: int = 0,
    incarnation: int = 0,
    gaps: Iterable[Gap] = (),
    observed_at: datetime = LONG_AGO,
    bytes_per_offset: float | None = None,
    uploaded_end: int | None = None,
    log_end: int | None = None,
) -> IndexEntry:
    """A partition in a watermark index."""
    return IndexEntry(
        topic=topic,
        partition=partition,
        topic_id=TOPIC_ID,
        incarnation=incarnation,
        leader_epoch=epoch,
        next_offset=next_offset,
        uploaded_end=next_offset if uploaded_end is None else uploaded_end,
        bytes_per_offset=bytes_per_offset,
        log_end_offset=next_offset if log_end is None else log_end,
        high_watermark=next_offset if log_end is None else log_end,
        observed_at=observed_at,
        gaps=tuple(gaps),
    )


def row(*of: Any, **more: Any) -> Row:
    """What a watcher keeps of an :func:`entry`."""
    return row_of(entry(*of, **more))


def state(
    partition: int,
    next_offset: int,
    *,
    epoch: int = 0,
    gaps: Iterable[Gap] = (),
    held_by: Iterable[OpenTransaction] = (),
) -> PartitionState:
    """A partition in a ledger."""
    return landed(
        next_offset,
        partition,
        topic_id=TOPIC_ID,
        leader_epoch=epoch,
        lineage=((0, 0),),
        gaps=tuple(gaps),
        held_by=tuple(held_by),
    )


class World:
    """A deployment below ``root``."""

    def __init__(self, root: Path, *topics: str, **of_each: Any) -> None:
        """Writes the topics file; ``of_each`` are settings of all its topics."""
        self.root = root
        self.topics_file = root / "topics.yaml"
        root.mkdir(parents=True, exist_ok=True)
        self.write_topics(
            cluster=CLUSTER,
            raw={"url": f"file://{root}/raw"},
            lake=f"file://{root}/lake",
            defaults={"batch": {"age": "0s"}, **of_each},
            topics=[{"topic": topic} for topic in topics or ("orders",)],
        )
        self.raw: Store = open_store(f"file://{root}/raw")
        self.control = ControlKeys("", CLUSTER)

    def write_topics(self, **content: Any) -> None:
        """Replace the topics file."""
        self.topics_file.write_text(yaml.safe_dump(content))

    @property
    def deployment(self) -> Deployment:
        """The topics file, read."""
        return load_topics(self.topics_file)

    def table(self, topic: str = "orders") -> TopicTable:
        """The table of a topic."""
        deployment = self.deployment
        return open_topic_table(deployment, deployment.topic(topic))

    def put_index(
        self,
        *entries: IndexEntry,
        broker: int = 1,
        damaged_heads: Sequence[DamagedHead] = (),
        disk_faults: Sequence[DiskFault] = (),
        clock_skew: float = 0.0,
        written_at: datetime | None = None,
    ) -> None:
        """What the agent of ``broker`` knows, at ``written_at`` or now."""
        index = WatermarkIndex(
            cluster=CLUSTER,
            broker=broker,
            agent_version="test",
            written_at=written_at or utc_now(),
            damaged_heads=tuple(damaged_heads),
            disk_faults=tuple(disk_faults),
            clock_skew=clock_skew,
            entries=entries,
        )
        self.raw.put(self.control.index(broker), index.to_bytes())

    def upload(
        self, topic: str, end: int, *, start: int = 0, gaps: Sequence[Gap] = (), observed_at: datetime = LONG_AGO
    ) -> None:
        """Partition 0 of ``topic`` as an agent leaves it that has uploaded ``[start, end)`` as one segment."""
        broker = 100 + [one.topic for one in self.deployment.topics].index(topic)
        builder = RawBuilder(self.raw, cluster=CLUSTER, topic=topic, broker=broker)
        builder.now, builder.observed_at, known = utc_now(), observed_at, builder.partition()
        known.lineage, known.leader_epoch, known.end, known.line1 = ((0, 0),), 0, end, start
        if end > start:
            builder.segment(empty(start, end - start - 1, leader_epoch=0), base=start)
        known.next_offset, known.gaps = start if gaps else end, list(gaps)
        builder.publish()


def commit(
    table: TopicTable,
    *partitions: PartitionState,
    dates: Sequence[str] = (DATE,),
    attempt: int | None = None,
    states: Mapping[str, DateState] | None = None,
    evidence: Sequence[EvidenceRow] = (),
    kind: str = "ingest",
    columns: Sequence[str] = (),
    version: str = "",
) -> Ledger:
    """Commit a ledger with these partitions to the table, as a job does, without any row.

    The files of landed rows in ``evidence`` become live; there are no bytes of theirs.
    """
    from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
    from deltalake.schema import PrimitiveType

    parent = committed_ledger(table)
    number = new_attempt() if attempt is None else attempt
    if evidence:
        table.store.put(evidence_key(table, number), to_parquet(evidence, configuration="c", code="c", attempt=number))
    ledger = parent.model_copy(
        update={
            "n": parent.n + 1,
            "attempt": number,
            "landed": (*parent.landed, number) if evidence else parent.landed,
            "rows": parent.rows + sum(one.rows for one in (states or {}).values()),
            "parent": Parent.of(parent, parent.to_bytes()) if parent.n else None,
            "kind": kind,
            "partitions": tuple({**parent.by_partition, **{one.key: one for one in partitions}}.values()),
            "dates": {**parent.dates, **(states or {})},
            "dates_changed": tuple(dates),
            "field_ids": {**parent.field_ids, **{name: len(parent.field_ids) + 1 for name in columns}},
            "version": version,
            "committed_at": utc_now(),
        }
    )
    table.store.put(table.keys.ledger(ledger.n, ledger.attempt), ledger.to_bytes(), if_none_match=True)
    (Path(table.url.removeprefix("file://"))).mkdir(parents=True, exist_ok=True)
    if not DeltaTable.is_deltatable(table.url):
        fields = [Field("kafka_offset", PrimitiveType("long")), Field("dt", PrimitiveType("date"))]
        DeltaTable.create(table.url, Schema(fields), partition_by=["dt"])
    delta = DeltaTable(table.url)
    named = [Transaction(LEDGER_TRANSACTION, ledger.n), Transaction(ATTEMPT_TRANSACTION, ledger.attempt)]
    added: list[AddAction | RemoveAction] = [_live(one) for one in evidence if one.offset_class == "landed"]
    delta.create_write_transaction(
        added, "append", delta.schema(), commit_properties=CommitProperties(None, None, named)
    )
    return ledger


def _live(row: EvidenceRow) -> AddAction:
    from deltalake.transaction import AddAction

    assert row.file is not None
    stats = json.dumps({"numRecords": row.rows})
    return AddAction(row.file, 1, {"dt": str(row.dt)}, 0, True, stats)


def run_job(argv: Sequence[str]) -> None:
    """Carry out what spark-submit's command line names: a plan, a live landing, or a run of a state table."""
    at = next(number for number, word in enumerate(argv) if word.endswith(".py"))
    jobs = {"run_plan.py": _run_plan, "land_live.py": _land_live, "state.py": _state}
    jobs[Path(argv[at]).name](argv[at + 1 :])


def _land_live(argv: Sequence[str]) -> None:
    """Land each topic of the cluster's landing; but one named ``broken`` fails."""
    options = LandLiveOptions.parse(argv)
    assert options.cluster is not None
    deployment = load_topics(options.topics)
    _wait_at_the_gate(options.topics.with_name(GATE))
    store, key = open_store(deployment.lake_store), deployment.deployment_keys(options.cluster).landing
    landing, etag = read_landing(store, key)
    assert landing is not None
    done: list[TopicLanding] = []
    told: list[LineagePart] = []
    for one in landing.topics:
        table = open_topic_table(deployment, deployment.topic(one.topic, options.cluster))
        if one.topic == "broken":
            update = {"status": "failed", "failures": 1, "again_at": utc_now() + timedelta(hours=1)}
        else:
            plan = plan_ingest(table, attempt=one.attempt)
            told.append(_carry_out(table, plan))
            update = {"status": "landed"}
        done.append(one.model_copy(update=update))
    write_landing(store, key, landing.model_copy(update={"topics": tuple(done)}), etag)
    _hand_over(deployment, options, told)


def _run_plan(argv: Sequence[str]) -> None:
    """Carry out a plan."""
    options = RunPlanOptions.parse(argv)
    deployment = load_topics(options.topics)
    table = open_topic_table(deployment, deployment.topic(options.topic, options.cluster))
    plan = read_plan(table, options.plan)
    _wait_at_the_gate(options.topics.with_name(GATE))
    _hand_over(deployment, options, [_carry_out(table, plan)])


def _state(argv: Sequence[str]) -> None:
    """Commit a state of no key for each topic whose table has moved on; but one named ``broken`` fails."""
    options = StateOptions.parse(argv)
    deployment = load_topics(options.topics)
    for topic in options.topic:
        if topic != "broken":
            _commit_state(open_topic_table(deployment, deployment.topic(topic, options.cluster)))
    sys.exit(1 if "broken" in options.topic else 0)


def _commit_state(table: TopicTable) -> None:
    from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
    from deltalake.schema import PrimitiveType

    state_table, source = StateTable.open(table), committed_ledger(table)
    before = state_table.committed()
    if before is not None and before.of.n == source.n:
        return
    ledger = StateLedger(
        n=before.n + 1 if before else 1,
        attempt=new_attempt(),
        cluster=table.topic.cluster,
        topic=table.topic.topic,
        table=table.topic.state_table,
        kind="merge",
        of=CommitName(n=source.n, attempt=source.attempt),
        through=(),
        leaves=(Leaf(prefix=""),),
        settings="",
        committed_at=utc_now(),
    )
    table.store.put(table.keys.state_ledger(ledger.n, ledger.attempt), ledger.to_bytes())
    Path(state_table.url.removeprefix("file://")).mkdir(parents=True, exist_ok=True)
    if before is None:
        DeltaTable.create(state_table.url, Schema([Field("kafka_key", PrimitiveType("binary"))]))
    delta = DeltaTable(state_table.url)
    named = [Transaction(LEDGER_TRANSACTION, ledger.n), Transaction(ATTEMPT_TRANSACTION, ledger.attempt)]
    delta.create_write_transaction([], "append", delta.schema(), commit_properties=CommitProperties(None, None, named))


def _hand_over(deployment: Deployment, options: TopicsOptions, told: Sequence[LineagePart]) -> None:
    if options.lineage != OFF:
        assert options.cluster is not None
        hand_over.put(deployment, options.cluster, options.lineage, joined(told))


def _carry_out(table: TopicTable, plan: RunPlan) -> LineagePart:
    """All offsets get a class, dates close, no row lands, and the result and the copy of the ledger are written."""
    if committed_ledger(table).attempt == plan.attempt:
        return of_run(table, plan, RunResult.load(table.store, table.keys.result(plan.attempt)))
    parts = [_landed(one) for one in plan.partitions]
    states = {dt: closing.after for dt, closing in plan.closes.items()}
    if plan.tasks:
        states[DATE] = DateState(rows=1, changed_at=plan.created_at)
    ledger = commit(table, *parts, dates=(DATE,) if plan.tasks else (), attempt=plan.attempt, states=states)
    result = RunResult(
        attempt=plan.attempt,
        status="landed",
        cluster=plan.cluster,
        topic=plan.topic,
        table=plan.table,
        ledger_n=ledger.n,
        dates=ledger.dates_changed,
    )
    table.store.put(table.keys.result(plan.attempt), result.to_bytes())
    table.store.put(table.keys.deployment.committed_ledger(plan.topic), ledger.to_bytes())
    return of_run(table, plan, result)


def _wait_at_the_gate(gate: Path) -> None:
    """Tell the test that the job runs, and wait for as long as it keeps the gate closed."""
    if gate.exists():
        gate.with_name(f"{GATE}.{os.getpid()}").touch()
    while gate.exists():
        time.sleep(0.05)


def _landed(plan: PartitionPlan) -> PartitionState:
    return state(plan.partition, plan.end, gaps=plan.gaps)


if __name__ == "__main__":
    run_job(sys.argv[1:])
