"""The landing runs of all topics, with the real code from plan to accounting, and a table in memory.

:func:`tidemark.planning.plan_ingest` plans by heads, ``offset.wm`` and manifests; :func:`judge` gives each offset a
class; :func:`account` makes the change that is committed. Records are not decoded: a batch stands for its records.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Self
from unittest.mock import patch

from tests.uploader_agent.simulation.clock import Scheduler
from tests.uploader_agent.simulation.faults import Faults
from tests.uploader_agent.simulation.oracle import CLUSTER
from tidemark import concurrency, raw_topic
from tidemark.endpoints import EndpointSettings
from tidemark.errors import NotFound, StoreError
from tidemark.formats.table import object_cache
from tidemark.formats.table.ledger import Ledger, PartitionState
from tidemark.formats.table.plan import PartitionPlan, RunPlan, SegmentRange, SegmentTask
from tidemark.planning import ingest, partition_plan
from tidemark.raw.heads import LiveEnd
from tidemark.raw_topic import RawTopic
from tidemark.storage import Storage
from tidemark.store import Store, StoreOptions
from tidemark.store.retrying import Retry
from tidemark.table.delta_table import TopicTable
from tidemark.table.effective_evidence import Reach
from tidemark.table.evidence import EvidenceRow
from tidemark.table.log_copy import LogCopy
from tidemark.topics import Deployment
from tidemark_spark.convert.classify import PartitionRules, Run, judge, missing
from tidemark_spark.convert.segment_reader import windows
from tidemark_spark.kinds.ingest import Ingest
from tidemark_spark.model import Outcome, Stop

TOPICS = ("orders", "payments", "returns")
RUN_LIMIT = 12.0
"""Seconds after which a run commits nothing any more, in place of two days."""

DEPLOYMENT = Deployment.model_validate(
    {
        "raw": {"url": "s3://raw"},
        "lake": "s3://lake",
        "cluster": CLUSTER,
        "topics": [{"topic": topic} for topic in TOPICS],
    }
)

Key = tuple[int, int]
"""Incarnation and partition."""


class VirtualRetry(Retry):
    """Reads are repeated as those of all stores are, after pauses in virtual time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.wait = scheduler.sleep  # type: ignore[method-assign]


class LandedBatch(NamedTuple):
    """A batch that has landed: its epoch and its bytes."""

    epoch: int
    content: bytes


class MemoryTable:
    """One topic's table: the ledger, the landed batches by offset, and the evidence that counts."""

    def __init__(self, topic: str, store: Store) -> None:
        settings = DEPLOYMENT.topic(topic)
        self.table = TopicTable(DEPLOYMENT, settings, store, DEPLOYMENT.table_keys(settings), LogCopy())
        self.ledger = Ledger.genesis(CLUSTER, topic, settings.table)
        self.landed: dict[Key, dict[int, LandedBatch]] = {}
        self.runs: dict[Key, list[tuple[int, int]]] = {}
        """The offsets of each conversion task: no run begins anew within."""

    def from_offset(self, key: Key, offset: int) -> Reach:
        """As :meth:`tidemark.table.effective_evidence.EffectiveEvidence.from_offset`."""
        runs = self.runs.get(key, [])
        start = offset
        while (lower := min([start, *(first for first, end in runs if first < start < end)])) < start:
            start = lower
        return Reach(start, (), {})

    def commit(
        self, plan: RunPlan, states: tuple[PartitionState, ...], fresh: dict[Key, dict[int, LandedBatch]]
    ) -> None:
        """Take back what a cut removes, and add what has landed."""
        by_key = {state.key: state for state in states}
        for part in plan.partitions:
            if part.key not in by_key:
                continue
            landed, runs = self.landed.setdefault(part.key, {}), self.runs.setdefault(part.key, [])
            if part.cut is not None and by_key[part.key].branch > part.branch:
                self.landed[part.key] = landed = {at: batch for at, batch in landed.items() if at < part.start}
                runs[:] = [run for run in runs if run[0] < part.start]
            end = by_key[part.key].next_offset
            landed |= {at: batch for at, batch in fresh.get(part.key, {}).items() if at < end}
            mine = (task for task in plan.tasks if (task.incarnation, task.partition) == part.key)
            runs += [(task.from_offset, min(task.to_offset, end)) for task in mine if task.from_offset < end]
        before = self.ledger.by_partition
        for key, state in by_key.items():  # the start stays that of the first run, as in tidemark_spark.run.commit
            first = before[key].start_offset if key in before else state.start_offset
            before[key] = state.model_copy(update={"start_offset": first})
        fields = {"n": self.ledger.n + 1, "partitions": tuple(before[key] for key in sorted(before))}
        self.ledger = self.ledger.model_copy(update=fields)


class LandingOracle:
    """What is told of a landing; :class:`tests.uploader_agent.simulation.table_oracle.TableOracle` judges it."""

    def planned(self, table: MemoryTable, plan: RunPlan) -> None:
        """A plan was made."""

    def stopped(self, table: MemoryTable, part: PartitionPlan, stop: Stop, began: float) -> None:
        """A task of a run that ``began`` then ended early."""

    def committed(self, table: MemoryTable, plan: RunPlan) -> None:
        """A run was committed."""


