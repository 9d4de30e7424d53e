"""Topics that no agent has seen, where nothing else can bring their records: a warning names each, once.

It is no error, as an unknown topic is none for ``KafkaConsumer``: it may come.
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
    """The topics of one consumer that reads the remote tier alone; ``run`` has a thread do what waits for storage."""

    def __init__(self, topics: RemoteTopics, run: Callable[[Callable[[], Any]], None]) -> None:
        self._topics = topics
        self._run = run
        self._looked_for: set[str] = set()

    def look(self, wanted: Collection[str]) -> None:
        """Look for those of ``wanted`` that were not looked for before, soon."""
        new = set(wanted) - self._looked_for
        self._looked_for |= new
        for topic in new:
            self._run(partial(self._look, topic))

    def _look(self, topic: str) -> None:
        try:
            if not self._topics.partitions_for_topic(topic):
                log.warning("%s: %s; waiting for it", topic, self._topics.unseen(topic))
        except TidemarkError:  # the poll that needs storage tells of it; the next one looks again
            self._looked_for.discard(topic)
