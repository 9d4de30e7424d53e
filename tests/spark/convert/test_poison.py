"""A topic with poison of each kind, on real Spark: all else lands in one run, and what is said of the poison holds."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tests.spark.convert.poison import IN_DECODER, KINDS, LIMITS, REASONS, SETTINGS
from tests.spark.jobs.programs import Programs
from tests.spark.world import World
from tests.support.paths import ROOT
from tests.support.spark import SparkStandalone, spark_submit
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark.formats.table.plan import RunResult
from tidemark_spark.model import StepLimits

pytestmark = pytest.mark.timeout(900)

PROGRAM = ROOT / "tests" / "spark" / "convert" / "limited.py"
ROWS = 50
"""Records of a batch."""
DAY = 86_400_000
CONTAINER: Final = 2200 << 20
"""Bytes of an executor and its workers: less than a worker may take by the topic's limits, and more than by half."""


def records(*poison: bytes) -> list[Record]:
    """A batch's records on two dates, of which some are poison."""
    values = [b"value %d" % i for i in range(ROWS)]
    values[7 : 7 + len(poison)] = poison
    return [Record(i, T0 + i % 2 * DAY, b"k%d" % i, value, [("h", b"x")]) for i, value in enumerate(values)]


def upload(world: World, kinds: list[bytes]) -> dict[tuple[int, int], str]:
    """Poison in partition 0, in batches in 1, none in 2; returns the reasons by partition and offset."""
    world.raw.segment([batch(0, records()), batch(ROWS, records(*kinds)), batch(2 * ROWS, records())], 0)
    large = [Record(0, T0, None, bytes(65 << 20))]
    world.raw.segment(
        [batch(0, records(), "lz4"), batch(ROWS, records(IN_DECODER), "lz4"), batch(100, large, "zstd")], 1
    )
    world.raw.segment([batch(0, records()), batch(ROWS, records(), "zstd")], 2)
    world.raw.publish()
    found = {(0, ROWS + 7 + i): REASONS[kind].format(memory=1 << 30) for i, kind in enumerate(kinds)}
    found[1, ROWS] = "converting it ends the process by SIGSEGV"
    found[1, 2 * ROWS] = "zstd: more than 67108864 bytes when decompressed, which is the bound of a batch"
    return found


def arguments_of(world: World, job: str, limits: StepLimits = LIMITS) -> list[str]:
    """Those of the program that runs the job with these limits."""
    given = [job, str(limits.memory), str(limits.seconds), str(limits.rate)]
    return [*given, "--topics", str(world.topics_file), "--topic", "orders"]


def submitted(world: World, job: str, *options: str, limits: StepLimits = LIMITS, **more: Any) -> str:
    """The last line of what a job prints; it must end with code 0."""
    arguments = (*arguments_of(world, job, limits), *options)
    output = spark_submit(PROGRAM, *arguments, env={"PYTHONPATH": str(ROOT)}, **more)
    return output.strip().splitlines()[-1]


def check(world: World, reasons: dict[tuple[int, int], str]) -> None:
    """All but the poison has landed, and that is in quarantine, whole."""
    world.check()
    refused = {(row["kafka_partition"], row["kafka_offset"]): row for row in world.quarantine()}
    assert {key: row["reason"] for key, row in refused.items()} == reasons
    assert world.classes(0) == {"landed": 3 * ROWS - (len(reasons) - 2), "quarantined": len(reasons) - 2}
    assert world.classes(1) == {"landed": ROWS, "quarantined": ROWS + 1}
    assert world.classes(2) == {"landed": 2 * ROWS}
    for (partition, offset), row in refused.items():
        assert row["parser"] == "function/tests.spark.convert.poison:sizes/1"
        if partition == 0:
            index = offset - ROWS
            assert (row["kafka_key"], row["timestamp_ms"]) == (b"k%d" % index, T0 + index % 2 * DAY)
            assert (row["kafka_value"] in KINDS, row["kafka_headers"]) == (True, [{"key": "h", "value": b"x"}])
            assert row["batch"] is None
    batches = [batch(ROWS, records(IN_DECODER), "lz4"), batch(100, [Record(0, T0, None, bytes(65 << 20))], "zstd")]
    found = [(refused[1, at]["batch"], refused[1, at]["next_offset"]) for at in (ROWS, 2 * ROWS)]
    assert found == [(batches[0], 2 * ROWS), (batches[1], 2 * ROWS + 1)]


