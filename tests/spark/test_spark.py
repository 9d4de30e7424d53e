"""The job on real Spark: killed at any point, on one machine and on a cluster; and its table in every engine."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_httpfs
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pytest
from deltalake import DeltaTable

from tests.spark.jobs.programs import Programs
from tests.spark.killed_driver import without_spark
from tests.spark.run.racer import PRELOADED
from tests.spark.run.test_runs import spread
from tests.spark.test_vacuum import OLDER, age_all
from tests.spark.world import Acting, World, in_process
from tests.support.jars import class_path
from tests.support.paths import ROOT
from tests.support.s3 import S3Server
from tests.support.spark import delta_conf, s3a_conf, small_jvm_env, spark_env, spark_submit
from tests.support.waiting import HUNG
from tests.tidemark.kafka_log.build import Record, batch, simple
from tidemark.cli.read_models import files_of
from tidemark.formats.table.plan import RunPlan, RunResult
from tidemark.planning import read_plan
from tidemark.table.delta_table import live_files
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark_spark.run.driver import run
from tidemark_spark.run.vacuum import vacuum

AFTER_THE_COMMIT = ("commit", "marks", "result")


POINTS = ("plan", "evidence", "ledger", "commit", "marks", "result")
"""Of the driver's own work."""


@pytest.mark.parametrize("point", POINTS)
def test_a_driver_killed_at_any_point_leaves_an_exact_table(world: World, point: str) -> None:
    """Its tasks are carried out in the process that is killed."""
    spread(world)
    world.raw.publish()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    arguments = ["--topics", str(world.topics_file), "--topic", "orders"]
    process = context.Process(target=without_spark, args=(point, arguments), daemon=True)
    process.start()
    process.join(HUNG)
    assert process.exitcode == -signal.SIGKILL
    check_mended(world, point)


