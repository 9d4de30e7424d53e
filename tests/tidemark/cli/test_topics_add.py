"""``tidemark topics add`` from raw: what it finds, what it refuses, and what it changes."""

from __future__ import annotations

import base64
import json
import struct
from datetime import UTC, datetime
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from typer.testing import CliRunner

from tests.support.raw_builder import RawBuilder
from tests.tidemark.kafka_log.build import T0, Record, batch
from tests.tidemark.parsers.registry_server import Registry, serving
from tests.tidemark.parsers.test_protobuf import order, order_file
from tidemark.cli.app import app
from tidemark.onboarding.options import byte_rate
from tidemark.parsers.settings import EventTime
from tidemark.store import LocalStore
from tidemark.topics import load_topics
from tidemark_spark.state.record_columns import RecordColumns

TOPICS = """# the deployment
raw: {url: 'file://ROOT/raw'}
lake: 'file://ROOT/lake'
cluster: east
topics:
  - topic: clicks   # of the web
"""
AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, {"name": "at", "type": "long"}]}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("raw", "lake"):
        (tmp_path / name).mkdir()
    (tmp_path / "topics.yaml").write_text(TOPICS.replace("ROOT", str(tmp_path)))
    return tmp_path


def name_registry(place: Path, url: str) -> None:
    """The topics file has the registry ``main``."""
    path = place / "topics.yaml"
    path.write_text(path.read_text().replace("topics:\n", f"registries: {{main: {{url: '{url}'}}}}\ntopics:\n", 1))


def stored(place: Path, *values: bytes | None) -> None:
    """The agents have stored records of these values, a second apart."""
    raw = RawBuilder(LocalStore(place / "raw"))
    raw.segment(batch(0, [Record(at, T0 + at * 1000, b"k", value) for at, value in enumerate(values)]))
    raw.publish()


def orders(count: int = 40) -> list[bytes | None]:
    documents = [
        {"id": at, "at": T0 + at * 1000 - 20, "customer": {"name": "ada"}, "note": None} for at in range(count)
    ]
    return [json.dumps(one).encode() for one in documents]


def command(place: Path, *arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["topics", "add", *arguments], env={"TIDEMARK_TOPICS": str(place / "topics.yaml")})
    return done.exit_code, done.stdout, done.stderr or str(done.exception or "")


def test_a_topic_of_json_is_added_with_columns_and_event_time(place: Path) -> None:
    stored(place, *orders())
    before = (place / "topics.yaml").read_text()
    code, text, _ = command(place, "east/orders", "--owner", "sales", "--output", "json")
    answer = json.loads(text)
    assert (code, (place / "topics.yaml").read_text()) == (0, before), "nothing is written unless asked"
    assert answer["sample"] == {"source": "raw", "records": 40, "bytes": answer["sample"]["bytes"]}
    assert answer["event_time"]["chosen"] == "at"
    assert answer["event_time"]["candidates"][0] | {"farthest_distance": 0} == {
        "field": "at", "unit": "ms", "filled": 1.0, "median_distance": 0.02, "farthest_distance": 0,
    }  # fmt: skip
    assert answer["trial"]["refused"] == 0
    outcomes = {one["what"].split()[0]: one["outcome"] for one in answer["rights"]}
    assert outcomes == {"list": "yes", "get": "yes", "put": "yes", "delete": "unknown"}
    code, _, _ = command(place, "east/orders", "--owner", "sales", "--write")
    topic = load_topics(place / "topics.yaml").topic("orders")
    columns = {one.name: one.type for one in topic.parser.columns}  # type: ignore[union-attr]  # JSON
    assert columns == {"id": "int64", "at": "timestamp(ms)", "customer_name": "string"}
    assert topic.parser.event_time == EventTime(field="at"), "a time states its unit itself"
    assert topic.owner == "sales"
    assert (place / "topics.yaml").read_text().startswith(before)
    left = [one for one in (place / "lake").rglob("*") if ".tidemark-store" not in one.parts]
    assert left == [], "the probe leaves nothing but the directory's own lock"
    assert "is already in" in command(place, "east/orders")[2]


