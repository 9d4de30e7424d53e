"""One pass over real brokers into a real S3 server: what lies there is what lies on their disks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka.admin import ConfigResource, ConfigResourceType

from tests.support.kafka import KafkaCluster
from tests.support.kafka_broker import KafkaVersion
from tests.support.s3 import S3Server
from tests.support.waiting import HUNG, wait_until
from tests.uploader_agent.in_process import run_here
from tests.uploader_agent.real import SMALL, Deployment, Load
from tidemark.formats.keys import SegmentName, TopicPartition
from tidemark.formats.raw.watermark_index import WatermarkIndex
from tidemark.store import Store, StoreOptions, open_store
from uploader_agent.broker.admin import AdminMetadata, Cleanup, Led, checkpointed_offsets, connect
from uploader_agent.broker.properties import read_broker
from uploader_agent.cli import main
from uploader_agent.disk.log_dirs import find_segments, topic_id_of

pytestmark = pytest.mark.usefixtures("starts_kafka")


@pytest.fixture
def env(s3_server: S3Server) -> Mapping[str, str]:
    return s3_server.env()


@pytest.fixture
def raw(s3_server: S3Server, env: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Store:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return open_store("s3://raw", StoreOptions(endpoint_url=s3_server.endpoint, path_style=True))


def cluster_of(version: KafkaVersion, request: pytest.FixtureRequest) -> KafkaCluster:
    found: KafkaCluster = request.getfixturevalue("kafka" if version == "4.3.1" else "kafka39")
    return found


def deploy(
    tmp_path: Path, cluster: KafkaCluster, raw: Store, s3: S3Server, topic: str, **settings: object
) -> Deployment:
    options = {"endpoint_url": s3.endpoint, "path_style": True}
    return Deployment(tmp_path, cluster, raw, topic, topic, store=options, **settings)


@pytest.mark.parametrize("version", [pytest.param("4.3.1", marks=pytest.mark.essential), "3.9.2"])
def test_exactly_what_is_rotated_goes(
    version: KafkaVersion,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    raw: Store,
    s3_server: S3Server,
    env: Mapping[str, str],
) -> None:
    cluster, topic = cluster_of(version, request), f"exact-{version}"
    cluster.create_topic(topic, partitions=3, config=SMALL[version])
    load = Load(cluster, topic)
    load.send(600, partitions=3)
    deployment = deploy(tmp_path, cluster, raw, s3_server, topic)
    assert deployment.run("upload-once", env) == 0, deployment.log.read_text()
    for partition in range(3):
        manifests = deployment.check_exact(partition)
        assert len(manifests) > 3
        _, watermark = deployment.watermark(partition)
        assert watermark.topic_id == topic_id_of(deployment.folder(partition))
        high = len(load.acknowledged[partition])
        for manifest in manifests:
            assert (manifest.high_watermark, manifest.last_stable_offset, manifest.offsets_from) == (
                high,
                high,
                "broker",
            )
            assert manifest.cleanup_policy == "delete"
            assert manifest.lineage == watermark.lineage
        assert set(range(watermark.next_offset)) <= load.acknowledged[partition].keys()
    index = WatermarkIndex.from_bytes(raw.get(deployment.control.index(1)).body, "index")
    assert [entry.partition for entry in index.entries] == [0, 1, 2]
    for entry in index.entries:
        assert entry.log_end_offset == entry.high_watermark == len(load.acknowledged[entry.partition])
        assert entry.active_max_timestamp is not None
    puts = deployment.puts()
    assert len(puts) == len(set(puts) - {deployment.keys(p).watermark for p in range(3)}) + sum(
        puts.count(deployment.keys(p).watermark) for p in range(3)
    ), "every object but offset.wm is put once"


@pytest.mark.parametrize("version", ["4.3.1", pytest.param("3.9.2", marks=pytest.mark.full)])
def test_what_another_uploader_left_is_adopted(
    version: KafkaVersion,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    raw: Store,
    s3_server: S3Server,
    env: Mapping[str, str],
) -> None:
    """As Pinterest's leaves it: three files a segment, and an ``offset.wm`` of one line."""
    cluster, topic = cluster_of(version, request), f"adopted-{version}"
    cluster.create_topic(topic, config=SMALL[version])
    Load(cluster, topic).send(300)
    deployment = deploy(tmp_path, cluster, raw, s3_server, topic)
    keys, folder, log_dirs = deployment.keys(), deployment.folder(), cluster.brokers[0].log_dirs
    at = TopicPartition(topic, 0)
    *stored, last = [one for one in find_segments(folder) if one.next_offset is not None]
    for one in stored:
        for extension in ("log", "index", "timeindex"):
            name = f"{one.base_offset:020d}.{extension}"
            raw.put(keys.file(name), (folder / name).read_bytes())
    raw.put(keys.watermark, f"{stored[-1].base_offset:020d}".encode())
    assert deployment.run("upload-once", env) == 1
    assert "tidemark-agent adopt" in deployment.log.read_text()

    def checkpointed() -> bool:
        found = checkpointed_offsets(log_dirs, {at: folder}).get(at)
        return found is not None and found.high_watermark >= last.base_offset

    wait_until(checkpointed, what="the broker to write its high watermarks down")
    assert run_here(["adopt", topic, "-c", deployment.config, "-o", "json"], deployment.log, env) == 0, (
        deployment.log.read_text()
    )
    assert deployment.watermark()[1].next_offset == last.base_offset
    assert deployment.run("upload-once", env) == 0, deployment.log.read_text()
    found = deployment.manifests()
    assert [one.base_offset for one in found] == [*(one.base_offset for one in stored), last.base_offset]
    assert deployment.watermark()[1].next_offset == last.next_offset
    assert deployment.run("verify", env) == 0, deployment.log.read_text()
    for manifest in found:
        names = [name for name in manifest.objects if not name.endswith("index")]
        assert [raw.get(keys.file(name)).body for name in names] == [(folder / name).read_bytes() for name in names]


