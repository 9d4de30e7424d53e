"""The jobs on a Spark Connect server: the same bytes, and nothing left on the server whatever becomes of the client."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.spark.cluster.test_executors import ATTEMPT, JOB, PARSERS, UNRULY, Runs, data
from tests.spark.cluster.test_versions import REFUSAL
from tests.spark.compaction.test_compaction import delta_rows, piecemeal
from tests.spark.jobs.programs import Programs
from tests.spark.run.test_runs import spread
from tests.spark.world import World
from tests.support.paths import ROOT, env_python
from tests.support.spark import ConnectServer
from tests.support.waiting import HUNG, wait_until
from tidemark import raw_topic
from tidemark.backfill.report import Comparison
from tidemark.errors import ConfigError
from tidemark.formats.table.audit_report import AuditReport
from tidemark.formats.table.plan import RunResult
from tidemark.jobs.registry import IngestOptions
from tidemark.raw import byte_ranges
from tidemark_spark.cluster.target import ClusterTarget
from tidemark_spark.jobs.running import run_job


@pytest.fixture(scope="module")
def mishaps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a test names the mishap of its tasks, in the file ``mishap``."""
    return tmp_path_factory.mktemp("mishaps")


@pytest.fixture(scope="module")
def server(starts_spark: None, mishaps: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """Two cores, and each task is tried twice."""
    armed = {"TIDEMARK_UNRULY": str(mishaps), "TIDEMARK_MISHAP": "told", "PYTHONPATH": str(ROOT)}
    with ConnectServer(tmp_path_factory.mktemp("connect"), master="local[2,2]", env=armed) as connect:
        yield connect


@pytest.fixture
def mishap(mishaps: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The folder of what happened; the mishap is the test's parameter."""
    (mishaps / "mishap").write_text(request.param)
    yield mishaps
    for path in mishaps.iterdir():
        path.unlink()


@pytest.fixture(scope="module")
def unruly(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """What is to be landed by tasks to which the mishap happens."""
    return Runs(tmp_path_factory.mktemp("unruly") / "runs", "bytes", UNRULY)


def arguments_of(world: World) -> list[str]:
    """The job's."""
    return ["--topics", str(world.topics_file), "--topic", "orders", "--attempt", str(ATTEMPT)]


def submitted(world: World, server: ConnectServer) -> subprocess.Popen[str]:
    """The job, as Airflow starts it, but that nothing secret is in its way here."""
    env = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return subprocess.Popen(
        [str(env_python("spark")), str(JOB), *arguments_of(world)],
        env={**env, "SPARK_REMOTE": server.url, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def landed(server: ConnectServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Runs, World]:
    """What was to be landed, and the deployment in which a job has landed it, whose session has ended."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (raw_topic, byte_ranges):
            patch.setattr(module, "TARGET_BYTES", 1024)
        runs = Runs(tmp_path_factory.mktemp("connected") / "runs", "avro", PARSERS["avro"])
        world = runs.planned("connect")
    before = server.online_sessions()
    output, errors = submitted(world, server).communicate(timeout=300)
    assert json.loads(output.splitlines()[-1])["status"] == "landed", errors[-2000:]
    assert server.online_sessions() == before
    return runs, world


@pytest.fixture(scope="module")
def warm(server: ConnectServer) -> None:
    """The server's workers were warmed up, by a session that has ended."""
    before = server.online_sessions()
    job = [str(env_python("spark")), str(ROOT / "spark" / "jobs" / "warm_up.py"), "--workers", "4"]
    env = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    subprocess.run(job, env=env | {"SPARK_REMOTE": server.url}, check=True, timeout=HUNG)
    wait_until(lambda: server.online_sessions() == before, what="the session to be released")


@pytest.fixture(scope="module")
def client(server: ConnectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """A client of the server for several jobs, one after the other."""
    env = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    log = tmp_path_factory.mktemp("client") / "client.log"
    with Programs(env_python("spark"), env | {"SPARK_REMOTE": server.url}, log) as programs:
        yield programs


def test_a_connect_server_makes_the_same_bytes(landed: tuple[Runs, World]) -> None:
    runs, world = landed
    assert runs.tasks > 5
    world.check()
    assert data(world) == runs.expected


@pytest.mark.usefixtures("warm", "landed")
def test_sessions_share_workers(server: ConnectServer) -> None:
    """Each has ended, and left no daemon of its own."""
    [daemon] = [one for one in psutil.Process(server.process.pid).children() if is_daemon(one)]
    assert any("llvmlite" in part.path for part in daemon.memory_maps()), "it has loaded what its workers need"


def test_a_server_must_be_named_to_be_warmed_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    assert run_job("warm_up", []) == 2
    assert capsys.readouterr().err == "Spark Connect: --remote, or SPARK_REMOTE: must name the server to warm up\n"


def is_daemon(process: psutil.Process) -> bool:
    """Whether it is one of Spark's, and lives."""
    try:
        return "tidemark_spark.cluster.python_daemon" in process.cmdline()
    except psutil.NoSuchProcess:  # a zombie too
        return False


@pytest.mark.full
@pytest.mark.parametrize("mishap", ["fails", "worker dies"], indirect=True)
def test_a_task_that_fails_is_tried_again(unruly: Runs, server: ConnectServer, mishap: Path) -> None:
    world = unruly.planned((mishap / "mishap").read_text())
    output, errors = submitted(world, server).communicate(timeout=300)
    assert json.loads(output.splitlines()[-1])["status"] == "landed", errors[-2000:]
    assert {path.name for path in mishap.iterdir()} & {"failed", "died"}
    assert data(world) == unruly.expected


@pytest.mark.parametrize("mishap", ["always fails"], indirect=True)
def test_a_task_that_always_fails_fails_the_job(unruly: Runs, client: Programs, mishap: Path) -> None:
    world = unruly.planned("always fails")
    done = client.job("ingest", arguments_of(world))
    assert done.code == 1
    assert f"planted by {mishap.name}" in done.errors
    assert world.ledger.n == 0


@pytest.mark.parametrize("mishap", ["beats"], indirect=True)
def test_what_is_ended_leaves_nothing_on_the_server(unruly: Runs, server: ConnectServer, mishap: Path) -> None:
    before = server.online_sessions()
    job = submitted(unruly.planned("is ended"), server)
    beat = mishap / "beat"
    wait_until(beat.exists, what="the task to run")
    assert server.running_jobs() == 1
    job.terminate()
    job.communicate(timeout=HUNG)
    assert job.returncode == 128 + signal.SIGTERM
    wait_until(lambda: server.running_jobs() == 0, what="the server to end the job")
    assert server.online_sessions() == before
    wait_until(lambda: time.time() - beat.stat().st_mtime > 1, what="the worker to be ended")


def test_the_server_tells_how_far_a_run_is(tmp_path: Path, client: Programs) -> None:
    done = client.run("tests.spark.half_done", str(tmp_path))
    assert done.output == "[0, 1]\n", done.errors[-2000:]


def test_each_task_has_a_partition_of_its_own_however_many_there_are(client: Programs) -> None:
    """Their 4 MiB are uploaded in pieces."""
    done = client.run("tests.spark.many_tasks", "256")
    assert done.output == "256 256\n", done.errors[-2000:]


def answer(world: World, client: Programs, job: str, *arguments: str) -> list[str]:
    """The last lines that a job prints, which runs on the server."""
    words = ["--topics", str(world.topics_file), *arguments]
    done = client.run(job, words) if "." in job else client.job(job, words)
    assert done.code == 0, done.errors[-2000:]
    return done.output.strip().splitlines()[-3:]


def test_the_audit_runs_on_spark(tmp_path: Path, client: Programs) -> None:
    world = World(tmp_path)
    spread(world)
    world.land()
    report = AuditReport.from_bytes(answer(world, client, "audit", "--json")[-1].encode(), "output")
    assert report.passed, report.text()
    assert [one.rows for one in report.partitions] == [17, 17]


@pytest.mark.full
def test_a_comparison_runs_on_spark(tmp_path: Path, client: Programs) -> None:
    world = World(tmp_path)
    spread(world)
    world.land()
    last = answer(world, client, "rebuild", "--topic", "orders", "--all", "--compare")[-1]
    compared = Comparison.from_bytes(last.encode(), "output")
    assert (compared.differences, compared.rows, world.ledger.n) == ((), 34, 1)


def test_compaction_runs_on_spark(tmp_path: Path, client: Programs) -> None:
    world = World(tmp_path)
    piecemeal(world)
    rows = delta_rows(world)
    told, _, last = answer(world, client, "tests.spark.compaction.of_few_files", "--topic", "orders")
    assert told.startswith("2026-02-03: 6 files of 2 partitions")
    result = RunResult.from_bytes(last.encode(), "output")
    assert (result.status, result.rows, result.files) == ("landed", 30, 4)
    assert delta_rows(world) == rows
    world.check()


def where(*arguments: str) -> ClusterTarget:
    """What a job's command line says."""
    return ClusterTarget.of(IngestOptions.parse(["--topics", "topics.yaml", "--topic", "orders", *arguments]))


def test_the_environment_names_the_server_unless_there_is_a_master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:15002")
    assert where() == ClusterTarget(None, "sc://127.0.0.1:15002")
    assert where("--remote", "sc://[::1]:1/;use_ssl=true") == ClusterTarget(None, "sc://[::1]:1/;use_ssl=true")
    assert where("--master", "local[2]") == ClusterTarget("local[2]", None)


@pytest.mark.parametrize("url", ["spark://host:7077", "sc://", "sc://host:port", "sc://host:15002/path", "host:15002"])
def test_a_server_is_named_by_its_url_which_no_message_repeats(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", f"{url}/;token=opens-everything")
    with pytest.raises(ConfigError, match="must be sc://host:port") as raised:
        where()
    assert "opens-everything" not in str(raised.value)


def test_workers_of_a_server_of_another_version_refuse(server: ConnectServer) -> None:
    done = subprocess.run(
        [env_python("spark"), "-m", "tests.spark.cluster.other_version", "0.0.1", server.url],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=HUNG,
    )
    assert done.stdout == f"ConfigError: {REFUSAL}", done.stderr