@pytest.mark.parametrize("point", ["file", *(pytest.param(point, marks=pytest.mark.full) for point in POINTS)])
def test_a_driver_of_spark_that_is_killed_leaves_an_exact_table(starts_spark: None, world: World, point: str) -> None:
    """At ``file``, while its workers are at work."""
    spread(world)
    world.raw.publish()
    told = {"KILL_AT": point, "LAKE": str(world.topics_file.parent / "lake")}
    environment = spark_env(small_jvm_env() | told, env="dev")
    command = [sys.executable, "-m", "tests.spark.killed_driver", "--topics", str(world.topics_file)]
    killed = subprocess.run(
        [*command, "--topic", "orders", "--master", "local[2]"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    check_mended(world, point)


def check_mended(world: World, point: str) -> None:
    """After a driver was killed at ``point``, the table is exact, and the same attempt lands, once."""
    [plan] = _plans(world)
    assert world.ledger.n == (1 if point in AFTER_THE_COMMIT else 0)
    world.check()
    assert run(world.table, plan, in_process).status == "landed"
    world.check()
    assert (world.ledger.n, world.ledger.rows) == (1, 34)
    assert world.ledger.landed == (plan.attempt,)
    world.raw.segment([simple(22)])
    assert world.land().rows == 3
    check_directory(world)


@pytest.mark.full
def test_a_driver_tells_how_far_a_run_is(starts_spark: None, tmp_path: Path) -> None:
    env = spark_env(small_jvm_env() | {"PYTHONPATH": str(ROOT)}, env="dev")
    command = [sys.executable, "-m", "tests.spark.half_done", str(tmp_path)]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout == "[0, 1]\n", done.stderr[-2000:]


def check_directory(world: World) -> None:
    """Once every run is over and swept, in the directory lie the table and its quarantine, and nothing else."""
    age_all(world, OLDER)
    vacuum(world.table)
    world.check()
    landed = {f"orders/{one.path}" for one in live_files(DeltaTable(world.table.url))}
    refused = {
        f"orders__quarantine/{one.file}"
        for one in EffectiveEvidence.of(world.table).told().aside
        if one.offset_class == "quarantined"
    }
    lake = world.topics_file.parent / "lake"
    found = {f"{path.relative_to(lake)}" for path in lake.glob("orders*/dt=*/*") if path.name != "_SUCCESS"}
    assert found == landed | refused


def test_after_a_kill_a_new_attempt_lands_the_same(world: World) -> None:
    spread(world)
    world.raw.publish()
    dead = world.plan()

    @Acting
    def convert_and_die(*arguments: Any) -> Any:
        in_process.on_each(*arguments)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(world.table, dead, convert_and_die)
    assert world.land().rows == 34
    assert run(world.table, dead, in_process).status == "stale"
    world.check()
    lake = world.topics_file.parent / "lake"
    before = set(lake.glob("orders*/dt=*/*"))
    check_directory(world)
    assert before > set(lake.glob("orders*/dt=*/*"))


def _plans(world: World) -> list[RunPlan]:
    return [read_plan(world.table, one.key) for one in world.table.store.list(world.table.keys.attempts)]


class Deployed:
    """A raw store on a server, and several lakes."""

    def __init__(self, root: Path, server: S3Server) -> None:
        self.root, self.server = root, server
        self._name = root.name
        self.worlds: dict[str, World] = {}

    def world(self, name: str) -> World:
        """The deployment with the lake ``name``."""
        if name not in self.worlds:
            raw, lake = f"s3://raw/{self._name}", f"s3://lake/{self._name}-{name}"
            self.worlds[name] = World(self.root / name, raw=raw, lake=lake)
        return self.worlds[name]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Any:
    """A raw store with three dates, landed once."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.env().items():
            patch.setenv(name, value)
        found = Deployed(tmp_path_factory.mktemp("deployed"), s3_server)
        raw = found.world("local").raw
        spread(found.world("local"))
        raw.segment([batch(0, [Record(0, headers=[("a", b"1"), ("a", None)]), Record(1, key=None, value=b"")])], 2)
        result = found.world("local").land()
        assert (result.status, result.rows, result.quarantined) == ("landed", 36, 2)
        yield found


@pytest.mark.full
def test_every_engine_reads_the_same_rows(starts_spark: None, deployed: Deployed) -> None:
    table = deployed.world("local").table
    files = [one["url"] for one in files_of(table, None)]
    expected = _plain(table.by_delta_rs().to_pyarrow_table().to_pylist())
    assert len(expected) == 36
    pattern = f"{table.url}/dt=*/*.parquet"
    assert _plain(_duckdb(deployed.server, files)) == expected
    assert _plain(_duckdb(deployed.server, [pattern])) == expected
    store = pyarrow.fs.S3FileSystem(
        endpoint_override=deployed.server.endpoint.removeprefix("http://"), scheme="http", region="us-east-1"
    )
    paths = [url.removeprefix("s3://") for url in files]
    hive = ds.partitioning(pa.schema([("dt", pa.date32())]), flavor="hive")
    assert _plain(ds.dataset(paths, filesystem=store, partitioning=hive).to_table().to_pylist()) == expected
    jars = os.pathsep.join(class_path(name) for name in ("spark-s3a", "delta-spark"))
    conf = {
        **s3a_conf(deployed.server.endpoint),
        **delta_conf(),
        "spark.driver.extraClassPath": jars,
        "spark.executor.extraClassPath": jars,
    }
    url = table.url.replace("s3://", "s3a://")
    script = ROOT / "tests" / "spark" / "read_delta.py"
    output = spark_submit(script, url, f"{url}/dt=*/*.parquet", conf=conf, env=deployed.server.env())
    seen = json.loads(output.strip().splitlines()[-1])
    assert seen["delta"] == seen["parquet"] == expected


def _duckdb(server: S3Server, urls: list[str]) -> list[dict[str, Any]]:
    environment = server.env()
    [extension] = duckdb_extension_httpfs.__path__
    connection = duckdb.connect()
    connection.load_extension(f"{extension}/extensions/v{duckdb.__version__}/httpfs.duckdb_extension")
    connection.execute(
        f"CREATE SECRET (TYPE s3, KEY_ID '{environment['AWS_ACCESS_KEY_ID']}', "
        f"SECRET '{environment['AWS_SECRET_ACCESS_KEY']}', REGION 'us-east-1', "
        f"ENDPOINT '{server.endpoint.removeprefix('http://')}', URL_STYLE 'path', USE_SSL false)"
    )
    # To show a time in a zone, DuckDB wants one more extension; a number needs none.
    query = (
        "SELECT * REPLACE (epoch_us(kafka_timestamp) AS kafka_timestamp) FROM read_parquet(?, hive_partitioning = true)"
    )
    found = connection.execute(query, [urls])
    names = [column[0] for column in found.description or ()]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def _plain(rows: list[dict[str, Any]]) -> list[list[Any]]:
    """Rows as JSON has them, sorted."""
    return sorted(
        [
            row["kafka_incarnation"],
            row["kafka_partition"],
            row["kafka_offset"],
            _microseconds(row["kafka_timestamp"]),
            _hex(row["kafka_key"]),
            _hex(row["kafka_value"]),
            [f"{one['key']}={_hex(one['value']) or 'null'}" for one in row["kafka_headers"]],
            str(row["dt"]),
        ]
        for row in rows
    )


def _microseconds(value: datetime | int) -> int:
    return value if isinstance(value, int) else round(value.timestamp() * 1_000_000)


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex().upper()


@pytest.mark.essential
def test_the_job_rebuilds_and_says_what_it_would_do(deployed: Deployed, on_spark: Programs) -> None:
    from tidemark_spark.jobs.running import run_job

    world = deployed.world("local")
    before = world.ledger
    arguments = ["--topics", str(world.topics_file), "--topic", "orders"]
    dates = ["--from", "2026-02-02", "--to", "2026-02-03"]
    assert run_job("rebuild", [*arguments, *dates, "--dry-run"]) == 0
    assert run_job("rebuild", arguments) == 2
    assert run_job("rebuild", [*arguments[:3], "nothing", *dates]) == 2
    assert world.ledger == before
    rows = world.rows()
    done = on_spark.job("rebuild", [*arguments, *dates, "--extend"])  # which reads raw twice
    assert done.code == 0, done.errors[-3000:]
    result = RunResult.from_bytes(done.output.splitlines()[-1].encode(), "output")
    assert (result.status, result.dates) == ("landed", ("2026-02-02", "2026-02-03"))
    assert world.rows() == rows
    world.check()
    # A plain read of the directory sees what was replaced as well, until the files are cleaned up.
    assert len(_duckdb(deployed.server, [f"{world.table.url}/dt=*/*.parquet"])) > len(rows)


def test_an_empty_plan_starts_no_spark(world: World, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    session = importlib.import_module("tidemark_spark.cluster.session")
    monkeypatch.setattr(session, "started", lambda *_: pytest.fail("Spark was started"))
    from tidemark_spark.jobs.running import run_job

    world.raw.publish()
    assert run_job("ingest", ["--topics", str(world.topics_file), "--topic", "orders"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "empty"
