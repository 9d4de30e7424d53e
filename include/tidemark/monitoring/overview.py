"""The state of all topics of a cluster in one object, and its history: the observer writes them, the page reads them.

Reading a thousand ledgers for every page view would cost minutes and requests, so the observer, which reads them
anyway, calls :func:`record`. ``_tidemark/_overview/<cluster>.json`` is the newest state. Every five minutes one sample
of each topic is added to the object of the hour, ``_tidemark/_samples/<cluster>/<hour>.json``, which is kept for
:data:`KEPT`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final

from pydantic import AwareDatetime, Field

from tidemark.errors import FormatError, PreconditionFailed
from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.keys import DeploymentKeys
from tidemark.monitoring.health import TopicHealth
from tidemark.monitoring.judgement import TopicState, state_of
from tidemark.store import Store, put_over
from tidemark.store.retrying import Retry

SAMPLE_EVERY: Final = timedelta(minutes=5)
KEPT: Final = timedelta(days=14)

log = logging.getLogger(__name__)


class TopicSummary(Model):
    """One topic. Its ``state`` comes from the store alone; a view adds the topic's open incidents.

    ``landed`` and ``lag`` are offsets of the partitions that brokers lead. ``gaps`` are those of lost offsets that are
    open, and ``missing`` their offsets; ``held`` are partitions.

    ``final_to`` is the newest closed date, ``incomplete`` the number of dates that closed with offsets missing.
    """

    topic: str
    state: TopicState
    ledger_n: int
    committed_at: AwareDatetime | None = None
    behind_since: AwareDatetime | None = None
    partitions: int = 0
    landed: int = 0
    lag: int = 0
    rows: int = 0
    gaps: int = 0
    missing: int = 0
    held: int = 0
    final_to: str = ""
    incomplete: int = 0

    @classmethod
    def of(cls, health: TopicHealth) -> TopicSummary:
        """The summary of ``health``."""
        return cls(
            topic=health.topic,
            state=state_of(health),
            ledger_n=health.ledger_n,
            committed_at=health.committed_at,
            behind_since=health.behind_since,
            partitions=len(health.partitions),
            landed=sum(partition.landed or 0 for partition in health.partitions if partition.log_end is not None),
            lag=health.lag,
            rows=sum(date.rows for date in health.dates.values()),
            gaps=sum(len(partition.lost) for partition in health.partitions),
            missing=health.missing,
            held=sum(bool(partition.held_by) for partition in health.partitions),
            final_to=max((dt for dt, date in health.dates.items() if date.closed), default=""),
            incomplete=sum(date.state == "final_incomplete" for date in health.dates.values()),
        )

    def with_log_ends(self, ends: Iterable[int]) -> TopicSummary:
        """This summary with newer ends of the logs, while nothing of them can be landed yet."""
        lag = max(0, sum(ends) - self.landed)
        state = "current" if lag and self.state == "complete" else self.state
        return self.model_copy(update={"lag": lag, "state": state})


class Overview(StoredObject):
    """The topics of a cluster as they were ``at`` that time."""

    most_bytes: ClassVar[int] = object_sizes.DEPLOYMENT

    cluster: str
    at: AwareDatetime
    topics: tuple[TopicSummary, ...] = ()


class TopicSample(Model):
    """One topic at one time: offsets behind, seconds that the oldest has waited (0 if none waits), rows landed."""

    at: AwareDatetime
    lag: int = Field(ge=0)
    waits: int = Field(ge=0)
    rows: int = Field(ge=0)


class Samples(StoredObject):
    """The samples of an hour: for each topic a triple (lag, waits, rows) for each ``at``, null if it has none then."""

    most_bytes: ClassVar[int] = object_sizes.DEPLOYMENT

    cluster: str
    at: tuple[AwareDatetime, ...] = ()
    topics: dict[str, tuple[tuple[int, int, int] | None, ...]] = Field(default_factory=dict)

    def with_sample(self, overview: Overview) -> Samples:
        """These samples and a new one of each topic."""
        known = {**dict.fromkeys(self.topics), **{summary.topic: summary for summary in overview.topics}}
        none = (None,) * len(self.at)
        return Samples(
            cluster=self.cluster,
            at=(*self.at, overview.at),
            topics={name: (*self.topics.get(name, none), _triple(topic, overview.at)) for name, topic in known.items()},
        )

    def of(self, topic: str) -> Iterator[TopicSample]:
        """The samples of one topic."""
        for at, triple in zip(self.at, self.topics.get(topic, ()), strict=False):
            if triple is not None:
                yield TopicSample(at=at, lag=triple[0], waits=triple[1], rows=triple[2])


def _triple(summary: TopicSummary | None, now: datetime) -> tuple[int, int, int] | None:
    if summary is None:
        return None
    waits = int((now - summary.behind_since).total_seconds()) if summary.behind_since else 0
    return summary.lag, max(0, waits), summary.rows


def record(store: Store, keys: DeploymentKeys, overview: Overview, sampled_at: datetime | None) -> datetime:
    """Write the overview, and a sample if the last one, taken at ``sampled_at``, is five minutes old.

    With the first sample of an hour, samples that are too old are deleted. A cluster has one observer at a time. Should
    there be two, the later overview replaces the earlier, and a sample is left out rather than overwriting another.

    Returns:
        When the last sample was taken.
    """
    put_over(store, keys.overview, overview.to_bytes())
    if sampled_at is not None and overview.at - sampled_at < SAMPLE_EVERY:
        return sampled_at
    key = keys.samples(overview.at)
    try:
        samples, etag = Samples.load_version_or_none(store, key) or (Samples(cluster=overview.cluster), None)
    except FormatError:
        log.exception("no sample is taken; those of the next hour are in another object")
        return overview.at
    try:
        body = samples.with_sample(overview).to_bytes()
        Retry().call(lambda: store.put(key, body, if_match=etag, if_none_match=etag is None))
    except PreconditionFailed:
        return overview.at  # an earlier try has written it, or another observer was faster: its sample is as good
    if etag is None:
        _forget(store, keys, overview.at - KEPT)
    return overview.at


def _forget(store: Store, keys: DeploymentKeys, before: datetime) -> None:
    oldest = keys.samples(before)
    for info in list(store.list(keys.all_samples)):
        if info.key < oldest:
            store.delete(info.key)


def hours(now: datetime, count: int) -> list[datetime]:
    """The starts of the last ``count`` hours, the oldest first; the last is the hour of ``now``."""
    this = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return [this - timedelta(hours=back) for back in reversed(range(count))]
