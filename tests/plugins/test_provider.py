"""What Airflow knows of the package as of a provider: by its own schema, its own manager, and its own commands."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.resources
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped] # Airflow installs it, and no stubs
import pytest
from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin
from airflow.providers_manager import ProvidersManager

from tests.support.paths import ROOT, env_bin
from tidemark_airflow import configuration
from tidemark_airflow.options import OPTIONS as LISTED
from tidemark_airflow.plugin import TidemarkPlugin
from tidemark_airflow.provider import get_provider_info

OPTIONS = {one.name: one for one in LISTED}


def test_the_information_follows_airflows_schema() -> None:
    schema = json.loads((importlib.resources.files("airflow") / "provider_info.schema.json").read_text())
    jsonschema.Draft7Validator(schema).validate(get_provider_info())


def test_airflow_finds_the_provider_and_its_options() -> None:
    manager: Any = ProvidersManager  # untyped
    provider = manager().providers["tidemark-kafka"]
    assert provider.data | get_provider_info() == provider.data
    described = conf.configuration_description["tidemark"]["options"]
    assert described.keys() == OPTIONS.keys()
    assert {name: one["default"] for name, one in described.items()} == {k: v.default for k, v in OPTIONS.items()}


def test_the_page_lists_every_option_with_its_default() -> None:
    page = (ROOT / "docs" / "airflow.md").read_text(encoding="utf-8")
    table = page.partition("| option | default | meaning |\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.MULTILINE)
    assert [name for name, _ in rows] == [*OPTIONS]
    defaults = {name: option.default for name, option in OPTIONS.items() if option.default is not None}
    assert {name: default.strip("`") for name, default in rows if name in defaults} == defaults


def test_whatever_is_named_is_there() -> None:
    info = get_provider_info()
    modules = [
        name for kind in ("operators", "sensors", "triggers") for one in info[kind] for name in one["python-modules"]
    ]
    assert modules
    for name in modules:
        importlib.import_module(name)
    for name in (*info["notifications"], *info["extra-links"]):
        module, _, cls = name.rpartition(".")
        assert isinstance(getattr(importlib.import_module(module), cls), type)


def test_the_plugin_has_an_entry_point_of_its_own() -> None:
    [found] = importlib.metadata.entry_points(group="airflow.plugins", name="tidemark")
    assert found.load() is TidemarkPlugin
    assert issubclass(TidemarkPlugin, AirflowPlugin)


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("topics", "/etc/topics.yaml", "/etc/topics.yaml"),
        ("approvers", " ada,,grace ", ["ada", "grace"]),
        ("scan_seconds", "2.5", 2.5),
    ],
)
def test_the_environment_sets_an_option(name: str, value: str, read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"AIRFLOW__TIDEMARK__{name.upper()}", value)
    reader: Any = {str: configuration.option, list: configuration.names, float: configuration.number}[type(read)]
    assert reader(name) == read


@pytest.mark.full
def test_airflows_commands_show_it(tmp_path: Path) -> None:
    env = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__TIDEMARK__TOPICS": "/etc/topics.yaml"}

    def airflow(*arguments: str) -> str:
        done = subprocess.run(
            [env_bin("airflow", "airflow"), *arguments],
            env=env,
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
        )
        return done.stdout

    assert "tidemark-kafka" in airflow("providers", "list")
    assert "Kafka's log segments" in airflow("providers", "get", "tidemark-kafka", "--full", "--output", "json")
    assert airflow("config", "get-value", "tidemark", "topics").strip().endswith("/etc/topics.yaml")
    assert airflow("config", "get-value", "tidemark", "scan_seconds").strip().endswith("10")
    listed = airflow("config", "list", "--section", "tidemark", "--defaults")
    assert not [name for name in OPTIONS if name not in listed]
    assert "TidemarkPlugin" in airflow("plugins", "--output", "json")
