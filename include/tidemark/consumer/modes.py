"""Which tier a consumer reads from, and which it prefers."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

from tidemark.config import hint

Tier = Literal["kafka", "remote"]
TIERS: Final[tuple[Tier, Tier]] = ("kafka", "remote")

OnGap = Literal["error", "skip"]
"""At offsets that are recorded as missing in the store: raise :class:`tidemark.errors.GapError`, or go on behind."""


class Mode(StrEnum):
    """Where records come from; group membership and commits are the brokers' in every mode."""

    REMOTE_ONLY = "REMOTE_ONLY"
    """Remote storage alone: brokers are asked for metadata, assignment and commits, never for records or offsets."""

    KAFKA_ONLY = "KAFKA_ONLY"
    """The brokers alone, as a ``KafkaConsumer``: storage is never opened."""

    REMOTE_PREFERRED = "REMOTE_PREFERRED"
    """Remote storage wherever it has the offset, the brokers for what it has not (the tail) or cannot give."""

    KAFKA_PREFERRED = "KAFKA_PREFERRED"
    """The brokers wherever they have the offset, remote storage for what their retention has removed."""

    @classmethod
    def _missing_(cls, value: object) -> Mode | None:
        given = "is required" if value == "" else f"{value!r} is not a mode"
        raise ValueError(f"mode: {given}; {hint(str(value).upper(), cls)}")

    @property
    def reads_kafka(self) -> bool:
        """Whether records may come from the brokers."""
        return self is not Mode.REMOTE_ONLY

    @property
    def reads_remote(self) -> bool:
        """Whether records may come from remote storage."""
        return self is not Mode.KAFKA_ONLY
