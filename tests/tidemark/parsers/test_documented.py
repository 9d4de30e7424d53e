"""The examples of docs/topics.md parse what they are said to parse."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
import yaml
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from tests.tidemark.parsers.support import records, rows_of, topic_of
from tidemark.config import parse
from tidemark.errors import ConfigError
from tidemark.parsers.base import Parsed
from tidemark.parsers.factory import PARSERS, parser_of
from tidemark.topics import Deployment

PAGE = Path(__file__).parents[3] / "docs" / "topics.md"
EXAMPLES = {
    found["parser"]["kind"]: text.removeprefix("parser:\n")
    for text in re.findall(r"```yaml\n(parser:\n.*?)```", PAGE.read_text(), re.DOTALL)
    if (found := yaml.safe_load(text))
}
AT = datetime(2026, 2, 2, 3, 4, 5, 678000, tzinfo=UTC)
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


def parsed(kind: str, value: bytes, directory: Path) -> Parsed:
    text = re.sub(r"^  ", "", EXAMPLES[kind], flags=re.MULTILINE)
    return parser_of(topic_of(text, directory).parser, "orders").parse(rows_of([value]))


def event(found: Parsed) -> int:
    assert found.event_time is not None
    number: int = found.event_time[0].as_py()
    return number


def test_json(tmp_path: Path) -> None:
    document = {
        "id": 1,
        "user": {"name": "Zoë"},
        "price": 1.50,
        "meta": {"placed.at": round(AT.timestamp() * 1000)},
        "tags": ["a"],
    }
    found = parsed("json", json.dumps(document).encode(), tmp_path)
    assert records(found) == [{"id": 1, "user_name": "Zoë", "price": Decimal("1.50"), "placed": AT, "tags": ["a"]}]
    assert event(found) == round(AT.timestamp() * 1_000_000)


def test_avro(tmp_path: Path) -> None:
    (tmp_path / "schemas" / "orders").mkdir(parents=True)
    for name in ("order.avsc", "orders/7.avsc"):
        (tmp_path / "schemas" / name).write_text(json.dumps(AVRO))
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(AVRO), {"id": 1, "placed": AT})
    found = parsed("avro", b"\0\0\0\0\x07" + target.getvalue(), tmp_path)
    assert records(found) == [{"id": 1, "placed": AT}]
    assert event(found) == round(AT.timestamp() * 1_000_000)


def test_protobuf(tmp_path: Path) -> None:
    file = FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    message = file.message_type.add(name="Order")
    field = FieldDescriptorProto
    message.field.add(name="id", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    message.field.add(
        name="placed",
        number=2,
        type=field.TYPE_MESSAGE,
        type_name=".google.protobuf.Timestamp",
        label=field.LABEL_OPTIONAL,
    )
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "shop.pb").write_bytes(FileDescriptorSet(file=[file]).SerializeToString())
    found = parsed("protobuf", b"\x08\x05\x12\x02\x08\x09", tmp_path)
    assert records(found) == [{"id": 5, "placed": datetime(1970, 1, 1, 0, 0, 9, tzinfo=UTC)}]
    assert event(found) == 9_000_000


def test_a_function(tmp_path: Path) -> None:
    assert records(parsed("function", b"abc", tmp_path)) == [{"size": 3}]


def test_each_kind_has_an_example() -> None:
    assert EXAMPLES.keys() == PARSERS.keys() - {"bytes"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{kind: json, columns: [{name: a, type: int65}]}", r"columns\.0\.type: .*must be one of boolean"),
        ("{kind: json, columns: [{name: a, type: 'decimal(39,0)'}]}", r"columns\.0\.type: .*1 to 38 digits"),
        ("{kind: json, columns: [{name: a, type: int8, nul: 1}]}", r"columns\.0\.nul: is not a known key"),
        ("{kind: json, columns: []}", "at least one is needed"),
        ("{kind: json, columns: [{name: DT, type: int8}]}", "'DT': dt is the table's own"),
        ("{kind: json, columns: [{name: Kafka_x, type: int8}]}", "'Kafka_x': the prefix kafka_"),
        ("{kind: json, columns: [{name: a b, type: int8}]}", r"'a b': Delta forbids \[' '\]"),
        ("{kind: json, columns: [{name: a, type: int8}, {name: A, type: int8}]}", "'A': appears twice"),
        (
            "{kind: json, columns: [{name: a, type: int8, path: x}, {name: b, type: int8, path: x.y}]}",
            "column b: its path is that of column a, or one is inside the other",
        ),
        ("{kind: json, columns: [{name: a, type: int8}], event_time: {field: b}}", "event_time.field: b is not one"),
        ("{kind: json, columns: [{name: a, type: int8}], event_time: {field: a}}", "event_time.unit: a is a number"),
        ("{kind: json, columns: [{name: a, type: string}], event_time: {field: a}}", "neither a time nor"),
        ("{kind: avro, schema: nowhere.avsc}", r"avro\.schema: .*nowhere.avsc cannot be read"),
        (
            "{kind: avro, framing: confluent, schema: {registry: mine, subject: x}}",
            r"avro\.schema\.registry: mine is not one of the file's `registries`; there is main",
        ),
        (
            "{kind: avro, framing: confluent, schema: good.avsc, registry: mains}",
            r"avro\.registry: mains is not one of the file's `registries`; did you mean main\?",
        ),
        (
            "{kind: avro, framing: confluent, schema: good.avsc, registry: {url: 'http://r'}}",
            r"avro\.registry: must be the name of one of the file's `registries`",
        ),
        ("{kind: avro, schema: {registry: main, subject: x}}", "needs framing: confluent"),
        ("{kind: protobuf, message: A}", "needs either descriptors, a file, or schema"),
        (
            "{kind: json, columns: [{name: a, type: string}], schema: {registry: main, subject: x}}",
            "has either",
        ),
        ("{kind: avro, schema: bad.avsc}", "bad.avsc is not valid JSON"),
        ("{kind: avro, schema: enum.avsc}", "must be the schema of a record"),
        ("{kind: avro, schema: dt.avsc}", "'dt': dt is the table's own"),
        ("{kind: avro, schema: good.avsc, framing: confluent}", "needs either registry, a name, or schemas"),
        ("{kind: avro, schema: good.avsc, schemas: .}", "must be named by a schema's number"),
        ("{kind: protobuf, descriptors: nowhere.pb, message: a.B}", r"descriptors: .*nowhere.pb cannot be read"),
        ("{kind: function, function: sizes, columns: [{name: a, type: int8}]}", r"function\.function: "),
        ("{kind: xml}", r"topics\.orders\.parser\.kind: xml is not known; there are avro, "),
    ],
)
def test_every_error_of_the_settings_names_field_and_rule(tmp_path: Path, text: str, message: str) -> None:
    good = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    contents = {
        "bad": "{",
        "enum": '{"type": "enum", "name": "E", "symbols": []}',
        "good": json.dumps(good),
        "dt": json.dumps(good | {"fields": [{"name": "dt", "type": "int"}]}),
    }
    for name, content in contents.items():
        (tmp_path / f"{name}.avsc").write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        topic_of(text, tmp_path)
    assert f"{tmp_path}/topics.yaml: topics.orders.parser" in str(caught.value)


@pytest.mark.parametrize(
    ("registries", "problem"),
    [
        ("{main: {url: nowhere}}", r"registries\.main\.url: .*but it is 'nowhere'"),
        ("{main: {url: 'http://r', auht: basic}}", r"registries\.main\.auht: is not a known key; did you mean auth\?"),
        ("{main: {url: 'http://r'}, other: {}}", r"registries\.other\.url: is required"),
    ],
)
def test_a_wrong_registry_is_the_only_error(tmp_path: Path, registries: str, problem: str) -> None:
    """The topics that refer to it, or to another one, have none of their own."""
    parser = "{kind: json, framing: confluent, schema: {registry: main, subject: x}}"
    topics = "".join(f"  - topic: t{number}\n    parser: {parser}\n" for number in range(3))
    text = f"cluster: c\nraw: {{url: s3://raw}}\nlake: s3://lake\nregistries: {registries}\ntopics:\n{topics}"
    with pytest.raises(ConfigError, match=problem) as caught:
        parse(Deployment, text, str(tmp_path / "topics.yaml"), {})
    assert len(caught.value.problems) == 1


def test_a_registry_counts_by_its_address_and_not_by_its_name_or_the_way_to_it() -> None:
    """Rows depend on the schemas that it has: the digest of a topic's settings covers its URL alone."""
    parser = "kind: json\nschema: {registry: NAME, subject: x}"

    def digest(name: str, registry: str) -> str:
        text = parser.replace("NAME", name).replace("\n", "\n      ")
        topics = f"topics:\n  - topic: orders\n    parser:\n      {text}\n"
        rest = f"lake: s3://lake\n{topics}registries: {{{name}: {{{registry}}}}}\n"
        return parse(Deployment, f"cluster: c\nraw: {{url: s3://raw}}\n{rest}", "topics.yaml", {}).topics[0].digest

    known = digest("main", "url: 'https://r'")
    assert digest("shop", "url: 'https://r', auth: basic, variables: TIDEMARK_REGISTRY_SHOP") == known
    assert digest("main", "url: 'https://other'") != known
