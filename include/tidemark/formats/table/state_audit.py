"""The report of an audit of a state table, which compares a part of the keys with a replay of the topic's table."""

from __future__ import annotations

from typing import ClassVar, Final

from pydantic import AwareDatetime, Field

from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject

PARTS: Final = 16
"""An audit compares one of so many parts of the keys, by the first bits of their hash."""


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
    part: int = Field(ge=0, lt=PARTS)
    at: AwareDatetime
    n: int = Field(ge=0)
    rows: int = Field(default=0, ge=0)
    unproved: int = Field(default=0, ge=0)
    different: int = Field(default=0, ge=0)
    findings: tuple[StateFinding, ...] = ()
