"""A run that restores from raw the rows that another program removed from a table or changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from tidemark.errors import ContinuityError, StaleRun
from tidemark.formats.table.ledger import DateState, Ledger, PartitionState
from tidemark.formats.table.plan import BranchCut, PartitionPlan
from tidemark.kafka_log import Lineage
from tidemark.table.delta_table import LiveFiles
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import PARSED, EvidenceRow
from tidemark.table.evidence_reader import by_partition
from tidemark_spark.convert.conversion import converted
from tidemark_spark.kinds.kind import TableChange, left_behind
from tidemark_spark.kinds.rebuild import MadeAgain
from tidemark_spark.model import Outcome


class Repair(MadeAgain):
    """Makes rows again, whatever the table has of them; its ledger states the table's files again."""

    same_records: ClassVar = True
    work = staticmethod(converted)

    @override
    def account(self, outcomes: Iterable[Outcome]) -> TableChange:
        change = super().account(outcomes)
        back = [(part, part.cut) for part in self.plan.partitions if part.cut]
        left = [row for part, cut in back for row in left_behind(part, cut, part.end)]
        return change._replace(
            evidence=(*change.evidence, *left), partitions=tuple(_back(part, cut) for part, cut in back)
        )

    @override
    def replaced(self, evidence: Iterable[EvidenceRow]) -> Sequence[EvidenceRow]:
        """The rows set aside that the repair replaces.

        Raises:
            ContinuityError: after the repair, an offset of its partitions has no class or two.
        """
        table, plan = self.table, self.plan
        standing, replaced = EffectiveEvidence.of(table), frozenset(plan.replaced)
        counted = Counter[tuple[int, int]]()
        ends = {key: state.next_offset for key, state in standing.ledger.by_partition.items()}
        ends |= {part.key: part.end for part in plan.partitions if part.cut}
        for new in evidence:
            if new.offset_class in PARSED:
                counted[new.incarnation, new.partition] += new.rows
        names = pa.array(sorted(replaced), pa.string())
        for rows in standing.parts():
            left = rows.filter(pc.invert(pc.is_in(rows["file"], names)))
            ordered, places = by_partition(left.select(["incarnation", "partition", "first", "rows"]))
            first, numbers = ordered["first"].to_numpy(), ordered["rows"].to_numpy()
            for key, start, end in places:
                counted[key] += int(numbers[start:end][first[start:end] < ends[key]].sum())
        for key, end in ends.items():
            if counted[key] != end:
                raise ContinuityError(
                    f"{table.url}: {counted[key]} of the {end} offsets of partition {key[1]} of incarnation {key[0]} "
                    "would have a class after the repair; nothing was changed: audit the table, and report it"
                )
        return standing.told(files=replaced).aside

    @override
    def check_hands(self, ledger: Ledger, live: LiveFiles) -> None:
        if (ledger.n, live.digest) != (self.plan.ledger_n, self.plan.found):
            raise StaleRun("the table was changed since the repair was planned")

    @override
    def touched(self, dates: Iterable[str], current: Ledger, rows: Mapping[str, int]) -> set[str]:
        return {*dates, *(dt for dt, state in current.dates.items() if state.rows != rows[dt])}

    @override
    def date(self, known: DateState | None, rows: int, fresh: int, cut: int) -> DateState | None:
        if known is None and not rows:
            return None
        return super().date(known, rows, fresh, cut if fresh else 0)


def _back(part: PartitionPlan, cut: BranchCut) -> PartitionState:
    """State of a partition that a repair sets back to its end; the next ingest follows the new branch from there."""
    return PartitionState(
        incarnation=part.incarnation,
        topic_id=part.topic_id,
        partition=part.partition,
        start_offset=part.start,
        next_offset=part.end,
        verdicts_end=cut.at,
        leader_epoch=cut.leader_epoch,
        branch=part.branch + 1,
        lineage=Lineage(cut.lineage).truncated(cut.at).entries,
        restores=cut.restores,
    )
