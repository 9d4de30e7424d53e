"""The task that proposes a topic: the same as the command, from the fields of the form."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, cast

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException, ParamValidationError
from typer.testing import CliRunner

from tests.plugins.world import CLUSTER, World
from tests.support.kafka import KafkaCluster
from tests.support.raw_builder import RawBuilder
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark import connections as named
from tidemark.cli.app import app
from tidemark.errors import BrokerError, ConfigError
from tidemark.store.s3 import credentials as s3_credentials
from tidemark_airflow import connections, settings
from tidemark_airflow.dag_factories.onboarding import OnboardOperator, form, onboarding_dag

SECRET = "what-nobody-may-see"


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """What the task installs in its process is removed."""
    yield
    s3_credentials.use(None)
    named._installed.clear()


class Task:
    """Takes what the task returns and pushes."""

    def __init__(self) -> None:
        self.pushed: dict[str, str] = {}

    def xcom_push(self, key: str, value: str) -> None:
        self.pushed[key] = value

    def run(self, **fields: Any) -> str:
        """The task's answer to the form with these fields, checked as Airflow checks them."""
        params = onboarding_dag(settings.deployment()).params
        params.update(fields)
        context = {"params": params.validate(), "ti": self}
        found: str = OnboardOperator(task_id="propose").execute(cast("Context", context))
        return found


@pytest.fixture
def task(world: World) -> Task:
    return Task()


def stored(world: World, topic: str, count: int = 40) -> None:
    """The agents have stored records of JSON, a second apart."""
    raw = RawBuilder(world.raw, cluster=CLUSTER, topic=topic)
    documents = [{"id": at, "at": T0 + at * 1000 - 20, "customer": {"name": "ada"}} for at in range(count)]
    rows = [Record(at, T0 + at * 1000, b"k", json.dumps(one).encode()) for at, one in enumerate(documents)]
    raw.segment(batch(0, rows))
    raw.publish()


def command(world: World, *arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["topics", "add", *arguments], env={"TIDEMARK_TOPICS": str(world.topics_file)})
    return done.exit_code, done.stdout, str(done.exception)


def test_the_patch_is_that_of_the_command(world: World, task: Task) -> None:
    stored(world, "sales")
    before = world.topics_file.read_text()
    chosen = {"owner": "payments", "records": 20, "event_time": "at", "event_time_unit": "ms", "rate": "20MB/s"}
    patch = task.run(topic="sales", **chosen)
    options = [word for name, value in chosen.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    code, text, _ = command(world, f"{CLUSTER}/sales", *options)
    assert code == 0
    assert text.endswith(patch)
    assert task.pushed["report"] == text.removesuffix(patch).rstrip("\n")
    for part in ("sample: 20 records of raw", "event time: at", "RIGHT", "rate: 20.000 MB/s", "cost: $", "freshness"):
        assert part in text.replace("note: Kafka was not asked", "freshness"), part
    assert world.topics_file.read_text() == before


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": "sales", "format": "avro"},
        {"topic": "orders"},
        {"topic": "sales", "event_time": "nothing"},
        {"topic": "sales", "rate": "0MB/s"},
        {"topic": "sales", "freshness": "1ms"},
        {"topic": "nobody"},
    ],
)
def test_what_is_refused_fails_in_the_words_of_the_command(world: World, task: Task, fields: dict[str, Any]) -> None:
    stored(world, "sales")
    with pytest.raises(AirflowFailException) as refused:
        task.run(**fields)
    options = [
        word for name, value in fields.items() if name != "topic" for word in (f"--{name}".replace("_", "-"), value)
    ]
    code, _, told = command(world, f"{CLUSTER}/{fields['topic']}", *options)
    assert code != 0
    assert str(refused.value) == told
    assert not task.pushed


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", "or/ders"),
        ("topic", ".."),
        ("topic", "orders;ls"),
        ("cluster", "elsewhere"),
        ("schema", "/etc/passwd"),
        ("schema", "../secret.avsc"),
        ("descriptors", "a/../../b"),
        ("registry", "elsewhere"),
        ("action", "delete"),
        ("records", 0),
        ("records", 1_000_000),
        ("rate", "fast"),
        ("freshness", "soon"),
        ("table", "a b"),
        ("brokerset", "none"),
        ("partitions", 0),
    ],
)
def test_the_form_refuses(world: World, task: Task, name: str, value: object) -> None:
    with pytest.raises(ParamValidationError, match=name):
        task.run(**{"topic": "sales", name: value})


