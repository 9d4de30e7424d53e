"""Jobs load Spark only with their first tasks, and run without a JVM until then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.world import World
from tests.support.paths import ROOT
from tests.tidemark.kafka_log.build import simple
from tidemark.jobs.registry import JOBS
from tidemark_spark.jobs.running import run_job

RUN = """
import runpy, sys
path, *sys.argv[1:] = sys.argv[1:]
try:
    runpy.run_path(path, run_name="__main__")
except SystemExit as ended:
    print(ended.code, "pyspark" in sys.modules, "tidemark_spark.run" in sys.modules)
"""

DRIVER = """
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from tidemark_spark.jobs.running import run_job

class Workers:
    def on_each(self, work, common, tasks):
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            return list(pool.map(work, [common] * len(tasks), tasks))

    def finished(self):
        return 0

for name in ("compact_live", "land_live", "repair", "replay", "retain_packs", "run_plan", "state", "vacuum"):
    import_module(f"tidemark_spark.jobs.{name}")
for name, more in (("ingest", []), ("rebuild", ["--all"]), ("audit", [])):
    print(name, run_job(name, [*sys.argv[1:], *more], Workers()), "numba" in sys.modules)
"""


def loaded(name: str, *arguments: str) -> str:
    """The exit code of a job in a new process, and if it has loaded pyspark, and the package of runs."""
    path = str(ROOT / "spark" / "jobs" / f"{name}.py")
    command = [sys.executable, "-c", RUN, path, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A table with one segment, of which all has landed."""
    made = World(tmp_path)
    made.raw.segment([simple(0)])
    made.land()
    made.land()
    return made


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("ingest", ()),
        ("compact", ()),
        ("vacuum", ()),
        ("retain", ()),
        ("erase", ()),
        ("replay", ()),
        ("state", ("--due",)),
    ],
)
def test_a_run_without_tasks_loads_no_spark(world: World, name: str, more: tuple[str, ...]) -> None:
    assert loaded(name, "--topics", str(world.topics_file), "--topic", "orders", *more).split()[1] == "False"


def test_only_workers_load_numba(world: World) -> None:
    """It takes a driver 90 MB. Those of erase and warm_up are rare, and compare or load kernels."""
    world.raw.segment([simple(3)])
    world.raw.publish()
    words = ["--topics", str(world.topics_file), "--topic", "orders", "--lineage", "off"]
    command = [sys.executable, "-c", DRIVER, *words]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    told = [line for line in lines if line.split()[0] in {"ingest", "rebuild", "audit"}]
    assert told == ["ingest 0 False", "rebuild 0 False", "audit 0 False"]


@pytest.mark.parametrize("name", JOBS)
def test_a_wrong_command_line_loads_only_what_reads_it(name: str) -> None:
    assert loaded(name, "--nothing") == "2 False False"


def test_the_jobs_that_need_no_spark_are_those_that_convert_nothing() -> None:
    assert {job.name for job in JOBS.values() if not job.needs_spark} == {"retain", "retain_packs", "vacuum", "mirror"}


def test_an_error_before_the_work_is_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--topics", str(tmp_path / "none.yaml"), "--topic", "orders"]
    assert run_job("vacuum", arguments) == 2
    assert "none.yaml: does not exist" in capsys.readouterr().err
