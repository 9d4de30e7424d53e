"""Incidents: one per cause. It opens when the cause is observed, and closes by itself when the cause is gone. Pure.

A :class:`Condition` is a finding of one observation. Its ``key`` (kind, cluster, topic, partition, offset, as they
apply) identifies it, so a lasting cause stays one incident. ``revision`` counts the events to report: it opened, its
``fact`` changed, it closed. What each notifier has reported is recorded with the incident, by compare-and-set, after
the notifier returned: after a kill in between, it is reported once more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import ClassVar, Final, NamedTuple

from pydantic import AwareDatetime, Field

from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.monitoring.kinds import IncidentKind

KEPT_CLOSED: Final = timedelta(days=30)
MOST_CLOSED: Final = 2000
"""How long, and how many, closed incidents are kept."""

REOPENS_WITHIN: Final = timedelta(minutes=10)
"""If a cause returns within this time, its incident is opened again."""


class Condition(Model):
    """What is wrong now. ``start`` and ``end`` are offsets, half-open; ``offsets`` is the number of offsets affected.

    ``title`` is one line, ``text`` says what happened, ``likely`` why, and ``mend`` gives the command or the place that
    corrects it. If ``fact`` changes, the incident is reported again. A condition becomes an incident once it has lasted
    for ``patience``.
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


def in_utc(at: datetime) -> str:
    """A time as messages show it."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


class IncidentDelivery(Model):
    """What a notifier has reported of an incident: the revision, the key of the message, and whether it was closed."""

    revision: int
    key: str
    closed: bool
    at: AwareDatetime


class Incident(Condition):
    """A condition with the times of its opening and closing. It is open while ``closed_at`` is None."""

    opened_at: AwareDatetime
    updated_at: AwareDatetime
    closed_at: AwareDatetime | None = None
    revision: int = 1
    delivered: dict[str, IncidentDelivery] = Field(default_factory=dict)

    @property
    def open(self) -> bool:
        """Whether the cause is still there."""
        return self.closed_at is None

    def waits_for(self, notifier: str) -> bool:
        """Whether ``notifier`` has something to report. An incident that closed unreported is never reported."""
        told = self.delivered.get(notifier)
        return self.open if told is None else told.revision < self.revision


class Incidents(StoredObject):
    """``_tidemark/_incidents/<cluster>.json``: the open incidents, and those that closed in the last 30 days.

    ``at`` is when the cluster was last observed: if it is old, no observer is running.
    """

    most_bytes: ClassVar[int] = object_sizes.DEPLOYMENT

    cluster: str
    at: AwareDatetime
    incidents: tuple[Incident, ...] = ()


class Unknown(NamedTuple):
    """What an observation could not judge: these kinds, for one topic or all (None); with a ``key``, one incident.

    The ``known`` partitions could be judged.
    """

    kinds: frozenset[IncidentKind]
    topic: str | None = None
    known: frozenset[int] = frozenset()
    key: str | None = None

    def covers(self, incident: Incident) -> bool:
        """Whether the incident may still be there unseen, so that it stays as it is."""
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
    before = {one.key: one for one in known}
    found = {one.key: _seen(before.get(one.key), one, now) for one in conditions}
    gone = [_unseen(one, unknown, now) for key, one in before.items() if key not in found]
    still = [one for one in gone if one.open]
    closed = [one for one in gone if one.closed_at is not None and one.closed_at > now - KEPT_CLOSED]
    closed.sort(key=lambda one: (one.closed_at or now, one.key), reverse=True)
    return (*sorted((*found.values(), *still), key=lambda one: one.key), *closed[:MOST_CLOSED])


def _seen(known: Incident | None, condition: Condition, now: datetime) -> Incident:
    said = condition.model_dump()
    if known is None or (known.closed_at is not None and now - known.closed_at > REOPENS_WITHIN):
        return Incident(**said, opened_at=now, updated_at=now)
    again = not known.open
    if not again and known.fact == condition.fact:
        said["since"] = known.since
        return known.model_copy(update=said) if _differs(known, said) else known
    update = {**said, "since": known.since, "updated_at": now, "closed_at": None, "revision": known.revision + 1}
    return known.model_copy(update=update)


def _differs(known: Incident, said: dict[str, object]) -> bool:
    return any(getattr(known, name) != value for name, value in said.items())


def _unseen(known: Incident, unknown: Collection[Unknown], now: datetime) -> Incident:
    if not known.open or any(one.covers(known) for one in unknown):
        return known
    return known.model_copy(update={"closed_at": now, "updated_at": now, "revision": known.revision + 1})
