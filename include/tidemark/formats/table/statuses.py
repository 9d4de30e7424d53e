"""The last outcomes of the scan, runs, catalogs and state tables, for readers without their logs.

The watch makes incidents of them. Those of the audits of a topic's table are in
:mod:`tidemark.formats.table.audit_report`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Final, NamedTuple

from pydantic import AwareDatetime, Field

from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject

MOST_MESSAGES: Final = 20
"""The most messages of an :class:`UnreadStatus`."""

_DOUBTS: Final = {
    "moved_keys": "keys that moved between partitions",
    "outranked_keys": "keys whose later records have a lower order",
    "quarantined": "records in quarantine",
    "unavailable": "values that Debezium did not know",
    "uncertain": "offsets that may have been deletions",
}
"""What a state may lack or have too much: the names of the counts, and their labels."""

AUDIT_PARTS: Final = 16
"""An audit compares one of so many parts of the keys, by the first bits of their hash."""


class ScanStatus(StoredObject):
    """``_tidemark/_scan/<cluster>.json``: the last scan, its duration, and the numbers of objects listed and read.

    While scans fail, ``failing_since`` is their start, ``error`` the reason, and ``failures`` their number in a row.
    ``version`` is the triggerer's. ``capacity`` is the most triggers that it runs, by Airflow's option ``[triggerer]
    capacity``; None if an older version scanned.
    """

    cluster: str
    at: AwareDatetime
    seconds: float = 0.0
    listed: int = 0
    read: int = 0
    failing_since: AwareDatetime | None = None
    error: str = ""
    failures: int = 0
    version: str = ""
    capacity: int | None = None


class UnreadStatus(StoredObject):
    """``_tidemark/_unread/<cluster>/<topic>.json``: the objects of raw that the run planned ``at`` could not read.

    They are heads, packs, and ``.txnindex`` objects. Each of ``messages`` begins with an object's name, followed by the
    problem; of many, some are left out. ``since`` is the time of the first of the successive runs with unread objects.
    Without messages, all could be read. ``failure`` is the error of a run that failed at ``failed_at``, until one does
    not.
    """

    most_bytes: ClassVar[int] = object_sizes.SMALL

    cluster: str
    topic: str
    at: AwareDatetime
    since: AwareDatetime
    messages: tuple[str, ...] = ()
    count: int = 0
    failed_at: AwareDatetime | None = None
    failure: str = ""

    @property
    def objects(self) -> list[str]:
        """The names of the unread objects."""
        return sorted({message.partition(": ")[0] for message in self.messages})


class MirrorKey(NamedTuple):
    """A topic's table, or its ``state`` table, in a catalog."""

    topic: str
    catalog: str
    state: bool = False


class MirrorState(Model):
    """One table in one catalog: ``identifier`` is its name there. ``state`` is true of a topic's state table.

    ``ledger_n`` and ``delta_version`` are the newest that the catalog lists, as ``snapshot_id``, since ``at``; None
    while nothing is listed. ``oldest_ledger`` is the oldest that a snapshot there lists, 0 if another program made one,
    and None in an older state; ``refs`` has that of each tag and of other branches. ``failing_since`` and ``error``
    describe a failure that lasts.
    """

    topic: str
    catalog: str
    identifier: str
    state: bool = False
    ledger_n: int = Field(default=0, ge=0)
    delta_version: int | None = None
    snapshot_id: int | None = None
    oldest_ledger: int | None = None
    refs: dict[str, int] = Field(default_factory=dict)
    at: AwareDatetime | None = None
    failing_since: AwareDatetime | None = None
    error: str = ""

    @property
    def key(self) -> MirrorKey:
        """The identity of the table and its catalog."""
        return MirrorKey(self.topic, self.catalog, self.state)


class MirrorStatus(StoredObject):
    """``_tidemark/_mirrors/<cluster>.json``: the last run of the cluster's mirror job, and each table's state."""

    most_bytes: ClassVar[int] = object_sizes.DEPLOYMENT

    cluster: str
    at: AwareDatetime
    tables: tuple[MirrorState, ...] = ()

    @property
    def by_key(self) -> dict[MirrorKey, MirrorState]:
        """The states of all tables."""
        return {table.key: table for table in self.tables}


def doubts(counts: Mapping[str, Any]) -> list[str]:
    """The doubts about a state, for a person, by the ``counts`` of its status."""
    return [f"{label}: {counts[name]:,}" for name, label in _DOUBTS.items() if counts[name]]


class StateStop(Model):
    """The reason for which a state table keeps its last commit, ``since`` its first run that could not go on.

    ``partition`` and ``offset`` are those of the record that it stops at; None if no record is the cause.
    """

    since: AwareDatetime
    reason: str
    incarnation: int | None = None
    partition: int | None = None
    offset: int | None = None


class AuditedPart(Model):
    """The last audit of a part of the keys: ``different`` rows differ; ``since`` the first audit in a row with some."""

    at: AwareDatetime
    n: int
    different: int = 0
    since: AwareDatetime | None = None
    first: str = ""


class StateStatus(StoredObject):
    """``_tidemark/_states/<cluster>/<topic>.json``: the state table after the run or audit ``at`` that time.

    ``n`` is its last commit, which equals the commit ``of`` of the topic's table; the counts are those of its ledger.
    ``followed_at`` is the time of the last run that ended well, even if nothing had changed. ``former`` are the names
    that the state table had before, each of a table that no run follows any more.
    """

    most_bytes: ClassVar[int] = object_sizes.SMALL

    cluster: str
    topic: str
    table: str
    former: tuple[str, ...] = ()
    at: AwareDatetime
    n: int = 0
    of: int = 0
    committed_at: AwareDatetime | None = None
    followed_at: AwareDatetime | None = None
    rows: int = 0
    moved_keys: int = 0
    outranked_keys: int = 0
    quarantined: int = 0
    unavailable: int = 0
    uncertain: int = 0
    stopped: StateStop | None = None
    audits: dict[int, AuditedPart] = Field(default_factory=dict)

    @property
    def proved_at(self) -> datetime | None:
        """The time since which every part of the keys was audited; None before all were."""
        return min(part.at for part in self.audits.values()) if len(self.audits) == AUDIT_PARTS else None


class StateFinding(Model):
    """A key whose row is not that of the replay, told by the place of its record, never by the key."""

    rule: str
    incarnation: int
    partition: int
    offset: int

    def text(self) -> str:
        """One line for a person."""
        return f"offset {self.offset} of partition {self.partition}, incarnation {self.incarnation}: {self.rule}"


class StateAudit(StoredObject):
    """``state/audits/<part>.json``: the comparison of a part of the keys, at ``at``, of the state's commit ``n``.

    ``rows`` were equal. ``unproved`` rows are of records that retention has removed from the table. ``different``
    counts all findings, of which the first are listed.
    """

    most_bytes: ClassVar[int] = object_sizes.REPORT

    cluster: str
    topic: str
    part: int = Field(ge=0, lt=AUDIT_PARTS)
    at: AwareDatetime
    n: int = Field(ge=0)
    rows: int = Field(default=0, ge=0)
    unproved: int = Field(default=0, ge=0)
    different: int = Field(default=0, ge=0)
    findings: tuple[StateFinding, ...] = ()
