"""This broker's watermark index: one object with the state of all partitions that the broker leads.

It is written when something has changed that matters to a watcher who waits for data (an uploaded offset, a gap, an
epoch), but not more often than ``min_interval``. Other changes of the broker's log wait for ``idle_interval``, since a
busy broker would otherwise write 8,640 objects a day. At that interval an index is written in any case, so that a
watcher can tell a quiet agent from a dead one.

One index is written to each bucket that holds led partitions, and one to the default bucket. The partitions with gaps
are listed once more in a separate object, so that agents that look for gaps to fill read nothing while there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from crc32c import crc32c
from pydantic import AwareDatetime, TypeAdapter

from tidemark.errors import FormatError, NotFound
from tidemark.formats.base import canonical_list
from tidemark.formats.keys import ControlKeys, TopicPartition
from tidemark.formats.raw.watermark_index import DamagedHead, DiskFault, IndexEntry, WatermarkIndex, as_stored
from tidemark.store import Store
from uploader_agent import __version__, clock
from uploader_agent.runtime import MACHINE, Runtime

_TIME: TypeAdapter[datetime] = TypeAdapter(AwareDatetime)

_FIELDS: Final = tuple(field.serialization_alias or name for name, field in IndexEntry.model_fields.items())

_PLACES: Final = {name: place for place, name in enumerate(_FIELDS)}

_PATIENT = {
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

    Its ``values`` are in the order of :data:`_FIELDS`: thousands of dictionaries would take room.
    """

    values: tuple[Any, ...]

    def __getitem__(self, name: str) -> Any:
        """The value of a field."""
        return self.values[_PLACES[name]]

    @property
    def said(self) -> Mapping[str, Any]:
        """The values by field."""
        return dict(zip(_FIELDS, self.values, strict=True))

    @property
    def news(self) -> Mapping[str, Any]:
        """The values that a watcher should get soon, by field."""
        return {name: value for name, value in self.said.items() if name not in _PATIENT}

    @classmethod
    def of(cls, entry: IndexEntry) -> IndexRow:
        """The row of ``entry``, which is not kept."""
        return cls.saying(entry.model_dump(mode="json", by_alias=True))

    @classmethod
    def saying(cls, values: Mapping[str, Any]) -> IndexRow:
        """The row with ``values`` by field."""
        return cls(tuple(values[name] for name in _FIELDS))


Statements = Mapping[TopicPartition, tuple[IndexRow, datetime]]
"""The row of each partition, and the time at which it was observed."""


class IndexWriter:
    """Writes one broker's index into one store. ``min_interval`` and ``idle_interval`` are seconds.

    With ``of_gaps`` it is the index of the partitions with gaps. That is not written while it is empty, except to
    replace one that is not.
    """

    def __init__(
        self,
        store: Store,
        control: ControlKeys,
        broker: int,
        endpoints: str,
        min_interval: float,
        idle_interval: float,
        damaged: Callable[[], Sequence[DamagedHead]],
        unread: Callable[[], Sequence[DiskFault]] = tuple,
        *,
        of_gaps: bool = False,
        runtime: Runtime = MACHINE,
    ) -> None:
        self._store = store
        self._cluster = control.cluster
        self._key = control.broker_gaps(broker) if of_gaps else control.index(broker)
        self._broker = broker
        self._endpoints = endpoints
        self._min_interval = min_interval
        self._idle_interval = idle_interval
        self._damaged = damaged
        self._unread = unread
        self._told: tuple[DiskFault, ...] = ()
        self._runtime = runtime
        self._clock = runtime.monotonic
        self._of_gaps = of_gaps
        self._written: Mapping[TopicPartition, IndexRow] | None = None
        self._written_at = -float("inf")
        self.is_current = False
        """True if no news of the last offer waits to be written."""

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

    def reconfigure(self, min_interval: float, idle_interval: float) -> None:
        """Write at these intervals from now on."""
        self._min_interval, self._idle_interval = min_interval, idle_interval

    def due(self) -> bool:
        """True if a change may be written now."""
        return self._clock() - self._written_at >= self._min_interval

    def tells_other_faults(self) -> bool:
        """True if other faults of the disks are to be told than the index tells."""
        return not self._of_gaps and tuple(self._unread()) != self._told

    def is_idle(self) -> bool:
        """True if the last write is so long ago that the index is due even without a change."""
        return self._clock() - self._written_at >= self._idle_interval and not (self._of_gaps and not self._written)

    def offer(self, statements: Statements, *, now: bool = False) -> bool:
        """Write ``statements`` if they have news and are due, if the index is idle, or ``now``; True if written.

        Only this agent writes this object, so the last PUT is right even if the outcome of the one before is unknown.
        """
        current = {tp: statements[tp][0] for tp in sorted(statements)}
        if self._of_gaps and self._written is None:
            self._recall()
        news = _have_news(current, self._written) or self.tells_other_faults()
        self.is_current = not news
        if not (self.is_idle() or (news and (now or self.due())) or (now and not self._of_gaps)):
            return False
        head = WatermarkIndex(
            cluster=self._cluster,
            broker=self._broker,
            agent_version=__version__,
            written_at=self._runtime.utc_now(),
            clock_skew=clock.skew().total_seconds(),
            endpoints=self._endpoints,
            damaged_heads=tuple(self._damaged()),
            disk_faults=() if self._of_gaps else tuple(self._unread()),
        )
        times = {moment: _TIME.dump_python(moment, mode="json") for moment in {at for _, at in statements.values()}}
        entries = ({**row.said, "observed_at": times[statements[tp][1]]} for tp, row in current.items())
        body = canonical_list(head.model_dump(mode="json", by_alias=True), "entries", entries)
        self._store.put(self._key, body, crc32c=crc32c(body))
        self._written, self._written_at, self.is_current = current, self._clock(), True
        self._told = head.disk_faults
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


def _have_news(current: Mapping[TopicPartition, IndexRow], written: Mapping[TopicPartition, IndexRow] | None) -> bool:
    if written is None or current.keys() != written.keys():
        return True
    return any(row is not written[tp] and row.news != written[tp].news for tp, row in current.items())
