"""What the target holds beyond the last progress, compared with the history, record by record.

Without transactions a process that is killed leaves records that no progress covers. They must be the next ones of the
history: then they are not sent again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from tidemark.errors import ForeignRecords
from tidemark.restore.producer import FOREIGN
from tidemark.restore.records import Record
from tidemark.restore.target import HeldRecord


class Overlap:
    """The records at offsets ``[start, end)`` of a partition of the target; those below ``next`` were found."""

    def __init__(self, topic: str, partition: int, start: int, end: int, held: Iterator[list[HeldRecord]]) -> None:
        self._topic, self._partition = topic, partition
        self.next, self._end = start, end
        self._held = chain.from_iterable(held)

    @property
    def done(self) -> bool:
        """Whether all that the target holds has been found in the history."""
        return self.next >= self._end

    def skip(self, records: Sequence[Record], offsets: Sequence[int]) -> int:
        """How many of ``records``, the next ones of the history at ``offsets`` of the source, lie in the target.

        Raises:
            ForeignRecords: the target holds something else, or lacks an offset.
        """
        for count, (record, source) in enumerate(zip(records, offsets, strict=True)):
            if self.done:
                return count
            found = next(self._held, None)
            if found is None or found.offset != self.next:
                raise self._refused("a record that was there is missing; does retention or compaction delete records?")
            if found.record != record:
                raise self._refused(
                    f"the record is not the source's at {source}: another program writes to the target. {FOREIGN}"
                )
            self.next += 1
        return len(records)

    def finish(self) -> None:
        """The history has no more records. Raises :class:`ForeignRecords` if the target has."""
        if not self.done:
            raise self._refused(f"it has records beyond the restored range: another program writes to it. {FOREIGN}")

    def _refused(self, what: str) -> ForeignRecords:
        return ForeignRecords(self._topic, self._partition, self.next, what)
