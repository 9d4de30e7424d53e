"""Pinterest's consumer, as published, reads what the agent seals.

It lists the partition's ``.log`` objects, takes their names for offsets, and finds its place in one by the ``.index``.
"""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest
from confluent_kafka import Producer
from py4j.protocol import Py4JError, Py4JJavaError

from tests.support.fixtures import SEED
from tests.support.kafka import KafkaCluster
from tests.support.pinterest import PinterestConsumer, PinterestJvm, Read
from tests.support.s3 import S3Server
from tests.support.waiting import HUNG
from tests.tidemark.kafka_log.build import Record, batch
from tests.uploader_agent.real import Deployment
from tidemark.decode.rewrite import BatchRewriter
from tidemark.formats.keys import SegmentName
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.kafka_log import BatchHeader, Codec, scan_batches
from tidemark.kafka_log.indexes import DerivedIndexes
from tidemark.store import Store, StoreOptions, open_store
from tidemark.store.s3.clients import forget_clients
from uploader_agent.disk.log_dirs import find_segments

TOPIC = "pinterest"
BUCKET = "raw"
T0 = 1_770_000_000_000
ROUNDS = (("zstd", 3), ("gzip", 2), ("lz4", 7), ("snappy", 1), ("none", 8))
"""Codec and batches of what is produced before each run of the agent; a segment of the broker holds five or six."""


@dataclass(frozen=True)
class Sealed:
    """A partition that was sealed bit by bit, and the JVM that reads it."""

    jvm: PinterestJvm
    deployment: Deployment
    produced: list[Read]
    manifests: list[SegmentManifest]

    @property
    def store(self) -> Store:
        return self.deployment.store

    @property
    def folder(self) -> str:
        """Where the objects of the partition lie."""
        return self.deployment.keys().folder

    def copy(self, prefix: str) -> str:
        """All objects once more, below another prefix; returns the folder of the partition there."""
        folder = f"{prefix}/{self.folder.partition('/')[2]}"
        for info in self.store.list(self.folder):
            self.store.put(folder + info.key.removeprefix(self.folder), self.store.get(info.key).body)
        return folder

    def batches(self, manifest: SegmentManifest) -> list[BatchHeader]:
        body = self.store.get(self.folder + manifest.log_name).body
        return list(scan_batches([body], manifest.log_name, manifest.base_offset))

    def consumer(
        self, prefix: str = TOPIC, jvm: PinterestJvm | None = None
    ) -> AbstractContextManager[PinterestConsumer]:
        kafka = self.deployment.cluster
        return (jvm or self.jvm).consumer(
            kafka.bootstrap, cluster=kafka.cluster_id, bucket=BUCKET, prefix=prefix, topic=TOPIC
        )

    def read(self, prefix: str) -> list[Read]:
        """All that the consumer reads of what lies below ``prefix``."""
        with self.consumer(prefix) as consumer:
            return consumer.read(len(self.produced))


@pytest.fixture(scope="module")
def sealed(
    starts_other: None, kafka: KafkaCluster, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sealed]:
    root, env = tmp_path_factory.mktemp("pinterest"), s3_server.env()
    kafka.create_topic(TOPIC, config={"internal.segment.bytes": "32768"})
    options = StoreOptions(endpoint_url=s3_server.endpoint, path_style=True)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        forget_clients()
        store = open_store(f"s3://{BUCKET}", options)
        settings = {"store": options.model_dump(mode="json", exclude_defaults=True), "tail_after": "0s"}
        deployment = Deployment(root, kafka, store, TOPIC, TOPIC, **settings)
        produced: list[Read] = []
        rng = random.Random(f"{SEED}:pinterest")
        for codec, batches in ROUNDS:
            produced += produce(kafka, codec, batches, len(produced), rng)
            assert deployment.run("upload-once", env) == 0, deployment.log.read_text()
        with PinterestJvm(env, root / "consumer.log") as jvm:
            jvm.know_bucket(BUCKET)
            yield Sealed(jvm, deployment, produced, deployment.manifests())
    forget_clients()


