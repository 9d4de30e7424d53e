"""The shape of a topic's values, and the columns of JSON documents, as a sample shows them.

A shape is a framing, then JSON, text, Protobuf, or bytes that cannot be recognized. Avro's binary encoding cannot be
recognized: it has no mark of its own. With Confluent's framing a registry gives the schema of a record; otherwise a
person does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from tidemark.errors import ConfigError
from tidemark.formats.table.base_columns import PREFIX
from tidemark.parsers.confluent_framing import MAX_NUMBER, split_frame
from tidemark.parsers.json.document import document
from tidemark.parsers.row_parser import RefusedRecord
from tidemark.parsers.settings import FORBIDDEN, Framing
from tidemark.parsers.type_conversion import is_date, is_instant

Shape = Literal["json", "json value", "text", "avro container", "protobuf", "binary", "empty"]

MAJORITY: Final = 0.5
"""A shape or framing that more than this part of the values has is the topic's."""

_MOST_SCHEMAS: Final = 64
"""The most schemas of a topic's producers; bytes with more numbers than this are no framing."""

_AVRO_CONTAINER: Final = b"Obj\x01"
_MAX_TAG: Final = (1 << 29) - 1

NEARLY_ALL: Final = 0.99
"""The least part of a place's values that must have a type for the place to have it."""

MOST_COLUMNS: Final = 500
"""The most columns; a person cannot review more."""

_MOST_KEYS: Final = 200
"""An object with more different keys is taken for a map: its keys are values."""

_MAX_DEPTH: Final = 8

_OP: Final = "op"
_AFTER: Final = "after"
_OPERATIONS: Final = frozenset("crudtm")
"""What Debezium's changes are: create, read by a snapshot, update, delete, truncate, message."""

_INT64: Final = 1 << 63

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


class Detected(NamedTuple):
    """The shape of a topic's values. ``shares`` has the part of the values in each shape, behind a framing if any.

    ``numbers`` has the schemas that framed values name, with the count of such values. ``framed`` is the framed part.
    """

    shape: Shape
    framing: Framing
    shares: dict[str, float]
    framed: float
    numbers: dict[int, int]
    values: int
    tombstones: int


def detect(values: Sequence[bytes | None]) -> Detected:
    """The shape of ``values``; None is a tombstone."""
    given = [value for value in values if value is not None]
    frames = [frame for value in given if (frame := _frame(value)) is not None]
    numbers = Counter(number for number, _ in frames)
    framed = len(frames) / len(given) if given else 0.0
    is_framed = framed > MAJORITY and len(numbers) <= _MOST_SCHEMAS
    contents = [content for _, content in frames] if is_framed else given
    counts = Counter(shape_of(content) for content in contents)
    shares = {str(shape): count / len(contents) for shape, count in counts.most_common()}
    return Detected(
        shape=_shape(counts, len(contents)),
        framing="confluent" if is_framed else "none",
        shares=shares,
        framed=framed,
        numbers=dict(numbers.most_common()) if is_framed else {},
        values=len(given),
        tombstones=len(values) - len(given),
    )


def shape_of(value: bytes) -> Shape:
    """The shape of one value."""
    if not value:
        return "empty"
    if value.startswith(_AVRO_CONTAINER):
        return "avro container"
    try:
        document(value)
    except RefusedRecord as error:
        if "not an object" in str(error):
            return "json value"
    else:
        return "json"
    if _is_text(value):
        return "text"
    return "protobuf" if _is_protobuf(value) else "binary"


def _shape(counts: Counter[Shape], values: int) -> Shape:
    """The shape of the majority; binary if none has it, empty if there is no value."""
    if not values:
        return "empty"
    [(shape, count)] = counts.most_common(1)
    return shape if count / values > MAJORITY else "binary"


def _frame(value: bytes) -> tuple[int, bytes] | None:
    try:
        number, content = split_frame(value)
    except RefusedRecord:
        return None
    return (number, content) if 0 < number <= MAX_NUMBER else None


def _is_text(value: bytes) -> bool:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return False
    return all(char.isprintable() or char in "\t\r\n" for char in text)


def _is_protobuf(value: bytes) -> bool:
    """True if ``value`` is a run of fields of Protobuf's wire format, to its last byte."""
    at = 0
    while at < len(value):
        tag, at = _varint(value, at)
        field, wire = tag >> 3, tag & 7
        if at < 0 or not 0 < field <= _MAX_TAG:
            return False
        at = _behind(value, at, wire)
        if not 0 < at <= len(value):
            return False
    return True


def _behind(value: bytes, at: int, wire: int) -> int:
    """The end of a field's content; -1 if there is no valid content."""
    if wire == 0:
        return _varint(value, at)[1]
    if wire == 2:
        length, at = _varint(value, at)
        return -1 if at < 0 else at + length
    return at + {1: 8, 5: 4}[wire] if wire in {1, 5} else -1


def _varint(value: bytes, at: int) -> tuple[int, int]:
    """A number and its end; (0, -1) if there is no number."""
    number = 0
    for place, byte in enumerate(value[at : at + 10]):
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, at + place + 1
    return 0, -1


class JsonColumnFound(NamedTuple):
    """A column for the topics file. Counts are of documents: ``null`` lack it, ``misfit`` have a value of another type.

    ``overflow`` are the misfits that are whole numbers of more than 64 bits.
    """

    name: str
    kind: str
    path: tuple[str, ...]
    null: int
    misfit: int
    overflow: int

    @property
    def settings(self) -> dict[str, Any]:
        """The column as the topics file has it; ``path`` only if it differs from the name."""
        where: dict[str, Any] = {} if self.path == (self.name,) else {"path": _written(self.path)}
        return {"name": self.name, "type": self.kind, **where}


