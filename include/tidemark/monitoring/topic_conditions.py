"""Conditions of a topic. Pure: the same observation at the same time gives the same conditions.

Each cause is reported once: offsets held back by a gap or a segment that is not uploaded are not late as well, and
nothing is known of a partition whose agent is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.slots import of_broker
from tidemark.formats.raw.watermark_index import LeaderEntry
from tidemark.formats.table.audit_report import AuditFailure, AuditVerdict
from tidemark.formats.table.unread_status import UnreadStatus
from tidemark.monitoring.health import PartitionHealth, TopicHealth, WaitingSince
from tidemark.monitoring.incidents import Condition, in_utc
from tidemark.monitoring.observer_state import ParseSample
from tidemark.topics import TopicSettings
from tidemark.words import duration, plural

MOST_GAPS: Final = 50
"""If a topic has more gaps than this, they are one incident: nobody reads so many, and the object must stay small."""

ON_ITS_WAY: Final = timedelta(minutes=5)
"""Offsets uploaded more recently than this may land with the next run, even if they were uploaded late."""

NEAR: Final = 0.5
"""The share of a topic's retention below which its end is near."""

UNREAD_PATIENCE: Final = timedelta(minutes=2)
"""A damaged head is replaced with the next pack, before anybody has to know of it."""

_GAPS: Final = {
    "deleted_before_upload": "retention on the broker removed the segments before the agent had uploaded them",
    "unclean_election": "a replica became leader that did not have all of the log (unclean leader election)",
    "failed_disk": "the broker's disk failed before the segments were uploaded",
    "corrupt": "the segment's bytes are damaged",
    "staging_full": "the agent's staging area was full while the broker removed the segments",
    "unknown": "the segment's objects were removed from the store, or were never uploaded",
}


def gaps(health: TopicHealth) -> Iterator[Condition]:
    """The topic's LOST offsets that are not acknowledged."""
    open_gaps = [(partition, gap) for partition in health.partitions for gap in partition.lost]
    if len(open_gaps) > MOST_GAPS:
        yield _many_gaps(health, [gap for _, gap in open_gaps])
        return
    for partition, gap in open_gaps:
        name, count = _name(health.cluster, health.topic, partition), gap.end - gap.start
        yield Condition(
            kind="gap",
            key=f"gap/{health.cluster}/{health.topic}/{partition.incarnation}-{partition.partition}/{gap.start}",
            cluster=health.cluster,
            topic=health.topic,
            partition=partition.partition,
            start=gap.start,
            end=gap.end,
            offsets=count,
            since=gap.detected_at,
            title=f"{name}: offsets {gap.start} to {gap.end - 1} are missing",
            text=f"{plural(count, 'offset')} from {gap.start} on are LOST; the partition waits there, and the others "
            "continue",
            likely=_GAPS.get(gap.reason, gap.reason),
            mend=f"on a broker that still has them: tidemark-agent reupload {health.topic} {partition.partition} "
            f"--from {gap.start} --to {gap.end}; if none has, give them up: tidemark acknowledge-gap {health.topic} "
            f"{partition.partition} {gap.start} {gap.end} --cluster {health.cluster} --by NAME --reason WHY",
            fact=f"{gap.end} {gap.reason}",
        )


def _many_gaps(health: TopicHealth, gaps: Sequence[Gap]) -> Condition:
    """One incident for all gaps, under the key of the messages about some of them."""
    count, reason = sum(gap.end - gap.start for gap in gaps), Counter(gap.reason for gap in gaps).most_common(1)[0][0]
    partitions = sum(bool(partition.lost) for partition in health.partitions)
    return Condition(
        kind="gap",
        key=f"gap/{health.cluster}/{health.topic}",
        cluster=health.cluster,
        topic=health.topic,
        offsets=count,
        since=min(gap.detected_at for gap in gaps),
        title=f"{health.cluster}/{health.topic}: {plural(len(gaps), 'gap')} in {plural(partitions, 'partition')}",
        text=f"{plural(count, 'offset')} are LOST; these partitions wait at their gaps, and the others continue",
        likely=f"of most of them: {_GAPS.get(reason, reason)}",
        mend="the topic's continuity page shows each, and acknowledges those that are lost for good; or tidemark "
        f"continuity {health.topic} --cluster {health.cluster}",
    )


