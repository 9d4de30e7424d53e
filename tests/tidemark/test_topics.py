"""The topics file: defaults, overrides, and errors that name file, field and rule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from tidemark.config import load, parse
from tidemark.endpoints import EndpointSettings, resolver_of
from tidemark.errors import ConfigError
from tidemark.formats.keys import Endpoint
from tidemark.parsers.settings import BytesParser, JsonColumn, JsonParser
from tidemark.topics import Deployment, TopicSettings, WorkLimits, load_topics

GOOD = """
cluster: demo
raw: {url: s3://raw/tidemark, entropy_bits: 4, topics: {pii: {url: s3://raw-pii}}}
lake: s3://lake/tables
defaults: {lateness: 10m}
topics:
  - topic: clicks
  - {topic: orders, table: sales, lateness: 2d, batch: {age: 5s, size: 1MiB}}
"""


def read(text: str, **environment: str) -> Deployment:
    return parse(Deployment, text, "topics.yaml", environment)


def test_defaults_and_overrides() -> None:
    deployment = read(GOOD)
    clicks, orders = deployment.topics
    assert (clicks.table, clicks.cluster, clicks.lateness) == ("clicks", "demo", timedelta(minutes=10))
    assert (orders.table, orders.lateness, orders.batch.size) == ("sales", timedelta(days=2), 1 << 20)
    assert deployment.topic("orders") is orders
    assert deployment.table_keys(orders).root == "tables/sales"
    assert deployment.lake_store == "s3://lake"


def test_nothing_is_removed_unless_a_topic_says_so() -> None:
    default = read(GOOD).topic("orders")
    assert (default.retention.table, default.retention.raw, default.retention.apply) == (None, None, False)
    kept = read(GOOD.replace("table: sales,", "table: sales, retention: {table: 400d, raw: 30d, apply: true},"))
    found = kept.topic("orders")
    assert (found.retention.table, found.retention.raw) == (timedelta(days=400), timedelta(days=30))
    assert found.digest == default.digest, "no row depends on it"


@pytest.mark.parametrize("wrong", ["raw: 23h", "table: 0d", "raw: for ever", "apply: 1", "quarantine: 9d"])
def test_a_wrong_policy_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match=rf"topics\.orders\.retention\.{wrong.partition(':')[0]}"):
        read(GOOD.replace("table: sales,", f"table: sales, retention: {{{wrong}}},"))


def test_the_environment_overrides_the_file() -> None:
    deployment = read(GOOD, TIDEMARK__STORE__PATH_STYLE="true", TIDEMARK__LAKE="s3://other", HOME="/")
    assert deployment.store.path_style
    assert deployment.lake == "s3://other"


def test_endpoints_are_one_seam() -> None:
    resolver = resolver_of(read(GOOD).raw)
    assert resolver.default() == Endpoint("s3://raw", "tidemark", 4)
    assert resolver.resolve("demo", "clicks", 0) == Endpoint("s3://raw", "tidemark", 4)
    assert resolver.resolve("demo", "pii", 3) == Endpoint("s3://raw-pii", "", 4)


class ByPartition:
    """A resolver of somebody's own."""

    def __init__(self, settings: EndpointSettings) -> None:
        self.settings = settings

    def default(self) -> Endpoint:
        return Endpoint("s3://raw")

    def resolve(self, cluster: str, topic: str, partition: int) -> Endpoint:
        return Endpoint(f"s3://raw-{cluster}-{partition % 2}", topic)


def test_a_resolver_of_ones_own() -> None:
    settings = EndpointSettings(url="s3://raw", resolver=f"{__name__}:ByPartition")
    assert resolver_of(settings).resolve("c", "t", 3) == Endpoint("s3://raw-c-1", "t")
    with pytest.raises(ConfigError, match="names nothing that can be imported"):
        resolver_of(EndpointSettings(url="s3://raw", resolver="tidemark.nowhere:thing"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "lateness: 2d",
            "latenes: 2d",
            "topics.yaml: topics.orders.latenes: is not a known key; did you mean lateness?",
        ),
        ("lateness: 2d", "lateness: 2", "topics.yaml: topics.orders.lateness: .*number with a unit.*but it is 2"),
        ("size: 1MiB", "size: 1MB", "topics.yaml: topics.orders.batch.size: .*64MiB"),
        ("cluster: demo\n", "", "topics.yaml: topics.clicks.cluster: is required"),
        ("table: sales", "table: clicks", "table clicks appears twice"),
        ("topic: orders", "topic: clicks", "topic demo/clicks appears twice"),
        ("topic: orders", "topic: a/b", "topics.yaml: topics.a/b.topic: .*not a valid topic name"),
        ("table: sales", "time_zone: Mars/Olympus", "topics.orders.time_zone: .*tz database"),
        ("table: sales", "table: x__quarantine", "topics.orders.table: .*__quarantine"),
        ("table: sales", "table: x.final", "topics.orders.table: .*[.]final"),
        ("s3://lake/tables", "lake", "topics.yaml: lake: .*s3://<bucket>"),
        ("url: s3://raw/tidemark", "url: raw", "topics.yaml: raw.url: .*s3://<bucket>"),
        ("entropy_bits: 4", "entropy_bits: 400", "topics.yaml: raw.entropy_bits: .*128"),
        ("defaults:", "cluster: demo\ndefaults:", "topics.yaml: .*the key 'cluster' appears twice"),
        ("s3://lake/tables", "gs://Lake", "topics.yaml: lake: .*gs://<bucket>"),
        ("s3://lake/tables", "az://a--b", "topics.yaml: lake: .*az://<container>"),
        (GOOD, "- a", "topics.yaml: .*must be a mapping"),
        (GOOD, "a: [", "topics.yaml: .*not valid YAML"),
        (GOOD, "[a]: 1", "topics.yaml: .*not valid YAML: line 1, column 1: a key must be a single word"),
        (GOOD, "[" * 5000, "topics.yaml: .*not valid YAML: it is nested too deeply"),
        ("lateness: 2d", "sane_timestamps: {earliest: 2026-02-30}", "line .*: this is not a valid timestamp"),
        ("lateness: 2d", f"lateness: {'9' * 30}d", "topics.orders.lateness: must be at most 36500d"),
        ("lateness: 2d", "lateness: 900000000d", "topics.orders.lateness: must be at most 36500d"),
        ("size: 1MiB", f"size: {'9' * 5000}", "not valid YAML: line .*: this is not a valid int"),
        ("- topic: clicks\n", "- clicks\n", "topics: each is a mapping of keys to values: write `- topic: clicks`"),
        ("table: sales", "parser: {kind: jsn}", "topics.orders.parser.kind: jsn is not known; did you mean json[?]"),
        (
            "table: sales",
            "parser: {kind: xml}",
            "topics.orders.parser.kind: xml is not known; there are avro, bytes, func",
        ),
        ("table: sales", "parser: {columns: []}", "topics.orders.parser.kind: is required"),
        ("table: sales", "parser: json", "topics.orders.parser: must be a mapping of keys to values, but it is 'json'"),
        ("table: sales", "parquet: 3", "topics.orders.parquet: must be a mapping of keys to values, but it is 3"),
        (GOOD, "defaults: 3", "topics.yaml: .*defaults must be a mapping"),
        (GOOD, "store: {endpoint_url: 'http://[::1'}", "store.endpoint_url: must be a URL such as"),
        (GOOD, "store: {endpoint_url: 'http://store:99999'}", "store.endpoint_url: must be a URL such as"),
    ],
)
def test_every_error_names_file_field_and_rule(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError, match=message):
        read(GOOD.replace(old, new))


