"""``tidemark topics add`` against a real broker and a real S3 server."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from typer.testing import CliRunner

from tests.support.kafka import KafkaCluster
from tests.support.raw_builder import RawBuilder
from tests.support.s3 import S3Server, allow
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark.cli.app import app
from tidemark.store import StoreOptions, open_store
from tidemark.store.s3.clients import forget_clients
from tidemark.topics import load_topics

TOPICS = """# the deployment
cluster: east   # the only one
raw: {url: 's3://raw/PREFIX'}
lake: s3://lake/PREFIX
store: {endpoint_url: 'ENDPOINT', region: us-east-1, path_style: true}
bootstrap: {east: 'BOOTSTRAP'}
topics:
  - topic: clicks   # of the web
"""


class Place:
    """A deployment of its own on shared servers."""

    def __init__(self, folder: Path, prefix: str, kafka: KafkaCluster, s3: S3Server, patch: pytest.MonkeyPatch) -> None:
        self.prefix, self.kafka, self.s3, self._patch = prefix, kafka, s3, patch
        self.topics, self.folder = folder / "topics.yaml", folder
        text = TOPICS.replace("PREFIX", prefix).replace("ENDPOINT", s3.endpoint)
        self.topics.write_text(text.replace("BOOTSTRAP", kafka.bootstrap))
        self.use("admin")

    def use(self, user: str) -> None:
        """Have the credentials of ``user`` from here on."""
        for name, value in self.s3.env(user).items():
            self._patch.setenv(name, value)
        forget_clients()

    def add(self, *arguments: str) -> tuple[int, str, str]:
        environment = {"TIDEMARK_TOPICS": str(self.topics), "TIDEMARK_BROKERSETS": str(self.folder / "brokersets.yaml")}
        done = CliRunner().invoke(app, ["topics", "add", *arguments], env=environment)
        return done.exit_code, done.stdout, done.stderr or str(done.exception or "")

    def objects(self) -> list[str]:
        client = self.s3.client()
        return [
            one["Key"]
            for bucket in ("raw", "lake")
            for one in client.list_objects_v2(Bucket=bucket, Prefix=self.prefix).get("Contents", ())
        ]


@pytest.fixture
def place(
    tmp_path: Path, kafka: KafkaCluster, s3_server: S3Server, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    yield Place(tmp_path, f"onboarding-{rng.getrandbits(40):x}", kafka, s3_server, monkeypatch)
    forget_clients()


def order(number: int) -> bytes:
    document: dict[str, Any] = {"id": number, "placed": T0 + number * 1000 - 250, "customer": {"name": "ada"}}
    return json.dumps(document).encode()


def produce(place: Place, topic: str, count: int, partitions: int) -> None:
    producer = KafkaProducer(bootstrap_servers=place.kafka.bootstrap)
    try:
        for number in range(count):
            at = T0 + number * 1000
            producer.send(topic, order(number), b"k", partition=number % partitions, timestamp_ms=at)
        producer.flush()
    finally:
        producer.close()


@pytest.mark.essential
def test_a_topic_is_added_from_kafka(place: Place) -> None:
    topic = f"{place.prefix}-orders"
    config = {"segment.ms": "86400000", "retention.ms": "-1", "message.timestamp.before.max.ms": "9223372036854775807"}
    place.kafka.create_topic(topic, partitions=2, config=config)
    produce(place, topic, 3000, 2)
    code, text, told = place.add(f"east/{topic}", "--records", "100", "--output", "json", "--write")
    assert code == 0, told
    answer = json.loads(text)
    assert answer["kafka"]["partitions"] == 2
    assert answer["kafka"]["replication_factor"] == 1
    assert answer["kafka"]["config"]["segment.ms"] == "86400000"
    assert (answer["sample"]["source"], answer["sample"]["records"]) == ("kafka", 100), "first and last of each"
    assert answer["event_time"]["chosen"] == "placed"
    assert answer["event_time"]["candidates"][0]["median_distance"] == 0.25
    rate = answer["rate"]["bytes_a_second"]
    assert rate == pytest.approx(len(order(2000)) + 1, rel=0.05), "a record a second"
    assert answer["load"] == {"1": pytest.approx(rate)}
    assert answer["freshness"]["rotation_within"] == 86400
    assert [one["outcome"] for one in answer["rights"]] == ["yes"] * 5 + ["unknown"] * 2
    assert load_topics(place.topics).topic(topic).parser.event_time is not None
    assert load_topics(place.topics).topic(topic).state is None, "Kafka keeps all its records"
    assert place.topics.read_text().startswith("# the deployment\ncluster: east   # the only one\n")
    assert place.objects() == [], "trying rights leaves nothing behind"


def test_a_topic_is_added_from_raw_and_rights_are_told(place: Place) -> None:
    topic = f"{place.prefix}-raw"
    raw = RawBuilder(
        open_store("s3://raw", StoreOptions(endpoint_url=place.s3.endpoint)), topic=topic, prefix=place.prefix
    )
    raw.segment(batch(0, [Record(at, T0 + at * 1000, b"k", order(at)) for at in range(50)]))
    raw.publish()
    before = place.objects()
    reading = ["s3:GetObject", "s3:ListBucket"]
    place.s3.add_user("reader", [allow(reading, ["arn:aws:s3:::raw", "arn:aws:s3:::raw/*", "arn:aws:s3:::lake"])])
    place.use("reader")
    place.kafka.create_topic(topic)
    code, text, told = place.add(f"east/{topic}", "--output", "json")
    assert code == 0, told
    answer = json.loads(text)
    assert answer["sample"]["source"] == "raw"
    assert answer["sample"]["records"] == 50
    outcomes = {
        one["what"].partition("://")[0] + one["what"].partition("://")[2][:4]: one["outcome"]
        for one in answer["rights"]
    }
    assert (outcomes["put to s3lake"], outcomes["get from s3raw"], outcomes["list s3raw"]) == ("no", "yes", "yes")
    assert outcomes["put segments of the topic"] == "yes", "an agent has reported it"
    assert place.objects() == before


def test_what_kafka_says_may_refuse_a_topic(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = f"{place.prefix}-compacted"
    place.kafka.create_topic(topic, config={"cleanup.policy": "compact"})
    produce(place, topic, 3, 1)
    assert "cleanup.policy: is compact" in place.add(f"east/{topic}")[2]
    assert "the cluster has no such topic" in place.add(f"east/{place.prefix}-none")[2]
    assert "give --bootstrap" in place.add(f"west/{topic}")[2]
    monkeypatch.setitem(KafkaAdminClient.DEFAULT_CONFIG, "bootstrap_timeout_ms", 300)
    assert "check --bootstrap" in place.add(f"east/{topic}", "--bootstrap", "127.0.0.1:1")[2]
    monkeypatch.undo()
    place.use("admin")
    assert place.add(f"east/{topic}", "--compacted", "--write")[0] == 0
    added = load_topics(place.topics).topic(topic)
    assert added.state is not None, "it has keys"
    assert added.state.envelope == "none"


def test_a_topic_is_created_only_if_a_person_says_so(place: Place) -> None:
    (place.folder / "brokersets.yaml").write_text(
        "clusters: {east: {brokersets: {a: {brokers: [1], capacity: 30MiB}}}}"
    )
    topic = f"{place.prefix}-new"
    asked = (f"east/{topic}", "--create", "--rate", "20MB/s", "--replication-factor", "1")
    code, text, told = place.add(*asked)
    assert code == 0, told
    assert f"--create --topic {topic} --replica-assignment 1,1,1,1" in text
    with place.kafka.admin() as admin:
        assert topic not in admin.list_topics()
    code, text, told = place.add(*asked, "--yes", "--output", "json")
    assert code == 0, told
    assert json.loads(text)["chosen"] == {
        "brokerset": "a", "stride": 0, "partitions": 4, "busiest": 2e7, "busiest_without": 2e7, "capacity": 30 << 20,
        "fits": True,
    }  # fmt: skip
    assert place.kafka.leaders(topic) == dict.fromkeys(range(4), 1)
    assert "exists already" in place.add(*asked)[2]
    full = place.add(f"east/{topic}-2", "--create", "--rate", "40MB/s", "--replication-factor", "1", "--yes")
    assert full[0] != 0
    assert "no brokerset has room" in full[2]
