"""The page of all metrics, made from them: ``python -m uploader_agent.observability.metrics_doc > docs/metrics.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from uploader_agent.observability.metrics import Metrics

_INTRODUCTION = """\
# The agent's metrics

The agent serves these metrics at `/metrics` of `http.port`, in Prometheus' text format. There are
[alert rules](../deploy/prometheus/tidemark-agent.rules.yaml) and a [dashboard](../deploy/grafana/tidemark-agent.json)
for them. No metric has a label for the partition, because a broker has thousands: `tidemark-agent status` shows each
partition. `python -m uploader_agent.observability.metrics_doc` generates this page from the metrics.

A counter starts at 0 when the agent starts. A histogram has `…_bucket`, `…_sum` and `…_count`. A metric with labels
appears once it has counted something.
"""

_UNITS = {
    "timestamp_seconds": "seconds since 1970",
    "start_time_seconds": "seconds since 1970",
    "seconds": "seconds",
    "bytes": "bytes",
    "offsets": "offsets",
    "logs": "logs",
    "segments": "segments",
    "packs": "packs",
    "ranges": "ranges",
    "partitions": "partitions",
    "epochs": "epochs",
    "jobs": "jobs",
    "limit": "jobs",
    "failures": "failures",
    "requests": "requests",
    "gaps": "gaps",
    "heads": "heads",
    "scans": "scans",
    "events": "rotations",
    "unreadable": "directories",
    "fds": "file descriptors",
    "reloads": "reloads",
    "refused": "0 or 1",
    "reachable": "0 or 1",
    "info": "always 1",
}
"""The unit by the end of the name: Prometheus' base units, and the words that our names end in."""


class MetricRow(NamedTuple):
    """One metric, as it is scraped."""

    name: str
    kind: str
    labels: str
    unit: str
    help: str


def lines(metrics: Metrics) -> list[MetricRow]:
    """All metrics: ours in the order of their definition, then those of the process.

    Raises:
        KeyError: the end of a name tells no unit.
    """
    found = sorted(metrics.registry.collect(), key=lambda metric: metric.name.startswith("process_"))
    return [_line(metric, metrics.labels.get(metric.name, ())) for metric in found]


def unit(name: str) -> str:
    """The unit of the metric of this name. Raises KeyError if the name does not tell."""
    bare = name.removesuffix("_total")
    longest_first = sorted(_UNITS, key=len, reverse=True)
    return _UNITS[next((ending for ending in longest_first if bare.endswith(f"_{ending}")), bare)]


def page(found: Iterable[MetricRow]) -> str:
    """The page, as Markdown."""
    rows = [f"| `{one.name}` | {one.kind} | {one.labels} | {one.unit} | {one.help} |\n" for one in found]
    return _INTRODUCTION + "\n| metric | type | labels | unit | meaning |\n|---|---|---|---|---|\n" + "".join(rows)


def _line(metric: Metric, labels: Iterable[str]) -> MetricRow:
    ending = {"counter": "_total", "info": "_info"}.get(metric.type, "")  # as the text format has it
    named = ", ".join(f"`{label}`" for label in labels)
    return MetricRow(metric.name + ending, metric.type, named, unit(metric.name + ending), metric.documentation)


if __name__ == "__main__":
    sys.stdout.write(page(lines(Metrics())))
