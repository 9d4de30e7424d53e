"""The incarnations of topics and their folders. All agents agree on them through one object per topic."""

from __future__ import annotations

from typing import NamedTuple

from tidemark.errors import FormatError, NotFound
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.incarnations import TopicIncarnations
from tidemark.store import Store
from tidemark.store.update import update
from uploader_agent.clock import utc_now

_TRIES = 3
_THEN = "the partition is tried again after its back-off"


class TopicIncarnation(NamedTuple):
    """An incarnation's number, and the name of its folders."""

    number: int
    place: str


class Incarnations:
    """Finds a topic's incarnation, and records a new one. Thread-safe; an answer never changes.

    Without ``record`` nothing is written: a new incarnation is returned as it would be recorded.
    """

    def __init__(self, store: Store, control: ControlKeys, *, record: bool = True) -> None:
        self._record = record
        self._store = store
        self._control = control
        self._known: dict[tuple[str, str | None], TopicIncarnation] = {}

    def find(self, topic: str, topic_id: str | None) -> TopicIncarnation:
        """The incarnation of ``topic`` that has ``topic_id``.

        Raises:
            FormatError: a topic was re-created on a cluster without topic ids: an operator must decide.
            StoreError: the store failed.
        """
        incarnation = self._known.get((topic, topic_id))
        if incarnation is None:
            incarnation = self._known[topic, topic_id] = self._agree(topic, topic_id)
        return incarnation

    def _agree(self, topic: str, topic_id: str | None) -> TopicIncarnation:
        """Ask the store. If two threads do so for one topic, they agree as two agents do."""
        key = self._control.incarnations(topic)

        def read() -> tuple[TopicIncarnations, str | None]:
            try:
                return TopicIncarnations.load_version(self._store, key)
            except NotFound:
                return TopicIncarnations(topic=topic), None

        def with_topic_id(known: TopicIncarnations) -> TopicIncarnations:
            try:
                return known if known.find(topic_id) else known.with_topic_id(topic_id, utc_now())
            except ValueError as error:
                raise FormatError(key, str(error)) from error

        if self._record:
            known = update(self._store, key, read, with_topic_id, then=_THEN, tries=_TRIES)
        else:
            known = with_topic_id(read()[0])
        agreed = known.find(topic_id)
        assert agreed is not None
        return TopicIncarnation(agreed[0], agreed[1].place)
