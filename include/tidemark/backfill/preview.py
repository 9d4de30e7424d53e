"""The dry run of a backfill: its input, the rows that it would replace, and an estimate of its duration and requests.

A preview is for a person and, as JSON, for programs. The estimate follows a simple model: Spark starts, and then
converts raw at a measured rate.
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.plan import RunResult
from tidemark.table.delta_table import TopicTable

MEASURED_RATE: Final = 153_000_000
"""Bytes a second: zstd segments from and to an S3 server on two cores (README, Figures)."""

START_SECONDS: Final = 20
"""Seconds of spark-submit beside the conversion: the JVM, the context, the first workers."""

_MOST_RUNS: Final = 20
_LARGE_RUN: Final = 64 << 20


class DatePreview(Model):
    """A date (ISO, empty for rows without one) as it is now.

    ``other_settings`` counts records that landed with other settings. ``after`` counts the records that the date would
    have, if that was computed. ``lost`` are files that the store lacks, or has not as the table's log describes them.
    """

    dt: str
    state: str
    rows: int
    quarantined: int
    filtered: int
    files: int
    bytes: int
    other_settings: int
    after: int | None = None
    lost: tuple[str, ...] = ()


class PartitionPreview(Model):
    """The input from a partition: offsets ``[start, end)``, in ``segments`` segments from ``first`` to ``last``."""

    incarnation: int
    partition: int
    start: int
    end: int
    segments: int
    first: str
    last: str
    bytes: int


class ReasonPreview(Model):
    """The ``records`` that were refused for a ``reason``, of those that name the same schema or none.

    ``schema_id`` is the number or GUID that they name, ``schema_version`` its version in the subject that the topic
    follows, as far as it was adopted or waits for a person.
    """

    reason: str
    schema_id: str | None
    schema_version: int | None
    records: int


class Preview(StoredObject):
    """``reports/<name>/preview.json``: the dry run. ``added`` are dates beside the requested ones, which exchange rows.

    A replay reads quarantined rows, so its ``segments`` are files of quarantine, and ``reasons`` say why the rows in
    the newest ``reasons_of`` of these files were refused. In a rebuild, ``waiting`` counts the
    offsets that are uploaded and not landed; ingestion lands them. ``reads`` and ``writes`` are the requests of one
    pass, ``rate`` is in bytes a second. ``plan`` is the key of the plan of ``attempt``; empty if none was written.
    """

    most_bytes: ClassVar[int] = object_sizes.REPORT

    cluster: str
    topic: str
    table: str
    kind: Literal["rebuild", "replay", "repair"] = "rebuild"
    ledger_n: int
    configuration: str = ""
    whole: bool
    dates: tuple[DatePreview, ...]
    added: tuple[str, ...]
    partitions: tuple[PartitionPreview, ...]
    tasks: int
    segments: int
    bytes: int
    removes: tuple[str, ...]
    columns: tuple[str, ...]
    reasons: tuple[ReasonPreview, ...] = ()
    reasons_of: int = 0
    waiting: int = 0
    reads: int = 0
    writes: int = 0
    rate: int = 0
    attempt: int = 0
    plan: str = ""

    @property
    def empty(self) -> bool:
        """True if there is nothing to do."""
        return not (self.partitions or self.removes)


def conversion_rate(table: TopicTable, ledger: Ledger) -> int:
    """Bytes a second at which raw of the topic is converted here.

    It is the best of the topic's own last runs that were large enough to measure it. Where there is none, it is
    :data:`MEASURED_RATE`.
    """
    rates = []
    for attempt in ledger.landed[-_MOST_RUNS:]:
        result = RunResult.load_or_none(table.store, table.keys.result(attempt))
        if result is None:
            continue  # the result was deleted with age, or the attempt is a fold
        seconds = result.seconds.get("convert", 0.0)
        if result.bytes_read >= _LARGE_RUN and seconds > 0:
            rates.append(int(result.bytes_read / seconds))
    return max(rates, default=MEASURED_RATE)


def estimated_minutes(preview: Preview, *, compares: bool, rewrites: bool) -> float:
    """Minutes of the run that ``preview`` shows: a pass over raw to compare, and another to rewrite.

    ``minutes = jobs x START_SECONDS / 60 + passes x bytes / rate / 60``.
    """
    passes = compares + rewrites
    if preview.empty or not passes:
        return 0.0
    return passes * (START_SECONDS + preview.bytes / (preview.rate or MEASURED_RATE)) / 60


def estimated_requests(preview: Preview, *, compares: bool, rewrites: bool) -> int:
    """Number of requests to the store. A comparison reads raw and the table's files."""
    comparing = preview.reads + sum(shown.files for shown in preview.dates) if compares else 0
    return comparing + (preview.reads + preview.writes if rewrites else 0)
