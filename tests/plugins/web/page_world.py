"""What the continuity page has to show: topics in every state, a gap, a held partition, dates, samples, lineage."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # dev's environment has its stubs
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import yaml

from tests.plugins.world import CLUSTER, World, commit, entry, gap, state
from tidemark.formats.keys import Endpoint, PackName, PartitionKeys
from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.watermark import Watermark, parse, render
from tidemark.formats.table.ledger import DateState, PartitionState
from tidemark.kafka_log import OpenTransaction
from tidemark.monitoring.incident_store import watch
from tidemark.monitoring.overview import Overview, Samples, hours
from tidemark.table.evidence import EvidenceRow
from tidemark.timestamps import utc_now

TOPICS = ("orders", "clicks", "payments", "shipments", "sessions", "invoices")
GAP = gap(120, 160)
PACK = PackName(1, "0123456789abcdef" * 2)
FILE = "dt=2026-01-01/part-0.parquet"
REFUSED = "dt=2026-01-01/part-100.parquet"
REASONS = ("id: is text, not a whole number", "is not valid JSON: the text ends too soon")
_BROKERSETS = f"""\
clusters:
  {CLUSTER}:
    zones: {{az1: [21], az2: [22], az3: [23, 24]}}
    brokersets:
      busy: {{brokers: [21-23], capacity: 4MiB}}
      quiet: {{brokers: [24], capacity: 1MiB}}
