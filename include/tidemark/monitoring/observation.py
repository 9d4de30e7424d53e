"""One observation of a cluster and its topics: reads what has changed in the store, and derives conditions from it.

The brokers' indexes, and their heads if a topic has a ``freshness``, are read each time: agents write them each minute.
Requests for erasure are read once an hour.
A topic's ledger comes from the copy that the driver leaves after its commit: all copies are listed at once, and a copy
is read only if it or the topic's watermarks have changed, or if something was waiting. The copy is a hint: the table's
own log is read before anything is reported from the copy, and from time to time in any case. The records that runs
parsed and refused come from the evidence that each run writes before its commit. An object that cannot be read is
reported, and hides nothing else.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from tidemark.concurrency import in_parallel
from tidemark.erasure.reports import progress_of
from tidemark.erasure.requests import ErasureFolder, all_requests
from tidemark.errors import FormatError, NeverSeen, NotFound, StoreError, TidemarkError
from tidemark.formats.raw.erasure import Approved
from tidemark.formats.raw.watermark_index import LeaderEntry
from tidemark.formats.table.audit_report import AuditVerdict
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.statuses import MirrorStatus, ScanStatus, StateStatus, UnreadStatus
from tidemark.inspection.agent_reports import check_seen, indexes_of, leaders_of
from tidemark.monitoring import deployment_conditions, topic_conditions
from tidemark.monitoring.health import TopicHealth, WaitingSince, marked, topic_health
from tidemark.monitoring.incidents import Condition, IncidentKind, Source, Unknown, about, found_by
from tidemark.monitoring.observer_state import (
    ErasureSighting,
    OpenErasure,
    OpenTopic,
    ParseSample,
    Sightings,
    TopicSighting,
    latest,
)
from tidemark.monitoring.overview import TopicSummary
from tidemark.parsers.settings import followed_by
from tidemark.schemas.merge import read_state
from tidemark.store import open_store
from tidemark.table.delta_table import TopicTable, committed_ledger, configured_table
from tidemark.table.evidence import PARSED, read_evidence
from tidemark.topics import Deployment, TopicSettings

_READERS: Final = 16

_ERASURES_EVERY: Final = timedelta(hours=1)
"""The time after which requests for erasure are read again: they have days."""

_REREAD_AFTER: Final = timedelta(hours=1)

_BEGINS: Final = timedelta(minutes=5)
"""What a new topic has for its first rows: the agents and Airflow learn of it one after the other."""

_OF_BROKERS: Final[tuple[IncidentKind, ...]] = ("agent_gone", "head", "disk")
"""The kinds with an incident of each broker, which that broker's index alone shows."""

_OF_PROMISE: Final[frozenset[IncidentKind]] = frozenset({"late", "unstored", "unmeasured"})

_MOST_RUNS: Final = 50
"""The most ledgers that an observation looks back; there is one observation every minute."""


class ClusterLook(NamedTuple):
    """Conditions that an observation found, incidents that it could not judge, and its state for the next."""

    conditions: tuple[Condition, ...]
    unknown: tuple[Unknown, ...]
    sightings: Sightings


def look(deployment: Deployment, cluster: str, before: Sightings, now: datetime) -> ClusterLook:
    """Observe ``cluster`` at ``now``.

    Raises:
        StoreError: the lake's store cannot be listed, so nothing is known at all.
    """
    return _ClusterObservation(deployment, cluster, before, now).look()


def lasting_ones(
    conditions: Iterable[Condition], first: Mapping[str, datetime], now: datetime
) -> tuple[tuple[Condition, ...], dict[str, datetime]]:
    """The conditions that have lasted for their patience, and the first time of each condition that needs some."""
    seen: dict[str, datetime] = {}
    lasting: list[Condition] = []
    for condition in conditions:
        if not condition.patience:
            lasting.append(condition)
            continue
        seen[condition.key] = first.get(condition.key, now)
        if now - seen[condition.key] >= condition.patience:
            lasting.append(condition.model_copy(update={"since": min(condition.since, seen[condition.key])}))
    return tuple(lasting), seen


