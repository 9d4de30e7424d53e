"""The price of a fleet's requests to the store in a month; ``python -m bench.cost`` prints the table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidemark.formats.raw.pack import MOST_UNSEALED_RANGES
from tidemark.formats.raw.watermark_index import PACKS_PER_FRESHNESS
from tidemark.onboarding.costs import DAYS, Line, PerLanding, PerSegment, Prices
from tidemark.words import duration
from uploader_agent.packing.ticks import GATHERING


@dataclass(frozen=True)
class Fleet:
    """The quantities that the cost depends on: bytes of leaders alone, sizes in bytes, intervals in seconds.

    ``live_partitions`` of ``live_topics`` always have new records, and a promised ``freshness``.
    ``pausing_partitions`` of other topics pause for longer than the agent's ``tail_after``, ``pauses`` times a day.
    """

    bytes_a_day: float = 200e12
    segment: float = 1 << 30
    brokers: int = 3000
    index_news: float = 10
    index_idle: float = 60
    fill_interval: float = 60
    live_partitions: float = 0
    live_topics: float = 0
    freshness: float = 60
    pausing_partitions: float = 0
    pauses: float = 0


def table(fleets: dict[str, Fleet], each: PerSegment, prices: Prices) -> str:
    """Markdown: a line for each purpose of each deployment, and the sum."""
    rows = ["| deployment | requests | millions a month | $ a month |", "|---|---|---:|---:|"]
    for name, fleet in fleets.items():
        bill = list(_lines(fleet, each, prices))
        if fleet.live_partitions:
            bill += _live_lines(fleet, PerLanding(), prices)
        if fleet.pausing_partitions:
            bill += _quiet_lines(fleet, each, prices)
        rows += [f"| {name} | {line.what} | {line.requests / 1e6:,.1f} | {line.dollars:,.0f} |" for line in bill]
        rows.append(
            f"| {name} | **all** | {sum(line.requests for line in bill) / 1e6:,.1f} | "
            f"**{sum(line.dollars for line in bill):,.0f}** |"
        )
    return "\n".join(rows) + "\n"


def _lines(fleet: Fleet, each: PerSegment, prices: Prices) -> Iterator[Line]:
    """The month's requests by purpose."""
    month = 86_400 * DAYS
    segments = fleet.bytes_a_day * DAYS / fleet.segment
    news = min(segments / fleet.brokers, month / fleet.index_news)
    indexes = fleet.brokers * max(month / fleet.index_idle, news)
    listed = fleet.brokers * month / fleet.fill_interval
    yield Line("segments: objects, manifests, watermarks", segments * each.put, segments * each.put * prices.put)
    yield Line(f"watermark indexes, every {duration(fleet.index_idle)} or on news", indexes, indexes * prices.put)
    yield Line(f"looking for gaps, every {duration(fleet.fill_interval)}", listed, listed * prices.put)


def _live_lines(fleet: Fleet, each: PerLanding, prices: Prices) -> Iterator[Line]:
    """The month's requests for packs and live landings; a landing comes once within each ``freshness``."""
    landings = 86_400 * DAYS / fleet.freshness
    packed = 2 * PACKS_PER_FRESHNESS * fleet.brokers * landings
    sealed = fleet.live_partitions * landings * PACKS_PER_FRESHNESS / MOST_UNSEALED_RANGES * PerSegment().put
    yield Line(f"packs and heads, every {duration(fleet.freshness / PACKS_PER_FRESHNESS)}", packed, packed * prices.put)
    yield Line(f"seals of packed partitions, after {MOST_UNSEALED_RANGES} ranges", sealed, sealed * prices.put)
    of_broker = each.head_get + PACKS_PER_FRESHNESS * each.pack_get
    of_partition = each.partition_get + PACKS_PER_FRESHNESS * each.range_get
    read = landings * (fleet.brokers * of_broker + fleet.live_partitions * of_partition)
    yield Line("live landings: heads, packs, `offset.wm`, ranges", read, read * prices.get)
    puts, gets = fleet.live_topics * landings * each.topic_put, fleet.live_topics * landings * each.topic_get
    yield Line("live landings: plans and commits of topics", puts + gets, puts * prices.put + gets * prices.get)


def _quiet_lines(fleet: Fleet, each: PerSegment, prices: Prices) -> Iterator[Line]:
    """The month's requests for partitions that pause, if their brokers' pauses are spread out evenly.

    A pack and a head take all tails that become quiet within GATHERING. A partition that pauses is sealed within
    a day, once for all its pauses.
    """
    month = 86_400 * DAYS
    pauses = fleet.pausing_partitions * fleet.pauses * DAYS
    packed = 2 * min(pauses, fleet.brokers * month / GATHERING)
    sealed = fleet.pausing_partitions * min(fleet.pauses, 1) * DAYS * each.put
    yield Line(f"packs and heads of quiet tails, within {GATHERING:.0f} s", packed, packed * prices.put)
    yield Line("seals of partitions that paused, after a day", sealed, sealed * prices.put)


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
    sys.stdout.write(table(EXAMPLES, PerSegment(), Prices()))
