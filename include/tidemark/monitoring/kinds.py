"""The kinds of incidents. A new kind is a line here, a rule that finds it, and a row in docs/alerts.md.

``sources`` is what a kind is found by. While one of its sources cannot be read, an open incident of that kind stays
open: that it was not found says nothing then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

IncidentKind = Literal[
    "agent_gone",
    "audit",
    "clock",
    "gap",
    "late",
    "quarantine",
    "scan",
    "stuck",
    "topics_file",
    "unreadable",
    "unseen",
]
Source = Literal[
    "agents",  # the brokers' watermark indexes: who wrote them, and when
    "leaders",  # what the leaders' entries in them say of partitions
    "ledger",  # a topic's committed ledger, and the evidence of its runs
    "objects",  # any object that could not be read
    "scan",  # what the triggerer says of its scan
    "sightings",  # by which agents a topic was ever seen
    "topics file",
    "verdict",  # what the last audits of a topic said
]
Page = Literal["continuity", "rebuild", "replay"]
"""Where an incident leads: a topic's continuity page, or the form of a backfill in that mode, filled in."""


class Kind(NamedTuple):
    """What incidents of a kind mean, in one line, what they are found by, and where they lead."""

    meaning: str
    sources: frozenset[Source]
    page: Page = "continuity"


def _kind(meaning: str, *sources: Source, page: Page = "continuity") -> Kind:
    return Kind(meaning, frozenset(sources), page)


KINDS: Final[Mapping[IncidentKind, Kind]] = {
    "agent_gone": _kind("a broker's agent is silent, and nobody else leads its partitions", "agents"),
    "audit": _kind("a date's last audit found a difference, or could not be carried out", "verdict", page="rebuild"),
    "clock": _kind("the clock of a broker's host, or of Airflow's, is more than a minute off the store's", "agents"),
    "gap": _kind("offsets are LOST, and nobody has acknowledged it", "ledger", "leaders"),
    "late": _kind("what could be landed has waited for longer than the topic's freshness", "ledger", "leaders"),
    "quarantine": _kind("more records are refused than the topic's quarantine.rate", "ledger", page="replay"),
    "scan": _kind("the watermark indexes cannot be read, so no topic is woken", "scan"),
    "stuck": _kind("a rotated segment is not uploaded, and so the watermark stands while the log grows", "leaders"),
    "topics_file": _kind("the topics file is wrong", "topics file"),
    "unreadable": _kind("a ledger, a verdict or a broker's index cannot be read", "objects"),
    "unseen": _kind("no agent was ever seen for a topic of the topics file", "sightings"),
}


def found_by(*sources: Source) -> frozenset[IncidentKind]:
    """The kinds that have one of ``sources``."""
    return frozenset(kind for kind, one in KINDS.items() if one.sources & frozenset(sources))
