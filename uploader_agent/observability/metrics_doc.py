"""The page of all metrics, made from them: ``python -m uploader_agent.observability.metrics_doc > docs/metrics.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from uploader_agent.observability.metrics import PREFIX, Metrics

_INTRODUCTION = """\
# The agent's metrics

The agent serves these metrics at `/metrics` of `http.port`, for
[alert rules](../deploy/prometheus/tidemark-agent.rules.yaml) and a [dashboard](../deploy/grafana/tidemark-agent.json).
Labels are in braces. No metric has a label for the partition: `tidemark-agent status` shows each one. A counter starts
at 0 with the agent. A histogram has `…_bucket`, `…_sum` and `…_count`. The client library adds its `process_…` metrics.
"""


class MetricRow(NamedTuple):
    """A row of the page: a metric, as it is scraped."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


def lines(metrics: Metrics) -> list[MetricRow]:
    """All metrics: the agent's own in the order of their definition, then the process's."""
    collected = sorted(metrics.registry.collect(), key=lambda metric: not metric.name.startswith(PREFIX))
    return [_line(metric, metrics.labels.get(metric.name, ())) for metric in collected]


def page(rows: Iterable[MetricRow]) -> str:
    """The page, as Markdown, with the agent's own metrics."""
    own = (row for row in rows if row.name.startswith(PREFIX))
    table = "".join(f"| `{row.name}{_braces(row.labels)}` | {row.kind} | {row.help} |\n" for row in own)
    return f"{_INTRODUCTION}\n| metric | type | meaning |\n|---|---|---|\n{table}"


def _line(metric: Metric, labels: Iterable[str]) -> MetricRow:
    ending = {"counter": "_total", "info": "_info"}.get(metric.type, "")  # as the text format has it
    return MetricRow(metric.name + ending, metric.type, tuple(labels), metric.documentation)


def _braces(labels: Sequence[str]) -> str:
    return f"{{{', '.join(labels)}}}" if labels else ""


if __name__ == "__main__":
    sys.stdout.write(page(lines(Metrics())))
