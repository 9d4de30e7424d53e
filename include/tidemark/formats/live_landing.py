"""The live landing of a cluster: which topics one run lands together, with what the scan knew, and what became of each.

``_tidemark/_live/<cluster>.json`` is one object. The triggerer replaces it when something is due, the job writes the
outcomes into it, and the task ends it. All do so by If-Match, so a process that was overtaken changes nothing. A
landing that has not ended is carried out again as it is: its attempts land once. Nothing depends on the object but
that: the tables' ledgers say what has landed, and if it is lost, the next landing begins without it.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

from pydantic import AwareDatetime, Field

from tidemark.errors import FormatError, NotFound
from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.store import Store

LandingStatus = Literal["due", "landed", "stale", "empty", "backlog", "failed"]


class AheadPartition(Model):
    """A partition of which the store holds more than the ledger: up to ``end``, by the leader of ``leader_epoch``."""

    partition: int = Field(ge=0)
    incarnation: int = Field(ge=0)
    topic_id: str | None = None
    leader_epoch: int
    end: int = Field(ge=0)


class TopicLanding(Model):
    """One topic's part: the attempt by which it lands, and the partitions that were ahead, with their digest.

    ``backlog``: the topic has more than a live landing takes, and is left to its own runs. ``failures`` are its
    landings that failed in a row; ``detail`` says why the last did. What did not land is not tried before
    ``again_at``; what was ``empty`` is, once the digest is another one.
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
    """``topics`` land together. ``held`` are of earlier landings: those that are not to be tried again yet."""

    most_bytes: ClassVar[int] = object_sizes.PLAN

    cluster: str
    began_at: AwareDatetime
    ended_at: AwareDatetime | None = None
    topics: tuple[TopicLanding, ...] = ()
    held: tuple[TopicLanding, ...] = ()

    @property
    def by_topic(self) -> dict[str, TopicLanding]:
        """The last that is known of each topic."""
        return {one.topic: one for one in (*self.held, *self.topics)}


class StoredLanding(NamedTuple):
    """A cluster's landing and its ETag; both None if there is none."""

    value: LiveLanding | None
    etag: str | None


def read_landing(store: Store, key: str) -> StoredLanding:
    """The landing under ``key``. One that does not parse is as none, and is replaced.

    Raises:
        StoreError: the store failed.
    """
    try:
        fetched = store.get(key, limit=LiveLanding.most_bytes)
    except NotFound:
        return StoredLanding(None, None)
    try:
        return StoredLanding(LiveLanding.from_bytes(fetched.body, key), fetched.etag)
    except FormatError:
        return StoredLanding(None, fetched.etag)


def write_landing(store: Store, key: str, landing: LiveLanding, etag: str | None) -> str:
    """Replace what :func:`read_landing` gave with ``etag``; the new ETag.

    Raises:
        PreconditionFailed: another process has replaced it.
        StoreError: the store failed.
    """
    return store.put(key, landing.to_bytes(), if_match=etag, if_none_match=etag is None)
