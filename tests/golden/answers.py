"""The JSON that commands print, as text: by command each path with the types of its values.

Paths begin with ``$``; ``$[]`` are items, ``$.a{}`` values of any key. A field that an object may lack is also
``absent``. ``answers.json`` lists them, and the fixture ``answers_are_listed`` compares whatever a test makes a command
print. With ``TIDEMARK_ANSWERS=write`` the answers of the tests that run are added to the list instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import typer
from typer.main import get_current_context  # type: ignore[attr-defined]  # it is of the click within typer

from tests.golden import HERE

LISTED: Final = HERE / "answers.json"

ABSENT: Final = "absent"
ANY: Final = "any"
"""The type of a value that is others': Tidemark only passes it on."""

_TYPES: Final = {
    dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null",
}  # fmt: skip

Listed = dict[str, dict[str, str]]
"""By command and path the types, separated by `` | ``."""


class ObservedAnswers:
    """A stand-in for ``typer.echo`` that compares the JSON of a command with the list; ``add`` extends the list."""

    def __init__(self, *, add: bool) -> None:
        self.listed: Listed = json.loads(LISTED.read_text(encoding="utf-8")) if LISTED.exists() else {}
        self.surprises: list[str] = []
        self._add = add
        self._echo = typer.echo

    def echo(self, message: Any = None, *arguments: Any, **more: Any) -> None:
        """Print ``message`` as typer does, and look at it if it is JSON for programs."""
        context = get_current_context(silent=True)
        if context is not None and context.params.get("output") == "json" and not more.get("err"):
            self.see(_command(context), json.loads(message))
        self._echo(message, *arguments, **more)

    def see(self, command: str, answer: Any) -> None:
        """Compare the answer of ``command`` with the list, or add it."""
        listed = self.listed.setdefault(command, {}) if self._add else self.listed.get(command, {})
        if self._add:
            add(listed, answer)
        self.surprises += [f"{command}: {surprise}" for surprise in surprises(listed, answer)]

    def write(self) -> None:
        """Write the list, if it was to be extended."""
        if self._add:
            LISTED.write_text(json.dumps(self.listed, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def surprises(listed: Mapping[str, str], answer: Any) -> list[str]:
    """Messages about values that ``listed`` does not have, and about fields that an object lacks.

    Where tests have only seen null, or nothing within an array or object, anything may come.
    """
    found: list[str] = []
    unseen = _unseen(listed)
    below = tuple(f"{path}{mark}" for path in unseen for mark in ".[{")
    for path, value in _values("$", answer, listed):
        kind, allowed = _TYPES[type(value)], listed.get(path, "nothing").split(" | ")
        if path.startswith(below) or allowed in (["null"], [ANY]):
            continue
        if kind not in allowed and not (kind == "integer" and "number" in allowed):
            found.append(f"{path} is {kind}, and {LISTED.name} lists {' | '.join(allowed)}")
        if kind == "object":
            lacking = _fields(path, listed) - {f"{path}.{name}" for name in value}
            found += [f"{name} is absent" for name in sorted(lacking) if ABSENT not in listed[name].split(" | ")]
    return found


def _unseen(listed: Mapping[str, str]) -> set[str]:
    """The listed paths below which nothing was seen, though something may be there."""
    inner = {path[: mark.start()] for path in listed for mark in re.finditer(r"[.\[{]", path)}
    return {
        path
        for path, types in listed.items()
        if (path not in inner and {"array", "object"} & {*types.split(" | ")}) or types == "null"
    }


def add(listed: dict[str, str], answer: Any) -> None:
    """Add to ``listed`` what an answer has and it has not."""
    for path, value in _values("$", answer, dict(listed)):
        if listed.get(path) == ANY:
            continue
        known = path in listed
        types = {*listed.get(path, "").split(" | ")} - {""} | {_TYPES[type(value)]}
        listed[path] = " | ".join(sorted(types))
        if isinstance(value, dict) and not _any_key(path, value, listed):
            names = {f"{path}.{name}" for name in value}
            differ = (_fields(path, listed) ^ names) if known else set()
            for name in differ:
                listed[name] = " | ".join(sorted({*listed.get(name, "").split(" | "), ABSENT} - {""}))


def _values(path: str, value: Any, listed: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """(path, value) of an answer and of everything in it."""
    yield path, value
    if listed.get(path) == ANY:
        return
    if isinstance(value, list):
        for item in value:
            yield from _values(f"{path}[]", item, listed)
    elif isinstance(value, dict):
        any_key = _any_key(path, value, listed)
        for key, item in value.items():
            yield from _values(f"{path}{{}}" if any_key else f"{path}.{key}", item, listed)


def _any_key(path: str, value: Mapping[str, Any], listed: Mapping[str, str]) -> bool:
    """True if the keys of an object are data: the list says so, or they are no names."""
    return f"{path}{{}}" in listed or not all(re.fullmatch(r"[a-z][a-z0-9_]*", key) for key in value)


def _fields(path: str, listed: Mapping[str, str]) -> set[str]:
    """The listed paths of an object's fields."""
    pattern = re.compile(re.escape(path) + r"\.\w+")
    return {name for name in listed if pattern.fullmatch(name)}


def _command(context: Any) -> str:
    """The command of a context as people call it, whatever a test calls the program."""
    program = "tidemark-agent" if context.command.callback.__module__.startswith("uploader_agent") else "tidemark"
    names: list[str] = []
    while context.parent is not None:
        names.insert(0, context.info_name)
        context = context.parent
    return " ".join([program, *names])
