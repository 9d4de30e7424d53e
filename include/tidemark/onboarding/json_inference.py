"""Columns of JSON documents, from a sample of them.

Objects become a column for each key within, as a registry's JSON Schema does (``customer.name`` is ``customer_name``).
What has no type of a column becomes its JSON text: lists of objects, objects with keys without end, and places that
hold values of several types. A type that nearly all values have is taken, and the others are counted as misfits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tidemark.errors import ConfigError
from tidemark.formats.base_columns import PREFIX
from tidemark.parsers.settings import FORBIDDEN
from tidemark.parsers.type_conversion import is_date, is_instant

NEARLY_ALL: Final = 0.99
"""A type is a place's if so large a part of its values has it."""

MOST_COLUMNS: Final = 500
"""More are no columns that a person reviews."""

_MOST_KEYS: Final = 200
"""An object with more different keys is taken for a map, whose keys are values."""

_MAX_DEPTH: Final = 8
_INT64: Final = 1 << 63


class JsonColumnFound(NamedTuple):
    """A column for the topics file. Counts are of documents: ``null`` lack it, ``misfit`` have what it cannot hold.

    ``overflow`` are those misfits that are whole numbers of more than 64 bits.
    """

    name: str
    kind: str
    path: tuple[str, ...]
    null: int
    misfit: int
    overflow: int

    @property
    def settings(self) -> dict[str, Any]:
        """As the topics file has it; ``path`` only where the name does not say it."""
        where: dict[str, Any] = {} if self.path == (self.name,) else {"path": _written(self.path)}
        return {"name": self.name, "type": self.kind, **where}


class JsonColumnsFound(NamedTuple):
    """The columns of ``documents`` documents, and the places left out, with the reason."""

    columns: tuple[JsonColumnFound, ...]
    left_out: Mapping[str, str]
    documents: int


@dataclass
class _Place:
    """What was seen in one place of the documents."""

    nulls: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    inner: dict[str, _Place] = field(default_factory=dict)
    items: _Place | None = None

    @property
    def values(self) -> int:
        return sum(self.kinds.values())

    def see(self, value: Any) -> None:
        if value is None:
            self.nulls += 1
            return
        self.kinds[_kind(value)] += 1
        if isinstance(value, dict):
            for key, one in value.items():
                self.inner.setdefault(key, _Place()).see(one)
        elif isinstance(value, list):
            self.items = self.items or _Place()
            for one in value:
                self.items.see(one)


def infer(documents: Sequence[Mapping[str, Any]]) -> JsonColumnsFound:
    """The columns of ``documents``, in the order in which their places are first seen.

    Raises:
        ConfigError: there are too many.
    """
    top = _Place()
    for one in documents:
        top.see(one)
    names: set[str] = set()
    columns: list[JsonColumnFound] = []
    left_out: dict[str, str] = {}
    for path, place in _leaves(top, ()):
        kind, misfit, overflow = _type(place)
        if kind is None:
            left_out[".".join(path)] = "is always null or an empty list, which states no type"
            continue
        name = _name(path, names)
        columns.append(JsonColumnFound(name, kind, path, len(documents) - place.values, misfit, overflow))
    if len(columns) > MOST_COLUMNS:
        rule = f"the records have {len(columns)} different fields, more than {MOST_COLUMNS}: state --format bytes"
        raise ConfigError("the sample", [("columns", rule)])
    return JsonColumnsFound(tuple(columns), left_out, len(documents))


def _leaves(place: _Place, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], _Place]]:
    """The places that become columns."""
    for key, one in place.inner.items():
        here = (*path, key)
        is_object = one.kinds.keys() == {"object"} and one.inner
        if is_object and len(one.inner) <= _MOST_KEYS and len(here) < _MAX_DEPTH and "" not in one.inner:
            yield from _leaves(one, here)
        elif key:
            yield here, one


def _type(place: _Place) -> tuple[str | None, int, int]:
    """(the column's type, values that do not have it, those of them that overflow it)."""
    counts, total = place.kinds, place.values
    if not total:
        return None, 0, 0
    if counts.keys() == {"list"}:
        return _list(place.items), 0, 0
    overflow = counts["large"]
    for kind, members in _TYPES:
        fits = sum(counts[one] for one in members)
        if fits >= NEARLY_ALL * total:
            return kind, total - fits, overflow if "large" not in members else 0
    return "json", 0, 0


_TYPES: Final[tuple[tuple[str, frozenset[str]], ...]] = (
    ("boolean", frozenset({"boolean"})),
    ("int64", frozenset({"integer"})),
    ("decimal(38,0)", frozenset({"integer", "large"})),
    ("double", frozenset({"integer", "number"})),
    ("timestamp(iso8601)", frozenset({"instant"})),
    ("date", frozenset({"date"})),
    ("string", frozenset({"string", "instant", "date"})),
)
"""Types and the kinds of values that each holds, from the narrowest."""


def _list(items: _Place | None) -> str | None:
    """None if all lists are empty. A misfit in a list costs the whole list, so all items must fit."""
    if items is None or not items.values:
        return None
    for kind, members in _TYPES:
        if items.kinds.keys() <= members:
            return f"list<{kind}>"
    return "json"


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer" if -_INT64 <= value < _INT64 else "large"
    if isinstance(value, str):
        return "instant" if is_instant(value) else "date" if is_date(value) else "string"
    return {float: "number", list: "list"}.get(_plain(value), "object")


def _plain(value: Any) -> type:
    return float if isinstance(value, float) else list if isinstance(value, list) else dict


def _name(path: tuple[str, ...], taken: set[str]) -> str:
    """A column's name that Delta and Tidemark allow, and that no other column has regardless of case."""
    name = "".join("_" if char in FORBIDDEN else char for char in "_".join(path)) or "_"
    if name.casefold() == "dt" or name.casefold().startswith(PREFIX):
        name = f"field_{name}"
    found, number = name, 1
    while found.casefold() in taken:
        number += 1
        found = f"{name}_{number}"
    taken.add(found.casefold())
    return found


def _written(path: tuple[str, ...]) -> str | list[str]:
    """A path as the topics file takes it: with points, unless a key has one."""
    return list(path) if any("." in one for one in path) else ".".join(path)
