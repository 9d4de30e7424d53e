from __future__ import annotations

from typing import Any

import pytest

from release.materials import bill_of_materials, validated
from release.results import CheckFailed
from release.workspace import Workspace
from tests.support.paths import ROOT, env_python


@pytest.fixture(scope="module")
def bill(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The bill of materials of a broker host's environment."""
    space = Workspace(ROOT, tmp_path_factory.mktemp("work"), ROOT / "dist", ROOT, env_python("dev").parent)
    return bill_of_materials(space, env_python("agent"))


def test_a_bill_has_the_package_and_its_dependencies(bill: dict[str, Any]) -> None:
    assert bill["metadata"]["component"]["name"] == "tidemark-kafka"
    components = {component["name"]: component for component in bill["components"]}
    assert components.keys() >= {"boto3", "kafka-python", "structlog"}
    assert components["structlog"]["purl"].startswith("pkg:pypi/structlog@")
    assert validated(bill) == validated(bill)


def test_a_bill_with_an_address_is_refused(bill: dict[str, Any]) -> None:
    first, *others = bill["components"]
    with pytest.raises(CheckFailed, match="an address"):
        validated(bill | {"components": [first | {"description": "see https://registry.example/a"}, *others]})


def test_a_bill_against_the_schema_is_refused(bill: dict[str, Any]) -> None:
    with pytest.raises(CheckFailed, match="does not fit its schema"):
        validated(bill | {"components": [{"name": "a"}]})
