"""What one look leaves for the next: since when something waits, how many records were refused, what was quiet.

It is a memory and no proof: without it, waiting is dated anew and everything is read again.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import ClassVar, Final

from pydantic import AwareDatetime, Field

from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.monitoring.health import WaitingSince
from tidemark.monitoring.overview import TopicSummary

MOST_SAMPLES: Final = 120
"""Of a topic; beyond that the oldest are added up."""


class ParseSample(Model):
    """What a run made of the records that it parsed."""

    at: AwareDatetime
    parsed: int = Field(ge=0)
    refused: int = Field(ge=0)


class TopicSighting(Model):
    """One topic.

    ``marks`` are what could be landed and is not, ``uploaded`` what of it is uploaded, ``rotated`` what waits to be.
    ``samples`` are of the runs up to ledger ``n``, as old as the quarantine's rate looks back. ``quiet`` identifies the
    ledger and the watermarks with which nothing was wrong or waiting: as long as they are the same, there is no need to
    read the ledger. ``read_at`` is when it was read last. ``passed`` is the ETag of a verdict without a failure.
    ``summary`` is how the topic was when its ledger was read.
    """

    marks: tuple[WaitingSince, ...] = ()
    uploaded: tuple[WaitingSince, ...] = ()
    rotated: tuple[WaitingSince, ...] = ()
    samples: tuple[ParseSample, ...] = ()
    n: int | None = None
    quiet: str = ""
    read_at: AwareDatetime | None = None
    passed: str = ""
    summary: TopicSummary | None = None


def latest(samples: Iterable[ParseSample], since: datetime) -> tuple[ParseSample, ...]:
    """Those from ``since`` on, the oldest first; too many are added up to fewer."""
    kept = sorted((one for one in samples if one.at >= since), key=lambda one: one.at)
    while len(kept) > MOST_SAMPLES:
        first, second, *rest = kept
        both = ParseSample(at=second.at, parsed=first.parsed + second.parsed, refused=first.refused + second.refused)
        kept = [both, *rest]
    return tuple(kept)


class Sightings(StoredObject):
    """``_tidemark/_watch/<cluster>.json``. ``first`` is when each condition was first seen that must last a while.

    ``sampled_at`` is when the topics were last sampled, see :mod:`tidemark.monitoring.overview`.
    """

    most_bytes: ClassVar[int] = object_sizes.DEPLOYMENT

    cluster: str
    at: AwareDatetime
    topics: dict[str, TopicSighting] = Field(default_factory=dict)
    first: dict[str, AwareDatetime] = Field(default_factory=dict)
    sampled_at: AwareDatetime | None = None