@pytest.mark.essential
def test_open_transaction_stands_in_the_manifest(
    kafka: KafkaCluster, tmp_path: Path, raw: Store, s3_server: S3Server, env: Mapping[str, str]
) -> None:
    topic = "transactions"
    kafka.create_topic(topic, config=SMALL["4.3.1"])
    hanging = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "hangs", "linger.ms": 0})
    hanging.init_transactions(30)
    hanging.begin_transaction()
    hanging.produce(topic, b"open", partition=0)
    hanging.flush(30)
    Load(kafka, topic).send(150)
    deployment = deploy(tmp_path, kafka, raw, s3_server, topic)
    assert deployment.run("upload-once", env) == 0, deployment.log.read_text()
    manifests = deployment.check_exact()
    assert [[one.first_offset for one in manifest.open_transactions] for manifest in manifests] == [[0]] * len(
        manifests
    )
    assert {manifest.last_stable_offset for manifest in manifests} == {0}
    hanging.abort_transaction(30)
    # The coordinator writes the marker after its answer; the next producer waits for that.
    Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "hangs"}).init_transactions(30)
    Load(kafka, topic).send(150)
    assert deployment.run("upload-once", env) == 0, deployment.log.read_text()
    after = deployment.check_exact()[len(manifests) :]
    assert after[-1].open_transactions == ()
    [aborting] = [one for one in after if f"{one.base_offset:020d}.txnindex" in one.objects]
    assert aborting.open_transactions == ()


@pytest.mark.essential
def test_quiet_tail_then_more(
    kafka: KafkaCluster, tmp_path: Path, raw: Store, s3_server: S3Server, env: Mapping[str, str]
) -> None:
    topic = "quiet"
    kafka.create_topic(topic, config=SMALL["4.3.1"])
    load = Load(kafka, topic)
    load.send(50)
    deployment = deploy(tmp_path, kafka, raw, s3_server, topic, tail_after="0s")
    assert deployment.run("upload-once", env) == 0, deployment.log.read_text()
    base, watermark = deployment.watermark()
    tail = deployment.manifests()[-1]
    assert (tail.base_offset, tail.next_offset, tail.rotated_at) == (base, len(load.acknowledged[0]), None)
    assert watermark.next_offset == len(load.acknowledged[0])
    disk = deployment.folder() / f"{base:020d}.log"
    assert raw.get(deployment.keys().segment(SegmentName(base), "log")).body == disk.read_bytes()
    load.send(60)
    deploy(tmp_path, kafka, raw, s3_server, topic)
    assert deployment.run("upload-once", env) == 0, deployment.log.read_text()
    assert tail in deployment.check_exact()
    folder = deployment.keys().folder
    segments = [key for key in deployment.puts() if key.startswith(folder) and not key.endswith("offset.wm")]
    assert len(segments) == len(set(segments)), "no object is written twice"