class _ClusterObservation:
    """An observation of a cluster: what it reads for all topics, and what it finds.

    ``led`` are the leaders' entries by topic and partition, None if the watermark indexes could not be read. ``gone``
    are brokers without an agent. ``scan`` is the triggerer's last report of its scan. ``waits`` is how many triggers
    wait in Airflow. ``etags`` are those of the objects that are kept for each topic, by key.
    """

    def __init__(self, deployment: Deployment, cluster: str, before: Sightings, now: datetime) -> None:
        self.deployment, self.cluster, self.before, self.now = deployment, cluster, before, now
        self.store, self.keys = open_store(deployment.lake_store, deployment.store), deployment.deployment_keys(cluster)
        self.topics = [topic for topic in deployment.topics if topic.cluster == cluster]
        self.conditions: list[Condition] = []
        self.unknown: list[Unknown] = []
        self.led: dict[str, dict[int, LeaderEntry]] | None = None
        self.gone: frozenset[int] = frozenset()
        self.scan: ScanStatus | None = None
        self.waits = deployment_conditions.waiting_triggers(deployment)
        self.etags: Mapping[str, str] = {}

    def look(self) -> ClusterLook:
        self.scan = self._scan_status()
        self._brokers()
        folders = [self.keys.committed, self.keys.verdicts, self.keys.all_unread]
        folders += [self.keys.state_statuses] if any(topic.state for topic in self.topics) else []
        self.etags = {info.key: info.etag for folder in folders for info in self.store.list(folder)}
        looks = in_parallel(lambda topic: _TopicObservation(self, topic).look(), self.topics, _READERS)
        for seen in looks:
            self.conditions += seen.conditions
            self.unknown += seen.unknown
        if self.scan and self.scan.failing_since:
            failing = deployment_conditions.scan_failing(self.cluster, self.scan.failing_since, self.scan.error)
            self.conditions.append(failing)
        self._mirrors()
        erasures = self._erasures()
        lasting, first = lasting_ones(self.conditions, self.before.first, self.now)
        update = {
            "at": self.now,
            "topics": {seen.topic.topic: seen.sighting for seen in looks},
            "first": first,
            "erasures": erasures,
        }
        return ClusterLook(lasting, tuple(self.unknown), self.before.model_copy(update=update))

    def _scan_status(self) -> ScanStatus | None:
        """The triggerer's last report; None if it cannot be read, since the watch reads the indexes itself."""
        try:
            return ScanStatus.load(self.store, self.keys.scan)
        except (StoreError, FormatError):
            return None

    def _brokers(self) -> None:
        """Read the leader of each partition, and add the conditions of agents and their indexes."""
        cluster, now = self.cluster, self.now
        try:
            cache = indexes_of(self.deployment, cluster)
            led = leaders_of(self.deployment, cluster, cache.kept.values())
        except TidemarkError as error:
            self.conditions.append(deployment_conditions.scan_failing(cluster, now, str(error)))
            self.unknown.append(Unknown(found_by("leaders", "agents")))
            return
        self.led = {}
        for tp, leader in led.items():
            self.led.setdefault(tp.topic, {})[tp.partition] = leader
        indexes = cache.kept.values()
        self.gone = frozenset(
            index.broker for index in indexes if now - index.written_at > deployment_conditions.AGENT_GONE
        )
        removed = self.gone - {leader.broker for leader in led.values()}
        # An agent that could read nothing of its disks told of no partition: its broker was not removed.
        present = [index for index in indexes if index.broker not in removed or index.disk_faults]
        self.conditions += deployment_conditions.agents_gone(cluster, indexes, led.values(), now)
        self.conditions += deployment_conditions.clocks_off(cluster, present, now)
        self.conditions += deployment_conditions.heads_damaged(cluster, present, now)
        self.conditions += deployment_conditions.disks_failing(cluster, present)
        self.conditions += deployment_conditions.other_histories(cluster, present)
        for key, failure in cache.failures.items():
            self.conditions.append(deployment_conditions.unreadable_index(cluster, str(failure), now, key))
            broker = key.rpartition("/")[2].removesuffix(".json")
            subjects = (about(kind, cluster, None, broker) for kind in _OF_BROKERS)
            self.unknown += (Unknown(found_by("agents"), key=subject["key"]) for subject in subjects)
        if cache.failures:  # nothing is known of partitions that no other index has
            self.unknown.append(Unknown(frozenset({"history"})))
            of_topics = ((topic.topic, frozenset(self.led.get(topic.topic, ()))) for topic in self.topics)
            self.unknown += (Unknown(found_by("leaders"), topic, known=known) for topic, known in of_topics)

    def _mirrors(self) -> None:
        """Add the conditions of the catalogs; none if the cluster has no catalogs, or before the job's first run."""
        if not any(map(self.deployment.catalogs_of, self.topics)):
            return
        try:
            status = MirrorStatus.load_or_none(self.store, self.keys.mirrors)
        except (StoreError, FormatError):
            self.unknown.append(Unknown(found_by("mirrors")))
        else:
            self.conditions += deployment_conditions.mirrors_failing(status, self.now) if status else ()

    def _erasures(self) -> ErasureSighting:
        """Add the conditions of the requests for erasure, which are read from time to time, and return their state."""
        sighting = self.before.erasures
        if sighting.read_at is None or self.now - sighting.read_at >= _ERASURES_EVERY:
            try:
                sighting = self._open_erasures()
            except TidemarkError as error:
                unread = deployment_conditions.unreadable_requests(self.cluster, str(error), self.now)
                self.conditions.append(unread)
                self.unknown.append(Unknown(found_by("erasures")))
        self.conditions += deployment_conditions.erasures_due(self.cluster, sighting.open, self.now)
        return sighting

    def _open_erasures(self) -> ErasureSighting:
        closed = self.before.erasures.closed
        folder = ErasureFolder.of(self.deployment, self.cluster)
        known = progress_of(self.deployment, list(all_requests(folder.cluster, but={*closed})))
        return ErasureSighting(
            open=tuple(
                OpenErasure(
                    id=each.request.id,
                    approved=isinstance(each.asked, Approved),
                    near_from=each.near_from,
                    due=each.due_on,
                    topics=tuple(OpenTopic(topic.searched.topic, topic.state, topic.detail) for topic in each.topics),
                )
                for each in known
                if each.closed_at is None
            ),
            closed=(*closed, *(each.request.id for each in known if each.closed_at is not None)),
            read_at=self.now,
        )


