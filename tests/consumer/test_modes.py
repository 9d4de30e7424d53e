"""Each mode with each kind of topic: what comes equals the broker's own read, from the tier that the mode says."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from kafka import TopicPartition

from tests.consumer.conftest import place_of
from tests.consumer.kinds import KINDS, Kind
from tests.consumer.world import World, origins, partitions, read_to
from tests.support.kafka import KafkaCluster
from tests.support.kafka_broker import KafkaVersion
from tidemark import Mode
from tidemark.remote import RemoteTopics


class Uploaded:
    """A topic of each kind, read once by kafka-python and then uploaded with all the others."""

    def __init__(self, world: World, version: KafkaVersion, kinds: Mapping[str, Kind]) -> None:
        self.world = world
        self.kinds = kinds
        self.expected: dict[str, dict[TopicPartition, list[Any]]] = {}
        self.ends: dict[str, dict[TopicPartition, int]] = {}
        for name, kind in kinds.items():
            kind.fill(world, self.topic(name), version)
            tps = partitions(self.topic(name), kind.partitions)
            with world.plain(isolation_level=kind.isolation) as consumer:
                consumer.assign(tps)
                self.ends[name] = consumer.end_offsets(tps)
                self.expected[name] = read_to(consumer, self.ends[name])
        world.upload(*map(self.topic, kinds))
        self.remote_ends = cache(self._remote_ends)

    def topic(self, name: str) -> str:
        return f"kind-{name}-{self.world.folder.name}"

    def _remote_ends(self, name: str) -> dict[TopicPartition, int]:
        topics = RemoteTopics(self.world.storage())
        kind = self.kinds[name]
        found = {}
        for tp in partitions(self.topic(name), kind.partitions):
            remote = topics.partition(*tp)
            found[tp] = remote.end(committed=kind.isolation == "read_committed") if remote is not None else 0
        return found


FEW = {name: KINDS[name] for name in ("lz4", "committed")}
"""A sample of all kinds: each is read from the local store, over S3 and by 3.9.2 only these, unless all tests run."""


@pytest.fixture(scope="module", params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def uploaded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kafka: KafkaCluster, full: bool
) -> Uploaded:
    folder: Path = tmp_path_factory.mktemp(f"modes-{request.param}")
    kinds = KINDS if full or request.param == "local" else FEW
    return Uploaded(World(folder, kafka, place_of(request.param, request, folder)), kafka.version, kinds)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("name", list(KINDS))
def test_records_equal_the_brokers_own(uploaded: Uploaded, name: str, mode: Mode) -> None:
    check_records(uploaded, name, mode)


def check_records(uploaded: Uploaded, name: str, mode: Mode) -> None:
    """What a consumer of the mode gets is what the brokers have, from the tiers that the mode says."""
    if name not in uploaded.kinds:
        pytest.skip("long: `make test-full` runs it")
    kind, expected = uploaded.kinds[name], uploaded.expected[name]
    remote_ends, ends = uploaded.remote_ends(name), uploaded.ends[name]
    until = remote_ends if mode is Mode.REMOTE_ONLY else ends
    with uploaded.world.consumer(mode, isolation_level=kind.isolation, max_poll_records=2000) as consumer:
        consumer.assign(list(ends))
        found = read_to(consumer, until)
        for tp in ends:
            assert found.get(tp, []) == [one for one in expected.get(tp, []) if one.offset < until[tp]], tp
            stored = sum(one.offset < remote_ends[tp] for one in expected.get(tp, []))
            count = len(found.get(tp, []))
            remote = stored if mode in {Mode.REMOTE_ONLY, Mode.REMOTE_PREFERRED} else 0
            assert origins(consumer, tp) in ({}, {"remote": remote, "kafka": count - remote}), tp
    assert name == "idle" or any(remote_ends.values()), "nothing was uploaded"


def test_what_kafka_has_deleted_comes_from_storage(uploaded: Uploaded) -> None:
    check_deleted(uploaded)


def check_deleted(uploaded: Uploaded) -> None:
    """KAFKA_PREFERRED and REMOTE_PREFERRED, once the log start has moved into the middle of what is stored."""
    name = "zstd" if "zstd" in uploaded.kinds else "lz4"
    expected, remote_ends, ends = uploaded.expected[name], uploaded.remote_ends(name), uploaded.ends[name]
    starts = {tp: end // 2 for tp, end in remote_ends.items()}
    uploaded.world.delete_before(uploaded.topic(name), {tp.partition: at for tp, at in starts.items()})
    for mode in (Mode.KAFKA_PREFERRED, Mode.REMOTE_PREFERRED):
        with uploaded.world.consumer(mode, max_poll_records=20) as consumer:
            assert consumer.beginning_offsets(list(ends)) == dict.fromkeys(ends, 0)
            assert consumer.end_offsets(list(ends)) == ends
            consumer.assign(list(ends))
            assert read_to(consumer, ends) == expected
            for tp, at in starts.items():
                assert origins(consumer, tp)["remote"] >= at
                assert origins(consumer, tp)["kafka"] >= ends[tp] - remote_ends[tp]
    with uploaded.world.consumer(Mode.KAFKA_ONLY) as consumer:
        consumer.assign(list(ends))
        for tp, records in read_to(consumer, ends).items():
            assert records == [one for one in expected[tp] if one.offset >= starts[tp]]
