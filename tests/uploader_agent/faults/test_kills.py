"""kill -9 under load, of whatever there is: nothing is lost, nothing is there twice, nothing is wrong."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from typing import NamedTuple

import pytest

from tests.support.kafka import KafkaCluster
from tests.support.s3 import S3Server
from tests.uploader_agent.faults.cluster import await_in_sync, create
from tests.uploader_agent.faults.conftest import MakeFleet
from tests.uploader_agent.faults.fleet import Fleet, FleetAgent, assert_exact
from tests.uploader_agent.faults.load import Book, Load, under

PARTITIONS = 3
POINTS = 50
SAMPLE = 6
PATIENCE = 20.0
"""Seconds for an agent to come to its point under load; one that has not is killed there and then."""

PUTS = [".log", ".index", ".timeindex", ".manifest.json", "offset.wm", ".json"]
OPENS = [".log", ".timeindex", ".snapshot", "leader-epoch-checkpoint"]


class Point(NamedTuple):
    """Who dies, and when: by time, or at the n-th call of an operation whose name ends in ``suffix``."""

    victim: str
    operation: str = ""
    when: str = ""
    suffix: str = ""
    n: int = 0
    after: float = 0.0


def draw(rng: random.Random, count: int) -> list[Point]:
    """``count`` points; each kind of victim is among any six of them."""
    points = []
    for number in range(count):
        kind = ("put", "put", "open", "time", "broker", "both", "put", "open", "put", "s3")[number % 10]
        if count <= SAMPLE:
            kind = ("put", "s3", "open", "broker", "both", "time")[number]
        when = rng.choice(["before", "after"])
        if kind == "put":
            points.append(Point("agent", "put", when, rng.choice(PUTS), rng.randint(1, 2)))
        elif kind == "open":
            points.append(Point("agent", "open", when, rng.choice(OPENS), rng.randint(1, 4)))
        else:
            points.append(Point({"time": "agent"}.get(kind, kind), after=rng.uniform(0.1, 2.0)))
    return points


@pytest.mark.full
@pytest.mark.parametrize("version", ["4.3.1", "3.9.2"])
@pytest.mark.timeout(1200)
def test_killed_at_seeded_points_under_load(
    version: str, request: pytest.FixtureRequest, make_fleet: MakeFleet, s3: S3Server, rng: random.Random, full: bool
) -> None:
    cluster: KafkaCluster = request.getfixturevalue("kraft3" if version == "4.3.1" else "zookeeper3")
    topic, book = f"killed-{version}", Book()
    create(cluster, topic, [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    fleet = make_fleet(cluster, f"killed-{version}", [topic])
    points = draw(rng, POINTS if full else SAMPLE)
    done: Counter[str] = Counter()
    load = Load(cluster, topic, book, partitions=PARTITIONS, rate=150, size=12_000 if version == "4.3.1" else 3000)
    with fleet.running(), under(load):
        for point in points:
            victim = rng.choice(list(fleet.agents.values()))
            done[carry_out(point, fleet, victim, s3)] += 1
            await_in_sync(cluster, topic, 3)
    with fleet.running():
        fleet.await_rotated(topic, PARTITIONS)
        fleet.settle()
    killed = ", ".join(f"{number} x {what}" for what, number in sorted(done.items()))
    tried = f"{len(points)} points on {version}: {killed}; {book.refused} refused, {load.errors[-3:]}"
    assert_exact(fleet.judge(topic, book, PARTITIONS), tried)
    assert book.acknowledged > 100 * len(points)


def carry_out(point: Point, fleet: Fleet, victim: FleetAgent, s3: S3Server) -> str:
    """Kill, and bring back what was killed; what was done in words."""
    if point.victim == "s3":
        s3.kill()
        time.sleep(point.after)
        s3.start()
        return "s3 by time"
    if point.victim in {"broker", "both"}:
        victim.broker.kill()
        if point.victim == "both":
            victim.kill()
        time.sleep(point.after)
        victim.broker.start()
        fleet.start()
        return f"{point.victim} by time"
    victim.kill()
    if not point.operation:
        victim.start()
        time.sleep(point.after)
        victim.kill()
        victim.start()
        return "agent by time"
    victim.start(
        plan=victim.plan(operation=point.operation, when=point.when, suffix=point.suffix, n=point.n, number="SIGKILL")
    )
    code = victim.await_end(PATIENCE)
    victim.kill()
    victim.start()
    assert code in {None, -signal.SIGKILL}, f"the agent ended with {code}\n{victim.tail()}"
    named = f"agent {point.when} {point.operation} of {point.suffix}"
    return named if code else f"{named} (by time, it did not come to it)"
