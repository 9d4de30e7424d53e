"""Airflow's side uses what Airflow promises to keep, and each exception has a reason.

Airflow's page "Public Interface for Airflow 3.0+" lists what is public: the names of ``airflow.sdk``, exceptions,
triggers, plugins, the interface of auth managers, and the hooks, operators and triggers of providers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import airflow.sdk

from tests.support.paths import ROOT

PUBLIC_MODULES = re.compile(
    r"airflow\.sdk\.(exceptions|types)|airflow\.triggers\.base|airflow\.plugins_manager"
    r"|airflow\.api_fastapi\.auth\.managers\.base_auth_manager"
    r"|airflow\.providers(\.\w+)+\.(hooks|operators|sensors|triggers|extractors)(\.\w+)?"
)
EXCEPTIONS = {
    "airflow.configuration": "the configuration of the API server and the triggerer as well",
    "airflow.sdk.execution_time.context": "the events of assets that are no inlets of the task: the topics of a "
    "backfill and of a live landing are known when they run",
    "airflow.api_fastapi.app": "the auth manager in use, which the page asks for rights",
    "airflow.api_fastapi.core_api.security": "the signed-in user; a plugin's application has no sign-in of its own",
    "airflow.models.asset": "readers of a table: the REST API shows a part of the references",
    "airflow.models.dag": "the teams of DAGs, for rights",
    "airflow.models.dagrun": "the form of a run whose approval is asked for, before Airflow acts on the request",
    "airflow.utils.session": "the database of these models, in the API server alone",
    "airflow.providers.openlineage": "whether lineage is sent",
    "airflow.providers.amazon.aws.utils.connection_wrapper": "the endpoint in a connection of type aws",
}


class Import(NamedTuple):
    """A name that a file takes from a module of Airflow's."""

    path: Path
    module: str
    name: str

    @property
    def is_public(self) -> bool:
        if self.name.startswith("_"):
            return False
        if self.module == "airflow.sdk":
            return self.name in airflow.sdk.__all__
        return PUBLIC_MODULES.fullmatch(self.module) is not None


def imports(text: str, path: Path = Path("a file")) -> Iterator[Import]:
    """What ``text`` imports of Airflow; of a module that is imported as a whole, the name is empty."""
    for node in ast.walk(ast.parse(text)):
        found: list[tuple[str, str]] = []
        if isinstance(node, ast.ImportFrom) and not node.level:
            found = [(node.module or "", alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found = [(alias.name, "") for alias in node.names]
        yield from (Import(path, module, name) for module, name in found if module.split(".")[0] == "airflow")


def files() -> list[Path]:
    return sorted(path for folder in ("plugins", "dags") for path in (ROOT / folder).rglob("*.py"))


def test_only_public_names_of_airflow_are_imported() -> None:
    used = [found for path in files() for found in imports(path.read_text(encoding="utf-8"), path)]
    private = [found for found in used if not found.is_public]

    assert len(used) > len(private) > 0
    assert [found for found in private if found.module not in EXCEPTIONS or found.name.startswith("_")] == []
    assert {found.module for found in private} == set(EXCEPTIONS), "an exception that nobody needs"


def test_a_private_name_is_noticed() -> None:
    text = "from airflow.sdk.execution_time.comms import X\nfrom airflow.sdk import DAG, _Hidden\nimport airflow.models"
    assert [(found.module, found.name) for found in imports(text) if not found.is_public] == [
        ("airflow.sdk.execution_time.comms", "X"),
        ("airflow.sdk", "_Hidden"),
        ("airflow.models", ""),
    ]


def test_a_running_task_is_reached_by_the_context_alone() -> None:
    """``ti.task`` is Airflow's object of the process that runs the task."""
    reached = re.compile(r"\bti(\"\])?\.task\b|\[\"ti\"\]\.task\b|\._(\w+)_context\b")
    assert [path for path in files() if reached.search(path.read_text(encoding="utf-8"))] == []
