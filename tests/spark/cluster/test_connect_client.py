"""What a client of Spark Connect sends: nothing of it but the table of tasks grows with their number."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from tidemark_spark.cluster import connect_client, executor
from tidemark_spark.cluster.connect_client import Connected

Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class LocalSession:
    """A session that runs a query here, each partition by itself."""

    def __init__(self) -> None:
        self.conf = self
        self.settings: dict[str, int] = {}
        self.closure = b""
        self._rows = pa.table({})

    def registerProgressHandler(self, handler: object) -> None:  # noqa: N802 - Spark's name
        """Nobody asks for progress."""

    def set(self, name: str, value: int) -> None:
        """A setting of the session."""
        self.settings[name] = value

    def createDataFrame(self, rows: pa.Table) -> LocalSession:  # noqa: N802 - Spark's name
        """The local table."""
        self._rows = rows
        return self

    def mapInArrow(self, function: Function, _schema: str) -> LocalSession:  # noqa: N802 - Spark's name
        """The function, and what is sent with it."""
        self._function = function
        self.closure = pickle.dumps(inspect.getclosurevars(function).nonlocals)
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        """The results of all partitions, the last one first."""
        [partitions] = self.settings.values()
        size = -(-len(self._rows) // partitions)
        made: list[pa.RecordBatch] = []
        for start in reversed(range(0, len(self._rows), size)):
            made += self._function(iter(self._rows.slice(start, size).to_batches()))
        return pa.Table.from_batches(made)


def doubled(common: int, task: int) -> int:
    return common * task


def closure(tasks: int) -> tuple[bytes, dict[str, int]]:
    session = LocalSession()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connect_client, "opened", lambda *_: session)
        made = Connected("sc://nowhere", "tests").on_each(doubled, 2, range(tasks))
    assert sorted(made) == [2 * task for task in range(tasks)]
    return session.closure, session.settings


def test_what_is_sent_with_each_task_does_not_grow_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "_spare_collector", lambda: None)  # this process has other tests to run
    few, settings = closure(2)
    many, more = closure(2000)
    assert len(many) == len(few)
    assert (settings, more) == (
        {"spark.sql.leafNodeDefaultParallelism": 2},
        {"spark.sql.leafNodeDefaultParallelism": 2000},
    )
