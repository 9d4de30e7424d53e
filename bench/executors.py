"""Speed-up from one executor to two, beside that of plain processes on the same tasks.

Executors of one core each on a standalone cluster with two workers, and threads of ``local[N]``. One session after the
other, since a process has only one; all rounds but the first of each count.
"""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Final

from bench.convert import clean, on_spark, plain, session, table_of
from bench.data import HOME, Data, Topic
from bench.measure import Row, Usage, metered
from tests.support.spark import SparkStandalone
from tidemark.table.delta_table import TopicTable

TOPICS: Final = (Topic("zstd", 1000),)
ROUNDS: Final = 3


def measure(made: Data) -> list[Row]:
    """Seconds of each, and the ratio of the medians."""
    [topic] = TOPICS
    raw = f"file://{made.raw(topic)}"

    def fresh() -> TopicTable:
        return table_of(topic, raw, f"file://{HOME}/local")

    rows: list[Row] = []
    speed_up: dict[str, float] = {}
    with SparkStandalone(HOME / "standalone") as cluster:
        for name, master in (("standalone, executors of 1 core", cluster.master_url), ("local[N]", "local")):
            found = [_spark(fresh, master, cores) for cores in (1, 2)]
            rows += _rows(name, found)
            speed_up[name] = _speed_up(found)
    found = [_plain(fresh, cores) for cores in (1, 2)]
    rows += _rows("plain processes", found)
    for name, ours in speed_up.items():
        ratio = ours / _speed_up(found)
        rows.append(Row("executors", f"{name}: speed-up beside plain processes (aim 0.95)", "ratio", (ratio,)))
    return rows


def _spark(fresh: Callable[[], TopicTable], master: str, cores: int) -> list[Usage]:
    if master == "local":
        spark = session(f"local[{cores}]")
    else:
        spark = session(master, **{"spark.cores.max": str(cores), "spark.executor.cores": "1"})
    try:
        return _rounds(lambda: on_spark(spark, fresh()))
    finally:
        spark.stop()


def _plain(fresh: Callable[[], TopicTable], cores: int) -> list[Usage]:
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:
        return _rounds(lambda: plain(pool, fresh()))


def _rounds(action: Callable[[], object]) -> list[Usage]:
    found: list[Usage] = []
    for _ in range(ROUNDS + 1):
        found.append(metered(action))
        clean()
    return found[1:]


def _rows(name: str, found: list[list[Usage]]) -> list[Row]:
    """``found`` with one and with two."""
    rows = [
        Row("executors", f"{name}: {cores}", "s", tuple(one.wall for one in usages), "plan to commit, zstd, warm")
        for cores, usages in enumerate(found, 1)
    ]
    return [*rows, Row("executors", f"{name}: speed-up from 1 to 2", "times", (_speed_up(found),), "of the medians")]


def _speed_up(found: list[list[Usage]]) -> float:
    one, two = (statistics.median(usage.wall for usage in usages) for usages in found)
    return one / two
