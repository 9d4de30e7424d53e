"""What is imported before Airflow forks: nothing that a task or a DAG file of Tidemark needs is left for the fork."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

_LATER = """
import json, sys
from airflow import settings
sys.argv = ["airflow", *sys.argv[1:]]
settings.initialize()
early = set(sys.modules)
from airflow.dag_processing.dagbag import DagBag
bag = DagBag()
assert not bag.import_errors and len(bag.dags) > 5, bag.import_errors
print(json.dumps({"early": sorted(early), "later": sorted(set(sys.modules) - early)}))
"""
_OF_A_LANDING = (
    *("settings", "planned", "assets/events", "assets/outbox", "links/operator_links"),
    *("operators/landing", "operators/spark_job", "sensors/watermark"),
    *("submitters/choice", "submitters/environment"),
    *("submitters/child_processes", "submitters/template"),
)
"""The modules of ``tidemark_airflow`` that the tasks of a landing run."""

_OURS_AND_HEAVY = {"botocore", "deltalake", "numpy", "pyarrow", "pydantic", "tidemark", "tidemark_airflow"}


def modules(folder: Path, command: str) -> dict[str, set[str]]:
    """The modules that a command of Airflow has imported with its settings, and later for all DAG files."""
    world = folder / "topics.yaml"
    world.write_text(
        f"raw: {{url: 'file://{folder}/raw'}}\nlake: 'file://{folder}/lake'\ncluster: east\n"
        "topics:\n  - topic: orders\n  - {topic: clicks, freshness: 20s}\n"
    )
    home = folder / "airflow"
    (home / "config").mkdir(parents=True)
    (home / "config" / "airflow_local_settings.py").write_text(
        (ROOT / "deploy" / "airflow_local_settings.py").read_text()
    )
    env = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__TIDEMARK__TOPICS": str(world),
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _LATER, command], env=env, check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return {name: set(listed) for name, listed in found.items()}


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    return modules(tmp_path_factory.mktemp("scheduler"), "scheduler")


def test_dag_files_import_nothing_more(scheduler: dict[str, set[str]]) -> None:
    assert not {name for name in scheduler["later"] if name.partition(".")[0] in _OURS_AND_HEAVY}


def imported_in_functions(path: Path) -> set[str]:
    """The modules of Tidemark that the functions of a file import."""
    tree = ast.parse(path.read_text())
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    found = (node for function in functions for node in ast.walk(function) if isinstance(node, ast.ImportFrom))
    return {node.module for node in found if node.module and node.module.startswith("tidemark")}


def test_a_landing_imports_nothing_more(scheduler: dict[str, set[str]]) -> None:
    files = [ROOT / "plugins" / "tidemark_airflow" / f"{name}.py" for name in _OF_A_LANDING]
    wanted = {name for path in files for name in imported_in_functions(path)}
    assert "tidemark.table.delta_table" in wanted
    missing = wanted - scheduler["early"]
    assert not missing


def test_other_commands_import_nothing_of_it(tmp_path: Path) -> None:
    """Such as the API server, which forks no task, and the command line, which shall answer soon."""
    found = modules(tmp_path, "version")
    assert "tidemark.planning" not in found["early"]
