"""The shape of values: a framing, then JSON, text, Protobuf, or bytes that cannot be recognized.

Avro's binary encoding cannot be recognized: it has no mark of its own. With Confluent's framing a registry gives the
schema of a record; otherwise a person does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from tidemark.parsers.confluent_framing import MAX_NUMBER, split_frame
from tidemark.parsers.json.document import RefusedValue, document
from tidemark.parsers.row_parser import RefusedRecord
from tidemark.parsers.settings import Framing

Shape = Literal["json", "json value", "text", "avro container", "protobuf", "binary", "empty"]

MAJORITY: Final = 0.5
"""A shape or framing that more than this part of the values has is the topic's."""

_MOST_SCHEMAS: Final = 64
"""The most schemas of a topic's producers; bytes with more numbers than this are no framing."""

_AVRO_CONTAINER: Final = b"Obj\x01"
_MAX_TAG: Final = (1 << 29) - 1


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

    def answer(self) -> dict[str, object]:
        """The shape for programs."""
        return self._asdict()


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
    except RefusedValue as error:
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
