"""What must be true of tables: at every plan and commit, and when all has become quiet."""

from __future__ import annotations

from collections.abc import Iterator

from tests.uploader_agent.simulation.broker import Batch, Cluster, Partition, split, transactions
from tests.uploader_agent.simulation.landing import LandedBatch, LandingOracle, MemoryTable
from tests.uploader_agent.simulation.oracle import Oracle
from tests.uploader_agent.simulation.store import SimulatedStore
from tidemark.formats.table.ledger import PartitionState
from tidemark.formats.table.plan import PartitionPlan, RunPlan
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage
from tidemark_spark.model import Stop


class TableOracle(LandingOracle):
    """Compares tables with the logs that :class:`Cluster` knows."""

    def __init__(self, cluster: Cluster, oracle: Oracle, store: SimulatedStore, *, fetching: bool = False) -> None:
        """Where agents are ``fetching``, what is open at a log start need not be known behind it."""
        self.batches = 0
        """Landed batches that were compared at commits."""
        self._cluster = cluster
        self._oracle = oracle
        self._store = store
        self._fetching = fetching

    def planned(self, table: MemoryTable, plan: RunPlan) -> None:
        """No offset is LOST but what retention took from the brokers' disks before it was stored."""
        for part in plan.partitions:
            legal = Intervals(self._life(table, part.topic_id, part.partition).retired)
            for gap in part.gaps:
                if gap.reason != "unclean_election" and Intervals([(gap.start, gap.end)]) - legal:
                    self._oracle.lie(f"{_name(table, part)}: {gap} is LOST for the landing; retention took {legal}")

    def stopped(self, table: MemoryTable, part: PartitionPlan, stop: Stop, began: float) -> None:
        """Whatever a run is planned with is there, and is whole, unless a seal had it before the run began.

        As long as ``offset.wm`` does not count that seal, runs are planned with the pack, and it may go as soon as it
        counts. Such a run lands less, and the next one reads the seal.
        """
        sealed_at = self._oracle.sealed_at(self._life(table, part.topic_id, part.partition), stop.offset)
        if stop.kind != "moved" or sealed_at is None or sealed_at >= began:
            self._oracle.lie(f"{_name(table, part)}: {stop}")

    def committed(self, table: MemoryTable, plan: RunPlan) -> None:
        """What has landed was committed once, and is on the lineage by which the run was planned."""
        states = table.ledger.by_partition
        for part in plan.partitions:
            if part.key not in states or states[part.key].lineage != part.lineage:
                continue  # it stays where it was
            life = self._life(table, part.topic_id, part.partition)
            lineage = Lineage(part.lineage)
            for base, batch in table.landed.get(part.key, {}).items():
                self.batches += 1
                wrong = self._wrong(life, base, batch)
                if wrong is None and not lineage.is_live(base, batch.epoch):
                    wrong = f"is not on the lineage {lineage.entries} any more, and stays"
                if wrong is not None:
                    self._oracle.lie(f"{_name(table, part)}: the batch at {base} of epoch {batch.epoch} {wrong}")

    def end(self, tables: dict[str, MemoryTable]) -> Iterator[str]:
        """All that is committed and decided has landed as the true log decides it, and raw keeps what has landed."""
        for life in self._cluster.lives:
            table = tables[life.at.topic]
            state = self._state(table, life)
            promised = self._oracle.promised(life) if life.gone else life.high_watermark
            if state is None:
                if promised and not life.gone:  # nothing tells the partitions of a deleted topic that never landed
                    yield f"{life.at}: nothing has landed, and {promised} is stored"
                continue
            watermark = self._oracle.watermark(life)
            if watermark is None:
                yield f"{life.at}: has landed to {state.next_offset}, and there is no offset.wm"
                continue
            # Its lineage tells less of a log: a follower that copied a compacted one lacks the start of an epoch.
            log = life.branch(Lineage(watermark.lineage)) if life.gone else life.led.batches
            landed = table.landed.get(state.key, {})
            new = watermark.next_offset if watermark.gaps else promised
            if any(gap.reason == "unclean_election" and new <= gap.start for gap in state.gaps):
                continue  # the landed branch stays until the new one has anything, and no gap is before it
            yield from self._compare(life, state, landed, log, promised)
            if len(life.replicas) == 1 or not self._oracle.was_damaged:  # else see "Segments that lack records"
                yield from self._kept_by_raw(life, landed, watermark.next_offset)

    def _compare(
        self,
        life: Partition,
        state: PartitionState,
        landed: dict[int, LandedBatch],
        log: list[Batch],
        promised: int,
    ) -> Iterator[str]:
        """The table against the true ``log``, below the promised end."""
        below = [batch for batch in log if batch.end <= promised]
        end, opened = below[-1].end if below else 0, transactions(below)[1]
        crossing = [one for both in transactions(log) for one in both if self._fetching and one.crosses(life.starts)]
        decided = min([end, *(open_.first for open_ in opened)])
        at_most = min([end, *(open_.first for open_ in opened if open_ not in crossing)])
        if not state.gaps and not self._cluster.compacted and state.next_offset < decided:
            yield f"{life.at}: is landed to {state.next_offset}, and decided to {decided}"
        true = {batch.base: batch for batch in _rows(log) if batch.end <= state.next_offset}
        if state.next_offset > max(at_most, state.start_offset) and not life.gone:
            yield f"{life.at}: is landed to {state.next_offset}, and decided to {at_most} only"
        for base in sorted({*true, *landed}):
            there, should = landed.get(base), true.get(base)
            if there is None and should is not None and (should.id in life.emptied or base < state.start_offset):
                continue
            if any(one.first <= base <= one.last for one in crossing):
                continue
            if there is None or should is None or there.epoch != should.epoch:
                epochs = [batch.epoch if batch else None for batch in (there, should)]
                yield f"{life.at}: at {base} a batch of epoch {epochs[0]} has landed, and one of {epochs[1]} should"
                return

    def _kept_by_raw(self, life: Partition, landed: dict[int, LandedBatch], sealed: int) -> Iterator[str]:
        """Raw answers for the table: no batch has landed of which seals have fewer records."""
        kept: dict[tuple[int, int], int] = {}
        for body in self._oracle.logs(life):
            for id_, content in split(body).items():
                kept[id_] = max(len(content), kept.get(id_, 0))
        for base, batch in landed.items():
            if base < sealed and kept.get((base, batch.epoch), 0) < len(batch.content):
                yield f"{life.at}: the batch at {base} of epoch {batch.epoch} has landed, and no seal has all of it"

    def _wrong(self, life: Partition, base: int, batch: LandedBatch) -> str | None:
        true = life.appended.get((base, batch.epoch))
        if true is None or batch.content not in {true.content, true.thinned}:
            return "is not the log's"
        return None if true.id in life.committed else "was never committed"

    def _state(self, table: MemoryTable, life: Partition) -> PartitionState | None:
        states = table.ledger.partitions
        found = (one for one in states if (one.topic_id, one.partition) == (life.kafka_id, life.at.partition))
        return next(found, None)

    def _life(self, table: MemoryTable, topic_id: str | None, partition: int) -> Partition:
        at = topic_id, table.table.topic.topic, partition
        return next(life for life in self._cluster.lives if (life.kafka_id, *life.at) == at)


def _rows(log: list[Batch]) -> Iterator[Batch]:
    """The batches that ``read_committed`` delivers."""
    aborted = [one for one in transactions(log)[0] if one.aborted]
    for batch in log:
        hit = any(one.producer == batch.producer and one.first <= batch.base < one.last for one in aborted)
        if batch.commits is None and not hit:
            yield batch


def _name(table: MemoryTable, part: PartitionPlan) -> str:
    return f"{table.table.topic.topic}-{part.partition} of incarnation {part.incarnation}"
