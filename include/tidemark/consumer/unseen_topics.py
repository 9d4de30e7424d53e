"""Warnings, once for each topic, about topics that no agent has seen, for consumers of the remote tier alone.

An unknown topic is no error, as for ``KafkaConsumer``: it may be created later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from tidemark.errors import TidemarkError
from tidemark.remote.topics import RemoteTopics

log = logging.getLogger(__name__)


class UnseenTopics:
    """The topics of one consumer that reads the remote tier alone; ``run`` runs work that waits for storage."""

    def __init__(self, topics: RemoteTopics, run: Callable[[Callable[[], Any]], None]) -> None:
        self._topics = topics
        self._run = run
        self._looked_for: set[str] = set()

    def look(self, wanted: Collection[str]) -> None:
        """Look soon for the topics of ``wanted`` that are new here."""
        new = set(wanted) - self._looked_for
        self._looked_for |= new
        for topic in new:
            self._run(partial(self._look, topic))

    def _look(self, topic: str) -> None:
        try:
            if not self._topics.partitions_for_topic(topic):
                log.warning("%s: %s; waiting for it", topic, self._topics.unseen(topic))
        except TidemarkError:  # the poll that needs storage raises it; the next poll looks again
            self._looked_for.discard(topic)
