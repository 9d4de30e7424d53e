"""The adoption of what Kafka's tiered storage has stored: time and requests for a prefix of 10,000 segments.

The copies are made as the plugin writes them, and lie on the S3 server, as does the raw prefix. They are small, so that
requests are what is measured. Each way is measured once: plain logs that manifests refer to, and compressed ones, which
are decoded and stored.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from bench.measure import Row
from tests.support.kafka_tier import made_copy
from tests.tidemark.kafka_log.build import Record, batch
from tidemark.endpoints import EndpointSettings
from tidemark.kafka_tier.copies import TierStore
from tidemark.kafka_tier.manifest import KINDS, CopyName
from tidemark.storage import Storage
from tidemark.store import Store, StoreOptions, open_store
from uploader_agent.repair.tier_adoption import TierAdoption
from uploader_agent.stored.incarnations import Incarnations

SEGMENTS: Final = 10_000
PARTITIONS: Final = 8
_RECORDS: Final = 64
_TOPIC_ID: Final = "A" * 21 + "w"


class _Counted:
    """A store that counts its requests."""

    def __init__(self, inner: Store, counts: Counter[str]) -> None:
        self.url, self._inner, self._counts = inner.url, inner, counts

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            self._counts[{"get_range": "get", "stream": "get"}.get(name, name)] += 1
            return method(*arguments, **options)

        return call


def measure(segments: int = SEGMENTS) -> list[Row]:
    """The rows of both ways, on the S3 server that the environment names."""
    options = StoreOptions()
    return [row for compress in (False, True) for row in _adopted(options, segments, compress=compress)]


def _adopted(options: StoreOptions, segments: int, *, compress: bool) -> Sequence[Row]:
    way = "compressed, copied" if compress else "plain, referred to"
    topic, prefix = ("zstd" if compress else "plain"), "adopt-tier/"
    tier = open_store("s3://raw", options)
    size = _fill(tier, prefix, topic, segments, compress=compress)
    counts: Counter[str] = Counter()

    def counted(url: str) -> Any:
        return _Counted(open_store(url, options), counts)

    storage = Storage("east", EndpointSettings(url="s3://raw/adopted"), options, opener=counted)
    began, cpu = time.monotonic(), time.process_time()
    source = TierStore(storage.store("s3://raw"), prefix, {})
    rows = list(TierAdoption(Incarnations(storage, record=True), source, topic, broker=1).run())
    wall, cpu = time.monotonic() - began, time.process_time() - cpu
    wrong = [row for row in rows if row.outcome not in {"referred", "adopted"}]
    if wrong or len(rows) != segments:
        raise RuntimeError(f"{len(rows)} of {segments} segments, of which {len(wrong)} are wrong: {wrong[:1]}")
    each = ", ".join(f"{counts[kind]} {kind}" for kind in sorted(counts))
    note = f"{PARTITIONS} partitions, {size / 2**20:.0f} MiB in all; from and to the S3 server"
    return [
        Row("adopt", f"{segments} segments, {way}", "s", (wall,), note),
        Row("adopt", f"CPU for a segment, {way}", "ms", (1000 * cpu / segments,), "one process"),
        Row("adopt", f"requests for a segment, {way}", "", (sum(counts.values()) / segments,), each),
    ]


def _fill(tier: Store, prefix: str, topic: str, segments: int, *, compress: bool) -> int:
    """Put the copies of ``segments``; returns the bytes of their original logs."""
    each = segments // PARTITIONS

    def put(number: int) -> int:
        partition, base = number % PARTITIONS, number // PARTITIONS * _RECORDS
        records = [Record(at, 1_790_000_000_000 + at, b"key-%d" % at, b"x" * 1000) for at in range(_RECORDS // 4)]
        log = b"".join(batch(base + at, records, leader_epoch=0) for at in range(0, _RECORDS, _RECORDS // 4))
        name = CopyName(topic, _TOPIC_ID, partition, base, f"{number:022d}")
        objects = made_copy(name, log, compress=compress)
        for kind in KINDS:
            tier.put(name.key(prefix, kind), objects[kind])
        return len(log)

    with ThreadPoolExecutor(8) as pool:
        return sum(pool.map(put, range(each * PARTITIONS)))
