"""What a fleet takes: ``python -m bench.cost`` prints the tables of docs/sizing.md.

They are objects, requests, bytes, CPU and memory of a day of the first of :data:`EXAMPLES`, and a month's requests of
each.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidemark.formats.raw.pack import MOST_UNSEALED_RANGES
from tidemark.formats.raw.watermark_index import PACKS_PER_FRESHNESS
from tidemark.onboarding.expectations import DAYS_OF_MONTH, PUTS_PER_SEGMENT, CostLine, PerLanding, Prices
from tidemark.raw.byte_ranges import TARGET_BYTES
from tidemark.words import duration
from uploader_agent.packing.thread import GATHERING_SECONDS


@dataclass(frozen=True)
class Fleet:
    """The quantities that the cost depends on: bytes of leaders alone, sizes in bytes, intervals in seconds.

    ``live_partitions`` of ``live_topics`` always have new records, and a promised ``freshness``.
    ``pausing_partitions`` of other topics pause for longer than the agent's ``tail_after``, ``pauses`` times a day.
    """

    bytes_a_day: float = 200e12
    segment: float = 1 << 30
    brokers: int = 3000
    partitions: int = 500_000
    index_news: float = 10
    index_idle: float = 60
    fill_interval: float = 60
    live_partitions: float = 0
    live_topics: float = 0
    freshness: float = 60
    pausing_partitions: float = 0
    pauses: float = 0


@dataclass(frozen=True)
class PerRun:
    """Requests of a run without a ``freshness``: of itself, for a partition, a segment, a range to read, a task.

    ``tests/spark/run/test_requests.py`` counts them. A task writes a file for each date.
    """

    get: float = 6
    put: float = 10
    partition_get: float = 1
    partition_put: float = 1
    segment_get: float = 2
    range_get: float = 1
    task_put: float = 1

    def gets(self, runs: float, partitions: float, segments: float, ranges: float) -> float:
        """GET and HEAD of ``runs``."""
        of_raw = partitions * self.partition_get + segments * self.segment_get + ranges * self.range_get
        return runs * self.get + of_raw

    def puts(self, runs: float, partitions: float, tasks: float) -> float:
        """PUT and LIST of ``runs``."""
        return runs * self.put + partitions * self.partition_put + tasks * self.task_put


@dataclass(frozen=True)
class Rates:
    """CPU and memory as docs/figures.md has them, by its parts.

    ``agent``, ``idle``: CPU-s for a byte uploaded, for an idle partition in a second, bytes of memory of an agent.
    ``convert``, ``lost-lake``: bytes of values for a CPU-s, of conversion, of a parser for JSON, and of an audit.
    ``orchestration``: CPU-s of a run by Spark Connect. ``worker`` has bytes of memory for a core.
    """

    upload: float = 1.4 / (1 << 30)
    idle_partition: float = 0.009 / 4000
    agent: float = 80 * (1 << 20)
    decode: float = 150e6
    json: float = 290e6
    audit: float = 103e6
    run: float = 3.8
    worker: float = 300e6


def day(fleet: Fleet, run: PerRun, rates: Rates, prices: Prices) -> str:
    """Markdown: a day of ``fleet``, whose segments each start a run, with an audit of the day before."""
    segments, seconds = fleet.bytes_a_day / fleet.segment, 86_400
    ranges = segments * max(1, fleet.segment / TARGET_BYTES)
    agents = sum(line.requests for line in _lines(fleet, prices)) / DAYS_OF_MONTH
    gets = run.gets(segments, segments, segments, ranges)
    puts = run.puts(segments, segments, ranges)
    audits = segments * run.segment_get + ranges * (run.range_get + 1)
    dollars = (agents + puts) * prices.put + (gets + audits) * prices.get
    cores = {
        "uploads": fleet.bytes_a_day * rates.upload / seconds,
        "idle partitions": fleet.partitions * rates.idle_partition,
        "conversion": fleet.bytes_a_day / rates.decode / seconds,
        "JSON": fleet.bytes_a_day / rates.json / seconds,
        "runs": segments * rates.run / seconds,
        "audit": fleet.bytes_a_day / rates.audit / seconds,
    }
    spark = [cores[name] for name in ("conversion", "JSON", "audit")]
    stored = fleet.bytes_a_day * prices.stored / DAYS_OF_MONTH
    gib, millions = fleet.bytes_a_day / fleet.brokers / (1 << 30), 1e6
    memory = fleet.brokers * rates.agent / 1e9, sum(spark) * rates.worker / 1e9
    lines = {
        "bytes that a broker leads": f"{gib:.0f} GiB, {gib * 1024 / seconds:.2f} MiB a second",
        "segments, objects that raw gains": f"{segments:,.0f}, {segments * (PUTS_PER_SEGMENT - 1):,.0f}",
        "files that tables gain, before compaction": f"{ranges:,.0f}",
        "PUT and LIST of agents": f"{agents / millions:.1f} million",
        "PUT and LIST, GET and HEAD of runs": f"{puts / millions:.1f}, {gets / millions:.1f} million",
        "GET of the audit": f"{audits / millions:.1f} million",
        "bytes to the store; from it": f"{fleet.bytes_a_day / 1e12:.0f} TB and Parquet; twice that, and Parquet",
        "cores of brokers' hosts": f"{cores['uploads'] + cores['idle partitions']:.1f}",
        "cores of Spark: conversion, JSON, audit": ", ".join(f"{number:.0f}" for number in spark),
        "cores of runs' starts and commits": f"{cores['runs']:.0f}",
        "memory: agents; Spark's workers": f"{memory[0]:.0f} GB; {memory[1]:.0f} GB",
        "$ of requests; of each day that raw is kept": f"{dollars:,.0f}; {stored:,.0f}",
    }
    return "\n".join(["| a day | |", "|---|---|", *(f"| {name} | {text} |" for name, text in lines.items())]) + "\n"


def table(fleets: dict[str, Fleet], prices: Prices) -> str:
    """Markdown: a line for each purpose of each deployment, and the sum."""
    rows = ["| deployment | requests | millions a month | $ a month |", "|---|---|---:|---:|"]
    for name, fleet in fleets.items():
        bill = bill_of(fleet, prices)
        rows += [f"| {name} | {line.what} | {line.requests / 1e6:,.1f} | {line.dollars:,.0f} |" for line in bill]
        rows.append(
            f"| {name} | **all** | {sum(line.requests for line in bill) / 1e6:,.1f} | "
            f"**{sum(line.dollars for line in bill):,.0f}** |"
        )
    return "\n".join(rows) + "\n"


def bill_of(fleet: Fleet, prices: Prices) -> list[CostLine]:
    """The month's requests by purpose, also of packs and live landings."""
    bill = list(_lines(fleet, prices))
    if fleet.live_partitions:
        bill += _live_lines(fleet, PerLanding(), prices)
    if fleet.pausing_partitions:
        bill += _quiet_lines(fleet, prices)
    return bill