@pytest.mark.parametrize("name", ["pay ments", "a/b", "x" * 250])
def test_a_name_that_is_none_is_one_plain_sentence(name: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(GOOD.replace("topic: clicks", f"topic: {name}"))
    assert str(raised.value) == (
        f"topics.yaml: topics.{name}.topic: {name!r} is not a valid topic name: 1 to 249 of a-z A-Z 0-9 . _ -, and "
        "neither '.' nor '..'"
    )
    with pytest.raises(ConfigError) as raised:
        read(GOOD.replace("topic: clicks", "topic: _clicks"))
    assert str(raised.value) == (
        "topics.yaml: topics._clicks.table: '_clicks' is not a valid table name: 1 to 201 of a-z A-Z 0-9 . _ -, of "
        "which the first is a letter or a digit; give the topic another one under `table`"
    )


def test_topics_of_one_name_are_told_with_their_clusters() -> None:
    both = GOOD.replace("topic: orders", "topic: clicks, cluster: west").replace("2d", "soon")
    with pytest.raises(ConfigError, match=r"topics\.yaml: topics\.west/clicks\.lateness: must be a number"):
        read(both)


@pytest.mark.parametrize(
    ("lake", "store", "message"),
    [
        ("gs://lake", "sse_kms_key_id: k", "lake: gs://lake: stores at gs:// do not know store.sse_kms_key_id"),
        ("gs://lake", "path_style: true", "do not know store.path_style"),
        (
            "az://lake",
            "region: r, tags: {a: b}",
            "lake: az://lake: stores at az:// do not know store.region, store.tags",
        ),
        ("az://lake", "endpoint_url: 'https://x'", "store.endpoint_url is one server, and cannot serve both az and s3"),
    ],
)
def test_an_option_that_a_store_does_not_know_is_refused(lake: str, store: str, message: str) -> None:
    file = GOOD.replace("s3://lake/tables", lake)
    with pytest.raises(ConfigError, match=re.escape(message)):
        read(f"{file}store: {{{store}}}\n")
    assert read(f"{file}store: {{deadline: 90s, part_size: 8MiB}}\n").lake == lake


@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_the_lake_may_lie_on_other_clouds(scheme: str) -> None:
    deployment = read(
        GOOD.replace("s3://lake/tables", f"{scheme}://lake/tables").replace("s3://raw", f"{scheme}://raw")
    )
    assert deployment.lake_store == f"{scheme}://lake"
    assert deployment.table_keys(deployment.topic("orders")).root == "tables/sales"
    assert resolver_of(deployment.raw).default().store == f"{scheme}://raw"


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: does not exist; name the topics file by"):
        load_topics(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("wrong", ["2026-02-30", "[" * 5000, "!!int x", "{[a]: 1}"])
def test_a_variable_that_is_no_yaml_is_named(wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "topics.yaml"
    path.write_text(GOOD)
    with pytest.raises(ConfigError, match="TIDEMARK__LAKE: is not valid YAML"):
        load(Deployment, path, {"TIDEMARK__LAKE": wrong})


def test_a_variable_below_a_value_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "topics.yaml"
    path.write_text(GOOD)
    with pytest.raises(ConfigError, match="TIDEMARK__LAKE__X: lake is not a section"):
        load(Deployment, path, {"TIDEMARK__LAKE__X": "1"})


def test_only_what_rows_depend_on_is_in_the_digest() -> None:
    plain, orders = read(GOOD).topics
    assert plain.digest != orders.digest
    same = read(GOOD.replace("lateness: 2d", "lateness: 3d")).topics[1]
    assert same.digest == orders.digest
    other = read(GOOD.replace("lateness: 2d", "time_zone: Europe/Vienna")).topics[1]
    assert other.digest != orders.digest
    bounded = read(GOOD.replace("lateness: 2d", "limits: {batch: 64MiB}")).topics[1]
    assert bounded.digest != orders.digest


class MoreLimits(WorkLimits):
    """The limits of a later version."""

    more: tuple[int, ...] = (1, 2)


class MoreColumn(JsonColumn):
    """A column of a later version."""

    more: Mapping[str, int] = Field(default_factory=lambda: {"a": 1})


class MoreJson(JsonParser):
    """The parser of a later version."""

    columns: tuple[MoreColumn, ...] = ()
    more: MoreLimits = MoreLimits()


class LaterTopic(TopicSettings):
    """The settings of a later version, which has another setting at each depth."""

    limits: MoreLimits = MoreLimits()
    parser: MoreJson | BytesParser = BytesParser()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"limits": {"batch": "64MiB"}, "partition_by": ["dt", "hour"], "keep": ["key"], "time_zone": "Europe/Vienna"},
        {"parser": {"kind": "json", "columns": [{"name": "id", "type": "int64"}], "framing": "confluent"}},
    ],
)
def test_a_setting_that_a_later_version_adds_changes_no_digest(settings: dict[str, Any]) -> None:
    fields = {"topic": "orders", "cluster": "demo", "table": "orders", **settings}
    now, later = TopicSettings.model_validate(fields), LaterTopic.model_validate(fields)
    assert now.digest == later.digest
    assert later.model_copy(update={"limits": MoreLimits(more=())}).digest != now.digest


