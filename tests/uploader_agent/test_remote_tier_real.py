"""A topic of a real broker with Kafka's own tiered storage (KIP-405): what has left the disk for it is not lost."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka import KafkaConsumer
from kafka import TopicPartition as At
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.net.manager import KafkaConnectionManager
from kafka.protocol.consumer import FetchRequest
from kafka.record import MemoryRecords

from tests.support.jars import fetch
from tests.support.kafka import KafkaCluster
from tests.support.kafka_broker import KafkaVersion
from tests.support.waiting import HUNG, wait_until
from tests.uploader_agent.in_process import run_here
from tests.uploader_agent.intake.scripted import lineage_in
from tests.uploader_agent.real import SMALL, Deployment, Load
from tidemark import Mode, TieredConsumer
from tidemark.errors import NotFound, StoreError
from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.watermark import Watermark
from tidemark.storage import Storage
from tidemark.store import LocalStore
from uploader_agent.disk.log_dirs import find_segments

TIERED: Mapping[str, str] = {
    "remote.storage.enable": "true",
    "local.retention.ms": "1000",
    "retention.ms": "-1",
    "file.delete.delay.ms": "100",
}


VERSIONS = ["4.3.1", pytest.param("3.9.2", marks=pytest.mark.full)]


def tier_settings(version: KafkaVersion, folder: Path) -> dict[str, str]:
    """A broker's settings for a remote tier in ``folder``, as Kafka's own tests have it."""
    [jar] = fetch(f"kafka-local-tier-{version}").glob("*-test.jar")
    return {
        "log.retention.check.interval.ms": "500",
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
        "remote.log.storage.manager.class.path": str(jar),
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "remote.log.manager.task.interval.ms": "300",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "rsm.config.dir": str(folder),
    }


@pytest.fixture(params=VERSIONS)
def tiered(starts_kafka: None, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """A broker of its own with a remote tier in a directory: only a broker's own settings switch the tier on."""
    version: KafkaVersion = request.param
    common = tier_settings(version, tmp_path / "tier")
    with KafkaCluster(tmp_path / "kafka", version=version, common=common) as cluster:
        yield cluster


def settings_of(cluster: KafkaCluster, **others: str) -> dict[str, str]:
    """Settings of a topic with small segments that soon leave the disk."""
    return {**SMALL[cluster.version], **TIERED, **others}


def first_on_disk(deployment: Deployment) -> int:
    return find_segments(deployment.folder())[0].base_offset


def consumed(cluster: KafkaCluster, topic: str, count: int) -> dict[int, bytes]:
    """What a plain consumer gets from the topic's beginning."""
    found: dict[int, bytes] = {}
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest")
    try:
        consumer.assign([At(topic, 0)])
        consumer.seek_to_beginning()

        def all_there() -> bool:
            for records in consumer.poll(timeout_ms=500).values():
                found.update((record.offset, record.value) for record in records)
            return len(found) >= count

        wait_until(all_there, what=f"{count} records from broker and remote tier", timeout=HUNG)
    finally:
        consumer.close()
    return found


def values_in(log: bytes) -> dict[int, bytes]:
    """The values of the records in the bytes of a log, by offset."""
    values: dict[int, bytes] = {}
    records = MemoryRecords(log)
    while (batch := records.next_batch()) is not None:
        values |= {record.offset: record.value for record in batch}
    return values


