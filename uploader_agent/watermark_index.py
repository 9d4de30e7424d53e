"""Writes this broker's watermark indexes: objects with the state of all partitions that the broker leads.

The default bucket's index has all partitions; every other bucket's has the partitions with segments in that bucket. The
partitions with gaps are listed once more in a separate object in the default bucket, so that agents that look for gaps
to fill read nothing while there are none. The index that the agent wrote before a restart is read once at the start:
where it is still valid, it saves requests to the store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import structlog
from crc32c import crc32c
from pydantic import AwareDatetime, TypeAdapter

from tidemark.errors import FormatError, NotFound, StoreError
from tidemark.formats.base import canonical_list
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.manifest import last_batch_of
from tidemark.formats.raw.watermark_index import (
    PACKS_PER_FRESHNESS,
    DamagedHead,
    DiskFault,
    IndexEntry,
    OtherHistory,
    WatermarkIndex,
    as_stored,
)
from tidemark.storage import ClusterStore, Storage
from tidemark.store import Store
from tidemark.store.clock import MOST, described
from uploader_agent import __version__
from uploader_agent.observability.health import Failing
from uploader_agent.observability.log_config import ErrorDeduplicator
from uploader_agent.observability.metrics import Metrics
from uploader_agent.packs.tail import Tail
from uploader_agent.partitions.jobs import Observation
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.runtime import MACHINE, NEVER, UNTIL_WOKEN, Runtime, Worker, clock_skew, measure_skew
from uploader_agent.stored.stored_log import StoredLog
from uploader_agent.tuning import AgentTuning

logger = structlog.get_logger(__name__)

_CLOCK_EVERY = 600.0
"""Seconds between two readings of the store's clock."""

_FORMER_READ_AGAIN = 1.0
"""Seconds after which the former index is read again, if the store has failed."""

_TIME: TypeAdapter[datetime] = TypeAdapter(AwareDatetime)

_ENTRY_FIELDS: Final = tuple(field.serialization_alias or name for name, field in IndexEntry.model_fields.items())

_FIELD_PLACES: Final = {name: place for place, name in enumerate(_ENTRY_FIELDS)}

_DEFERRABLE_FIELDS = {
    "bytes_per_offset",
    "log_end_offset",
    "high_watermark",
    "active_first_timestamp",
    "active_max_timestamp",
    "tail_end",
    "last_batch",
    "oldest_unstored",
    "retention_left",
    "observed_at",
}
"""Fields of an entry with changes that may wait; the heads state the packs at once."""


@dataclass(frozen=True, eq=False, slots=True)
class IndexRow:
    """An entry in the index without the time at which it was observed. A changed entry is another object.

    Its ``values`` are in the order of :data:`_ENTRY_FIELDS`: thousands of dictionaries would take room.
    """

    values: tuple[Any, ...]

    def __getitem__(self, name: str) -> Any:
        """The value of a field."""
        return self.values[_FIELD_PLACES[name]]

    @property
    def fields(self) -> Mapping[str, Any]:
        """The values by field."""
        return dict(zip(_ENTRY_FIELDS, self.values, strict=True))

    @property
    def urgent_fields(self) -> Mapping[str, Any]:
        """The values of which a watcher should learn soon, by field."""
        return {name: value for name, value in self.fields.items() if name not in _DEFERRABLE_FIELDS}

    @classmethod
    def of(cls, entry: IndexEntry) -> IndexRow:
        """The row of ``entry``, which is not kept."""
        return cls.of_fields(entry.model_dump(mode="json", by_alias=True))

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> IndexRow:
        """The row with the values of ``fields``."""
        return cls(tuple(fields[name] for name in _ENTRY_FIELDS))


Statements = Mapping[TopicPartition, tuple[IndexRow, datetime]]
"""The row of each partition, and the time at which it was observed."""


