"""Leaders by a real ZooKeeper, and the options that reach its client."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import NewTopic
from kazoo.client import KazooClient

from tests.support.java import java
from tests.support.kafka import KafkaCluster
from tests.support.kafka_broker import TINY_JVM, KafkaVersion, kafka_program
from tests.support.kafka_config import write_properties, zookeeper_properties
from tests.support.ports import HOST, free_port, is_free
from tests.support.tuned_agent import tuned
from tests.support.waiting import wait_until
from tests.uploader_agent.broker.test_properties import write
from tests.uploader_agent.fakes import World
from tests.uploader_agent.tested_agent import TestedAgent
from tidemark.formats.keys import TopicPartition
from uploader_agent.broker.admin import AdminMetadata, BrokerUnavailable, connect
from uploader_agent.broker.authority import ZooKeeperAuthority
from uploader_agent.broker.properties import read_broker
from uploader_agent.components import Components
from uploader_agent.disk.watcher import DirectoryWatcher
from uploader_agent.settings import AgentSettings

AT = TopicPartition("orders", 0)


@contextmanager
def running(world: World, cluster: KafkaCluster, topic: str) -> Iterator[TestedAgent]:
    """Broker 1's agent. Neither poll nor scan is due for a day, so only what the broker writes on its disk can tell."""
    broker = read_broker(cluster.brokers[0].properties_path)
    settings, tuning = world.settings(include=[topic]), tuned({"scan_interval": "1d", "metadata_interval": "1d"})
    with (
        closing(
            AdminMetadata(broker.node_id, lambda: connect(broker.node_id, broker.bootstrap, "PLAINTEXT", {}))
        ) as metadata,
        closing(DirectoryWatcher()) as watcher,
        TestedAgent(
            Components(settings, broker, metadata, lambda _url: world.store, watcher, tuning=tuning)
        ).running() as agent,
    ):
        yield agent


def test_a_new_topic_is_led_long_before_the_poll(kafka39: KafkaCluster, tmp_path: Path) -> None:
    topic = "watched"
    with running(World(tmp_path), kafka39, topic) as agent:
        wait_until(lambda: agent.health.ready, what="ready")
        kafka39.create_topic(topic)
        wait_until(lambda: TopicPartition(topic, 0) in agent.leadership.partitions, what="it to be led")


@pytest.mark.parametrize("version", ["3.9.2", "4.3.1"])
def test_a_leader_is_seen_long_before_the_poll(
    starts_kafka: None, version: KafkaVersion, tmp_path: Path, full: bool
) -> None:
    """A new leader renames its ``leader-epoch-checkpoint`` (``LeaderEpochFileCache.assign``); the former one stops."""
    if not full:
        pytest.skip("starts two brokers: make test-full")
    with KafkaCluster(tmp_path / "kafka", version=version, brokers=2) as cluster:
        with cluster.admin() as admin:
            admin.create_topics([NewTopic("moved", -1, -1, replica_assignments={0: [2, 1]})])
        wait_until(lambda: cluster.leaders("moved") == {0: 2}, what="broker 2 to lead")
        at = TopicPartition("moved", 0)
        with running(World(tmp_path / "world"), cluster, "moved") as agent:
            wait_until(lambda: at in agent.leadership.replicas and agent.health.ready, what="ready")
            assert not agent.leadership.partitions
            cluster.brokers[1].stop()
            wait_until(lambda: at in agent.leadership.partitions, what="the partition to be led")


JAAS = 'Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_agent="secret"; };\n'


