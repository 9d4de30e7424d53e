"""The brokers' watermark indexes and heads of one cluster: listed often, read only where they changed.

Runs in a thread of the triggerer, once for all topics. A store that does not answer is remembered and tried again;
earlier values stay valid meanwhile, since a watermark only names offsets that are stored. The scan's status is written
for people as ``ScanStatus``. An unreadable index affects only its own broker, whose last good index still counts; if
none can be read, the store counts as failed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from pydantic import field_validator

from tidemark.concurrency import in_parallel
from tidemark.endpoints import resolver_of
from tidemark.errors import TidemarkError
from tidemark.formats.base import Model
from tidemark.formats.keys import ControlKeys, DeploymentKeys
from tidemark.formats.raw.head import Head, parse_head
from tidemark.formats.raw.watermark_index import parse_index
from tidemark.formats.table.object_cache import ObjectCache, log_failures
from tidemark.formats.table.statuses import ScanStatus
from tidemark.inspection.agent_reports import heads_of
from tidemark.installation import VERSION
from tidemark.retry import Backoff
from tidemark.store import ObjectInfo, Store, StoreOptions, open_store
from tidemark.timestamps import utc_now
from tidemark.topics import Deployment
from tidemark_airflow.configuration import triggerer_capacity
from tidemark_airflow.triggers.readiness import UNKNOWN_INCARNATION, Row, row_of, row_of_head, row_rank, with_head

_LONGEST_PAUSE = 60.0
_REPORT_EVERY = timedelta(minutes=1)

_Place = tuple[str, str]
"""The store of an object, empty for indexes, and its key."""

log = logging.getLogger(__name__)


class HeadsFolder(Model):
    """The folder of the heads of a cluster's brokers in one store."""

    store: str
    folder: str


class Source(Model):
    """The places of a cluster's indexes, heads and tables, and the scan interval; equal sources share one scan.

    The indexes in the deployment's default bucket name all partitions, wherever their segments lie. ``heads`` are the
    heads of the default bucket, and then of other buckets and prefixes with topics that have a ``freshness``; the
    content of other heads arrives with the next index.
    """

    cluster: str
    store: str
    folder: str
    heads: tuple[HeadsFolder, ...]
    lake: str
    lake_prefix: str
    options: StoreOptions
    seconds: float

    @field_validator("options", mode="before")
    @classmethod
    def _without_removed(cls, options: object) -> object:
        """Leave out what earlier versions stored in Airflow's database with a trigger, and StoreOptions has no more."""
        if not isinstance(options, dict):
            return options
        return {name: value for name, value in options.items() if name not in StoreOptions.removed}

    @classmethod
    def of(cls, deployment: Deployment, cluster: str, seconds: float) -> Source:
        """The source of ``cluster``'s indexes, scanned every ``seconds``."""
        default = resolver_of(deployment.raw).default()
        return cls(
            cluster=cluster,
            store=default.store,
            folder=ControlKeys(default.prefix, cluster).indexes,
            heads=tuple(
                HeadsFolder(store=endpoint.store, folder=ControlKeys(endpoint.prefix, cluster).heads)
                for endpoint in heads_of(deployment, cluster)
            ),
            lake=deployment.lake_store,
            lake_prefix=deployment.deployment_keys(cluster).prefix,
            options=deployment.store,
            seconds=seconds,
        )

    @property
    def keys(self) -> DeploymentKeys:
        """Keys of objects about the cluster's tables, below ``lake``."""
        return DeploymentKeys(self.lake_prefix, self.cluster)


class Scan(NamedTuple):
    """The counting rows by topic; and if the store cannot be read, since when and why.

    A topic's sequence is the same object as in the previous scan unless an index that names it has changed.
    """

    topics: Mapping[str, Sequence[Row]]
    failing_since: datetime | None = None
    failure: str = ""


