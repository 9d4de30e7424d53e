"""The demo, kept and watched: ten minutes with elections and restarts raise no false alarm, and each planted fault one.

An incident about waiting records is false if the table already had, when it was opened, everything that was
acknowledged longer ago than the promise. Any other incident is false unless it was planted.
"""

from __future__ import annotations

import signal
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ElectionType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.structs import TopicPartition as KafkaPartition

from demo import processes as demo_processes
from demo import stack as demo_stack
from demo.accounts import Auditor, align, landed_up_to
from demo.stack import Stack
from demo.steps import Steps
from demo.streams import SENSORS, STREAMS, Production
from tests.support.process import ManagedProcess
from tests.support.receivers import HookServer, SmtpServer, alert_env
from tests.support.waiting import HUNG, wait_until
from tidemark.endpoints import resolver_of
from tidemark.inspection.gap_acknowledgement import gaps_of
from tidemark.monitoring.incident_store import read_incidents
from tidemark.monitoring.incidents import IncidentKind
from tidemark.monitoring.observation import look
from tidemark.monitoring.observer_state import Sightings
from tidemark.store import open_store
from tidemark.table.delta_table import open_topic_table

CALM = 600.0
LOOKS_EVERY = 10.0
WATCH = "tidemark_watch"
WAITS: frozenset[IncidentKind] = frozenset({"late", "stuck", "unstored"})
PATIENCE = 600.0
"""Seconds for which a planted fault may stay untold, or a mended one told, before the test gives up."""


@dataclass
class Told:
    """What people were told, and when."""

    at: float
    status: str
    kind: str
    incidents: list[dict[str, Any]]


@dataclass
class Watched:
    """The demo with what watches it: Airflow's DAG, which tells people, and a look of its own every ten seconds."""

    stack: Stack
    production: Production
    auditor: Auditor
    told: list[Told] = field(default_factory=list)
    looks: list[tuple[float, dict[str, dict[int, int]]]] = field(default_factory=list)
    """When was looked, and how far the tables were just before."""
    false: list[str] = field(default_factory=list)
    true: list[str] = field(default_factory=list)
    _sightings: Sightings | None = None

    def look(self) -> None:
        """Look once, as the DAG does, and judge what is found."""
        landed = {stream.topic: landed_up_to(self.auditor.ledger(stream)) for stream in STREAMS}
        deployment, now = self.stack.deployment, time.time()
        self.looks.append((now, landed))
        raw = resolver_of(deployment.raw).default()
        at = open_store(raw.store, deployment.store).now()
        found = look(deployment, "demo", self._sightings or Sightings(cluster="demo", at=at), at)
        self._sightings = found.sightings
        for one in found.conditions:
            self.judge(now, one.kind, one.topic, f"{one.title}: {one.text}")

    def judge(self, at: float, kind: IncidentKind, topic: str | None, text: str) -> None:
        """Whether it is true that records of ``topic`` have waited for too long ``at`` that time."""
        so = kind in WAITS and topic is not None and self._waits(at, topic)
        (self.true if so else self.false).append(f"{at:.0f} {kind}: {text}")
        sys.stdout.write(f"{at:.0f} {'so' if so else 'NOT SO'}: {kind}: {text}\n")

    def _waits(self, at: float, topic: str) -> bool:
        before = bisect_right(self.looks, at, key=lambda one: one[0])
        landed = self.looks[before - 1][1][topic] if before else {}
        promise = self.stack.deployment.topic(topic).late_after.total_seconds()
        return any(
            offset >= landed.get(partition, 0) and acknowledged < at - promise
            for partition, offsets in self.production.acknowledged[topic].committed.items()
            for offset, acknowledged in list(offsets.items())
        )

    def judge_told(self, since: float, until: float) -> None:
        """Judge what people were told in that time."""
        for one in self.told:
            if since <= one.at <= until and one.status == "opened":
                for incident in one.incidents:
                    self.judge(one.at, one.kind, incident["topic"], f"people were told: {incident['title']}")  # type: ignore[arg-type]

    def first(self, kind: str, status: str, since: float) -> float | None:
        """When people were first told of an incident of that kind after ``since``."""
        return next((one.at for one in self.told if (one.kind, one.status) == (kind, status) and one.at >= since), None)

    def await_told(self, kind: str, status: str, since: float) -> float:
        """Seconds until people were told."""
        wait_until(lambda: self.first(kind, status, since) is not None, what=f"{kind} {status}", timeout=PATIENCE)
        at = self.first(kind, status, since)
        assert at is not None
        return at - since


@pytest.fixture
def watched(
    starts_s3: None,
    starts_kafka: None,
    starts_spark: None,
    starts_airflow: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Watched]:
    monkeypatch.setattr(demo_stack, "HOME", tmp_path / "demo")
    monkeypatch.setattr(demo_processes, "HOME", tmp_path / "demo")
    with SmtpServer() as smtp, HookServer() as hook:
        for name, value in alert_env(smtp, hook).items():
            monkeypatch.setenv(name, value)
        stack = Stack(Steps())
        try:
            stack.start()
            production = Production(stack.kafka.bootstrap, 2 * CALM, 1, tmp_path / "producers.log")
            found = Watched(stack, production, Auditor(stack.deployment, stack.s3.env()))

            def keep() -> None:
                body = hook.bodies[-1]
                found.told.append(Told(time.time(), body["status"], body["kind"], body["incidents"]))

            hook.before_answer = keep
            production.start()
            stack.airflow.client.wait_for_dag(WATCH)
            stack.airflow.client.unpause(WATCH)
            wait_until(lambda: all(found.auditor.ledger(one).n for one in STREAMS), what="all topics to land")
            yield found
        finally:
            stack.stop()


