"""One observation of one topic. Its ledger is read only if it or the watermarks changed, or something was waiting.

The numbers of records that runs parsed and refused come from the evidence that each run writes before its commit.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from tidemark.errors import FormatError, NeverSeen, NotFound, TidemarkError
from tidemark.formats.raw.watermark_index import LeaderEntry
from tidemark.formats.table.audit_report import AuditVerdict
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.state_status import StateStatus
from tidemark.formats.table.unread_status import UnreadStatus
from tidemark.inspection.agent_sightings import check_seen
from tidemark.monitoring import topic_conditions
from tidemark.monitoring.deployment_conditions import unreadable, unseen
from tidemark.monitoring.health import TopicHealth, WaitingSince, marked, topic_health
from tidemark.monitoring.incidents import Condition, IncidentKind, Source, Unknown, found_by
from tidemark.monitoring.observer_state import ParseSample, TopicSighting, latest
from tidemark.monitoring.overview import TopicSummary
from tidemark.monitoring.topic_conditions import LastRun
from tidemark.parsers.settings import followed_by
from tidemark.schemas.adopted import read_state
from tidemark.table.delta_table import TopicTable, committed_ledger
from tidemark.table.evidence import PARSED, read_evidence

_REREAD_AFTER: Final = timedelta(hours=1)

_BEGINS: Final = timedelta(minutes=5)
"""What a new topic has for its first rows: the agents and Airflow learn of it one after the other."""

_OF_PROMISE: Final[frozenset[IncidentKind]] = frozenset({"late", "unstored", "unmeasured"})

_MOST_RUNS: Final = 50
"""The most ledgers that an observation looks back; there is one observation every minute."""


class Around(NamedTuple):
    """Facts about a topic from outside its table.

    ``led`` is by partition, None if the watermark indexes could not be read. ``gone`` are brokers without an agent.
    ``committed``, ``verdict``, ``unread`` and ``state`` are the ETags of these objects, empty if they do not exist.
    ``scanned_at`` is when the triggerer last reported its scan.
    """

    led: Mapping[int, LeaderEntry] | None
    gone: Collection[int] = ()
    committed: str = ""
    verdict: str = ""
    unread: str = ""
    state: str = ""
    scanned_at: datetime | None = None


class TopicLook(NamedTuple):
    """Conditions that were found, incidents that could not be judged, and the state for the next observation."""

    conditions: tuple[Condition, ...]
    unknown: tuple[Unknown, ...]
    sighting: TopicSighting


Step = Callable[[TopicTable, Around, TopicSighting, datetime], tuple[list[Condition], TopicSighting]]
"""A part of an observation: its conditions, and the sighting with its state for the next observation."""


def look_at_topic(table: TopicTable, around: Around, before: TopicSighting, now: datetime) -> TopicLook:
    """Observe the topic of ``table``. A read failure is reported, and never raised: it must not hide other topics.

    Libraries that read logs and evidence have their own errors for damage: DeltaError, and Arrow's kinds of ValueError.
    """
    from deltalake.exceptions import DeltaError

    conditions: list[Condition] = []
    unknown: list[Unknown] = []
    sighting = before
    steps: tuple[tuple[Step, Source], ...] = (
        (_seen, "sightings"),
        (_unread, "unread"),
        (_ledger, "ledger"),
        (_verdict, "verdict"),
        (_schema, "schema"),
        (_state, "state"),
    )
    for step, source in steps:
        try:
            new, sighting = step(table, around, sighting, now)
        except (TidemarkError, DeltaError, OSError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            conditions.append(unreadable(table.topic.cluster, table.topic.topic, reason, now))
            unknown.append(Unknown(found_by(source), table.topic.topic))
        else:
            conditions += new
    if around.led is not None:
        rotated = _rotated(around.led, sighting.rotated, now)
        conditions += topic_conditions.stuck(table.topic, around.led, rotated, around.gone, now)
        conditions += topic_conditions.retention_near(table.topic, around.led)
        conditions += topic_conditions.unstored(table.topic, around.led, now)
        conditions += topic_conditions.unmeasured(table.topic, around.led, around.gone, now)
        if any(leader.broker in around.gone for leader in around.led.values()):
            unknown.append(Unknown(frozenset({"stuck"}), table.topic.topic))
        judged = frozenset(partition for partition, leader in around.led.items() if leader.entry.packs_known)
        if len(judged) < len(around.led):
            unknown.append(Unknown(frozenset({"stuck"}), table.topic.topic, known=judged))
        sighting = sighting.model_copy(update={"rotated": rotated})
    if not around.committed and before.first_at is not None and now - before.first_at < _BEGINS:
        conditions = [condition for condition in conditions if condition.kind not in _OF_PROMISE]
        unknown.append(Unknown(_OF_PROMISE, table.topic.topic))
    return TopicLook(tuple(conditions), tuple(unknown), sighting)


def _schema(
    table: TopicTable, around: Around, before: TopicSighting, now: datetime
) -> tuple[list[Condition], TopicSighting]:
    """Conditions of the schema that the topic follows; none if it follows none."""
    if followed_by(table.topic.parser) is None:
        return [], before
    state = read_state(table.store, table.keys)
    return [] if state is None else list(topic_conditions.followed_schema(table.topic, state.value)), before


def _rotated(
    led: Mapping[int, LeaderEntry], before: tuple[WaitingSince, ...], now: datetime
) -> tuple[WaitingSince, ...]:
    """Marks of offsets that are rotated at the brokers and not stored; a gap's own incident covers all behind it."""
    entries = [leader.entry for leader in led.values() if not leader.entry.gaps]
    goals = {
        (entry.incarnation, entry.partition): None if entry.stored_end is None else entry.active_base_offset or 0
        for entry in entries
    }
    uploaded = {(entry.incarnation, entry.partition): entry.least_stored_end for entry in entries}
    return tuple(marked(goals, uploaded, before, now))


