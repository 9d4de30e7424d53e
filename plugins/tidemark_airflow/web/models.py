"""The requests and answers of the API.

Offsets are integers and half-open, ``[start, end)``; times are ISO 8601 in UTC; sizes are in bytes, durations in
seconds. Attempts are strings, since browsers round numbers above 2^53.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from pydantic import AwareDatetime, BaseModel, Field

from tidemark.formats.raw.gaps import Acknowledgement
from tidemark.inspection.data_flow import TableColumn
from tidemark.inspection.offset_lineage import Derived, SegmentInfo
from tidemark.kafka_log import OpenTransaction
from tidemark.monitoring.judgement import TopicState
from tidemark.monitoring.overview import TopicSample

PartitionFilter = Literal["all", "gaps", "held", "behind"]
PARTITION_FILTERS: Final[tuple[PartitionFilter, ...]] = get_args(PartitionFilter)


class ClusterNow(BaseModel):
    """Time at which a cluster was last observed; None if never."""

    cluster: str
    observed_at: AwareDatetime | None


class TopicRow(BaseModel):
    """A topic in the list, as of its cluster's last observation; ``incidents`` counts the open ones."""

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
    """An open incident reported by the watch DAG: its text, start, likely cause and repair.

    ``mode`` is the mode of the backfill that repairs it, empty if no backfill does; ``date`` is that backfill's date,
    empty if the incident is not of one date.
    """

    kind: str
    title: str
    text: str
    likely: str
    mend: str
    since: AwareDatetime
    mode: str
    date: str


class TopicsAnswer(BaseModel):
    """A part of the visible topics, from the worst state to the best. ``counts`` are of all matching topics.

    ``incidents`` are the incidents without a single topic.
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
    if there is only one broker. The rate of ``unmeasured`` partitions is not known. ``failover`` says if leaders move
    to known ``replicas`` or are assumed to spread ``even``.
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


class ClusterBrokersetsView(BaseModel):
    """The brokersets of a cluster, in the order of their file; ``failure`` names the unreadable indexes."""

    cluster: str
    brokersets: list[BrokersetRow]
    failure: str


class BrokersetsAnswer(BaseModel):
    """The clusters with brokersets and a topic that the user may see."""

    clusters: list[ClusterBrokersetsView]


class SchemaNow(BaseModel):
    """The schema that a topic follows: the adopted version of ``subject``, and the changes that ``waits`` lists.

    ``changes`` are the changes of the adopted version. Both are texts.
    """

    subject: str
    version: int
    adopted_at: AwareDatetime
    changes: list[str]
    waiting_version: int | None
    waits: list[str]


class StateTableNow(BaseModel):
    """A topic's state table: its commit ``n``, as of the commit ``of`` of the topic's table, and its ``doubts``.

    ``proved_at`` is the time since which an audit has compared every key; None before the first has compared all.
    """

    table: str
    n: int
    of: int
    rows: int
    committed_at: AwareDatetime | None
    doubts: list[str]
    stopped: str
    proved_at: AwareDatetime | None


class AgentNow(BaseModel):
    """The agent of a broker that leads partitions of the topic, as its watermark index tells.

    ``alive`` is false once its last index is older than the age at which `agent_gone` opens.
    """

    broker: int
    version: str
    written_at: AwareDatetime
    alive: bool


class TopicAnswer(BaseModel):
    """A topic now. ``counts`` has partitions by filter; ``failure`` is the reason why watermark indexes cannot be read.

    ``promise`` is the topic's freshness in seconds, or None. ``unstored_since`` is the append time of the oldest byte
    that is not in the store, as far as agents know; they do not know it for ``unmeasured`` partitions. ``agents`` are
    those of the brokers that lead its partitions, by broker.
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
    remote_tier: int
    counts: dict[PartitionFilter, int]
    dates: dict[str, int]
    failure: str
    may_acknowledge: bool
    followed: SchemaNow | None
    state_table: StateTableNow | None
    agents: list[AgentNow]
    incidents: list[IncidentNow]


class GapNow(BaseModel):
    """An open gap, and its acknowledgement, if any, which closes it once the agent has read it."""

    start: int
    end: int
    reason: str
    detected_at: AwareDatetime
    acknowledged: Acknowledgement | None = None


SpanKind = Literal["landed", "uploaded", "held", "gap", "log"]
"""Landed in the table or with another class; uploaded and not landed; uploaded, and held by an open transaction;
missing; only in Kafka's log."""


class StripSpan(BaseModel):
    """The offsets ``[start, end)``; ``reason`` and ``since`` belong to a gap."""

    kind: SpanKind
    start: int
    end: int
    reason: str | None = None
    since: str | None = None


class PartitionRow(BaseModel):
    """A partition and its strip. ``state`` is the worst state that applies.

    ``remote_tier`` are the offsets below its first one in the store that only Kafka's own remote tier has.
    """

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
    remote_tier: list[tuple[int, int]]
    spans: list[StripSpan]


class PartitionsAnswer(BaseModel):
    """A part of the filtered partitions; ``offset`` is the index of its first one."""

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
    """The dates of a year. ``quarantined`` counts quarantined rows of all years, ``undated`` those without a date."""

    years: list[int]
    year: int | None
    dates: list[DateRow]
    undated: int
    quarantined: int


class ColumnsAnswer(BaseModel):
    """The table's columns with their Delta types, in its order; empty if nothing has landed yet."""

    columns: list[TableColumn]


class HistoryAnswer(BaseModel):
    """Samples of the topic's delay, the oldest first."""

    hours: int
    freshness: float
    samples: list[TopicSample]


class LineageAnswer(BaseModel):
    """The sources of offsets; ``more`` if the limits left some out."""

    start: int
    end: int
    rows: list[Derived]
    segments: list[SegmentInfo]
    more: bool


class TableReader(BaseModel, frozen=True):
    """A DAG that ``asset`` schedules, with an empty ``task``, or a task with the asset as an inlet."""

    dag: str
    task: str
    asset: str


class ReadersAnswer(BaseModel):
    """The readers of a topic's table that Airflow knows and the user may see."""

    readers: list[TableReader]


class ReportPart(BaseModel):
    """A titled table of a report; ``note`` explains it, or why it is empty."""

    title: str
    header: list[str]
    rows: list[list[str]]
    note: str


class ReportAnswer(BaseModel):
    """A run's report on a topic so far: its ``name``, the state in words (empty before it begins), and its parts."""

    name: str
    state: str
    done: bool
    parts: list[ReportPart]


class GapAcknowledgement(BaseModel):
    """The signed-in user's statement that offsets of an open gap are lost for good."""

    incarnation: int = Field(default=0, ge=0)
    partition: int = Field(ge=0)
    start: int = Field(ge=0)
    end: int = Field(ge=0)
    reason: str = Field(min_length=1, max_length=1000, pattern=r"\S")


class WordAnswer(BaseModel):
    """The acknowledgement in force; ``new`` is false if it was made before."""

    acknowledged: Acknowledgement
    new: bool
