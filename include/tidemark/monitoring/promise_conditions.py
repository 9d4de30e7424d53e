"""Whether a topic's ``freshness`` is held on the way to the store, from the append on. Pure.

The agents measure how long their oldest byte has waited, by a clock that nothing sets. To that comes the age of what
they say. An agent that does not say is as bad as one that is late: nobody knows whether the promise is held. The way
from the store to the table is judged by ``topic_conditions.late``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from tidemark.formats.watermark_index import IndexEntry, LeaderEntry
from tidemark.monitoring.incidents import Condition, in_utc
from tidemark.topics import TopicSettings
from tidemark.words import duration, plural

_PATIENCE: Final = timedelta(minutes=2)
"""An agent that was restarted has read nothing yet."""


def unstored_for(entry: IndexEntry, now: datetime) -> timedelta | None:
    """How long the oldest byte that is not in the store has waited; None if the agent does not know.

    Zero if the store had all when the agent looked: what came later is as old as that at most, and may be nothing.
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
    """That bytes have waited at brokers for longer than the promise; ``led`` is by partition.

    What waits behind a gap is a consequence of that, and nothing of it could land.
    """
    if topic.freshness is None:
        return
    free = ((partition, one) for partition, one in led.items() if not one.entry.gaps)
    waits = ((unstored_for(one.entry, now), partition, one) for partition, one in free)
    late = [_Waiting(length, partition, one) for length, partition, one in waits if length and length > topic.freshness]
    if not late:
        return
    oldest = max(late, key=lambda one: one.waits)
    entry = oldest.leader.entry
    brokers = sorted({one.leader.broker for one in late})
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
        mend=f"on broker {oldest.leader.broker}: journalctl -u tidemark-agent; tidemark config check --agents",
    )


def unmeasured(
    topic: TopicSettings, led: Mapping[int, LeaderEntry], gone: Collection[int], now: datetime
) -> Iterator[Condition]:
    """That nobody knows whether the promise is held: agents do not say how old their oldest byte is, or are gone."""
    if topic.freshness is None:
        return
    mute = [one for one in led.values() if one.broker in gone or one.entry.oldest_unstored is None]
    if not mute:
        return
    brokers = sorted({one.broker for one in mute})
    silent = sorted({one.broker for one in mute if one.broker in gone})
    since = min((one.entry.observed_at for one in mute if one.broker in gone), default=now)
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
    if all(not one.entry.packs_known for one in mute):
        return "the agent cannot read what former leaders have packed, or cannot claim the partitions"
    return "the agent is not set to pack the topic, or is an older one"
