"""Offsets that are missing in the store, the reason, and a person's acknowledgement of them.

The acknowledgements of a partition's gaps lie under ``_acks/``. They count if their content agrees with their key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from pydantic import AwareDatetime, Field

from tidemark.errors import FormatError
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.keys import ControlKeys, PartitionKeys
from tidemark.intervals import Intervals
from tidemark.store import Store

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


def read_acknowledgements(store: Store, control: ControlKeys, keys: PartitionKeys) -> list[Acknowledgement]:
    """All acknowledgements of a partition; ``store`` is the deployment's default store.

    Raises:
        FormatError: an object does not parse, or is about other offsets than its key names.
        StoreError: the store failed.
    """
    folder = control.acknowledgements(keys.place, keys.partition)
    return [read_acknowledgement(store, control, keys, info.key) for info in store.list(folder)]


def acknowledged(store: Store, control: ControlKeys, keys: PartitionKeys) -> Intervals:
    """The offsets of all :func:`read_acknowledgements`."""
    return Intervals.of(read_acknowledgements(store, control, keys))


def split_acknowledged(gaps: Iterable[Gap], acknowledged: Intervals) -> tuple[tuple[Gap, ...], tuple[Gap, ...]]:
    """The parts of ``gaps`` that hold the partition up, and the parts that a person has acknowledged."""
    holding: list[Gap] = []
    passed: list[Gap] = []
    for gap in gaps:
        whole = Intervals.of([gap])
        holding += [gap.model_copy(update=part._asdict()) for part in whole - acknowledged]
        passed += [gap.model_copy(update=part._asdict()) for part in whole & acknowledged]
    return tuple(holding), tuple(passed)


def read_acknowledgement(store: Store, control: ControlKeys, keys: PartitionKeys, key: str) -> Acknowledgement:
    """The acknowledgement under ``key``. Raises NotFound, or the errors of :func:`read_acknowledgements`."""
    stored = Acknowledgement.load(store, key)
    if key != control.acknowledgement(keys.place, keys.partition, stored.start, stored.end):
        raise FormatError(key, f"is about offsets {stored.start} to {stored.end}, but its key names others")
    if (stored.cluster, stored.place, stored.partition) != (control.cluster, keys.place, keys.partition):
        raise FormatError(
            key, f"is about {stored.cluster}/{stored.place}-{stored.partition}, but its key names another partition"
        )
    return stored