"""
EVIL = '<img src=x onerror="document.title=1">'


class PageWorld(World):
    """``orders`` has a gap in partition 0 and an open transaction in 2; ``clicks`` waits; the others are complete."""

    def __init__(self, root: Path, owner: str = "team orders") -> None:
        """Everything is written."""
        super().__init__(root, *TOPICS, owner=owner)
        self.now = utc_now()
        self._orders()
        self._clicks()
        for number, topic in enumerate(TOPICS[2:], 2):
            commit(self.table(topic), state(0, 900 * number), states=_dates(40))
            self.put_index(entry(topic, 0, 900 * number, observed_at=self.now), broker=2000 + number)
        self.observe()

    def _orders(self) -> None:
        table = self.table("orders")
        self.upload("orders", 120)
        self.mark("orders", gaps=[GAP])
        rows = EvidenceRow(
            0, 0, 0, 100, "landed", 100, date(2026, 1, 1), "kafka-1/orders-0/00000000000000000000.log", 0, 5, 0, FILE
        )
        pack = self.control.pack(PACK)
        self.raw.put(pack, b"bytes")
        packed = rows._replace(partition=1, first=390, next=400, rows=10, segment=pack, byte_start=0, byte_end=5)
        refused = rows._replace(first=100, next=120, offset_class="quarantined", rows=20, file=REFUSED)
        table.store.put(f"{table.keys.quarantine}/{REFUSED}", _refused())
        open_one = OpenTransaction(producer_id=4711, producer_epoch=0, first_offset=410)
        states: list[PartitionState] = [state(0, 120), state(1, 400), state(2, 400, held_by=[open_one])]
        states += [state(number, 390 + 7 * number) for number in range(3, 8)]
        commit(table, *states, states=_dates(96), evidence=[rows, refused, packed])
        self.put_index(
            entry("orders", 0, 120, epoch=1, gaps=[GAP], uploaded_end=300, log_end=340, observed_at=self.now),
            entry("orders", 1, 430, log_end=455, observed_at=self.now),
            entry("orders", 2, 520, log_end=540, observed_at=self.now),
            *(entry("orders", one, 390 + 7 * one, log_end=400 + 8 * one, observed_at=self.now) for one in range(3, 8)),
            broker=1,
        )

    def mark(self, topic: str, *, gaps: list[Gap]) -> None:
        """Partition 0 of ``topic`` as its agent marks it once these offsets are missing."""
        key = PartitionKeys(Endpoint(self.raw.url), CLUSTER, topic, 0).watermark
        base, found = parse(self.raw.get(key).body, key)
        assert isinstance(found, Watermark)
        self.raw.put(key, render(base, found.model_copy(update={"gaps": tuple(gaps)})))

    def _clicks(self) -> None:
        commit(self.table("clicks"), state(0, 10_000), states=_dates(60))
        self.put_index(entry("clicks", 0, 184_000, log_end=190_000, observed_at=self.now), broker=2001)

    def add_topics(self, *more: str) -> None:
        """Name more topics in the topics file; nothing of them has landed, and nobody has looked yet."""
        content = yaml.safe_load(self.topics_file.read_text())
        self.write_topics(**{**content, "topics": [*content["topics"], *({"topic": topic} for topic in more)]})

    def add_brokersets(self) -> Path:
        """Two brokersets, of brokers 21 to 23 that lead 1, 2 and 3 MB/s and of one without a load; the file's path."""
        for number in (1, 2, 3):
            one = entry("sensors", number, 0, log_end=300, bytes_per_offset=number * 1e6, observed_at=self.now)
            began = int((self.now - timedelta(seconds=100)).timestamp() * 1000)
            active = {"active_base_offset": 200, "active_first_timestamp": began, "next_offset": 190}
            self.put_index(one.model_copy(update=active), broker=20 + number)
        path = self.topics_file.with_name("brokersets.yaml")
        path.write_text(_BROKERSETS)
        return path

    def observe(self) -> None:
        """Two looks of the watch, half an hour apart, and samples of a day before them."""
        deployment = self.deployment
        watch(deployment, CLUSTER, self.now - timedelta(minutes=27))
        keys, store = deployment.deployment_keys(CLUSTER), self.table().store
        newest = Overview.load_or_none(store, keys.overview)
        assert newest is not None
        for hour in hours(self.now, 24):
            store.put(keys.samples(hour), self._samples(newest, hour).to_bytes())
        watch(deployment, CLUSTER, self.now)

    def _samples(self, newest: Overview, hour: datetime) -> Samples:
        found = Samples(cluster=CLUSTER)
        for minute in range(0, 60, 5):
            at = hour + timedelta(minutes=minute)
            if at > self.now - timedelta(minutes=6):  # the look's own sample is the last
                break
            wave = (at.hour * 12 + minute // 5) % 97
            topics = [
                one.model_copy(
                    update={"lag": wave * wave * 3, "behind_since": at - timedelta(seconds=wave * 9) if wave else None}
                )
                for one in newest.topics
            ]
            found = found.with_sample(Overview(cluster=CLUSTER, at=at, topics=tuple(topics)))
        return found


def _refused() -> bytes:
    """A file of quarantine: 20 rows of partition 0, of which the first 13 have the first reason."""
    rows: list[dict[str, Any]] = [
        {
            "kafka_incarnation": 0,
            "kafka_partition": 0,
            "kafka_offset": offset,
            "next_offset": offset + 1,
            "timestamp_ms": 1_767_225_600_000 + offset,
            "kafka_value": b'{"id": "seven"}',
            "kafka_headers": [],
            "batch": None,
            "reason": REASONS[offset >= 113],
        }
        for offset in range(100, 120)
    ]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


def _dates(count: int) -> dict[str, DateState]:
    """Dates up to a fixed one: closed, incomplete, reopened, expired and open."""
    last = date(2026, 4, 10)
    found: dict[str, DateState] = {}
    for back in range(count):
        dt = last - timedelta(days=back)
        at = datetime(dt.year, dt.month, dt.day, 1, tzinfo=UTC) + timedelta(days=1)
        one = DateState(state="final", rows=40_000 + 911 * back, changed_at=at, closed_at=at)
        if back < 2:
            one = DateState(rows=12_000, changed_at=at)
        elif back == 9:
            one = one.model_copy(update={"state": "final_incomplete", "unfinished": 1, "outstanding": 40})
        elif back == 17:
            one = one.model_copy(update={"state": "reopened", "late_rows": 77})
        elif back > 90:
            one = one.model_copy(update={"state": "expired", "rows": 0})
        found[str(dt)] = one
    found["2026-01-01"] = DateState(state="final", rows=100)
    return found
