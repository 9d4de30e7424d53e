"""What is wrong, by what was read. Pure: the same observation at the same time gives the same conditions.

Each cause is told of once: what a gap or a segment that is not uploaded holds back is not late as well, and of a
partition whose agent is gone nothing is known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from tidemark.audits import Verdict
from tidemark.health import Mark, PartitionHealth, TopicHealth
from tidemark.incidents import Condition
from tidemark.topics import TopicSettings
from tidemark.watching.sightings import Sample
from tidemark.watermark_index import Led, WatermarkIndex

MOST_OF_A_TOPIC: Final = 1000
"""Of each kind; the others follow as these close."""

PATIENCE: Final = timedelta(minutes=2)
"""What may be a hiccup of a store must last for so long."""

ON_ITS_WAY: Final = timedelta(minutes=5)
"""What was uploaded so recently may well be landed by the next run, however late it was uploaded."""

_GAPS: Final = {
    "deleted_before_upload": "retention on the broker removed the segments before the agent had uploaded them",
    "unclean_election": "a replica became leader that did not have all of the log (unclean leader election)",
    "failed_disk": "the broker's disk failed before the segments were uploaded",
    "corrupt": "the segment's bytes are damaged",
    "staging_full": "the agent's staging area was full while the broker removed the segments",
    "unknown": "the segment's objects were removed from the store, or were never uploaded",
}


def gaps(health: TopicHealth) -> Iterator[Condition]:
    """The topic's LOST offsets that nobody acknowledged."""
    found = ((one, gap) for one in health.partitions for gap in one.gaps)
    for one, gap in islice(found, MOST_OF_A_TOPIC):
        name, count = _name(health.cluster, health.topic, one), gap.end - gap.start
        yield Condition(
            kind="gap",
            key=f"gap/{health.cluster}/{health.topic}/{one.incarnation}-{one.partition}/{gap.start}",
            cluster=health.cluster,
            topic=health.topic,
            partition=one.partition,
            start=gap.start,
            end=gap.end,
            offsets=count,
            since=gap.detected_at,
            title=f"{name}: offsets {gap.start} to {gap.end - 1} are missing",
            text=f"{count} offsets from {gap.start} on are LOST; the partition waits there, the others go on",
            likely=_GAPS[gap.reason],
            mend=f"on a broker that still has them: tidemark-agent backfill {health.topic} {one.partition} --from "
            f"{gap.start} --to {gap.end}; if none has, give them up: tidemark acknowledge-gap {health.topic} "
            f"{one.partition} {gap.start} {gap.end} --cluster {health.cluster} --by NAME --reason WHY",
            fact=f"{gap.end} {gap.reason}",
        )


def stuck(
    topic: TopicSettings, led: Mapping[int, Led], marks: Iterable[Mark], gone: Collection[int], now: datetime
) -> Iterator[Condition]:
    """Partitions whose watermark stands before a rotated segment; ``led`` by partition, ``gone`` are brokers."""
    for mark in marks:
        leader = led.get(mark.partition)
        if leader is None or leader.broker in gone or now - mark.since <= topic.freshness:
            continue
        entry, name = leader.entry, f"{topic.cluster}/{topic.topic} partition {mark.partition}"
        missing = max(0, (entry.active_base_offset or 0) - entry.next_offset)
        yield Condition(
            kind="stuck",
            key=f"stuck/{topic.cluster}/{topic.topic}/{mark.incarnation}-{mark.partition}",
            cluster=topic.cluster,
            topic=topic.topic,
            partition=mark.partition,
            start=entry.next_offset,
            end=entry.active_base_offset,
            offsets=missing,
            since=mark.since,
            title=f"{name}: the watermark stands at {entry.next_offset}",
            text=f"{missing} offsets are in rotated segments that are not uploaded; the log goes to "
            f"{entry.log_end_offset} by now",
            likely=f"the agent of broker {leader.broker} cannot read or upload the segment at {entry.next_offset}",
            mend=f"on broker {leader.broker}: see the agent's log for {topic.topic}-{mark.partition}, and "
            f"tidemark-agent verify --topic {topic.topic}",
        )


