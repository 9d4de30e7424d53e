"""The modes of a consumer: the tiers that it reads from, and its preference."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

from tidemark.config import hint

Tier = Literal["kafka", "remote"]
TIERS: Final[tuple[Tier, Tier]] = ("kafka", "remote")

OnGap = Literal["error", "skip"]
"""The reaction to offsets recorded as missing in the store: raise :class:`tidemark.errors.GapError`, or skip them."""


class Mode(StrEnum):
    """The source of records; group membership and commits are the brokers' in every mode."""

    REMOTE_ONLY = "REMOTE_ONLY"
    """Remote storage alone: brokers are asked for metadata, assignment and commits, never for records or offsets."""

    KAFKA_ONLY = "KAFKA_ONLY"
    """The brokers alone, as a ``KafkaConsumer``: storage is never opened."""

    REMOTE_PREFERRED = "REMOTE_PREFERRED"
    """Remote storage wherever it has the offset, the brokers for offsets that it lacks (the tail) or cannot read."""

    KAFKA_PREFERRED = "KAFKA_PREFERRED"
    """The brokers wherever their disks have the offset, remote storage for what has left them if it has that."""

    @classmethod
    def _missing_(cls, value: object) -> Mode | None:
        given = "is required" if value == "" else f"{value!r} is not a mode"
        raise ValueError(f"mode: {given}; {hint(str(value).upper(), cls)}")

    @property
    def reads_kafka(self) -> bool:
        """True if records may come from the brokers."""
        return self is not Mode.REMOTE_ONLY

    @property
    def reads_remote(self) -> bool:
        """True if records may come from remote storage."""
        return self is not Mode.KAFKA_ONLY
