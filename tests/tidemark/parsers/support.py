"""Rows to parse, and settings from YAML."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidemark.config import parse
from tidemark.decode.schema import SCHEMA
from tidemark.parsers.base import Parsed
from tidemark.parsers.slots import value_places
from tidemark.topics import Deployment, TopicSettings


def rows_of(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Sequence[tuple[str, bytes | None]]] | None = None,
) -> pa.RecordBatch:
    """Kafka's columns, with these values from offset 0 on."""
    named = [[{"key": key, "value": value} for key, value in row] for row in headers or [()] * len(values)]
    count = len(values)
    columns: dict[str, list[Any]] = {
        "kafka_incarnation": [0] * count,
        "kafka_partition": [0] * count,
        "kafka_offset": list(range(count)),
        "kafka_timestamp": [1_770_000_000_000_000] * count,
        "kafka_timestamp_type": ["create"] * count,
        "kafka_key": [None] * count if keys is None else list(keys),
        "kafka_value": list(values),
        "kafka_headers": named,
        "kafka_leader_epoch": [0] * count,
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def topic_of(parser: str, directory: Path = Path(), registry: str = "url: 'http://r'") -> TopicSettings:
    """The settings of a topic whose ``parser`` is this YAML, in a topics file in ``directory``.

    The file has the one registry ``main``, with these keys.
    """
    indented = parser.strip("\n").replace("\n", "\n      ")
    text = (
        f"cluster: c\nraw: {{url: s3://raw}}\nlake: s3://lake\nregistries: {{main: {{{registry}}}}}\n"
        f"topics:\n  - topic: orders\n    parser:\n      {indented}\n"
    )
    return parse(Deployment, text, str(directory / "topics.yaml"), {}).topics[0]


def records(parsed: Parsed) -> list[dict[str, Any]]:
    """What was parsed, row by row, without nulls."""
    return [{key: value for key, value in row.items() if value is not None} for row in parsed.columns.to_pylist()]


LENGTHS = (
    b"\xff" * 9 + b"\x01",
    b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x80" * 30,
    b"\xff\xff\xff\xff\x0f",
    b"\x01",
)


def mutated(rng: random.Random, value: bytes) -> bytes:
    """``value`` with bytes changed, cut, doubled, put in, and lengths that lie."""
    found = bytearray(value)
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        at = rng.randrange(len(found) + 1)
        kind = rng.randrange(5)
        if kind == 0:
            del found[at:]
        elif kind == 1:
            found[at : at + 1] = rng.choice(LENGTHS)
        elif kind == 2:
            found[at:at] = found[max(0, at - 20) : at] * rng.choice((1, 2, 200))
        elif kind == 3:
            found[at : at + 1] = rng.randbytes(1)
        else:
            found[at:at] = rng.randbytes(rng.randrange(8))
    return bytes(found)


def varint(number: int) -> bytes:
    """Of a number without a sign."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def told(columns: pa.RecordBatch) -> list[str]:
    """All values as text: NaN is NaN, and times may be those of any year, which Python's are not."""
    whole: dict[str, Any] = {"window": 1 << 30, "container_window": 1 << 30, "element_size_limit": 1 << 30}
    return [column.to_string(**whole) for column in columns.columns]


def refused_alike(parser: Any, values: Sequence[bytes | None]) -> int:
    """Check that the loop and the library say the same of ``values``; how many they refuse."""
    rows = rows_of(values)
    found, expected = parser.parse(rows), parser.parse(rows, vectorised=False)
    assert found.refused == expected.refused
    assert found.unknown == expected.unknown
    assert told(found.columns) == told(expected.columns)
    found.columns.validate(full=True)
    assert found.columns.schema == parser.columns
    return len(found.refused)


def read_by_loop(parser: Any, values: Sequence[bytes]) -> int:
    """How many of ``values``, without frames, the loop reads."""
    loop = parser._own.loop if hasattr(parser, "_own") else parser._loop
    assert loop is not None
    return sum(len(rows) for rows, _, _ in loop.read(*value_places(pa.array(values, pa.binary()))))
