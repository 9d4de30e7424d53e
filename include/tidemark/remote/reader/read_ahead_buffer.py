"""The blocks of one partition that were read ahead and not yet taken. Not thread-safe: the tier's lock guards it."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import Any

from tidemark.remote.reader.blocks import Block
from tidemark.remote.reader.partition_reader import EndOfLog, PartitionReader, Step


class Lane:
    """The blocks of ``reading`` that were not yet taken, for a reader at ``position``.

    ``held`` is their size in bytes. ``ended`` says that nothing more could be read when it was last tried.
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
        """Whether everything that could be read has been taken."""
        return self.ended and not self._blocks and self._error is None

    @property
    def waiting(self) -> int:
        """How many blocks nobody has taken, or not wholly."""
        return len(self._blocks)

    @property
    def stale(self) -> bool:
        """Whether the log has taken another course since reading began: what was read ahead may be void."""
        partition = self.reading.partition
        return partition is not None and partition.branch != self.reading.branch

    def ready(self, share: int) -> bool:
        """Whether a step can be made now, with ``share`` bytes for what is read ahead."""
        if self._running or self._asleep or self._error is not None:
            return False
        if self._awaited is not None and not self._awaited.done():
            return False
        return not self._blocks or self.held + self.reading.in_flight < share

    def begin_step(self) -> None:
        """A thread steps from now on."""
        self._running = True
        self._awaited = None

    def end_step(self, found: Step | Exception) -> bool:
        """Take what the step has found; whether there is something to tell the reader."""
        self._running = False
        if self._dropped:
            self.reading.drop()
            return False
        if isinstance(found, Future):
            self._awaited = found
            return False
        if isinstance(found, EndOfLog):
            self._asleep = self.ended = True
        elif isinstance(found, Block):
            size = found.rows.get_total_buffer_size()
            self._blocks.append((found, size))
            self.held += size
            self.ended = False
        else:
            self.fail(found)
        return True

    def fail(self, error: Exception) -> None:
        """``error`` was met after all blocks."""
        self._error = error
        self.ended = False

    def wake(self) -> None:
        """There may be more to read."""
        self._asleep = False

    @property
    def asleep(self) -> bool:
        """Whether it waits for the catalogue to know more."""
        return self._asleep

    def drop(self) -> None:
        """Nobody reads here any more."""
        self._dropped = True
        if not self._running:
            self.reading.drop()

    def seek(self, offset: int) -> bool:
        """Put the reader at ``offset`` if that is among what was read ahead."""
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
        """The next block, of at most ``max_rows``. Raises what was met, once everything before it was taken."""
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
