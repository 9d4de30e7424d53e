"""The words of ``verify``, for a finding and, as the worst of its findings, for a partition."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Severity(StrEnum):
    """Ascending by how much a person should care."""

    OK = "OK"
    CLAIMED = "CLAIMED"
    """A leader has claimed the partition, and nothing of it is stored yet."""
    PACKED = "PACKED"
    """Offsets that packs hold, and no segment yet: the newest ones of a partition, until they are sealed."""
    LAGGING = "LAGGING"
    """Segments that may be sealed are not, or ``offset.wm`` is behind what is there."""
    COMPACTED = "COMPACTED"
    """Offsets that the broker's compaction has removed."""
    OVERLAP = "OVERLAP"
    """Two segments hold the same offsets of the same log, as after a change of leader; readers take each once."""
    TRUNCATED = "TRUNCATED"
    """Offsets that an unclean election cut off the log; the stored bytes of the dead branch are not read."""
    GAP = "GAP"
    """Offsets that no readable segment has."""
    LACKING = "LACKING"
    """A segment lacks records that packs of the same offsets have: compaction had removed them before it was sealed."""
    CORRUPT = "CORRUPT"
    """An object that is not what its manifest says, or bytes that break the format."""


class VerifyFinding(NamedTuple):
    """``[offset, end)`` of a partition, the object that it is about if it is one, and what is to be said.

    ``wrong`` is what makes the command fail: a GAP that nobody has acknowledged, a LACKING segment, or a CORRUPT object
    whose offsets no other segment has or that its own manifest vouches for.
    """

    word: Severity
    offset: int
    end: int
    object: str | None
    detail: str
    wrong: bool = False
