"""The blocks of one partition that were read ahead and not yet taken. Not thread-safe: the tier's lock guards it."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import Any

from tidemark.remote.reader.blocks import Block
from tidemark.remote.reader.partition_reader import EndOfLog, PartitionReader, Step


class Lane:
    """The blocks of ``reading`` that were not yet taken, for a reader at ``position``.

    ``held`` is their size in bytes. ``ended`` is true if nothing more could be read at the last try.
    """

    def __init__(self, reading: PartitionReader, position: int) -> None:
        self.reading = reading
        self.position = position
        self.held = 0
        self.ended = False
        self._blocks: deque[tuple[Block, int]] = deque()
        self._error: Exception | None = None
        self._running = False
        self._dropped = False
        self._asleep = False
        self._awaited: Future[Any] | None = None

    @property
    def at_end(self) -> bool:
        """True once everything that could be read has been taken."""
        return self.ended and not self._blocks and self._error is None

    @property
    def waiting(self) -> int:
        """The number of blocks that are not taken, or not wholly."""
        return len(self._blocks)

    @property
    def stale(self) -> bool:
        """True if the log has left its branch, or the masks have changed: blocks that were read ahead may be void."""
        partition = self.reading.partition
        return partition is not None and partition.basis != self.reading.basis

    def ready(self, share: int) -> bool:
        """True if a step can be made now, with ``share`` bytes for the blocks read ahead."""
        if self._running or self._asleep or self._error is not None:
            return False
        if self._awaited is not None and not self._awaited.done():
            return False
        return not self._blocks or self.held + self.reading.in_flight < share

    def begin_step(self) -> None:
        """Note that a thread steps from now on."""
        self._running = True
        self._awaited = None

    def end_step(self, result: Step | Exception) -> bool:
        """Take the result of the step; return true if the reader must be notified."""
        self._running = False
        if self._dropped:
            self.reading.drop()
            return False
        if isinstance(result, Future):
            self._awaited = result
            return False
        if isinstance(result, EndOfLog):
            self._asleep = self.ended = True
        elif isinstance(result, Block):
            size = result.rows.get_total_buffer_size()
            self._blocks.append((result, size))
            self.held += size
            self.ended = False
        else:
            self.fail(result)
        return True

    def fail(self, error: Exception) -> None:
        """Note ``error``, met after all blocks."""
        self._error = error
        self.ended = False

    def wake(self) -> None:
        """Note that there may be more to read."""
        self._asleep = False

    @property
    def asleep(self) -> bool:
        """True while it waits for news from the catalogue."""
        return self._asleep

    def drop(self) -> None:
        """End reading here."""
        self._dropped = True
        if not self._running:
            self.reading.drop()

    def seek(self, offset: int) -> bool:
        """Move the reader to ``offset``; return false if that was not read ahead."""
        if offset == self.position:
            return True
        if offset < self.position:
            return False
        while self._blocks and self._blocks[0][0].next_offset <= offset:
            block, size = self._blocks.popleft()
            self.held -= size
            self.position = block.next_offset
        if self._blocks:
            block, size = self._blocks[0]
            self._blocks[0] = block.since(offset), size
            self.position = offset
        return offset == self.position

    def take(self, max_rows: int | None) -> Block | None:
        """The next block, of at most ``max_rows``. Raises the error met, once everything before it was taken."""
        if not self._blocks:
            if self._error is not None:
                raise self._error
            return None
        block, size = self._blocks[0]
        if max_rows is not None and len(block.rows) > max_rows:
            block, rest = block.cut(max_rows)
            self._blocks[0] = rest, size
        else:
            self._blocks.popleft()
            self.held -= size
        self.position = block.next_offset
        return block