class IndexThread:
    """Writes the partitions that it is given, every :attr:`IndexPublisher.interval` seconds if they have changed.

    It has a thread of its own: a store that hangs must not keep the loop from the disks.
    """

    def __init__(
        self,
        indexes: IndexPublisher,
        metrics: Metrics,
        repeats: ErrorDeduplicator,
        progressed: Callable[[], None],
        runtime: Runtime = MACHINE,
    ) -> None:
        """Prepare. It calls ``progressed`` once :meth:`take` has the former index, and after the first write."""
        self._former: Mapping[TopicPartition, IndexEntry] | None = None
        self._former_is_read = False
        self._indexes = indexes
        self._metrics = metrics
        self._repeats = repeats
        self._progressed = progressed
        self._failing: tuple[float, str] | None = None  # since when, and the last error
        self._led: tuple[Collection[LedPartition], datetime | None] | None = None
        self._clock_measured_at = -_CLOCK_EVERY
        self._runtime = runtime
        self.worker = Worker("index", self._turn, runtime)

    def take(self) -> Mapping[TopicPartition, IndexEntry] | None:
        """The index that this broker's agent wrote before its start, once; None until it was read."""
        former, self._former = self._former, None
        return former

    @property
    def has_written(self) -> bool:
        """True once the store has taken an index: it answers, and lets this agent read and write."""
        return self._indexes.has_written

    def failing(self) -> Failing | None:
        """The failure of the store, while it fails. For any thread."""
        if self._failing is None:
            return None
        since, error = self._failing
        seconds = self._runtime.monotonic() - since
        words = f"the watermark index was neither read nor written for {seconds:.0f} s: {error}"
        return Failing(seconds, words, error)

    def set_partitions(self, partitions: Collection[LedPartition], confirmed_at: datetime | None) -> None:
        """Set what the next index is about; ``partitions`` must not change afterwards."""
        first, self._led = self._led is None, (partitions, confirmed_at)
        if first:
            self.worker.wake()

    def stop(self, timeout: float) -> None:
        """End the thread, and write the last given state; within ``timeout`` seconds, unless a request hangs longer."""
        self.worker.stop()
        self.worker.join(timeout)
        if not self.worker.is_alive():
            self._write(now=True)

    def _turn(self) -> float:
        """Read the former index, unless the loop has gone on without it; then write what the loop has given."""
        self.measure_clock()
        if not self._former_is_read:
            former = self._read()
            if former is None and self._led is None:
                return _FORMER_READ_AGAIN
            if former is not None:
                self._failing = None
            self._former, self._former_is_read = former or {}, True
            if not self.worker.stopped:
                self._progressed()
        if self._led is None:
            return UNTIL_WOKEN
        if not self.worker.stopped:
            self._write(now=False)
        return self._indexes.interval

    def measure_clock(self) -> None:
        """Compare this host's clock with the store's, which all stated times use; at most every ten minutes."""
        if self._runtime.monotonic() - self._clock_measured_at < _CLOCK_EVERY:
            return
        self._clock_measured_at = self._runtime.monotonic()
        try:
            skew = measure_skew(self._indexes.control_store, self._runtime.host_now)
        except StoreError as error:
            logger.debug("clock_not_compared", error=str(error))
            return
        except Exception:
            logger.exception("clock_not_compared")  # the thread must go on to write the indexes
            return
        self._metrics.clock_skew.set(skew.total_seconds())
        if abs(skew) > MOST:
            self._repeats.failed("clock", "clock_differs", error=f"this host's clock is {described(skew)}")
        else:
            self._repeats.cleared("clock", "clock_agrees_again")

    def _read(self) -> Mapping[TopicPartition, IndexEntry] | None:
        """The former index; None if the store fails. One that is damaged counts as empty: that costs more requests."""
        try:
            return self._indexes.read()
        except FormatError as error:
            logger.warning("former_index_ignored", error=str(error))
        except StoreError as error:
            self._failed(error)
            self._repeats.failed("index", "former_index_not_read", error=str(error))
            return None
        except Exception:
            logger.exception("former_index_not_read")  # without an answer the agent would upload nothing
        return {}

    def _write(self, *, now: bool) -> None:
        if self._led is None:
            return
        before = self.has_written
        try:
            if self._indexes.write_if_due(*self._led, now=now):
                self._metrics.index_written.set_to_current_time()
                self._repeats.cleared("index", "index_written_again")
                self._failing = None
        except StoreError as error:
            self._failed(error)
            self._repeats.failed("index", "index_not_written", error=str(error))
        except Exception:
            logger.exception("index_not_written")  # the thread must go on to the next try
        if self.has_written and not before:
            self._progressed()

    def _failed(self, error: StoreError) -> None:
        since = self._failing[0] if self._failing else self._runtime.monotonic()
        self._failing = since, str(error)


