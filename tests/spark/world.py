"""A deployment of one topic in a temporary directory or on a server: its raw store, its table, and what must hold."""

from __future__ import annotations

import io
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from tests.support.raw_builder import RawBuilder
from tidemark.decode.rowhash import row_hash_sum
from tidemark.decode.schema import SCHEMA
from tidemark.formats.raw.hashsum import combine
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.plan import RunPlan, RunResult
from tidemark.planning import plan_ingest, write_plan
from tidemark.store import open_store
from tidemark.store.schemes import split_store_url
from tidemark.table.delta_table import TopicTable, committed_ledger, ledger_of, live_files, open_delta, open_topic_table
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import read_evidence
from tidemark.topics import load_topics
from tidemark_spark.kinds.registry import kind_of
from tidemark_spark.model import Common, Executor, Given, Job, Made, Outcome
from tidemark_spark.run.driver import run

Sent = TypeVar("Sent")


class InProcess(Executor):
    """All tasks here, one after the other, sent and returned as Spark does it."""

    @override
    def on_each(self, work: Callable[[Common, Given], Made], common: Common, tasks: Sequence[Given]) -> list[Made]:
        return [_sent(work(_sent(common), _sent(task))) for task in tasks]

    @override
    def finished(self) -> int:
        return 0


in_process = InProcess()


class Acting(InProcess):
    """Tasks of which ``act`` makes what it likes."""

    def __init__(self, act: Callable[[Any, Any, Any], list[Any]]) -> None:
        self._act = act

    @override
    def on_each(self, work: Callable[[Common, Given], Made], common: Common, tasks: Sequence[Given]) -> list[Made]:
        return self._act(work, common, tasks)


@Acting
def never(_work: object, _common: object, tasks: Sequence[object]) -> list[Any]:
    """No task may be carried out."""
    assert not tasks, "nothing may be converted"
    return []


def outcomes_of(table: TopicTable, plan: RunPlan) -> list[Outcome]:
    """The outcomes of all tasks of ``plan``."""
    return in_process.on_each(kind_of(table, plan).work, Job.of(table, plan), plan.tasks)


def _sent(value: Sent) -> Sent:
    copy: Sent = pickle.loads(pickle.dumps(value))  # noqa: S301 - our own bytes
    return copy


class World:
    """One ``topic`` of cluster ``east``; ``settings`` are YAML lines of the topic, ``file`` others of the file."""

    def __init__(
        self,
        root: Path,
        *settings: str,
        raw: str | None = None,
        lake: str | None = None,
        store: Sequence[str] = (),
        file: Sequence[str] = (),
        topic: str = "orders",
    ) -> None:
        """Stores under ``root``, unless ``raw`` and ``lake`` are URLs elsewhere."""
        for name in ("raw", "lake"):
            (root / name).mkdir(parents=True, exist_ok=True)
        raw, lake = raw or f"file://{root}/raw", lake or f"file://{root}/lake"
        self.topics_file = root / "topics.yaml"
        lines = [f"raw: {{url: '{raw}'}}", f"lake: '{lake}'", "cluster: east", *file]
        lines += ["store:", *(f"  {line}" for line in store)] if store else []
        lines += ["topics:", f"  - topic: {topic}", *(f"    {line}" for line in settings)]
        self.topics_file.write_text("\n".join(lines) + "\n")
        self.table: TopicTable = open_topic_table(deployment := load_topics(self.topics_file), deployment.topic(topic))
        url, prefix = split_store_url(raw)
        self.raw = RawBuilder(open_store(url, deployment.store), prefix=prefix)

    @property
    def ledger(self) -> Ledger:
        """The committed ledger."""
        return committed_ledger(self.table)

    def plan(self, **options: Any) -> RunPlan:
        """A plan for what is published now, written."""
        plan = plan_ingest(self.table, **options)
        write_plan(self.table, plan)
        return plan

    def land(self, **options: Any) -> RunResult:
        """Publish what was uploaded, plan, convert, commit; then check that all is exact."""
        self.raw.publish()
        result = run(self.table, self.plan(**options), in_process)
        self.check()
        return result

    def next_offset(self, partition: int = 0, incarnation: int = 0) -> int:
        """Where the ledger goes on."""
        return self.ledger.by_partition[incarnation, partition].next_offset

    def seen(self) -> Seen:
        """The table's newest version."""
        return Seen(self)

    def rows(self) -> list[dict[str, Any]]:
        """All rows of the table by (incarnation, partition, offset), with their ``dt``."""
        return self.seen().rows()

    def offsets(self, partition: int = 0, incarnation: int = 0) -> list[int]:
        """The offsets of a partition that have a row."""
        found = [(row["kafka_incarnation"], row["kafka_partition"], row["kafka_offset"]) for row in self.rows()]
        return [offset for *at, offset in found if at == [incarnation, partition]]

    def read(self, path: str, folder: str | None = None) -> pa.Table:
        """A data file of the table, or of another folder."""
        body = self.table.store.get(f"{folder or self.table.keys.root}/{path}").body
        return pq.ParquetFile(io.BytesIO(body)).read(use_threads=False)  # which take longer to wake than a small file

    def evidence(self) -> list[dict[str, Any]]:
        """The evidence that counts, in the order in which it landed."""
        return self.seen().evidence()

    def classes(self, partition: int = 0, incarnation: int = 0) -> Counter[str]:
        """Offsets of a partition by class, by the evidence that holds."""
        counts: Counter[str] = Counter()
        for row in self.holding():
            if (row["incarnation"], row["partition"]) == (incarnation, partition):
                counts[row["class"]] += row["rows"]
        return counts

    def holding(self) -> list[dict[str, Any]]:
        """The evidence that holds: not that of files which are gone, or that something supersedes."""
        return self.seen().holding()

    def quarantine(self) -> list[dict[str, Any]]:
        """The rows of quarantine that count."""
        return self.seen().quarantine()

    def check(self) -> None:
        """Every row once, every offset with one class, hashes as the files have them, the ledger in accord."""
        self.seen().check()


