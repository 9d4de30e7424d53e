"""Puts together the entries of each watermark index.

The default bucket's index has all partitions; every other bucket's has the partitions with segments in that bucket. The
partitions with gaps are listed once more in a separate object in the default bucket, for agents that could fill them.
The index that the agent wrote before a restart is read once at the start: where it is still valid, it saves requests to
the store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from tidemark.formats.keys import ControlKeys, TopicPartition
from tidemark.formats.raw.last_batch import last_batch_of
from tidemark.formats.raw.watermark_index import DamagedHead, DiskFault, IndexEntry, OtherHistory
from tidemark.store import Store
from uploader_agent.clock import NEVER
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.partitions.observation import Observation
from uploader_agent.runtime import MACHINE, Runtime
from uploader_agent.settings import IndexSettings
from uploader_agent.stored.destinations import Destinations
from uploader_agent.watermark_index.writer import IndexRow, IndexWriter


class _Known(NamedTuple):
    """An entry, and the state from which it was made."""

    partition: LedPartition
    changes: int
    observation: Observation
    statement: IndexRow

    def holds(self, partition: LedPartition, observation: Observation) -> bool:
        """True if the entry is right at the time of ``observation`` as well, which is of ``partition``."""
        says, same = self.statement, self.partition is partition and self.changes == partition.changes
        return (
            same
            and self.observation.says_the_same(observation)
            and not says["oldest_unstored"]
            and (says["freshness"], says["retention_left"]) == (partition.freshness, partition.retention_left)
            and (says["other_history"] is None) == (partition.parting is None)
        )


class IndexPublisher:
    """Reads and writes all indexes of one broker; one thread at a time."""

    def __init__(
        self,
        destinations: Destinations,
        broker: int,
        endpoints: str,
        settings: IndexSettings,
        damaged: Callable[[], Sequence[DamagedHead]],
        unread: Callable[[], Sequence[DiskFault]] = tuple,
        runtime: Runtime = MACHINE,
    ) -> None:
        """``endpoints`` is a digest of the configuration of ``destinations``.

        People must learn of what ``damaged`` returns, the damage of this broker's heads, and ``unread``, what cannot be
        read of its disks.
        """
        self._destinations = destinations
        self._broker = broker
        self._endpoints = endpoints
        self._settings = settings
        self._damaged = damaged
        self._unread = unread
        self._runtime = runtime
        self._default_url = destinations.control_store.url
        self._writers = {self._default_url: self._writer(self._default_url, destinations.control)}
        self._of_gaps = self._writer(self._default_url, destinations.control, of_gaps=True)
        self._former: Mapping[TopicPartition, IndexEntry] = {}
        self._known: dict[TopicPartition, _Known] = {}
        self.has_written = False
        """True once an index was written, that of gaps apart."""

    @property
    def control_store(self) -> Store:
        """The default bucket, with the clock that all stated times use."""
        return self._destinations.control_store

    def read(self) -> Mapping[TopicPartition, IndexEntry]:
        """The last entries that this broker's agent wrote, for all partitions. Raises StoreError and FormatError."""
        self._former = self._writers[self._default_url].read()
        return self._former

    def reconfigure(self, settings: IndexSettings) -> None:
        """Write at these intervals from now on."""
        self._settings = settings
        for writer in (*self._writers.values(), self._of_gaps):
            writer.reconfigure(*self._intervals())

    def offer(
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
        changed = any(writer.tells_other_faults() for writer in self._writers.values())
        if not now and not (
            idle or (any(writer.due() for writer in writers) and (changed or self._have_changed(partitions)))
        ):
            return False
        by_store: dict[str, dict[TopicPartition, tuple[IndexRow, datetime]]] = {url: {} for url in self._writers}
        known: dict[TopicPartition, _Known] = {}
        for partition in partitions:
            tp = partition.tp
            observation, former = partition.observation, self._former.get(tp)
            entry = self._made(partition, observation)
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
            url, control = self._destinations.bucket(tp)
            by_store[self._default_url][tp] = row
            if url != self._default_url:
                by_store.setdefault(url, {})[tp] = row
                if url not in self._writers:
                    self._writers[url] = self._writer(url, control)
        self._known = known
        if len(known) == len(partitions):
            self._former = {}
        written = [self._writers[url].offer(statements, now=now) for url, statements in by_store.items()]
        self.has_written = self.has_written or any(written)
        everything = by_store[self._default_url]
        written.append(self._of_gaps.offer({tp: row for tp, row in everything.items() if row[0]["gaps"]}, now=now))
        return any(written)

    def _writer(self, url: str, control: ControlKeys, *, of_gaps: bool = False) -> IndexWriter:
        store, intervals = self._destinations.store(url), self._intervals()
        broker, endpoints, told = self._broker, self._endpoints, (self._damaged, self._unread)
        return IndexWriter(store, control, broker, endpoints, *intervals, *told, of_gaps=of_gaps, runtime=self._runtime)

    def _intervals(self) -> tuple[float, float]:
        return self._settings.min_interval.total_seconds(), self._settings.idle_interval.total_seconds()

    def _have_changed(self, partitions: Collection[LedPartition]) -> bool:
        """True if an entry has changed since the last offer, or still waits to be written."""
        writers = *self._writers.values(), self._of_gaps
        if len(partitions) != len(self._known) or not all(writer.is_current for writer in writers):
            return True
        known = ((self._known.get(partition.tp), partition, partition.observation) for partition in partitions)
        return any(
            entry is None or seen is None or not entry.holds(partition, seen) for entry, partition, seen in known
        )

    def _made(self, partition: LedPartition, observation: Observation | None) -> _Known | None:
        """The entry of ``partition`` by its ``observation``; None while its state in the store is unknown, too."""
        changes, remote = partition.changes, partition.remote
        incarnation = remote.incarnation
        if incarnation is None or observation is None:
            return None
        known, active = self._known.get(partition.tp), observation.active
        if known is not None and known.holds(partition, observation):
            return known
        high_watermark = observation.offsets.high_watermark
        packed, packs_known = partition.packed.end, partition.packs_known
        age = partition.unstored_age(self._runtime.monotonic()) if packs_known else None
        entry = IndexEntry(
            topic=partition.tp.topic,
            partition=partition.tp.partition,
            topic_id=partition.led.topic_id,
            incarnation=incarnation,
            restored=remote.restored,
            leader_epoch=partition.led.leader_epoch,
            next_offset=remote.next_offset,
            uploaded_end=remote.end,
            bytes_per_offset=partition.bytes_per_offset,
            log_end_offset=high_watermark if observation.log_end is None else observation.log_end,
            high_watermark=high_watermark,
            active_base_offset=active.base_offset if active else None,
            active_first_timestamp=active.first_timestamp if active else None,
            active_max_timestamp=active.max_timestamp if active else None,
            tail_end=packed if packed > remote.next_offset else None,
            packs_known=packs_known,
            freshness=partition.freshness,
            oldest_unstored=age if age is None else round(age, 3),
            retention_left=partition.retention_left,
            observed_at=NEVER,
            gaps=remote.gaps,
            remote_tier=remote.remote_tier,
            last_batch=last_batch_of(partition.last_batch),
            other_history=other_history_of(partition),
        )
        statement = IndexRow.of(entry)
        if known is not None and known.statement.values == statement.values:
            statement = known.statement
        return _Known(partition, changes, observation, statement)


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
    if former is None or former.restored != statement.said["restored"]:
        return statement, NEVER
    least = {"high_watermark": former.high_watermark, "log_end_offset": former.log_end_offset}
    fields = statement.said
    return IndexRow.saying({**fields, **{name: max(fields[name], least[name]) for name in least}}), former.observed_at
