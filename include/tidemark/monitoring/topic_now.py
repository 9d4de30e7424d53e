"""The present state of a topic: its health in the store, its open incidents, and the judgement of both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidemark.formats.raw.watermark_index import LeaderEntry
from tidemark.formats.table.ledger import Ledger
from tidemark.inspection.led_partitions import led_partitions
from tidemark.monitoring.health import TopicHealth, topic_health
from tidemark.monitoring.incident_store import read_incidents
from tidemark.monitoring.incidents import Incident
from tidemark.monitoring.judgement import TopicState, state_of
from tidemark.table.delta_table import TopicTable
from tidemark.timestamps import utc_now
from tidemark.topics import Deployment


class OutsideTables(NamedTuple):
    """Facts about a cluster's topics from outside their tables: leaders' entries by topic, and open incidents."""

    led: Mapping[str, Mapping[int, LeaderEntry]]
    incidents: tuple[Incident, ...]


class JudgedTopic(NamedTuple):
    """A topic's health and its open incidents."""

    health: TopicHealth
    incidents: tuple[Incident, ...]

    def state(self, *, equal: bool = True) -> TopicState:
        """The judgement; ``equal`` is false if the evidence was read and does not add up."""
        return state_of(self.health, [incident.kind for incident in self.incidents], equal=equal)


def outside_tables(deployment: Deployment, cluster: str) -> OutsideTables:
    """Facts about the topics of ``cluster`` from outside their tables.

    Raises:
        StoreError: a store did not answer.
        FormatError: the incidents' object does not parse.
    """
    led: dict[str, dict[int, LeaderEntry]] = {}
    for tp, leader in led_partitions(deployment, cluster).items():
        led.setdefault(tp.topic, {})[tp.partition] = leader
    known = read_incidents(deployment, cluster).incidents.incidents
    return OutsideTables(led, tuple(incident for incident in known if incident.open))


def topic_now(table: TopicTable, ledger: Ledger, around: OutsideTables) -> JudgedTopic:
    """The state of the topic of ``table``; ``ledger`` is its committed one."""
    topic = table.topic
    led = around.led.get(topic.topic, {})
    brokers = {partition: leader.broker for partition, leader in led.items()}
    health = topic_health(topic, ledger, [leader.entry for leader in led.values()], utc_now(), brokers=brokers)
    return JudgedTopic(health, tuple(incident for incident in around.incidents if incident.topic == topic.topic))