@pytest.mark.full
def test_what_was_compacted_once_stays_so_when_the_policy_changes(
    kafka: KafkaCluster, tmp_path: Path, raw: Store, s3_server: S3Server, env: Mapping[str, str]
) -> None:
    topic = "once-compacted"
    dirty = {"min.cleanable.dirty.ratio": "0.01", "cleanup.policy": "compact"}
    kafka.create_topic(topic, config={**SMALL["4.3.1"], **dirty})
    load = Load(kafka, topic)
    for _ in range(600):
        load.producer.produce(topic, b"v" * 400, b"the same key", partition=0)
    load.producer.flush(30)
    deployment = deploy(tmp_path, kafka, raw, s3_server, topic)
    checkpoint = deployment.folder().parent / "cleaner-offset-checkpoint"
    wait_until(lambda: f"{topic} 0 " in checkpoint.read_text(), what="the cleaner")
    with kafka.admin() as admin:
        change = {"cleanup.policy": "delete"}
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=change)])
    load.send(100)
    assert f"{topic} 0 " in checkpoint.read_text(), "the cleaner's note outlives the policy"
    assert deployment.run("upload-once", env) == 0, deployment.log.read_text()
    manifests = deployment.manifests()
    assert {manifest.state for manifest in manifests} == {"whole"}
    assert manifests[0].last_batch_end < manifests[0].next_offset, "compaction has emptied its tail"
    assert (manifests[0].cleanup_policy, manifests[-1].cleanup_policy) == ("compact,delete", "delete")


@pytest.mark.parametrize("version", ["4.3.1", "3.9.2"])
def test_metadata(version: KafkaVersion, request: pytest.FixtureRequest) -> None:
    cluster, topic = cluster_of(version, request), f"metadata-{version}"
    cluster.create_topic(topic, partitions=2, config={"cleanup.policy": "compact", "delete.retention.ms": "90000"})
    Load(cluster, topic).producer.produce(topic, b"v", b"k", partition=1)
    broker = read_broker(cluster.brokers[0].properties_path)
    metadata = AdminMetadata(
        broker.node_id, lambda: connect(broker.node_id, broker.bootstrap, broker.security_protocol, {})
    )
    wanted = {TopicPartition(topic, number) for number in range(3)}
    leaders = metadata.leaders({*wanted, TopicPartition("never-made", 0)})
    found = {(leader.broker, leader.replicas) for leader in leaders.values()}
    assert found == {(broker.node_id, (broker.node_id,))}
    led = {at: leader.led for at, leader in leaders.items()}
    assert sorted(at.partition for at in led) == [0, 1]
    gone = TopicPartition("never-made", 0)
    stale = TopicPartition(topic, 1)
    asked = {**led, gone: Led(0, None), stale: Led(led[stale].leader_epoch + 7, None)}
    assert list(metadata.offsets(asked)) == [TopicPartition(topic, 0)], "one that is gone and one of another epoch"
    assert metadata.log_ends(broker.node_id, asked) == {TopicPartition(topic, 0): 0}, "the same"
    assert metadata.cleanup([topic]) == {topic: Cleanup("compact", 90_000)}
    metadata.close()


UNREACHABLE = """
import threading
from tidemark.formats.keys import TopicPartition
from uploader_agent.broker.admin import AdminMetadata, BrokerUnavailable, connect
metadata = AdminMetadata(1, lambda: connect(1, "127.0.0.1:1", "PLAINTEXT", {"bootstrap_timeout_ms": 100}))
for _ in range(3):
    try:
        metadata.leaders({TopicPartition("any", 0)})
    except BrokerUnavailable as error:
        print(error)
assert threading.active_count() == 1, threading.enumerate()
"""


def test_broker_that_does_not_answer_leaves_no_threads() -> None:
    """In a process of its own: kafka-python leaves sockets of refused connections to the garbage collector."""
    found = subprocess.run(
        [sys.executable, "-c", UNREACHABLE], capture_output=True, text=True, check=False, timeout=HUNG
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("cannot be asked") == 3


@pytest.mark.essential
def test_status_and_config_check(
    kafka: KafkaCluster,
    tmp_path: Path,
    raw: Store,
    s3_server: S3Server,
    env: Mapping[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = "status"
    kafka.create_topic(topic, config=SMALL["4.3.1"])
    Load(kafka, topic).send(100)
    deployment = deploy(tmp_path, kafka, raw, s3_server, topic)
    for command in (["status"], ["config", "check"]):
        monkeypatch.setattr("sys.argv", ["tidemark-agent", *command, "-c", str(deployment.config), "-o", "json"])
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == 0
    status, check = capsys.readouterr().out.splitlines()
    assert '"partition": "status-0"' in status
    assert '"next_offset": null' in status
    assert f'"cluster": "{kafka.cluster_id}"' in check
    tried = {one["what"]: one["outcome"] for one in json.loads(check)["checks"]}
    assert set(tried.values()) == {"yes"}, tried
    assert [what.split()[0] for what in tried] == ["list", "get", "put", "create", "this", "write", "broker"]
    assert not list(raw.list(f"{topic}/")), "it only looks"
