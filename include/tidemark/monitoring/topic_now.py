"""A topic as it is now: what the store knows of it, its open incidents, and the judgement that follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidemark.formats.ledger import Ledger
from tidemark.formats.watermark_index import LeaderEntry
from tidemark.inspection.led_partitions import led_partitions
from tidemark.monitoring.health import TopicHealth, topic_health
from tidemark.monitoring.incident_store import read_incidents
from tidemark.monitoring.incidents import Incident
from tidemark.monitoring.judgement import TopicState, state_of
from tidemark.table.delta_table import TopicTable
from tidemark.timestamps import utc_now
from tidemark.topics import Deployment


class OutsideTables(NamedTuple):
    """What is known of a cluster's topics outside their tables: leaders' entries by topic, and open incidents."""

    led: Mapping[str, Mapping[int, LeaderEntry]]
    incidents: tuple[Incident, ...]


class JudgedTopic(NamedTuple):
    """What is known of a topic."""

    health: TopicHealth
    incidents: tuple[Incident, ...]

    def state(self, *, equal: bool = True) -> TopicState:
        """The judgement; ``equal`` is false if the evidence was read and does not add up."""
        return state_of(self.health, [one.kind for one in self.incidents], equal=equal)


def outside_tables(deployment: Deployment, cluster: str) -> OutsideTables:
    """What is known of the topics of ``cluster`` outside their tables.

    Raises:
        StoreError: a store did not answer.
        FormatError: the incidents' object does not parse.
    """
    led: dict[str, dict[int, LeaderEntry]] = {}
    for at, one in led_partitions(deployment, cluster).items():
        led.setdefault(at.topic, {})[at.partition] = one
    known = read_incidents(deployment, cluster).incidents.incidents
    return OutsideTables(led, tuple(one for one in known if one.open))


def topic_now(table: TopicTable, ledger: Ledger, around: OutsideTables) -> JudgedTopic:
    """What is known of the topic of ``table``, whose committed ledger is ``ledger``."""
    topic = table.topic
    led = around.led.get(topic.topic, {})
    brokers = {partition: one.broker for partition, one in led.items()}
    health = topic_health(topic, ledger, [one.entry for one in led.values()], utc_now(), brokers=brokers)
    return JudgedTopic(health, tuple(one for one in around.incidents if one.topic == topic.topic))