@pytest.fixture
def secured(starts_kafka: None, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A ZooKeeper that speaks TLS only and wants a login, as ``kafka39`` must not; what the client needs for it."""
    port, plain = free_port(), free_port()
    stored: list[str | Path] = [
        "-alias",
        "zk",
        "-keystore",
        tmp_path / "zk.p12",
        "-storetype",
        "PKCS12",
        "-storepass",
        "changeit",
    ]
    keytool = Path(java()).with_name("keytool")
    made = ["-genkeypair", "-keyalg", "RSA", "-dname", "CN=localhost", "-ext", "san=ip:127.0.0.1", "-validity", "7"]
    subprocess.run([keytool, *made, *stored], check=True, capture_output=True)
    exported: list[str | Path] = ["-exportcert", "-rfc", "-file", tmp_path / "ca.pem"]
    subprocess.run([keytool, *exported, *stored], check=True, capture_output=True)
    (tmp_path / "jaas.conf").write_text(JAAS)
    extra = {
        "secureClientPort": str(port),
        "secureClientPortAddress": HOST,
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(tmp_path / "zk.p12"),
        "ssl.keyStore.password": "changeit",
        "ssl.clientAuth": "none",
        "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "sessionRequireClientSASLAuth": "true",
    }
    write_properties(tmp_path / "zoo.cfg", {**zookeeper_properties(tmp_path / "data", plain), **extra})
    jvm = (*TINY_JVM, f"-Djava.security.auth.login.config={tmp_path / 'jaas.conf'}")
    main = "org.apache.zookeeper.server.ZooKeeperServerMain"
    with kafka_program("zookeeper", "3.9.2", tmp_path, jvm, main, tmp_path / "zoo.cfg") as server:
        server.wait_until(lambda: not is_free(port))
        yield {
            "hosts": f"{HOST}:{port}",
            "use_ssl": True,
            "ca": str(tmp_path / "ca.pem"),
            "sasl_options": {"mechanism": "DIGEST-MD5", "username": "agent", "password": "secret"},
        }


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # kazoo's way to say "refused"
def test_tls_and_login_on_a_real_server(secured: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert ZooKeeperAuthority(secured).leader(AT) is None
    wrong = {**secured["sasl_options"], "password": "wrong"}
    monkeypatch.setattr("uploader_agent.broker.authority._PATIENCE", 2.0)
    with pytest.raises(BrokerUnavailable, match="cannot be asked"):
        ZooKeeperAuthority({**secured, "sasl_options": wrong}).leader(AT)


CONNECT = "zookeeper.connect=z1:2182,z2:2182/kafka/prod\n"
TLS = "zookeeper.ssl.client.enable=true\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        (TLS, {"use_ssl": True, "check_hostname": True}),
        (
            TLS + "zookeeper.ssl.truststore.location=/t.pem\nzookeeper.ssl.keystore.location=/k\n"
            "zookeeper.ssl.keystore.type=PEM\nzookeeper.ssl.keystore.password=p\n"
            "zookeeper.ssl.endpoint.identification.algorithm=\n",
            {
                "use_ssl": True,
                "check_hostname": False,
                "ca": "/t.pem",
                "certfile": "/k",
                "keyfile": "/k",
                "keyfile_password": "p",
            },
        ),
        (TLS + "zookeeper.ssl.truststore.location=/t.jks\n", {"use_ssl": True, "check_hostname": True}),
    ],
)
def test_the_brokers_own_file_says_how_to_connect(tmp_path: Path, text: str, expected: dict[str, object]) -> None:
    path = write(tmp_path, "log.dir=ROOT/data-0\n" + CONNECT + text, "version=0\nbroker.id=1\ncluster.id=abc\n")
    found = read_broker(path).zookeeper
    assert found == {"hosts": "z1:2182,z2:2182/kafka/prod", **expected}
    client = KazooClient(**found)
    assert (client.chroot, client.hosts) == ("/kafka/prod", [("z1", 2182), ("z2", 2182)])
    assert {name: getattr(client, name) for name in expected} == expected


def test_options_of_the_agents_file_reach_kazoo(world: World) -> None:
    sasl = {"mechanism": "DIGEST-MD5", "username": "agent", "password": "secret"}
    options: dict[str, Any] = {"sasl_options": sasl, "use_ssl": True, "ca": "/ca.pem"}
    settings = world.settings(broker={"properties": "unused", "zookeeper": options})
    assert settings.broker is not None
    client = KazooClient(**settings.broker.zookeeper)
    assert (client._connection.sasl_options, client.use_ssl, client.ca) == (sasl, True, "/ca.pem")
    with pytest.raises(ValueError, match="knows no sasl, ssl"):
        AgentSettings.model_validate(
            {**settings.model_dump(), "broker": {"properties": "x", "zookeeper": {"sasl": True, "ssl": True}}}
        )


def test_zookeeper_says_what_the_controller_wrote(kafka39: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    at = TopicPartition("in-zookeeper", 0)
    kafka39.create_topic(at.topic)
    broker = read_broker(kafka39.brokers[0].properties_path)
    assert broker.zookeeper is not None
    authority = ZooKeeperAuthority(broker.zookeeper)
    mark = authority.mark()
    wait_until(lambda: authority.confirms(mark) is True, what="the broker to have what ZooKeeper has")
    with closing(
        AdminMetadata(broker.node_id, lambda: connect(broker.node_id, broker.bootstrap, broker.security_protocol, {}))
    ) as metadata:
        assert authority.leader(at) == metadata.leaders([at])[at]._replace(replicas=())
    assert authority.leader(TopicPartition("never-made", 0)) is None
    nobody = {**broker.zookeeper, "hosts": "127.0.0.1:1", "connection_retry": {"max_tries": 0}}
    monkeypatch.setattr("uploader_agent.broker.authority._PATIENCE", 0.5)
    with pytest.raises(BrokerUnavailable, match="cannot be asked"):
        ZooKeeperAuthority(nobody).leader(at)
