"""The state that one observation leaves for the next: waiting offsets, refused records, quiet topics.

The state is only a cache: without it, waiting counts from now and everything is read again.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime
from typing import ClassVar, Final, NamedTuple

from pydantic import AwareDatetime, Field

from tidemark.erasure.reports import TopicState
from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.table.statuses import StateStatus
from tidemark.monitoring.health import WaitingSince
from tidemark.monitoring.overview import TopicSummary

MOST_SAMPLES: Final = 120
"""The most of a topic; the oldest above this are added up."""


class ParseSample(Model):
    """Counts of a run: records parsed, and records refused."""

    at: AwareDatetime
    parsed: int = Field(ge=0)
    refused: int = Field(ge=0)


class TopicSighting(Model):
    """The state of one topic.

    ``marks`` are of offsets that could be landed and have not; ``uploaded`` are of those that are uploaded, ``rotated``
    of those that wait for the upload. ``samples`` are of the runs up to ledger ``n``, as far back as the quarantine's
    rate looks. ``quiet`` identifies the ledger and the watermarks with which nothing was wrong or waiting: while they
    are unchanged, the ledger need not be read. ``read_at`` is when the ledger was last read. ``passed`` is the ETag of
    a verdict without a failure, ``all_read`` that of an unread status without a finding. ``failure`` is the error of
    the last run, which failed at ``failed_at``; empty if it did not fail. ``state`` is the status of the topic's state
    table, ``state_etag`` its ETag. ``summary`` is the topic's state when its ledger was read. ``first_at`` is when the
    topic was first observed, None if an earlier version did.
    """

    marks: tuple[WaitingSince, ...] = ()
    uploaded: tuple[WaitingSince, ...] = ()
    rotated: tuple[WaitingSince, ...] = ()
    samples: tuple[ParseSample, ...] = ()
    n: int | None = None
    quiet: str = ""
    read_at: AwareDatetime | None = None
    passed: str = ""
    all_read: str = ""
    failed_at: AwareDatetime | None = None
    failure: str = ""
    state: StateStatus | None = None
    state_etag: str = ""
    summary: TopicSummary | None = None
    first_at: AwareDatetime | None = None


def latest(samples: Iterable[ParseSample], since: datetime) -> tuple[ParseSample, ...]:
    """The samples from ``since`` on, the oldest first; the oldest are added up if they are too many."""
    kept = sorted((sample for sample in samples if sample.at >= since), key=lambda sample: sample.at)
    while len(kept) > MOST_SAMPLES:
        first, second, *rest = kept
        both = ParseSample(at=second.at, parsed=first.parsed + second.parsed, refused=first.refused + second.refused)
        kept = [both, *rest]
    return tuple(kept)


class OpenTopic(NamedTuple):
    """A topic of a request for erasure: its state, and the detail that a pass told."""

    topic: str
    state: TopicState
    detail: str


class OpenErasure(Model):
    """A request for erasure that is not closed; see :class:`tidemark.erasure.reports.RequestProgress`."""

    id: str
    approved: bool
    near_from: date
    due: date
    topics: tuple[OpenTopic, ...]


class ErasureSighting(Model):
    """The requests for erasure of a cluster, as they were ``read_at`` that time.

    ``closed`` are the ids of those that are erased or withdrawn, which are not read again.
    """

    open: tuple[OpenErasure, ...] = ()
    closed: tuple[str, ...] = ()
    read_at: AwareDatetime | None = None


class Sightings(StoredObject):
    """``_tidemark/_watch/<cluster>.json``. ``first`` has the first time of each condition that must last a while.

    ``sampled_at`` is when the topics were last sampled, see :mod:`tidemark.monitoring.overview`.
    """

    most_bytes: ClassVar[int] = object_sizes.DEPLOYMENT

    cluster: str
    at: AwareDatetime
    topics: dict[str, TopicSighting] = Field(default_factory=dict)
    first: dict[str, AwareDatetime] = Field(default_factory=dict)
    erasures: ErasureSighting = ErasureSighting()
    sampled_at: AwareDatetime | None = None
