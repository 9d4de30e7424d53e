"""Two brokers with other segment boundaries: what the leader lost or damaged comes from the follower's disk.

Broker 2 of this folder's cluster takes nothing by retention.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from crc32c import crc32c
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic

from tests.support.kafka import KafkaCluster
from tests.support.s3 import S3Server
from tests.support.waiting import wait_until
from tests.uploader_agent.in_process import run_here
from tests.uploader_agent.real import Deployment, Load
from tidemark.formats.keys import SegmentName, TopicPartition
from tidemark.kafka_log import scan_batches
from tidemark.store import Store
from uploader_agent.disk.log_dirs import LocalSegment, find_partitions, find_segments

AT_ONCE = {"file.delete.delay.ms": "0"}
"""Settings of a topic, of which a broker deletes at once what retention gives up."""


class Pair:
    """A topic of two replicas led by broker 1, and an agent's deployment on each broker."""

    def __init__(self, root: Path, cluster: KafkaCluster, raw: Store, s3: S3Server, topic: str) -> None:
        assignment = {0: [1, 2]}
        with cluster.admin() as admin:
            admin.create_topics([NewTopic(topic, -1, -1, replica_assignments=assignment, topic_configs=AT_ONCE)])
        wait_until(lambda: cluster.leaders(topic) == {0: 1}, what="the topic to be led")
        self.topic, self.cluster, self.env = topic, cluster, s3.env()
        options = {"endpoint_url": s3.endpoint, "path_style": True}
        self.agents = []
        for number, broker in enumerate(cluster.brokers[:2], 1):
            folder = root / f"agent-{number}"
            folder.mkdir()
            self.agents.append(
                Deployment(
                    folder,
                    cluster,
                    raw,
                    topic,
                    topic,
                    store=options,
                    hold={"enabled": False},
                    broker={"properties": str(broker.properties_path)},
                )
            )

    def segments(self, broker: int) -> list[LocalSegment]:
        return find_segments(self.folder(broker))

    def folder(self, broker: int) -> Path:
        found = find_partitions(self.cluster.brokers[broker - 1].log_dirs).partitions
        return found[TopicPartition(self.topic, 0)]

    def run(self, broker: int) -> None:
        agent = self.agents[broker - 1]
        assert agent.run("upload-once", self.env) == 0, agent.log.read_text()

    def await_replicated(self, end: int) -> None:
        """Until broker 2 has all, and its checkpoint says that it is committed."""
        checkpoint = self.folder(2).parent / "replication-offset-checkpoint"
        wait_until(lambda: f"{self.topic} 0 {end}\n" in checkpoint.read_text(), what="the replica")

    def retain(self, size: int) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, self.topic, configs={"retention.bytes": str(size)})
        with self.cluster.admin() as admin:
            admin.alter_configs([resource])

    def check_all(self, load: Load) -> None:
        """Each acknowledged record below the watermark is in the store, with its value."""
        agent = self.agents[0]
        _, watermark = agent.watermark()
        offsets: set[int] = set()
        content = b""
        for manifest in agent.manifests():
            name = manifest.log_name
            body = agent.store.get(agent.keys().file(name)).body
            if manifest.damage:  # what lies before the damage counts
                body = body[: manifest.damage.position]
            content += body
            for header in scan_batches([body], name, manifest.base_offset):
                offsets |= set(range(header.base_offset, header.next_offset))
        wanted = {offset for offset in load.acknowledged[0] if offset < watermark.next_offset}
        assert wanted <= offsets
        assert all(load.acknowledged[0][offset] in content for offset in wanted)
        assert watermark.next_offset == self.segments(1)[-1].base_offset
        assert (watermark.gaps, watermark.ranges_above) == ((), ())


def load_of(pair: Pair, megabytes: int) -> Load:
    load = Load(pair.cluster, pair.topic, acks="all")
    load.send(megabytes * 50, size=20_000)
    return load


