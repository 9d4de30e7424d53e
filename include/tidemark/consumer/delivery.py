"""The fetched blocks of one partition from a tier, in log order, handed out row by row or block by block.

``peek`` shows the next rows and hands out nothing, ``advance`` moves on once they are known to be delivered. An error
of the source is raised when its turn comes, never before the rows that precede it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidemark.consumer.modes import Tier
from tidemark.remote.reader.blocks import Block


class BlockDelivery:
    """Blocks from ``position`` on; ``epoch`` is the leader epoch of the last passed rows, -1 if unknown."""

    def __init__(self, tier: Tier, position: int, blocks: Iterable[Block]) -> None:
        self.tier = tier
        self.position = position
        self.epoch = -1
        self.delivered = 0
        self._blocks: Iterator[Block] = iter(blocks)
        self._next: Block | None = None
        self._error: Exception | None = None
        self._exhausted = False

    @property
    def exhausted(self) -> bool:
        """True if nothing is left, not even an error."""
        return self._exhausted and self._next is None and self._error is None

    def peek(self, rows: int) -> Block | None:
        """At most ``rows`` rows, at least one; None if nothing is left.

        Blocks without rows are passed, which moves ``position``. Raises the error of the source if that is next, and
        again until the delivery is dropped.
        """
        self._load()
        if self._next is None:
            if self._error is not None:
                raise self._error
            return None
        return self._next if self._next.rows.num_rows <= rows else self._next.cut(rows)[0]

    def advance(self, rows: int) -> None:
        """Mark the first ``rows`` rows of the shown block as delivered."""
        block = self._next
        assert block is not None
        self.delivered += rows
        if rows < block.rows.num_rows:
            taken, self._next = block.cut(rows)
        else:
            taken, self._next = block, None
        self.position = taken.next_offset
        self.epoch = taken.leader_epoch
        self._load()

    def _load(self) -> None:
        """Load the next block with rows, so that ``position`` is past all blocks without rows."""
        while self._next is None and not self._exhausted:
            try:
                block = next(self._blocks, None)
            except Exception as error:  # noqa: BLE001  # any error is raised at its place
                self._error, self._exhausted = error, True
                return
            if block is None:
                self._exhausted = True
            elif block.rows.num_rows:
                self._next = block
            else:
                self.position = block.next_offset
                self.epoch = block.leader_epoch if block.leader_epoch >= 0 else self.epoch
