"""A store whose certificate is a private authority's, and another authority's later, with real parts."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.deployment import SmallDeployment, credentials
from tests.end_to_end.rows import consumed, landed
from tests.end_to_end.test_recovery import stored
from tests.end_to_end.test_whole_path import SMALL, plain
from tests.support.certificates import certificate_of_new_authority
from tests.support.kafka import KafkaCluster
from tests.support.s3 import S3Server
from tidemark.errors import Refused
from tidemark.store import open_store
from tidemark.store.s3.clients import forget_clients

TOPIC = "secured-store"


class Authorities:
    """Two authorities, and the files that the server and its clients read."""

    def __init__(self, root: Path) -> None:
        self.made: list[tuple[Path, Path]] = []
        for name in ("first", "second"):
            (root / name).mkdir(parents=True)
            self.made.append(certificate_of_new_authority(root / name))
        self.trusted, self.certificate = root / "trusted.pem", root / "server.pem"
        self.trust(0)
        self.certify(0)

    def trust(self, *numbers: int) -> None:
        """What clients trust that begin from now on."""
        self.trusted.write_text("".join(self.made[number][0].read_text() for number in numbers))
        forget_clients()  # this process is a client, too

    def certify(self, number: int) -> None:
        """The server's certificate at its next start."""
        shutil.copy(self.made[number][1], self.certificate)


@pytest.fixture
def authorities(tmp_path: Path) -> Authorities:
    return Authorities(tmp_path / "authorities")


@pytest.fixture
def own(starts_s3: None, kafka: KafkaCluster, authorities: Authorities, tmp_path: Path) -> Iterator[SmallDeployment]:
    """A deployment with a store of its own."""
    server = S3Server(tmp_path / "s3", tls=(authorities.trusted, authorities.certificate))
    with server, credentials(server):
        assert server.endpoint.startswith("https://")
        often = {"index_interval": "500ms", "index_idle_interval": "1s"}
        yield SmallDeployment(tmp_path, kafka, server, "p", (f"{TOPIC}-{tmp_path.name}",), agent_settings=often)


def test_another_authority_takes_over_while_the_agent_runs(
    own: SmallDeployment, authorities: Authorities, rng: random.Random, starts_spark: None
) -> None:
    """The file has both authorities in between, as docs/operations.md says; bodies are not signed over HTTPS."""
    [topic], bootstrap = own.topics, own.kafka.bootstrap
    own.kafka.create_topic(topic, partitions=3, config=SMALL)
    plain(bootstrap, topic, "zstd", rng)
    own.upload()
    assert own.land(topic).status == "landed"
    authorities.trust(0, 1)
    with own.running_agent() as agent:
        plain(bootstrap, topic, "lz4", rng)
        agent.wait_until(lambda: stored(own, topic) == 12_000, what="packs under the first")
        authorities.certify(1)
        own.s3.kill()
        own.s3.start()
        plain(bootstrap, topic, "gzip", rng)
        agent.wait_until(lambda: stored(own, topic) == 18_000, what="packs under the second")
    authorities.trust(1)
    assert own.job("ingest", topic)["status"] == "landed"
    assert set(landed(own.table(topic))) == consumed(bootstrap, topic)
    assert own.agent("verify", "--deep").returncode == 0


def test_a_certificate_that_is_not_trusted_is_named_with_what_to_do(
    own: SmallDeployment, authorities: Authorities
) -> None:
    authorities.trust(1)
    with pytest.raises(Refused, match="AWS_CA_BUNDLE"):
        open_store("s3://raw", own.deployment.store).head("x")
    own.kafka.create_topic(own.topics[0])
    done = own.agent("upload-once")
    assert done.returncode == 1
    assert "AWS_CA_BUNDLE" in done.stdout + done.stderr
