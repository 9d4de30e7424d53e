"""Spark Connect: runs the tasks on a running server, without a driver or a JVM in this process.

Connect has neither RDDs nor broadcasts, so a run is one query over a local table with a row and a partition for each
task. The function of the query carries what the tasks share, and a worker gets only the rows of its own partition. The
client uploads a larger table in pieces, so no message grows with the number of tasks. The server's workers need the
Python environment that spark-submit's workers have; nothing else is uploaded.
"""

from __future__ import annotations

import atexit
import pickle
import signal
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np
import pyarrow as pa
from typing_extensions import override

from tidemark.decode.schema import array, variable
from tidemark.errors import SparkUnavailable
from tidemark_spark.cluster.executor import Shipment, in_worker, worker_error
from tidemark_spark.model import Common, Executor, Given, Made

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.connect.shell.progress import ProgressHandler, StageInfo

_FIELDS: list[pa.Field[Any]] = [pa.field("task", pa.int64()), pa.field("made", pa.binary())]
_OUTCOME = pa.schema(_FIELDS)
_CONNECT_SECONDS = 30.0
_LOCAL_PARTITIONS = "spark.sql.leafNodeDefaultParallelism"


class Connected(Executor):
    """A session of a Spark Connect server, opened with the first tasks."""

    def __init__(self, remote: str, name: str) -> None:
        """``remote`` is the server's URL; ``name`` is shown on its pages."""
        self._remote, self._name = remote, name
        self._session: SparkSession | None = None
        self._finished = 0

    @override
    def on_each(self, work: Callable[[Common, Given], Made], common: Common, tasks: Sequence[Given]) -> list[Made]:
        """Results of ``work`` for each task, which Spark schedules and repeats like a task of an RDD.

        Raises:
            SparkUnavailable: no server answers.
            TaskFailed: a task failed for good with one of Tidemark's errors.
        """
        if not tasks:
            return []
        if self._session is None:
            self._session = opened(self._remote, self._name)
            # Spark's type asks for a subclass, but Spark calls any function with these parameters.
            self._session.registerProgressHandler(cast("ProgressHandler", self._note))
        from pyspark.errors import PySparkException

        driver, shared, given = Shipment.of(work, common, tasks)
        packed = _pack((driver, shared))
        numbers = pa.array(range(len(tasks)), pa.int64())
        rows = pa.table({"task": numbers, "given": [zlib.compress(one, 1) for one in given]})
        # A local table has at most this many partitions, and as many rows in each of them as in any other.
        self._session.conf.set(_LOCAL_PARTITIONS, len(tasks))
        try:
            each = self._session.createDataFrame(rows)
            made = each.mapInArrow(lambda batches: _carry_out(packed, batches), "task long, made binary").toArrow()
        except PySparkException as error:
            if failure := worker_error(str(error)):
                raise failure from error
            raise
        return [_unpack(cast("bytes", result)) for result in made.column("made").to_pylist()]

    @override
    def finished(self) -> int:
        """As the server last reported."""
        return self._finished

    def _note(self, *, stages: Iterable[StageInfo] | None, **_: object) -> None:
        self._finished = sum(stage.num_completed_tasks for stage in stages or ())


@cache
def opened(remote: str, name: str) -> SparkSession:
    """A session that is released when this process ends; the server then stops its running queries.

    That also holds for SIGTERM. After a SIGKILL the server releases the session itself, after five minutes by default.

    Raises:
        SparkUnavailable: no server answers.
    """
    from pyspark.sql.connect.session import SparkSession

    _await(remote)
    session = SparkSession.builder.remote(remote).getOrCreate()
    atexit.register(session.stop)
    signal.signal(signal.SIGTERM, _end)
    session.addTag(name.replace(",", " "))
    return session


def _await(remote: str) -> None:
    """Wait for the server; Spark's own client would try for ten minutes before it fails.

    Raises:
        SparkUnavailable: no connection is made in time. The message omits the URL, since it may hold a token.
    """
    import grpc
    from pyspark.sql.connect.client import DefaultChannelBuilder

    builder = DefaultChannelBuilder(remote)
    with builder.toChannel() as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_CONNECT_SECONDS)
        except grpc.FutureTimeoutError as error:
            rule = f"no Spark Connect server answers within {_CONNECT_SECONDS:.0f} s"
            raise SparkUnavailable(
                f"{builder.endpoint}: {rule}; does it run, and is --remote or SPARK_REMOTE right?"
            ) from error


def _carry_out(packed: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Results of the tasks in the rows, computed in a worker."""
    driver, shared = _shipped(packed)
    for batch in batches:
        for number, given in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            made = np.frombuffer(_pack(in_worker(driver, shared, zlib.decompress(cast("bytes", given)))), np.uint8)
            ends = np.array([0, len(made)], np.int32)
            columns = [array(pa.int64(), np.array([number])), variable(pa.binary(), ends, made)]
            yield pa.RecordBatch.from_arrays(columns, schema=_OUTCOME)


@lru_cache(maxsize=1)
def _shipped(packed: bytes) -> tuple[str, bytes]:
    """What tasks share, which a worker process unpacks once: plain values, which all versions can read."""
    driver, shared = _unpack(packed)
    return driver, shared


def _pack(content: object) -> bytes:
    return zlib.compress(pickle.dumps(content), 1)


def _unpack(packed: bytes) -> Any:
    """The content of bytes that this job and its own workers exchange."""
    return pickle.loads(zlib.decompress(packed))  # noqa: S301 # only bytes of this job and its workers are unpickled


def _end(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)
