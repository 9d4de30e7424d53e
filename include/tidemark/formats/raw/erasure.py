"""Requests for erasure, their approvals and withdrawals under ``_erasure/``. Another person's approval makes one count.

Each object is created once. A request names the values by digests under a secret: see :mod:`tidemark.erasure`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Annotated, ClassVar, Final, NamedTuple, Self

from pydantic import AwareDatetime, Field, model_validator

from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject

KEY_COLUMN: Final = "kafka_key"
"""The column of the record's key, which is searched unless a request names another."""

DUE_AFTER: Final = timedelta(days=30)
"""The time for a request that names no date: less than the month of GDPR, Art. 12(3)."""

NEAR: Final = timedelta(days=10)
"""The time before its date in which a request is near its end: a weekly pass still comes."""

_Name = Annotated[str, Field(min_length=1)]


class SearchedTopic(Model):
    """A topic, and its column that has the values; ``confluent``: without the frame of a registry's serializer."""

    topic: _Name
    column: _Name = KEY_COLUMN
    confluent: bool = False


class WantedValue(Model):
    """A value whose records are erased: its digest, and the hash that finds the few values worth a digest."""

    digest: str = Field(pattern="^[0-9a-f]{32}$")
    probe: str = Field(pattern="^[0-9a-f]{8}$")


class PartitionEnd(NamedTuple):
    """The end of a partition at the time of a request; later records are another matter."""

    incarnation: int
    partition: int
    end: int


class ErasureRequest(StoredObject):
    """A person's request to erase the records that have one of ``values``, up to ``through`` in each topic.

    ``due`` is the last day (UTC) for it; requests of before that field have none, see :attr:`due_on`.
    ``secret`` is the fingerprint of the secret of the digests. ``by`` is the name that the writer gives, ``written_as``
    the identity under which the object was written: see :func:`tidemark.store.identity.identity`.
    """

    most_bytes: ClassVar[int] = object_sizes.ERASURE

    id: str = Field(pattern="^[0-9a-f]{16}$")
    cluster: str
    topics: tuple[SearchedTopic, ...] = Field(min_length=1)
    values: tuple[WantedValue, ...] = Field(min_length=1)
    secret: str = Field(pattern="^[0-9a-f]{16}$")
    through: Mapping[str, tuple[PartitionEnd, ...]]
    reason: _Name
    by: _Name
    written_as: _Name
    at: AwareDatetime
    due: date | None = None

    @model_validator(mode="after")
    def _has_the_ends_of_each_topic(self) -> Self:
        names = [searched.topic for searched in self.topics]
        if len({*names}) < len(names) or self.through.keys() != {*names}:
            raise ValueError("must name each topic once in topics, and once in through")
        return self

    @property
    def due_on(self) -> date:
        """The last day, in UTC, on which the request is in time."""
        return self.due or (self.at + DUE_AFTER).date()

    @property
    def near_from(self) -> date:
        """The day, in UTC, from which people are warned: ten days before its date, or after half of a shorter time."""
        return self.due_on - min(NEAR, (self.due_on - self.at.date()) / 2)

    def searched(self, topic: str) -> SearchedTopic | None:
        """The part of the request about ``topic``."""
        return next((searched for searched in self.topics if searched.topic == topic), None)


class ErasureApproval(StoredObject):
    """Another person's approval of the request with these bytes. ``records`` are most offsets that a pass may erase."""

    id: str = Field(pattern="^[0-9a-f]{16}$")
    request_sha256: str = Field(pattern="^[0-9a-f]{64}$")
    by: _Name
    written_as: _Name
    records: int | None = Field(default=None, ge=1)
    at: AwareDatetime


class ErasureWithdrawal(StoredObject):
    """A person's word that no pass shall carry out the request any more. What passes have erased stays so."""

    id: str = Field(pattern="^[0-9a-f]{16}$")
    reason: _Name
    by: _Name
    written_as: _Name
    at: AwareDatetime


class StoredRequest(NamedTuple):
    """A request, and the SHA-256 of its bytes."""

    request: ErasureRequest
    sha256: str

    def objection(self, by: str, written_as: str) -> str | None:
        """The reason why this writer cannot approve the request; None if nothing is wrong with that."""
        if _folded(by) == _folded(self.request.by):
            return f"{self.request.by} made the request, and another person must approve it"
        if _principal(written_as) == _principal(self.request.written_as):
            return f"the request was written as {self.request.written_as}, and its approval needs another identity"
        return None


class Approved(NamedTuple):
    """A request that counts. ``sha256`` is that of the approval's bytes, which masks name."""

    request: ErasureRequest
    approval: ErasureApproval
    sha256: str
    withdrawal: ErasureWithdrawal | None = None


class NotApproved(NamedTuple):
    """A request that does not count; ``objection`` is what is wrong with its approval, None without one."""

    request: ErasureRequest
    objection: str | None
    withdrawal: ErasureWithdrawal | None = None


def _folded(name: str) -> str:
    """A person's name without differences that make no other person."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def _principal(written_as: str) -> str:
    """The principal in the store: user and host behind it are what their process says. On a directory, both."""
    return written_as.partition(" by ")[0]
