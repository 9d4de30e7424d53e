"""How a topic's state table fares: its last run and its audits, for readers of many topics and for the page.

An audit compares a part of the keys with a replay of the topic's table, and leaves a report.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Final

from pydantic import AwareDatetime, Field

from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject

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
