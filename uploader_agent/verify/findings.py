"""The words of ``verify`` for a finding; a partition gets the word of its worst finding."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from tidemark.formats.keys import TopicPartition


class Severity(StrEnum):
    """The words, ascending by severity."""

    OK = "OK"
    CLAIMED = "CLAIMED"
    """A leader has claimed the partition, and nothing of it is stored yet."""
    PACKED = "PACKED"
    """Offsets that packs hold, and no segment yet: the newest ones of a partition, until they are sealed."""
    LAGGING = "LAGGING"
    """Segments that may be sealed are not, or ``offset.wm`` is behind the stored segments."""
    COMPACTED = "COMPACTED"
    """Offsets that the broker's compaction has removed."""
    OVERLAP = "OVERLAP"
    """Two segments hold the same offsets of one log, as after a change of leader; readers take each offset once."""
    TRUNCATED = "TRUNCATED"
    """Offsets that an unclean election cut off the log; the stored bytes of the dead branch are not read."""
    TIERED = "TIERED"
    """Offsets that only Kafka's own remote tier has: not in the store, and not lost."""
    PARTED = "PARTED"
    """Bytes of another history than the disk's, or than another object's: Kafka gave the same offsets twice."""
    GAP = "GAP"
    """Offsets that no readable segment has."""
    LACKING = "LACKING"
    """A segment lacks records that packs of the same offsets have, for example since compaction had removed them."""
    CORRUPT = "CORRUPT"
    """An object that differs from its manifest, or bytes that break the format."""


class VerifyFinding(NamedTuple):
    """A finding about the offsets ``[offset, end)``, or about an object.

    ``wrong`` makes the command fail: a GAP that nobody has acknowledged, a LACKING or PARTED segment, or a CORRUPT
    object if no other segment has its offsets, or its own manifest vouches for it.
    """

    word: Severity
    offset: int
    end: int
    object: str | None
    detail: str
    wrong: bool = False


def other_history(tp: TopicPartition) -> str:
    """The cause and the remedy of a PARTED finding."""
    cause = "another history, as after a restore of brokers or their metadata from a backup"
    return f"{cause}: `tidemark-agent branch {tp.topic} {tp.partition}` shows both, and goes on with the disk's"
