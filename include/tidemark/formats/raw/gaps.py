"""Offsets that are missing in the store, the reason, and a person's acknowledgement of them.

The acknowledgements of a partition's gaps lie under ``_acks/``. They count if their content agrees with their key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from pydantic import AwareDatetime, Field

from tidemark.formats.base import Model, StoredObject
from tidemark.intervals import Intervals

GapReason = Literal[
    "deleted_before_upload",
    "unclean_election",
    "failed_disk",
    "corrupt",
    "staging_full",
    "remote_tier",
    "unknown",
]

REMOTE_TIER: Final[GapReason] = "remote_tier"
"""The offsets have left the broker's disk for Kafka's own remote tier (KIP-405). Nothing is lost."""


class Gap(Model):
    """The missing offsets ``[start, end)``, the time of their detection, and the reason.

    ``reason`` is a :data:`GapReason`, or that of a later version. In a ledger, ``read`` is true if a task has read the
    stored bytes and not found them, and false if no segment is stored there.
    """

    start: int = Field(alias="from", ge=0)
    end: int = Field(alias="to", ge=0)
    reason: str
    detected_at: AwareDatetime
    read: bool = False

    @property
    def in_remote_tier(self) -> bool:
        """True if the offsets are not lost, but only in Kafka's remote tier."""
        return self.reason == REMOTE_TIER


class Acknowledgement(StoredObject):
    """A person's statement that ``[start, end)`` is lost and that the partition may continue. Written once.

    ``place`` is the topic's incarnation as in keys. ``by`` is the name that the writer gives, ``written_as`` the
    identity under which the object was written: see :func:`tidemark.store.identity.identity`.
    """

    cluster: str
    place: str
    partition: int = Field(ge=0)
    start: int = Field(alias="from", ge=0)
    end: int = Field(alias="to", ge=0)
    by: str = Field(min_length=1)
    written_as: str = Field(min_length=1)
    at: AwareDatetime
    reason: str = Field(min_length=1)


def split_acknowledged(gaps: Iterable[Gap], acknowledged: Intervals) -> tuple[tuple[Gap, ...], tuple[Gap, ...]]:
    """The parts of ``gaps`` that hold the partition up, and the parts that a person has acknowledged."""
    holding: list[Gap] = []
    passed: list[Gap] = []
    for gap in gaps:
        whole = Intervals.of([gap])
        holding += [gap.model_copy(update=part._asdict()) for part in whole - acknowledged]
        passed += [gap.model_copy(update=part._asdict()) for part in whole & acknowledged]
    return tuple(holding), tuple(passed)
