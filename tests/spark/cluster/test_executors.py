"""Tasks that die, fail or run twice, and runs of any parallelism: the files are the same, byte for byte."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tests.spark.jobs.programs import Programs
from tests.spark.world import World, in_process
from tests.support.paths import ROOT
from tests.support.s3 import S3Server
from tests.support.spark import SparkStandalone, small_jvm_conf, small_jvm_env, spark_env, spark_submit
from tests.tidemark.kafka_log.build import T0, Record, batch
from tests.tidemark.parsers.test_avro import V1, V2, encoded, framed
from tests.tidemark.parsers.test_protobuf import order, order_file
from tidemark import raw_topic
from tidemark.formats.table.plan import RunResult
from tidemark.planning import plan_ingest, write_plan
from tidemark.raw import byte_ranges
from tidemark_spark.run.driver import run

pytestmark = pytest.mark.timeout(900)

JOB = ROOT / "spark" / "jobs" / "ingest.py"
ATTEMPT = 7
SHARED = "local[2]"
"""The master of ``on_spark``."""
UNRULY = "parser: {kind: function, function: 'tests.spark.convert.unruly:sizes', columns: [{name: size, type: int32}]}"
PARSERS = {
    "none": "time_zone: UTC",
    "json": "parser: {kind: json, columns: [{name: id, type: int64}, {name: name, type: string, path: user.name}]}",
    "avro": "parser: {kind: avro, schema: orders.avsc, framing: confluent, schemas: ids}",
    "protobuf": "parser: {kind: protobuf, descriptors: set.pb, message: shop.Order}",
}


def value_of(kind: str, number: int) -> bytes:
    """A value for a parser; the schema of Avro evolves in the midst of each batch, and some values are refused."""
    if number % 17 == 16:
        return b"\xff{"
    if kind == "json":
        return json.dumps({"id": number, "user": {"name": "x" * (number % 9)}}).encode()
    if kind == "avro":
        newer = number % 10 >= 5
        record = {"a": number, "b": "y"} if newer else {"a": number, "gone": "x"}
        return framed(2 if newer else 1, encoded(V2 if newer else V1, record))
    if kind == "protobuf":
        return order(id=number, name="n" * (number % 7), sizes={"m": 2, "a": 1})
    return b"%d" % number * 20


def upload(world: World, kind: str) -> None:
    """Three partitions of two segments, of compressed and plain batches in turn, over three dates."""
    for partition in range(3):
        for segment in range(2):
            base = 80 * segment
            world.raw.segment(
                [
                    batch(
                        base + 10 * i,
                        [
                            Record(k, T0 + k % 3 * 86_400_000 + i, b"k%d" % k, value_of(kind, base + 10 * i + k))
                            for k in range(10)
                        ],
                        ("none", "zstd", "lz4", "gzip")[i % 4],
                    )
                    for i in range(8)
                ],
                partition,
            )
    world.raw.publish()


def schemas(folder: Path) -> None:
    """The files that PARSERS name."""
    (folder / "ids").mkdir()
    (folder / "orders.avsc").write_text(json.dumps(V2))
    for number, schema in ((1, V1), (2, V2)):
        (folder / "ids" / f"{number}.avsc").write_text(json.dumps(schema))
    (folder / "set.pb").write_bytes(FileDescriptorSet(file=[order_file()]).SerializeToString())


class Runs:
    """Deployments with the same raw objects and each with a table of its own, which all have the same plan.

    What one of them makes in this process, task after task, is what all others must make: ``expected``.
    """

    def __init__(self, root: Path, kind: str, settings: str, raw: str | None = None) -> None:
        """Raw lies under ``root``, unless ``raw`` is a URL elsewhere."""
        self._root, self._settings = root, settings
        root.mkdir()
        self._raw = raw or f"file://{root}/raw"
        first = self._world("first")
        upload(first, kind)
        plan = plan_ingest(first.table, attempt=ATTEMPT)
        write_plan(first.table, plan)
        self.tasks = len(plan.tasks)
        assert run(first.table, plan, in_process).status == "landed"
        first.check()
        self.expected = data(first)

    def planned(self, name: str, lake: str | None = None) -> World:
        """One more deployment, with its plan written; ``lake`` is a URL if it is to lie elsewhere."""
        world = self._world(name, lake)
        write_plan(world.table, plan_ingest(world.table, attempt=ATTEMPT))
        return world

    def _world(self, name: str, lake: str | None = None) -> World:
        folder = self._root / name
        folder.mkdir()
        schemas(folder)
        return World(folder, self._settings, raw=self._raw, lake=lake)


def data(world: World) -> dict[str, bytes]:
    """All that a table's and its quarantine's files hold, by path."""
    table = world.table.keys.root
    start = len(table) - len("orders")
    found = [one.key for folder in (table, f"{table}__quarantine") for one in world.table.store.list(f"{folder}/dt=")]
    return {key[start:]: world.table.store.get(key).body for key in found if key.endswith(".parquet")}


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments are cut into many tasks."""
    for module in (raw_topic, byte_ranges):
        monkeypatch.setattr(module, "TARGET_BYTES", 1024)