class _TopicObservation:
    """An observation of a topic: what it finds, and the state for the next observation.

    ``led`` are the leaders' entries by partition, None if the watermark indexes could not be read. ``committed`` is the
    ETag of the ledger's copy, empty if there is none.
    """

    def __init__(self, around: _ClusterObservation, topic: TopicSettings) -> None:
        self.around, self.topic, self.now = around, topic, around.now
        self.table, self.keys = configured_table(around.deployment, topic), around.keys
        self.led = None if around.led is None else around.led.get(topic.topic, {})
        self.committed = self._etag(self.keys.committed_ledger(topic.topic))
        self.sighting = around.before.topics.get(topic.topic, TopicSighting(first_at=self.now))
        self.conditions: list[Condition] = []
        self.unknown: list[Unknown] = []

    def _etag(self, key: str) -> str:
        return self.around.etags.get(key, "")

    def _note(self, **news: Any) -> None:
        self.sighting = self.sighting.model_copy(update=news)

    def look(self) -> _TopicObservation:
        """Take all steps. A read failure is reported, and never raised: it must not hide other topics.

        Libraries that read logs and evidence have their own errors for damage: DeltaError, and Arrow's kinds of
        ValueError.
        """
        from deltalake.exceptions import DeltaError

        steps: tuple[tuple[Callable[[], Iterable[Condition]], Source], ...] = (
            (self._seen, "sightings"),
            (self._unread, "unread"),
            (self._ledger, "ledger"),
            (self._verdict, "verdict"),
            (self._schema, "schema"),
            (self._state, "state"),
        )
        for step, source in steps:
            try:
                self.conditions += [*step()]
            except (TidemarkError, DeltaError, OSError, ValueError) as error:
                reason = f"{type(error).__name__}: {error}"
                unreadable = deployment_conditions.unreadable(self.topic.cluster, self.topic.topic, reason, self.now)
                self.conditions.append(unreadable)
                self.unknown.append(Unknown(found_by(source), self.topic.topic))
        if self.led is not None:
            self._leaders(self.led)
        first_at = self.sighting.first_at
        if not self.committed and first_at is not None and self.now - first_at < _BEGINS:
            self.conditions = [condition for condition in self.conditions if condition.kind not in _OF_PROMISE]
            self.unknown.append(Unknown(_OF_PROMISE, self.topic.topic))
        return self

    def _leaders(self, led: Mapping[int, LeaderEntry]) -> None:
        """Add the conditions that the leaders' entries alone show."""
        topic, now, gone = self.topic, self.now, self.around.gone
        rotated = _rotated(led, self.sighting.rotated, now)
        self.conditions += topic_conditions.stuck(topic, led, rotated, gone, now)
        self.conditions += topic_conditions.retention_near(topic, led)
        self.conditions += topic_conditions.unstored(topic, led, now)
        self.conditions += topic_conditions.unmeasured(topic, led, gone, now)
        if any(leader.broker in gone for leader in led.values()):
            self.unknown.append(Unknown(frozenset({"stuck"}), topic.topic))
        judged = frozenset(partition for partition, leader in led.items() if leader.entry.packs_known)
        if len(judged) < len(led):
            self.unknown.append(Unknown(frozenset({"stuck"}), topic.topic, known=judged))
        self._note(rotated=rotated)

    def _seen(self) -> Iterator[Condition]:
        """The condition that no agent ever reported the topic; checked while no index has it and nothing has landed."""
        if self.led is None or self.led or self.committed:
            return
        try:
            check_seen(self.around.deployment, self.topic)
        except FormatError:
            return  # an index that does not parse has its own incident
        except NeverSeen as error:
            yield deployment_conditions.unseen(self.topic.cluster, self.topic.topic, str(error), self.now)

    def _unread(self) -> Iterable[Condition]:
        """Conditions of the live end that the topic's runs could not read; a status without one is read once."""
        key = self.keys.unread(self.topic.topic)
        etag = self._etag(key)
        if etag in {"", self.sighting.all_read}:
            return ()
        status = UnreadStatus.load(self.table.store, key)
        all_read = "" if status.messages else etag
        self._note(all_read=all_read, failed_at=status.failed_at, failure=status.failure)
        return topic_conditions.unread(status)

    def _verdict(self) -> Iterable[Condition]:
        """Conditions of the last audits; a verdict without a failure is read once."""
        key = self.keys.verdict(self.topic.topic)
        etag = self._etag(key)
        if etag in {"", self.sighting.passed}:
            return ()
        verdict = AuditVerdict.load(self.table.store, key)
        self._note(passed="" if verdict.failed else etag)
        return topic_conditions.audits(verdict)

    def _state(self) -> Iterable[Condition]:
        """Conditions of the topic's state table; its status is read when it has changed."""
        key = self.keys.state_status(self.topic.topic)
        etag = self._etag(key)
        if self.topic.state is None or not etag:
            self._note(state=None, state_etag="")
            return ()
        status = self.sighting.state
        if status is None or etag != self.sighting.state_etag:
            status = StateStatus.load(self.table.store, key)
        self._note(state=status, state_etag=etag)
        return topic_conditions.state_table(self.topic, status, self.now)

    def _schema(self) -> Iterable[Condition]:
        """Conditions of the schema that the topic follows; none if it follows none."""
        if followed_by(self.topic.parser) is None:
            return ()
        state = read_state(self.table.store, self.table.keys)
        return () if state is None else topic_conditions.followed_schema(self.topic, state.value)

    def _ledger(self) -> list[Condition]:
        """Conditions of the ledger, compared with the watermarks and by itself."""
        before, now = self.sighting, self.now
        conditions: list[Condition] = []
        if self.led is not None:
            old = before.read_at is None or now - before.read_at > _REREAD_AFTER + _spread(self.topic.topic)
            digest = self._digest(self.led)
            if old or digest != before.quiet:
                ledger, health, exact = self._read(self.led, exact=old or not self.committed)
                uploaded = _uploaded(self.led, ledger, before.uploaded, now)
                conditions = [*topic_conditions.gaps(health), *topic_conditions.remote_tier(health)]
                scan, waits = self.around.scan, self.around.waits
                conditions += topic_conditions.late(self.topic, health, uploaded, now, before, scan, waits)
                quiet = not health.marks and not any(partition.gaps for partition in health.partitions)
                new, reset = samples_of(self.table, ledger, before.n)
                self._note(
                    marks=health.marks,
                    uploaded=uploaded,
                    samples=(*(() if reset else before.samples), *new),
                    n=ledger.n,
                    quiet=digest if quiet else "",
                    read_at=now if exact else before.read_at,
                    summary=TopicSummary.of(health),
                )
            elif before.summary is not None:
                ends = (leader.entry.log_end_offset for leader in self.led.values())
                self._note(summary=before.summary.with_log_ends(ends))
        samples = latest(self.sighting.samples, now - self.topic.quarantine.over)
        self._note(samples=samples)
        return [*conditions, *topic_conditions.quarantine(self.topic, samples, now)]

    def _read(self, led: Mapping[int, LeaderEntry], *, exact: bool) -> tuple[Ledger, TopicHealth, bool]:
        """The ledger with the topic's health, and true if it is the table's own: nothing is reported from a copy."""
        table, now = self.table, self.now
        copy = self.keys.committed_ledger(self.topic.topic)
        ledger = committed_ledger(table) if exact else Ledger.load(table.store, copy)
        health = topic_health(self.topic, ledger, led.values(), now, marks=self.sighting.marks)
        if not exact and (health.is_late(self.topic, now) or any(partition.gaps for partition in ledger.partitions)):
            return self._read(led, exact=True)
        return ledger, health, exact

    def _digest(self, led: Mapping[int, LeaderEntry]) -> str:
        """The identity of the ledger and the watermarks, which shows whether they have changed."""
        lines = [
            f"{entry.incarnation} {entry.partition} {entry.stored_end} {entry.active_base_offset} "
            f"{[gap.start for gap in entry.gaps]}"
            for entry in (leader.entry for leader in led.values())
        ]
        return hashlib.sha256("\n".join([self.committed, *sorted(lines)]).encode()).hexdigest()[:16]


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