def late(
    topic: TopicSettings,
    health: TopicHealth,
    uploaded: Iterable[Mark],
    now: datetime,
    scanned_at: datetime | None = None,
) -> Iterator[Condition]:
    """That the table is behind what could be landed, unless a gap or the agent is why; never of an idle topic.

    ``uploaded`` are the marks of what is uploaded and not landed: what has only just come is on its way. ``scanned_at``
    is when the triggerer last told of its scan.
    """
    landing = {mark.key for mark in uploaded if now - mark.since > min(ON_ITS_WAY, topic.freshness)}
    waiting = [
        one
        for one in health.partitions
        if one.waits_since is not None and (one.incarnation, one.partition) in landing and not _is_at_gap(one)
    ]
    oldest = min(waiting, key=lambda one: one.waits_since or now, default=None)
    if oldest is None or oldest.waits_since is None or now - oldest.waits_since <= topic.freshness:
        return
    count = sum((one.watermark or 0) - (one.landed or 0) for one in waiting)
    yield Condition(
        kind="late",
        key=f"late/{topic.cluster}/{topic.topic}",
        cluster=topic.cluster,
        topic=topic.topic,
        partition=oldest.partition,
        start=oldest.landed or 0,
        end=oldest.watermark,
        offsets=count,
        since=oldest.waits_since,
        title=f"{topic.cluster}/{topic.topic}: the table is late",
        text=f"{count} uploaded offsets of {len(waiting)} partitions are not landed; partition {oldest.partition} "
        f"waits at {oldest.landed or 0}, for longer than {_words(topic.freshness)}",
        likely=_why_late(oldest, health, now, scanned_at),
        mend="see the runs of the topic's ingest DAG in Airflow",
    )


def quarantine(topic: TopicSettings, samples: Iterable[Sample], now: datetime) -> Iterator[Condition]:
    """That more records are refused than the topic allows, of those that the runs of the last time parsed."""
    seen = [one for one in samples if one.at > now - topic.quarantine.over]
    parsed, refused = sum(one.parsed for one in seen), sum(one.refused for one in seen)
    if not refused or refused <= parsed * topic.quarantine.rate:
        return
    yield Condition(
        kind="quarantine",
        key=f"quarantine/{topic.cluster}/{topic.topic}",
        cluster=topic.cluster,
        topic=topic.topic,
        offsets=refused,
        since=next(one.at for one in seen if one.refused),
        title=f"{topic.cluster}/{topic.topic}: {refused / parsed:.2%} of the records are refused",
        text=f"{refused} of {parsed} records of the last {_words(topic.quarantine.over)} went to quarantine, more than "
        f"{topic.quarantine.rate:.2%}",
        likely="producers write what the parser does not expect; the quarantine's column of reasons says what",
        mend="correct the parser or the producer; then replay the quarantine by the backfill form (mode replay)",
    )


def audits(verdict: Verdict) -> Iterator[Condition]:
    """The dates that failed their last audit."""
    name = f"{verdict.cluster}/{verdict.topic}"
    for dt, failure in sorted(verdict.failed.items()):
        of_date = f" of {dt}" if dt else ""
        yield Condition(
            kind="audit",
            key=f"audit/{name}/{dt}",
            cluster=verdict.cluster,
            topic=verdict.topic,
            partition=failure.partition,
            start=failure.start,
            end=failure.end,
            since=failure.since,
            title=f"{name}: the audit{of_date} failed",
            text=f"{failure.findings} findings; the first: {failure.first}"
            if failure.findings
            else f"it could not be carried out: {failure.first}",
            likely="the table, its quarantine or raw was changed by something else, or lost objects"
            if failure.findings
            else "raw or the table cannot be read",
            mend=f"rebuild the date by the backfill form, then audit it again; the report: {failure.report}"
            if failure.findings
            else "see the log of the task in the DAG tidemark_audit",
            fact=f"{failure.findings} {failure.first}",
        )


def agents_gone(
    cluster: str, indexes: Iterable[WatermarkIndex], led: Iterable[Led], silence: timedelta, now: datetime
) -> Iterator[Condition]:
    """Brokers whose agent is silent and whose partitions nobody else leads; an idle agent writes all the same.

    A broker that was taken away, or that died, leads nothing any more: others tell of its partitions since then.
    """
    leads: dict[int, set[tuple[str, int]]] = {}
    for one in led:
        leads.setdefault(one.broker, set()).add((one.entry.topic, one.entry.partition))
    for index in indexes:
        mine = leads.get(index.broker)
        if not mine or now - index.written_at <= silence:
            continue
        topics = sorted({topic for topic, _ in mine})
        more = f" and {len(topics) - 5} more" if len(topics) > 5 else ""
        yield Condition(
            kind="agent_gone",
            key=f"agent_gone/{cluster}/{index.broker}",
            cluster=cluster,
            since=index.written_at,
            title=f"{cluster}: the agent of broker {index.broker} is silent",
            text=f"it has not written its watermark index since {_time(index.written_at)}; it was the last to lead "
            f"{len(mine)} partitions of {', '.join(topics[:5])}{more}",
            likely="the agent is stopped, or cannot reach the store; or the broker is down and has no other replica",
            mend=f"on broker {index.broker}: systemctl status tidemark-agent; journalctl -u tidemark-agent",
        )


