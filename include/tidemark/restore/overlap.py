"""The target's records beyond the last progress, compared with the history one by one.

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
    """The records at offsets ``[start, end)`` of a partition of the target; records below ``next`` were found."""

    def __init__(self, topic: str, partition: int, start: int, end: int, held: Iterator[list[HeldRecord]]) -> None:
        self._topic, self._partition = topic, partition
        self.next, self._end = start, end
        self._held = chain.from_iterable(held)

    @property
    def done(self) -> bool:
        """True if all of these records were found in the history."""
        return self.next >= self._end

    def skip(self, records: Sequence[Record], offsets: Sequence[int]) -> int:
        """The number of ``records``, the next of the history at ``offsets`` of the source, that lie in the target.

        Raises:
            ForeignRecords: the target holds another record, or lacks an offset.
        """
        for count, (record, source) in enumerate(zip(records, offsets, strict=True)):
            if self.done:
                return count
            held = next(self._held, None)
            if held is None or held.offset != self.next:
                raise self._refused("a record that was there is missing; does retention or compaction delete records?")
            if held.record != record:
                raise self._refused(
                    f"the record is not the source's at {source}: another program writes to the target, or the record "
                    f"was erased meanwhile. {FOREIGN}"
                )
            self.next += 1
        return len(records)

    def finish(self) -> None:
        """End the history. Raises :class:`ForeignRecords` if the target has more records."""
        if not self.done:
            raise self._refused(f"it has records beyond the restored range: another program writes to it. {FOREIGN}")

    def _refused(self, observation: str) -> ForeignRecords:
        return ForeignRecords(self._topic, self._partition, self.next, observation)