class IndexPublisher:
    """Reads and writes all indexes of one broker; one thread at a time."""

    def __init__(
        self,
        storage: Storage,
        broker: int,
        endpoints: str,
        tuning: AgentTuning,
        damaged: Callable[[], Sequence[DamagedHead]],
        unread: Callable[[], Sequence[DiskFault]] = tuple,
        freshness: Callable[[], Iterable[timedelta]] = tuple,
        runtime: Runtime = MACHINE,
    ) -> None:
        """``endpoints`` is a digest of the configuration of ``storage``, ``freshness`` returns that of all topics.

        People must learn of what ``damaged`` returns, the damage of this broker's heads, and ``unread``, what cannot be
        read of its disks.
        """
        self._storage = storage
        self._cluster = storage.cluster_store()
        self._broker = broker
        self._endpoints = endpoints
        self._tuning = tuning
        self._damaged = damaged
        self._unread = unread
        self._freshness = freshness
        self._runtime = runtime
        self._default_url = self._cluster.store.url
        self._writers = {self._default_url: self._writer(self._cluster)}
        self._of_gaps = self._writer(self._cluster, of_gaps=True)
        self._former: Mapping[TopicPartition, IndexEntry] = {}
        self._known: dict[TopicPartition, _KnownEntry] = {}
        self.has_written = False
        """True once an index was written, that of gaps apart."""

    @property
    def control_store(self) -> Store:
        """The default bucket, with the clock that all stated times use."""
        return self._cluster.store

    @property
    def interval(self) -> float:
        """Least seconds between two indexes with news: those of the tuning, or less if a topic's freshness is short.

        A pack is stored within a third of the freshness. Half of that until readers learn of it leaves them the other
        half of the freshness to land it.
        """
        shortest = min(self._freshness(), default=timedelta.max)
        least = min(self._tuning.index_interval, shortest / (2 * PACKS_PER_FRESHNESS))
        return least.total_seconds()

    def read(self) -> Mapping[TopicPartition, IndexEntry]:
        """The last entries that this broker's agent wrote, for all partitions. Raises StoreError and FormatError."""
        self._former = self._writers[self._default_url].read()
        return self._former

    def write_if_due(
        self, partitions: Collection[LedPartition], confirmed_at: datetime | None = None, *, now: bool = False
    ) -> bool:
        """Write changes that are due, or everything ``now``; return True if anything was written.

        ``confirmed_at`` is the time at which the broker last confirmed the leadership, and the disks were last looked
        at.

        Raises:
            StoreError: an index could not be written; the next call tries again.
        """
        writers = *self._writers.values(), self._of_gaps
        idle = any(writer.is_idle() for writer in writers)
        changed = any(writer.has_other_faults() for writer in self._writers.values())
        if not now and not (
            idle or (any(writer.is_due() for writer in writers) and (changed or self._have_changed(partitions)))
        ):
            return False
        by_store: dict[str, dict[TopicPartition, tuple[IndexRow, datetime]]] = {url: {} for url in self._writers}
        known: dict[TopicPartition, _KnownEntry] = {}
        for partition in partitions:
            tp = partition.tp
            observation, former = partition.observation, self._former.get(tp)
            entry = self._entry_of(partition, observation)
            if former is not None and former.topic_id != partition.led.topic_id:
                former = None
            if entry is not None and observation is not None:
                known[tp] = entry
                observed_at = partition.held_at(observation, confirmed_at)
                row = (entry.statement, observed_at) if observed_at else _as_observed_before(entry.statement, former)
            elif former is not None:
                row = IndexRow.of(former), former.observed_at
            else:
                continue
            endpoint = self._storage.endpoint(*tp)
            url = endpoint.store
            by_store[self._default_url][tp] = row
            if url != self._default_url:
                by_store.setdefault(url, {})[tp] = row
                if url not in self._writers:
                    self._writers[url] = self._writer(self._storage.cluster_store(endpoint))
        self._known = known
        if len(known) == len(partitions):
            self._former = {}
        written = [self._writers[url].write_if_due(statements, now=now) for url, statements in by_store.items()]
        self.has_written = self.has_written or any(written)
        with_gaps = {tp: row for tp, row in by_store[self._default_url].items() if row[0]["gaps"]}
        written.append(self._of_gaps.write_if_due(with_gaps, now=now))
        return any(written)

    def _writer(self, cluster: ClusterStore, *, of_gaps: bool = False) -> IndexWriter:
        return IndexWriter(
            cluster,
            self._broker,
            self._endpoints,
            lambda: self.interval,
            self._tuning.index_idle_interval.total_seconds(),
            self._damaged,
            self._unread,
            of_gaps=of_gaps,
            runtime=self._runtime,
        )

    def _have_changed(self, partitions: Collection[LedPartition]) -> bool:
        """True if an entry has changed since the last write, or still waits to be written."""
        writers = *self._writers.values(), self._of_gaps
        if len(partitions) != len(self._known) or not all(writer.is_current for writer in writers):
            return True
        known = ((self._known.get(one.tp), one, one.observation) for one in partitions)
        return any(entry is None or seen is None or not entry.still_applies(one, seen) for entry, one, seen in known)

    def _entry_of(self, partition: LedPartition, observation: Observation | None) -> _KnownEntry | None:
        """The entry of ``partition`` by its ``observation``; None while its state in the store is unknown, too."""
        stored, tail = partition.remote.log, partition.packed.tail  # before all else that the entry states of them
        if stored.incarnation is None or observation is None:
            return None
        known, active = self._known.get(partition.tp), observation.active
        if known is not None and known.still_applies(partition, observation):
            return known
        high_watermark = observation.offsets.high_watermark
        packs_known = partition.packs_known
        age = partition.unstored_age(self._runtime.monotonic()) if packs_known else None
        entry = IndexEntry(
            topic=partition.tp.topic,
            partition=partition.tp.partition,
            topic_id=partition.led.topic_id,
            incarnation=stored.incarnation,
            restored=stored.restored,
            leader_epoch=partition.led.leader_epoch,
            next_offset=stored.next_offset,
            uploaded_end=stored.end,
            bytes_per_offset=partition.bytes_per_offset,
            log_end_offset=high_watermark if observation.log_end is None else observation.log_end,
            high_watermark=high_watermark,
            active_base_offset=active.base_offset if active else None,
            active_first_timestamp=active.first_timestamp if active else None,
            active_max_timestamp=active.max_timestamp if active else None,
            tail_end=tail.end if tail.end > stored.next_offset else None,
            packs_known=packs_known,
            freshness=partition.freshness,
            oldest_unstored=age if age is None else round(age, 3),
            retention_left=partition.retention_left,
            observed_at=NEVER,
            gaps=stored.gaps,
            remote_tier=stored.remote_tier,
            last_batch=last_batch_of(partition.last_batch),
            other_history=other_history_of(partition),
        )
        statement = IndexRow.of(entry)
        if known is not None and known.statement.values == statement.values:
            statement = known.statement
        return _KnownEntry(partition, stored, tail, observation, statement)


