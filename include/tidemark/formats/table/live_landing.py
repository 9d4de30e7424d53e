"""The live landing of a cluster: the topics that one run lands together, the state that the scan saw, the outcomes.

``_tidemark/_live/<cluster>.json`` is one object. The triggerer replaces it when something is due, the job writes the
outcomes into it, and the task ends it. All do so by If-Match, so a process that was overtaken changes nothing. A
landing that has not ended is carried out again unchanged: its attempts land once. Nothing else depends on the object:
the tables' ledgers prove what has landed, and if it is lost, the next landing begins without it.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

from pydantic import AwareDatetime, Field

from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.store import Store

LandingStatus = Literal["due", "landed", "stale", "empty", "backlog", "failed"]


class AheadPartition(Model):
    """A partition with stored offsets beyond the ledger: up to ``end``, from the leader of ``leader_epoch``.

    ``restored`` is the number of restores in ``offset.wm``.
    """

    partition: int = Field(ge=0)
    incarnation: int = Field(ge=0)
    topic_id: str | None = None
    restored: int = Field(default=0, ge=0)
    leader_epoch: int
    end: int = Field(ge=0)


class TopicLanding(Model):
    """One topic's part: its landing attempt, and the partitions that were ahead, with their digest.

    ``backlog``: the topic has more than a live landing takes, and is left to its own runs. ``failures`` counts its
    landings that failed in a row; ``detail`` gives the reason of the last failure. A topic that did not land is not
    tried before ``again_at``; an ``empty`` topic is tried earlier if the digest has changed.
    """

    topic: str
    attempt: int
    digest: str
    partitions: tuple[AheadPartition, ...] = ()
    status: LandingStatus = "due"
    detail: str = ""
    failures: int = Field(default=0, ge=0)
    again_at: AwareDatetime | None = None


class LiveLanding(StoredObject):
    """The landing of ``topics`` together. ``held`` are topics of earlier landings that must not be tried again yet."""

    most_bytes: ClassVar[int] = object_sizes.PLAN

    cluster: str
    began_at: AwareDatetime
    ended_at: AwareDatetime | None = None
    topics: tuple[TopicLanding, ...] = ()
    held: tuple[TopicLanding, ...] = ()

    @property
    def by_topic(self) -> dict[str, TopicLanding]:
        """The newest entry of each topic."""
        return {landing.topic: landing for landing in (*self.held, *self.topics)}


class StoredLanding(NamedTuple):
    """A cluster's landing and its ETag; both None if there is none."""

    value: LiveLanding | None
    etag: str | None


def read_landing(store: Store, key: str) -> StoredLanding:
    """The landing under ``key``. A damaged one counts as none, and is replaced. Raises LaterFormat and StoreError."""
    found, etag = LiveLanding.load_to_replace(store, key)
    return StoredLanding(found if isinstance(found, LiveLanding) else None, etag)


def write_landing(store: Store, key: str, landing: LiveLanding, etag: str | None) -> str:
    """Replace the landing that :func:`read_landing` returned with ``etag``. Returns the new ETag.

    Raises:
        PreconditionFailed: another process has replaced it.
        StoreError: the store failed.
    """
    return store.put(key, landing.to_bytes(), if_match=etag, if_none_match=etag is None)
