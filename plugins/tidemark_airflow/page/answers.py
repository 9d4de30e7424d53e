"""What the API answers: the models, and how each is made of what was read. Pure.

Offsets are integers and half-open, ``[start, end)``; times are ISO 8601 in UTC; sizes are in bytes, durations in
seconds. Attempts are strings, for the browser rounds numbers above 2^53.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import AwareDatetime, BaseModel, Field

from tidemark.derivation import Derivation, Derived, SegmentInfo
from tidemark.gaps import Acknowledgement, Gap
from tidemark.health import Key, PartitionHealth
from tidemark.incidents import Incident
from tidemark.ledger import DateState
from tidemark.manifest import OpenTransaction
from tidemark.overview import STATES, Overview, Sample, TopicState, TopicSummary
from tidemark.topics import TopicSettings
from tidemark_airflow.ingest import dag_id
from tidemark_airflow.page.reading import TopicNow
from tidemark_airflow.page.strips import Span, spans_of

PartitionFilter = Literal["all", "gaps", "held", "behind"]


class ClusterNow(BaseModel):
    """When a cluster was last observed; None if never, or if nobody may look."""

    cluster: str
    observed_at: AwareDatetime | None


class TopicRow(BaseModel):
    """A topic in the list, as it was when its cluster was last observed."""

    cluster: str
    topic: str
    owner: str
    dag_id: str
    state: TopicState
    committed_at: AwareDatetime | None
    behind_since: AwareDatetime | None
    freshness: float
    partitions: int
    lag: int
    rows: int
    gaps: int
    missing: int
    held: int
    final_to: str
    incomplete: int


class IncidentNow(BaseModel):
    """An open incident as the watch DAG told of it: what, since when, why it may be, and what mends it."""

    kind: str
    title: str
    text: str
    likely: str
    mend: str
    since: AwareDatetime


class TopicsAnswer(BaseModel):
    """A part of the topics that one may see, from the worst state to the best. ``counts`` are of all that match.

    ``incidents`` are those that are about no single topic.
    """

    clusters: list[ClusterNow]
    counts: dict[str, int]
    total: int
    offset: int
    topics: list[TopicRow]
    incidents: list[IncidentNow]


class TopicAnswer(BaseModel):
    """A topic now. ``counts`` of partitions by filter; ``failure`` says why the watermark indexes cannot be read."""

    cluster: str
    topic: str
    table: str
    owner: str
    dag_id: str
    time_zone: str
    freshness: float
    state: TopicState
    behind_since: AwareDatetime | None
    observed_at: AwareDatetime | None
    ledger_n: int
    committed_at: AwareDatetime | None
    rows: int
    lag: int
    missing: int
    counts: dict[PartitionFilter, int]
    dates: dict[str, int]
    failure: str
    may_acknowledge: bool
    incidents: list[IncidentNow]


class GapNow(BaseModel):
    """An open gap, and the word that was said about it, if there is one: it closes it once the agent has read it."""

    start: int
    end: int
    reason: str
    detected_at: AwareDatetime
    acknowledged: Acknowledgement | None = None


class PartitionRow(BaseModel):
    """A partition and its strip. ``state`` is the worst that can be said of it."""

    incarnation: int
    partition: int
    state: Literal["gap", "held", "behind", "complete"]
    landed: int | None
    watermark: int | None
    log_end: int | None
    high_watermark: int | None
    lag: int
    broker: int | None
    observed_at: AwareDatetime | None
    held_by: list[OpenTransaction]
    gaps: list[GapNow]
    spans: list[Span]


class PartitionsAnswer(BaseModel):
    """A part of the partitions that the filter lets through; ``offset`` is the place of the first of them."""

    total: int
    offset: int
    partitions: list[PartitionRow]


class DateRow(BaseModel):
    """A date of the table; ``quarantined`` rows lie beside it."""

    dt: str
    state: str
    rows: int
    late_rows: int
    quarantined: int
    changed_at: AwareDatetime | None
    closed_at: AwareDatetime | None
    unfinished: int
    outstanding: int


class DatesAnswer(BaseModel):
    """The dates of a year. ``undated`` are quarantined rows whose date is not known."""

    years: list[int]
    year: int | None
    dates: list[DateRow]
    undated: int


class HistoryAnswer(BaseModel):
    """How far behind the topic was, the oldest sample first."""

    hours: int
    freshness: float
    samples: list[Sample]


class LineageAnswer(BaseModel):
    """Where offsets come from; ``more`` if the limits left some out."""

    start: int
    end: int
    rows: list[Derived]
    segments: list[SegmentInfo]
    more: bool


class Word(BaseModel):
    """A person's word that offsets of an open gap are lost for good. Who says so is the one who is signed in."""

    incarnation: int = Field(default=0, ge=0)
    partition: int = Field(ge=0)
    start: int = Field(ge=0)
    end: int = Field(ge=0)
    reason: str = Field(min_length=1, max_length=1000, pattern=r"\S")


