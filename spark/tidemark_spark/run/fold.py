"""Carries out a fold: it writes one evidence object, and commits the ledger that lists it. It converts nothing."""

from __future__ import annotations

from tidemark.formats.table.plan import RunPlan
from tidemark.planning import write_plan
from tidemark.table.delta_table import TopicTable
from tidemark_spark.model import CarriedOut
from tidemark_spark.run.driver import run


def fold(table: TopicTable, plan: RunPlan) -> None:
    """Commit ``plan`` unless it is empty or another process has made the same fold.

    Raises:
        TableTampered: another program changed the table; nothing was committed.
        PublishError: the commit failed repeatedly.
        StoreError: the store failed.
    """
    if not plan.empty:
        write_plan(table, plan)
        run(table, plan, CarriedOut())
