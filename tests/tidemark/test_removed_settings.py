"""A key that was removed is an error that says what takes its place."""

from __future__ import annotations

from typing import ClassVar

import pytest

from tidemark.config import Settings, parse
from tidemark.errors import ConfigError


class _Engine(Settings):
    removed: ClassVar = {"fuel": "each engine takes what its tank holds"}

    power: int = 1


class _Ship(Settings):
    removed: ClassVar = {
        "colour": "a ship is grey",
        "sails.main": "state power",
        "sails.jib": "the ship sets it by itself",
    }

    engine: _Engine = _Engine()
    spare: tuple[_Engine, ...] = ()
    boats: dict[str, _Engine] | None = None


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("colour: red", [("colour", "is no longer a setting: a ship is grey")]),
        ("{engine: {fuel: coal}}", [("engine.fuel", "is no longer a setting: each engine takes what its tank holds")]),
        (
            "{spare: [{}, {fuel: coal}]}",
            [("spare.1.fuel", "is no longer a setting: each engine takes what its tank holds")],
        ),
        (
            "{boats: {a.b: {fuel: {}}}}",
            [("boats.a.b.fuel", "is no longer a setting: each engine takes what its tank holds")],
        ),
        (
            "{sails: {main: 1, jib: 2}}",
            [
                ("sails.main", "is no longer a setting: state power"),
                ("sails.jib", "is no longer a setting: the ship sets it by itself"),
            ],
        ),
        ("{sails: {top: 1}}", [("sails", "is not a known key; see the documentation for those")]),
        ("fuel: coal", [("fuel", "is not a known key; see the documentation for those")]),
        ("{engine: {colour: red}}", [("engine.colour", "is not a known key; see the documentation for those")]),
    ],
)
def test_a_removed_key_names_its_successor(text: str, problems: list[tuple[str, str]]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(_Ship, text, "ship.yaml", {})
    assert str(caught.value) == str(ConfigError("ship.yaml", problems))


def test_a_removed_key_in_the_environment_names_its_successor() -> None:
    with pytest.raises(ConfigError, match=r"ship\.yaml: sails\.main: is no longer a setting: state power"):
        parse(_Ship, "{}", "ship.yaml", {"TIDEMARK__SAILS__MAIN": "1"})


def test_removed_keys_are_no_fields() -> None:
    assert "removed" not in _Ship.model_fields
    assert _Ship().digest_of() == _Ship.model_validate({"engine": {"power": 1}}).digest_of()