def test_what_left_the_disk_for_kafka_s_remote_tier_is_told_and_not_called_lost(
    tiered: KafkaCluster, tmp_path: Path
) -> None:
    """History from before the agent, and what left the disk while it was down; then the remote tier's retention."""
    topic = "tiered"
    tiered.create_topic(topic, config=settings_of(tiered))
    load = Load(tiered, topic)
    deployment = Deployment(
        tmp_path, tiered, LocalStore(tmp_path / "raw"), "", topic, hold={"enabled": False}, fill={"remote_tier": "skip"}
    )

    def once() -> str:
        before = len(deployment.log.read_text()) if deployment.log.exists() else 0
        assert deployment.run("upload-once", {}) == 0, deployment.log.read_text()
        return deployment.log.read_text()[before:]

    load.send(200)
    wait_until(lambda: first_on_disk(deployment) >= 100, what="segments to leave the disk", timeout=HUNG)
    log = once()
    assert "directory_ignored" not in log, "Kafka's own folders are known by name"
    first = deployment.watermark()[1]
    assert first.start_offset >= 100
    assert first.remote_tier == ((0, first.start_offset),)

    load.send(800)
    wait_until(lambda: first_on_disk(deployment) >= 900, what="segments to leave the disk", timeout=HUNG)
    once()
    found = deployment.watermark()[1]
    assert {gap.reason for gap in found.gaps} == {"remote_tier"}
    assert found.gaps[-1].end >= 900
    assert (found.start_offset, found.remote_tier) == (first.start_offset, first.remote_tier)
    assert consumed(tiered, topic, 1000) == load.acknowledged[0], "nothing is lost"
    said = tmp_path / "said"
    assert run_here(["verify", "-c", deployment.config, "--output", "json"], said, {}) == 0, said.read_text()
    words = {json.loads(line)["word"] for line in said.read_text().splitlines() if line.startswith("{")}
    assert "TIERED" in words
    assert "GAP" not in words

    upto = found.gaps[-1].start + 50
    with tiered.admin() as admin:
        admin.delete_records({At(topic, 0): upto})
    once()
    after = deployment.watermark()[1]
    assert after.remote_tier == (), "retention has taken them from the remote tier as well"
    assert {(gap.reason, gap.end <= upto) for gap in after.gaps} == {
        ("deleted_before_upload", True),
        ("remote_tier", False),
    }


def test_what_only_kafka_s_remote_tier_has_is_fetched_from_the_log_s_start_on(
    tiered: KafkaCluster, tmp_path: Path
) -> None:
    """History from before the agent, and what left the disk while it was down: all of it is stored, byte for byte."""
    topic = "fetched"
    tiered.create_topic(topic, config=settings_of(tiered))
    load = Load(tiered, topic)
    store = LocalStore(tmp_path / "raw")
    deployment = Deployment(tmp_path, tiered, store, "", topic, hold={"enabled": False}, fetch_segment=40_000)

    def once() -> Watermark:
        assert deployment.run("upload-once", {}) == 0, deployment.log.read_text()
        return deployment.watermark()[1]

    load.send(200)
    wait_until(lambda: first_on_disk(deployment) >= 100, what="segments to leave the disk", timeout=HUNG)
    first = once()
    assert (first.start_offset, first.remote_tier, first.gaps) == (0, (), ())
    assert first.next_offset >= 100

    load.send(800)
    wait_until(lambda: first_on_disk(deployment) >= 900, what="segments to leave the disk", timeout=HUNG)
    then = once()
    assert (then.start_offset, then.gaps) == (0, ())
    assert then.next_offset >= 900

    def stored() -> bytes:
        manifests = sorted(deployment.manifests(), key=lambda one: one.base_offset)
        assert [one.next_offset for one in manifests[:-1]] == [one.base_offset for one in manifests[1:]]
        names = [name for one in manifests for name in one.objects if name.endswith(".log")]
        return b"".join(store.get(deployment.keys().file(name)).body for name in names)

    fetched = [one for one in deployment.manifests() if one.origin == "fetch"]
    assert len(fetched) > 2, "in segments of their own"
    whole = consumed(tiered, topic, 1000)
    assert whole == load.acknowledged[0]
    assert values_in(stored()) == {offset: value for offset, value in whole.items() if offset < then.next_offset}
    in_tier = sorted((tmp_path / "tier").rglob("*.log"), key=lambda path: path.name)
    common = min(len(stored()), sum(path.stat().st_size for path in in_tier))
    assert b"".join(path.read_bytes() for path in in_tier)[:common] == stored()[:common], "byte for byte"
    assert common > 200_000


