"""The request for a restore."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidemark.offset_bounds import BEGINNING, END, OffsetBounds
from tidemark.restore.producer import Codec
from tidemark.restore.progress import asked, group_of


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """The range of ``topic`` from ``first`` to ``last``, of ``partitions`` (all if none is named), into ``target``.

    ``committed``: without aborted transactions, and only as far as transactions are decided. ``append``: the target may
    hold records before the restore begins. ``config`` is for a topic that is created.
    """

    cluster: str
    topic: str
    target: str
    partitions: tuple[int, ...] = ()
    first: OffsetBounds = field(default=OffsetBounds(BEGINNING))
    last: OffsetBounds = field(default=OffsetBounds(END))
    committed: bool = True
    on_gap: Literal["error", "skip"] = "error"
    transactional: bool = False
    create: bool = False
    append: bool = False
    codec: Codec = "zstd"
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The group with the progress, and the transactional id."""
        return group_of(self.cluster, self.topic, self.target)

    @property
    def shared(self) -> bool:
        """True if others may write to the target meanwhile: only if records and progress are one transaction."""
        return self.transactional and self.append

    def asked(self, partition: int) -> str:
        """The digest that distinguishes this restore of a partition from another one into the same target."""
        first, last = self.first.of(partition), self.last.of(partition)
        return asked(self.cluster, self.topic, partition, first, last, self.committed, self.transactional)
