"""Agents without a broker's disk, on real brokers: a disk agent of the same cluster finds nothing to say about them."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.spark.world import World, in_process
from tests.support.kafka import KafkaCluster
from tests.support.kafka_broker import KafkaVersion
from tests.support.s3 import S3Server
from tests.support.waiting import HUNG, wait_until
from tests.uploader_agent.in_process import run_here
from tests.uploader_agent.real import SMALL, Deployment, Load
from tests.uploader_agent.test_real import cluster_of, deploy, env, raw
from tidemark.errors import NotFound
from tidemark.formats.raw.cluster import FIRST_SLOT
from tidemark.formats.raw.watermark_index import WatermarkIndex
from tidemark.store import Store
from tidemark_spark.run.driver import run

__all__ = ["env", "raw"]

pytestmark = pytest.mark.usefixtures("starts_kafka")
VERSIONS = ["4.3.1", pytest.param("3.9.2", marks=pytest.mark.full)]
DISK: dict[str, Any] = {"fill": {"enabled": False}}


def beside(disk: Deployment, root: Path, **fetch: Any) -> Deployment:
    """A deployment that fetches what ``disk`` reads from its broker's disk, into the same prefix."""
    root.mkdir()
    made = Deployment(root, disk.cluster, disk.store, disk.endpoint.prefix, disk.topic)
    small = {"bootstrap": disk.cluster.bootstrap, "spool": str(root / "spool")}
    own = {"state_dir": str(root / "state"), "fetch": small | fetch, "fetch_segment": 30_000}
    made.settings = {name: value for name, value in disk.settings.items() if name not in {"broker", "hold", "fill"}}
    made.configure(**own)
    return made


def of_disk(command: str, disk: Deployment, env: Mapping[str, str], *arguments: str) -> list[dict[str, Any]]:
    """The findings of a command of the disk's agent, as JSON."""
    disk.log.unlink(missing_ok=True)
    output = disk.log.with_name("answer")
    assert run_here([command, "-c", disk.config, "-o", "json", *arguments], output, env) in {0, 1}, output.read_text()
    found = [json.loads(line) for line in output.read_text().splitlines() if line.startswith("{")]
    output.unlink()
    return found


@pytest.mark.essential
@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_fetched_is_what_a_disk_agent_would_have_stored(
    version: KafkaVersion,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    raw: Store,
    s3_server: S3Server,
    env: Mapping[str, str],
) -> None:
    cluster, topic = cluster_of(version, request), f"fetched-{version}"
    cluster.create_topic(topic, partitions=2, config=SMALL[version])
    load = Load(cluster, topic, **{"compression.type": "zstd"})
    load.send(400, partitions=2)
    client = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": topic})
    client.init_transactions(60)
    for number in range(6):
        client.begin_transaction()
        for partition in (0, 1):
            client.produce(topic, b"x" * 900, partition=partition)
        client.flush(30)
        (client.abort_transaction if number % 2 else client.commit_transaction)(60)
    disk = deploy(tmp_path, cluster, raw, s3_server, topic, **DISK)
    fetching = beside(disk, tmp_path / "fetching")
    assert fetching.run("upload-once", env) == 0, fetching.log.read_text()
    for partition in (0, 1):
        manifests = fetching.manifests(partition)
        assert len(manifests) > 2
        assert {(manifest.origin, manifest.broker, manifest.state) for manifest in manifests} == {
            ("fetch", 2_000_000_000, "whole")
        }
        watermark = fetching.watermark(partition)[1]
        assert (watermark.origin, watermark.gaps) == ("fetch", ())
        assert watermark.next_offset == manifests[-1].next_offset
    verified = of_disk("verify", disk, env, "--deep")
    assert [(line["word"], line["wrong"], line["segments"]) for line in verified[:2]] == [
        ("OK", 0, len(fetching.manifests(partition))) for partition in (0, 1)
    ]
    assert [line["partition"] for line in of_disk("plan", disk, env)] == ["total"], "nothing is left to upload"
    assert [line["partition"] for line in of_disk("plan", fetching, env)] == ["total"]
    [status] = of_disk("status", fetching, env)
    assert {line["partition"]: line["error"] for line in status["partitions"]} == {
        f"{topic}-0": None,
        f"{topic}-1": None,
    }
    assert {line["word"] for line in of_disk("verify", fetching, env, "--deep")[:2]} == {"OK"}
    checked = fetching.log.with_name("checked")
    assert run_here(["config", "check", "-c", fetching.config], checked, env) == 0, checked.read_text()
    assert "mode: fetch" in checked.read_text()


