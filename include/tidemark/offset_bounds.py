"""Bounds of a range of a topic, as people write them: ``beginning``, ``end``, an offset, a time.

=====================  =================================================================================
``beginning``          the first offset that is there
``end``                the offset after the last that can be read, when the range is resolved
``1000``               offset 1000 of every partition
``3:1000``             offset 1000 of partition 3; may stand beside a bound for all others
``2026-11-20T08:00Z``  the first record with at least this timestamp (ISO 8601; UTC if no zone is given)
``@1794960000000``     the first record with at least this timestamp, in milliseconds since 1970
=====================  =================================================================================

Ranges are half-open: an end is the first offset that is left out. A time means an offset, as in Kafka's ListOffsets:
where timestamps are out of order, records above it may be older.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal, Protocol

from tidemark.errors import ConfigError

_OFFSET: Final = re.compile(r"(?:(\d{1,10}):)?(\d{1,19})")
_MILLISECONDS: Final = re.compile(r"@(-?\d{1,18})")
_RULE: Final = "must be beginning, end, an offset, PARTITION:OFFSET, a time such as 2026-11-20T08:00Z, or @MILLISECONDS"


class Edges(Protocol):
    """Offsets and times of one partition, against which its bounds are resolved."""

    def beginning(self) -> int:
        """The first offset that is there."""
        ...

    def end(self) -> int:
        """The offset after the last that can be read."""
        ...

    def at_time(self, timestamp_ms: int) -> int | None:
        """The offset of the first record with at least this timestamp, or None if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Bound:
    """One bound; ``value`` is an offset, or milliseconds."""

    kind: Literal["beginning", "end", "offset", "time"]
    value: int = 0

    def resolve(self, edges: Edges) -> int:
        """The offset of the bound; the partition's end if no record is as late as its time."""
        if self.kind == "beginning":
            return edges.beginning()
        if self.kind == "end":
            return edges.end()
        if self.kind == "offset":
            return self.value
        offset = edges.at_time(self.value)
        return edges.end() if offset is None else offset

    def __str__(self) -> str:
        if self.kind == "time":
            return f"@{self.value}"
        return f"{self.value}" if self.kind == "offset" else self.kind


BEGINNING: Final = Bound("beginning")
END: Final = Bound("end")


@dataclass(frozen=True, slots=True)
class OffsetBounds:
    """The bounds of all partitions on one side."""

    default: Bound
    partitions: Mapping[int, Bound] = field(default_factory=dict)

    def of(self, partition: int) -> Bound:
        """The bound of a partition."""
        return self.partitions.get(partition, self.default)


def parse_bounds(texts: Sequence[str], option: str, default: Bound) -> OffsetBounds:
    """The bounds in the values of an option, which may be repeated; other partitions have ``default``.

    Raises:
        ConfigError: a text is no bound, or two texts are for the same partitions.
    """
    whole: Bound | None = None
    parts: dict[int, Bound] = {}
    for text in texts:
        partition, bound = _parse(text, option)
        if (whole if partition is None else parts.get(partition)) is not None:
            raise ConfigError(option, [("", f"{text!r}: is given twice for the same partitions; give it once")])
        if partition is None:
            whole = bound
        else:
            parts[partition] = bound
    return OffsetBounds(whole or default, parts)


def _parse(text: str, option: str) -> tuple[int | None, Bound]:
    if text in {"beginning", "end"}:
        return None, BEGINNING if text == "beginning" else END
    if match := _OFFSET.fullmatch(text):
        partition, offset = match.groups()
        return None if partition is None else int(partition), Bound("offset", int(offset))
    if match := _MILLISECONDS.fullmatch(text):
        return None, Bound("time", int(match[1]))
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(option, [("", f"{text!r} {_RULE}")]) from None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    since = at - datetime.fromtimestamp(0, UTC)
    return None, Bound("time", (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000)