def remote_tier(health: TopicHealth) -> Iterator[Condition]:
    """The condition of a topic with partitions that wait at offsets which only Kafka's own remote tier has."""
    waiting = [(part, gap) for part in health.partitions for gap in part.gaps if gap.in_remote_tier]
    if not waiting:
        return
    name = f"{health.cluster}/{health.topic}"
    count = sum(gap.end - gap.start for _, gap in waiting)
    partitions = len({(part.incarnation, part.partition) for part, _ in waiting})
    part, gap = min(waiting, key=lambda found: found[1].detected_at)
    yield Condition(
        kind="remote_tier",
        key=f"remote_tier/{name}",
        cluster=health.cluster,
        topic=health.topic,
        partition=part.partition,
        start=gap.start,
        end=gap.end,
        offsets=count,
        since=gap.detected_at,
        title=f"{name}: {plural(count, 'offset')} are only in Kafka's remote tier",
        text=f"{plural(count, 'offset')} of {plural(partitions, 'partition')} left the broker's disk for Kafka's own "
        f"remote tier before the agent had stored them; the first are {gap.start} to {gap.end - 1} of partition "
        f"{part.partition}. Nothing is lost: consumers get them from Kafka. The partition waits there, and the others "
        "continue",
        likely="the agent was down, or did not reach the store, for longer than local.retention.ms or "
        "local.retention.bytes allow",
        mend="raise the topic's local.retention.ms above the longest time for which an agent may be away; what another "
        "broker's disk still has, its agent fills in",
        fact=f"{count} {gap.start}",
    )


def retention_near(topic: TopicSettings, led: Mapping[int, LeaderEntry]) -> Iterator[Condition]:
    """The condition of a topic whose retention will soon remove what was not fetched: of its worst partition."""
    shares = [(leader.entry.retention_left, leader) for leader in led.values()]
    known = [(share, leader) for share, leader in shares if share is not None]
    left, leader = min(known, key=lambda found: found[0], default=(1.0, None))
    if leader is None or left >= NEAR:
        return
    entry, name = leader.entry, f"{topic.cluster}/{topic.topic}"
    yield Condition(
        kind="retention_near",
        key=f"retention_near/{name}",
        cluster=topic.cluster,
        topic=topic.topic,
        partition=entry.partition,
        start=entry.least_stored_end,
        end=entry.log_end_offset,
        offsets=max(0, entry.log_end_offset - entry.least_stored_end),
        since=entry.observed_at,
        title=f"{name}: retention will remove records that nobody has fetched",
        text=f"{left:.0%} of the topic's retention is left for partition {entry.partition}, and "
        f"{of_broker(leader.broker)} is behind",
        likely="the agent is down or too slow, a quota throttles it, its spool is full, or the store is away",
        mend="raise the topic's retention.ms or retention.bytes; look at tidemark_agent_spool_bytes and "
        "tidemark_agent_fetch_throttled_seconds_total; more slots share the work",
    )


def stuck(
    topic: TopicSettings,
    led: Mapping[int, LeaderEntry],
    marks: Iterable[WaitingSince],
    gone: Collection[int],
    now: datetime,
) -> Iterator[Condition]:
    """Conditions of partitions with a watermark before a rotated segment; ``led`` by partition, ``gone`` brokers."""
    for mark in marks:
        leader = led.get(mark.partition)
        if leader is None or leader.broker in gone or now - mark.since <= topic.late_after:
            continue
        if not leader.entry.packs_known:
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
            text=f"{plural(missing, 'offset')} are in rotated segments that are not uploaded; the log now ends "
            f"at {entry.log_end_offset}",
            likely=f"the agent of {of_broker(leader.broker)} cannot read or upload the segment at {entry.next_offset}",
            mend=f"on {of_broker(leader.broker)}: see the agent's log for {topic.topic}-{mark.partition}, and "
            f"tidemark-agent verify --topic {topic.topic}",
        )


class LastRun(NamedTuple):
    """What is known of the runs that land a topic: when the last one failed, and how; empty if it did not.

    ``scanned_at`` is when the triggerer last reported its scan.
    """

    failed_at: datetime | None = None
    failure: str = ""
    scanned_at: datetime | None = None


def late(
    topic: TopicSettings,
    health: TopicHealth,
    uploaded: Iterable[WaitingSince],
    now: datetime,
    run: LastRun | None = None,
) -> Iterator[Condition]:
    """The condition that the table is behind, unless a gap or the agent is the cause; never for an idle topic.

    ``uploaded`` are the marks of offsets that are uploaded and have not landed: recent ones do not count yet.
    """
    landing = {mark.key for mark in uploaded if now - mark.since > min(ON_ITS_WAY, topic.late_after)}
    waiting = [
        part
        for part in health.partitions
        if part.waits_since is not None and (part.incarnation, part.partition) in landing and not _is_at_gap(part)
    ]
    oldest = min(waiting, key=lambda partition: partition.waits_since or now, default=None)
    if oldest is None or oldest.waits_since is None or now - oldest.waits_since <= topic.late_after:
        return
    count = sum(max(0, (partition.watermark or 0) - (partition.landed or 0)) for partition in waiting)
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
        text=f"{plural(count, 'uploaded offset')} of {plural(len(waiting), 'partition')} are not landed; partition "
        f"{oldest.partition} waits at {oldest.landed or 0}, for longer than {duration(topic.late_after)}",
        likely=_why_late(oldest, health, now, run or LastRun()),
        mend="see the runs of the topic's ingest DAG in Airflow"
        + (f", and those of the DAG tidemark_live__{topic.cluster}" if topic.freshness else ""),
    )


