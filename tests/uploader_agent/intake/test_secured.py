"""A broker that wants TLS, SCRAM and rights: what a copy needs, and what it says without."""

from __future__ import annotations

import gc
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import closing
from functools import cached_property
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it does not list what it exports
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from tests.support.kafka import KafkaCluster
from tests.support.ports import HOST, free_port
from tests.support.s3 import S3Server
from tests.uploader_agent.in_process import run_here
from tests.uploader_agent.intake import topic_copy
from tests.uploader_agent.intake.scripted import batches_in
from uploader_agent.intake.brokers import BrokerConnections
from uploader_agent.intake.fetching import FetchLimits, TopicLeaders

pytestmark = pytest.mark.full
USER, PASSWORD = "copier", "secret-of-the-copier"


class Secured:
    """A broker with more listeners: one wants a login, two a client's certificate, by TLS 1.3 and 1.2.

    It is none of the shared ones, because its authorizer is asked about every client of the broker.
    """

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self._root = root
        self.authority = self.certificate("authority")
        self.addresses = {name: f"{HOST}:{free_port()}" for name in ("LOGIN", "MUTUAL", "OLDER")}
        self.cluster = KafkaCluster(root / "kafka")
        properties = self.cluster.brokers[0].properties
        for name in ("listeners", "advertised.listeners"):
            properties[name] += "".join(f",{listener}://{at}" for listener, at in self.addresses.items())
        properties["listener.security.protocol.map"] += ",LOGIN:SASL_SSL,MUTUAL:SSL,OLDER:SSL"
        properties |= {
            "listener.name.login.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.login.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.older.ssl.client.auth": "required",
            "listener.name.older.ssl.enabled.protocols": "TLSv1.2",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificate("localhost", self.authority)),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    def certificate(self, name: str, authority: Path | None = None) -> Path:
        """A file with a certificate and its key, made by ``authority`` or by itself."""
        path, key = self._root / f"{name}.pem", self._root / f"{name}.key"
        subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{HOST}"]
        made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
        signed: list[str | Path] = ["-CA", authority, "-CAkey", authority] if authority else []
        subprocess.run([*made, *signed, "-keyout", key, "-out", path], check=True, capture_output=True)
        path.write_text(key.read_text() + path.read_text())
        return path

    @cached_property
    def admin(self) -> AdminClient:
        """A client that may do all."""
        return AdminClient({"bootstrap.servers": self.cluster.brokers[0].bootstrap, "log_level": 0})

    def allow(self, user: str, topic: str, operation: AclOperation) -> None:
        kind, pattern = ResourceType.TOPIC, ResourcePatternType.LITERAL
        rule = AclBinding(kind, topic, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
        for made in self.admin.create_acls([rule]).values():
            made.result(30)

    def give_password(self, user: str, password: str) -> None:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        changes: list[UserScramCredentialAlteration] = [UserScramCredentialUpsertion(user, info, password.encode())]
        for made in self.admin.alter_user_scram_credentials(changes).values():
            made.result(30)

    def produce(self, topic: str) -> None:
        client = Producer({"bootstrap.servers": self.cluster.brokers[0].bootstrap})
        for number in range(1000):
            client.produce(topic, b"%d" % number * 100)
        assert client.flush(60) == 0


@pytest.fixture(scope="module")
def secured(starts_kafka: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    found = Secured(tmp_path_factory.mktemp("secured") / "broker")
    with found.cluster:
        found.give_password(USER, PASSWORD)
        yield found


class Attempts:
    """Copies of ``topic`` into one spool, each with ``settings`` and some changes."""

    def __init__(self, secured: Secured, listener: str, topic: str, root: Path, **settings: str) -> None:
        self._address, self._root, self._settings = secured.addresses[listener], root, settings
        self.topic, self.spool = topic, root / "spool" / f"{topic}-0"
        self.log = secured.cluster.brokers[0].log_dirs[0] / self.spool.name
        secured.cluster.create_topic(topic)
        secured.produce(topic)

    def copied(self, topic: str | None = None, **changes: str | None) -> tuple[int, str]:
        config, log = self._root / "client.yaml", self._root / "log"
        log.unlink(missing_ok=True)
        config.write_text(yaml.safe_dump({k: v for k, v in (self._settings | changes).items() if v is not None}))
        place: list[str | Path] = ["--topic", topic or self.topic, "--to", self.spool.parent, "--config", config]
        code = run_here(["--bootstrap", self._address, *place], log, program=topic_copy.main)
        gc.collect()  # kafka-python leaves the socket of a failed handshake to it
        return code, log.read_text()

    def refused(self, code: int, *says: str, **changes: str | None) -> None:
        """A copy fails with a message that says all of this, and changes nothing in the spool."""
        before = batches_in(self.spool)
        found, said = self.copied(**changes)
        assert (found, [text for text in says if text not in said]) == (code, []), said
        assert "Traceback" not in said
        assert batches_in(self.spool) == before

    def succeeds(self) -> None:
        code, said = self.copied()
        assert code == 0, said
        assert batches_in(self.spool) == batches_in(self.log) != []


@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
def test_login_encryption_and_rights(secured: Secured, tmp_path: Path) -> None:
    attempts = Attempts(
        secured,
        "LOGIN",
        "login",
        tmp_path,
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username=USER,
        sasl_plain_password=PASSWORD,
        ssl_cafile=str(secured.authority),
    )
    attempts.refused(1, "login: ", "the right DESCRIBE is missing: give this user READ on the topic")
    secured.allow(USER, "login", AclOperation.DESCRIBE)
    attempts.refused(1, "login-0: ", "the right READ is missing: give it to this user on the topic")
    secured.allow(USER, "login", AclOperation.READ)
    attempts.succeeds()
    secured.produce("login")
    wrong = "wrong-password"
    attempts.refused(1, "refuses the login", "correct the sasl_ settings of fetch.client", sasl_plain_password=wrong)
    assert wrong not in (tmp_path / "log").read_text()
    attempts.refused(1, "refuses the login", "correct the sasl_", sasl_mechanism="SCRAM-SHA-256")
    attempts.refused(2, "sasl_mechanism: 'SCRAM-MD5' is not known", sasl_mechanism="SCRAM-MD5")
    attempts.refused(1, "no-such: ", "DESCRIBE", topic="no-such")
    attempts.succeeds()


@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
def test_an_agent_goes_on_after_its_password_was_changed(secured: Secured, s3_server: S3Server, tmp_path: Path) -> None:
    """Its brokers refuse the old one from its next connection on; a restart with the new one fetches the rest."""
    user, topic, url = "slot", "rotated", f"s3://raw/rotated-{uuid.uuid4().hex[:8]}"
    secured.cluster.create_topic(topic)
    for operation in (AclOperation.DESCRIBE, AclOperation.READ, AclOperation.DESCRIBE_CONFIGS):
        secured.allow(user, topic, operation)
    config, log, env = tmp_path / "agent.yaml", tmp_path / "log", s3_server.env()

    def fetched(password: str) -> int:
        login = {"sasl_mechanism": "SCRAM-SHA-512", "sasl_plain_username": user, "sasl_plain_password": password}
        client = {"security_protocol": "SASL_SSL", "ssl_cafile": str(secured.authority), **login}
        settings = {
            "cluster": "secured",
            "fetch": {
                "bootstrap": secured.addresses["LOGIN"],
                "client": client,
                "spool": str(tmp_path / "spool"),
            },
            "raw": {"url": url},
            "store": {"path_style": True},
            "include": [topic],
            "state_dir": str(tmp_path / "state"),
            "tail_after": "0s",
        }
        config.write_text(yaml.safe_dump(settings))
        log.unlink(missing_ok=True)
        code = run_here(["upload-once", "-c", config], log, {**os.environ, **env})
        gc.collect()
        return code

    for password in ("the-old-password", "the-new-password"):
        secured.produce(topic)
        secured.give_password(user, password)
        if password == "the-new-password":
            assert fetched("the-old-password") == 1
            assert "refuses the login" in log.read_text()
        assert fetched(password) == 0, log.read_text()
        assert "rotated-0" in log.read_text()
    assert batches_in(tmp_path / "spool" / f"{topic}-0") == batches_in(
        secured.cluster.brokers[0].log_dirs[0] / f"{topic}-0"
    )


@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
@pytest.mark.parametrize("listener", ["MUTUAL", "OLDER"])
def test_certificates(secured: Secured, tmp_path: Path, listener: str) -> None:
    """With TLS 1.3 a client learns of its refusal after the handshake, with 1.2 in it."""
    mine, others = secured.certificate(USER, secured.authority), secured.certificate("others")
    topic = f"of-{listener}"
    settings = {"security_protocol": "SSL", "ssl_cafile": str(secured.authority), "ssl_certfile": str(mine)}
    attempts = Attempts(secured, listener, topic, tmp_path, **settings)
    secured.allow(f"CN={USER}", topic, AclOperation.READ)
    attempts.succeeds()
    secured.produce(topic)
    attempts.refused(1, "it wants a certificate of this client", "set ssl_certfile", ssl_certfile=None)
    attempts.refused(
        1, f"it refuses the certificate in {others}", "an authority that it trusts", ssl_certfile=str(others)
    )
    attempts.refused(1, "its certificate is not accepted", f"correct ssl_cafile ({others})", ssl_cafile=str(others))
    attempts.refused(2, "ssl_certfile: /no/such.pem cannot be read", ssl_certfile="/no/such.pem")
    attempts.refused(2, f"ssl_certfile: {mine} must have a certificate in PEM, with the key", ssl_keyfile=str(others))
    attempts.succeeds()


def test_a_topic_without_a_right_is_refused_alone(secured: Secured) -> None:
    """A slot asks by name, in one request, for topics whose leaders it looks for."""
    names = {"allowed", "denied"}
    for name in names:
        secured.cluster.create_topic(name)
    secured.allow(USER, "allowed", AclOperation.READ)
    settings = {
        "bootstrap_servers": [secured.addresses["LOGIN"]],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
        "ssl_cafile": str(secured.authority),
    }
    with closing(BrokerConnections(settings, FetchLimits())) as brokers:
        answers = brokers.run(brokers.topics({*names, "no-such"}))
        assert isinstance(answers["allowed"], TopicLeaders)
        assert "denied: the right DESCRIBE is missing: give this user READ" in str(answers["denied"])
        assert "no-such: the right DESCRIBE is missing" in str(answers["no-such"]), "Kafka does not say that it is none"
        assert "denied" not in brokers.run(brokers.topics(None))
