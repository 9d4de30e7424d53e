"""Incidents and their kinds. There is one incident per cause: it opens and closes with the cause. Pure.

An incident opens when the cause is observed, and closes by itself when the cause is gone. A :class:`Condition` is a
finding of one observation. Its ``key`` (kind, cluster, topic, partition, offset, as they apply) identifies it, so a
lasting cause stays one incident. ``revision`` counts the events to report: it opened, its ``fact`` changed, it closed.
What each notifier has reported is recorded with the incident, by compare-and-set, after the notifier returned: after a
kill in between, it is reported once more.

A new kind is a line of :data:`KINDS`, a rule that finds it, and a row in docs/alerts.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import ClassVar, Final, Literal, NamedTuple, TypedDict

from pydantic import AwareDatetime, Field

from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject

KEPT_CLOSED: Final = timedelta(days=30)
MOST_CLOSED: Final = 2000
"""Time and number up to which closed incidents are kept."""

REOPENS_WITHIN: Final = timedelta(minutes=10)
"""If a cause returns within this time, its incident is opened again."""

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


class Condition(Model):
    """A finding of now. ``start`` and ``end`` are offsets, half-open; ``offsets`` is the number of offsets affected.

    ``title`` is one line, ``text`` is the event, ``likely`` its likely cause, and ``mend`` gives the command or the
    place that corrects it. If ``fact`` changes, the incident is reported again. A condition becomes an incident once it
    has lasted for ``patience``.
    """

    kind: IncidentKind
    key: str
    cluster: str
    topic: str | None = None
    partition: int | None = None
    start: int | None = None
    end: int | None = None
    offsets: int | None = None
    since: AwareDatetime
    title: str
    text: str
    likely: str
    mend: str
    fact: str = ""
    patience: timedelta = Field(default=timedelta(), exclude=True)


class Subject(TypedDict):
    """The fields of a :class:`Condition` that identify it."""

    kind: IncidentKind
    key: str
    cluster: str
    topic: str | None


def about(kind: IncidentKind, cluster: str, topic: str | None = None, *more: object) -> Subject:
    """What a condition is about; the key has ``more`` where a cluster or a topic can have several of a kind."""
    subject = cluster if topic is None else f"{cluster}/{topic}"
    return {"kind": kind, "key": "/".join(map(str, (kind, subject, *more))), "cluster": cluster, "topic": topic}


def in_utc(at: datetime) -> str:
    """``at`` as messages show it."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def agent_log(words: str = "") -> str:
    """How people read an agent's log, on each platform; ``words`` to look for in it."""
    search = f" | grep {words}" if words else ""
    return (
        f"the agent's log (systemd: journalctl -u tidemark-agent{search}; containers: docker logs CONTAINER{search}; "
        f"Kubernetes: kubectl logs POD{search})"
    )


class IncidentDelivery(Model):
    """A notifier's last report of an incident: the revision, the key of the message, and whether it was closed."""

    revision: int
    key: str
    closed: bool
    at: AwareDatetime


class Incident(Condition):
    """A condition with the times of its opening and closing. It is open while ``closed_at`` is None.

    A later version may know other kinds: an incident has all that people need.
    """

    kind: str  # type: ignore[assignment]
    opened_at: AwareDatetime
    updated_at: AwareDatetime
    closed_at: AwareDatetime | None = None
    revision: int = 1
    delivered: dict[str, IncidentDelivery] = Field(default_factory=dict)

    @property
    def open(self) -> bool:
        """True if the cause is still there."""
        return self.closed_at is None

    def waits_for(self, notifier: str) -> bool:
        """True if ``notifier`` has news to report. An incident that closed unreported is never reported."""
        delivery = self.delivered.get(notifier)
        return self.open if delivery is None else delivery.revision < self.revision


class Incidents(StoredObject):
    """``_tidemark/_incidents/<cluster>.json``: the open incidents, and the incidents closed in the last 30 days.

    ``at`` is when the cluster was last observed: if it is old, no observer is running.
    """

    most_bytes: ClassVar[int] = object_sizes.DEPLOYMENT

    cluster: str
    at: AwareDatetime
    incidents: tuple[Incident, ...] = ()


