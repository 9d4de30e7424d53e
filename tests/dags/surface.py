"""The DAGs and their parameters as text, for a deployment with a topic that lands live and a catalog.

``dags.json`` has those of this tree; ``make surface`` writes it.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest
from airflow.dag_processing.dagbag import DagBag

from tests.golden import HERE
from tests.plugins.world import CLUSTER, World
from tests.support.paths import ROOT

LISTED: Final = HERE / "dags.json"

_RULES: Final = ("enum", "items", "format", "minimum", "maximum", "minLength", "maxLength", "pattern")


def text(folder: Path) -> str:
    """The content of the list's file; ``folder`` gets the deployment's files."""
    return json.dumps({"DAGs": _dags(folder)}, indent=1, sort_keys=True) + "\n"


def _dags(folder: Path) -> dict[str, str]:
    """The DAGs by id, and their parameters by id and name."""
    world = World(folder)
    world.write_topics(
        raw={"url": f"file://{folder}/raw"},
        lake=f"file://{folder}/lake",
        catalogs=[{"name": "central", "kind": "rest", "uri": "http://127.0.0.1:9", "namespace": "lake"}],
        topics=[{"topic": "orders", "cluster": CLUSTER, "freshness": "1m"}],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__TIDEMARK__TOPICS", str(world.topics_file))
        bag = DagBag(str(ROOT / "dags"))
    assert bag.import_errors == {}
    entries = dict.fromkeys(bag.dags, "DAG")
    for dag_id, dag in bag.dags.items():
        entries |= {f"{dag_id}.{name}": _parameter(dag.params.get_param(name)) for name in dag.params}
    return entries


def _parameter(parameter: Any) -> str:
    types = parameter.schema["type"]
    facts = [types if isinstance(types, str) else " or ".join(types)]
    facts += [f"{name} {parameter.schema[name]}" for name in _RULES if name in parameter.schema]
    return f"{' '.join(facts)} = {parameter.dump().get('value')}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        LISTED.write_text(text(Path(made)), encoding="utf-8")
