"""A state table of a topic from which Kafka's own cleaner has removed a deletion before anybody stored it."""

from __future__ import annotations

import subprocess
from itertools import count
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Producer

from tests.spark.state.replay import advance, state_rows, status_of
from tests.spark.world import World, in_process
from tests.support.kafka import KafkaCluster
from tests.support.paths import env_bin
from tests.support.waiting import wait_until
from tests.tidemark.decode.real_logs import directory, read_log, small_segments, unique
from tidemark_spark.run.driver import run


@pytest.mark.full
def test_a_deletion_that_the_cleaner_took_before_the_agent_is_in_doubt(kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = unique("cleaned")
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "1"}
    kafka.create_topic(topic, config={**config, **small_segments(kafka, 20_000)})
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    world = World(tmp_path, "state: {}", topic=topic)
    settings = tmp_path / "agent.yaml"
    agent = {
        "cluster": "east",
        "broker": {"properties": str(kafka.brokers[0].properties_path)},
        "raw": {"url": f"file://{tmp_path}/raw"},
        "include": [topic],
        "state_dir": str(tmp_path / "agent"),
        "tail_after": "0s",
    }
    settings.write_text(yaml.safe_dump(agent))

    def stored() -> int:
        """The number of doubts after the agent, a landing and a run of the state."""
        command: list[str | Path] = [env_bin("agent", "tidemark-agent"), "upload-once", "-c", settings]
        subprocess.run(command, check=True, capture_output=True)
        assert run(world.table, world.plan(), in_process).status == "landed"
        return advance(world).uncertain

    producer.produce(topic, b"before", b"deleted")
    producer.produce(topic, b"before", b"kept")
    producer.flush(30)
    assert stored() == 0
    producer.produce(topic, None, b"deleted")
    producer.flush(30)
    numbers = count()

    def is_gone() -> bool:
        """Write on, since the cleaner looks at what is new alone; then look for offset 2."""
        for _ in range(100):
            producer.produce(topic, b"%d" % next(numbers) * 100, b"other")
        producer.flush(30)
        try:
            return 2 not in {row.offset for row in read_log(directory(kafka, topic)).rows(committed=False)}
        except FileNotFoundError:
            return False  # the cleaner renamed a segment meanwhile

    wait_until(is_gone, what="the cleaner to remove the deletion")
    uncertain = stored()
    assert uncertain == status_of(world).uncertain > 0
    assert {row["kafka_key"] for row in state_rows(world)} == {b"deleted", b"kept", b"other"}, "as nobody told it"