class _KnownEntry(NamedTuple):
    """An entry, and the state from which it was made."""

    partition: LedPartition
    stored: StoredLog
    tail: Tail
    observation: Observation
    statement: IndexRow

    def still_applies(self, partition: LedPartition, observation: Observation) -> bool:
        """True if the entry is right at the time of ``observation`` as well, which is of ``partition``."""
        row = self.statement
        return (
            self.partition is partition
            and self.stored is partition.remote.log
            and self.tail is partition.packed.tail
            and self.observation.says_the_same(observation)
            and not row["oldest_unstored"]
            and (row["freshness"], row["retention_left"]) == (partition.freshness, partition.retention_left)
            and (row["other_history"] is None) == (partition.parting is None)
        )


def other_history_of(partition: LedPartition) -> OtherHistory | None:
    """Where the log of ``partition`` parts from the stored history, in the form of an index."""
    found = partition.found_parting
    if found is None:
        return None
    parting, found_at = found
    stored, local = last_batch_of(parting.stored), last_batch_of(parting.local)
    bounds = {"log_start": parting.log_start, "log_end": parting.log_end}
    return OtherHistory(
        at=parting.at, stored_end=parting.stored_end, **bounds, stored=stored, local=local, found_at=found_at
    )


def _as_observed_before(statement: IndexRow, former: IndexEntry | None) -> tuple[IndexRow, datetime]:
    """``statement`` of a log that this agent has not observed yet, at the time of the ``former`` observation.

    The checkpoint may be older than that, so the offsets are at least the ones observed then. That was another log if a
    restore has replaced it since.
    """
    if former is None or former.restored != statement["restored"]:
        return statement, NEVER
    least = {"high_watermark": former.high_watermark, "log_end_offset": former.log_end_offset}
    fields = {**statement.fields, **{name: max(statement[name], least[name]) for name in least}}
    return IndexRow.of_fields(fields), former.observed_at