Inferred = tuple[tuple[JsonColumnFound, ...], dict[str, str]]
"""The columns, and the reasons of the places that are left out."""


@dataclass
class _SeenValues:
    """The values seen in one place of the documents."""

    nulls: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    inner: dict[str, _SeenValues] = field(default_factory=dict)
    items: _SeenValues | None = None

    @property
    def values(self) -> int:
        return sum(self.kinds.values())

    def see(self, value: Any) -> None:
        if value is None:
            self.nulls += 1
            return
        self.kinds[_kind_of(value)] += 1
        if isinstance(value, dict):
            for key, entry in value.items():
                self.inner.setdefault(key, _SeenValues()).see(entry)
        elif isinstance(value, list):
            self.items = self.items or _SeenValues()
            for item in value:
                self.items.see(item)


def infer_columns(documents: Sequence[Mapping[str, Any]], taken: Iterable[str] = ()) -> Inferred:
    """The columns of ``documents``, in the order in which their places are first seen; no name is one of ``taken``.

    Objects become a column for each key within, as in a registry's JSON Schema (``customer.name`` is
    ``customer_name``). A place without a column type becomes its JSON text: lists of objects, objects with keys without
    end, and places that hold values of several types. A type that nearly all values have is taken, and the others are
    counted as misfits.

    Raises:
        ConfigError: there are too many.
    """
    top = _SeenValues()
    for sample in documents:
        top.see(sample)
    names = {*taken}
    columns: list[JsonColumnFound] = []
    left_out: dict[str, str] = {}
    for path, place in _leaves(top, ()):
        kind, misfit, overflow = _column_type(place)
        if kind is None:
            left_out[".".join(path)] = "is always null or an empty list, which states no type"
            continue
        name = _column_name(path, names)
        columns.append(JsonColumnFound(name, kind, path, len(documents) - place.values, misfit, overflow))
    if len(columns) > MOST_COLUMNS:
        rule = f"the records have {len(columns)} different fields, more than {MOST_COLUMNS}: state --format bytes"
        raise ConfigError("the sample", [("columns", rule)])
    return tuple(columns), left_out


def infer_changes(documents: Sequence[Mapping[str, Any]]) -> Inferred | None:
    """The columns of Debezium's changes: ``op``, and the fields of ``after``; None if ``documents`` are no changes.

    Their envelope is at the top, or beside its schema in ``payload``.

    Raises:
        ConfigError: there are too many.
    """
    for above in ((), ("payload",)):
        changes: list[Any] = [document.get(*above) if above else document for document in documents]
        if not all(map(_is_change, changes)):
            continue
        if rows := [change[_AFTER] for change in changes if change[_AFTER] is not None]:
            found, left_out = infer_columns(rows, taken=[_OP])
            deleted = len(documents) - len(rows)
            columns = (
                column._replace(path=(*above, _AFTER, *column.path), null=column.null + deleted) for column in found
            )
            op = JsonColumnFound(_OP, "string", (*above, _OP), null=0, misfit=0, overflow=0)
            return (op, *columns), {".".join((*above, _AFTER, name)): why for name, why in left_out.items()}
    return None


def _is_change(value: Any) -> bool:
    """True if ``value`` is an envelope of Debezium."""
    return (
        isinstance(value, dict)
        and value.get(_OP) in _OPERATIONS
        and isinstance(value.get("source"), dict)
        and isinstance(value.get(_AFTER, 0), dict | None)
    )


def _leaves(place: _SeenValues, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], _SeenValues]]:
    """The places that become columns."""
    for key, inner in place.inner.items():
        here = (*path, key)
        is_object = inner.kinds.keys() == {"object"} and inner.inner
        if is_object and len(inner.inner) <= _MOST_KEYS and len(here) < _MAX_DEPTH and "" not in inner.inner:
            yield from _leaves(inner, here)
        elif key:
            yield here, inner


def _column_type(place: _SeenValues) -> tuple[str | None, int, int]:
    """(the column's type, number of values of another type, number of these that overflow it)."""
    counts, total = place.kinds, place.values
    if not total:
        return None, 0, 0
    if counts.keys() == {"list"}:
        return _list_type(place.items), 0, 0
    overflow = counts["large"]
    for kind, members in _TYPES:
        fits = sum(counts[member] for member in members)
        if fits >= NEARLY_ALL * total:
            return kind, total - fits, overflow if "large" not in members else 0
    return "json", 0, 0


def _list_type(items: _SeenValues | None) -> str | None:
    """The type of a list column; None if all lists are empty. A misfit costs the whole list, so all items must fit."""
    if items is None or not items.values:
        return None
    for kind, members in _TYPES:
        if items.kinds.keys() <= members:
            return f"list<{kind}>"
    return "json"


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer" if -_INT64 <= value < _INT64 else "large"
    if isinstance(value, str):
        return "instant" if is_instant(value) else "date" if is_date(value) else "string"
    return "number" if isinstance(value, float) else "list" if isinstance(value, list) else "object"


def _column_name(path: tuple[str, ...], taken: set[str]) -> str:
    """A new column name, allowed by Delta and Tidemark, that differs from all ``taken`` regardless of case."""
    name = "".join("_" if char in FORBIDDEN else char for char in "_".join(path)) or "_"
    if name.casefold() == "dt" or name.casefold().startswith(PREFIX):
        name = f"field_{name}"
    unique, number = name, 1
    while unique.casefold() in taken:
        number += 1
        unique = f"{name}_{number}"
    taken.add(unique.casefold())
    return unique


def _written(path: tuple[str, ...]) -> str | list[str]:
    """A path as the topics file takes it: with points, unless a key has one."""
    return list(path) if any("." in key for key in path) else ".".join(path)