class Seen:
    """One version of a table; each of its objects is read once."""

    def __init__(self, world: World) -> None:
        """As it is now."""
        self._world, self._table = world, world.table
        delta = open_delta(world.table)
        self.ledger = ledger_of(world.table, delta)
        self._live = live_files(delta)
        self._tables = cache(world.read)
        self._evidence = cache(partial(read_evidence, world.table))

    def rows(self) -> list[dict[str, Any]]:
        """See :meth:`World.rows`."""
        found = [row | {"dt": one.dt} for one in self._live for row in self._tables(one.path).to_pylist()]
        return sorted(found, key=lambda row: (row["kafka_incarnation"], row["kafka_partition"], row["kafka_offset"]))

    def evidence(self) -> list[dict[str, Any]]:
        """See :meth:`World.evidence`."""
        return [row for attempt in self.ledger.landed for row in self._evidence(attempt).to_pylist()]

    def quarantine(self) -> list[dict[str, Any]]:
        """See :meth:`World.quarantine`."""
        standing = EffectiveEvidence(self._table, self.ledger, self._live)
        files = {row.file for row in standing.rows() if row.file and row.offset_class == "quarantined"}
        folder = self._table.keys.quarantine
        return [row for one in sorted(files) for row in self._world.read(one, folder).to_pylist()]

    def check(self) -> None:
        """See :meth:`World.check`."""
        ledger, rows, evidence = self.ledger, self.rows(), self.evidence()
        keys = Counter((row["kafka_incarnation"], row["kafka_partition"], row["kafka_offset"]) for row in rows)
        assert [key for key, count in keys.items() if count > 1] == []
        assert ledger.rows == len(rows)
        assert {dt: state.rows for dt, state in ledger.dates.items() if state.rows} == Counter(
            row["dt"] for row in rows
        )
        live = {one.path for one in self._live}
        named: dict[str, tuple[int, int]] = {}
        for row in evidence:
            if row["class"] == "landed" and row["file"] in live:
                count, total = named.get(row["file"], (0, 0))
                named[row["file"]] = count + row["rows"], combine(total, int.from_bytes(row["hash128"], "big"))
        assert named == {path: self._sum(path) for path in live}
        holding = self.holding()
        for state in ledger.partitions:
            covered = [row["rows"] for row in holding if (row["incarnation"], row["partition"]) == state.key]
            assert sum(covered) == state.next_offset, state
            moved = [row for row in evidence if (row["incarnation"], row["partition"]) == state.key]
            left = [row for row in moved if row["class"] == "superseded" and row["file"] is None]
            cut = [row for row in moved if row["class"] == "truncated"]
            assert len(cut) <= len(left) <= state.branch  # fewer where what was cut off had only decided what landed
            assert [row["rows"] for row in left] == [row["next"] - row["first"] for row in left]
            spans = [(row["first"], row["next"]) for row in left]
            assert all(any(one <= row["first"] and row["next"] == end for one, end in spans) for row in cut)
        refused = Counter(
            (row["kafka_incarnation"], row["kafka_partition"]) for row in self.quarantine() if not row["batch"]
        )
        landed = Counter((row["kafka_incarnation"], row["kafka_partition"]) for row in rows)
        for key in landed | refused:
            assert landed[key] + refused[key] <= ledger.by_partition[key].next_offset

    def holding(self) -> list[dict[str, Any]]:
        """See :meth:`World.holding`."""
        live = {one.path for one in self._live}
        evidence = self._on_the_branch()
        superseded = {row["file"] for row in evidence if row["class"] == "superseded"}
        return [
            row
            for row in evidence
            if row["class"] not in {"superseded", "truncated"}
            and (row["class"] != "landed" or row["file"] in live)
            and (row["class"] not in {"quarantined", "filtered"} or row["file"] not in superseded)
        ]

    def _on_the_branch(self) -> list[dict[str, Any]]:
        """The evidence without rows of files' own rule that a partition left behind with a branch."""
        found: list[dict[str, Any]] = []
        evidence = (row for attempt in self.ledger.landed for row in self._evidence(attempt).to_pylist())
        for _, landed in groupby(evidence, lambda row: row["attempt"]):  # a fold has rows of many
            rows = list(landed)
            for left in (row for row in rows if row["class"] == "superseded" and row["file"] is None):
                at = left["incarnation"], left["partition"]
                dead = [
                    row
                    for row in found
                    if (row["incarnation"], row["partition"]) == at
                    and row["next"] > left["first"]
                    and row["file"] is None
                    and row["class"] not in {"superseded", "truncated"}
                ]
                assert all(row["first"] >= left["first"] for row in dead), dead
                found = [row for row in found if not any(row is one for one in dead)]
            found += rows
        return found

    def _sum(self, path: str) -> tuple[int, int]:
        table = self._tables(path)
        if not set(SCHEMA.names) <= set(table.schema.names):
            return table.num_rows, -1
        batches = table.select(SCHEMA.names).cast(SCHEMA).to_batches()
        total = 0
        for batch in batches:
            total = combine(total, row_hash_sum(batch))
        return table.num_rows, total
