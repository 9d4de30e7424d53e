"""Watches in ZooKeeper: on a real one, with sessions that end, and what reaches the client of it."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import NewTopic
from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState
from structlog.testing import capture_logs

from tests.support.java import java
from tests.support.kafka import KafkaCluster
from tests.support.kafka_broker import TINY_JVM, kafka_program
from tests.support.kafka_config import write_properties, zookeeper_properties
from tests.support.ports import HOST, free_port, is_free
from tests.support.waiting import wait_until
from tests.uploader_agent.broker.test_properties import write
from tests.uploader_agent.fakes import World
from tests.uploader_agent.tested_agent import TestedAgent
from tidemark.formats.keys import TopicPartition
from uploader_agent.broker import zookeeper
from uploader_agent.broker.admin import AdminMetadata, BrokerUnavailable, connect
from uploader_agent.broker.authority import ZooKeeperAuthority
from uploader_agent.broker.leadership_hints import state_path
from uploader_agent.broker.properties import read_broker
from uploader_agent.broker.zookeeper import ZooKeeperHints
from uploader_agent.components import Components
from uploader_agent.disk.watcher import NoWatcher
from uploader_agent.settings import AgentSettings

AT = TopicPartition("orders", 0)


class Hinted:
    """Counts hints."""

    def __init__(self) -> None:
        self.times = 0
        self._changed = threading.Condition()

    def __call__(self) -> None:
        with self._changed:
            self.times += 1
            self._changed.notify_all()

    def await_more_than(self, times: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.times > times, 20), f"still {self.times} hints"


@pytest.fixture
def ensemble(kafka39: KafkaCluster, tmp_path: Path) -> Iterator[KazooClient]:
    """A client in a chroot of its own on a real ZooKeeper, with the nodes that a broker makes."""
    chroot = f"/{tmp_path.name}"
    client = KazooClient(f"{kafka39.zookeeper}")
    client.start(30)
    client.ensure_path(f"{chroot}/brokers/topics")
    client.ensure_path(f"{chroot}/brokers/ids")
    client.chroot = chroot
    yield client
    client.stop()
    client.close()


def count_clients(monkeypatch: pytest.MonkeyPatch) -> list[KazooClient]:
    """The clients that are made from now on."""
    made: list[KazooClient] = []

    def make(**options: Any) -> KazooClient:
        made.append(KazooClient(**options))
        return made[-1]

    monkeypatch.setattr(zookeeper, "KazooClient", make)
    return made


@contextmanager
def watching(ensemble: KazooClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Hinted, list[KazooClient]]]:
    """Hints of one replica, whose first watches are set; and the clients that were made."""
    made = count_clients(monkeypatch)
    hosts = ",".join(f"{host}:{port}" for host, port in ensemble.hosts) + ensemble.chroot
    hinted = Hinted()
    with closing(ZooKeeperHints({"hosts": hosts, "timeout": 4.0})) as hints:
        hints.watch([AT])
        hints.start(hinted)
        hinted.await_more_than(0)
        yield hinted, made


def test_each_change_of_what_is_watched_is_a_hint(ensemble: KazooClient, monkeypatch: pytest.MonkeyPatch) -> None:
    with watching(ensemble, monkeypatch) as (hinted, _):
        changes: list[Any] = [
            lambda: ensemble.create(state_path(AT), b"{}", makepath=True),
            lambda: ensemble.set(state_path(AT), b'{"leader":1}'),
            lambda: ensemble.set(state_path(AT), b'{"leader":2}'),
            lambda: ensemble.create("/brokers/ids/2"),
            lambda: ensemble.delete("/brokers/ids/2"),
            lambda: ensemble.delete(state_path(AT)),
        ]
        for change in changes:
            before = hinted.times
            change()
            hinted.await_more_than(before)


def end_session(ensemble: KazooClient, identity: Any) -> bool:
    """Close a session from another client; False, since its owner may have taken it back before."""
    twin = KazooClient(f"{ensemble.hosts[0][0]}:{ensemble.hosts[0][1]}", client_id=identity)
    twin.start(30)
    twin.stop()
    twin.close()
    return False


def test_an_expired_session_is_survived(ensemble: KazooClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another client with the same session ends it; the hints come again, one for the time between included."""
    ensemble.create(state_path(AT), b"{}", makepath=True)
    with watching(ensemble, monkeypatch) as (hinted, made):
        [client] = made
        former, lost = client.client_id, threading.Event()
        client.add_listener(lambda state: lost.set() if state == KazooState.LOST else None)
        before = hinted.times
        wait_until(lambda: end_session(ensemble, former) or lost.is_set(), what="the session to end")
        hinted.await_more_than(before)
        assert client.client_id != former
        before = hinted.times
        ensemble.set(state_path(AT), b'{"leader":2}')
        hinted.await_more_than(before)