@pytest.mark.parametrize(("unit", "scale"), [("s", 1e-3), ("ms", 1), ("us", 1e3), ("ns", 1e6)])
def test_numbers_that_count_since_1970_become_times(place: Path, unit: str, scale: float) -> None:
    documents = [{"id": at, "paid": round((T0 + at * 1000) * scale), "made": T0} for at in range(40)]
    stored(place, *(json.dumps(one).encode() for one in documents))
    code, _, told = command(place, "orders", "--event-time", "none", "--write")
    assert code == 0, told
    columns = load_topics(place / "topics.yaml").topic("orders").parser.columns  # type: ignore[union-attr]  # JSON
    kinds = {"id": "int64", "paid": f"timestamp({unit})", "made": "timestamp(ms)"}
    assert {one.name: one.type for one in columns} == kinds


def test_a_time_that_would_refuse_more_stays_a_number(place: Path) -> None:
    documents = [{"at": T0 + at * 1000} for at in range(40)] + [{"at": 1 << 62}]
    stored(place, *(json.dumps(one).encode() for one in documents))
    assert command(place, "orders", "--event-time", "none", "--write")[0] == 0
    [column] = load_topics(place / "topics.yaml").topic("orders").parser.columns  # type: ignore[union-attr]  # JSON
    assert column.type == "int64"


def change(op: str, before: object, after: object) -> dict[str, object]:
    return {"before": before, "after": after, "source": {"lsn": 7}, "op": op, "ts_ms": T0}


@pytest.mark.parametrize("with_schema", [False, True])
def test_debeziums_changes_get_a_state_table(place: Path, with_schema: bool) -> None:
    ada: dict[str, object] = {"id": 1, "op": "x", "name": None}
    changes = [change("r", None, ada), change("u", ada, ada | {"name": "Ada"}), change("d", ada, None)]
    stored(
        place,
        *(json.dumps({"schema": {}, "payload": each} if with_schema else each).encode() for each in changes),
        None,
    )
    code, text, told = command(place, "orders", "--write", "--output", "json")
    assert code == 0, told
    topic = load_topics(place / "topics.yaml").topic("orders")
    assert topic.state is not None
    assert topic.state.envelope == "debezium"
    above = "payload." if with_schema else ""
    assert {each["name"]: each["path"] or each["name"] for each in json.loads(text)["parser"]["columns"]} == {
        "op": f"{above}op", "id": f"{above}after.id", "op_2": f"{above}after.op", "name": f"{above}after.name",
    }  # fmt: skip
    assert RecordColumns(topic).table.names[-3:] == ["id", "op_2", "name"]
    assert "the state table orders_current has the newest record of each key" in " ".join(json.loads(text)["notes"])


@pytest.mark.parametrize("wrong", [{"op": "x"}, {"source": None}, {"after": "text"}, {"after": None}])
def test_what_is_no_change_of_debeziums_gets_no_state(place: Path, wrong: dict[str, object]) -> None:
    stored(place, json.dumps(change("c", None, {"id": 1}) | wrong).encode())
    assert command(place, "orders", "--write")[0] == 0
    assert load_topics(place / "topics.yaml").topic("orders").state is None


def test_changes_without_a_key_or_without_their_time_get_no_state(place: Path) -> None:
    value = json.dumps(change("c", None, {"id": 1})).encode()
    raw = RawBuilder(LocalStore(place / "raw"))
    raw.segment(batch(0, [Record(0, T0, b"k", value), Record(1, T0, None, value)]))
    raw.publish()
    assert command(place, "orders", "--write")[0] == 0
    assert load_topics(place / "topics.yaml").topic("orders").state is None


def test_the_report_says_what_a_person_needs(place: Path) -> None:
    stored(place, *orders(), b"no json")
    code, text, _ = command(place, "orders", "--event-time", "none", "--rate", "20MB/s")
    assert code == 0
    for part in ("97.6% json", "refused 1 times", "customer_name", "event time: the record timestamp", "20.000 MB/s"):
        assert part in text
    assert "cost: $" in text
    assert "1 of 41 would go to quarantine" in text
    assert "+  - topic: orders" in text


def test_the_patch_alone_goes_to_standard_output(place: Path) -> None:
    stored(place, *orders())
    code, text, told = command(place, "orders", "--output", "patch", "--patch", str(place / "x.patch"))
    assert code == 0
    assert text.startswith("--- a/topics.yaml\n+++ b/topics.yaml\n")
    assert (place / "x.patch").read_text() == text
    assert "event time: at" in told


