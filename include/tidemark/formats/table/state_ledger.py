"""The ledger of a state table: its leaves after each commit, and the commit of the topic's table that it equals.

``state/ledger/<n>-<attempt>.json`` is written before the Delta commit of the state table that makes it count, by the
same transactions as a table's own ledger: see :mod:`tidemark.formats.table.ledger`.
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal, NamedTuple, Self

from pydantic import AwareDatetime, Field, model_validator

from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject

RECORD: Final = ("kafka_key", "kafka_incarnation", "kafka_partition", "kafka_offset", "kafka_timestamp")
"""The columns of each state table: the key, and the place and time of its newest record."""

HASH_BITS: Final = 64
PREFIX_BITS: Final = 32
"""Most bits of a leaf's prefix."""


class Through(Model):
    """The part of the vector: all rows of a partition below ``next_offset`` are in the state, on that ``branch``.

    ``uncertain`` counts the offsets below that compaction had removed before they were stored, and that may have been
    deletions: see :mod:`tidemark.planning.state`.
    """

    incarnation: int = Field(ge=0)
    partition: int = Field(ge=0)
    next_offset: int = Field(ge=0)
    branch: int = Field(default=0, ge=0)
    uncertain: int = Field(default=0, ge=0)

    @property
    def key(self) -> tuple[int, int]:
        """(incarnation, partition)."""
        return self.incarnation, self.partition


class Truncation(Model):
    """A record of the topic's table that removed all rows before it, with its values in the columns of ``order``."""

    incarnation: int = Field(ge=0)
    partition: int = Field(ge=0)
    offset: int = Field(ge=0)
    order: tuple[str, ...] = ()


class HashRange(NamedTuple):
    """Hashes of keys in ``[start, end)``; ``end`` is at most 2^64."""

    start: int
    end: int


class Leaf(Model):
    """The keys whose hash begins with the bits of ``prefix``: one file of rows, and one of the reserve.

    The *reserve* has the last records of keys that the table does not show: deletions, and those of partitions other
    than the one whose record is the newest. ``path`` is relative to the state table, ``reserve`` is a key of the lake's
    store; each is empty if there is no such row. ``moved_keys`` counts the keys with records in several partitions of
    one incarnation, whose order is that of the records' times, ``unavailable`` the values that Debezium did not know.
    Of ``outranked_keys`` a later record has a lower ``order``, and is not shown.
    """

    prefix: str = Field(pattern=rf"^[01]{{0,{PREFIX_BITS}}}$")
    path: str = ""
    rows: int = Field(default=0, ge=0)
    size: int = Field(default=0, ge=0)
    reserve: str = ""
    reserve_rows: int = Field(default=0, ge=0)
    reserve_size: int = Field(default=0, ge=0)
    moved_keys: int = Field(default=0, ge=0)
    outranked_keys: int = Field(default=0, ge=0)
    unavailable: int = Field(default=0, ge=0)

    @property
    def hashes(self) -> HashRange:
        """The hashes that begin with the prefix."""
        return range_of(self.prefix)


def range_of(prefix: str) -> HashRange:
    """The hashes that begin with the bits of ``prefix``."""
    width = HASH_BITS - len(prefix)
    start = int(prefix or "0", 2) << width
    return HashRange(start, start + (1 << width))


class CommitName(Model):
    """A commit, of the topic's table or of its state: its number, and the attempt whose ledger it has."""

    n: int = Field(ge=0)
    attempt: int = Field(ge=0)


class StateLedger(StoredObject):
    """The state table after its commit ``n``: for each key the newest record of the topic's table at commit ``of``.

    ``settings`` is the digest of the settings that choose a key's record, ``columns`` that of the columns.
    ``quarantined`` counts the records below the vector that are in quarantine: the state lacks them until they are
    replayed. ``truncated`` is the newest truncation that it follows.
    """

    most_bytes: ClassVar[int] = object_sizes.LEDGER

    n: int = Field(ge=0)
    attempt: int = Field(ge=0)
    parent: CommitName | None = None
    cluster: str
    topic: str
    table: str
    kind: Literal["merge", "rebuild"]
    of: CommitName
    through: tuple[Through, ...]
    leaves: tuple[Leaf, ...]
    settings: str
    columns: str = ""
    quarantined: int = Field(default=0, ge=0)
    truncated: Truncation | None = None
    committed_at: AwareDatetime

    @model_validator(mode="after")
    def _check_leaves(self) -> Self:
        edges = [0, *(leaf.hashes.end for leaf in self.leaves)]
        if [leaf.hashes.start for leaf in self.leaves] != edges[:-1] or edges[-1] != 1 << HASH_BITS:
            raise ValueError("leaves must divide all hashes, in their order")
        return self

    @property
    def rows(self) -> int:
        """The number of keys in the state."""
        return sum(leaf.rows for leaf in self.leaves)

    @property
    def moved_keys(self) -> int:
        """The number of keys with records in several partitions of one incarnation."""
        return sum(leaf.moved_keys for leaf in self.leaves)

    @property
    def outranked_keys(self) -> int:
        """The number of keys whose later records have a lower order than the one that is shown."""
        return sum(leaf.outranked_keys for leaf in self.leaves)

    @property
    def unavailable(self) -> int:
        """The number of values that Debezium did not know, such as long ones that a change left as they were."""
        return sum(leaf.unavailable for leaf in self.leaves)

    @property
    def uncertain(self) -> int:
        """The number of offsets that may have been deletions which nobody has seen."""
        return sum(through.uncertain for through in self.through)