def test_a_default_that_is_written_down_changes_no_digest() -> None:
    plain = read(GOOD).topics[0]
    written = plain.model_dump(mode="json")
    assert (written["parser"], written["limits"]["batch"]) == ({"kind": "bytes"}, 128 << 20)
    assert TopicSettings.model_validate(written).digest == plain.digest


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ("{batch: 1023KiB}", "greater than or equal to 1048576"),
        ("{memory: 512MiB}", "memory: is no longer a setting: converting may take 16 times limits.batch, and 1 GiB"),
        ("{time: 10ms}", "time: is no longer a setting: converting may take 10 s"),
        ("{rate: 1}", "rate: is no longer a setting: .* at 256 KiB/s"),
    ],
)
def test_limits_by_which_nothing_could_be_converted_are_refused(wrong: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=rf"topics\.orders\.limits.*{rule}"):
        read(GOOD.replace("lateness: 2d", f"limits: {wrong}"))


def test_an_unknown_topic_is_named_beside_what_may_be_meant() -> None:
    twice = read(GOOD.replace("topics:\n", "topics:\n  - {topic: clicks, cluster: west, table: w}\n"))
    for name, cluster, told in (
        ("nope", None, "nope is not a topic of the file; there are clicks, orders"),
        ("order", None, "order is not a topic of the file; did you mean orders?"),
        ("clicks", None, "clicks is a topic of several clusters, west, demo: name one of them"),
        ("clicks", "wst", "no topic belongs to a cluster wst; did you mean west?"),
        ("orders", "west", "orders is not a topic of the file"),
    ):
        with pytest.raises(ConfigError, match=re.escape(told)):
            twice.topic(name, cluster)


def test_a_freshness_is_a_promise_that_few_topics_make() -> None:
    deployment = read(GOOD.replace("age: 5s", "age: 1h").replace("table: sales,", "table: sales, freshness: 1m,"))
    clicks, orders = deployment.topics

    assert (clicks.freshness, clicks.late_after, clicks.window) == (None, timedelta(minutes=15), clicks.batch)
    assert (orders.late_after, orders.window.age) == (timedelta(minutes=1), timedelta(minutes=3))
    assert deployment.live_topics("demo") == (orders,)
    assert deployment.live_topics("other") == ()


def test_a_freshness_that_nothing_can_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"topics\.orders\.freshness"):
        read(GOOD.replace("table: sales,", "table: sales, freshness: 9s,"))