def test_confluents_framing_leads_to_the_schema_of_a_registry(place: Path) -> None:
    values = [struct.pack(">bI", 0, 7) + bytes([2 * at]) + _zigzag(T0 + at * 1000) for at in range(20)]
    stored(place, *values)
    assert "give --registry NAME" in command(place, "orders")[2]
    registry = Registry()
    registry.register("orders-value", 7, 1, json.dumps(AVRO))
    with serving(registry):
        name_registry(place, registry.url)
        code, text, told = command(place, "orders", "--registry", "main", "--output", "json")
        assert code == 0, told
        answer = json.loads(text)
        assert answer["event_time"]["candidates"][0]["unit"] == "ms"
        assert answer["parser"]["kind"] == "avro"
        assert answer["trial"]["columns"]["id"] == {"type": "int64", "null": 0}
        assert "schema: {registry: main, subject: orders-value}" in answer["patch"]
        code, _, told = command(place, "orders", "--registry", registry.url)
        assert (code, f"{registry.url} is not one of the `registries` of the topics file; there is main" in told) == (
            1,
            True,
        )
        code, _, told = command(place, "orders", "--registry", "main", "--subject", "other")
        assert code != 0
        assert "other" in told


def protobuf_registry(kind: str = "PROTOBUF") -> Registry:
    """Has ``shop.Order``, with a message of another file in it, as a registry answers with and without a format."""
    prices = FileDescriptorProto(name="prices.proto", package="money", syntax="proto3")
    prices.message_type.add(name="Price").field.add(name="cents", number=1, type=3, label=1)
    shop = order_file()
    shop.dependency.append("prices.proto")
    paid = {"name": "paid", "number": 12, "type": 11, "label": 1, "type_name": ".money.Price"}
    shop.message_type[1].field.add(**paid)
    registry = Registry()
    references = [{"name": "prices.proto", "subject": "prices", "version": 3}]
    for file, subject, number, version in ((prices, "prices", 8, 3), (shop, "orders-value", 9, 1)):
        more = {"references": references} if file is shop else {}
        text = base64.b64encode(file.SerializeToString()).decode()
        registry.register(subject, number, version, text, "PROTOBUF", **more)
        registry.replies[f"/schemas/ids/{number}?format=serialized"][1]["schemaType"] = kind
        proto = {"schema": 'syntax = "proto3"; // the text of the file', "schemaType": kind, **more}
        registry.replies[f"/schemas/ids/{number}"] = 200, proto
    return registry


