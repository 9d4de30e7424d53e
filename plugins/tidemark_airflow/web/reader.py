"""The API's data, kept for a few seconds: one view asks several times, and many people look at the same topic."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from datetime import datetime, timedelta
from functools import cache
from threading import Lock
from time import monotonic
from typing import Final, Generic, NamedTuple, TypeVar

from tidemark.brokersets.load import BrokersetLoad, load_of, observed_loads
from tidemark.brokersets.settings import load_brokersets
from tidemark.concurrency import in_parallel
from tidemark.formats.keys import DeploymentKeys
from tidemark.formats.raw.gaps import Acknowledgement
from tidemark.formats.raw.watermark_index import IndexEntry, WatermarkIndex
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.schema_state import SchemaState
from tidemark.formats.table.statuses import StateStatus
from tidemark.inspection.data_flow import DataFlow, TableColumn, data_flow
from tidemark.inspection.gap_acknowledgement import acknowledgements_of
from tidemark.inspection.quarantine import Quarantine, quarantine_of
from tidemark.monitoring import overview
from tidemark.monitoring.health import TopicHealth, topic_health
from tidemark.monitoring.incident_store import read_incidents
from tidemark.monitoring.incidents import Incident
from tidemark.monitoring.overview import Overview, Samples, TopicSample
from tidemark.parsers.settings import followed_by
from tidemark.schemas.merge import read_state
from tidemark.storage import Storage
from tidemark.store import Store, open_store
from tidemark.table.delta_table import TopicTable, committed_ledger, open_delta, open_topic_table
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence_reader import EvidenceReader
from tidemark.table.state_table import state_status
from tidemark.timestamps import utc_now
from tidemark.topics import Deployment, TopicSettings
from tidemark_airflow import settings
from tidemark_airflow.configuration import number
from tidemark_airflow.web.packed_indexes import PackedIndexes

SECONDS: Final = 5.0
"""Age that an answer may have; agents write every ten seconds."""

_KEPT: Final = 64
"""Values kept of each kind, such as topics ..."""

_HOURS_KEPT: Final = 2048
"""... and hours of a topic's samples."""

_READERS: Final = 16

_QUARANTINE_FILES: Final = 20
"""The newest files of a topic's quarantine, of which the reasons are read."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Kept(Generic[Key, Value]):
    """The last values by key. One thread makes a value while others wait for it; after ``seconds`` it is made again.

    A value that cannot be made is not kept: its error is raised to the callers.
    """

    def __init__(self, make: Callable[[Key], Value], seconds: float = SECONDS, most: int = _KEPT) -> None:
        self._make, self._seconds, self._most = make, seconds, most
        self._values: OrderedDict[Key, tuple[float, Value]] = OrderedDict()
        self._making: dict[Key, Lock] = {}
        self._lock = Lock()

    def get(self, key: Key) -> Value:
        """The value of ``key``."""
        with self._lock:
            making = self._making.setdefault(key, Lock())
        with making:
            with self._lock:
                known = self._values.get(key)
            if known is not None and monotonic() - known[0] < self._seconds:
                return known[1]
            value = self._make(key)
            with self._lock:
                self._values[key] = monotonic(), value
                self._values.move_to_end(key)
                while len(self._values) > self._most:
                    dropped, _ = self._values.popitem(last=False)
                    self._making.pop(dropped, None)
            return value

    def forget(self, key: Key) -> None:
        """Forget the value, so that the next call makes it again."""
        with self._lock:
            self._values.pop(key, None)


class TopicNow(NamedTuple):
    """State of a topic in ledger and watermark indexes ``at`` one time; ``failure`` if the indexes cannot be read.

    ``followed`` is the state of the schema that it follows, if it follows and has adopted one; ``state_table`` the
    status of its state table, if it has one; ``agents`` are the watermark indexes of the brokers that lead its
    partitions, without their entries.
    """

    at: datetime
    table: TopicTable
    ledger: Ledger
    entries: dict[tuple[int, int], IndexEntry]
    health: TopicHealth
    failure: str
    followed: SchemaState | None
    state_table: StateStatus | None = None
    agents: Sequence[WatermarkIndex] = ()


class BrokersetsNow(NamedTuple):
    """The load of a cluster's brokersets; ``failure`` names the unreadable watermark indexes, with reasons."""

    loads: tuple[BrokersetLoad, ...]
    failure: str