def produce(kafka: KafkaCluster, codec: str, batches: int, start: int, rng: random.Random) -> list[Read]:
    """Batches of four records, of some 5 kB each; the offset of the first is ``start``."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "compression.type": codec, "linger.ms": 1000})
    sent: list[Read] = []
    for _ in range(batches):
        for _ in range(4):
            number = start + len(sent)
            headers = (("number", b"%d" % number), ("none", None)) if number % 3 == 0 else ()
            key = None if number % 4 == 0 else b"key-%d" % number
            value = None if number % 11 == 10 else rng.randbytes(1300) + bytes(200)
            sent.append(Read(number, T0 + 10 * number, key, value, headers))
            producer.produce(TOPIC, value, key, partition=0, timestamp=sent[-1].timestamp, headers=list(headers))
        assert producer.flush(30) == 0
    return sent


def test_it_reads_every_offset_with_its_value(sealed: Sealed) -> None:
    assert sealed.read(TOPIC) == sealed.produced
    folder = sealed.deployment.folder()
    begun = {one.base_offset for one in find_segments(folder)}
    bases = {one.base_offset for one in sealed.manifests}
    assert len(begun) > 2, "Kafka has not rolled"
    assert len(bases - begun) > 2, "no seal begins within a segment of the broker"
    assert [one.next_offset for one in sealed.manifests[:-1]] == [one.base_offset for one in sealed.manifests[1:]]
    headers = [header for manifest in sealed.manifests for header in sealed.batches(manifest)]
    assert {header.codec for header in headers} == set(get_args(Codec))
    assert max(header.record_count for header in headers) > 1


def test_there_are_runs_whose_index_would_have_two_entries(sealed: Sealed) -> None:
    """In such an index the consumer searches for ever: a poll would not return."""
    sizes = {len(sealed.batches(one)): one.objects[one.name.file("index")].size // 8 for one in sealed.manifests}
    assert sizes[1] == 0
    assert sizes[3] == 1, "three batches, each of more than 4096 bytes: Kafka makes two entries"
    assert max(sizes.values()) > 2


@pytest.mark.full
def test_in_an_index_of_two_entries_it_searches_for_ever(
    starts_other: None, sealed: Sealed, s3_server: S3Server, tmp_path: Path
) -> None:
    """Why the agent makes none: here is one as Kafka makes it, and a JVM of its own, which ends with the search."""
    seal = sealed.manifests[0]
    _, second, third = sealed.batches(seal)
    entries = (second.last_offset, second.position, third.last_offset, third.position)
    sealed.store.put(sealed.copy("pinterest-two") + seal.name.file("index"), struct.pack(">iiii", *entries))
    with PinterestJvm(s3_server.env(), tmp_path / "consumer.log") as jvm:
        jvm.know_bucket(BUCKET)
        with sealed.consumer("pinterest-two", jvm) as consumer:
            consumer.seek(seal.next_offset)
            assert consumer.poll(), "of what is behind it"
            consumer.seek(seal.base_offset)
            found: list[Read] = []

            def poll() -> None:
                with suppress(Py4JError):
                    found.extend(consumer.poll())

            searching = threading.Thread(target=poll)
            searching.start()
            searching.join(5)
            assert searching.is_alive()
    searching.join(HUNG)
    assert found == []


@pytest.mark.full
def test_it_seeks_into_each_seal(sealed: Sealed) -> None:
    with sealed.consumer() as consumer:
        for manifest in reversed(sealed.manifests):
            for offset in {manifest.base_offset, (manifest.base_offset + manifest.next_offset) // 2}:
                consumer.seek(offset)
                found = consumer.poll()
                assert found, offset
                assert found == sealed.produced[offset : offset + len(found)]
        consumer.seek(sealed.manifests[2].base_offset + 1)
        assert consumer.read(len(sealed.produced)) == sealed.produced[sealed.manifests[2].base_offset + 1 :]
        assert consumer.bounds() == (0, sealed.manifests[-1].base_offset)
        with pytest.raises(Py4JJavaError, match="UnsupportedOperationException"):
            consumer.offset_for_time(T0)


@pytest.mark.parametrize("plain", [False, True])
def test_it_reads_the_bytes_of_a_rewritten_seal_under_a_plain_name_alone(sealed: Sealed, plain: bool) -> None:
    """Its own name it does not know, and ends before it."""
    seal = sealed.manifests[len(sealed.manifests) // 2]
    folder, erased = sealed.copy(f"pinterest-rewritten-{plain}"), {*range(seal.base_offset + 1, seal.base_offset + 6)}
    new = SegmentName(seal.base_offset, "" if plain else "e1")
    old, rewriter = sealed.store.get(folder + seal.log_name).body, BatchRewriter()
    content = b""
    for header in sealed.batches(seal):
        content += rewriter.without(old[header.position : header.end], erased)[0]
    indexes = DerivedIndexes(seal.base_offset, len(content))
    for header in scan_batches([content], seal.log_name, seal.base_offset):
        indexes.add(header, content[header.position : header.end])
    for extension in ("log", "index"):
        sealed.store.delete(folder + seal.name.file(extension))
    sealed.store.put(folder + new.file("index"), dict(indexes.files())["index"])
    sealed.store.put(folder + new.file("log"), content)
    read = sealed.read(folder.partition("/")[0])
    if plain:
        assert read == [record for record in sealed.produced if record.offset not in erased]
    else:
        assert read == sealed.produced[: seal.base_offset]


@pytest.mark.full
def test_a_seal_without_its_log_ends_the_reading(sealed: Sealed) -> None:
    """The proof that the tests above would notice a seal that is not there."""
    lost = sealed.manifests[len(sealed.manifests) // 2]
    sealed.store.delete(sealed.copy("pinterest-without-log") + lost.log_name)
    assert sealed.read("pinterest-without-log") == sealed.produced[: lost.base_offset]


@pytest.mark.full
def test_it_does_not_recover_from_a_seal_without_its_index(sealed: Sealed) -> None:
    """Nor if the index comes later, as the agent puts it after the ``.log``; a new consumer reads on."""
    lost = sealed.manifests[len(sealed.manifests) // 2]
    folder = sealed.copy("pinterest-without-index")
    index = folder + lost.name.file("index")
    body = sealed.store.get(index).body
    sealed.store.delete(index)
    with sealed.consumer("pinterest-without-index") as consumer:
        assert consumer.read(lost.base_offset) == sealed.produced[: lost.base_offset]
        assert consumer.poll() == []
        with pytest.raises(Py4JJavaError, match="NoSuchKeyException"):
            consumer.poll()
        sealed.store.put(index, body)
        assert consumer.read(len(sealed.produced)) == []
    assert sealed.read("pinterest-without-index") == sealed.produced


@pytest.mark.full
def test_a_branch_with_a_name_of_its_own_is_left_alone(sealed: Sealed) -> None:
    """As after an unclean election: the consumer reads the plain name's branch."""
    at = sealed.manifests[len(sealed.manifests) // 2].base_offset
    folder, name = sealed.copy("pinterest-branches"), SegmentName.of_branch(at, 7)
    sealed.store.put(folder + name.file("log"), batch(at, [Record(delta, T0, value=b"other") for delta in range(4)]))
    sealed.store.put(folder + name.file("index"), b"")
    sealed.store.put(folder + name.file("timeindex"), struct.pack(">qi", T0, 0))
    sealed.store.put(folder + name.file("manifest.json"), b"{}")
    assert sealed.read("pinterest-branches") == sealed.produced


@pytest.mark.full
@pytest.mark.parametrize("extension", ["timeindex", "manifest.json", "offset.wm"])
def test_it_needs_neither_times_nor_what_is_ours(sealed: Sealed, extension: str) -> None:
    prefix = f"pinterest-without-{extension}"
    folder = sealed.copy(prefix)
    for info in list(sealed.store.list(folder)):
        if info.key.endswith(extension):
            sealed.store.delete(info.key)
    assert sealed.read(prefix) == sealed.produced
