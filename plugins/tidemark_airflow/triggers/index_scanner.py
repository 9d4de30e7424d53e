"""The brokers' watermark indexes of one cluster: listed often, read only where they changed.

Runs in a thread of the triggerer, once for all topics. A store that does not answer is remembered and tried again;
what was read before stays valid meanwhile, since a watermark only ever says what is there already. How it fares is
written where people see it, as ``ScanStatus``. An index that cannot be read costs its own
broker alone, whose last good one still counts; if none can be read, it is the store that fails.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import NamedTuple

from tidemark.endpoints import resolver_of
from tidemark.errors import FormatError, NotFound, StoreError, TidemarkError
from tidemark.formats.base import Model
from tidemark.formats.keys import ControlKeys
from tidemark.formats.scan_status import ScanStatus
from tidemark.formats.watermark_index import WatermarkIndex, check_some, listed
from tidemark.store import Store, StoreOptions, open_store
from tidemark.timestamps import utc_now
from tidemark.topics import Deployment
from tidemark_airflow.triggers.readiness import Row, row_of

_READERS = 8
_AT_ONCE = 64
_LONGEST_PAUSE = 60.0
_REPORT_EVERY = timedelta(minutes=1)

log = logging.getLogger(__name__)


class Source(Model):
    """Where a cluster's indexes lie, how often to look, and where to write how it went; equal ones share one scan.

    Those in the deployment's default bucket name all partitions, wherever their segments lie.
    """

    cluster: str
    store: str
    folder: str
    lake: str
    status: str
    options: StoreOptions
    seconds: float

    @classmethod
    def of(cls, deployment: Deployment, cluster: str, seconds: float) -> Source:
        """That of ``cluster``."""
        default = resolver_of(deployment.raw).default()
        return cls(
            cluster=cluster,
            store=default.store,
            folder=ControlKeys(default.prefix, cluster).indexes,
            lake=deployment.lake_store,
            status=deployment.deployment_keys(cluster).scan,
            options=deployment.store,
            seconds=seconds,
        )


class Scan(NamedTuple):
    """The rows that count, by topic; since when and why the store has not been readable, if so.

    A topic's sequence is the same object as in the scan before unless an index that names it has changed.
    """

    topics: Mapping[str, Sequence[Row]]
    failing_since: datetime | None = None
    failure: str = ""


class _Index(NamedTuple):
    """What is kept of a broker's index; no row of one that never parsed."""

    etag: str
    rows: Sequence[Row] = ()

    @property
    def topics(self) -> set[str]:
        """All that it names."""
        return {row[0] for row in self.rows}


