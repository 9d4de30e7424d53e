"""A replica of our own after random faults: byte by byte its leaders' logs, and no offset missing."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.kafka import KafkaCluster
from tests.support.socks import SocksProxy
from tests.uploader_agent.faults.replica_storm import Storm
from tests.uploader_agent.faults.test_own_replica import VERSIONS


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("version", VERSIONS)
def test_random_faults(
    starts_kafka: None,
    version: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    rng: random.Random,
    seed: int,
    full: bool,
    tried: Callable[[str, int], None],
) -> None:
    cluster: KafkaCluster = request.getfixturevalue("kraft3" if version == "4.3.1" else "zookeeper3")
    with SocksProxy() as proxy:
        storm = Storm(tmp_path, cluster, proxy, rng)
        storm.run(200 if full else 6)
    # What a test tried is part of its result.
    print(f"seed {seed}, Kafka {version}: {storm.done.total()} faults {dict(storm.done)}; {dict(storm.totals)}")  # noqa: T201
    for kind, amount in (storm.done + storm.totals).items():
        tried(kind, amount)