def test_a_refused_login_costs_only_hints(ensemble: KazooClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that ends for good is followed by another one."""
    real: Any = KazooClient.start_async
    made: list[KazooClient] = []

    def refuse_first(client: KazooClient) -> Any:
        made.append(client)
        if len(made) == 1:
            raise RuntimeError("told so")
        return real(client)

    monkeypatch.setattr(KazooClient, "start_async", refuse_first)
    hosts, hinted = f"{ensemble.hosts[0][0]}:{ensemble.hosts[0][1]}{ensemble.chroot}", Hinted()
    with closing(ZooKeeperHints({"hosts": hosts}, retry=0.05)) as hints:
        hints.start(hinted)
        hinted.await_more_than(0)
    assert len(made) > 1


@contextmanager
def running(world: World, cluster: KafkaCluster, topic: str) -> Iterator[TestedAgent]:
    """Broker 1's agent. Neither poll nor scan is due for a day, and no inotify: a watch alone can tell."""
    broker = read_broker(cluster.brokers[0].properties_path)
    assert (broker.mode, broker.zookeeper) == ("zookeeper", {"hosts": cluster.zookeeper})
    settings = world.settings(include=[topic], scan_interval="1d", metadata_interval="1d")
    with (
        closing(
            AdminMetadata(broker.node_id, lambda: connect(broker.node_id, broker.bootstrap, "PLAINTEXT", {}))
        ) as metadata,
        closing(NoWatcher()) as bell,
        closing(ZooKeeperHints(broker.zookeeper or {})) as hints,
    ):
        components = Components(settings, broker, metadata, lambda _url: world.store, bell, hints=hints)
        with TestedAgent(components).running() as agent:
            yield agent


def test_a_new_topic_is_led_long_before_the_poll(kafka39: KafkaCluster, tmp_path: Path) -> None:
    topic = "watched"
    with running(World(tmp_path), kafka39, topic) as agent:
        wait_until(lambda: agent.health.ready, what="ready")
        kafka39.create_topic(topic)
        wait_until(lambda: TopicPartition(topic, 0) in agent.leadership.partitions, what="it to be led")


def test_leader_change_is_seen_long_before_the_poll(tmp_path: Path, full: bool) -> None:
    if not full:
        pytest.skip("starts two brokers: make test-full")
    with KafkaCluster(tmp_path / "kafka", version="3.9.2", brokers=2) as cluster:
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
def secured(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A ZooKeeper that speaks TLS only and wants a login; what the client needs for it."""
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
    """With the right password it watches; with another the client is refused, and made anew as often as that is."""
    hinted = Hinted()
    with closing(ZooKeeperHints(secured)) as hints:
        hints.start(hinted)
        hinted.await_more_than(0)
    wrong, none = {**secured["sasl_options"], "password": "wrong"}, Hinted()
    made = count_clients(monkeypatch)
    with capture_logs() as logs, closing(ZooKeeperHints({**secured, "sasl_options": wrong}, retry=0.5)) as hints:
        hints.start(none)
        wait_until(lambda: len(made) > 2, what="a third client")
    assert none.times == 0
    assert [one["event"] for one in logs if one["log_level"] == "warning"] == ["zookeeper_not_watched"]


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
