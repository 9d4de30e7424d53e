"""Each mode beside Kafka 3.9.2, as :mod:`tests.consumer.test_modes` has it for the newer one.

A file of its own, so that it may run where that broker runs already.
"""

from __future__ import annotations

import pytest

from tests.consumer.kinds import KINDS
from tests.consumer.test_modes import FEW, Uploaded, check_deleted, check_records
from tests.consumer.world import Place, World
from tests.support.kafka import KafkaCluster
from tidemark import Mode


@pytest.fixture(scope="module")
def uploaded(tmp_path_factory: pytest.TempPathFactory, kafka39: KafkaCluster, full: bool) -> Uploaded:
    folder = tmp_path_factory.mktemp("modes-older")
    return Uploaded(World(folder, kafka39, Place(f"file://{folder}/raw")), kafka39.version, KINDS if full else FEW)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("name", list(KINDS))
def test_records_equal_the_brokers_own(uploaded: Uploaded, name: str, mode: Mode) -> None:
    check_records(uploaded, name, mode)


def test_what_kafka_has_deleted_comes_from_storage(uploaded: Uploaded) -> None:
    check_deleted(uploaded)
