"""The incarnations of a topic. A topic that is deleted and created again is a new one; their data is never mixed.

The object ``_topics/<cluster>/<topic>.json`` lists the incarnations in order; an incarnation's number is its position
in that list. Agents extend it by conditional PUT, so that all of them agree on the order.
"""

from __future__ import annotations

import base64
import functools
import uuid

from pydantic import AwareDatetime

from tidemark.formats.base import Model, StoredObject
from tidemark.formats.keys import place_of


@functools.cache
def topic_id_text(topic_id: uuid.UUID | None) -> str | None:
    """A topic id in Kafka's own notation: base64, 22 characters; None without an id (``Uuid.toString``)."""
    if topic_id is None or not topic_id.int:
        return None
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def topic_id_uuid(text: str) -> uuid.UUID:
    """The topic id that :func:`topic_id_text` has written."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(f"{text}=="))


class Incarnation(Model):
    """One incarnation of a topic. ``topic_id`` is null for clusters that are too old for topic ids (KIP-516)."""

    topic_id: str | None
    place: str
    first_seen: AwareDatetime
    ended_at: AwareDatetime | None = None


class TopicIncarnations(StoredObject):
    """All incarnations of a topic, oldest first."""

    topic: str
    incarnations: tuple[Incarnation, ...] = ()

    def find(self, topic_id: str | None) -> tuple[int, Incarnation] | None:
        """(number, incarnation) of ``topic_id``."""
        numbered = enumerate(self.incarnations)
        return next(((n, incarnation) for n, incarnation in numbered if incarnation.topic_id == topic_id), None)

    def with_topic_id(self, topic_id: str | None, now: AwareDatetime) -> TopicIncarnations:
        """The incarnations with ``topic_id`` as the newest, if it is not known yet; the previous incarnation ends now.

        Raises:
            ValueError: a re-created topic has no id (an operator must decide).
        """
        if self.find(topic_id):
            return self
        place = place_of(self.topic, topic_id, first=not self.incarnations)
        ended = tuple(old if old.ended_at else old.model_copy(update={"ended_at": now}) for old in self.incarnations)
        added = Incarnation(topic_id=topic_id, place=place, first_seen=now)
        return self.model_copy(update={"incarnations": (*ended, added)})