def _uploaded(
    led: Mapping[int, LeaderEntry], ledger: Ledger, before: tuple[WaitingSince, ...], now: datetime
) -> tuple[WaitingSince, ...]:
    """Marks of offsets that are uploaded and have not landed."""
    goals = {(leader.entry.incarnation, leader.entry.partition): leader.entry.stored_end for leader in led.values()}
    landed = {key: state.next_offset for key, state in ledger.by_partition.items()}
    return tuple(marked(goals, landed, before, now))


def _seen(
    table: TopicTable, around: Around, before: TopicSighting, now: datetime
) -> tuple[list[Condition], TopicSighting]:
    """The condition that no agent ever reported the topic; checked while no index has it and nothing has landed."""
    if around.led or around.committed or around.led is None:
        return [], before
    try:
        check_seen(table.deployment, table.topic)
    except FormatError:
        return [], before  # an index that does not parse has its own incident
    except NeverSeen as error:
        return [unseen(table.topic.cluster, table.topic.topic, str(error), now)], before
    return [], before


def _ledger(
    table: TopicTable, around: Around, before: TopicSighting, now: datetime
) -> tuple[list[Condition], TopicSighting]:
    """Conditions of the ledger, compared with the watermarks and by itself."""
    conditions: list[Condition] = []
    if around.led is not None:
        old = before.read_at is None or now - before.read_at > _REREAD_AFTER + _spread(table.topic.topic)
        digest = _digest(around)
        if old or digest != before.quiet:
            read, exact = _read(table, around, before, now, exact=old or not around.committed)
            uploaded = _uploaded(around.led, read.ledger, before.uploaded, now)
            conditions = [*topic_conditions.gaps(read.health), *topic_conditions.remote_tier(read.health)]
            run = LastRun(before.failed_at, before.failure, around.scanned_at)
            conditions += topic_conditions.late(table.topic, read.health, uploaded, now, run)
            quiet = not read.health.marks and not any(partition.gaps for partition in read.health.partitions)
            new = samples_of(table, read.ledger, before.n)
            update = {
                "marks": read.health.marks,
                "uploaded": uploaded,
                "samples": (*(() if new.reset else before.samples), *new.samples),
                "n": read.ledger.n,
                "quiet": digest if quiet else "",
                "read_at": now if exact else before.read_at,
                "summary": TopicSummary.of(read.health),
            }
            before = before.model_copy(update=update)
        elif before.summary is not None:
            ends = (leader.entry.log_end_offset for leader in around.led.values())
            before = before.model_copy(update={"summary": before.summary.with_log_ends(ends)})
    samples = latest(before.samples, now - table.topic.quarantine.over)
    conditions += topic_conditions.quarantine(table.topic, samples, now)
    return conditions, before.model_copy(update={"samples": samples})


class _Read(NamedTuple):
    ledger: Ledger
    health: TopicHealth


def _read(
    table: TopicTable, around: Around, before: TopicSighting, now: datetime, *, exact: bool
) -> tuple[_Read, bool]:
    """The ledger with the topic's health, and true if it is the table's own: nothing is reported from a copy."""
    led = around.led or {}
    ledger = committed_ledger(table) if exact else _copy(table)
    health = topic_health(
        table.topic,
        ledger,
        [leader.entry for leader in led.values()],
        now,
        marks=before.marks,
        brokers={partition: leader.broker for partition, leader in led.items()},
    )
    if not exact and (health.is_late(table.topic, now) or any(partition.gaps for partition in ledger.partitions)):
        return _read(table, around, before, now, exact=True)
    return _Read(ledger, health), exact