def test_brokers_are_not_asked_for_what_has_left_their_disks_if_it_is_stored(
    tiered: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka would read it back from its remote tier; a consumer that prefers Kafka reads it from our store as well."""
    topic, store = "preferred", LocalStore(tmp_path / "raw")
    tiered.create_topic(topic, config=settings_of(tiered))
    load = Load(tiered, topic)
    deployment = Deployment(tmp_path, tiered, store, "", topic, hold={"enabled": False})
    load.send(400)
    wait_until(lambda: first_on_disk(deployment) >= 300, what="segments to leave the disk", timeout=HUNG)
    assert deployment.run("upload-once", {}) == 0, deployment.log.read_text()
    on_disk = first_on_disk(deployment)
    load.send(20)
    expected = [(offset, None, value) for offset, value in load.acknowledged[0].items()]
    sent = count_fetches(monkeypatch)
    for mode in (Mode.KAFKA_PREFERRED, Mode.REMOTE_PREFERRED):
        sent.clear()
        storage = Storage.at(store.url, tiered.cluster_id)
        with TieredConsumer(bootstrap_servers=tiered.bootstrap, mode=mode, storage=storage) as ours:
            assert read(ours, topic, 0, on_disk // 2) == expected[: on_disk // 2]
            assert not sent, f"{mode}: the broker was asked"
            assert read(ours, topic, on_disk // 2, 420) == expected[on_disk // 2 :]
            assert sent, "the newest ones"
    sent.clear()
    with TieredConsumer(bootstrap_servers=tiered.bootstrap, mode=Mode.KAFKA_ONLY) as plain:
        assert read(plain, topic, 0, on_disk // 2) == expected[: on_disk // 2]
        assert sent


def test_a_running_agent_holds_what_it_could_not_store_and_fetches_what_it_never_saw(
    tiered: KafkaCluster, tmp_path: Path
) -> None:
    """The hold delays neither Kafka's tiering nor its local retention, and what it kept is not fetched as well."""
    topic, raw = "live", tmp_path / "raw"
    delay = {"file.delete.delay.ms": "5000"}  # a busy agent has time to hold what Kafka deletes
    tiered.create_topic(topic, config=settings_of(tiered, **delay))
    load = Load(tiered, topic)
    deployment = Deployment(
        tmp_path, tiered, LocalStore(raw), "", topic, fill_interval="1s", scan_interval="1s", metadata_interval="1s"
    )
    first = deployment.start("run", {})
    try:
        load.send(100)
        wait_until(lambda: stored_to(deployment) >= 50, what="the first segments", timeout=HUNG)
        raw.rename(tmp_path / "away")
        raw.write_text("no store")
        load.send(400)
        wait_until(lambda: first_on_disk(deployment) >= 400, what="Kafka to remove held segments", timeout=HUNG)
        raw.unlink()
        (tmp_path / "away").rename(raw)
        wait_until(lambda: stored_to(deployment) >= 400, what="what was held", timeout=HUNG)
        assert {one.origin for one in deployment.manifests()} == {"disk"}
    finally:
        first.kill()
        first.wait()
    load.send(400)
    wait_until(lambda: first_on_disk(deployment) >= 800, what="segments to leave the disk", timeout=HUNG)
    wait_until(lambda: not [*deployment.folder().glob("*.deleted")], what="Kafka to remove them", timeout=HUNG)
    second = deployment.start("run", {})
    try:
        wait_until(lambda: stored_to(deployment) >= 800, what="what was fetched", timeout=HUNG)
    finally:
        second.terminate()
        assert second.wait(HUNG) == 0
    assert {one.origin for one in deployment.manifests()} == {"disk", "fetch"}
    assert deployment.watermark()[1].gaps == ()
    in_tier = Counter(path.name[:20] for path in (tmp_path / "tier").rglob("*.log") if f"{topic}-0" in str(path))
    assert set(in_tier.values()) == {1}, "Kafka has copied a segment twice"


def stored_to(deployment: Deployment) -> int:
    """The end of what ``offset.wm`` states, 0 without one."""
    try:
        return deployment.watermark()[1].next_offset
    except (NotFound, StoreError):
        return 0


def test_a_tier_that_is_switched_off_later(tiered: KafkaCluster, tmp_path: Path) -> None:
    """Without new copies Kafka goes on to serve what it has; deleted with the tier, the log begins above."""
    topic = "off"
    tiered.create_topic(topic, config=settings_of(tiered))
    load = Load(tiered, topic)
    deployment = Deployment(
        tmp_path, tiered, LocalStore(tmp_path / "raw"), "", topic, hold={"enabled": False}, fill={"remote_tier": "skip"}
    )

    def away() -> list[Gap]:
        """The gaps that an agent finds which was away while Kafka moved segments to its tier."""
        load.send(300)
        end = len(load.acknowledged[0])
        wait_until(lambda: first_on_disk(deployment) >= end - 100, what="segments to leave the disk", timeout=HUNG)
        assert deployment.run("upload-once", {}) == 0, deployment.log.read_text()
        return [*deployment.watermark()[1].gaps]

    load.send(60)
    assert deployment.run("upload-once", {}) == 0, deployment.log.read_text()
    assert {gap.reason for gap in away()} == {"remote_tier"}
    set_topic(tiered, topic, remote_log_copy_disable="true", local_retention_ms="-2", retention_ms="-1")
    deployment.configure(fill={})
    assert deployment.run("upload-once", {}) == 0, deployment.log.read_text()
    assert deployment.watermark()[1].gaps == ()
    assert "fetch" in {one.origin for one in deployment.manifests()}
    if tiered.version == "3.9.2":
        return  # with ZooKeeper, Kafka does not delete a tier that is switched off (KIP-950)

    deployment.configure(fill={"remote_tier": "skip"})
    set_topic(tiered, topic, remote_log_copy_disable="false", local_retention_ms="1000")
    [gap] = away()
    assert gap.reason == "remote_tier"
    set_topic(tiered, topic, remote_log_copy_disable="true", local_retention_ms="-2", retention_ms="-1")
    set_topic(tiered, topic, remote_storage_enable="false", remote_log_delete_on_disable="true")
    wait_until(lambda: log_start(tiered, topic) >= gap.end, what="Kafka to delete its remote tier", timeout=HUNG)
    deployment.configure(fill={})
    assert deployment.run("upload-once", {}) == 0, deployment.log.read_text()
    assert {(gap.start, gap.reason) for gap in deployment.watermark()[1].gaps} == {(gap.start, "deleted_before_upload")}


def log_start(cluster: KafkaCluster, topic: str) -> int:
    plain = KafkaConsumer(bootstrap_servers=cluster.bootstrap)
    with closing(plain):
        return int(plain.beginning_offsets([At(topic, 0)])[At(topic, 0)])


def count_fetches(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The requests for batches that kafka-python sends to brokers from now on."""
    sent, send = list[object](), KafkaConnectionManager.send

    def counted(manager: KafkaConnectionManager, request: object, *args: object, **options: object) -> Any:
        if isinstance(request, FetchRequest):
            sent.append(request)
        return send(manager, request, *args, **options)

    monkeypatch.setattr(KafkaConnectionManager, "send", counted)
    return sent


def transactions(cluster: KafkaCluster, topic: str, count: int) -> None:
    """Transactions of some records each, of which every second is aborted."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "bank", "linger.ms": 1})
    producer.init_transactions(30)
    for number in range(count):
        producer.begin_transaction()
        for _ in range(20):
            producer.produce(topic, os.urandom(300), key=f"{number}")
        producer.flush(30)
        if number % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def set_topic(cluster: KafkaCluster, topic: str, **settings: str) -> None:
    change = {name.replace("_", "."): ("SET", value) for name, value in settings.items()}
    with cluster.admin() as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=change)])


