"""An independent replay of a topic's table into its state, record by record."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Literal, get_args

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.spark.world import Acting, World, in_process
from tidemark.formats.table.statuses import StateStatus
from tidemark.planning import write_plan
from tidemark.planning.maintenance.retention import plan_retain
from tidemark.table.state_table import StateTable
from tidemark.topics import StateSettings
from tidemark_spark.run.driver import run
from tidemark_spark.state import run as run_module
from tidemark_spark.state.first_round import last_of_files
from tidemark_spark.state.model import StateJob
from tidemark_spark.state.run import StateResult, StateRun, run_state
from tidemark_spark.state.second_round import removed_buckets

LEAF = 1 << 10
"""The size of a leaf in tests, so that a few rows make several."""

Moment = Literal["plan", "first round", "second round", "check"]
MOMENTS: tuple[Moment, ...] = get_args(Moment)
"""Steps of a run, after which something else happens; the check is that the topic's table has all its rows."""


def advance(
    world: World,
    *,
    rebuild: bool = False,
    meanwhile: Callable[[], object] = lambda: None,
    after: Moment = "second round",
) -> StateResult:
    """A run of the state table in this process; ``meanwhile`` happens once, right ``after`` that step."""

    def reached(moment: Moment) -> None:
        if moment == after:
            meanwhile()

    @Acting
    def rounds(work: Any, job: StateJob, tasks: Sequence[Any]) -> list[Any]:
        if work is last_of_files:
            reached("plan")
        made = in_process.on_each(work, job, tasks)
        if work is not removed_buckets:
            reached("first round" if work is last_of_files else "second round")
        return made

    class Run(StateRun):
        def _opened(self) -> DeltaTable:
            reached("check")
            return super()._opened()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "StateRun", Run)
        return run_state(StateTable.open(world.table), rounds, rebuild=rebuild, leaf=LEAF)


def expire(world: World, at: datetime) -> None:
    """Retention removes the dates that are past at ``at``."""
    plan, _ = plan_retain(world.table, at)
    write_plan(world.table, plan)
    assert run(world.table, plan, in_process).status in {"landed", "empty"}


Row = dict[str, Any]
DEFAULTS = StateSettings()
_SETS = {"debezium": {"c", "u", "r"}, "maxwell": {"insert", "update", "bootstrap-insert"}}
_OP = {"debezium": "op", "maxwell": "type"}
_DELETES = {"debezium": "d", "maxwell": "delete"}


def identity(row: Row, state: StateSettings) -> Any:
    """The key of a row; None if it has none."""
    if state.framing and row["kafka_key"] and row["kafka_key"][:1] == b"\0" and len(row["kafka_key"]) >= 5:
        return row["kafka_key"][5:]
    if state.key == ("kafka_key",):
        return row["kafka_key"]
    values = tuple(row[name] for name in state.key)
    return None if None in values else values


def _deletes(row: Row, state: StateSettings) -> bool | None:
    """True if the record deletes its key, None if it changes no key."""
    if state.envelope == "none":
        return row["kafka_value"] is None
    op = row[_OP[state.envelope]]
    if row["kafka_value"] is None:
        return None if state.order or state.key != ("kafka_key",) else True
    return op == _DELETES[state.envelope] or (False if op in _SETS[state.envelope] else None)


def _order(row: Row, state: StateSettings) -> tuple[Any, ...]:
    return tuple((row[name] is not None, row[name] or 0) for name in state.order)


def _untruncated(rows: Iterable[Row], state: StateSettings) -> list[Row]:
    """The rows after the newest truncation, if any: those of later offsets in its partition, and all of later ones."""
    rows = list(rows)

    def place(row: Row) -> tuple[Any, ...]:
        return (*_order(row, state), row["kafka_incarnation"], row["kafka_offset"])

    newest = max((row for row in rows if state.envelope == "debezium" and row["op"] == "t"), key=place, default=None)
    if newest is None:
        return rows
    cut = newest["kafka_partition"]
    return [
        row
        for row in rows
        if (place(row) > place(newest) if row["kafka_partition"] == cut else place(row)[:-1] >= place(newest)[:-1])
    ]


def rivals(rows: Iterable[Row], state: StateSettings) -> dict[Any, list[Row]]:
    """By key the last records of partitions that no other outranks for ever; the newest is the last of them."""
    last: dict[Any, dict[tuple[int, int], Row]] = {}
    for row in sorted(_untruncated(rows, state), key=lambda row: (_order(row, state), row["kafka_offset"])):
        if _deletes(row, state) is not None and (key := identity(row, state)) is not None:
            last.setdefault(key, {})[row["kafka_incarnation"], row["kafka_partition"]] = row
    found: dict[Any, list[Row]] = {}
    for key, by_partition in last.items():
        few = sorted(
            by_partition.values(),
            key=lambda row: (
                _order(row, state),
                *(row[f"kafka_{name}"] for name in ("incarnation", "timestamp", "partition")),
            ),
        )
        top = _order(few[-1], state), few[-1]["kafka_incarnation"]
        found[key] = [row for row in few if (_order(row, state), row["kafka_incarnation"]) == top]
    return found


def replayed(rows: Iterable[Row], state: StateSettings = DEFAULTS) -> dict[Any, Row]:
    """The newest record of each key of ``rows``, without deleted keys."""
    newest = {key: few[-1] for key, few in rivals(rows, state).items()}
    return {key: row for key, row in newest.items() if not _deletes(row, state)}


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


def check(world: World, outlived: Sequence[Row] = (), unsure: Collection[Any] = ()) -> None:
    """The state equals the replay of all rows of the table, and of ``outlived`` rows, each key once.

    About ``unsure`` keys it may differ.
    """
    state = world.table.topic.state
    assert state is not None
    rows = state_rows(world)
    sure = [row for row in rows if identity(row, state) not in unsure]
    found = {identity(row, state): row for row in sure}
    assert len(found) == len(sure), "a key twice"
    wanted = replayed([*world.rows(), *outlived], state)
    names = {*rows[0]} if rows else set()
    assert found == {
        key: {name: row[name] for name in row if name in names} for key, row in wanted.items() if key not in unsure
    }
    ledger = StateTable.open(world.table).committed()
    assert (ledger.rows if ledger else 0) == len(rows)
