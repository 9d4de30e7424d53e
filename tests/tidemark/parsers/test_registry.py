"""The registry: which answer refuses records, which one is asked for again, and which one is the configuration's."""

from __future__ import annotations

import base64
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.certificates import certificate_of_new_authority
from tests.tidemark.parsers.registry_server import Registry, serving
from tests.tidemark.parsers.support import records, rows_of, topic_of
from tests.tidemark.parsers.test_avro import V1, V2, avro, encoded, framed
from tests.tidemark.parsers.test_protobuf import order, order_file, protobuf
from tidemark import connections
from tidemark.concurrency import Lru
from tidemark.connections import NamedConnection
from tidemark.errors import ConfigError, RegistryUnavailable
from tidemark.parsers import schema_registry
from tidemark.parsers.avro import parser as avro_parser
from tidemark.parsers.base import Parser
from tidemark.parsers.confluent_framing import rows_by_schema
from tidemark.parsers.factory import parser_of

GOOD = framed(2, encoded(V2, {"a": 2}))
SECRET = "s3cr3t-that-nobody-sees"
RECURSIVE = {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "R"]}]}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a server that will not answer; and each test's process has found no schema yet."""
    monkeypatch.setattr(schema_registry, "PAUSES_SECONDS", (0.0,) * len(schema_registry.PAUSES_SECONDS))
    monkeypatch.setattr(schema_registry, "_kept", Lru(1000))


@pytest.fixture
def server() -> Iterator[Registry]:
    """A registry with schemas 1 and 2."""
    found = Registry()
    found.schema(1, V1)
    found.schema(2, V2)
    with serving(found):
        yield found


def reader(directory: Path, server: Registry, more: str = "") -> Parser:
    return avro(directory, V2, "framing: confluent\nregistry: main", registry=f"url: '{server.url}'{more}")


def reason(parser: Parser, number: int) -> str:
    """Why a record of schema ``number`` is refused, beside a good one that is not."""
    parsed = parser.parse(rows_of([framed(number, b"\x02"), GOOD]))
    assert set(parsed.refused) == {0}
    assert records(parsed)[1] == {"a": 2}
    return parsed.refused[0]


def test_a_schema_is_asked_for_once_by_the_process_and_an_unknown_number_once_by_the_task(
    tmp_path: Path, server: Registry
) -> None:
    server.failures = 2
    values = [framed(1, encoded(V1, {"a": 1, "gone": "x"})), GOOD, framed(5, b"")] * 3
    for _ in range(2):
        parser = reader(tmp_path, server)
        for _ in range(2):
            parsed = parser.parse(rows_of(values))
            assert set(parsed.refused) == {2, 5, 8}
            assert "schema 5, which is unknown" in parsed.refused[2]
            assert [row.get("a") for row in records(parsed)] == [1, 2, None] * 3
    times = server.times
    assert times["/schemas/ids/5"] >= 2
    assert sum(times.values()) == 2 + 1 + 1 + 2  # failures, schemas 1 and 2, and the unknown one by each task


def test_an_unknown_number_that_is_registered_later_is_found_by_the_next_task(tmp_path: Path, server: Registry) -> None:
    rows = rows_of([framed(7, encoded(V2, {"a": 3}))])
    assert set(reader(tmp_path, server).parse(rows).refused) == {0}
    server.schema(7, V2)
    assert records(reader(tmp_path, server).parse(rows)) == [{"a": 3}]


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (
            (200, {"schemaType": "PROTOBUF", "schema": 'syntax = "proto3";'}),
            "not an Avro schema, but one of type PROTOBUF",
        ),
        ((200, {"schema": "{"}), "Expecting property name"),
        ((200, {"schema": '"int"'}), "Schema mismatch"),
        ((200, {"schema": "[" * 10_000}), "more than 256 levels"),
        ((200, {"schema": json.dumps(RECURSIVE)}), "R holds itself"),
        ((200, {"schema": json.dumps(V2 | {"doc": "x" * schema_registry.MAX_TEXT})}), "more than 1048576 characters"),
        ((200, b"[" * (9 << 20)), "too large"),
        ((200, {"id": 9}), "has no text"),
        ((200, {"schema": "{}", "references": [{"name": "x"}]}), "without subject and version"),
        ((200, {"schema": "{}", "references": [{"subject": "s/x", "version": 3}]}), "s/x version 3, which is unknown"),
        ((404, {"error_code": 40403}), "is unknown"),
        ((404, {"error_code": 404}), "is unknown"),
        ((422, {"error_code": 42201}), r"the registry refuses \(422, 42201\)"),
        ((403, {"error_code": 40301}), r"does not let us read \(403\)"),
    ],
)
def test_what_is_of_the_number_alone_refuses_its_records(
    tmp_path: Path, server: Registry, reply: Any, words: str
) -> None:
    server.replies["/schemas/ids/9"] = reply
    server.replies["/schemas/types"] = 200, ["AVRO"]
    found = reason(reader(tmp_path, server), 9)
    assert re.search(words, found), found


def test_a_number_beyond_a_registrys_is_not_asked_for(tmp_path: Path, server: Registry) -> None:
    assert "end at 2147483647" in reason(reader(tmp_path, server), (1 << 32) - 1)
    assert server.asked == ["/schemas/ids/2"]


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503])
def test_what_may_pass_is_asked_for_again_and_then_ends_the_task(tmp_path: Path, server: Registry, status: int) -> None:
    server.replies["/schemas/ids/9"] = status, {"error_code": 50001}
    parser = reader(tmp_path, server)
    with pytest.raises(RegistryUnavailable, match=f"/schemas/ids/9: answered {status}"):
        parser.parse(rows_of([framed(9, b""), GOOD]))
    assert server.times["/schemas/ids/9"] == len(schema_registry.PAUSES_SECONDS) + 1
    server.schema(9, V2)
    assert records(parser.parse(rows_of([framed(9, b"\x02\x00"), GOOD]))) == [{"a": 1}, {"a": 2}]


def test_a_registry_that_is_not_there_ends_the_task(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        there = Registry(url=f"http://127.0.0.1:{nobody.getsockname()[1]}")
        with pytest.raises(RegistryUnavailable, match="refused"):
            reader(tmp_path, there).parse(rows_of([GOOD]))


def test_an_answer_that_is_cut_ends_the_task(tmp_path: Path, server: Registry) -> None:
    server.replies["/schemas/ids/9"] = 200, b'{"schema": "'
    with pytest.raises(RegistryUnavailable, match="valid JSON"):
        reader(tmp_path, server).parse(rows_of([framed(9, b"")]))


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ((404, b"<html>not here</html>"), r"registries\.\*\.url: .* answered by 404 without an error code"),
        ((400, b""), r"registries\.\*\.url: .* answered by 400 without an error code"),
        ((307, b"http://127.0.0.1:1/schemas/ids/9"), r"registries\.\*\.url: .* redirect \(307\)"),
        ((401, {"error_code": 401}), r"registries\.\*\.auth: the registry answers 401: set auth"),
        ((403, {"error_code": 40301}), r"registries\.\*\.auth: the registry answers 403"),
    ],
)
def test_what_is_of_the_settings_is_an_error_of_the_configuration(
    tmp_path: Path, server: Registry, reply: Any, words: str
) -> None:
    server.replies["/schemas/ids/9"] = server.replies["/schemas/types"] = reply
    with pytest.raises(ConfigError, match=words):
        reader(tmp_path, server).parse(rows_of([framed(9, b""), GOOD]))


def test_references_are_resolved(tmp_path: Path, server: Registry) -> None:
    part = {"type": "record", "name": "shop.Part", "fields": [{"name": "size", "type": "shop.Size"}]}
    size = {"type": "record", "name": "shop.Size", "fields": [{"name": "cm", "type": "long"}]}
    whole = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": "int"}, {"name": "p", "type": "shop.Part"}],
    }
    to_part = {"name": "shop.Part", "subject": "parts/x", "version": 3}
    to_size = {"name": "shop.Size", "subject": "sizes", "version": 1}
    server.schema(9, whole, references=[to_part])
    server.replies["/subjects/parts%2Fx/versions/3"] = 200, {"schema": json.dumps(part), "references": [to_size]}
    server.replies["/subjects/sizes/versions/1"] = 200, {"schema": json.dumps(size)}
    table = V2 | {
        "fields": [*V2["fields"], {"name": "p", "type": ["null", part | {"fields": [{"name": "size", "type": size}]}]}]
    }
    parser = avro(tmp_path, table, "framing: confluent\nregistry: main", registry=f"url: '{server.url}'")
    assert records(parser.parse(rows_of([framed(9, b"\x02\x0a")]))) == [{"a": 1, "p": {"size": {"cm": 5}}}]
    server.replies["/subjects/loop/versions/1"] = (
        200,
        {"schema": "{}", "references": [{"subject": "loop", "version": 1}]},
    )
    server.schema(10, whole, references=[{"subject": "loop", "version": 1}])
    assert "refers to itself" in parser.parse(rows_of([framed(10, b"")])).refused[0]


def test_numbers_are_asked_for_side_by_side_over_few_connections(tmp_path: Path, server: Registry) -> None:
    values = [framed(number, b"") for number in range(1000, 3000)]
    parsed = reader(tmp_path, server).parse(rows_of([*values, GOOD]))
    assert len(parsed.refused) == 2000
    assert max(server.times.values()) == 1
    assert 1 < len(server.connections) <= schema_registry.CONNECTIONS


def test_a_task_looks_up_so_many_numbers_in_vain(
    tmp_path: Path, server: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(avro_parser, "MAX_IN_VAIN", 100)
    parser = reader(tmp_path, server)
    noise = [framed(number, b"") for number in range(1000, 2000)]
    parsed = parser.parse(rows_of([*noise, GOOD]))
    assert len(server.asked) == 2 * 64
    assert records(parsed)[-1] == {"a": 2}  # the lowest of the numbers that one record each names
    assert sum("is unknown" in one for one in parsed.refused.values()) == 127
    assert sum(
        "is not looked up: the task has looked up 127 others without success" in one for one in parsed.refused.values()
    )
    assert records(parser.parse(rows_of([GOOD]))) == [{"a": 2}]
    assert "not looked up" in parser.parse(rows_of([framed(1, b"")])).refused[0]
    assert records(reader(tmp_path, server).parse(rows_of([framed(1, encoded(V1, {"a": 1, "gone": ""}))]))) == [
        {"a": 1}
    ]


def test_a_task_reads_so_much_of_schemas(tmp_path: Path, server: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_parser, "MAX_TEXT", 100)
    parser = reader(tmp_path, server)
    assert records(parser.parse(rows_of([GOOD, framed(1, encoded(V1, {"a": 1, "gone": ""}))]))) == [{"a": 2}, {"a": 1}]
    assert "characters of schemas; a replay looks again" in parser.parse(rows_of([framed(5, b"")])).refused[0]


def test_a_process_keeps_so_much_of_schemas(tmp_path: Path, server: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: Lru[Any, schema_registry.Written] = Lru(len(json.dumps(V2)), lambda written: written.size)
    monkeypatch.setattr(schema_registry, "_kept", kept)
    for _ in range(2):
        reader(tmp_path, server).parse(rows_of([framed(1, b"")]))
        reader(tmp_path, server).parse(rows_of([GOOD]))
        reader(tmp_path, server).parse(rows_of([GOOD]))
    assert server.times == {"/schemas/ids/1": 2, "/schemas/ids/2": 2}


def test_the_numbers_that_most_values_name_come_first() -> None:
    values = [framed(9, b""), b"", b"x1234", None, framed(3, b"x"), framed(9, b"y"), framed(1 << 31, b""), b"\0\0\0\0"]
    column = rows_of(values).column("kafka_value")
    assert [*rows_by_schema(column)] == [9, 3, 1 << 31]
    assert [*rows_by_schema(column.slice(4, 2))] == [3, 9]
    assert [*rows_by_schema(column.slice(0, 0))] == []


@pytest.mark.parametrize(
    ("auth", "environment", "header"),
    [
        ("basic", {"USER": "Zoë", "PASSWORD": "a:b"}, "Basic " + base64.b64encode("Zoë:a:b".encode()).decode()),
        ("bearer", {"TOKEN": SECRET + "\n"}, f"Bearer {SECRET}"),
    ],
)
def test_secrets_come_from_the_environment_and_go_to_the_registry_alone(
    tmp_path: Path,
    server: Registry,
    monkeypatch: pytest.MonkeyPatch,
    auth: str,
    environment: dict[str, str],
    header: str,
) -> None:
    server.authorization = header
    parser = reader(tmp_path, server, f", auth: {auth}, variables: TIDEMARK_REGISTRY_SHOP")
    first = next(iter(environment))
    with pytest.raises(ConfigError, match=f"TIDEMARK_REGISTRY_SHOP_{first} must be set"):
        parser.parse(rows_of([GOOD]))
    for name, value in environment.items():
        monkeypatch.setenv(f"TIDEMARK_REGISTRY_SHOP_{name}", value)
    assert records(parser.parse(rows_of([GOOD]))) == [{"a": 2}]

    with serving(Registry()) as elsewhere:
        server.replies["/schemas/ids/1"] = 307, f"{elsewhere.url}/schemas/ids/1".encode()
        with pytest.raises(ConfigError, match="redirect"):
            parser.parse(rows_of([framed(1, b"")]))
        assert elsewhere.asked == []


@pytest.mark.parametrize(
    ("said", "header"),
    [
        (NamedConnection(login="Zoë", password="a:b"), "Basic " + base64.b64encode("Zoë:a:b".encode()).decode()),
        (NamedConnection(password=SECRET), f"Bearer {SECRET}"),
    ],
)
def test_secrets_come_from_the_connection_that_the_settings_name(
    tmp_path: Path, server: Registry, monkeypatch: pytest.MonkeyPatch, said: NamedConnection, header: str
) -> None:
    server.authorization = header
    parser = reader(tmp_path, server, ", connection: shop")
    with pytest.raises(ConfigError, match="shop: is a connection of Airflow's"):
        parser.parse(rows_of([GOOD]))
    (tmp_path / "connections.json").write_bytes(connections.dumped({"shop": said}))
    monkeypatch.setenv(connections.VARIABLE, str(tmp_path / "connections.json"))
    assert records(parser.parse(rows_of([GOOD]))) == [{"a": 2}]

    server.authorization = "Bearer another"
    with pytest.raises(
        ConfigError, match=r"registries\.\*\.connection: the registry answers 401 to what shop"
    ) as failed:
        parser.parse(rows_of([framed(1, b"")]))
    assert SECRET not in str(failed.value)


@pytest.mark.parametrize(
    "said", [{}, {"login": "me"}, {"login": "a:b", "password": "c"}, {"password": f"{SECRET}\r\nX"}]
)
def test_a_connection_without_usable_secrets_is_named(
    tmp_path: Path, server: Registry, monkeypatch: pytest.MonkeyPatch, said: dict[str, Any]
) -> None:
    (tmp_path / "connections.json").write_bytes(connections.dumped({"shop": NamedConnection(**said)}))
    monkeypatch.setenv(connections.VARIABLE, str(tmp_path / "connections.json"))
    with pytest.raises(ConfigError, match="shop must have a login and a password") as failed:
        reader(tmp_path, server, ", connection: shop").parse(rows_of([GOOD]))
    assert SECRET not in str(failed.value)


@pytest.mark.parametrize("token", [SECRET, f"{SECRET}\r\nX: y", f"{SECRET}é"])
def test_no_error_shows_a_secret(tmp_path: Path, server: Registry, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("TIDEMARK_REGISTRY_TOKEN", token)
    server.authorization = "Bearer another"
    parser = reader(tmp_path, server, ", auth: bearer")
    with pytest.raises(ConfigError, match="TIDEMARK_REGISTRY_TOKEN") as failed:
        parser.parse(rows_of([GOOD]))
    error: BaseException | None = failed.value
    while error:
        assert SECRET not in repr(error)
        error = error.__cause__ or error.__context__


def test_a_registry_with_a_certificate_of_its_own(tmp_path: Path) -> None:
    authority, certificate = certificate_of_new_authority(tmp_path)
    with serving(Registry(), certificate) as there:
        there.schema(2, V2)
        assert records(reader(tmp_path, there, f", ca_file: {authority.name}").parse(rows_of([GOOD]))) == [{"a": 2}]
        with pytest.raises(ConfigError, match=r"registries\.\*\.ca_file: the registry's certificate is not trusted"):
            reader(tmp_path, Registry(url=there.url + "/")).parse(rows_of([framed(3, b"")]))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("url: 'http://registry:8081', auth: basic", "auth and connection need https"),
        ("url: 'http://registry:8081', connection: registry", "auth and connection need https"),
        ("url: 'https://registry', auth: basic, connection: registry", "leave it out beside connection"),
        ("url: 'http://registry:8081', ca_file: ca.pem", r"ca_file.* must hold certificates in PEM"),
        ("url: 'https://registry', ca_file: none.pem", "cannot be read"),
        ("url: 'https://user:word@registry'", "url"),
        ("url: 'https://registry?token=x'", "url"),
        ("url: 'https://registry', auth: bearer, variables: AWS", "variables"),
        ("url: 'https://registry', auth: bearer, token: x", "token: is not a known key"),
    ],
)
def test_settings_that_cannot_be_right_are_refused(tmp_path: Path, more: str, words: str) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(ConfigError, match=words):
        avro(tmp_path, V2, "framing: confluent\nregistry: main", registry=more)


GUID = UUID("89791762-2336-4186-9674-299b90a802e2")
OTHER_GUID = UUID("00000000-0000-0000-0000-000000000007")


def in_header(guid: UUID, *more: bytes) -> tuple[str, bytes]:
    return "__value_schema_id", b"\x01" + guid.bytes + b"".join(more)


@pytest.mark.parametrize("count", [1, 20])
def test_a_header_names_the_schema_instead_of_the_value(tmp_path: Path, server: Registry, count: int) -> None:
    server.replies[f"/schemas/guids/{GUID}"] = 200, {"schema": json.dumps(V1)}
    v1, v2 = encoded(V1, {"a": 1, "gone": "x"}), encoded(V2, {"a": 2})
    rows: list[tuple[bytes | None, list[tuple[str, bytes | None]]]] = [
        (v1, [("trace", b"x"), in_header(GUID)]),
        (GOOD, [("trace", None)]),
        (v2, [("__value_schema_id", bytes(1) + (2).to_bytes(4, "big"))]),
        (v1, [in_header(OTHER_GUID), in_header(GUID)]),
        (v1, [in_header(OTHER_GUID)]),
        (v1, [("__key_schema_id", b"\x01" + GUID.bytes), ("__value_schema_id", b"\x02mine")]),
        (None, [in_header(GUID)]),
    ]
    values, headers = zip(*rows, strict=True)
    parsed = reader(tmp_path, server).parse(rows_of([*values] * count, headers=[*headers] * count))
    assert [row.get("a") for row in records(parsed)] == [1, 2, 2, 1, None, None, None] * count
    assert {row % len(rows) for row in parsed.refused} == {4, 5}
    assert parsed.refused[4] == f"names schema {OTHER_GUID}, which is unknown"
    assert "nor has its header" in parsed.refused[5]
    assert server.times[f"/schemas/guids/{GUID}"] == 1


def test_a_header_names_the_message_of_a_protobuf_file(tmp_path: Path, server: Registry) -> None:
    file = order_file()
    text = base64.b64encode(file.SerializeToString()).decode()
    server.replies[f"/schemas/guids/{GUID}?format=serialized"] = 200, {"schema": text, "schemaType": "PROTOBUF"}
    parser = protobuf(
        tmp_path, file, "shop.Order", "framing: confluent\nregistry: main", registry=f"url: '{server.url}'"
    )
    value = order(id=5)
    headers = [[in_header(GUID, b"\x02\x02")], [in_header(GUID)], [in_header(GUID, b"\x00")]]
    parsed = parser.parse(rows_of([value] * 3, headers=headers))
    assert records(parsed)[0]["id"] == 5
    assert set(parsed.refused) == {1, 2}, "they name the first message of the file"


def test_json_behind_a_header_has_no_frame(tmp_path: Path) -> None:
    topic = topic_of("kind: json\nframing: confluent\ncolumns: [{name: a, type: int64}]", tmp_path)
    values = [b'{"a": 1}', bytes(1) + b"\0\0\0\x07" + b'{"a": 2}', b'{"a": 3}']
    parsed = parser_of(topic.parser, "orders").parse(rows_of(values, headers=[[in_header(GUID)], [], []]))
    assert [row.get("a") for row in records(parsed)] == [1, 2, None]
    assert set(parsed.refused) == {2}