def _spread(topic: str) -> timedelta:
    """Up to another hour, so that not all topics are read again in the same minute."""
    return timedelta(minutes=zlib.crc32(topic.encode()) % 60)


def samples_of(table: TopicTable, ledger: Ledger, seen: int | None) -> tuple[tuple[ParseSample, ...], bool]:
    """The samples of the runs after ledger ``seen``, the newest first; only the last run's if ``seen`` is None.

    The flag is true if they begin with a replay or a rebuild: such a run tries refused records again, so records
    refused before no longer count.
    """
    samples: list[ParseSample] = []
    known: Ledger | None = ledger
    oldest = ledger.n - 1 if seen is None else max(seen, ledger.n - _MOST_RUNS)
    while known is not None and known.n > max(0, oldest):
        if known.kind in {"ingest", "replay", "rebuild", "repair"} and (sample := _sample(table, known)):
            samples.append(sample)
        if known.kind in {"replay", "rebuild", "repair"}:
            return tuple(samples), True
        known = _parent(table, known)
    return tuple(samples), False


def _parent(table: TopicTable, ledger: Ledger) -> Ledger | None:
    """The previous ledger; None if there is none, or if a vacuum has removed it since the watch last looked."""
    if ledger.parent is None:
        return None
    return Ledger.load_or_none(table.store, table.keys.ledger(ledger.parent.n, ledger.parent.attempt))


def _sample(table: TopicTable, ledger: Ledger) -> ParseSample | None:
    """The sample of one run; None if a vacuum has folded the run's evidence."""
    try:
        rows = read_evidence(table, ledger.attempt).select(["class", "rows"]).to_pylist()
    except NotFound:
        return None
    parsed = sum(row["rows"] for row in rows if row["class"] in PARSED)
    refused = sum(row["rows"] for row in rows if row["class"] == "quarantined")
    return ParseSample(at=ledger.committed_at, parsed=parsed, refused=refused)
