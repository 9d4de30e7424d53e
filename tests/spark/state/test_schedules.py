"""Random schedules of records, elections, replays, rebuilds, erasures, compactions and runs that die at any write.

The state equals an independent replay after every run that commits: of the rows that the table has, and of those that
retention removed, as far as they were the last of their key and partition when the state last saw them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from tests.spark.erasing.masked import killed
from tests.spark.erasing.test_schedules import Schedule
from tests.spark.run.test_truncation import FUNCTION
from tests.spark.state.replay import MOMENTS, Row, advance, check, expire, identity, rivals
from tests.spark.state.test_removed import PAST_T0
from tests.spark.test_vacuum import Died
from tests.spark.world import in_process
from tidemark.formats.table.statuses import AUDIT_PARTS
from tidemark.planning import plan_compaction, plan_rebuild, plan_replay
from tidemark.table.state_table import StateTable
from tidemark.topics import StateSettings
from tidemark_spark.state.audit import audit_state

STATE: Final = "state: {}"
SETTINGS: Final = ((STATE,), (STATE, FUNCTION))
COLUMNS: Final = "parser: {kind: json, columns: [{name: rank, type: int64}, {name: id, type: string}]}"
CHANGES: Final = (
    "parser: {kind: json, columns: [{name: type, type: string}, {name: xid, type: int64}, "
    "{name: id, type: int64, path: data.id}, {name: name, type: string, path: data.name}]}"
)
"""Maxwell's."""

Place = tuple[int, int, int]


def place(row: Row) -> Place:
    """Partition, offset and leader epoch, which name one record of any branch."""
    return row["kafka_partition"], row["kafka_offset"], row["kafka_leader_epoch"]


class StateSchedule(Schedule):
    """A topic of two partitions, its table, and its state table."""

    settings_of: tuple[tuple[str, ...], ...] = SETTINGS
    values: tuple[bytes | None, ...] = (b"fine!", b"bad", b"", b"longer than others", None, None)
    retention = "{erased: 0s, table: 30d, apply: true}"

    def __init__(self, root: Path, rng: random.Random) -> None:
        super().__init__(root, rng)
        self.kept: set[Place] = set()
        self.outlived: dict[Place, Row] = {}
        self.masked: set[tuple[int, int]] = set()

    def advance(self) -> None:
        """A run of the state, after which it equals the replay."""
        result = advance(self.world, rebuild=self.rng.random() < 0.1)
        assert result.status in {"committed", "empty"}
        state = self.world.table.topic.state
        assert state is not None
        here = {place(row) for row in self.world.rows()}
        unsure = {identity(row, state) for at, row in self.outlived.items() if at[:2] in self.masked}
        check(self.world, [row for at, row in self.outlived.items() if at not in here], unsure)
        self._keep(state)
        self.outlived = {at: row for at, row in self.outlived.items() if at in self.kept}

    def _keep(self, state: StateSettings) -> None:
        """Note the records that the state keeps of all those that it sees now."""
        known = {place(row): row for row in (*self.outlived.values(), *self.world.rows())}
        self.kept = {place(row) for few in rivals(known.values(), state).values() for row in few}

    def land(self) -> None:
        """Land all; what was cut off is gone for the state, too."""
        super().land()
        self._forget()

    def carry_out(self) -> None:
        """The same with what was erased."""
        super().carry_out()
        self.masked |= self.erased
        self._forget()

    def _forget(self) -> None:
        for at in [at for at in self.outlived if self.log.get(at[:2], (None, -1))[1] != at[2] or at[:2] in self.erased]:
            del self.outlived[at]

    def expire(self) -> None:
        """Retention removes one or two of the three dates."""
        before = {place(row): row for row in self.world.rows()}
        expire(self.world, PAST_T0 - timedelta(days=self.rng.randrange(2)))
        gone = before.keys() - {place(row) for row in self.world.rows()}
        self.outlived |= {at: before[at] for at in gone & self.kept}

    def expire_unseen(self) -> None:
        """Retention removes dates while a run of the state has their rows."""
        assert self.world.table.topic.state is not None
        self._keep(self.world.table.topic.state)
        self.expire()

    def die(self) -> None:
        """A run that dies at any write, or ends."""
        try:
            with killed(self.rng.randrange(8), lambda: self.rng.random() < 0.5):
                advance(self.world)
        except Died:
            pass
        self.advance()

    def race(self) -> None:
        """A run that another overtakes, or whose rows are taken away before it commits."""
        self.land()
        change = self.rng.choice((self.carry_out, lambda: advance(self.world), self.land, self.expire_unseen))
        result = advance(self.world, meanwhile=change, after=self.rng.choice(MOMENTS))
        assert result.status in {"committed", "stale", "empty"}
        self.advance()

    def step(self) -> None:
        """Anything."""
        table = self.world.table
        steps: list[Callable[[], None]] = [
            self.produce,
            self.land,
            self.land,
            self.elect,
            self.ask,
            self.carry_out,
            self.advance,
            self.advance,
            self.die,
            self.race,
            self.expire,
            lambda: self.again(lambda: plan_rebuild(table, None)),
            lambda: self.again(lambda: plan_compaction(table, files=3)),
            lambda: self.again(lambda: plan_replay(table)),
        ]
        self.rng.choice(steps)()


def run_schedule(root: Path, rng: random.Random, kind: type[StateSchedule]) -> None:
    """A schedule of random length, and at its end an audit of a part of the keys."""
    schedule = kind(root, rng)
    schedule.produce()
    for _ in range(rng.randint(6, 16)):
        schedule.step()
    schedule.produce()
    schedule.land()
    schedule.advance()
    part = rng.randrange(AUDIT_PARTS)
    assert audit_state(StateTable.open(schedule.world.table), part, in_process).findings == ()


class OrderedSchedule(StateSchedule):
    """The order is that of a column, which some records lack; none is deleted."""

    settings_of = (
        ("state: {order: [rank]}", COLUMNS),
        ("state: {key: id, order: rank}", COLUMNS),
    )
    values = tuple(
        json.dumps({"rank": rank, "id": name}).encode() for rank in (None, 1, 2, 3, 4) for name in ("a", "b", None)
    )


class MaxwellSchedule(StateSchedule):
    """Envelopes of Maxwell's, with keys by record and by column, and with an order or without one."""

    settings_of = tuple(
        (f"state: {{envelope: maxwell{more}}}", CHANGES)
        for more in ("", ", key: [id]", ", key: [id, name]", ", key: id, order: xid", ", order: [xid]")
    )
    values = (
        None,
        *(
            json.dumps({"type": word, "xid": xid, "data": {"id": xid % 3, "name": name}}).encode()
            for word in ("insert", "update", "update", "delete", "bootstrap-start")
            for xid in range(5)
            for name in ("ada", "bob")
        ),
        json.dumps({"type": "bootstrap-insert", "data": {"id": 1, "name": "ada"}}).encode(),
    )


KINDS: Final = (StateSchedule, StateSchedule, OrderedSchedule, MaxwellSchedule)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", range(4))
def test_every_schedule_leaves_what_a_replay_leaves(
    tmp_path: Path, rng: random.Random, full: bool, number: int
) -> None:
    for turn in range(250 if full else 1):
        run_schedule(tmp_path / str(turn), rng, KINDS[number])
