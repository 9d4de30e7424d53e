"""The triggers of many waiting topics on one event loop, shared as Airflow's triggerer shares them: what scans cost.

Runs in Airflow's environment: ``python -m tests.plugins.triggers.triggerer SCANS``. Reads the source of the scans and
the baselines from standard input, one JSON object, and prints one JSON object for each scan that all have judged.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import sys
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, cast
from unittest.mock import patch

import psutil
from airflow.triggers.shared_stream import SharedStreamManager

from tidemark.store import Store, StoreOptions, open_store
from tidemark.store.base import Fetched, ObjectInfo
from tidemark_airflow.triggers import watermark
from tidemark_airflow.triggers.index_scanner import IndexScanner
from tidemark_airflow.triggers.watermark import WatermarkTrigger

BEAT = 0.005
"""Seconds that the loop is asked to sleep, over and over; how much later it wakes up is how long it was blocked."""


class Counted:
    """A store, and what was asked of it."""

    requests = 0
    read = 0

    def __init__(self, url: str, options: StoreOptions) -> None:
        self._store: Store = open_store(url, options)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """The listing; a request gives 1,000 keys."""
        found = list(self._store.list(prefix))
        Counted.requests += max(1, math.ceil(len(found) / 1000))
        return iter(found)

    def put(self, key: str, body: bytes) -> str:
        """The scan's status."""
        Counted.requests += 1
        return self._store.put(key, body)

    def get(self, key: str, *, limit: int | None = None) -> Fetched:
        """The object."""
        found = self._store.get(key, limit=limit)
        Counted.requests += 1
        Counted.read += len(found.body)
        return found


class Beats:
    """How late the loop woke up, in seconds, since it was asked last."""

    def __init__(self) -> None:
        self._late: list[float] = []

    async def run(self) -> None:
        """For ever."""
        while True:
            began = time.perf_counter()
            await asyncio.sleep(BEAT)
            self._late.append(time.perf_counter() - began - BEAT)

    def taken(self) -> list[float]:
        """In order of size; then it starts anew."""
        late, self._late = sorted(self._late), []
        return late


async def _judge(manager: SharedStreamManager, number: int, one: WatermarkTrigger, judged: asyncio.Semaphore) -> None:
    """What the triggerer does with one trigger, but that each scan is counted when it was judged."""
    key = one.shared_stream_key()
    stream = manager.subscribe(trigger_id=number, trigger=one, key=key)

    async def counting() -> AsyncIterator[Any]:
        async for scan in stream:
            yield scan
            judged.release()

    async for event in one.filter_shared_stream(counting()):
        raise RuntimeError(f"nothing was ahead, and yet {event}")


async def measure(source: dict[str, Any], baselines: list[dict[str, Any]], scans: int) -> None:
    """Scan so many times, and tell of each."""
    manager, judged, beats = SharedStreamManager(), asyncio.Semaphore(0), Beats()
    triggers = [WatermarkTrigger(source=source, baseline=baseline) for baseline in baselines]
    beating = asyncio.create_task(beats.run())
    process = psutil.Process()
    before = time.process_time(), time.monotonic()
    tasks = [asyncio.create_task(_judge(manager, number, one, judged)) for number, one in enumerate(triggers)]
    for _ in range(scans):
        for _ in triggers:
            await judged.acquire()
        await asyncio.sleep(10 * BEAT)  # what they held up is told by the next beat
        now = time.process_time(), time.monotonic()
        late = beats.taken()
        found = {
            "wall": now[1] - before[1],
            "cpu": now[0] - before[0],
            "late_max": late[-1],
            "late_p99": late[int(len(late) * 0.99)],
            "requests": Counted.requests,
            "bytes": Counted.read,
            "rss": process.memory_info().rss,
        }
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
        Counted.requests = Counted.read = 0
        before = now
    beating.cancel()
    for task in tasks:
        task.cancel()
    await manager.stop_all()


def main() -> None:
    """See the module."""
    given = json.load(sys.stdin)
    gc.collect()
    with patch.object(watermark, "IndexScanner", partial(IndexScanner, open_one=cast("Any", Counted))):
        asyncio.run(measure(given["source"], given["baselines"], int(sys.argv[1])))


if __name__ == "__main__":
    main()
