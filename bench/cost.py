"""What deployments pay for requests to the store in a month; ``python -m bench.cost`` prints the table.

The arithmetic is :mod:`tidemark.costs`, over figures that ``bench.agent`` and ``bench.idle`` measure.
"""

from __future__ import annotations

import sys
from typing import Final

from tidemark.costs import Deployment, PerLanding, PerSegment, Prices, lines, live_lines, quiet_lines


def table(deployments: dict[str, Deployment], each: PerSegment, prices: Prices) -> str:
    """Markdown: a line for each purpose of each deployment, and the sum."""
    rows = ["| deployment | requests | millions a month | $ a month |", "|---|---|---:|---:|"]
    for name, deployment in deployments.items():
        found = list(lines(deployment, each, prices))
        if deployment.live_partitions:
            found += live_lines(deployment, PerLanding(), prices)
        if deployment.pausing_partitions:
            found += quiet_lines(deployment, each, prices)
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
    "the same, 1 GiB segments, 1,000 live topics of 50,000 partitions at 60 s": Deployment(
        live_partitions=50_000, live_topics=1000
    ),
    "the same, 1 GiB segments, 500,000 partitions that pause each hour": Deployment(
        pausing_partitions=500_000, pauses=24
    ),
    "1 TB a day, 12 brokers": Deployment(bytes_a_day=1e12, brokers=12),
}


if __name__ == "__main__":
    sys.stdout.write(table(EXAMPLES, PerSegment(), Prices()))