def test_what_retention_took_from_the_leader_comes_from_the_follower(
    kraft3: KafkaCluster, tmp_path: Path, raw: Store, s3: S3Server
) -> None:
    pair = Pair(tmp_path, kraft3, raw, s3, "filled")
    load = load_of(pair, 3)
    pair.run(1)
    before = pair.agents[0].watermark()[1].next_offset
    assert before == pair.segments(1)[-1].base_offset
    load.send(250, size=20_000)
    pair.await_replicated(len(load.acknowledged[0]))
    pair.retain(1)
    wait_until(lambda: pair.segments(1)[0].base_offset > before + 50, what="retention on the leader")
    pair.retain(1 << 30)
    load.send(150, size=20_000)
    pair.await_replicated(len(load.acknowledged[0]))
    head = pair.segments(1)[0].base_offset
    pair.run(1)
    [gap] = pair.agents[0].watermark()[1].gaps
    assert (gap.start, gap.end, gap.reason) == (before, head, "deleted_before_upload")

    pair.run(2)
    filled = [one for one in pair.agents[0].manifests() if one.broker == 2]
    assert (filled[0].base_offset, filled[-1].next_offset) == (gap.start, gap.end)
    rolled = {one.base_offset for one in pair.segments(2)}
    assert not {gap.start, gap.end} <= rolled, "the replicas roll at other offsets, or this shows nothing"
    assert pair.agents[0].watermark()[1].gaps == (gap,), "a follower leaves offset.wm alone"
    pair.run(1)
    pair.check_all(load)
    base, watermark = pair.agents[0].watermark()
    assert base == max(one.base_offset for one in pair.agents[0].manifests() if one.base_offset < watermark.next_offset)


def test_a_bit_that_flipped_on_the_leader_is_mended_by_the_follower(
    kraft3: KafkaCluster, tmp_path: Path, raw: Store, s3: S3Server
) -> None:
    pair = Pair(tmp_path, kraft3, raw, s3, "mended")
    load = load_of(pair, 6)
    pair.await_replicated(len(load.acknowledged[0]))
    victim = pair.segments(1)[1]
    path = pair.folder(1) / f"{victim.base_offset:020d}.log"
    with path.open("r+b") as file:
        file.seek(victim.size // 2)
        [byte] = file.read(1)
        file.seek(victim.size // 2)
        file.write(bytes([byte ^ 4]))
    pair.run(1)
    [gap] = pair.agents[0].watermark()[1].gaps
    assert (gap.reason, gap.end) == ("corrupt", victim.next_offset)
    assert victim.base_offset < gap.start < gap.end
    pair.run(2)
    pair.run(1)
    pair.check_all(load)
    bad = path.read_bytes()
    kept = pair.agents[0].keys().segment(SegmentName.of_damage(victim.base_offset, crc32c(bad)), "corrupt")
    assert raw.get(kept).body == bad


def test_verify_plan_leaders_and_reupload_as_commands(
    kraft3: KafkaCluster, tmp_path: Path, raw: Store, s3: S3Server
) -> None:
    pair = Pair(tmp_path, kraft3, raw, s3, "commands")
    load = load_of(pair, 4)
    pair.await_replicated(len(load.acknowledged[0]))
    agent, env = pair.agents[0], pair.env

    def said(command: str, *arguments: str, expect: int = 0) -> list[dict[str, object]]:
        return program(pair.agents[0], env, command, *arguments, expect=expect)

    *_, total = said("plan")
    rotated = [one for one in pair.segments(1) if one.rotated]
    assert (total["partition"], total["segments"]) == ("total", len(rotated))
    [led] = said("leaders")
    assert (led["partition"], led["directory"]) == ("commands-0", str(pair.folder(1)))
    assert program(pair.agents[1], env, "leaders") == []
    pair.run(1)
    [verdict] = said("verify", "--deep")
    assert (verdict["word"], verdict["segments"]) == ("OK", len(rotated))

    lost = agent.keys().segment(SegmentName(rotated[1].base_offset), "log")
    raw.delete(lost)
    *findings, verdict = said("verify", expect=1)
    assert verdict["word"] == "GAP"
    assert findings[0]["object"] == lost
    start, end = str(rotated[1].base_offset), str(rotated[1].next_offset)
    [line] = said("reupload", "commands", "0", "--from", start, "--to", end)
    assert (line["base_offset"], line["outcome"]) == (rotated[1].base_offset, "brought")
    assert [one["word"] for one in said("verify", "--deep")] == ["OK"]
    agent.check_exact()


def program(agent: Deployment, env: Mapping[str, str], *arguments: str, expect: int = 0) -> list[dict[str, object]]:
    """The JSON lines of ``tidemark-agent ARGUMENTS``."""
    said = agent.log.with_name("said")
    said.unlink(missing_ok=True)
    assert run_here([*arguments, "-c", agent.config, "-o", "json"], said, env) == expect, said.read_text()
    return [json.loads(line) for line in said.read_text().splitlines() if line.startswith("{")]
