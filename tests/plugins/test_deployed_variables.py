"""``AIRFLOW__TIDEMARK__…`` wherever the repository sets or names them: each is an option, and Airflow reads its value.

A misspelled variable of an environment is silent: Airflow keeps the default.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.paths import ROOT
from tidemark_airflow import configuration, settings
from tidemark_airflow.options import OPTIONS

PREFIX: Final = "AIRFLOW__TIDEMARK__"
NAMED: Final = re.compile(rf"{PREFIX}([A-Z0-9_]+)")
DECLARED: Final = {one.name for one in OPTIONS}
SETS: Final = ("docker-compose.yaml", "docker", "deploy", "demo", "docs", "README.md", "CONTRIBUTING.md")
DEFAULT: Final = re.compile(r"\$\{[A-Z_]+:-(.*?)\}")


def undeclared(text: str) -> set[str]:
    """The variables in ``text`` that no option declares."""
    return {f"{PREFIX}{name}" for name in NAMED.findall(text) if name.lower() not in DECLARED}


def environments() -> dict[str, Mapping[str, str]]:
    """What each container of Airflow's gets, by its name. Compose puts in the default where nobody sets a variable."""
    compose = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())
    values = yaml.safe_load((ROOT / "deploy" / "helm" / "airflow" / "values.yaml").read_text())
    found: dict[str, Any] = {"chart": {one["name"]: one["value"] for one in values["env"]}}
    for name, service in compose["services"].items():
        set_here = service.get("environment") or {}
        if any(one.startswith(PREFIX) for one in set_here):
            found[name] = {one: DEFAULT.sub(r"\1", str(value)) for one, value in set_here.items()}
    return found


ENVIRONMENTS: Final = environments()


def test_the_variables_of_every_file_are_options() -> None:
    command = ["git", "ls-files", *SETS]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    texts = {one: (ROOT / one).read_bytes().decode(errors="replace") for one in listed.stdout.splitlines()}
    assert {one: found for one, text in texts.items() if (found := undeclared(text))} == {}
    assert {one for one, text in texts.items() if NAMED.search(text)} >= {
        "docker-compose.yaml",
        "docker/airflow.Dockerfile",
    }


def test_a_misspelled_variable_is_found() -> None:
    assert undeclared(f"{PREFIX}TOPICS: a\n{PREFIX}TOPIC: b\n") == {f"{PREFIX}TOPIC"}


def test_each_of_airflows_containers_is_known() -> None:
    assert len(ENVIRONMENTS) > 4
    assert all(f"{PREFIX}TOPICS" in found for found in ENVIRONMENTS.values())


@pytest.mark.parametrize("container", ENVIRONMENTS)
def test_airflow_reads_what_a_container_sets(container: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for one in DECLARED:
        monkeypatch.delenv(f"{PREFIX}{one.upper()}", raising=False)
    given = {name: value for name, value in ENVIRONMENTS[container].items() if name.startswith(PREFIX)}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    read = {name: configuration.option(name.removeprefix(PREFIX).lower()) for name in given}
    assert read == given
    assert settings.topics_file() == Path(given[f"{PREFIX}TOPICS"])
    assert settings.spark_job("ingest.py") == Path(given[f"{PREFIX}SPARK_JOBS"]) / "ingest.py"
    assert all(configuration.number(option.name) > 0 for option in OPTIONS if option.type in {"float", "integer"})