def read(consumer: Any, topic: str, start: int, end: int) -> list[tuple[int, bytes | None, bytes | None]]:
    """What a consumer of either kind gets of ``[start, end)``."""
    found: list[tuple[int, bytes | None, bytes | None]] = []
    consumer.assign([At(topic, 0)])
    consumer.seek(At(topic, 0), start)

    def at_the_end() -> bool:
        for records in consumer.poll(timeout_ms=500).values():
            found.extend((record.offset, record.key, record.value) for record in records if record.offset < end)
        return bool(consumer.position(At(topic, 0)) >= end)

    wait_until(at_the_end, what=f"the records of {topic} below {end}", timeout=HUNG)
    return found


def test_all_that_a_log_goes_through_before_it_is_fetched(tiered: KafkaCluster, tmp_path: Path) -> None:
    """Compaction before the tier is switched on, transactions, restarts between segments, a log start within a batch.

    Each consumer of the store alone sees what a plain one of Kafka sees, committed and uncommitted.
    """
    topic, store = "history", LocalStore(tmp_path / "raw")
    compacts = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "100"}
    tiered.create_topic(topic, config={**SMALL[tiered.version], **compacts, "file.delete.delay.ms": "100"})
    load = Load(tiered, topic)
    producer = Producer({"bootstrap.servers": tiered.bootstrap, "linger.ms": 1, "batch.num.messages": 7})
    for number in range(600):
        producer.produce(topic, os.urandom(200), key=f"{number % 40}")
    assert producer.flush(30) == 0
    deployment = Deployment(tmp_path, tiered, store, "", topic, hold={"enabled": False}, fetch_segment=30_000)
    wait_until(
        lambda: len(consumed_offsets(tiered, topic)) < 450, what="the cleaner to have removed records", timeout=HUNG
    )
    set_topic(tiered, topic, cleanup_policy="delete")
    set_topic(tiered, topic, remote_storage_enable="true", local_retention_ms="1000", retention_ms="-1")
    for _ in range(2):
        transactions(tiered, topic, 8)
        load.send(150)
        tiered.brokers[0].restart()
        tiered.brokers[0].wait_ready()
    load.send(150)
    wait_until(lambda: first_on_disk(deployment) >= 1200, what="segments to leave the disk", timeout=HUNG)
    before = consumed_offsets(tiered, topic)
    within = next(offset for offset in before if offset > 100) + 3
    with tiered.admin() as admin:
        admin.delete_records({At(topic, 0): within})
    assert deployment.run("upload-once", {}) == 0, deployment.log.read_text()
    watermark = deployment.watermark()[1]
    assert (watermark.start_offset, watermark.gaps) == (within, ())
    end = watermark.next_offset
    assert end >= 1200
    assert "fetch" in {one.origin for one in deployment.manifests()}
    epochs = {epoch for one in deployment.manifests() for epoch, _ in one.lineage}
    known = lineage_in(deployment.folder()).truncated(end).epochs
    assert epochs >= {*known}, "epochs from before the restarts"
    assert len(epochs) >= 3 or tiered.version == "3.9.2", "ZooKeeper's controller keeps a leader that comes back soon"
    for isolation in ("read_uncommitted", "read_committed"):
        plain = KafkaConsumer(bootstrap_servers=tiered.bootstrap, isolation_level=isolation)
        storage = Storage.at(store.url, tiered.cluster_id)
        with (
            closing(plain),
            TieredConsumer(
                bootstrap_servers=tiered.bootstrap, mode="REMOTE_ONLY", storage=storage, isolation_level=isolation
            ) as ours,
        ):
            expected = read(plain, topic, within, end)
            assert read(ours, topic, within, end) == expected, isolation
            assert len(expected) > 500


def consumed_offsets(cluster: KafkaCluster, topic: str) -> list[int]:
    """The offsets that a plain consumer gets, to the end of the log as it is now."""
    plain = KafkaConsumer(bootstrap_servers=cluster.bootstrap)
    with closing(plain):
        at = At(topic, 0)
        start, end = plain.beginning_offsets([at])[at], plain.end_offsets([at])[at]
        return [offset for offset, _, _ in read(plain, topic, start, end)]