class WordAnswer(BaseModel):
    """The word that stands; ``new`` is false if the same was said before."""

    acknowledged: Acknowledgement
    new: bool


def topics_answer(
    topics: Iterable[TopicSettings],
    overviews: Mapping[str, Overview | None],
    incidents: Iterable[Incident],
    *,
    state: str = "",
    contains: str = "",
    offset: int = 0,
    limit: int = 100,
) -> TopicsAnswer:
    """Those in ``state`` whose name, owner or table ``contains`` a text: ``limit`` of them from ``offset`` on."""
    known = {
        (cluster, one.topic): one for cluster, found in overviews.items() for one in (found.topics if found else ())
    }
    text = contains.casefold()
    rows = [
        _topic_row(one, known.get((one.cluster, one.topic)))
        for one in topics
        if text in f"{one.cluster}/{one.topic}\n{one.owner}\n{one.table}".casefold()
    ]
    counts = Counter(one.state for one in rows)
    chosen = sorted(
        (one for one in rows if not state or one.state == state),
        key=lambda one: (STATES.index(one.state), -one.lag, one.cluster, one.topic),
    )
    return TopicsAnswer(
        clusters=[ClusterNow(cluster=one, observed_at=found.at if found else None) for one, found in overviews.items()],
        counts={name: counts[name] for name in STATES},
        total=len(chosen),
        offset=offset,
        topics=chosen[offset : offset + limit],
        incidents=_open(one for one in incidents if one.topic is None),
    )


def _open(incidents: Iterable[Incident]) -> list[IncidentNow]:
    return [
        IncidentNow(**one.model_dump(include=set(IncidentNow.model_fields)))
        for one in incidents
        if one.closed_at is None
    ]


def _topic_row(topic: TopicSettings, summary: TopicSummary | None) -> TopicRow:
    known = summary or TopicSummary(topic=topic.topic, state="unknown", ledger_n=0)
    return TopicRow(
        cluster=topic.cluster,
        owner=topic.owner,
        dag_id=dag_id(topic),
        freshness=topic.freshness.total_seconds(),
        **known.model_dump(exclude={"ledger_n", "landed"}),
    )


