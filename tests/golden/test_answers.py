"""The JSON of commands is compared with its list wherever a test runs a command; here, the comparison itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.golden.answers import LISTED, ObservedAnswers, add, surprises
from tests.golden.surface import PRESENT, read
from tidemark.cli.app import app

ANSWER: dict[str, Any] = {
    "n": 1, "share": 0.5, "note": None, "names": [], "rows": [{"a": "x", "b": 1}, {"a": "y"}],
    "dates": {"2026-01-01": 2},
}  # fmt: skip
OF_ANSWER = {
    "$": "object",
    "$.n": "integer",
    "$.share": "number",
    "$.note": "null",
    "$.names": "array",
    "$.rows": "array",
    "$.rows[]": "object",
    "$.rows[].a": "string",
    "$.rows[].b": "absent | integer",
    "$.dates": "object",
    "$.dates{}": "integer",
}


def test_each_command_with_json_is_listed() -> None:
    commands = {name.split(" --output")[0] for name in read(PRESENT)["commands"] if " --output" in name}
    assert commands == read(LISTED).keys()


def test_an_answer_is_listed_by_paths_and_types() -> None:
    listed: dict[str, str] = {}
    add(listed, ANSWER)
    assert listed == OF_ANSWER
    add(listed, ANSWER | {"n": "one", "more": True})
    assert listed == OF_ANSWER | {"$.n": "integer | string", "$.more": "absent | boolean"}


@pytest.mark.parametrize(
    ("changed", "messages"),
    [
        ({}, []),
        ({"share": 1}, []),
        ({"note": "seen for the first time"}, []),
        ({"note": {"of": ["any", "kind"]}}, []),
        ({"names": ["seen", "now"]}, []),
        ({"rows": []}, []),
        ({"dates": {"2026-01-02": 3, "2026-01-03": 4}}, []),
        ({"n": 1.5}, ["$.n is number, and answers.json lists integer"]),
        ({"more": 1}, ["$.more is integer, and answers.json lists nothing"]),
        ({"names": "a"}, ["$.names is string, and answers.json lists array"]),
        ({"rows": [{"b": 1}]}, ["$.rows[].a is absent"]),
        ({"dates": {"2026-01-01": "2"}}, ["$.dates{} is string, and answers.json lists integer"]),
    ],
)
def test_what_is_not_listed_is_a_surprise(changed: dict[str, Any], messages: list[str]) -> None:
    assert surprises(OF_ANSWER, ANSWER | changed) == messages


def test_a_field_that_is_gone_is_a_surprise() -> None:
    assert surprises(OF_ANSWER, {name: value for name, value in ANSWER.items() if name != "n"}) == ["$.n is absent"]


def test_commands_are_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    observed = ObservedAnswers(add=False)
    monkeypatch.setattr(typer, "echo", observed.echo)
    paths = json.loads(CliRunner().invoke(app, ["paths", "--output", "json"]).stdout)
    assert observed.surprises == []
    observed.listed["tidemark paths"] = {"$": "object", **{f"$.{name}": "integer" for name in paths}}
    CliRunner().invoke(app, ["paths", "--output", "json"])
    assert observed.surprises == [
        f"tidemark paths: $.{name} is string, and answers.json lists integer" for name in paths
    ]
