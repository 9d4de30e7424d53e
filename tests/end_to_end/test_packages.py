"""From a broker's segment to a table, by environments that are installed from the wheel: the checkout takes no part."""

from __future__ import annotations

import json
import random
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest

from tests.end_to_end.deployment import SmallDeployment
from tests.end_to_end.rows import consumed, landed
from tests.end_to_end.test_whole_path import SMALL, plain
from tests.support.airflow import AirflowStack
from tests.support.distributions import Installed, distributions, install
from tests.support.paths import ROOT
from tests.support.pipeline import pipeline_env
from tests.support.waiting import HUNG, wait_until
from tidemark.table.delta_table import committed_ledger

pytestmark = pytest.mark.full

PACKAGES = {
    "agent": "tidemark tidemark.cli uploader_agent.cli",
    "airflow": "tidemark tidemark_airflow.dag_factories.ingest tidemark_airflow.web.app",
    "spark": "tidemark tidemark_spark.jobs.run_plan tidemark.decode tidemark.parsers",
}


@dataclass(frozen=True)
class Environments:
    """Three environments. ``opened`` names the files of the checkout that a Python process of theirs has opened."""

    folder: Path
    log: Path

    def program(self, name: str, program: str) -> Path:
        return self.folder / name / "bin" / program

    def run(self, name: str, program: str, *arguments: str | Path, env: dict[str, str] | None = None) -> str:
        """What a program prints that ends well, run from a folder where there is nothing."""
        done = subprocess.run(
            [self.program(name, program), *arguments],
            cwd=self.folder,
            env={"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), **(env or {})},
            capture_output=True,
            text=True,
            timeout=HUNG,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def opened(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Environments:
    folder = tmp_path_factory.mktemp("installed")
    [wheel] = distributions(folder / "dist").glob("*.whl")
    for name in get_args(Installed):
        install(name, wheel, folder, folder / "opened.log")
    return Environments(folder, folder / "opened.log")


def test_what_opens_a_file_of_the_checkout_is_seen(installed: Environments) -> None:
    for name in PACKAGES:
        before = len(installed.opened())
        installed.run(name, "python", "-c", f"open({str(ROOT / 'dags' / 'ingest.py')!r})")
        assert len(installed.opened()) == before + 1
    installed.log.write_text("")


@pytest.mark.parametrize("name", PACKAGES)
def test_an_environment_has_what_its_part_imports(installed: Environments, name: str) -> None:
    modules = PACKAGES[name].split()
    script = f"import sys, {', '.join(modules)}; print([p for p in sys.path if p.startswith({str(ROOT)!r})])"
    assert installed.run(name, "python", "-c", script).splitlines()[-1] == "[]"
    assert installed.opened() == []


def test_a_segment_becomes_rows_of_a_table(
    starts_airflow: None, installed: Environments, small: SmallDeployment, tmp_path: Path, rng: random.Random
) -> None:
    topic = small.topics[0]
    small.kafka.create_topic(topic, partitions=3, config=SMALL)
    plain(small.kafka.bootstrap, topic, "zstd", rng)
    installed.run("agent", "tidemark-agent", "upload-once", "--config", small.agent_file, env=small.s3.env())

    folders = json.loads(installed.run("airflow", "tidemark", "paths", "--output", "json"))
    env = small.s3.env() | pipeline_env(small.topics_file, tmp_path / "spark-conf", scan_seconds=0.5)
    spark = installed.program("spark", "python")
    [home] = spark.parents[1].glob("lib/python3.*/site-packages/pyspark")
    env |= dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "AIRFLOW__TIDEMARK__SPARK_PYTHON"), str(spark))
    env |= {"SPARK_HOME": str(home), "AIRFLOW__TIDEMARK__SPARK_SUBMIT": str(spark.with_name("spark-submit"))}
    rows = consumed(small.kafka.bootstrap, topic)
    with AirflowStack(
        tmp_path / "airflow",
        dags=Path(folders["dags"]),
        env=env,
        unpaused=[f"tidemark_ingest__test__{topic}"],
        program=installed.program("airflow", "airflow"),
    ) as airflow:
        wait_until(lambda: committed_ledger(small.table(topic)).rows == len(rows), what="all records to land")
        assert airflow.client.get("/importErrors")["import_errors"] == []
        assert "tidemark" in {one["name"] for one in airflow.client.get("/plugins")["plugins"]}
    assert set(landed(small.table(topic))) == rows
    assert installed.opened() == []