def test_the_file_changes_only_where_the_configuration_allows_it(
    world: World, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(world, "sales")
    assert "write" not in form(settings.deployment())
    with pytest.raises(AirflowFailException, match="onboarding_writes"):
        task.run(topic="sales", write=True)
    monkeypatch.setenv("AIRFLOW__TIDEMARK__ONBOARDING_WRITES", "True")
    before = world.topics_file.read_text()
    task.run(topic="sales")
    assert world.topics_file.read_text() == before, "not even there unless a person says so"
    task.run(topic="sales", write=True)
    assert world.deployment.topic("sales").topic == "sales"


def test_a_registrys_credentials_go_where_the_topics_file_sends_them(world: World, task: Task) -> None:
    registries = {"main": {"url": "https://registry.example.com", "connection": "registry"}}
    parser = {"kind": "avro", "framing": "confluent", "schema": {"registry": "main", "subject": "orders-value"}}
    lake = f"file://{world.root}/lake"
    topics = [{"topic": "orders", "cluster": CLUSTER, "parser": parser}]
    world.write_topics(raw={"url": f"file://{world.root}/raw"}, lake=lake, registries=registries, topics=topics)
    assert form(settings.deployment())["registry"].schema["enum"] == ["none", "main"]
    stored(world, "sales")
    with pytest.raises(AirflowFailException, match="do not have Confluent's framing"):
        task.run(topic="sales", registry="main")


def test_kafka_is_asked_by_a_connection(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert connections.kafka_client(CLUSTER, None) is None
    assert connections.kafka_client(CLUSTER, "a:1,b:2") == {"bootstrap_servers": ["a:1", "b:2"]}
    monkeypatch.setenv("AIRFLOW__TIDEMARK__KAFKA_CONN_ID", "kafka_{cluster}")
    extra = {"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-256", "ssl_check_hostname": True}
    connection = {"conn_type": "kafka", "login": "me", "password": SECRET, "extra": extra}
    variable = f"AIRFLOW_CONN_KAFKA_{CLUSTER.upper()}"
    with pytest.raises(ConfigError, match=f"kafka_{CLUSTER}: is named, but does not exist"):
        connections.kafka_client(CLUSTER, "a:1")
    monkeypatch.setenv(variable, json.dumps(connection))
    login = {"sasl_plain_username": "me", "sasl_plain_password": SECRET}
    assert connections.kafka_client(CLUSTER, "a:1") == {"bootstrap_servers": ["a:1"], **login, **extra}
    monkeypatch.setenv(variable, json.dumps({**connection, "host": "b", "port": 9093}))
    assert connections.kafka_client(CLUSTER, "a:1") == {"bootstrap_servers": ["b:9093"], **login, **extra}
    monkeypatch.setenv(variable, json.dumps({**connection, "extra": {"password_file": SECRET}}))
    with pytest.raises(ConfigError, match="password_file") as refused:
        connections.kafka_client(CLUSTER, "a:1")
    assert SECRET not in str(refused.value)


@pytest.mark.full
def test_a_topic_that_does_not_exist_yet_is_placed_and_created(
    world: World, task: Task, kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    topic = f"onboarded-{os.getpid()}"
    connection = {"conn_type": "kafka", "host": kafka.bootstrap}
    monkeypatch.setenv("AIRFLOW__TIDEMARK__KAFKA_CONN_ID", "brokers")
    monkeypatch.setenv("AIRFLOW_CONN_BROKERS", json.dumps(connection))
    asked = {"topic": topic, "rate": "20MB/s", "replication_factor": 1}
    with pytest.raises(AirflowFailException, match=r"brokersets\.yaml"):
        task.run(action="placement", **asked)
    text = f"clusters: {{{CLUSTER}: {{brokersets: {{a: {{brokers: [1], capacity: 30MiB}}}}}}}}"
    world.topics_file.with_name("brokersets.yaml").write_text(text)
    told = task.run(action="placement", brokerset="a", **asked)
    assert f"--create --topic {topic} --replica-assignment 1,1,1,1" in told
    assert "4 partitions in brokerset a" in task.pushed["report"]
    with kafka.admin() as admin:
        assert topic not in admin.list_topics()
    task.run(action="create", **asked)
    assert kafka.leaders(topic) == dict.fromkeys(range(4), 1)
    with pytest.raises(AirflowFailException, match="exists already"):
        task.run(action="create", **asked)
    with pytest.raises(AirflowFailException, match="has no record"):
        task.run(topic=topic, replication_factor=1)
    extra = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
    gone = {**connection, "host": "127.0.0.1", "port": 1, "login": "me", "password": SECRET, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_BROKERS", json.dumps(gone))
    with pytest.raises(BrokerError) as failed:
        task.run(topic=topic)
    assert SECRET not in f"{failed.value}{capfd.readouterr()}"
