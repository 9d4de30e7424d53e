"""Each metric is set, is served, tells its unit by its name, and stands on the page."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from prometheus_client import Counter, Gauge, Histogram, generate_latest

from tests.support.paths import ROOT
from uploader_agent.observability import metrics_doc
from uploader_agent.observability.metrics import Metrics

AGENT = ROOT / "uploader_agent"
METRICS = Metrics()
NAMES = [name for name, value in vars(METRICS).items() if isinstance(value, (Counter, Gauge, Histogram))]
LINES = metrics_doc.lines(METRICS)
UNITS = re.compile(
    r"_(?:seconds|bytes|ratio|offsets|logs|segments|packs|ranges|partitions|epochs|jobs|limit|failures|requests|gaps"
    r"|heads|scans|events|unreadable|fds|reloads|refused|reachable|info)(?:_total)?$"
)
"""Prometheus' base units and the words for things that are counted, which the names end in."""
SETTING = {"inc", "dec", "set", "set_to_current_time", "set_function", "observe", "labels", "time", "track_inprogress"}


def set_in(path: Path) -> set[str]:
    """The ``<x>`` of all ``metrics.<x>.inc()`` and the like."""
    accesses = [
        node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Attribute)
    ]
    return {
        node.value.attr
        for node in accesses
        if node.attr in SETTING and isinstance(node.value, ast.Attribute) and _is_metrics(node.value.value)
    }


def _is_metrics(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.lstrip("_") == "metrics"


def test_every_metric_is_set_somewhere() -> None:
    found = set().union(*(set_in(path) for path in AGENT.rglob("*.py")))
    assert len(NAMES) > 30
    assert not set(NAMES) - found


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_every_metric_is_served_with_a_help_that_is_a_sentence(line: metrics_doc.MetricRow) -> None:
    text = generate_latest(METRICS.registry).decode()
    assert f"# HELP {line.name} {line.help}\n" in text
    assert re.fullmatch(r"[A-Z0-9].+\.", line.help)
    assert f"# TYPE {line.name} " in text


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_every_name_ends_in_its_unit(line: metrics_doc.MetricRow) -> None:
    assert UNITS.search(line.name)


def test_the_page_is_current() -> None:
    """If not: ``python -m uploader_agent.observability.metrics_doc > docs/metrics.md``."""
    assert (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8") == metrics_doc.page(LINES)
