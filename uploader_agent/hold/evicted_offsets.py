"""The offsets that were evicted to stay within the bounds, kept in a file until the watermark records them.

The store may be unreachable after an eviction, and the agent may restart: the reason of the gap must survive that.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import structlog

from tidemark.errors import FormatError
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.keys import TopicPartition
from tidemark.intervals import Intervals

logger = structlog.get_logger(__name__)

Owner = tuple[TopicPartition, str | None]


class _Entry(Model):
    topic: str
    partition: int
    topic_id: str | None
    offsets: tuple[tuple[int, int], ...]


class _File(StoredObject):
    yielded: tuple[_Entry, ...]


class EvictedOffsets:
    """Evicted offsets by owner, kept in the file ``path``. Not thread-safe. An unusable file is only logged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets = self._read()

    def get(self, owner: Owner) -> Intervals:
        """The evicted offsets of a partition."""
        return self._offsets.get(owner, Intervals())

    def add(self, evicted: Iterable[tuple[Owner, tuple[int, int]]]) -> None:
        """Add evicted offsets of each owner, and write the file."""
        for owner, offsets in evicted:
            self._offsets[owner] = self.get(owner) | Intervals([offsets])
        self._write()

    def remove(self, owner: Owner, recorded: Intervals) -> None:
        """Remove offsets that are now recorded as a gap, or that the store turned out to have."""
        before = self.get(owner)
        after = before - recorded
        if after == before:
            return
        self._offsets[owner] = after
        if not after:
            del self._offsets[owner]
        self._write()

    def _read(self) -> dict[Owner, Intervals]:
        try:
            entries = _File.from_bytes(self._path.read_bytes(), str(self._path)).yielded
        except FileNotFoundError:
            return {}
        except (OSError, FormatError) as error:
            logger.warning("evicted_offsets_not_read", error=str(error), effect="gaps may state a less exact reason")
            return {}
        return {
            (TopicPartition(entry.topic, entry.partition), entry.topic_id): Intervals(entry.offsets)
            for entry in entries
        }

    def _write(self) -> None:
        entries = tuple(
            _Entry(topic=tp.topic, partition=tp.partition, topic_id=topic_id, offsets=offsets.parts)
            for (tp, topic_id), offsets in sorted(self._offsets.items(), key=lambda item: (item[0][0], str(item[0][1])))
        )
        temporary = self._path.with_suffix(".new")
        try:
            temporary.write_bytes(_File(yielded=entries).to_bytes())
            temporary.rename(self._path)
        except OSError as error:
            effect = "a restart would forget these gaps' reason"
            logger.warning("evicted_offsets_not_written", error=str(error), effect=effect)
