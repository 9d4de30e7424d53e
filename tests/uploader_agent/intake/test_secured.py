"""A broker that wants TLS, SCRAM and rights: what a copy needs, and what it says without."""

from __future__ import annotations

import gc
import subprocess
from collections.abc import Iterator
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
from tests.uploader_agent.in_process import run_here
from tests.uploader_agent.intake.scripted import batches_in

pytestmark = pytest.mark.full
USER, PASSWORD = "copier", "secret-of-the-copier"


class Secured:
    """A broker with a second listener, its certificate, and an admin client that may do all."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.certificate, keys = root / "certificate.pem", root / "key.pem"
        subject = ["-subj", "/CN=localhost", "-addext", f"subjectAltName=IP:{HOST}"]
        made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
        subprocess.run([*made, "-keyout", keys, "-out", self.certificate], check=True, capture_output=True)
        store = root / "store.pem"
        store.write_text(keys.read_text() + self.certificate.read_text())
        self.address = f"{HOST}:{free_port()}"
        self.cluster = KafkaCluster(root / "kafka")
        properties, listener = self.cluster.brokers[0].properties, "listener.name.secure"
        for name in ("listeners", "advertised.listeners"):
            properties[name] += f",SECURE://{self.address}"
        properties["listener.security.protocol.map"] += ",SECURE:SASL_SSL"
        properties |= {
            f"{listener}.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            f"{listener}.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            f"{listener}.ssl.keystore.type": "PEM",
            f"{listener}.ssl.keystore.location": str(store),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    @cached_property
    def admin(self) -> AdminClient:
        """A client that may do all."""
        return AdminClient({"bootstrap.servers": self.cluster.brokers[0].bootstrap, "log_level": 0})

    def allow(self, topic: str, operation: AclOperation) -> None:
        kind, pattern = ResourceType.TOPIC, ResourcePatternType.LITERAL
        rule = AclBinding(kind, topic, pattern, f"User:{USER}", "*", operation, AclPermissionType.ALLOW)
        for made in self.admin.create_acls([rule]).values():
            made.result(30)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    found = Secured(tmp_path_factory.mktemp("secured") / "broker")
    with found.cluster:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        changes: list[UserScramCredentialAlteration] = [UserScramCredentialUpsertion(USER, info, PASSWORD.encode())]
        for made in found.admin.alter_user_scram_credentials(changes).values():
            made.result(30)
        yield found


@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
def test_login_encryption_and_rights(secured: Secured, tmp_path: Path) -> None:
    topic = "secured"
    secured.cluster.create_topic(topic)
    client = Producer({"bootstrap.servers": secured.cluster.brokers[0].bootstrap})
    for number in range(1000):
        client.produce(topic, b"%d" % number * 100)
    assert client.flush(60) == 0
    settings = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
        "ssl_cafile": str(secured.certificate),
    }

    def copied(**changes: str | None) -> tuple[int, str]:
        config, log = tmp_path / "client.yaml", tmp_path / "log"
        log.unlink(missing_ok=True)
        config.write_text(yaml.safe_dump({k: v for k, v in (settings | changes).items() if v is not None}))
        place: list[str | Path] = ["--topic", topic, "--to", tmp_path / "spool", "--config", config]
        code = run_here(["copy", "--bootstrap", secured.address, *place], log)
        return code, log.read_text()

    code, said = copied(sasl_plain_password="wrong-password")
    assert (code, "refuses the login" in said, "correct the sasl_ settings of --config" in said) == (1, True, True), (
        said
    )
    assert "wrong-password" not in said
    code, said = copied(sasl_mechanism="SCRAM-SHA-256")
    assert (code, "refuses the login" in said) == (1, True), said
    code, said = copied(ssl_cafile=None)
    assert (code, "certificate verify failed" in said) == (1, True), said
    gc.collect()  # kafka-python leaves the socket of a failed handshake to it
    code, said = copied()
    assert (code, "lacks DESCRIBE" in said or "READ and DESCRIBE" in said) == (1, True), said
    secured.allow(topic, AclOperation.DESCRIBE)
    code, said = copied()
    assert (code, "give this user READ and DESCRIBE on the topic" in said) == (1, True), said
    secured.allow(topic, AclOperation.READ)
    code, said = copied()
    assert code == 0, said
    log = secured.cluster.brokers[0].log_dirs[0] / f"{topic}-0"
    assert batches_in(tmp_path / "spool" / log.name) == batches_in(log) != []