class IndexScanner:
    """Reads one :class:`Source`, again and again."""

    def __init__(self, source: Source, open_one: Callable[[str, StoreOptions], Store] = open_store) -> None:
        """Opens the stores, which imports their client: not on an event loop."""
        self._source = source
        self._store = open_one(source.store, source.options)
        self._lake = open_one(source.lake, source.options)
        self._known: dict[str, _Index] = {}
        self._last = Scan({})
        self._changed: set[str] = set()  # topics of indexes that were read, or are gone, since the last merge
        self._unread: dict[str, StoreError | FormatError] = {}
        self._failures = 0
        self._read = 0
        self._reported: ScanStatus | None = None

    @property
    def pause(self) -> float:
        """Seconds until the next :meth:`scan`: twice as long after each failure in a row, up to a minute."""
        seconds = self._source.seconds
        return max(seconds, min(_LONGEST_PAUSE, seconds * 2.0 ** min(self._failures, 16)))

    def scan(self) -> Scan:
        """The indexes as they are now; a store that fails is logged and told of in the scan, never raised."""
        began = time.monotonic()
        self._read = 0
        try:
            self._read_changes()
        except (TidemarkError, OSError) as error:
            self._failures += 1
            log.warning("%s: not read, %d times in a row", self._source.folder, self._failures, exc_info=True)
            self._last = Scan(self._last.topics, self._last.failing_since or utc_now(), str(error))
        else:
            self._failures = 0
            if self._changed or self._last.failing_since:
                self._last = Scan({**self._last.topics, **self._merged(self._changed)})
                self._changed = set()
        self._report(time.monotonic() - began)
        return self._last

    def _read_changes(self) -> None:
        """Read the indexes that have changed. Raises StoreError if none can be listed or read."""
        etags = {info.key: info.etag for info in listed(self._store, self._source.folder)}
        stale = [key for key, etag in etags.items() if key not in self._known or self._known[key].etag != etag]
        for key in self._known.keys() - etags.keys():
            self._changed |= self._known.pop(key).topics
            self._unread.pop(key, None)
        # Fetching takes time, parsing takes the interpreter: one thread parses, so that the event loop gets its turn.
        with ThreadPoolExecutor(_READERS) as readers:
            for start in range(0, len(stale), _AT_ONCE):
                keys = stale[start : start + _AT_ONCE]
                for key, body in zip(keys, readers.map(self._fetch, keys), strict=True):
                    before = self._known.get(key, _Index(""))
                    after = self._kept(key, etags[key], body, before)
                    self._known[key] = after
                    if after.rows is not before.rows:
                        self._changed |= before.topics | after.topics
        self._read = len(stale)
        check_some(self._unread, etags)

    def _fetch(self, key: str) -> bytes | StoreError | FormatError | None:
        """The object, or why it cannot be read; None if it has gone since it was listed, as the next listing says."""
        try:
            return self._store.get(key, limit=WatermarkIndex.most_bytes).body
        except NotFound:
            return None
        except (StoreError, FormatError) as error:
            return error

    def _kept(self, key: str, etag: str, got: bytes | StoreError | FormatError | None, before: _Index) -> _Index:
        """What is kept of an index. Where it cannot be read, its broker's last good one still counts.

        One that does not parse is not asked for again before it changes; what the store did not give is, each time.
        """
        if isinstance(got, bytes):
            try:
                rows = tuple(row_of(entry) for entry in WatermarkIndex.from_bytes(got, key).entries)
            except FormatError as error:
                got = error
            else:
                self._unread.pop(key, None)
                return _Index(etag, rows)
        if got is None:
            return before._replace(etag=etag)
        if str(self._unread.get(key)) != str(got):
            log.error("%s is not read; what its broker said before still counts: %s", key, got)
        self._unread[key] = got
        return before._replace(etag=etag) if isinstance(got, FormatError) else before

    def _merged(self, topics: set[str]) -> Mapping[str, Sequence[Row]]:
        """Of each partition of ``topics`` the newest incarnation's row, and of these that of the newest leader."""
        newest: dict[str, dict[int, Row]] = {topic: {} for topic in topics}
        for row in (row for index in self._known.values() for row in index.rows if row[0] in topics):
            of_topic = newest[row[0]]
            known = of_topic.get(row[1])
            if known is None or row[2:5] > known[2:5]:
                of_topic[row[1]] = row
        return {topic: tuple(rows.values()) for topic, rows in newest.items()}

    def _report(self, seconds: float) -> None:
        """Write how it went: when that has changed, and once a minute."""
        status = ScanStatus(
            cluster=self._source.cluster,
            at=utc_now(),
            seconds=round(seconds, 3),
            listed=len(self._known),
            read=self._read,
            failing_since=self._last.failing_since,
            error=self._last.failure,
            failures=self._failures,
        )
        before = self._reported
        same = before is not None and before.failing_since == status.failing_since
        if before is not None and same and status.at - before.at < _REPORT_EVERY:
            return
        try:
            self._lake.put(self._source.status, status.to_bytes())
        except (TidemarkError, OSError):
            # Whoever reads it sees how old it is; the scan itself does not depend on it.
            log.warning("%s: not written", self._source.status, exc_info=True)
        self._reported = status