class IndexScanner:
    """Scans one :class:`Source`, again and again."""

    def __init__(self, source: Source, open_one: Callable[[str, StoreOptions], Store] = open_store) -> None:
        """Opens the stores, which imports their client: not on an event loop."""
        self._source = source
        self._store = open_one(source.store, source.options)
        self._lake = open_one(source.lake, source.options)
        self._indexes = ObjectCache(self._store, source.folder, _rows_of, on_failure=log_failures(log, logging.ERROR))
        self._heads = [_HeadsIn(folder, open_one(folder.store, source.options)) for folder in source.heads]
        self._last = Scan({})
        self._merged: Mapping[_Place, Sequence[Row]] = {}  # the rows by object that ``_last`` is made of
        self._failures = 0
        self._read = 0
        self._reported: ScanStatus | None = None

    @property
    def pause(self) -> float:
        """Seconds until the next :meth:`scan`: twice as long after each failure in a row, up to a minute."""
        return Backoff(self._source.seconds, _LONGEST_PAUSE).after(self._failures + 1)

    def scan(self) -> Scan:
        """The current rows; a store error is logged and reported in the scan, never raised."""
        began = time.monotonic()
        self._read = 0
        try:
            default, *others = self._heads
            self._read = self._indexes.look() + default.cache.look()
            self._indexes.check()
            self._read += sum(in_parallel(_HeadsIn.try_to_look, others))
        except (TidemarkError, OSError) as error:
            self._failures += 1
            log.warning("%s: not read, %d times in a row", self._source.folder, self._failures, exc_info=True)
            self._last = Scan(self._last.topics, self._last.failing_since or utc_now(), str(error))
        else:
            self._failures = 0
            kept: dict[_Place, Sequence[Row]] = {("", key): rows for key, rows in self._indexes.kept.items()}
            for heads in self._heads:
                kept |= {(heads.folder.store, key): rows for key, rows in heads.cache.kept.items()}
            changed, self._merged = _topics_changed(self._merged, kept), kept
            if changed or self._last.failing_since:
                self._last = Scan({**self._last.topics, **_merge(self._merged.values(), changed)})
        self._report(time.monotonic() - began)
        return self._last

    def _report(self, seconds: float) -> None:
        """Write the scan's status: when it has changed, and once a minute."""
        status = ScanStatus(
            cluster=self._source.cluster,
            at=utc_now(),
            seconds=round(seconds, 3),
            listed=len(self._indexes.objects),
            read=self._read,
            failing_since=self._last.failing_since,
            error=self._last.failure,
            failures=self._failures,
            version=VERSION,
            capacity=triggerer_capacity(),
        )
        before = self._reported
        same = before is not None and before.failing_since == status.failing_since
        if before is not None and same and status.at - before.at < _REPORT_EVERY:
            return
        try:
            self._lake.put(self._source.keys.scan, status.to_bytes())
        except (TidemarkError, OSError):
            # Readers see its age; the scan itself does not depend on it.
            log.warning("%s: not written", self._source.keys.scan, exc_info=True)
        self._reported = status


class _HeadsIn:
    """The heads of one folder. If it cannot be listed, its partitions wait for the next index, and no others do."""

    def __init__(self, folder: HeadsFolder, store: Store) -> None:
        self.folder = folder
        self.cache = ObjectCache(
            store, folder.folder, _rows_of_head, limit=Head.most_bytes, on_failure=log_failures(log, logging.ERROR)
        )

    def try_to_look(self) -> int:
        """Read the changed heads, and return their number; 0 if the store fails."""
        try:
            return self.cache.look()
        except (TidemarkError, OSError):
            where = f"{self.folder.store}/{self.folder.folder}"
            log.exception("%s: not read; its partitions are known by the indexes meanwhile", where)
            return 0


def _rows_of(body: bytes, info: ObjectInfo) -> Sequence[Row]:
    return tuple(row_of(entry) for entry in parse_index(body, info).entries)


def _rows_of_head(body: bytes, info: ObjectInfo) -> Sequence[Row]:
    return tuple(row_of_head(entry) for entry in parse_head(body, info.key).entries)


def _topics_changed(before: Mapping[_Place, Sequence[Row]], after: Mapping[_Place, Sequence[Row]]) -> set[str]:
    """The topics named by an index that has changed, is new or was removed."""
    changed = [key for key in before.keys() | after.keys() if before.get(key) is not after.get(key)]
    return {row[0] for key in changed for rows in (before, after) for row in rows.get(key, ())}


def _merge(indexes: Iterable[Sequence[Row]], topics: set[str]) -> Mapping[str, Sequence[Row]]:
    """The counting row of each partition of ``topics``. A head counts where an index names its incarnation."""
    newest: dict[str, dict[int, Row]] = {topic: {} for topic in topics}
    heads: list[Row] = []
    for row in (row for rows in indexes for row in rows if row[0] in topics):
        if row[2] == UNKNOWN_INCARNATION:
            heads.append(row)
            continue
        of_topic = newest[row[0]]
        other = of_topic.get(row[1])
        if other is None or row_rank(row) > row_rank(other):
            of_topic[row[1]] = row
    for head in heads:
        if (known := newest[head[0]].get(head[1])) is not None:
            newest[head[0]][head[1]] = with_head(known, head)
    return {topic: tuple(rows.values()) for topic, rows in newest.items()}