def topic_answer(
    now: TopicNow, overview: Overview | None, incidents: Iterable[Incident], *, may_acknowledge: bool
) -> TopicAnswer:
    """The topic's head. Since when it waits, only whoever observes it again and again can tell."""
    topic, health = now.lake.topic, now.health
    observed = next((one for one in overview.topics if one.topic == topic.topic), None) if overview else None
    gaps = [gap for one in health.partitions for gap in one.gaps]
    summary = TopicSummary.of(health, topic, now.at)
    late = observed is not None and observed.state == "late" and summary.state in {"held", "behind"}
    return TopicAnswer(
        cluster=topic.cluster,
        topic=topic.topic,
        table=now.lake.url,
        owner=topic.owner,
        dag_id=dag_id(topic),
        time_zone=topic.time_zone,
        freshness=topic.freshness.total_seconds(),
        state="late" if late else summary.state,
        behind_since=observed.behind_since if observed and health.behind_since else None,
        observed_at=max((one.observed_at for one in health.partitions if one.observed_at), default=None),
        ledger_n=health.ledger_n,
        committed_at=health.committed_at,
        rows=now.ledger.rows,
        lag=health.lag,
        missing=sum(gap.end - gap.start for gap in gaps),
        counts={
            name: sum(_passes(one, name) for one in health.partitions) for name in ("all", "gaps", "held", "behind")
        },
        dates=dict(Counter(one.state for one in health.dates.values())),
        failure=now.failure,
        may_acknowledge=may_acknowledge,
        incidents=_open(one for one in incidents if one.topic == topic.topic),
    )


def _passes(one: PartitionHealth, only: PartitionFilter) -> bool:
    if only == "gaps":
        return bool(one.gaps)
    if only == "held":
        return bool(one.held_by)
    return only == "all" or one.waits_since is not None


def chosen_partitions(
    now: TopicNow, only: PartitionFilter, offset: int, limit: int, at: Key | None
) -> tuple[int, int, Sequence[PartitionHealth]]:
    """(how many pass the filter, place of the first, those of one page); the page is that of ``at``, if given."""
    found = [one for one in now.health.partitions if _passes(one, only)]
    if at is not None:
        place = next((n for n, one in enumerate(found) if (one.incarnation, one.partition) == at), 0)
        offset = place // limit * limit
    return len(found), offset, found[offset : offset + limit]


def partition_row(now: TopicNow, one: PartitionHealth, words: Sequence[Acknowledgement]) -> PartitionRow:
    """A partition with its strip."""
    key = one.incarnation, one.partition
    state: Literal["gap", "held", "behind", "complete"] = "complete"
    if one.gaps:
        state = "gap"
    elif one.held_by:
        state = "held"
    elif one.waits_since is not None:
        state = "behind"
    return PartitionRow(
        state=state,
        gaps=[_gap(gap, words) for gap in one.gaps],
        spans=spans_of(now.ledger.by_partition.get(key), now.entries.get(key), one.gaps),
        held_by=list(one.held_by),
        lag=one.lag,
        **one.model_dump(
            include={
                "incarnation",
                "partition",
                "landed",
                "watermark",
                "log_end",
                "high_watermark",
                "broker",
                "observed_at",
            }
        ),
    )


def _gap(gap: Gap, words: Sequence[Acknowledgement]) -> GapNow:
    word = next((one for one in words if one.start <= gap.start and gap.end <= one.end), None)
    return GapNow(start=gap.start, end=gap.end, reason=gap.reason, detected_at=gap.detected_at, acknowledged=word)


def dates_answer(dates: Mapping[str, DateState], quarantined: Mapping[str, int], year: int | None) -> DatesAnswer:
    """The dates of ``year``, or of the newest one."""
    known = sorted({*dates, *(dt for dt in quarantined if dt)})
    years = sorted({int(dt[:4]) for dt in known})
    wanted = year if year is not None else max(years, default=None)
    rows = [
        _date_row(dt, dates.get(dt, DateState(rows=0)), quarantined.get(dt, 0))
        for dt in known
        if wanted is not None and dt.startswith(f"{wanted:04d}-")
    ]
    return DatesAnswer(years=years, year=wanted, dates=rows, undated=quarantined.get("", 0))


def _date_row(dt: str, one: DateState, quarantined: int) -> DateRow:
    return DateRow(dt=dt, quarantined=quarantined, **one.model_dump())


def lineage_answer(start: int, end: int, found: Derivation) -> LineageAnswer:
    """The derivation of ``[start, end)``."""
    return LineageAnswer(start=start, end=end, rows=list(found.rows), segments=list(found.segments), more=found.more)