class Unknown(NamedTuple):
    """Incidents that an observation could not judge: of these kinds, for a topic or all (None), or with a ``key``.

    The ``known`` partitions could be judged.
    """

    kinds: frozenset[IncidentKind]
    topic: str | None = None
    known: frozenset[int] = frozenset()
    key: str | None = None

    def covers(self, incident: Incident) -> bool:
        """True if the incident may still be there unseen, so that it stays as it is."""
        if self.key not in {None, incident.key}:
            return False
        return (
            incident.kind in self.kinds
            and self.topic in {None, incident.topic}
            and (incident.partition is None or incident.partition not in self.known)
        )


def merge(
    known: Iterable[Incident], conditions: Iterable[Condition], unknown: Collection[Unknown], now: datetime
) -> tuple[Incident, ...]:
    """The incidents after an observation of ``conditions``: the open ones by key, then the closed, newest first."""
    before = {incident.key: incident for incident in known}
    seen = {condition.key: _seen(before.get(condition.key), condition, now) for condition in conditions}
    unseen = [_unseen(incident, unknown, now) for key, incident in before.items() if key not in seen]
    still = [incident for incident in unseen if incident.open]
    closed = [incident for incident in unseen if incident.closed_at and incident.closed_at > now - KEPT_CLOSED]
    closed.sort(key=lambda incident: (incident.closed_at or now, incident.key), reverse=True)
    return (*sorted((*seen.values(), *still), key=lambda incident: incident.key), *closed[:MOST_CLOSED])


def _seen(known: Incident | None, condition: Condition, now: datetime) -> Incident:
    fields = condition.model_dump()
    if known is None or (known.closed_at is not None and now - known.closed_at > REOPENS_WITHIN):
        return Incident(**fields, opened_at=now, updated_at=now)
    again = not known.open
    if not again and known.fact == condition.fact:
        fields["since"] = known.since
        return known.model_copy(update=fields) if _differs(known, fields) else known
    update = {**fields, "since": known.since, "updated_at": now, "closed_at": None, "revision": known.revision + 1}
    return known.model_copy(update=update)


def _differs(known: Incident, fields: dict[str, object]) -> bool:
    return any(getattr(known, name) != value for name, value in fields.items())


def _unseen(known: Incident, unknown: Collection[Unknown], now: datetime) -> Incident:
    if not known.open or any(blind_spot.covers(known) for blind_spot in unknown):
        return known
    return known.model_copy(update={"closed_at": now, "updated_at": now, "revision": known.revision + 1})


KINDS: Final[Mapping[IncidentKind, frozenset[Source]]] = {
    "agent_gone": frozenset({"agents"}),
    "audit": frozenset({"verdict"}),
    "clock": frozenset({"agents"}),
    "disk": frozenset({"agents"}),
    "erasure": frozenset({"erasures"}),
    "gap": frozenset({"ledger", "leaders"}),
    "head": frozenset({"agents"}),
    "history": frozenset({"agents"}),
    "late": frozenset({"ledger", "leaders"}),
    "mirror": frozenset({"mirrors"}),
    "quarantine": frozenset({"ledger"}),
    "remote_tier": frozenset({"ledger", "leaders"}),
    "retention_near": frozenset({"leaders"}),
    "scan": frozenset({"scan"}),
    "schema": frozenset({"schema"}),
    "state": frozenset({"state"}),
    "stuck": frozenset({"leaders"}),
    "topics_file": frozenset({"topics file"}),
    "unmeasured": frozenset({"agents", "leaders"}),
    "unread": frozenset({"unread"}),
    "unreadable": frozenset({"objects"}),
    "unseen": frozenset({"sightings"}),
    "unstored": frozenset({"leaders"}),
}
"""The sources of each kind of incident: the objects that its rule reads. docs/alerts.md explains the kinds.

While one of them cannot be read, an open incident of the kind stays open, since the rule cannot know whether the cause
is gone.
"""


_PAGES: Final[Mapping[str, Page]] = {"audit": "rebuild", "quarantine": "replay"}


def page_of(kind: str) -> Page:
    """The page of an incident of ``kind``, which may be that of a later version."""
    return _PAGES.get(kind, "continuity")


def found_by(*sources: Source) -> frozenset[IncidentKind]:
    """The kinds that have at least one of ``sources``."""
    return frozenset(kind for kind, known in KINDS.items() if not known.isdisjoint(sources))
