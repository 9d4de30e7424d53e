"""The kinds of incidents. A new kind is a line here, a rule that finds it, and a row in docs/alerts.md.

``sources`` are what the rule reads. While one of them cannot be read, an open incident of that kind stays open, since
the rule cannot tell whether the cause is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

IncidentKind = Literal[
    "agent_gone",
    "audit",
    "clock",
    "gap",
    "head",
    "late",
    "mirror",
    "quarantine",
    "scan",
    "schema",
    "stuck",
    "topics_file",
    "unmeasured",
    "unread",
    "unreadable",
    "unseen",
    "unstored",
]
Source = Literal[
    "agents",  # the brokers' watermark indexes: who wrote them, and when
    "leaders",  # what the leaders' entries in them say of partitions
    "ledger",  # a topic's committed ledger, and the evidence of its runs
    "mirrors",  # how far catalogs list the tables
    "objects",  # any object that could not be read
    "scan",  # what the triggerer says of its scan
    "schema",  # which schema of a registry a topic's columns come from
    "sightings",  # by which agents a topic was ever seen
    "topics file",
    "unread",  # what of a topic's live end its runs could not read
    "verdict",  # what the last audits of a topic said
]
Page = Literal["continuity", "rebuild", "replay"]
"""Where an incident leads: a topic's continuity page, or the form of a backfill in that mode, filled in."""


class Kind(NamedTuple):
    """What incidents of a kind are found by, and where they lead."""

    sources: frozenset[Source]
    page: Page = "continuity"


def _kind(*sources: Source, page: Page = "continuity") -> Kind:
    return Kind(frozenset(sources), page)


# docs/alerts.md says what each of them means.
KINDS: Final[Mapping[IncidentKind, Kind]] = {
    "agent_gone": _kind("agents"),
    "audit": _kind("verdict", page="rebuild"),
    "clock": _kind("agents"),
    "gap": _kind("ledger", "leaders"),
    "head": _kind("agents"),
    "late": _kind("ledger", "leaders"),
    "mirror": _kind("mirrors"),
    "quarantine": _kind("ledger", page="replay"),
    "scan": _kind("scan"),
    "schema": _kind("schema"),
    "stuck": _kind("leaders"),
    "topics_file": _kind("topics file"),
    "unmeasured": _kind("agents", "leaders"),
    "unread": _kind("unread"),
    "unreadable": _kind("objects"),
    "unseen": _kind("sightings"),
    "unstored": _kind("leaders"),
}


def found_by(*sources: Source) -> frozenset[IncidentKind]:
    """The kinds that have one of ``sources``."""
    return frozenset(kind for kind, one in KINDS.items() if one.sources & frozenset(sources))
