"""The first record after a seek to a random offset, and to a random time, in a partition of 10,000 segments on S3."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import md5
from typing import Any, Final, cast

from bench.measure import Row
from bench.remote_reader import CLUSTER
from tests.support.raw_builder import RawBuilder
from tests.support.s3 import S3Server
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark.formats.keys import TopicPartition
from tidemark.remote import Storage
from tidemark.remote.reader.tier import RemoteTier
from tidemark.store import Store, StoreOptions, open_store

SEGMENTS: Final = 10_000
BATCHES: Final = 4
RECORDS: Final = 20
"""Records of a batch, of 100 B each: a seek costs requests, whatever the segments' size."""

SEEKS: Final = 100
SEED: Final = 7
BUCKET: Final = "lake"


def seeks(s3: S3Server) -> list[Row]:
    """Offsets, times, and what the catalogue costs before the first."""
    _fill(s3)
    ready = threading.Event()
    rng = random.Random(SEED)  # noqa: S311  # the same seeks each time
    tp = TopicPartition("seeks", 0)
    storage = Storage.at(f"s3://{BUCKET}", CLUSTER, options=_options(s3))
    with RemoteTier(storage, committed=True, on_ready=ready.set) as tier:
        started = time.perf_counter()
        partition = tier.partition(*tp)
        cold = time.perf_counter() - started
        assert partition is not None
        end = partition.end(committed=True)

        def first(offset: int) -> None:
            tier.read(tp, offset)
            while True:
                ready.clear()
                block = tier.take(tp, 1)
                if block is not None and len(block.rows):
                    assert block.rows["kafka_offset"][0].as_py() == offset
                    return
                if block is None:
                    ready.wait(1)

        def first_of(moment: int) -> None:
            found = partition.offset_for_time(moment, committed=True)
            assert found is not None
            first(found.offset)

        first(0)
        offsets = _timed(first, (rng.randrange(end) for _ in range(SEEKS)))
        times = _timed(first_of, (T0 + rng.randrange(end) for _ in range(SEEKS)))
    part = f"consumer, {SEGMENTS:,} segments on S3"
    note = f"{SEEKS} seeks, seed {SEED}; aim p50 100 ms"
    rows = [Row(part, "listing before the first record", "ms", (1000 * cold,), "once for a partition")]
    for name, found in (("offset", offsets), ("time", times)):
        rows += [
            Row(part, f"first record after a seek to a random {name}, p50", "ms", (found[SEEKS // 2],), note),
            Row(part, f"first record after a seek to a random {name}, largest", "ms", (found[-1],), note),
        ]
    return rows


def _timed(seek: Callable[[int], None], places: Iterator[int]) -> list[float]:
    """Milliseconds of each, in order."""
    found: list[float] = []
    for place in places:
        started = time.perf_counter()
        seek(place)
        found.append(1000 * (time.perf_counter() - started))
    return sorted(found)


def _options(s3: S3Server) -> StoreOptions:
    return StoreOptions(endpoint_url=s3.endpoint, region="us-east-1", path_style=True)


def _fill(s3: S3Server) -> None:
    """Store the segments; record n has the time T0 + n."""
    with _many_at_once(open_store(f"s3://{BUCKET}", _options(s3))) as store:
        raw = RawBuilder(cast("Store", store), cluster=CLUSTER, topic="seeks")
        for number in range(SEGMENTS):
            start = number * BATCHES * RECORDS
            raw.segment([_batch(start + at * RECORDS) for at in range(BATCHES)])
    raw.store = open_store(f"s3://{BUCKET}", _options(s3))
    raw.publish()


def _batch(base: int) -> bytes:
    return batch(base, [Record(at, T0 + base + at, b"k%d" % at, b"v" * 100) for at in range(RECORDS)])


class _Ahead:
    """A store whose puts answer before they are done, with the ETag that S3 will give."""

    def __init__(self, inner: Store, pool: ThreadPoolExecutor) -> None:
        self._inner = inner
        self._pool = pool
        self.url = inner.url
        self.puts: list[Future[str]] = []

    def put(self, key: str, body: bytes, **options: Any) -> str:
        self.puts.append(self._pool.submit(self._inner.put, key, body, **options))
        return f'"{md5(body, usedforsecurity=False).hexdigest()}"'


@contextmanager
def _many_at_once(inner: Store) -> Iterator[_Ahead]:
    with ThreadPoolExecutor(8) as pool:
        store = _Ahead(inner, pool)
        yield store
        for one in store.puts:
            one.result()