def _copy(table: TopicTable) -> Ledger:
    key = table.keys.deployment.committed_ledger(table.topic.topic)
    return Ledger.load(table.store, key)


def _digest(around: Around) -> str:
    """The identity of the ledger and the watermarks, which shows whether they have changed."""
    lines = [
        f"{entry.incarnation} {entry.partition} {entry.stored_end} {entry.active_base_offset} "
        f"{[gap.start for gap in entry.gaps]}"
        for entry in (leader.entry for leader in (around.led or {}).values())
    ]
    return hashlib.sha256("\n".join([around.committed, *sorted(lines)]).encode()).hexdigest()[:16]


def _spread(topic: str) -> timedelta:
    """Up to another hour, so that not all topics are read again in the same minute."""
    return timedelta(minutes=zlib.crc32(topic.encode()) % 60)


def _verdict(
    table: TopicTable, around: Around, before: TopicSighting, now: datetime
) -> tuple[list[Condition], TopicSighting]:
    """Conditions of the last audits; a verdict without a failure is read once."""
    if around.verdict in {"", before.passed}:
        return [], before
    key = table.keys.deployment.verdict(table.topic.topic)
    verdict = AuditVerdict.load(table.store, key)
    passed = "" if verdict.failed else around.verdict
    return list(topic_conditions.audits(verdict)), before.model_copy(update={"passed": passed})


def _unread(
    table: TopicTable, around: Around, before: TopicSighting, now: datetime
) -> tuple[list[Condition], TopicSighting]:
    """Conditions of the live end that the topic's runs could not read; a status without one is read once."""
    if around.unread in {"", before.all_read}:
        return [], before
    status = UnreadStatus.load(table.store, table.keys.deployment.unread(table.topic.topic))
    update = {
        "all_read": "" if status.messages else around.unread,
        "failed_at": status.failed_at,
        "failure": status.failure,
    }
    return list(topic_conditions.unread(status)), before.model_copy(update=update)


def _state(
    table: TopicTable, around: Around, before: TopicSighting, now: datetime
) -> tuple[list[Condition], TopicSighting]:
    """Conditions of the topic's state table; its status is read when it has changed."""
    if table.topic.state is None or not around.state:
        return [], before.model_copy(update={"state": None, "state_etag": ""})
    status = before.state
    if status is None or around.state != before.state_etag:
        status = StateStatus.load(table.store, table.keys.deployment.state_status(table.topic.topic))
    found = list(topic_conditions.state_table(table.topic, status, now))
    return found, before.model_copy(update={"state": status, "state_etag": around.state})


class NewSamples(NamedTuple):
    """The samples of new runs, the newest first. ``reset``: they begin with a replay or a rebuild.

    Such a run tries refused records again, so records refused before no longer count.
    """

    samples: tuple[ParseSample, ...]
    reset: bool


def samples_of(table: TopicTable, ledger: Ledger, seen: int | None) -> NewSamples:
    """The samples of the runs after ledger ``seen``; only the last run's if ``seen`` is None."""
    samples: list[ParseSample] = []
    known: Ledger | None = ledger
    oldest = ledger.n - 1 if seen is None else max(seen, ledger.n - _MOST_RUNS)
    while known is not None and known.n > max(0, oldest):
        if known.kind in {"ingest", "replay", "rebuild", "repair"} and (sample := _sample(table, known)):
            samples.append(sample)
        if known.kind in {"replay", "rebuild", "repair"}:
            return NewSamples(tuple(samples), reset=True)
        known = _parent(table, known)
    return NewSamples(tuple(samples), reset=False)


def _parent(table: TopicTable, ledger: Ledger) -> Ledger | None:
    """The previous ledger; None if there is none, or if a vacuum has removed it since the watch last looked."""
    if ledger.parent is None:
        return None
    key = table.keys.ledger(ledger.parent.n, ledger.parent.attempt)
    try:
        return Ledger.load(table.store, key)
    except NotFound:
        return None


def _sample(table: TopicTable, ledger: Ledger) -> ParseSample | None:
    """The sample of one run; None if a vacuum has folded the run's evidence."""
    try:
        rows = read_evidence(table, ledger.attempt).select(["class", "rows"]).to_pylist()
    except NotFound:
        return None
    parsed = sum(row["rows"] for row in rows if row["class"] in PARSED)
    refused = sum(row["rows"] for row in rows if row["class"] == "quarantined")
    return ParseSample(at=ledger.committed_at, parsed=parsed, refused=refused)
