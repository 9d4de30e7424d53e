"""The kinds of incidents. A new kind is a line here, a rule that finds it, and a row in docs/alerts.md.

A kind's ``sources`` are the objects that its rule reads. While one of them cannot be read, an open incident of the kind
stays open, since the rule cannot know whether the cause is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

IncidentKind = Literal[
    "agent_gone",
    "audit",
    "clock",
    "disk",
    "erasure",
    "gap",
    "head",
    "history",
    "late",
    "mirror",
    "quarantine",
    "remote_tier",
    "retention_near",
    "scan",
    "schema",
    "state",
    "stuck",
    "topics_file",
    "unmeasured",
    "unread",
    "unreadable",
    "unseen",
    "unstored",
]
Source = Literal[
    "agents",  # the brokers' watermark indexes: their writers and times
    "erasures",  # the requests for erasure, and the reports of passes
    "leaders",  # the leaders' entries for partitions in these indexes
    "ledger",  # a topic's committed ledger, and the evidence of its runs
    "mirrors",  # the ledgers that catalogs list of the tables
    "objects",  # any object that could not be read
    "scan",  # the triggerer's report of its scan
    "schema",  # the registry's schema of a topic's columns
    "state",  # the status of a topic's state table
    "sightings",  # the agents that ever reported a topic
    "topics file",
    "unread",  # the parts of a topic's live end that its runs could not read
    "verdict",  # the results of a topic's last audits
]
Page = Literal["continuity", "rebuild", "replay"]
"""The page of an incident: a topic's continuity page, or the form of a backfill in that mode, filled in."""


class Kind(NamedTuple):
    """The sources of incidents of a kind, and their page."""

    sources: frozenset[Source]
    page: Page = "continuity"


def _kind(*sources: Source, page: Page = "continuity") -> Kind:
    return Kind(frozenset(sources), page)


# docs/alerts.md explains each of them.
KINDS: Final[Mapping[IncidentKind, Kind]] = {
    "agent_gone": _kind("agents"),
    "audit": _kind("verdict", page="rebuild"),
    "clock": _kind("agents"),
    "disk": _kind("agents"),
    "erasure": _kind("erasures"),
    "gap": _kind("ledger", "leaders"),
    "head": _kind("agents"),
    "history": _kind("agents"),
    "late": _kind("ledger", "leaders"),
    "mirror": _kind("mirrors"),
    "quarantine": _kind("ledger", page="replay"),
    "remote_tier": _kind("ledger", "leaders"),
    "retention_near": _kind("leaders"),
    "scan": _kind("scan"),
    "schema": _kind("schema"),
    "state": _kind("state"),
    "stuck": _kind("leaders"),
    "topics_file": _kind("topics file"),
    "unmeasured": _kind("agents", "leaders"),
    "unread": _kind("unread"),
    "unreadable": _kind("objects"),
    "unseen": _kind("sightings"),
    "unstored": _kind("leaders"),
}


def page_of(kind: str) -> Page:
    """The page of an incident of ``kind``, which may be that of a later version."""
    return next((known.page for name, known in KINDS.items() if name == kind), "continuity")


def found_by(*sources: Source) -> frozenset[IncidentKind]:
    """The kinds that have at least one of ``sources``."""
    return frozenset(name for name, kind in KINDS.items() if kind.sources & frozenset(sources))