def protobuf_orders(count: int = 20) -> list[bytes | None]:
    """Records of ``shop.Order``, the second message of its file, with a price of 3 cents."""
    frame, paid = struct.pack(">bI", 0, 9) + b"\x02\x02", b"\x62\x02\x08\x03"
    at = [datetime.fromtimestamp(T0 // 1000 + number, UTC) for number in range(count)]
    return [frame + order(id=number, name="ada", at=one) + paid for number, one in enumerate(at)]


def test_protobuf_is_read_by_the_schema_of_a_registry(place: Path) -> None:
    stored(place, *protobuf_orders(), b"\0\0\0\0\x09\x02\x02\xff")
    registry = protobuf_registry()
    with serving(registry):
        name_registry(place, registry.url)
        asked = (place, "orders", "--registry", "main", "--output", "json")
        code, text, told = command(*asked)
        assert code == 0, told
        answer = json.loads(text)
        assert command(*asked) == (0, text, told), "nothing that the process has kept is taken for Avro"
        assert (answer["parser"]["kind"], answer["parser"]["message"]) == ("protobuf", "shop.Order")
        assert answer["event_time"]["chosen"] == "at", "a record that is refused needs none"
        assert (answer["trial"]["refused"], answer["trial"]["rows"]) == (1, 21)
        types = {name: one["type"] for name, one in answer["trial"]["columns"].items()}
        assert {name: types[name] for name in ("id", "name", "at")} == {
            "id": "int64", "name": "string", "at": "timestamp[us, tz=UTC]",
        }  # fmt: skip
        assert types["paid"] == "struct<cents: int64>"
        for part in ("kind: protobuf", "message: shop.Order", "framing: confluent", "subject: orders-value"):
            assert part in answer["patch"]
        code, _, told = command(place, "orders", "--registry", "main", "--write")
        assert code == 0, told
        assert load_topics(place / "topics.yaml").topic("orders").parser.kind == "protobuf"


@pytest.mark.parametrize("where", ["folder", "elsewhere"])
def test_a_file_of_descriptors_is_found_from_the_working_directory(
    place: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    stored(place, *[order(id=at, name="ada") for at in range(20)])
    (place / "schemas").mkdir()
    (place / "schemas" / "set.pb").write_bytes(FileDescriptorSet(file=[order_file()]).SerializeToString())
    monkeypatch.chdir(place if where == "folder" else place.parent)
    given = "schemas/set.pb" if where == "folder" else f"{place.name}/schemas/set.pb"
    arguments = ["east/orders", "--message", "shop.Order", "--write"]

    code, _, errors = command(place, *arguments, "--descriptors", given)

    assert (code, "changed" in errors) == (0, True), errors
    assert "descriptors: schemas/set.pb\n" in (place / "topics.yaml").read_text()
    code, _, errors = command(place, *arguments, "--descriptors", "set.pb")
    assert errors == "--descriptors: set.pb is not a file; give its path from the working directory"


def test_it_ends_with_what_is_left_to_do(place: Path) -> None:
    stored(place, *orders())
    _, _, errors = command(place, "east/orders")
    [last] = errors.splitlines()[-1:]
    assert last.startswith("next: Airflow lands the topic by itself once its topics file has it")
    assert "reload" not in last
    _, text, errors = command(place, "east/orders", "--freshness", "20s", "--output", "json")
    assert json.loads(text)["patch"]
    assert (
        "add it to freshness in each agent's file, as {orders: 20s}, and reload the agents" in errors.splitlines()[-1]
    )


@pytest.mark.parametrize(
    ("arguments", "kind", "told"),
    [
        (("--format", "avro"), "PROTOBUF", "which is not an Avro schema, but one of type PROTOBUF"),
        (("--message", "shop.Nothing"), "PROTOBUF", "shop.Nothing"),
        (("--subject", "other-value"), "PROTOBUF", "other-value"),
        ((), "THRIFT", "type THRIFT"),
    ],
)
def test_protobuf_that_cannot_be_read_by_a_registry_is_refused(
    place: Path, arguments: tuple[str, ...], kind: str, told: str
) -> None:
    stored(place, *protobuf_orders())
    registry = protobuf_registry(kind)
    with serving(registry):
        name_registry(place, registry.url)
        code, _, said = command(place, "orders", "--registry", "main", *arguments)
    assert code != 0
    assert told in said


def _zigzag(number: int) -> bytes:
    left, found = number << 1, b""
    while left > 0x7F:
        found, left = found + bytes([left & 0x7F | 0x80]), left >> 7
    return found + bytes([left])


@pytest.mark.parametrize(
    ("values", "arguments", "told"),
    [
        (orders(), ("east/clicks",), "is already in"),
        (orders(), ("east/orders", "--table", "clicks"), "table clicks appears twice"),
        (orders(), ("east/or/ders",), ""),
        (orders(), ("east/orders", "--event-time", "nothing"), "nothing is not one of the columns"),
        (orders(), ("east/orders", "--event-time", "id"), "its unit is needed"),
        (orders(), ("east/orders", "--rate", "fast"), "--rate: 'fast' must be a size"),
        (orders(), ("east/orders", "--rate", "0MB/s"), "must be a size above 0"),
        (orders(), ("east/orders", "--yes"), "--yes: applies only with --create"),
        (orders(), ("east/orders", "--freshness", "1s"), "freshness"),
        (orders(), ("east/orders", "--format", "avro"), "needs the table's schema"),
        (orders(), ("west/orders", "--from", "raw"), "no record of it is stored"),
        (orders(), ("east/orders", "--create"), "--rate: is required"),
        (orders(), ("east/clicks", "--create"), "is already in"),
        ([b"\xff\xfe"] * 3, ("east/orders",), "the format of its values is not recognized"),
        ([b"\x08\x01"] * 3, ("east/orders",), "look like Protobuf"),
        ([b"text"] * 3, ("east/orders", "--format", "json"), "no JSON object"),
        ([None] * 3, ("east/orders",), "has no record that shows its format"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_by_name(
    place: Path, values: list[bytes | None], arguments: tuple[str, ...], told: str
) -> None:
    stored(place, *values)
    before = (place / "topics.yaml").read_text()
    code, _, said = command(place, *arguments, "--write")
    assert code != 0
    assert told in said
    assert (place / "topics.yaml").read_text() == before


@pytest.mark.parametrize(
    ("text", "expected"), [("20MB/s", 2e7), ("1.5MiB", 1.5 * (1 << 20)), ("7", 7.0), ("3 kB/s", 3e3)]
)
def test_a_rate_is_a_size_a_second(text: str, expected: float) -> None:
    assert byte_rate(text, "--rate") == expected


def test_text_is_kept_as_bytes(place: Path) -> None:
    stored(place, b"a line", b"another")
    code, text, _ = command(place, "orders")
    assert code == 0
    assert "values are kept as bytes: they look like text" in text