def elect(watched: Watched) -> None:
    """Leaderships move back to the preferred replicas."""
    partitions = [TopicPartition(one.topic, number) for one in STREAMS for number in range(one.partitions)]
    admin = AdminClient({"bootstrap.servers": watched.stack.kafka.bootstrap})
    admin.elect_leaders(ElectionType.PREFERRED, partitions).result(HUNG)


def restart(process: ManagedProcess) -> None:
    process.kill()
    process.start()


def signalled(processes: list[ManagedProcess], number: signal.Signals) -> None:
    for one in processes:
        one.send(number)


def be_calm(watched: Watched) -> None:
    """Ten minutes of looks, in which brokers and agents restart and leaderships move."""
    agents, brokers = watched.stack.agents, watched.stack.kafka.brokers
    events: list[tuple[float, Callable[[], object]]] = [
        (30, brokers[1].restart),
        (110, lambda: elect(watched)),
        (170, lambda: restart(agents[0].process)),
        (240, brokers[0].restart),
        (320, lambda: elect(watched)),
        (380, lambda: restart(agents[1].process)),
        (440, brokers[1].restart),
        (520, lambda: elect(watched)),
    ]
    began = time.monotonic()
    while (passed := time.monotonic() - began) < CALM:
        if events and passed >= events[0][0]:
            events.pop(0)[1]()
        watched.look()
        time.sleep(max(0.0, LOOKS_EVERY - (time.monotonic() - began - passed)))
    assert not events


Row = tuple[str, ...]


def plant(watched: Watched, since: float, what: str, kind: str, promise: str, mend: Callable[[], object]) -> Row:
    """Wait until people are told of what was planted at ``since``, mend it, and wait until they are told of that.

    What people are told of the same kind before that must be over: an incident that is open is not told again.
    """
    after = watched.await_told(kind, "opened", since)
    mended = time.time()
    mend()
    return what, f"{kind}, {promise}", f"{after:.0f} s", f"{watched.await_told(kind, 'closed', mended):.0f} s"


def open_ones(watched: Watched) -> list[str]:
    known = read_incidents(watched.stack.deployment, "demo").incidents
    return [one.key for one in known if one.open]


def lose_offsets(watched: Watched) -> None:
    """What is appended while no agent runs is removed from the brokers before any runs again."""
    kafka = watched.stack.kafka
    settings = {"segment.bytes": str(1 << 20), "file.delete.delay.ms": "1000"}
    with kafka.admin() as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, SENSORS.topic, settings)])
    for agent in watched.stack.agents:
        agent.process.kill()
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(6_000):
        producer.produce(SENSORS.topic, value=f"{number}".ljust(1_000).encode())
    assert producer.flush(60) == 0
    end = watched.production.acknowledged[SENSORS.topic].ends[0] + 5_500
    with kafka.admin() as admin:
        admin.delete_records({KafkaPartition(SENSORS.topic, 0): end})
    folders = [place / f"{SENSORS.topic}-0" for broker in kafka.brokers for place in broker.log_dirs]
    wait_until(
        lambda: (
            not [one for folder in folders for one in folder.glob("*.deleted")]
            and all(min(int(one.stem) for one in folder.glob("*.log")) > 0 for folder in folders)
        ),
        what="the segments to be gone",
    )


def give_up_offsets(watched: Watched) -> None:
    """Acknowledge the gap, as ``tidemark acknowledge-gap`` does."""
    found = gaps_of(open_topic_table(watched.stack.deployment, watched.stack.deployment.topic(SENSORS.topic)), 0)
    for gap in found.open:
        found.acknowledge(gap.start, gap.end, "test", "planted")


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_no_alarm_is_false_and_each_planted_fault_is_told(watched: Watched) -> None:
    began = time.time()
    be_calm(watched)
    watched.judge_told(began, time.time())
    found = f"{len(watched.looks)} looks, {len(watched.true)} alarms that were so, {len(watched.false)} that were not"
    sys.stdout.write(f"{found}\n")

    rows: list[Row] = [("planted", "told as, promise", "told after", "closed after mending")]

    def planted(*of: Any) -> None:
        rows.append(plant(watched, *of))
        sys.stdout.write(f"{rows[-1]}\n")

    wait_until(lambda: not open_ones(watched), what="what the calm has left to be closed", timeout=PATIENCE)
    spark, agents = [watched.stack.spark.process], [one.process for one in watched.stack.agents]
    signalled(spark, signal.SIGSTOP)
    go_on = partial(signalled, spark, signal.SIGCONT)
    planted(time.time(), "Spark stands still", "late", "20 s and a look", go_on)
    # What came after its last word nobody measures: a silent agent is told by its silence.
    signalled(agents, signal.SIGSTOP)
    go_on = partial(signalled, agents, signal.SIGCONT)
    planted(time.time(), "the agents stand still", "agent_gone", "3 min and a look", go_on)
    lose_offsets(watched)
    watched.stack.start_agents()
    planted(time.time(), "removed before upload", "gap", "a look", partial(give_up_offsets, watched))
    rows += [("people were told", one.kind, one.status, f"{one.at - began:.0f} s") for one in watched.told]
    sys.stdout.write(align(rows))

    wait_until(lambda: not open_ones(watched), what="all incidents to be closed", timeout=PATIENCE)
    assert watched.false == []
