"""Conditions of a topic, of the schema that it follows, and of its state table.

They are pure: the same observation at the same time gives the same conditions. Each cause is reported once: offsets
held back by a gap or a segment that is not uploaded are not late as well, and nothing is known of a partition whose
agent is gone.

A topic's ``freshness`` is judged on the way to the store, from the append on, by :func:`unstored` and
:func:`unmeasured`, and on the way from the store to the table by :func:`late`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from tidemark.formats.raw.cluster import of_broker
from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.watermark_index import IndexEntry, LeaderEntry
from tidemark.formats.table.audit_report import AuditFailure, AuditVerdict
from tidemark.formats.table.schema_state import SchemaState
from tidemark.formats.table.statuses import AUDIT_PARTS, ScanStatus, StateStatus, StateStop, UnreadStatus
from tidemark.monitoring.health import PartitionHealth, TopicHealth, WaitingSince
from tidemark.monitoring.incidents import Condition, about, agent_log, in_utc
from tidemark.monitoring.observer_state import ParseSample, TopicSighting
from tidemark.topics import StateSettings, TopicSettings
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

STATE_LATE: Final = timedelta(hours=5)
"""Time without a run that ended well, beyond ``state.every``."""

REGISTRY_PATIENCE: Final = timedelta(minutes=10)

_RESTART_PATIENCE: Final = timedelta(minutes=2)
"""A restarted agent has read nothing yet."""


def gaps(health: TopicHealth) -> Iterator[Condition]:
    """The topic's LOST offsets that are not acknowledged."""
    open_gaps = [(partition, gap) for partition in health.partitions for gap in partition.lost]
    if len(open_gaps) > MOST_GAPS:
        yield _many_gaps(health, [gap for _, gap in open_gaps])
        return
    for partition, gap in open_gaps:
        name, count = _name(health.cluster, health.topic, partition), gap.end - gap.start
        yield Condition(
            **about("gap", health.cluster, health.topic, f"{partition.incarnation}-{partition.partition}", gap.start),
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
        **about("gap", health.cluster, health.topic),
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
        **about("remote_tier", health.cluster, health.topic),
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
        likely="the topic is older than the agent, or the agent was down, or did not reach the store, for longer than "
        "local.retention.ms or local.retention.bytes allow",
        mend="the agent fetches them from the broker; its log says in remote_tier_not_fetched if it cannot: its user "
        "needs READ on the topic, and fill.remote_tier is to be fetch; raise the topic's local.retention.ms above the "
        "longest time for which an agent may be away",
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
        **about("retention_near", topic.cluster, topic.topic),
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
            **about("stuck", topic.cluster, topic.topic, f"{mark.incarnation}-{mark.partition}"),
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


def late(
    topic: TopicSettings,
    health: TopicHealth,
    uploaded: Iterable[WaitingSince],
    now: datetime,
    before: TopicSighting,
    scan: ScanStatus | None = None,
    waits: int = 0,
) -> Iterator[Condition]:
    """The condition that the table is behind, unless a gap or the agent is the cause; never for an idle topic.

    ``uploaded`` are the marks of offsets that are uploaded and have not landed: recent ones do not count yet. The last
    run's failure is in ``before``, and ``scan`` is the triggerer's last report. ``waits`` is how many triggers wait in
    Airflow for watermarks.
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
        **about("late", topic.cluster, topic.topic),
        partition=oldest.partition,
        start=oldest.landed or 0,
        end=oldest.watermark,
        offsets=count,
        since=oldest.waits_since,
        title=f"{topic.cluster}/{topic.topic}: the table is late",
        text=f"{plural(count, 'uploaded offset')} of {plural(len(waiting), 'partition')} are not landed; partition "
        f"{oldest} waits at {oldest.landed or 0}, for longer than {duration(topic.late_after)}",
        likely=_why_late(oldest, health, now, before, scan, waits),
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
        **about("quarantine", topic.cluster, topic.topic),
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
            **about("audit", verdict.cluster, verdict.topic, dt),
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
        **about("unread", status.cluster, status.topic),
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


def _why_late(
    oldest: PartitionHealth,
    health: TopicHealth,
    now: datetime,
    before: TopicSighting,
    scan: ScanStatus | None,
    waits: int,
) -> str:
    committed, failed = health.committed_at, before.failed_at
    if failed is not None and (committed is None or committed < failed):
        return f"the last run failed at {in_utc(failed)}: {before.failure}"
    if oldest.held_by:
        open_ = oldest.held_by[0]
        return (
            f"the transaction of producer {open_.producer_id} is open since offset {open_.first_offset} of partition "
            f"{oldest.partition}: nothing after it can be decided; kafka-transactions.sh can abort one that hangs"
        )
    if scan is not None and now - scan.at > timedelta(minutes=5):
        return f"the watermarks have not been scanned since {in_utc(scan.at)}: does Airflow's triggerer run?"
    since = oldest.waits_since or now
    if committed is None or committed < since:
        last = "nothing was ever" if committed is None else f"since {in_utc(committed)} nothing was"
        why = "the ingest DAG is paused, its runs fail, or Spark does not answer"
        if scan is not None and scan.capacity is not None and waits > scan.capacity:
            enough = -(-waits // scan.capacity)
            why += (
                f"; or the DAG waits for a triggerer: {waits:,} DAGs wait, and one triggerer runs {scan.capacity:,} "
                f"triggers: raise [triggerer] capacity, or run {enough} triggerers"
            )
        return f"{last} committed: {why}"
    return "runs commit, and do not keep up, or leave this partition out; see the log of the last run"


def _name(cluster: str, topic: str, partition: PartitionHealth) -> str:
    suffix = f" (incarnation {partition.incarnation})" if partition.incarnation else ""
    return f"{cluster}/{topic} partition {partition.partition}{suffix}"


def state_table(topic: TopicSettings, status: StateStatus, now: datetime) -> Iterator[Condition]:
    """The conditions of a state table: it is stopped or late, its audit found a difference, or it is in doubt.

    One that is stopped is not late as well.
    """
    assert topic.state is not None
    if status.stopped is not None:
        yield _state_stopped(topic, status, status.stopped)
    elif status.followed_at is not None and now - status.followed_at > STATE_LATE + topic.state.every:
        yield Condition(
            **about("state", topic.cluster, topic.topic, "late"),
            since=status.followed_at,
            title=f"{topic.cluster}/{topic.topic}: the state table {status.table} is late",
            text=f"no run has ended well since {in_utc(status.followed_at)}; it keeps its commit {status.n}",
            likely="the DAG tidemark_state is paused, its runs fail, or Spark does not answer",
            mend=f"see the log of the last run of tidemark_state; {_state_job(topic)}",
        )
    yield from _state_audit(topic, status)
    yield from _state_doubts(topic, status, topic.state, status.committed_at or now)


def _state_job(topic: TopicSettings) -> str:
    return f"spark-submit spark/jobs/state.py --topics FILE --topic {topic.topic}"


def _state_stopped(topic: TopicSettings, status: StateStatus, stop: StateStop) -> Condition:
    at = f" at offset {stop.offset} of partition {stop.partition}" if stop.offset is not None else ""
    return Condition(
        **about("state", topic.cluster, topic.topic, "stopped"),
        partition=stop.partition,
        start=stop.offset,
        end=None if stop.offset is None else stop.offset + 1,
        since=stop.since,
        title=f"{topic.cluster}/{topic.topic}: the state table {status.table} is stopped{at}",
        text=f"{stop.reason}; it keeps its commit {status.n}, and the topic's table lands on",
        likely="the source table was truncated, or the record lacks a column of state.key or state.order"
        if at
        else "the topic's settings have changed, or an object of the table was removed",
        mend="take a new snapshot into another topic, and give that a state; or change state.key or state.order"
        if at
        else "take the change back, or begin another state under another name: state.table",
        fact=stop.reason,
    )


def _state_audit(topic: TopicSettings, status: StateStatus) -> Iterator[Condition]:
    failed = {number: part for number, part in status.audits.items() if part.different}
    if not failed:
        return
    first = min(failed)
    yield Condition(
        **about("state", topic.cluster, topic.topic, "audit"),
        since=min(part.since or part.at for part in failed.values()),
        title=f"{topic.cluster}/{topic.topic}: the state table {status.table} is not what a replay gives",
        text=f"{plural(sum(part.different for part in failed.values()), 'row')} of {len(failed)} of {AUDIT_PARTS} "
        f"parts of the keys; the first: {failed[first].first}",
        likely="its files, its ledger or the topic's table were changed by something else",
        mend=f"{_state_job(topic)} --rebuild, then {_state_job(topic)} --audit --part {first}",
        fact=" ".join(f"{number}:{part.different}" for number, part in sorted(failed.items())),
    )


def _state_doubts(
    topic: TopicSettings, status: StateStatus, settings: StateSettings, since: datetime
) -> Iterator[Condition]:
    name = f"{topic.cluster}/{topic.topic}"
    if status.moved_keys > settings.accept.moved_keys and not settings.order:
        yield Condition(
            **about("state", topic.cluster, topic.topic, "moved_keys"),
            since=since,
            title=f"{name}: {plural(status.moved_keys, 'key')} of {status.table} moved between partitions",
            text="Kafka has no order between their last records, so the records' times decide",
            likely="partitions were added, or producers partition in different ways",
            mend="name columns of the source as state.order; or compare these keys with the source, then accept "
            f"them: state.accept.moved_keys: {status.moved_keys}",
        )
    if status.outranked_keys > settings.accept.outranked_keys and settings.order:
        yield Condition(
            **about("state", topic.cluster, topic.topic, "outranked_keys"),
            since=since,
            title=f"{name}: {status.table} shows {plural(status.outranked_keys, 'key')} as they were before",
            text=f"later records of these keys have a lower {', '.join(settings.order)}, so they do not count",
            likely="the source was restored, and begins its positions again; or it repeats old changes",
            mend="begin a state of another state.table with a new snapshot in a topic of its own, or leave out "
            f"state.order; or accept them: state.accept.outranked_keys: {status.outranked_keys}",
        )
    if status.uncertain > settings.accept.uncertain:
        yield Condition(
            **about("state", topic.cluster, topic.topic, "uncertain"),
            offsets=status.uncertain,
            since=since,
            title=f"{name}: {status.table} may show keys that were deleted",
            text=f"compaction removed {plural(status.uncertain, 'offset')} before they were stored; deletions "
            "may be among them, since Kafka no longer kept these",
            likely="the agent was down, or behind, for longer than the topic's delete.retention.ms",
            mend="compare the keys with the source, and delete those again that it lacks; then accept them: "
            f"state.accept.uncertain: {status.uncertain}",
            fact=str(status.uncertain),
        )


def followed_schema(topic: TopicSettings, state: SchemaState) -> Iterator[Condition]:
    """The conditions of ``topic``, which follows the schema in ``state``.

    They are changes that wait for a person, and a registry that is silent.
    """
    name = f"{topic.cluster}/{topic.topic}"
    options = f"--topics FILE --cluster {topic.cluster} --topic {topic.topic}"
    proposal = state.proposal
    if proposal is not None and proposal.version != state.dismissed:
        rebuild = f"spark-submit spark/jobs/rebuild.py {options} --all --schema {proposal.version}"
        mend = f"{rebuild} makes all rows so (or tidemark_backfill in mode schema); --compare shows which rows change"
        if not proposal.can_be_rebuilt:
            mend = "register a version that fits, or give the topic another table"
        yield Condition(
            **about("schema", topic.cluster, topic.topic),
            since=proposal.at,
            title=f"{name}: version {proposal.version} of {state.subject} does not fit the table",
            text="; ".join(f"{change.path}: {change.detail}" for change in proposal.changes),
            likely="a producer has registered it; what fits lands, and records that cannot be read are in quarantine",
            mend=f"{mend}; tidemark schema dismiss {topic.topic} --version {proposal.version} leaves it as it is",
            fact=str(proposal.version),
        )
    if state.unanswered_since is not None:
        yield Condition(
            **about("schema", topic.cluster, topic.topic, "registry"),
            since=state.unanswered_since,
            title=f"{name}: the registry does not say which schema is the newest",
            text=f"of {state.subject} since {in_utc(state.unanswered_since)}: {state.reason}",
            likely="the registry does not answer, refuses, or has removed the subject; the schema stays as it is",
            mend="see parser.schema of the topic, and the registry's own log",
            patience=REGISTRY_PATIENCE,
        )


def unstored_for(entry: IndexEntry, now: datetime) -> timedelta | None:
    """Waiting time of the oldest byte that is not in the store; None if the agent does not know it.

    The agents measure that time by a clock that nothing sets; the age of their report is added to it. It is zero if all
    was stored when the agent looked: younger bytes are at most as old as that look, and may not exist.
    """
    if entry.oldest_unstored is None:
        return None
    if entry.oldest_unstored == 0:
        return timedelta(0)
    return timedelta(seconds=entry.oldest_unstored) + max(timedelta(0), now - entry.observed_at)


def unstored(topic: TopicSettings, led: Mapping[int, LeaderEntry], now: datetime) -> Iterator[Condition]:
    """The condition that bytes have waited at brokers for longer than the promise; ``led`` is by partition.

    Bytes behind a gap are left out: the gap has its own incident, and they could not land.
    """
    if topic.freshness is None:
        return
    free = ((partition, leader) for partition, leader in led.items() if not leader.entry.gaps)
    waits = ((unstored_for(leader.entry, now), partition, leader) for partition, leader in free)
    late = [(age, partition, leader) for age, partition, leader in waits if age and age > topic.freshness]
    if not late:
        return
    age, oldest, leader = max(late, key=lambda waiting: waiting[0])
    entry = leader.entry
    brokers = sorted({one.broker for _, _, one in late})
    stored = entry.least_stored_end
    yield Condition(
        **about("unstored", topic.cluster, topic.topic),
        partition=oldest,
        start=stored,
        end=entry.high_watermark,
        since=now - age,
        title=f"{topic.cluster}/{topic.topic}: records wait at the brokers",
        text=f"bytes of {plural(len(late), 'partition')} are not in the store after {duration(topic.freshness)}; "
        f"partition {oldest} waits at {stored}",
        likely="an agent cannot reach the store or keep up, or does not pack the topic "
        f"(brokers {', '.join(map(str, brokers[:5]))})",
        mend=f"tidemark config check --agents; on {of_broker(leader.broker)}, see {agent_log()}",
    )


def unmeasured(
    topic: TopicSettings, led: Mapping[int, LeaderEntry], gone: Collection[int], now: datetime
) -> Iterator[Condition]:
    """The condition that a freshness is not measured: agents do not report their oldest byte's age, or are gone.

    An agent without that measure is as bad as a late one: nobody knows whether the promise is held.
    """
    if topic.freshness is None:
        return
    mute = [leader for leader in led.values() if leader.broker in gone or leader.entry.oldest_unstored is None]
    if not mute:
        return
    brokers = sorted({leader.broker for leader in mute})
    silent = sorted({leader.broker for leader in mute if leader.broker in gone})
    since = min((leader.entry.observed_at for leader in mute if leader.broker in gone), default=now)
    yield Condition(
        **about("unmeasured", topic.cluster, topic.topic),
        since=since,
        title=f"{topic.cluster}/{topic.topic}: nobody knows whether its freshness is held",
        text=f"the agents of brokers {', '.join(map(str, brokers[:5]))} do not say how long the oldest byte of "
        f"{plural(len(mute), 'partition')} has waited" + (f", some since {in_utc(since)}" if silent else ""),
        likely=_why_mute(mute, silent),
        mend="tidemark config check --agents names what to set",
        patience=_RESTART_PATIENCE,
    )


def _why_mute(mute: Collection[LeaderEntry], silent: Collection[int]) -> str:
    if silent:
        return "the agent is stopped"
    if all(not leader.entry.packs_known for leader in mute):
        return "the agent cannot read what former leaders have packed, or cannot claim the partitions"
    return "the agent is not set to pack the topic, or is an older one"
