"""Brings a table's columns to the newest schema of its registry, before a run is planned."""

from __future__ import annotations

from deltalake import DeltaTable

from tidemark.errors import ConfigError
from tidemark.formats.table.plan import RunPlan
from tidemark.planning import write_plan
from tidemark.planning.common import following
from tidemark.planning.schema_following import accept, follow, proposed
from tidemark.table.delta_table import TopicTable, ledger_of, open_delta
from tidemark.table.topic_columns import check_columns, widened
from tidemark_spark.model import CarriedOut
from tidemark_spark.run.driver import run


def followed(table: TopicTable) -> TopicTable:
    """``table`` with the newest schema, as far as it is adopted; new columns are added by a commit of their own.

    If the process is killed after the adoption, the next run adds the columns with its own commit.

    Raises:
        RegistryUnavailable, ConfigError: see :func:`tidemark.planning.schema_following.follow`.
        PublishError: the columns were not added; run it again.
    """
    state = follow(table)
    if state.waits is not None and _was_rebuilt(state.table, state.waits):
        accept(state.table, state.waits)
        state = follow(table)
    if state.adopted:
        _add_columns(state.table)
    return state.table


def _was_rebuilt(table: TopicTable, version: int) -> bool:
    """True if the table has the proposed columns: the run that made them was killed before the adoption."""
    delta = open_delta(table)
    return delta is not None and widened(table, delta) is not None and _has(proposed(table, version), delta)


def _has(table: TopicTable, delta: DeltaTable) -> bool:
    try:
        check_columns(table, delta)
    except ConfigError:
        return False
    return widened(table, delta) is None


def _add_columns(table: TopicTable) -> None:
    """Commit the columns that the table lacks, if any; a table that does not exist yet is created with them."""
    delta = open_delta(table)
    if delta is None:
        return
    missing = check_columns(table, delta)
    if missing:
        columns = tuple(field.name for field in missing)
        plan = RunPlan(**following(table, ledger_of(table, delta)), kind="schema", columns=columns)
        write_plan(table, plan)
        run(table, plan, CarriedOut())
