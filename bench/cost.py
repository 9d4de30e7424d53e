"""What a deployment pays for requests to the store in a month, from what one segment and one idle agent ask for.

Arithmetic over figures that ``bench.agent`` and ``bench.idle`` measure; ``python -m bench.cost`` prints the table.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

DAYS: Final = 30.4
"""Days in a month."""


@dataclass(frozen=True)
class Prices:
    """US dollars for a request: S3 Standard in us-east-1 by its price list (PUT, COPY, POST, LIST)."""

    put: float = 0.005 / 1000


@dataclass(frozen=True)
class Deployment:
    """What the cost depends on; bytes are those of leaders alone, sizes in bytes, intervals in seconds."""

    bytes_a_day: float = 200e12
    segment: float = 1 << 30
    brokers: int = 3000
    index_news: float = 10
    index_idle: float = 60
    fill_interval: float = 60


@dataclass(frozen=True)
class PerSegment:
    """Requests that one segment takes: its objects, manifest and ``offset.wm``."""

    put: float = 5


@dataclass(frozen=True)
class Line:
    """One line of the table: requests and dollars in a month."""

    what: str
    requests: float
    dollars: float


def lines(deployment: Deployment, each: PerSegment, prices: Prices) -> Iterator[Line]:
    """The month's requests by what they are for."""
    month = 86_400 * DAYS
    segments = deployment.bytes_a_day * DAYS / deployment.segment
    news = min(segments / deployment.brokers, month / deployment.index_news)
    indexes = deployment.brokers * max(month / deployment.index_idle, news)
    listed = deployment.brokers * month / deployment.fill_interval
    yield Line("segments: objects, manifests, watermarks", segments * each.put, segments * each.put * prices.put)
    yield Line(f"watermark indexes, every {deployment.index_idle:g} s or on news", indexes, indexes * prices.put)
    yield Line(f"looking for gaps, every {deployment.fill_interval:g} s", listed, listed * prices.put)


def table(deployments: dict[str, Deployment], each: PerSegment, prices: Prices) -> str:
    """Markdown: a line for each purpose of each deployment, and the sum."""
    rows = ["| deployment | requests | millions a month | $ a month |", "|---|---|---:|---:|"]
    for name, deployment in deployments.items():
        found = list(lines(deployment, each, prices))
        rows += [f"| {name} | {one.what} | {one.requests / 1e6:,.1f} | {one.dollars:,.0f} |" for one in found]
        rows.append(
            f"| {name} | **all** | {sum(one.requests for one in found) / 1e6:,.1f} | "
            f"**{sum(one.dollars for one in found):,.0f}** |"
        )
    return "\n".join(rows) + "\n"


EXAMPLES: Final = {
    "200 TB a day, 3,000 brokers, 1 GiB segments": Deployment(),
    "the same, 100 MiB segments": Deployment(segment=100 << 20),
    "the same, 10 MiB segments": Deployment(segment=10 << 20),
    "1 TB a day, 12 brokers": Deployment(bytes_a_day=1e12, brokers=12),
}


if __name__ == "__main__":
    sys.stdout.write(table(EXAMPLES, PerSegment(), Prices()))
