"""Which life of a topic is this, and where do its segments lie: agreed upon by all agents through one object."""

from __future__ import annotations

from typing import NamedTuple

from tidemark.errors import FormatError, NotFound, PreconditionFailed, UnknownOutcome
from tidemark.formats.incarnations import TopicIncarnations
from tidemark.formats.keys import ControlKeys
from tidemark.store import Store
from uploader_agent.clock import utc_now

_ATTEMPTS = 3
"""How often the object is read and written before the partition's back-off has its turn."""


class Life(NamedTuple):
    """An incarnation's number and the name that its folders have."""

    number: int
    place: str


class Incarnations:
    """Finds and, where it is new, records a topic's incarnation. Thread-safe; what is found never changes.

    With ``record`` off nothing is written: a new incarnation is told as it would be recorded.
    """

    def __init__(self, store: Store, control: ControlKeys, *, record: bool = True) -> None:
        self._record = record
        self._store = store
        self._control = control
        self._known: dict[tuple[str, str | None], Life] = {}

    def find(self, topic: str, topic_id: str | None) -> Life:
        """The incarnation of ``topic`` that has ``topic_id``.

        Raises:
            FormatError: a topic was made again on a cluster without topic ids: an operator must decide.
            StoreError: the store failed.
        """
        life = self._known.get((topic, topic_id))
        if life is None:
            life = self._known[topic, topic_id] = self._agree(topic, topic_id)
        return life

    def _agree(self, topic: str, topic_id: str | None) -> Life:
        """Ask the store. Two threads may do so for one topic: they agree as two agents do."""
        key = self._control.incarnations(topic)
        attempts = 0
        while True:
            try:
                known, etag = TopicIncarnations.load_version(self._store, key)
            except NotFound:
                known, etag = TopicIncarnations(topic=topic), None
            found = known.find(topic_id)
            if found is not None:
                return Life(found[0], found[1].place)
            try:
                longer = known.with_topic_id(topic_id, utc_now())
            except ValueError as error:
                raise FormatError(key, str(error)) from error
            if not self._record:
                return Life(len(known.incarnations), longer.incarnations[-1].place)
            try:
                self._store.put(key, longer.to_bytes(), if_match=etag, if_none_match=etag is None)
            except (PreconditionFailed, UnknownOutcome):
                attempts += 1  # somebody added one first, or we did: the object tells
                if attempts == _ATTEMPTS:
                    raise
