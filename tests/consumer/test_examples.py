"""The example in the docstring of the tiered consumer, run on a real broker and what the agent made of it."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.consumer.world import World, produce
from tests.support.examples import failures_of


def test_the_consumers_example_says_what_happens(
    local_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"example-{uuid.uuid4().hex[:12]}"
    local_world.kafka.create_topic(topic, config=local_world.small)
    produce(local_world.kafka.bootstrap, topic, [(0, b"k", b"order %d" % at) for at in range(200)])
    local_world.upload(topic)
    (tmp_path / "topics.yaml").write_text(
        f"cluster: {local_world.cluster}\nraw: {{url: '{local_world.place.url}'}}\nlake: 'file://{tmp_path}'\n"
        f"topics: [{{topic: {topic}}}]\n"
    )
    monkeypatch.chdir(tmp_path)
    replaced = {'"orders"': f'"{topic}"', "broker:9092": local_world.kafka.bootstrap}
    count, failed = failures_of("tidemark.consumer.consumer:TieredConsumer", replaced)
    assert count
    assert not failed, failed
