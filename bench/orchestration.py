"""What Airflow's part costs: scans of the watermark indexes, parsing, latency, and the metadata database's growth."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final

from bench import parsing, stack
from bench.data import HOME
from bench.measure import Row
from tests.support.paths import ROOT, env_python
from tests.support.s3 import S3Server
from tidemark.formats.keys import ControlKeys
from tidemark.formats.watermark_index import IndexEntry, WatermarkIndex
from tidemark.store import Store, StoreOptions, open_store
from tidemark.timestamps import utc_now
from tidemark_airflow.triggers.index_scanner import HeadsFolder, Source
from tidemark_airflow.triggers.readiness import Baseline

CLUSTER: Final = "kafka-1"
TOPICS: Final = 1000
PARTITIONS: Final = 500
BROKERS: Final = 3000
SECONDS: Final = 10.0
"""Between two scans, as deployed."""

QUIET: Final = 3
"""Scans in which nothing has changed, between the first one and the one that finds 1 % changed."""


def measure(s3: S3Server) -> list[Row]:
    """All of it."""
    return [*scans(s3), *parsing.measure(), *stack.measure()]


def scans(s3: S3Server) -> list[Row]:
    """500,000 partitions, led by 3,000 brokers, in an S3 server's bucket; 1,000 topics wait in one triggerer."""
    store = open_store("s3://raw", StoreOptions())
    keys = ControlKeys("orchestration", CLUSTER)
    led = _led()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda broker: _put(store, keys, broker, led[broker], 1000), range(BROKERS)))
    source = Source(
        cluster=CLUSTER,
        store="s3://raw",
        folder=keys.indexes,
        heads=(HeadsFolder(store="s3://raw", folder=keys.heads),),
        lake="s3://lake",
        lake_prefix="orchestration",
        options=StoreOptions(),
        seconds=SECONDS,
    )
    given = {"source": source.model_dump(mode="json"), "baselines": [_baseline(topic) for topic in range(TOPICS)]}
    scans = 1 + QUIET + 2
    command = [str(env_python("airflow")), "-m", "tests.plugins.triggers.triggerer", str(scans)]
    found: list[dict[str, float]] = []
    with (
        (HOME / "triggerer.log").open("w") as log,
        subprocess.Popen(
            command, cwd=ROOT, env=s3.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        ) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        json.dump(given, child.stdin)
        child.stdin.close()
        for line in child.stdout:
            if not line.startswith("{"):
                continue  # Airflow's libraries log to standard output
            found.append(json.loads(line))
            if len(found) == 1 + QUIET:
                for broker in range(0, BROKERS, 100):
                    _put(store, keys, broker, led[broker], 1000)
    if len(found) != scans:
        raise RuntimeError(f"the triggers ended after {len(found)} scans; see {HOME / 'triggerer.log'}")
    kinds = {"cold": found[:1], "nothing changed": found[1 : 1 + QUIET], "1 % changed": found[1 + QUIET : 2 + QUIET]}
    return [row for kind, several in kinds.items() for row in _rows(kind, several)]


def _rows(kind: str, found: list[dict[str, float]]) -> Iterator[Row]:
    def row(name: str, unit: str, *values: float, note: str = "") -> Row:
        return Row("orchestration", f"scan, {kind}: {name}", unit, values, note)

    note = f"{TOPICS * PARTITIONS} partitions, {BROKERS} brokers, {TOPICS} topics waiting"
    pause = 0.0 if kind == "cold" else SECONDS
    yield row("time", "s", *(one["wall"] - pause for one in found), note=note)
    yield row("CPU", "s", *(one["cpu"] for one in found), note="of the triggerer's process, judging included")
    yield row("requests", "", *(one["requests"] for one in found))
    yield row("read", "MB", *(one["bytes"] / 1e6 for one in found))
    yield row("event loop blocked, longest (aim 200)", "ms", *(one["late_max"] * 1e3 for one in found))
    yield row("event loop blocked, 99th percentile", "ms", *(one["late_p99"] * 1e3 for one in found))
    yield row("resident memory", "MB", *(one["rss"] / 1e6 for one in found))


def _led() -> list[list[tuple[int, int]]]:
    """Topic and partition, by leader."""
    led: list[list[tuple[int, int]]] = [[] for _ in range(BROKERS)]
    for number in range(TOPICS * PARTITIONS):
        led[number * 7919 % BROKERS].append(divmod(number, PARTITIONS))
    return led


def _put(store: Store, keys: ControlKeys, broker: int, led: list[tuple[int, int]], offset: int) -> None:
    now = utc_now()
    entries = tuple(
        IndexEntry(
            topic=f"topic-{topic}",
            partition=partition,
            topic_id="5L6g3nShT-eMCtK--X86sw",
            incarnation=0,
            leader_epoch=3,
            next_offset=offset,
            uploaded_end=offset,
            log_end_offset=offset + 17,
            high_watermark=offset + 17,
            active_base_offset=offset,
            active_first_timestamp=1_790_000_000_000,
            active_max_timestamp=1_790_000_000_000,
            observed_at=now,
            bytes_per_offset=1000.5,
        )
        for topic, partition in led
    )
    index = WatermarkIndex(cluster=CLUSTER, broker=broker, agent_version="0.1.0", written_at=now, entries=entries)
    store.put(keys.index(broker), index.to_bytes())


def _baseline(topic: int) -> dict[str, Any]:
    """All of the topic's partitions are landed as far as they are uploaded."""
    landed = {f"0-{partition}": (1000, 3) for partition in range(PARTITIONS)}
    waiting = timedelta(minutes=5)
    return Baseline(
        topic=f"topic-{topic}",
        landed=landed,
        size=1 << 30,
        age=waiting,
        late_after=timedelta(minutes=15),
        look_again_at=utc_now() + timedelta(hours=1),
    ).model_dump(mode="json")
