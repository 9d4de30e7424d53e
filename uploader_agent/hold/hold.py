"""What is held: rotated segments whose files outlive the broker's retention until the store has them.

Promises: a held segment is the one that was seen in the log directory, byte for byte, or it does not count and is
dropped, and said. It belongs to (partition, topic id), whoever leads. All methods are thread-safe.
"""

from __future__ import annotations

from pathlib import Path

from tidemark.intervals import Intervals
from tidemark.layout import TopicPartition
from uploader_agent.files import PartitionFiles
from uploader_agent.log_dirs import LocalSegment


class Hold:
    """All held segments of one agent."""

    def segments(self, at: TopicPartition, topic_id: str | None) -> list[LocalSegment]:
        """The held segments of a partition, by base offset; whether their files are still in the log directory or not.

        They do not overlap, but need not join up. ``next_offset`` is never None.
        """
        raise NotImplementedError

    def files(self, at: TopicPartition, topic_id: str | None, folder: Path | None) -> PartitionFiles:
        """A partition's files, to be used as :class:`PartitionFiles`: what ``folder`` has, else what is held.

        ``folder`` is None where the partition is on no disk here any more. Its ``lineage`` is the live one, with what
        the held segments know of the offsets below it.

        Raises:
            SegmentChanged: the directory is gone or another incarnation's, and nothing is held.
        """
        raise NotImplementedError

    def release(self, at: TopicPartition, topic_id: str | None, below: int) -> None:
        """Give up the held segments that end at or below the offset ``below``: the store has them for good."""
        raise NotImplementedError

    def yielded(self, at: TopicPartition, topic_id: str | None) -> Intervals:
        """Offsets that were held and given up to stay within the bounds: a gap there has the reason ``staging_full``."""
        raise NotImplementedError