def test_poison_costs_its_own_place_and_nothing_else(tmp_path: Path, on_spark: Programs) -> None:
    world = World(tmp_path, *SETTINGS)
    reasons = upload(world, [b"poison: segfault", b"poison: exit", b"poison: stall", b"poison: raise"])
    done = on_spark.run("tests.spark.convert.limited", *arguments_of(world, "ingest"))
    assert done.code == 0, done.errors[-3000:]
    result = RunResult.from_bytes(done.output.splitlines()[-1].encode(), "output")
    assert (result.status, result.quarantined) == ("landed", 4 + ROWS + 1)
    check(world, reasons)


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("where", ["local", "standalone"])
def test_what_is_said_of_poison_holds(where: str, tmp_path: Path, spark_standalone: SparkStandalone) -> None:
    """Every kind, with a rebuild, a comparison, a replay and an audit, each of which meets it again."""
    more: dict[str, Any] = {"master": "local[2]", "timeout": 600}
    if where == "standalone":
        conf = {"spark.executorEnv.PYTHONPATH": str(ROOT)}
        more |= {"master": spark_standalone.master_url, "conf": conf}
    world = World(tmp_path, *SETTINGS)
    reasons = upload(world, list(KINDS))
    assert json.loads(submitted(world, "ingest", **more))["status"] == "landed"
    check(world, reasons)
    assert json.loads(submitted(world, "ingest", **more))["status"] == "empty"
    before = world.rows()
    submitted(world, "rebuild", "--all", "--compare", **more)
    assert json.loads(submitted(world, "rebuild", "--all", **more))["status"] == "landed"
    check(world, reasons)
    assert world.rows() == before
    assert json.loads(submitted(world, "replay", **more))["status"] == "empty"
    submitted(world, "audit", **more)
    check(world, reasons)


class Containers:
    """Ends an executor with all that it has started when they take more than ``limit`` bytes, as a platform does."""

    def __init__(self, cluster: SparkStandalone, limit: int) -> None:
        self._cluster, self._limit = cluster, limit
        self.ended = 0

    @contextmanager
    def watching(self) -> Iterator[Containers]:
        """While this lasts."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.02):
                for worker in self._cluster.workers:
                    for executor in psutil.Process(worker.pid).children():
                        self._look_at(executor)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield self
        finally:
            over.set()
            thread.join()

    def _look_at(self, executor: psutil.Process) -> None:
        with suppress(psutil.NoSuchProcess):
            family = [executor, *executor.children(recursive=True)]
            if sum(map(_resident, family)) > self._limit:
                self.ended += 1
                for one in family:
                    with suppress(psutil.NoSuchProcess):
                        one.kill()


def _resident(process: psutil.Process) -> int:
    """0 of one that has ended."""
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


@pytest.mark.full
def test_a_record_whose_memory_costs_whole_executors_costs_its_own_place_alone(
    tmp_path: Path, spark_standalone: SparkStandalone
) -> None:
    """A container that is smaller than the limits: two executors are lost, and the third attempt may take half."""
    world = World(tmp_path, *SETTINGS)
    limits = StepLimits(LIMITS.batch, 2 << 30, 60.0)
    reasons = upload(world, [b"poison: grow"])
    conf = {"spark.executorEnv.PYTHONPATH": str(ROOT), "spark.executor.memory": "512m"}
    with Containers(spark_standalone, CONTAINER).watching() as containers:
        last = submitted(world, "ingest", limits=limits, master=spark_standalone.master_url, conf=conf, timeout=600)
    assert json.loads(last)["status"] == "landed"
    check(world, reasons)
    assert containers.ended == 2
