"""The ledger: the content of a table after each commit, and the next offset of each partition.

``ledger/<n>-<attempt>.json`` is written before the Delta commit that makes it count; the table's transactions
``tidemark.ledger`` = n and ``tidemark.attempt`` name the committed one. So a ledger object by itself proves
nothing: read it through :func:`tidemark.table.delta_table.committed_ledger`.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from typing import ClassVar, Literal

from pydantic import AwareDatetime, Field

from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.manifest import LineagePairs, OpenTransactions, Restores
from tidemark.kafka_log import Lineage
from tidemark.timestamps import utc_now

LEDGER_TRANSACTION = "tidemark.ledger"
ATTEMPT_TRANSACTION = "tidemark.attempt"


class PartitionState(Model):
    """One partition of one incarnation: everything below ``next_offset`` has a class, nothing above is landed.

    ``held_by`` are the transactions that keep ``next_offset`` back; ``gaps`` are LOST offsets at or above
    ``next_offset``, which hold the partition until they are filled or acknowledged. ``branch`` counts the branches of
    its log that the partition has left (after an unclean election or a restore that cut off landed records, or markers
    that decided them). ``restores`` are those of ``offset.wm`` that it has followed. Below ``verdicts_end`` lie all
    markers that decided the transactions of landed records. They may lie above ``next_offset`` if another transaction
    holds that back. ``as_of`` is the time of the latest observation of a high
    watermark, from a head, that the partition has reached (None without one): all records committed before have landed.
    """

    incarnation: int = Field(ge=0)
    topic_id: str | None
    partition: int = Field(ge=0)
    start_offset: int = Field(ge=0)
    next_offset: int = Field(ge=0)
    verdicts_end: int = Field(ge=0)
    leader_epoch: int
    branch: int = Field(default=0, ge=0)
    lineage: LineagePairs = ()
    restores: Restores = ()
    gaps: tuple[Gap, ...] = ()
    held_by: OpenTransactions = ()
    as_of: AwareDatetime | None = None

    @property
    def key(self) -> tuple[int, int]:
        """(incarnation, partition)."""
        return self.incarnation, self.partition

    @property
    def leadership(self) -> tuple[int, int]:
        """The number of restores and the leader epoch: the later pair is the later leadership."""
        return len(self.restores), self.leader_epoch

    @property
    def history(self) -> Lineage:
        """The lineage that the partition has followed."""
        return Lineage(self.lineage, self.restores)


class DateState(Model):
    """One ``dt`` of the table; :mod:`tidemark.planning.date_finality` has the rule by which it closes.

    ``late_rows`` counts the rows that came after each close. ``changed_at`` is the planning time of the last run that
    landed rows of the date, ``closed_at`` the last time that it was found closed. If it is ``final_incomplete``,
    ``unfinished`` partitions were not done in time, and ``outstanding`` of their offsets were known not to be
    landed. Retention removed all rows of an ``expired`` date at ``closed_at``; rows that land later reopen it.
    """

    state: Literal["open", "final", "final_incomplete", "reopened", "expired"] = "open"
    rows: int = Field(ge=0)
    late_rows: int = Field(default=0, ge=0)
    changed_at: AwareDatetime | None = None
    closed_at: AwareDatetime | None = None
    unfinished: int = Field(default=0, ge=0)
    outstanding: int = Field(default=0, ge=0)

    @property
    def closed(self) -> bool:
        """True if no more rows are expected."""
        return self.state in {"final", "final_incomplete"}


class Closing(Model):
    """The closing of a date: replaces ``before`` by ``after``, if the state is still ``before`` at the commit."""

    before: DateState
    after: DateState


class Parent(Model):
    """The ledger before this one: its number, its attempt, and the SHA-256 of its bytes."""

    n: int
    attempt: int
    sha256: str

    @classmethod
    def of(cls, ledger: Ledger, body: bytes) -> Parent:
        """The reference to ``ledger``, stored as ``body``, whose writer may have other fields than this version."""
        return cls(n=ledger.n, attempt=ledger.attempt, sha256=hashlib.sha256(body).hexdigest())


class Fold(Model):
    """A landed fold: the plan of ``attempt``, made at ``at``, names the attempts that it replaced."""

    attempt: int
    at: AwareDatetime


class Ledger(StoredObject):
    """The state after commit ``n``. Number 0 is the empty table that no commit has touched yet.

    ``landed`` are the attempts with valid evidence: all that ever landed, with a fold in place of the attempts that it
    folded. ``folds`` are the folds of attempts that might still be run again, see
    :func:`tidemark.planning.maintenance.fold.has_landed`. ``files`` is the digest of the live files after this commit,
    see :mod:`tidemark.table.tampering`. ``superseded`` gives by date (empty for rows without one) the last commit that
    superseded quarantined or filtered rows: of two runs that are to do so, one is stale. ``field_ids`` are the ids of
    the table's columns, by path; they never change. ``masks`` is, by place of an incarnation, the number of the last
    mask whose records the table has no more. ``version`` is that of the driver that committed, empty for the genesis.
    """

    most_bytes: ClassVar[int] = object_sizes.LEDGER

    n: int = Field(ge=0)
    attempt: int = Field(ge=0)
    parent: Parent | None = None
    cluster: str
    topic: str
    table: str
    kind: Literal["genesis", "ingest", "rebuild", "replay", "compact", "retain", "fold", "repair", "schema", "erase"]
    generation: int = Field(default=0, ge=0)
    partitions: tuple[PartitionState, ...] = ()
    dates: dict[str, DateState] = Field(default_factory=dict)
    dates_changed: tuple[str, ...] = ()
    rows: int = Field(default=0, ge=0)
    files: str
    landed: tuple[int, ...] = ()
    folds: tuple[Fold, ...] = ()
    superseded: dict[str, int] = Field(default_factory=dict)
    field_ids: dict[str, int] = Field(default_factory=dict)
    masks: dict[str, int] = Field(default_factory=dict)
    configuration: str = ""
    code: str = ""
    version: str = ""
    committed_at: AwareDatetime

    @classmethod
    def genesis(cls, cluster: str, topic: str, table: str) -> Ledger:
        """The state of a table before its first commit."""
        now = utc_now()
        return cls(
            n=0, attempt=0, cluster=cluster, topic=topic, table=table, kind="genesis", files="0" * 32, committed_at=now
        )

    @property
    def by_partition(self) -> dict[tuple[int, int], PartitionState]:
        """Partition states by (incarnation, partition)."""
        return {state.key: state for state in self.partitions}


class Published(StoredObject):
    """The outbox pointer: Airflow has stored the asset events of all ledgers up to ``n``.

    ``settled`` is the digest of the watermarks beyond the ledger for which planning last found nothing to land, at
    ``settled_at``. It avoids planning a partition over and over that an open transaction or a hole holds back.
    """

    n: int = Field(default=0, ge=0)
    attempt: int = Field(default=0, ge=0)
    settled: str = ""
    settled_at: AwareDatetime | None = None
    at: AwareDatetime


def new_attempt() -> int:
    """A random 62-bit number, the identity of one run."""
    return secrets.randbits(62)


def file_digest(topic_id: str | None, ranges: Iterable[str], configuration: str, code: str, attempt: int) -> str:
    """The 12 hexadecimal digits in a data file's name: a digest of its inputs and of its run."""
    parts = [topic_id or "", *ranges, configuration, code, str(attempt)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