def unreadable(cluster: str, topic: str, reason: str, now: datetime) -> Condition:
    """That nothing is known of a topic, or of some part of it."""
    return Condition(
        kind="unreadable",
        key=f"unreadable/{cluster}/{topic}",
        cluster=cluster,
        topic=topic,
        since=now,
        title=f"{cluster}/{topic}: cannot be looked at",
        text=reason,
        likely="an object was damaged or removed, or the role of Airflow's workers may not read it",
        mend=f"tidemark status {topic} --cluster {cluster}",
        patience=PATIENCE,
    )


def unreadable_index(cluster: str, reason: str, now: datetime, key: str) -> Condition:
    """That nothing is known of what a broker leads, since its watermark index does not parse."""
    return Condition(
        kind="unreadable",
        key=f"unreadable/{cluster}/{key}",
        cluster=cluster,
        since=now,
        title=f"{cluster}: a watermark index cannot be read",
        text=f"nothing is known of what its broker leads: {reason}",
        likely="the object was written by something else, or by a newer agent",
        mend="have the broker's agent write it again: systemctl restart tidemark-agent",
        patience=PATIENCE,
    )


def scan_failing(cluster: str, since: datetime, reason: str) -> Condition:
    """That the triggerer cannot read the watermark indexes."""
    return Condition(
        kind="scan",
        key=f"scan/{cluster}",
        cluster=cluster,
        since=since,
        title=f"{cluster}: the watermark indexes cannot be read",
        text=f"no topic of {cluster} is woken: {reason}",
        likely="the store does not answer, or the triggerer's role may not read it",
        mend="see the log of Airflow's triggerer",
        patience=PATIENCE,
    )


def import_error(cluster: str, file: str, error: str, since: datetime) -> Condition:
    """That Airflow cannot import a file; ``cluster`` is the deployment's first."""
    last = error.strip().splitlines()[-1] if error.strip() else "unknown"
    return Condition(
        kind="import_error",
        key=f"import_error/{cluster}/{file}",
        cluster=cluster,
        since=since,
        title=f"{file} cannot be imported",
        text=f"its DAGs do not run, or run as they were before: {last}",
        likely="a mistake in the file, in the topics file, or in what is installed beside them",
        mend="tidemark config check; airflow dags list-import-errors",
        fact=last,
    )


def _is_at_gap(one: PartitionHealth) -> bool:
    return any(gap.start <= (one.landed or 0) < gap.end for gap in one.gaps)


def _why_late(oldest: PartitionHealth, health: TopicHealth, now: datetime, scanned_at: datetime | None) -> str:
    if oldest.held_by:
        held = oldest.held_by[0]
        return (
            f"the transaction of producer {held.producer_id} is open since offset {held.first_offset} of partition "
            f"{oldest.partition}: nothing after it can be decided; kafka-transactions.sh can abort one that hangs"
        )
    if scanned_at is not None and now - scanned_at > timedelta(minutes=5):
        return f"the watermarks have not been scanned since {_time(scanned_at)}: does Airflow's triggerer run?"
    since = oldest.waits_since or now
    if health.committed_at is None or health.committed_at < since:
        last = "nothing was ever" if health.committed_at is None else f"since {_time(health.committed_at)} nothing was"
        return f"{last} committed: the ingest DAG is paused, its runs fail, or Spark does not answer"
    return "runs commit, and do not keep up, or leave this partition out; see the log of the last run"


def _name(cluster: str, topic: str, one: PartitionHealth) -> str:
    life = f" (incarnation {one.incarnation})" if one.incarnation else ""
    return f"{cluster}/{topic} partition {one.partition}{life}"


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _words(length: timedelta) -> str:
    minutes = length / timedelta(minutes=1)
    return f"{minutes:g} min" if minutes < 120 else f"{minutes / 60:g} h"
