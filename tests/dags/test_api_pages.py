"""The examples of docs/api/airflow.md and docs/api/notifiers.md, as Airflow takes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag

from tests.support.paths import ROOT
from tidemark_airflow.notifications import notifiers
from tidemark_airflow.provider import get_provider_info

API = ROOT / "docs" / "api"


def test_the_dags_of_the_page_parse(tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", (API / "airflow.md").read_text(), re.DOTALL)
    for number, example in enumerate(examples):
        (tmp_path / f"example_{number}.py").write_text(example)
    bag = DagBag(str(tmp_path))
    assert not bag.import_errors
    tasks = {name: [task.task_type for task in dag.tasks] for name, dag in bag.dags.items()}
    assert tasks == {"report_orders": ["_PythonDecoratedOperator"], "mirror_daily": ["JobOperator"]}


def test_the_notifiers_of_the_page_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    [value] = re.findall(r"```json\n(.*?)```", (API / "notifiers.md").read_text(), re.DOTALL)
    monkeypatch.setenv("AIRFLOW__TIDEMARK__NOTIFIERS", value.replace("\n", ""))
    assert sorted(notifiers.configured()) == ["hook", "log"]


def test_every_class_that_the_provider_lists_is_on_a_page() -> None:
    text = "".join(page.read_text() for page in API.glob("*.md"))
    info = get_provider_info()
    modules = [name for kind in ("operators", "sensors") for one in info[kind] for name in one["python-modules"]]
    missing = [name for name in modules if f"::: {name}." not in text]
    assert [*missing, *(name for name in info["notifications"] if f"::: {name}\n" not in text)] == []
