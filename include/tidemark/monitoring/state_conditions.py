"""Conditions of a topic's state table: it is stopped or late, its audit found a difference, or it is in doubt. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from tidemark.formats.table.state_audit import PARTS
from tidemark.formats.table.state_status import StateStatus
from tidemark.monitoring.incidents import Condition, in_utc
from tidemark.topics import TopicSettings
from tidemark.words import plural

LATE: Final = timedelta(hours=5)
"""Time without a run that ended well, beyond ``state.every``."""


def of(topic: TopicSettings, status: StateStatus, now: datetime) -> Iterator[Condition]:
    """The conditions of the state table of ``topic``; one that is stopped is not late as well."""
    assert topic.state is not None
    found = _State(topic, status)
    if status.stopped is not None:
        yield found.stopped()
    elif status.followed_at is not None and now - status.followed_at > LATE + topic.state.every:
        yield found.late(status.followed_at)
    yield from found.audit()
    yield from found.doubts(now)


class _State:
    def __init__(self, topic: TopicSettings, status: StateStatus) -> None:
        self._topic, self._status = topic, status
        self._name = f"{topic.cluster}/{topic.topic}"
        self._job = f"spark-submit spark/jobs/state.py --topics FILE --topic {topic.topic}"

    def _condition(self, reason: str, **fields: Any) -> Condition:
        key = f"state/{self._name}/{reason}"
        return Condition(kind="state", key=key, cluster=self._topic.cluster, topic=self._topic.topic, **fields)

    def stopped(self) -> Condition:
        status, stop = self._status, self._status.stopped
        assert stop is not None
        at = f" at offset {stop.offset} of partition {stop.partition}" if stop.offset is not None else ""
        return self._condition(
            "stopped",
            partition=stop.partition,
            start=stop.offset,
            end=None if stop.offset is None else stop.offset + 1,
            since=stop.since,
            title=f"{self._name}: the state table {status.table} is stopped{at}",
            text=f"{stop.reason}; it keeps its commit {status.n}, and the topic's table lands on",
            likely="the source table was truncated, or the record lacks a column of state.key or state.order"
            if at
            else "the topic's settings have changed, or an object of the table was removed",
            mend="take a new snapshot into another topic, and give that a state; or change state.key or state.order"
            if at
            else "take the change back, or begin another state under another name: state.table",
            fact=stop.reason,
        )

    def late(self, followed_at: datetime) -> Condition:
        status = self._status
        return self._condition(
            "late",
            since=followed_at,
            title=f"{self._name}: the state table {status.table} is late",
            text=f"no run has ended well since {in_utc(followed_at)}; it keeps its commit {status.n}",
            likely="the DAG tidemark_state is paused, its runs fail, or Spark does not answer",
            mend=f"see the log of the last run of tidemark_state; {self._job}",
        )

    def audit(self) -> Iterator[Condition]:
        failed = {number: part for number, part in self._status.audits.items() if part.different}
        if not failed:
            return
        first = min(failed)
        yield self._condition(
            "audit",
            since=min(part.since or part.at for part in failed.values()),
            title=f"{self._name}: the state table {self._status.table} is not what a replay gives",
            text=f"{plural(sum(part.different for part in failed.values()), 'row')} of {len(failed)} of {PARTS} parts "
            f"of the keys; the first: {failed[first].first}",
            likely="its files, its ledger or the topic's table were changed by something else",
            mend=f"{self._job} --rebuild, then {self._job} --audit --part {first}",
            fact=" ".join(f"{number}:{part.different}" for number, part in sorted(failed.items())),
        )

    def doubts(self, now: datetime) -> Iterator[Condition]:
        status, settings = self._status, self._topic.state
        assert settings is not None
        since = status.committed_at or now
        if status.moved_keys > settings.accept.moved_keys and not settings.order:
            yield self._condition(
                "moved_keys",
                since=since,
                title=f"{self._name}: {plural(status.moved_keys, 'key')} of {status.table} moved between partitions",
                text="Kafka has no order between their last records, so the records' times decide",
                likely="partitions were added, or producers partition in different ways",
                mend="name columns of the source as state.order; or compare these keys with the source, then accept "
                f"them: state.accept.moved_keys: {status.moved_keys}",
            )
        if status.outranked_keys > settings.accept.outranked_keys and settings.order:
            yield self._condition(
                "outranked_keys",
                since=since,
                title=f"{self._name}: {status.table} shows {plural(status.outranked_keys, 'key')} as they were before",
                text=f"later records of these keys have a lower {', '.join(settings.order)}, so they do not count",
                likely="the source was restored, and begins its positions again; or it repeats old changes",
                mend="begin a state of another state.table with a new snapshot in a topic of its own, or leave out "
                f"state.order; or accept them: state.accept.outranked_keys: {status.outranked_keys}",
            )
        if status.uncertain > settings.accept.uncertain:
            yield self._condition(
                "uncertain",
                offsets=status.uncertain,
                since=since,
                title=f"{self._name}: {status.table} may show keys that were deleted",
                text=f"compaction removed {plural(status.uncertain, 'offset')} before they were stored; deletions "
                "may be among them, since Kafka no longer kept these",
                likely="the agent was down, or behind, for longer than the topic's delete.retention.ms",
                mend="compare the keys with the source, and delete those again that it lacks; then accept them: "
                f"state.accept.uncertain: {status.uncertain}",
                fact=str(status.uncertain),
            )