class IndexWriter:
    """Writes one broker's index into one store. Both intervals are seconds.

    It is written when something has changed that matters to a watcher who waits for data (an uploaded offset, a gap, an
    epoch), but not more often than ``min_interval``. Other changes of the broker's log wait for ``idle_interval``,
    since a busy broker would otherwise write 8,640 objects a day. At that interval an index is written in any case, so
    that a watcher can tell a quiet agent from a dead one.

    With ``of_gaps`` it is the index of the partitions with gaps. That is not written while it is empty, except to
    replace one that is not.
    """

    def __init__(
        self,
        cluster: ClusterStore,
        broker: int,
        endpoints: str,
        min_interval: Callable[[], float],
        idle_interval: float,
        damaged: Callable[[], Sequence[DamagedHead]],
        unread: Callable[[], Sequence[DiskFault]] = tuple,
        *,
        of_gaps: bool = False,
        runtime: Runtime = MACHINE,
    ) -> None:
        self._store = cluster.store
        self._cluster = cluster.keys.cluster
        self._key = cluster.keys.broker_gaps(broker) if of_gaps else cluster.keys.index(broker)
        self._broker = broker
        self._endpoints = endpoints
        self._min_interval = min_interval
        self._idle_interval = idle_interval
        self._damaged = damaged
        self._unread = unread
        self._written_faults: tuple[DiskFault, ...] = ()
        self._runtime = runtime
        self._clock = runtime.monotonic
        self._of_gaps = of_gaps
        self._written: Mapping[TopicPartition, IndexRow] | None = None
        self._written_at = -float("inf")
        self.is_current = False
        """True if no change waits to be written."""

    def read(self) -> Mapping[TopicPartition, IndexEntry]:
        """The entries that this broker's agent wrote last; none if they were for other endpoints.

        Raises:
            StoreError: the store failed.
            FormatError: the object is not a watermark index.
        """
        try:
            modified = self._store.head(self._key).modified
            index = as_stored(WatermarkIndex.load(self._store, self._key), modified)
        except NotFound:
            return {}
        if index.endpoints != self._endpoints:
            return {}
        return {TopicPartition(entry.topic, entry.partition): entry for entry in index.entries}

    def is_due(self) -> bool:
        """True if a change may be written now."""
        return self._clock() - self._written_at >= self._min_interval()

    def has_other_faults(self) -> bool:
        """True if the disks have other faults than the index states."""
        return not self._of_gaps and tuple(self._unread()) != self._written_faults

    def is_idle(self) -> bool:
        """True if the last write is so long ago that the index is due even without a change."""
        return self._clock() - self._written_at >= self._idle_interval and not (self._of_gaps and not self._written)

    def write_if_due(self, statements: Statements, *, now: bool = False) -> bool:
        """Write ``statements`` if they differ urgently and are due, if the index is idle, or ``now``; True if written.

        Only this agent writes this object, so the last PUT is right even if the outcome of the one before is unknown.
        """
        current = {tp: statements[tp][0] for tp in sorted(statements)}
        if self._of_gaps and self._written is None:
            self._recall()
        urgent = _differ_urgently(current, self._written) or self.has_other_faults()
        self.is_current = not urgent
        if not (self.is_idle() or (urgent and (now or self.is_due())) or (now and not self._of_gaps)):
            return False
        head = WatermarkIndex(
            cluster=self._cluster,
            broker=self._broker,
            agent_version=__version__,
            written_at=self._runtime.utc_now(),
            clock_skew=clock_skew().total_seconds(),
            endpoints=self._endpoints,
            damaged_heads=tuple(self._damaged()),
            disk_faults=() if self._of_gaps else tuple(self._unread()),
        )
        times = {moment: _TIME.dump_python(moment, mode="json") for moment in {at for _, at in statements.values()}}
        entries = ({**row.fields, "observed_at": times[statements[tp][1]]} for tp, row in current.items())
        body = canonical_list(head.model_dump(mode="json", by_alias=True), "entries", entries)
        self._store.put(self._key, body, crc32c=crc32c(body))
        self._written, self._written_at, self.is_current = current, self._clock(), True
        self._written_faults = head.disk_faults
        return True

    def _recall(self) -> None:
        """Treat the index of a former agent as written; in doubt, write it again."""
        try:
            entries = WatermarkIndex.load(self._store, self._key).entries
        except NotFound:
            self._written = {}
            return
        except FormatError:
            return
        self._written = {TopicPartition(entry.topic, entry.partition): IndexRow.of(entry) for entry in entries}
        self._written_at = self._clock()


def _differ_urgently(
    current: Mapping[TopicPartition, IndexRow], written: Mapping[TopicPartition, IndexRow] | None
) -> bool:
    if written is None or current.keys() != written.keys():
        return True
    return any(row is not written[tp] and row.urgent_fields != written[tp].urgent_fields for tp, row in current.items())
