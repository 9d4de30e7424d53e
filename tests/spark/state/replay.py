"""An independent replay of a topic's table into its state, record by record."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any

import pyarrow.parquet as pq

from tests.spark.world import World, in_process
from tidemark.formats.table.state_ledger import Leaf
from tidemark.formats.table.state_status import StateStatus
from tidemark.planning import write_plan
from tidemark.planning.maintenance.retention import plan_retain
from tidemark.table.state_table import StateTable
from tidemark_spark.run.driver import run
from tidemark_spark.state.audit import LeafAudit, LeafAuditTask, audit_leaf
from tidemark_spark.state.first_round import last_of_files
from tidemark_spark.state.model import LeafTask, MadeLeaves, NewestTask, SortedRun, StateJob
from tidemark_spark.state.run import Rounds, StateResult, run_state
from tidemark_spark.state.second_round import merged_leaf, removed_buckets


def first(job: StateJob, tasks: Sequence[NewestTask]) -> list[SortedRun]:
    return [last_of_files(job, task) for task in tasks]


def removed(job: StateJob, leaves: Sequence[Leaf]) -> list[frozenset[int]]:
    return [removed_buckets(job, leaf) for leaf in leaves]


def second(job: StateJob, tasks: Sequence[LeafTask]) -> list[MadeLeaves]:
    return [merged_leaf(job, task) for task in tasks]


ROUNDS = Rounds(removed, first, second)
"""All in this process."""


def compare(job: StateJob, tasks: Sequence[LeafAuditTask]) -> list[LeafAudit]:
    return [audit_leaf(job, task) for task in tasks]


def advance(world: World, *, rebuild: bool = False, meanwhile: Callable[[], object] = lambda: None) -> StateResult:
    """A run of the state table in this process; ``meanwhile`` happens between its rounds and its commit."""

    def interrupted(job: StateJob, tasks: Sequence[LeafTask]) -> list[MadeLeaves]:
        made = second(job, tasks)
        meanwhile()
        return made

    return run_state(StateTable.open(world.table), Rounds(removed, first, interrupted), rebuild=rebuild)


def expire(world: World, at: datetime) -> None:
    """Retention removes the dates that are past at ``at``."""
    plan, _ = plan_retain(world.table, at)
    write_plan(world.table, plan)
    assert run(world.table, plan, in_process).status in {"landed", "empty"}


def replayed(rows: list[dict[str, Any]]) -> dict[bytes, dict[str, Any]]:
    """The newest record of each key of ``rows``, in the order of the records, without deleted keys."""
    last: dict[bytes, dict[tuple[int, int], dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (row["kafka_incarnation"], row["kafka_partition"], row["kafka_offset"])):
        if row["kafka_key"] is not None:
            last.setdefault(row["kafka_key"], {})[row["kafka_incarnation"], row["kafka_partition"]] = row
    found: dict[bytes, dict[str, Any]] = {}
    for key, by_partition in last.items():
        at = max(by_partition, key=lambda at: (at[0], by_partition[at]["kafka_timestamp"], at[1]))
        if by_partition[at]["kafka_value"] is not None:
            found[key] = by_partition[at]
    return found


def state_rows(world: World) -> list[dict[str, Any]]:
    """The rows of the state table's newest version, file by file."""
    table = StateTable.open(world.table)
    delta = table.delta()
    if delta is None:
        return []
    actions = delta.get_add_actions(flatten=True)
    paths = actions.column(actions.schema.names.index("path")).to_pylist()
    files = [pq.ParquetFile(io.BytesIO(table.store.get(f"{table.root}/{path}").body)).read() for path in sorted(paths)]
    return [row for file in files for row in file.to_pylist()]


def status_of(world: World) -> StateStatus:
    """The status that the last run or audit left."""
    return StateStatus.load(world.table.store, world.table.keys.deployment.state_status(world.table.topic.topic))


def check(world: World, outlived: Sequence[dict[str, Any]] = (), unsure: Collection[bytes] = ()) -> None:
    """The state equals the replay of all rows of the table, and of ``outlived`` rows, each key once.

    About ``unsure`` keys it may differ.
    """
    rows = state_rows(world)
    found = {row["kafka_key"]: row for row in rows if row["kafka_key"] not in unsure}
    assert len(found) == len([row for row in rows if row["kafka_key"] not in unsure]), "a key twice"
    wanted = {key: row for key, row in replayed([*world.rows(), *outlived]).items() if key not in unsure}
    assert found == {key: {name: row[name] for name in found.get(key, row)} for key, row in wanted.items()}
    ledger = StateTable.open(world.table).committed()
    assert (ledger.rows if ledger else 0) == len(rows)