class Landings:
    """A process that plans all topics together and lands them one after the other, again and again."""

    def __init__(
        self, store: Store, scheduler: Scheduler, faults: Faults, rng: random.Random, oracle: LandingOracle
    ) -> None:
        self.tables = {topic: MemoryTable(topic, store) for topic in TOPICS}
        self.counts: Counter[str] = Counter()
        self._store = store
        self._scheduler = scheduler
        self._faults = faults
        self._rng = rng
        self._oracle = oracle

    def run(self) -> None:
        """Land until the process is killed."""
        longest = self._rng.choice([2.0, 10.0])
        while True:
            self._scheduler.sleep(self._rng.uniform(0.5, longest))
            self.land(limit=self._rng.choice([1, 2, 1024]))

    def land(self, limit: int = 1024) -> bool:
        """Land what all topics have now, by at most ``limit`` tasks each; whether anything was committed."""
        live_end, changed = LiveEnd(), False
        for table in self.tables.values():
            try:
                changed |= self._land(table, live_end, limit)
            except (StoreError, OSError, RuntimeError) as error:  # as the store fails; the next run does it
                self._faults.tell(f"   landing of {table.table.topic.topic}: {type(error).__name__}: {error}")
                self.counts["landings failed"] += 1
        return changed

    def _land(self, table: MemoryTable, live_end: LiveEnd, limit: int) -> bool:
        began = self._scheduler.now
        with _in_memory(table, self._store):
            raw = RawTopic(table.table, live_end, outages=True)
            plan = ingest.plan_ingest(table.table, attempt=1, raw=raw, limit_tasks=limit, close_dates=False)
        if not plan.partitions:
            return False
        self._oracle.planned(table, plan)
        fresh: dict[Key, dict[int, LandedBatch]] = {}
        parts = {part.key: part for part in plan.partitions}
        outcomes = [
            self._convert(table, parts[task.incarnation, task.partition], task, fresh, began)
            for task in plan.tasks
            if isinstance(task, SegmentTask)
        ]
        change = Ingest(table.table, plan).account(outcomes)
        if self._scheduler.now - began > RUN_LIMIT:
            self.counts["landings too late"] += 1
            return False
        table.commit(plan, change.partitions, fresh)
        self.counts["landings"] += 1
        self._faults.tell(
            f"   landed {table.table.topic.topic}: {[(one.key, one.next_offset) for one in change.partitions]}"
        )
        self._oracle.committed(table, plan)
        return True

    def _convert(
        self,
        table: MemoryTable,
        part: PartitionPlan,
        task: SegmentTask,
        fresh: dict[Key, dict[int, LandedBatch]],
        began: float,
    ) -> Outcome:
        """As :class:`tidemark_spark.convert.conversion.Conversion`, without decoding any record."""
        rules, at, stop = PartitionRules.of(part, StoreOptions()), task.from_offset, None
        evidence: list[EvidenceRow] = []
        for range_ in task.ranges:
            runs: list[Run] = []
            try:
                at, stop = self._range(range_, at, rules, runs, fresh.setdefault(part.key, {}))
            except NotFound as error:
                if self._scheduler.now - began > RUN_LIMIT:
                    raise
                stop = Stop(at, range_.to_offset, "moved", str(error))
            except StoreError as error:
                if not range_.is_packed:
                    raise
                self.counts["packs not read"] += 1
                stop = Stop(at, range_.to_offset, "unread", str(error))
            evidence += [EvidenceRow(*part.key, run.start, run.end, run.offset_class, run.rows) for run in runs]
            if stop is not None:
                if stop.kind != "unread":
                    self._oracle.stopped(table, part, stop, began)
                break
        return Outcome(*part.key, task.from_offset, at, (), tuple(evidence), stop, 0)

    def _range(
        self, range_: SegmentRange, at: int, rules: PartitionRules, runs: list[Run], landed: dict[int, LandedBatch]
    ) -> tuple[int, Stop | None]:
        """Where the range ends, and why if that is too early."""
        for window in windows(self._store, range_):
            verdict = judge(window.headers, at, range_, rules)
            for header in verdict.data:
                start, size = int(header["position"]) - window.position, int(header["size"])
                base, end = int(header["base_offset"]), int(header["base_offset"] + header["last_offset_delta"] + 1)
                landed[base] = LandedBatch(int(header["leader_epoch"]), window.data[start : start + size])
                runs.append(Run.whole("landed", max(base, at, range_.from_offset), min(end, range_.to_offset)))
            runs += verdict.runs
            at = verdict.next_offset
            if verdict.stop is not None or window.damage is not None:
                return at, verdict.stop or Stop(at, range_.to_offset, "corrupt", str(window.damage))
        if at < range_.to_offset and not range_.compacted:
            return at, missing(range_, at, range_.to_offset)
        if at < range_.to_offset:
            runs.append(Run.whole("compacted", at, range_.to_offset))
        return range_.to_offset, None


class _Sequential:
    """What :class:`concurrent.futures.ThreadPoolExecutor` is to this process: one thing after the other."""

    def __init__(self, _threads: int) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, function: Callable[[Any], Any], items: Any) -> Iterator[Any]:
        return map(function, items)


@contextmanager
def one_thread() -> Iterator[None]:
    """No pool has threads: the scheduler does not know them."""
    with (
        patch.object(concurrency, "ThreadPoolExecutor", _Sequential),
        patch.object(object_cache, "ThreadPoolExecutor", _Sequential),
    ):
        yield


@contextmanager
def _in_memory(table: MemoryTable, store: Store) -> Iterator[None]:
    """Planning reads this table, and the simulated store."""

    class Evidence:
        of = staticmethod(lambda _table: table)

    def opened(cluster: str, endpoints: EndpointSettings, _options: StoreOptions) -> Storage:
        return Storage(cluster, endpoints, opener=lambda _url: store)

    with ExitStack() as stack:
        for module, name, value in (
            (ingest, "open_delta", lambda _table: None),
            (ingest, "ledger_of", lambda _table, _delta: table.ledger),
            (partition_plan, "EffectiveEvidence", Evidence),
            (raw_topic, "Storage", opened),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield
