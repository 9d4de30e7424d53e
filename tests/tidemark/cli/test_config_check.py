"""``tidemark config check``: what it asks, what it says was not asked, and what makes it fail."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from kafka import KafkaAdminClient
from typer.testing import CliRunner

from tests.support.kafka import KafkaCluster
from tests.support.ports import HOST, free_port
from tests.support.s3 import OwnBuckets, allow
from tests.tidemark.parsers.registry_server import Registry, serving
from tidemark.cli.app import app
from tidemark.errors import ConfigError
from tidemark.store.s3.clients import forget_clients
from tidemark.store.s3.store import MultipartUpload, S3Store

BOTH = ["arn:aws:s3:::raw", "arn:aws:s3:::raw/*", "arn:aws:s3:::lake", "arn:aws:s3:::lake/*"]
READS = allow(["s3:GetObject", "s3:ListBucket"], BOTH)
TEXT = """
cluster: east
raw: {url: 's3://RAW/prefix'}
lake: s3://LAKE/tables
store: {endpoint_url: 'ENDPOINT', region: us-east-1, path_style: true}
topics: [{topic: orders, parser: PARSER}]
"""
UNTRIED = "without the right to delete, an object would be left behind: let somebody try it who has that right"
ORDER = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})


@pytest.fixture(scope="module")
def server(own_buckets: Callable[..., OwnBuckets]) -> OwnBuckets:
    users = {"reader": [READS], "pipeline": [READS, allow(["s3:PutObject"], ["arn:aws:s3:::lake/*"])]}
    return own_buckets(users=users)


def become(user: str, server: OwnBuckets, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.env(user).items():
        monkeypatch.setenv(name, value)
    forget_clients()


@pytest.fixture
def place(tmp_path: Path, server: OwnBuckets, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    become("pipeline", server, monkeypatch)
    write(tmp_path, server)
    yield tmp_path
    forget_clients()


def write(
    place: Path,
    server: OwnBuckets,
    *,
    raw: str = "",
    lake: str = "",
    parser: str = "{kind: bytes}",
    more: str = "",
) -> None:
    text = (
        TEXT.replace("RAW", raw or server.raw).replace("LAKE", lake or server.lake).replace("ENDPOINT", server.endpoint)
    )
    (place / "topics.yaml").write_text(text.replace("PARSER", parser) + more)


def check(place: Path, *arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["config", "check", "--topics", str(place / "topics.yaml"), *arguments])
    code = 2 if isinstance(done.exception, ConfigError) else done.exit_code  # as the program's main makes of it
    told = (done.stdout, done.stderr or str(done.exception or ""))
    output, errors = (re.sub(r"s3://(raw|lake)-[0-9a-f]{10}", r"s3://\1", text) for text in told)
    return code, output, errors


def outcomes(place: Path, *arguments: str) -> tuple[int, dict[str, str]]:
    code, output, errors = check(place, *arguments, "--output", "json")
    assert output, errors
    checks: list[dict[str, Any]] = json.loads(output)["checks"]
    return code, {one["what"]: one["outcome"] for one in checks}


def test_each_line_says_what_was_asked_and_what_was_not(place: Path, server: OwnBuckets) -> None:
    code, output, errors = check(place)
    assert (code, errors) == (0, "")
    tried = "tried with the credentials of this command"
    assert output.splitlines()[2:] == [
        "yes        parsers: those of 1 topics can be made",
        f"yes        list s3://raw: {tried}",
        f"yes        get from s3://raw: {tried}",
        "not tried  put to s3://raw: agents write there: `tidemark-agent config check` tries it",
        f"yes        list s3://lake: {tried}",
        f"yes        get from s3://lake: {tried}",
        f"yes        put to s3://lake/tables: {tried}",
        f"not tried  create once in s3://lake/tables: {UNTRIED}",
        "not tried  brokers of east: the topics file has no bootstrap for the cluster, and ingestion needs none",
        "yes        this host's clock: it is the store's, to a minute",
        "not tried  agents: --agents reads their reports",
    ]
    for bucket in (server.raw, server.lake):
        assert "Contents" not in server.client().list_objects_v2(Bucket=bucket), "nothing is left behind"


@pytest.mark.essential
@pytest.mark.parametrize(("wrong", "left"), [("raw", "lake"), ("lake", "raw")])
def test_a_bucket_that_does_not_exist_fails(
    place: Path, server: OwnBuckets, monkeypatch: pytest.MonkeyPatch, wrong: str, left: str
) -> None:
    become("admin", server, monkeypatch)  # S3 tells others nothing of a bucket that is not theirs
    write(place, server, **{wrong: "nowhere"})
    code, output, errors = check(place)
    assert code == 1
    assert (
        errors == "list s3://nowhere: the bucket does not exist; create it, or correct its name in the configuration\n"
    )
    assert "no         list s3://nowhere\n" in output
    assert f"yes        list s3://{left}" in output
    assert "from s3://nowhere" not in output


@pytest.mark.usefixtures("quick_retries")
def test_a_store_that_does_not_answer_fails_at_once(place: Path, server: OwnBuckets) -> None:
    text = (place / "topics.yaml").read_text()
    (place / "topics.yaml").write_text(text.replace(server.endpoint, f"http://{HOST}:{free_port()}"))
    code, found = outcomes(place, "--agents")
    assert code == 1
    assert (found["list s3://raw"], found["list s3://lake"], found["agents"]) == ("unknown", "unknown", "unknown")


@pytest.mark.essential
def test_who_may_only_read_is_told_so(place: Path, server: OwnBuckets, monkeypatch: pytest.MonkeyPatch) -> None:
    become("reader", server, monkeypatch)
    code, output, errors = check(place)
    assert (code, "no         put to s3://lake/tables" in output) == (0, True)
    assert errors.startswith("put to s3://lake/tables: ")


def test_the_file_alone_is_checked_offline(place: Path, server: OwnBuckets) -> None:
    write(place, server, raw="nowhere")
    code, output, errors = check(place, "--offline")
    assert (code, errors) == (0, "")
    assert output.splitlines()[-1] == "nothing was asked (--offline): buckets, brokers and registries may be wrong"
    assert outcomes(place, "--offline") == (0, {})
    assert check(place, "--offline", "--agents")[0] == 2


def test_brokers_are_asked_where_the_file_names_them(place: Path, server: OwnBuckets, kafka: KafkaCluster) -> None:
    write(place, server, more=f"bootstrap: {{east: '{kafka.bootstrap.split(',')[0]}'}}\n")
    code, output, _ = check(place)
    assert (code, f"yes        brokers of east: {kafka.bootstrap.split(',')[0]} names 1" in output) == (0, True)
    (place / "client.yaml").write_text("security_protocl: SSL")
    with pytest.raises(ConfigError, match="security_protocl: is not a connection setting"):
        CliRunner().invoke(
            app, ["config", "check", "--topics", f"{place}/topics.yaml", "--client-config", f"{place}/client.yaml"],
            catch_exceptions=False,
        )  # fmt: skip


def test_brokers_that_do_not_answer_fail(place: Path, server: OwnBuckets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KafkaAdminClient.DEFAULT_CONFIG, "bootstrap_timeout_ms", 300)
    write(place, server, more=f"bootstrap: {{east: '{HOST}:{free_port()}'}}\n")
    code, _, errors = check(place)
    assert code == 1
    assert errors.startswith(f"brokers of east: {HOST}:")
    assert "--client-config" in errors


def test_a_registry_is_asked_for_the_subject(place: Path, server: OwnBuckets) -> None:
    registry = Registry()
    registry.register("orders-value", 1, 1, ORDER)
    with serving(registry):
        url = registry.url
        for subject, expected in (("orders-value", (0, "yes")), ("order-value", (1, "no"))):
            parser = f"{{kind: avro, framing: confluent, schema: {{registry: main, subject: {subject}}}}}"
            write(place, server, parser=parser, more=f"registries: {{main: {{url: '{url}'}}}}\n")
            code, found = outcomes(place)
            assert (code, found[f"registry {url}, subject {subject}"]) == expected
    code, found = outcomes(place)
    assert (code, found[f"registry {url}, subject order-value"]) == (1, "unknown")


def test_a_directory_that_is_not_there_yet_is_not_made(tmp_path: Path) -> None:
    text = (
        f"cluster: east\nraw: {{url: 'file://{tmp_path}/raw'}}\nlake: file://{tmp_path}/lake\ntopics: [{{topic: a}}]\n"
    )
    (tmp_path / "topics.yaml").write_text(text)
    code, found = outcomes(tmp_path)
    assert (code, found[f"list file://{tmp_path}/raw"]) == (0, "not tried")
    assert [one.name for one in tmp_path.iterdir()] == ["topics.yaml"]


WRONG = [
    ("{kind: protobuf, descriptors: shop.pb, message: shop.Ordr}", "shop.Ordr"),
    ("{kind: avro, schema: order.avsc, event_time: {field: id.at}}", "there is no at in id.at"),
    ("{kind: avro, schema: union.avsc}", "topics.t0.parser.avro"),
    (
        "{kind: function, function: 'tests.no_such:thing', columns: [{name: a, type: int32}]}",
        "topics.t0.parser.function",
    ),
    (
        "{kind: json, columns: [{name: l, type: list<string>}, {name: l.element, type: string}]}",
        "a part of the column l",
    ),
]


def offline(place: Path, parser: str = "{kind: bytes}", more: str = "", topics: int = 1, defaults: str = "") -> Path:
    (place / "order.avsc").write_text(ORDER)
    union = {**json.loads(ORDER), "fields": [{"name": "u", "type": ["int", "string"]}]}
    (place / "union.avsc").write_text(json.dumps(union))
    (place / "shop.pb").write_bytes(descriptors())
    items = "".join(f"- {{topic: t{number}{more}}}\n" for number in range(topics))
    text = f"cluster: east\nraw: {{url: 'file://{place}/raw'}}\nlake: file://{place}/lake\n"
    text += "registries: {main: {url: 'http://127.0.0.1:1'}}\n"
    (place / "topics.yaml").write_text(f"{text}defaults: {{{defaults or f'parser: {parser}'}}}\ntopics:\n{items}")
    return place


def descriptors() -> bytes:
    """A file with the message ``shop.Order``."""
    files = FileDescriptorSet()
    file = files.file.add(name="shop.proto", package="shop", syntax="proto3")
    field = file.message_type.add(name="Order").field.add(name="id", number=1)
    field.type, field.label = field.TYPE_INT64, field.LABEL_OPTIONAL
    return files.SerializeToString()


@pytest.mark.parametrize(("parser", "rule"), WRONG)
@pytest.mark.parametrize("asks", [(), ("--offline",)])
def test_a_parser_that_no_run_could_make_is_a_wrong_file(
    tmp_path: Path, parser: str, rule: str, asks: tuple[str, ...]
) -> None:
    code, _, errors = check(offline(tmp_path, parser), *asks)
    assert (code, rule in errors) == (2, True), errors
    assert len(errors.splitlines()) == 1


def test_parsers_that_a_run_can_make_pass_offline(tmp_path: Path) -> None:
    for parser in ("{kind: protobuf, descriptors: shop.pb, message: shop.Order}", "{kind: avro, schema: order.avsc}"):
        assert check(offline(tmp_path, parser), "--offline")[::2] == (0, "")
    followed = "{kind: avro, framing: confluent, schema: {registry: main, subject: orders-value}}"
    code, found = outcomes(offline(tmp_path, followed), "--offline")
    assert (code, found) == (0, {"parsers": "not tried"})


def test_a_state_that_no_run_could_make_is_a_wrong_file(tmp_path: Path) -> None:
    columns = "[{name: op, type: string}, {name: id, type: int64, path: after.id}]"
    parser = f"{{kind: json, columns: {columns}}}"
    code, _, errors = check(offline(tmp_path, parser, ", state: {envelope: debezium, key: [id]}"), "--offline")
    assert (code, "topics.t0.state.key: id lies in after, which is null in a deletion" in errors) == (2, True)
    assert check(offline(tmp_path, parser, ", state: {envelope: debezium}"), "--offline")[0] == 0


@pytest.mark.parametrize(
    ("defaults", "line"),
    [
        ("latenes: 1h", "defaults.latenes: is not a known key; did you mean lateness? (in 300 topics)"),
        ("parser: {kind: jsn}", "defaults.parser.kind: jsn is not known; did you mean json? (in 300 topics)"),
        (
            "parser: {kind: avro, schema: order.avsc, event_time: {field: id.at}}",
            "defaults.parser.avro: there is no at in id.at (in 300 topics)",
        ),
    ],
)
def test_a_mistake_in_the_defaults_is_one_line(tmp_path: Path, defaults: str, line: str) -> None:
    code, _, errors = check(offline(tmp_path, defaults=defaults, topics=300), "--offline")
    assert code == 2
    [told] = errors.splitlines()
    assert told.endswith(f"topics.yaml: {line}")


def test_other_mistakes_have_their_topic(tmp_path: Path) -> None:
    place = offline(tmp_path, topics=2)
    text = (place / "topics.yaml").read_text()
    (place / "topics.yaml").write_text(text.replace("topic: t1", "topic: t1, lateness: 7, freshness: 7"))
    errors = check(place, "--offline")[2].splitlines()
    assert [error.partition("topics.yaml: ")[2].partition(":")[0] for error in errors] == [
        "topics.t1.lateness",
        "topics.t1.freshness",
    ]


@pytest.mark.parametrize("ignores", ["nothing", "small", "parts"])
def test_a_store_that_replaces_what_was_created_once_fails(
    place: Path, server: OwnBuckets, monkeypatch: pytest.MonkeyPatch, ignores: str
) -> None:
    """Some servers keep the condition of a put, and not that of a multipart upload."""
    become("admin", server, monkeypatch)
    put, complete = S3Store.put, MultipartUpload.put

    def put_over(store: S3Store, key: str, body: Any, **given: Any) -> str:
        if isinstance(body, bytes):
            given.pop("if_none_match", None)
        return put(store, key, body, **given)

    def complete_over(
        upload: MultipartUpload, body: Any, size: int, crc: Any, part_size: int, _: Any
    ) -> tuple[str, int | None]:
        return complete(upload, body, size, crc, part_size, {})

    if ignores == "small":
        monkeypatch.setattr(S3Store, "put", put_over)
    if ignores == "parts":
        monkeypatch.setattr(MultipartUpload, "put", complete_over)
    code, _, errors = check(place)
    way = {"nothing": "", "small": "in one request", "parts": "by a multipart upload"}[ignores]
    assert (code, f"was replaced {way}" in errors) == ((1, True) if way else (0, False)), errors
    assert "Contents" not in server.client().list_objects_v2(Bucket=server.lake), "nothing is left behind"
