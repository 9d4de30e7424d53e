"""What the API answers and takes.

Offsets are integers and half-open, ``[start, end)``; times are ISO 8601 in UTC; sizes are in bytes, durations in
seconds. Attempts are strings, for the browser rounds numbers above 2^53.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from pydantic import AwareDatetime, BaseModel, Field

from tidemark.formats.gaps import Acknowledgement
from tidemark.formats.manifest import OpenTransaction
from tidemark.inspection.offset_lineage import Derived, SegmentInfo
from tidemark.monitoring.judgement import TopicState
from tidemark.monitoring.overview import TopicSample
from tidemark_airflow.web.offset_strips import StripSpan

PartitionFilter = Literal["all", "gaps", "held", "behind"]
PARTITION_FILTERS: Final[tuple[PartitionFilter, ...]] = get_args(PartitionFilter)


class ClusterNow(BaseModel):
    """When a cluster was last observed; None if never, or if nobody may look."""

    cluster: str
    observed_at: AwareDatetime | None


class TopicRow(BaseModel):
    """A topic in the list, as it was when its cluster was last observed; ``incidents`` is how many are open."""

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
    incidents: int


class IncidentNow(BaseModel):
    """An open incident as the watch DAG reported it: what, since when, its likely cause, and its repair."""

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


class BrokersetRow(BaseModel):
    """A brokerset's upload load, in bytes a second, of all brokers and of the busiest; lag in offsets, held in bytes.

    Without broker ``without``, whose loss is the worst, broker ``busiest_then`` has ``rate_then``. ``without`` is None
    where there is but one broker. Of ``unmeasured`` partitions nobody knows the rate. By ``failover`` it is known where
    leaders go, or taken to be ``even``.
    """

    brokerset: str
    brokers: int
    partitions: int
    unmeasured: int
    capacity: int | None
    exceeded: bool
    rate: float
    busiest: int
    busiest_rate: float
    lag: int
    held: float
    failover: Literal["replicas", "even"]
    without: int | None
    busiest_then: int
    rate_then: float


class ClusterBrokersets(BaseModel):
    """The brokersets of a cluster, in the order of their file; ``failure`` says which indexes cannot be read."""

    cluster: str
    brokersets: list[BrokersetRow]
    failure: str


class BrokersetsAnswer(BaseModel):
    """The clusters that have brokersets and a topic that one may see."""

    clusters: list[ClusterBrokersets]


class SchemaNow(BaseModel):
    """The schema that a topic follows: what is adopted of ``subject``, since when, and what ``waits`` of which version.

    ``changes`` are those of the version that is adopted. Both are in words.
    """

    subject: str
    version: int
    adopted_at: AwareDatetime
    changes: list[str]
    waiting_version: int | None
    waits: list[str]


class TopicAnswer(BaseModel):
    """A topic now. ``counts`` of partitions by filter; ``failure`` says why the watermark indexes cannot be read.

    ``promise`` is the topic's freshness in seconds, None if it promises none. ``unstored_since`` is when the oldest
    byte was appended that is not in the store, as far as agents know; of ``unmeasured`` partitions they do not.
    """

    cluster: str
    topic: str
    table: str
    owner: str
    dag_id: str
    time_zone: str
    partition_by: list[str]
    freshness: float
    promise: float | None
    unstored_since: AwareDatetime | None
    unmeasured: int
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
    followed: SchemaNow | None
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
    state: TopicState
    landed: int | None
    watermark: int | None
    log_end: int | None
    high_watermark: int | None
    lag: int
    broker: int | None
    observed_at: AwareDatetime | None
    unstored_since: AwareDatetime | None
    waits_since: AwareDatetime | None
    held_by: list[OpenTransaction]
    gaps: list[GapNow]
    spans: list[StripSpan]


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
    samples: list[TopicSample]


class LineageAnswer(BaseModel):
    """Where offsets come from; ``more`` if the limits left some out."""

    start: int
    end: int
    rows: list[Derived]
    segments: list[SegmentInfo]
    more: bool


class TableReader(BaseModel, frozen=True):
    """A DAG that ``asset`` schedules, or a task of it with the asset as an inlet; ``task`` is empty of the former."""

    dag: str
    task: str
    asset: str


class ReadersAnswer(BaseModel):
    """Who reads a topic's table, as far as Airflow knows and one may see."""

    readers: list[TableReader]


class GapAcknowledgement(BaseModel):
    """A person's word that offsets of an open gap are lost for good. Who says so is the one who is signed in."""

    incarnation: int = Field(default=0, ge=0)
    partition: int = Field(ge=0)
    start: int = Field(ge=0)
    end: int = Field(ge=0)
    reason: str = Field(min_length=1, max_length=1000, pattern=r"\S")


class WordAnswer(BaseModel):
    """The acknowledgement in force; ``new`` is false if it was made before."""

    acknowledged: Acknowledgement
    new: bool
