"""Agents are replaced one at a time by another version and back, under load, while leaders move."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.earlier import Earlier, earlier
from tests.support.kafka import KafkaCluster
from tests.support.waiting import wait_until
from tests.uploader_agent.faults.cluster import await_in_sync, create, lead
from tests.uploader_agent.faults.conftest import MakeFleet
from tests.uploader_agent.faults.fleet import Fleet, FleetAgent, assert_exact
from tests.uploader_agent.faults.load import Book, Load, open_transaction, under
from tidemark.formats.raw.watermark_index import WatermarkIndex
from tidemark.installation import VERSION

PARTITIONS = 3
TOPICS: dict[str, dict[str, object]] = {
    "rolling-sealed": {"rate": 80},
    "rolling-packed": {"rate": 60, "compression.type": "lz4"},
    "rolling-decided": {"rate": 60, "transactional": "rolling"},
}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Earlier:
    return earlier(tmp_path_factory.mktemp("earlier"), "agent")


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_a_rolling_upgrade_and_rollback_under_load_loses_nothing(
    kraft3: KafkaCluster, make_fleet: MakeFleet, before: Earlier, rng: random.Random
) -> None:
    """Each agent is stopped or killed; a leader moves away while it is down, and back afterwards."""
    books = {topic: Book() for topic in TOPICS}
    for topic in TOPICS:
        create(kraft3, topic, [[1, 2, 3], [2, 3, 1], [3, 1, 2]])  # broker n leads partition n - 1
    fleet = make_fleet(kraft3, "rolling", [*TOPICS], freshness={"rolling-packed|rolling-decided": "3s"})
    earlier_program = before.program("agent", "tidemark-agent")
    for agent in fleet.agents.values():
        agent.program = earlier_program
    loads = [
        Load(kraft3, topic, books[topic], partitions=PARTITIONS, size=12_000, **options)  # type: ignore[arg-type]
        for topic, options in TOPICS.items()
    ]
    tried: list[str] = []
    with fleet.running():
        with open_transaction(kraft3, "rolling-sealed", books["rolling-sealed"], partitions=PARTITIONS), under(*loads):
            for topic in TOPICS:
                fleet.await_writer(topic, 1)
            for program, version in [(None, VERSION), (earlier_program, before.version), (None, VERSION)]:
                for node in rng.sample(sorted(fleet.agents), len(fleet.agents)):
                    tried.append(f"{node} to {version}")
                    replace(fleet, fleet.agents[node], program, version, rng)
        for topic in TOPICS:
            await_in_sync(kraft3, topic, 3)
            fleet.await_rotated(topic, PARTITIONS)
        fleet.settle()
    assert [line for line in before.opened() if "/tests/" not in line] == [], "the earlier version is whole"
    verdicts = [verdict for topic in TOPICS for verdict in fleet.judge(topic, books[topic], PARTITIONS)]
    packs = fleet.packs()
    assert packs, "nothing was packed"
    assert {key: count for key, count in packs.items() if count > 1} == {}, "packs were written twice"
    refused = sum(book.refused for book in books.values())
    assert_exact(verdicts, f"{before.origin}: {', '.join(tried)}; {len(packs)} packs, {refused} records refused")


def replace(fleet: Fleet, agent: FleetAgent, program: Path | None, version: str, rng: random.Random) -> None:
    """Replace an agent as an operator does: the next one waits until the store states the version of this one."""
    node, topic = agent.broker.node_id, rng.choice([*TOPICS])
    rng.choice([agent.stop, agent.kill])()
    lead(fleet.cluster, topic, node - 1, rng.choice(sorted(fleet.agents.keys() - {node})))
    agent.program = program
    agent.start()
    agent.await_started()
    lead(fleet.cluster, topic, node - 1, node)
    fleet.await_writer(topic, node, node - 1)
    key = fleet.control.index(node)
    wait_until(lambda: WatermarkIndex.load(fleet.store, key).agent_version == version, what=f"{key} to state {version}")