def quarantine(topic: TopicSettings, samples: Iterable[ParseSample], now: datetime) -> Iterator[Condition]:
    """The condition that recent runs refused a larger share of records than the topic allows."""
    recent = [sample for sample in samples if sample.at > now - topic.quarantine.over]
    parsed, refused = sum(sample.parsed for sample in recent), sum(sample.refused for sample in recent)
    if not refused or refused <= parsed * topic.quarantine.rate:
        return
    yield Condition(
        kind="quarantine",
        key=f"quarantine/{topic.cluster}/{topic.topic}",
        cluster=topic.cluster,
        topic=topic.topic,
        offsets=refused,
        since=next(sample.at for sample in recent if sample.refused),
        title=f"{topic.cluster}/{topic.topic}: {refused / parsed:.2%} of the records are refused",
        text=f"{refused:,} of {parsed:,} records of the last {duration(topic.quarantine.over)} went to quarantine, "
        f"more than {topic.quarantine.rate:.2%}",
        likely="producers write what the parser does not expect: "
        f"tidemark quarantine {topic.topic} --cluster {topic.cluster} shows the reasons",
        mend="correct the parser or the producer; then replay the quarantine by the backfill form (mode replay)",
    )


def audits(verdict: AuditVerdict) -> Iterator[Condition]:
    """Conditions of the dates that failed their last audit."""
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
            text=f"{plural(failure.findings, 'finding')}; the first: {failure.first}"
            if failure.findings
            else f"it could not be carried out: {failure.first}",
            likely=_cause(failure),
            mend=_cure(failure),
            fact=f"{failure.findings} {failure.first}",
        )


def _cause(failure: AuditFailure) -> str:
    if not failure.findings:
        return "raw or the table cannot be read"
    if failure.kind == "raw_lacks":
        return "compaction had removed the records before an earlier agent sealed their segment"
    return "the table, its quarantine or raw was changed by something else, or lost objects"


def _cure(failure: AuditFailure) -> str:
    if not failure.findings:
        return "see the log of the task in the DAG tidemark_audit"
    if failure.kind == "raw_lacks":
        return f"do as the finding says, and do not rebuild the date before; the report: {failure.report}"
    return f"rebuild the date by the backfill form, then audit it again; the report: {failure.report}"


def unread(status: UnreadStatus) -> Iterator[Condition]:
    """The condition of the objects that the topic's last run left out: damaged, or not given by the store."""
    if not status.messages:
        return
    name, objects = f"{status.cluster}/{status.topic}", status.objects
    mend: list[str] = []
    indexes = [key for key in objects if key.endswith(".txnindex")]
    if indexes:
        mend.append(f"`tidemark-agent reupload {status.topic} PARTITION` on a replica makes a `.txnindex` again")
    if len(indexes) < len(objects):
        mend.append(
            "what was packed lands by itself once the agent has sealed it from the broker's disk: at the roll of the "
            "segment, at 64 MiB or 256 ranges, at the latest a day after it was packed; keep that disk"
        )
    named = ", ".join(objects[:5]) + (" and others" if len(objects) > 5 else "")
    yield Condition(
        kind="unread",
        key=f"unread/{name}",
        cluster=status.cluster,
        topic=status.topic,
        since=status.since,
        title=f"{name}: a part of raw cannot be read",
        text=f"not read: {named}; the first of {plural(status.count, 'finding')}: {status.messages[0]}; what they "
        "hold is late, and the rest lands",
        likely="something else has written or damaged the object in the bucket, or a policy refuses its key",
        mend="; ".join((*mend, "see the bucket's log for who wrote the object")),
        fact=" ".join(objects),
        patience=UNREAD_PATIENCE,
    )


def _is_at_gap(partition: PartitionHealth) -> bool:
    return any(gap.start <= (partition.landed or 0) < gap.end for gap in partition.gaps)


def _why_late(oldest: PartitionHealth, health: TopicHealth, now: datetime, run: LastRun) -> str:
    committed, failed = health.committed_at, run.failed_at
    if failed is not None and (committed is None or committed < failed):
        return f"the last run failed at {in_utc(failed)}: {run.failure}"
    if oldest.held_by:
        open_ = oldest.held_by[0]
        return (
            f"the transaction of producer {open_.producer_id} is open since offset {open_.first_offset} of partition "
            f"{oldest.partition}: nothing after it can be decided; kafka-transactions.sh can abort one that hangs"
        )
    if run.scanned_at is not None and now - run.scanned_at > timedelta(minutes=5):
        return f"the watermarks have not been scanned since {in_utc(run.scanned_at)}: does Airflow's triggerer run?"
    since = oldest.waits_since or now
    if committed is None or committed < since:
        last = "nothing was ever" if committed is None else f"since {in_utc(committed)} nothing was"
        return f"{last} committed: the ingest DAG is paused, its runs fail, or Spark does not answer"
    return "runs commit, and do not keep up, or leave this partition out; see the log of the last run"


def _name(cluster: str, topic: str, partition: PartitionHealth) -> str:
    suffix = f" (incarnation {partition.incarnation})" if partition.incarnation else ""
    return f"{cluster}/{topic} partition {partition.partition}{suffix}"
