"""All kinds of runs by the name that a plan states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidemark.formats.table.plan import RunKind, RunPlan
from tidemark.table.delta_table import TopicTable
from tidemark_spark.kinds.erasure import Erasure
from tidemark_spark.kinds.ingest import Ingest
from tidemark_spark.kinds.kind import Kind
from tidemark_spark.kinds.rebuild import Rebuild, Repair, Replay
from tidemark_spark.kinds.upkeep import AddColumns, Compaction, FoldAttempts, Retain

KINDS: Final[Mapping[RunKind, type[Kind]]] = {
    "ingest": Ingest,
    "rebuild": Rebuild,
    "replay": Replay,
    "compact": Compaction,
    "retain": Retain,
    "fold": FoldAttempts,
    "repair": Repair,
    "schema": AddColumns,
    "erase": Erasure,
}


def kind_of(table: TopicTable, plan: RunPlan) -> Kind:
    """The run of ``table`` by ``plan``, of the plan's kind."""
    return KINDS[plan.kind](table, plan)