_Name = tuple[str, str]
"""A cluster, and a topic or what else identifies the value."""


class Reader:
    """Reads for all requests of a process; threads share it."""

    def __init__(self) -> None:
        """Nothing is read yet."""
        self._indexes = Kept[_Name, PackedIndexes](
            lambda place: PackedIndexes(self.deployment(), place[0]), seconds=float("inf")
        )
        self._looks = Kept(self._look_at, seconds=number("scan_seconds"))
        self.overview = Kept(self._read_overview).get
        """The topics of a cluster at their last observation."""
        self.incidents = Kept[str, tuple[Incident, ...]](lambda of: read_incidents(self.deployment(), of).incidents).get
        """The incidents of a cluster and of its topics."""
        self._topics = Kept(self._read_topic)
        self._flows = Kept[_Name, DataFlow](lambda key: data_flow(self.table(*key)), seconds=60.0)
        self._columns = Kept(self._read_columns, seconds=60.0)
        # They need all indexes of a cluster parsed.
        self._brokersets = Kept(self._read_brokersets, seconds=60.0)
        # Samples of one topic, since a parsed hour of a thousand topics takes a megabyte.
        self._samples = Kept(self._read_samples, seconds=60.0, most=_HOURS_KEPT)
        self._evidence = EvidenceReader()
        self._quarantined = Kept(self._count_quarantined, seconds=float("inf"))
        self._quarantines = Kept(self._read_quarantine, seconds=float("inf"))

    def deployment(self) -> Deployment:
        """The topics file, parsed again once it has changed. Raises ConfigError."""
        return settings.deployment()

    def brokersets(self, cluster: str) -> BrokersetsNow | None:
        """The load of the cluster's brokersets, a minute old at most; None if the configuration has none of them.

        Raises:
            ConfigError: the brokersets file breaks a rule.
        """
        file = settings.brokersets()
        return self._brokersets.get(cluster) if file is not None and cluster in file.clusters else None

    def topic(self, topic: TopicSettings) -> TopicNow:
        """The current state of ``topic``, read again if it has changed."""
        return self._topics.get((topic.cluster, topic.topic))

    def forget(self, topic: TopicSettings) -> None:
        """Read the topic again at the next call, because it was just changed."""
        self._topics.forget((topic.cluster, topic.topic))

    def samples(self, topic: TopicSettings, hours: int, now: datetime) -> list[TopicSample]:
        """The topic's samples of the last ``hours``, the oldest first."""
        # The first of these began before the requested time, unless it is the full hour now.
        keys = [(topic.cluster, topic.topic, hour) for hour in overview.hours(now, hours + 1)]
        since = now - timedelta(hours=hours)
        return [
            sample
            for samples in in_parallel(self._samples.get, keys, _READERS)
            for sample in samples
            if sample.at > since
        ]

    def words(self, now: TopicNow, keys: Sequence[tuple[int, int]]) -> dict[tuple[int, int], list[Acknowledgement]]:
        """Acknowledgements of gaps of these partitions, by (incarnation, partition)."""
        if not keys:
            return {}
        deployment, topic = now.table.deployment, now.table.topic
        cluster = Storage(topic.cluster, deployment.raw, deployment.store).cluster_store()
        acknowledged = acknowledgements_of(cluster, topic.topic, keys)
        return dict(zip(keys, acknowledged, strict=True))

    def flow(self, topic: TopicSettings) -> DataFlow:
        """Stored amounts of ``topic``, its table and its catalogs, a minute old at most: it lists all partitions."""
        return self._flows.get((topic.cluster, topic.topic))

    def columns(self, topic: TopicSettings) -> list[TableColumn]:
        """The columns of the topic's table, a minute old at most: it reads the Delta log."""
        return self._columns.get((topic.cluster, topic.topic))

    def quarantined(self, now: TopicNow) -> dict[str, int]:
        """Quarantined rows by date, constant for a ledger; the key is empty for rows without a date."""
        return self._quarantined.get(_version(now))

    def quarantine(self, topic: TopicSettings) -> Quarantine:
        """The refused records and the reasons of the newest ones, without values; constant for a ledger."""
        return self._quarantines.get(_version(self.topic(topic)))

    def standing(self, table: TopicTable) -> EffectiveEvidence:
        """The evidence in force. Raises StoreError, FormatError."""
        return EffectiveEvidence.of(table, self._evidence)

    def table(self, cluster: str, topic: str) -> TopicTable:
        """The table of a topic."""
        deployment = self.deployment()
        return open_topic_table(deployment, deployment.topic(topic, cluster))

    def _read_columns(self, key: tuple[str, str]) -> list[TableColumn]:
        delta = open_delta(self.table(*key))
        fields = delta.schema().fields if delta is not None else ()
        return [TableColumn(name=field.name, kind=str(field.type.type)) for field in fields]

    def _look_at(self, place: tuple[str, str]) -> PackedIndexes:
        indexes = self._indexes.get(place)
        indexes.look()
        return indexes

    def _look(self, cluster: str, deployment: Deployment) -> PackedIndexes:
        # The key includes their place, which the topics file may change.
        return self._looks.get((cluster, deployment.model_dump_json(include={"raw", "store"})))

    def _read_brokersets(self, cluster: str) -> BrokersetsNow:
        indexes = self._look(cluster, self.deployment())
        partitions = observed_loads(indexes.leaders())
        known = load_brokersets(settings.brokersets_file()).of_cluster(cluster)
        return BrokersetsNow(tuple(load_of(brokerset, partitions) for brokerset in known), indexes.failure_of())

    def _shared(self, cluster: str) -> tuple[Store, DeploymentKeys]:
        deployment = self.deployment()
        return open_store(deployment.lake_store, deployment.store), deployment.deployment_keys(cluster)

    def _read_overview(self, cluster: str) -> Overview | None:
        store, keys = self._shared(cluster)
        return Overview.load_or_none(store, keys.overview)

    def _read_samples(self, key: tuple[str, str, datetime]) -> tuple[TopicSample, ...]:
        cluster, topic, hour = key
        store, keys = self._shared(cluster)
        samples = Samples.load_or_none(store, keys.samples(hour))
        return tuple(samples.of(topic)) if samples else ()

    def _read_topic(self, key: tuple[str, str]) -> TopicNow:
        table = self.table(*key)
        ledger = committed_ledger(table)
        indexes = self._look(table.topic.cluster, table.deployment)
        led = indexes.leaders_of(table.topic.topic).values()
        at = utc_now()
        return TopicNow(
            at,
            table,
            ledger,
            {(leader.entry.incarnation, leader.entry.partition): leader.entry for leader in led},
            topic_health(table.topic, ledger, led, at),
            indexes.failure_of(table.topic.topic),
            _followed(table),
            state_status(table),
            indexes.agents_of(table.topic.topic, {leader.broker for leader in led}),
        )

    def _count_quarantined(self, key: tuple[str, str, int, int]) -> dict[str, int]:
        return self.standing(self.table(key[0], key[1])).rows_by_date("quarantined")

    def _read_quarantine(self, key: tuple[str, str, int, int]) -> Quarantine:
        table = self.table(key[0], key[1])
        return quarantine_of(table, self.standing(table), most_files=_QUARANTINE_FILES, values=False)


@cache
def reader() -> Reader:
    """The reader that all requests of this process share."""
    return Reader()


def _version(now: TopicNow) -> tuple[str, str, int, int]:
    ledger = now.ledger
    return ledger.cluster, ledger.topic, ledger.n, ledger.attempt


def _followed(table: TopicTable) -> SchemaState | None:
    topic = table.deployment.topic(table.topic.topic, table.topic.cluster)
    state = read_state(table.store, table.keys) if followed_by(topic.parser) else None
    return state.value if state else None