@pytest.mark.usefixtures("small_tasks")
def test_any_parallelism_gives_the_same_bytes(tmp_path: Path, full: bool, on_spark: Programs) -> None:
    runs = {kind: Runs(tmp_path / kind, kind, settings) for kind, settings in PARSERS.items()}
    assert all(one.tasks > 5 for one in runs.values())
    masters = ("local[1]", "local[4]", SHARED) if full else (SHARED,)
    for master in masters:
        worlds = {kind: one.planned(master) for kind, one in runs.items()}
        arguments = [master, *(str(world.topics_file) for world in worlds.values())]
        if master == SHARED:
            done = on_spark.run("tests.spark.cluster.at_parallelism", *arguments)
            assert done.code == 0, done.errors[-3000:]
        else:
            command = [sys.executable, "-m", "tests.spark.cluster.at_parallelism", *arguments]
            env = spark_env(small_jvm_env(), env="dev")
            subprocess.run(command, env=env, cwd=ROOT, check=True, timeout=600, stdout=subprocess.PIPE)
        for kind, world in worlds.items():
            world.check()
            assert data(world) == runs[kind].expected, (kind, master)
    files = sum(len(one.expected) for one in runs.values())
    sys.stdout.write(f"{files} files byte-equal on each of {', '.join(masters)} and without Spark\n")


MISHAPS = {
    "worker dies": {},
    "executor dies": {},
    "fails": {},
    "lingers": {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.multiplier": "1.1",
    },
}
"""What happens to a task, and the settings that make Spark answer to it."""


@pytest.mark.parametrize(
    "mishap",
    ["executor dies", *(pytest.param(one, marks=pytest.mark.full) for one in ("lingers", "worker dies", "fails"))],
)
def test_a_task_that_dies_or_runs_twice_changes_nothing(
    mishap: str,
    tmp_path: Path,
    spark_standalone: SparkStandalone,
    s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a cluster, with a bucket: it makes the table that is made in this process, byte for byte."""
    for name, value in s3_server.env().items():
        monkeypatch.setenv(name, value)
    unique = f"cluster-{uuid.uuid4().hex}"
    runs = Runs(tmp_path / "runs", "bytes", UNRULY, raw=f"s3://raw/{unique}")
    world = runs.planned("cluster", lake=f"s3://lake/{unique}")
    folder = tmp_path / "unruly"
    folder.mkdir()
    armed = {"TIDEMARK_UNRULY": str(folder), "TIDEMARK_MISHAP": mishap, "PYTHONPATH": str(ROOT)}
    conf = {
        **{f"spark.executorEnv.{name}": value for name, value in armed.items()},
        **MISHAPS[mishap],
        **small_jvm_conf(),
    }
    arguments = ("--topics", str(world.topics_file), "--topic", "orders", "--attempt", str(ATTEMPT))
    env = {"PYTHONPATH": str(ROOT), **s3_server.env()}
    output = spark_submit(JOB, *arguments, master=spark_standalone.master_url, conf=conf, env=env)
    result = RunResult.from_bytes(output.strip().splitlines()[-1].encode(), "output")
    assert result.status == "landed"
    marks = {path.name for path in folder.iterdir()}
    assert marks == {"lingers": {"lingered", "overtaken"}, "fails": {"failed"}}.get(mishap, {"died"})
    world.check()
    assert data(world) == runs.expected
