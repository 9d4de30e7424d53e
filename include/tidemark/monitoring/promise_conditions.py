"""Conditions of a topic's ``freshness`` on the way to the store, from the append on. Pure.

The agents measure how long their oldest byte has waited, by a clock that nothing sets; the age of their report is added
to it. An agent without that measure is as bad as a late one: nobody knows whether the promise is held. The way from the
store to the table is judged by ``topic_conditions.late``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from tidemark.formats.raw.slots import of_broker
from tidemark.formats.raw.watermark_index import IndexEntry, LeaderEntry
from tidemark.monitoring.incidents import Condition, agent_log, in_utc
from tidemark.topics import TopicSettings
from tidemark.words import duration, plural

_PATIENCE: Final = timedelta(minutes=2)
"""A restarted agent has read nothing yet."""


def unstored_for(entry: IndexEntry, now: datetime) -> timedelta | None:
    """Waiting time of the oldest byte that is not in the store; None if the agent does not know it.

    Zero if all was stored when the agent looked: younger bytes are at most as old as that look, and may not exist.
    """
    if entry.oldest_unstored is None:
        return None
    if entry.oldest_unstored == 0:
        return timedelta(0)
    return timedelta(seconds=entry.oldest_unstored) + max(timedelta(0), now - entry.observed_at)


class _Waiting(NamedTuple):
    waits: timedelta
    partition: int
    leader: LeaderEntry


def unstored(topic: TopicSettings, led: Mapping[int, LeaderEntry], now: datetime) -> Iterator[Condition]:
    """The condition that bytes have waited at brokers for longer than the promise; ``led`` is by partition.

    Bytes behind a gap are left out: the gap has its own incident, and they could not land.
    """
    if topic.freshness is None:
        return
    free = ((partition, leader) for partition, leader in led.items() if not leader.entry.gaps)
    waits = ((unstored_for(leader.entry, now), partition, leader) for partition, leader in free)
    late = [_Waiting(age, partition, leader) for age, partition, leader in waits if age and age > topic.freshness]
    if not late:
        return
    oldest = max(late, key=lambda waiting: waiting.waits)
    entry = oldest.leader.entry
    brokers = sorted({waiting.leader.broker for waiting in late})
    stored = entry.least_stored_end
    yield Condition(
        kind="unstored",
        key=f"unstored/{topic.cluster}/{topic.topic}",
        cluster=topic.cluster,
        topic=topic.topic,
        partition=oldest.partition,
        start=stored,
        end=entry.high_watermark,
        since=now - oldest.waits,
        title=f"{topic.cluster}/{topic.topic}: records wait at the brokers",
        text=f"bytes of {plural(len(late), 'partition')} are not in the store after {duration(topic.freshness)}; "
        f"partition {oldest.partition} waits at {stored}",
        likely="an agent cannot reach the store or keep up, or does not pack the topic "
        f"(brokers {', '.join(map(str, brokers[:5]))})",
        mend=f"tidemark config check --agents; on {of_broker(oldest.leader.broker)}, see {agent_log()}",
    )


def unmeasured(
    topic: TopicSettings, led: Mapping[int, LeaderEntry], gone: Collection[int], now: datetime
) -> Iterator[Condition]:
    """The condition that a freshness is not measured: agents do not report their oldest byte's age, or are gone."""
    if topic.freshness is None:
        return
    mute = [leader for leader in led.values() if leader.broker in gone or leader.entry.oldest_unstored is None]
    if not mute:
        return
    brokers = sorted({leader.broker for leader in mute})
    silent = sorted({leader.broker for leader in mute if leader.broker in gone})
    since = min((leader.entry.observed_at for leader in mute if leader.broker in gone), default=now)
    yield Condition(
        kind="unmeasured",
        key=f"unmeasured/{topic.cluster}/{topic.topic}",
        cluster=topic.cluster,
        topic=topic.topic,
        since=since,
        title=f"{topic.cluster}/{topic.topic}: nobody knows whether its freshness is held",
        text=f"the agents of brokers {', '.join(map(str, brokers[:5]))} do not say how long the oldest byte of "
        f"{plural(len(mute), 'partition')} has waited" + (f", some since {in_utc(since)}" if silent else ""),
        likely=_why_mute(mute, silent),
        mend="tidemark config check --agents names what to set",
        patience=_PATIENCE,
    )


def _why_mute(mute: Collection[LeaderEntry], silent: Collection[int]) -> str:
    if silent:
        return "the agent is stopped"
    if all(not leader.entry.packs_known for leader in mute):
        return "the agent cannot read what former leaders have packed, or cannot claim the partitions"
    return "the agent is not set to pack the topic, or is an older one"
