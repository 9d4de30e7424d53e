"""The duration of a backfill, by a simple model: Spark starts, and then converts raw at a measured rate.

``minutes = jobs x START_SECONDS / 60 + passes x bytes / rate / 60``. The rate is the best of the topic's own last runs
that were large enough to measure it. Where there is none, it is :data:`MEASURED_RATE`.
"""

from __future__ import annotations

from typing import Final

from tidemark.backfill.preview import Preview
from tidemark.errors import NotFound
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.plan import RunResult
from tidemark.table.delta_table import TopicTable

MEASURED_RATE: Final = 153_000_000
"""Bytes a second: zstd segments from and to an S3 server on two cores (README, Figures)."""

START_SECONDS: Final = 20
"""Seconds of spark-submit beside the conversion: the JVM, the context, the first workers."""

_RUNS: Final = 20
_LARGE: Final = 64 << 20


def rate_of(table: TopicTable, ledger: Ledger) -> int:
    """Bytes a second at which raw of the topic is converted here."""
    rates = []
    for attempt in ledger.landed[-_RUNS:]:
        key = table.keys.result(attempt)
        try:
            result = RunResult.load(table.store, key)
        except NotFound:
            continue  # the result was deleted with age, or the attempt is a fold
        seconds = result.seconds.get("convert", 0.0)
        if result.bytes_read >= _LARGE and seconds > 0:
            rates.append(int(result.bytes_read / seconds))
    return max(rates, default=MEASURED_RATE)


def minutes(preview: Preview, *, compares: bool, rewrites: bool) -> float:
    """Minutes of the run that ``preview`` shows: a pass over raw to compare, and another to rewrite."""
    passes = compares + rewrites
    if preview.empty or not passes:
        return 0.0
    return passes * (START_SECONDS + preview.bytes / (preview.rate or MEASURED_RATE)) / 60


def requests(preview: Preview, *, compares: bool, rewrites: bool) -> int:
    """Number of requests to the store. A comparison reads raw and the table's files."""
    comparing = preview.reads + sum(shown.files for shown in preview.dates) if compares else 0
    return comparing + (preview.reads + preview.writes if rewrites else 0)