def _lines(fleet: Fleet, prices: Prices) -> Iterator[CostLine]:
    """The month's requests of sealed segments, by purpose."""
    month = 86_400 * DAYS_OF_MONTH
    segments = fleet.bytes_a_day * DAYS_OF_MONTH / fleet.segment
    news = min(segments / fleet.brokers, month / fleet.index_news)
    indexes = fleet.brokers * max(month / fleet.index_idle, news)
    listed = fleet.brokers * month / fleet.fill_interval
    sealed = segments * PUTS_PER_SEGMENT
    yield CostLine("segments: objects, manifests, watermarks", sealed, sealed * prices.put)
    yield CostLine(f"watermark indexes, every {duration(fleet.index_idle)} or on news", indexes, indexes * prices.put)
    yield CostLine(f"looking for gaps, every {duration(fleet.fill_interval)}", listed, listed * prices.put)


def _live_lines(fleet: Fleet, each: PerLanding, prices: Prices) -> Iterator[CostLine]:
    """The month's requests for packs and live landings; a landing comes once within each ``freshness``."""
    landings = 86_400 * DAYS_OF_MONTH / fleet.freshness
    packed = 2 * PACKS_PER_FRESHNESS * fleet.brokers * landings
    sealed = fleet.live_partitions * landings * PACKS_PER_FRESHNESS / MOST_UNSEALED_RANGES * PUTS_PER_SEGMENT
    yield CostLine(
        f"packs and heads, every {duration(fleet.freshness / PACKS_PER_FRESHNESS)}", packed, packed * prices.put
    )
    yield CostLine(f"seals of packed partitions, after {MOST_UNSEALED_RANGES} ranges", sealed, sealed * prices.put)
    of_broker = each.head_get + PACKS_PER_FRESHNESS * each.pack_get
    of_partition = each.partition_get + PACKS_PER_FRESHNESS * each.range_get
    read = landings * (fleet.brokers * of_broker + fleet.live_partitions * of_partition)
    yield CostLine("live landings: heads, packs, `offset.wm`, ranges", read, read * prices.get)
    puts, gets = fleet.live_topics * landings * each.topic_put, fleet.live_topics * landings * each.topic_get
    yield CostLine("live landings: plans and commits of topics", puts + gets, puts * prices.put + gets * prices.get)


def _quiet_lines(fleet: Fleet, prices: Prices) -> Iterator[CostLine]:
    """The month's requests for partitions that pause, if their brokers' pauses are spread out evenly.

    A pack and a head take all tails that become quiet within GATHERING_SECONDS. A partition that pauses is sealed
    within a day, once for all its pauses.
    """
    month = 86_400 * DAYS_OF_MONTH
    pauses = fleet.pausing_partitions * fleet.pauses * DAYS_OF_MONTH
    packed = 2 * min(pauses, fleet.brokers * month / GATHERING_SECONDS)
    sealed = fleet.pausing_partitions * min(fleet.pauses, 1) * DAYS_OF_MONTH * PUTS_PER_SEGMENT
    yield CostLine(f"packs and heads of quiet tails, within {GATHERING_SECONDS:.0f} s", packed, packed * prices.put)
    yield CostLine("seals of partitions that paused, after a day", sealed, sealed * prices.put)


EXAMPLES: Final = {
    "200 TB a day, 3,000 brokers, 1 GiB segments": Fleet(),
    "the same, 100 MiB segments": Fleet(segment=100 << 20),
    "the same, 10 MiB segments": Fleet(segment=10 << 20),
    "the same, 1 GiB segments, 1,000 live topics of 50,000 partitions at 60 s": Fleet(
        live_partitions=50_000, live_topics=1000
    ),
    "the same, 1 GiB segments, 500,000 partitions that pause each hour": Fleet(pausing_partitions=500_000, pauses=24),
    "1 TB a day, 12 brokers": Fleet(bytes_a_day=1e12, brokers=12),
}


if __name__ == "__main__":
    sys.stdout.write(day(Fleet(), PerRun(), Rates(), Prices()) + "\n")
    sys.stdout.write(table(EXAMPLES, Prices()))
