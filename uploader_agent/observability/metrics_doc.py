"""The page of all metrics, made from them: ``python -m uploader_agent.observability.metrics_doc > docs/metrics.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from uploader_agent.observability.metrics import PREFIX, Metrics

_INTRODUCTION = """\
# The agent's metrics

If `http.port` is set in [the agent's file](agent.md#how-do-i-see-whether-it-is-well), the agent serves its metrics in
Prometheus' format. On the broker's host you can look at them:

```
curl -s http://127.0.0.1:9095/metrics
```

Two files are ready for use: [alert rules](../deploy/prometheus/tidemark-agent.rules.yaml) for Prometheus, and a
[dashboard](../deploy/grafana/tidemark-agent.json) for Grafana. On Kubernetes, `metrics.podMonitor` of [the
chart](kubernetes.md#health-credentials-metrics) has Prometheus' operator find the agents.

## Which of them should I look at first?

| you want to know | look at |
|---|---|
| whether offsets are lost | `tidemark_agent_gaps` |
| whether rotated segments wait to be uploaded | `tidemark_agent_lag_seconds`, `tidemark_agent_lag_bytes` |
| whether topics with a `freshness` are packed in time | `tidemark_agent_oldest_unstored_seconds` |
| whether the store takes requests | `tidemark_agent_store_refused`, `tidemark_agent_failures_total` |
| whether the broker answers | `tidemark_agent_broker_reachable` |
| whether the broker's disks can be read | `tidemark_agent_log_dirs_unreadable` |
| whether retention may delete what waits | `tidemark_agent_unheld_segments`, `tidemark_agent_held_bytes` |

## All metrics

Labels are in braces. No metric has a label for the partition, since there may be thousands. `tidemark-agent status`
shows each partition. A counter starts at 0 when the agent starts. A histogram has `…_bucket`, `…_sum` and `…_count`.
The client library adds its own `process_…` metrics.
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
