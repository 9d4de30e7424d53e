"""Avro by Tidemark and by Avro's own reader in Java: equal values, or both refuse; the loop equals the interpreter."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.support.avro_java import JavaAvro
from tests.tidemark.parsers.avro_pairs import Pairs, T, Values, histories, widened_union, written
from tests.tidemark.parsers.support import rows_of, told
from tests.tidemark.parsers.test_avro import avro, framed
from tidemark.parsers.avro.parser import parsed_schema, reader_of
from tidemark.parsers.avro.resolution import Step, may_fail, resolved
from tidemark.parsers.row_parser import RefusedRecord
from tidemark.parsers.schema_registry import Written
from tidemark.parsers.slots import FEWEST
from tidemark.schemas.avro_merge import merged

RECORDS = 4

_DEFECTS = ("Not an array: [", "enum value 'null' is not in the enum symbol set")
"""Java 1.12.1 cannot read the default null of [enum, null], nor any default of a union with an array."""


@pytest.fixture(scope="module")
def java(starts_other: None) -> Iterator[JavaAvro]:
    with JavaAvro() as found:
        yield found


_LOGICAL = ("decimal(", "date is not ", " is not date", "timestamp-", "time-")
"""What the reason for refusing a logical type says."""


class Differences:
    """Reads pairs of schemas in all ways, and counts what comes of each record."""

    def __init__(self, java: JavaAvro, folder: Path, rng: random.Random) -> None:
        self.java = java
        self.folder = folder
        (folder / "ids").mkdir()
        self.values = Values(rng)
        self.counts: Counter[str] = Counter()

    def compare(self, writer: T, reader: str) -> None:
        """Compare some records of ``writer`` that are read into the table of ``reader``."""
        text = written(writer)
        data = [self.values.encoded(writer) for _ in range(RECORDS)]
        try:
            theirs = self.java.resolved(text, reader, data)
        except ValueError as error:
            raise AssertionError(f"Java refuses a schema: {error}\n{text}\n{reader}") from error
        table = parsed_schema([reader])
        same = reader_of(resolved(table, table))
        step = resolved(parsed_schema([text]), table)
        found = [_read(reader_of(step), one) for one in data]
        for one, ours, answer in zip(data, found, theirs, strict=True):
            their = None if isinstance(answer, str) else _read(same, answer)
            if isinstance(answer, str) and any(defect in answer for defect in _DEFECTS):
                self.counts["defects of Java's"] += 1
                continue
            if ours is None and their is not None and any(name in _reason(step, one) for name in _LOGICAL):
                self.counts["refused for a logical type"] += 1  # for Java, a decimal is bytes, and a date a number
                continue
            assert repr(_sorted(ours)) == repr(_sorted(their)), (
                f"{ours}\nin Java {their} by {answer!r}\n{one!r}\n{text}\n{reader}"
            )
            self.counts["refused by both" if ours is None else "equal"] += 1
        self.counts["pairs"] += 1
        self._loop(text, reader, data)

    def _loop(self, writer: str, reader: str, data: list[bytes]) -> None:
        """The compiled loop reads many records as the interpreter reads each."""
        (self.folder / "ids" / "1.avsc").write_text(writer)
        parser: Any = avro(self.folder, json.loads(reader), "framing: confluent\nschemas: ids")
        values = [framed(1, one) for one in data] * FEWEST
        many = parser.parse(rows_of(values))
        each = parser.parse(rows_of(values), vectorised=False)
        assert many.refused == each.refused
        assert told(many.columns) == told(each.columns), f"{writer}\n{reader}"
        assert many.unknown == each.unknown
        [resolution] = parser._writers.known.values()
        self.counts["by the loop" if resolution.loop else "by the interpreter alone"] += 1


def _read(read: Callable[[bytes], dict[str, Any]], data: bytes) -> dict[str, Any] | None:
    try:
        return read(data)
    except RefusedRecord:
        return None


def _reason(step: Step, data: bytes) -> str:
    with pytest.raises(RefusedRecord) as refused:
        reader_of(step)(data)
    return str(refused.value)


def _has_two_pasts(definition: bytes) -> bool:
    """True if a type has two declarations, or other names in some places only: for Java, names hold everywhere."""
    names: set[str] = set()
    aliases: set[str] = set()

    def walk(schema: Any) -> None:
        if isinstance(schema, list):
            for one in schema:
                walk(one)
        elif isinstance(schema, dict):
            names.update([schema["name"]] if "name" in schema else ())
            aliases.update(schema.get("aliases", ()))
            for one in (schema.get("items"), schema.get("values"), *(one["type"] for one in schema.get("fields", ()))):
                walk(one)

    walk(json.loads(definition))
    return bool(names & aliases) or any(name.startswith("n2.") for name in names)


def _sorted(value: Any) -> Any:
    """``value`` with the entries of maps by their keys: Java's maps have no order."""
    if isinstance(value, dict):
        return {name: _sorted(part) for name, part in value.items()}
    if not isinstance(value, list):
        return value
    parts = [_sorted(part) for part in value]
    maps = parts and isinstance(parts[0], dict) and parts[0].keys() == {"key", "value"}
    return sorted(parts, key=lambda entry: str(entry["key"])) if maps else parts


@pytest.fixture
def differences(java: JavaAvro, tmp_path: Path, rng: random.Random) -> Differences:
    return Differences(java, tmp_path, rng)


def test_pairs_of_schemas(
    differences: Differences, rng: random.Random, full: bool, tried: Callable[[str, int], None]
) -> None:
    pairs = Pairs(rng)
    for _ in range(13_000 if full else 60):
        first = pairs.root()
        second = pairs.evolved(first)
        # The whole record's name counts for Tidemark, and not for Java.
        back = first.name == second.name and rng.random() < 0.5
        writer, reader = (second, first) if back else (first, second)
        differences.compare(widened_union(rng, writer), written(reader))
    for kind, count in differences.counts.items():
        tried(f"avro against Java: {kind}", count)
    assert min(differences.counts["equal"], differences.counts["refused by both"]) > 0
    assert differences.counts["by the loop"] > differences.counts["by the interpreter alone"]


def test_registered_versions(
    differences: Differences, rng: random.Random, full: bool, tried: Callable[[str, int], None]
) -> None:
    """Each version's records are read by the definition, and fit it unless a change waits."""
    for versions in islice(histories(Pairs(rng)), 3_000 if full else 20):
        definition: bytes | None = None
        waits = False
        for version in versions:
            try:
                definition, changes = merged(definition, Written((written(version),)))
            except ValueError:
                assert definition is None
                break  # no field of it can be a column
            waits |= any(change.waits for change in changes)
        if definition is None:
            continue
        for version in versions:
            text = written(version)
            step = resolved(parsed_schema([text]), parsed_schema([definition]))
            assert waits or not may_fail(step), f"{text}\n{definition.decode()}"
            if not _has_two_pasts(definition):
                differences.compare(version, definition.decode())
    for kind, count in differences.counts.items():
        tried(f"avro against Java, registered: {kind}", count)
    assert differences.counts["equal"] > 0
