"""Tries a topic's settings on a sample, with the parser that would read its records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tidemark.onboarding.event_time import insane
from tidemark.parsers.base import Parsed
from tidemark.parsers.factory import parser_of
from tidemark.parsers.settings import FollowingParser
from tidemark.topics import TopicSettings

_REASONS: Final = 5
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Trial(NamedTuple):
    """The result of parsing a sample. All counts are of rows.

    ``refused`` would go to quarantine, ``reasons`` are the most frequent reasons. ``nulls`` are by column, of the rows
    that landed; ``landed`` has their places. ``misfits`` are fields, by name, that their column cannot hold and that
    would land as null; ``unknown`` are fields that no column takes. ``insane`` have a time outside of
    ``sane_timestamps``.
    """

    rows: int
    refused: int
    reasons: Mapping[str, int]
    types: Mapping[str, str]
    nulls: Mapping[str, int]
    misfits: Mapping[str, int]
    unknown: Mapping[str, int]
    insane: int
    landed: pa.Array[Any]
    parsed: Parsed

    def answer(self) -> dict[str, Any]:
        """The result for programs."""
        names = ("rows", "refused", "reasons", "misfits", "unknown", "insane")
        columns = {name: {"type": kind, "null": self.nulls[name]} for name, kind in self.types.items()}
        return {**{name: getattr(self, name) for name in names}, "columns": columns}


def tried(topic: TopicSettings, rows: pa.RecordBatch, now: datetime) -> Trial:
    """Parse ``rows`` with the settings of ``topic``; a schema that it follows was adopted.

    Raises:
        ConfigError: the parser cannot be made: a schema cannot become columns, or a name is not valid.
        RegistryUnavailable: a schema could not be fetched.
    """
    parsed = parser_of(topic.parser, topic.topic).parse(rows)
    landed = pa.array([row for row in range(len(rows)) if row not in parsed.refused], pa.int64())
    columns = parsed.columns.take(landed)
    sane = topic.sane_timestamps
    earliest = datetime(sane.earliest.year, sane.earliest.month, sane.earliest.day, tzinfo=topic.zone)
    times = parsed.event_time
    if times is None:
        times = rows.column("kafka_timestamp").cast(pa.int64())
    return Trial(
        rows=len(rows),
        refused=len(parsed.refused),
        reasons=dict(Counter(parsed.refused.values()).most_common(_REASONS)),
        types={field.name: str(field.type) for field in columns.schema},
        nulls={name: column.null_count for name, column in zip(columns.schema.names, columns.columns, strict=True)},
        misfits=_misfits(topic, rows, parsed),
        unknown=parsed.unknown,
        insane=insane(times, _microseconds(earliest), _microseconds(now + sane.ahead)),
        landed=landed,
        parsed=parsed,
    )


def _misfits(topic: TopicSettings, rows: pa.RecordBatch, parsed: Parsed) -> dict[str, int]:
    """The fields that rows would lose if misfits landed: they are unknown then, and were not before."""
    if not isinstance(topic.parser, FollowingParser) or (topic.parser.misfits == "quarantine" and not parsed.refused):
        return {}
    landing = topic.parser.model_copy(update={"misfits": "land"})
    relaxed = parser_of(landing, topic.topic).parse(rows)
    names = {field.name for field in relaxed.columns.schema} | {
        ".".join(column.keys) for column in getattr(topic.parser, "columns", ())
    }
    return {name: count for name, count in relaxed.unknown.items() if name in names}


def _microseconds(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)