def test_a_standby_takes_over_from_a_frozen_process_which_then_writes_nothing(
    kafka: KafkaCluster, tmp_path: Path, raw: Store, s3_server: S3Server, env: Mapping[str, str]
) -> None:
    topic = "standby"
    kafka.create_topic(topic, config=SMALL["4.3.1"])
    load = Load(kafka, topic)
    disk = deploy(tmp_path, kafka, raw, s3_server, topic, **DISK)
    own = {"freshness": {".*": "3s"}, "index_interval": "1s"}
    first, second = [beside(disk, tmp_path / name, lease="4s") for name in ("first", "second")]
    for deployment in (first, second):
        deployment.configure(**own)
    processes = [first.start("run", env)]
    try:
        load.send(50)
        wait_until(lambda: stored(disk) == 50, what="the first process to pack")
        processes.append(second.start("run", env))
        wait_until(lambda: "slot_waits" in second.log.read_text(), what="the second process to wait")
        load.send(50)
        wait_until(lambda: stored(disk) == 100, what="the first process to go on")
        assert "slot_taken" not in second.log.read_text()
        processes[0].send_signal(signal.SIGSTOP)
        load.send(50)
        wait_until(lambda: stored(disk) == 150, what="the second process to pack")
        before = first.puts()
        processes[0].send_signal(signal.SIGCONT)
        assert processes[0].wait(HUNG) == 1
        assert "lease_lost" in first.log.read_text()
        assert first.puts() == before
        processes[1].terminate()
        assert processes[1].wait(HUNG) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
    [verified, *_] = of_disk("verify", disk, env, "--deep")
    assert (verified["word"], verified["wrong"]) == ("PACKED", 0)
    first.configure(fetch=first.settings["fetch"] | {"slots": 2})
    assert first.run("upload-once", env) == 2
    assert "is 2, and the agents of this cluster share its partitions among 1" in first.log.read_text()


def stored(deployment: Deployment) -> int:
    """The end of the offsets that slot 0 has stored; 0 before its index names the partition."""
    try:
        index = WatermarkIndex.load(deployment.store, deployment.control.index(FIRST_SLOT))
    except NotFound:
        return 0
    return max((entry.least_stored_end for entry in index.entries), default=0)


def test_the_pipeline_lands_the_same_from_both(kafka: KafkaCluster, tmp_path: Path, env: Mapping[str, str]) -> None:
    """Rows, their hashes, and the class of each offset, with transactions."""
    topic = "landed-from-both"
    kafka.create_topic(topic, config=SMALL["4.3.1"])
    load = Load(kafka, topic, **{"compression.type": "lz4"})
    load.send(100)
    client = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "both"})
    client.init_transactions(60)
    for number in range(4):
        client.begin_transaction()
        client.produce(topic, b"x" * 900, partition=0)
        client.flush(30)
        (client.abort_transaction if number % 2 else client.commit_transaction)(60)
    load.send(60)
    shared: dict[str, Any] = {"cluster": "east", "include": [topic], "tail_after": "1h"}
    sources: dict[str, dict[str, Any]] = {
        "disk": {"broker": {"properties": str(kafka.brokers[0].properties_path)}},
        "fetch": {"fetch": {"bootstrap": kafka.bootstrap, "spool": str(tmp_path / "spool")}},
    }
    worlds = {}
    for name, source in sources.items():
        root = tmp_path / name
        root.mkdir()
        world = worlds[name] = World(root, topic=topic)
        (root / "agent.yaml").write_text(
            json.dumps(shared | source | {"raw": {"url": f"file://{root}/raw"}, "state_dir": str(root / "state")})
        )
        command: list[str | Path] = ["upload-once", "--tails", "-c", root / "agent.yaml"]
        assert run_here(command, root / "log", env, tuning={"fetch_segment": 20_000}) == 0
        run(world.table, world.plan(), in_process)
        world.check()
    disk, fetch = worlds["disk"], worlds["fetch"]
    assert disk.next_offset() == fetch.next_offset() == 168
    assert disk.rows() == fetch.rows()
    assert len(disk.rows()) == 162
    assert disk.classes() == fetch.classes()
