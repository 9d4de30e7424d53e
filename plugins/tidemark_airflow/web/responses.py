"""Makes the API's answers from the data. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from tidemark.brokersets.load import BrokersetLoad
from tidemark.formats.raw.gaps import Acknowledgement, Gap
from tidemark.formats.raw.watermark_index import IndexEntry, WatermarkIndex
from tidemark.formats.table.ledger import DateState, PartitionState
from tidemark.formats.table.partitioning import names_of
from tidemark.formats.table.schema_state import SchemaChange, SchemaState
from tidemark.formats.table.statuses import StateStatus, doubts
from tidemark.inspection.offset_lineage import Derivation
from tidemark.monitoring.deployment_conditions import AGENT_GONE
from tidemark.monitoring.health import Key, PartitionHealth
from tidemark.monitoring.incidents import Incident, page_of
from tidemark.monitoring.judgement import STATES, state_of, state_of_partition, with_incidents
from tidemark.monitoring.overview import Overview, TopicSummary
from tidemark.topics import TopicSettings
from tidemark_airflow.dag_factories.ingest import dag_id
from tidemark_airflow.web.models import (
    PARTITION_FILTERS,
    AgentNow,
    BrokersetRow,
    ClusterBrokersetsView,
    ClusterNow,
    DateRow,
    DatesAnswer,
    GapNow,
    IncidentNow,
    LineageAnswer,
    PartitionFilter,
    PartitionRow,
    SchemaNow,
    StateTableNow,
    StripSpan,
    TopicAnswer,
    TopicRow,
    TopicsAnswer,
)
from tidemark_airflow.web.reader import BrokersetsNow, TopicNow

_HIDDEN: Final = "(this names topics that you may not see)"


def topics_answer(
    topics: Iterable[TopicSettings],
    overviews: Mapping[str, Overview | None],
    incidents: Iterable[Incident],
    *,
    hidden: Collection[str] = (),
    state: str = "",
    contains: str = "",
    offset: int = 0,
    limit: int = 100,
) -> TopicsAnswer:
    """The topics in ``state`` whose name, owner or table ``contains`` a text: ``limit`` topics from ``offset`` on.

    Incidents without a single topic omit the names of topics that are ``hidden`` from the user.
    """
    known = {
        (cluster, summary.topic): summary
        for cluster, overview in overviews.items()
        for summary in (overview.topics if overview else ())
    }
    text = contains.casefold()
    still = [incident for incident in incidents if incident.open]
    kinds: dict[tuple[str, str | None], list[str]] = {}
    for incident in still:
        kinds.setdefault((incident.cluster, incident.topic), []).append(incident.kind)
    rows = [
        _topic_row(topic, known.get((topic.cluster, topic.topic)), kinds.get((topic.cluster, topic.topic), ()))
        for topic in topics
        if text in f"{topic.cluster}/{topic.topic}\n{topic.owner}\n{topic.table}".casefold()
    ]
    counts = Counter(row.state for row in rows)
    chosen = sorted(
        (row for row in rows if not state or row.state == state),
        key=lambda row: (STATES.index(row.state), -row.lag, row.cluster, row.topic),
    )
    return TopicsAnswer(
        clusters=[
            ClusterNow(cluster=cluster, observed_at=overview.at if overview else None)
            for cluster, overview in overviews.items()
        ],
        counts={name: counts[name] for name in STATES},
        total=len(chosen),
        offset=offset,
        topics=chosen[offset : offset + limit],
        incidents=[_without(incident, hidden) for incident in _open(each for each in still if each.topic is None)],
    )


def _without(incident: IncidentNow, hidden: Collection[str]) -> IncidentNow:
    """The incident without texts that name a ``hidden`` topic: such a text is replaced as a whole."""
    replaced = {
        name: _HIDDEN for name in ("title", "text", "likely", "mend") if _names(getattr(incident, name), hidden)
    }
    return incident.model_copy(update=replaced)


def _names(text: str, hidden: Collection[str]) -> bool:
    return not {word.strip(".") for word in re.findall(r"[\w.-]+", text)}.isdisjoint(hidden)


def _open(incidents: Iterable[Incident]) -> list[IncidentNow]:
    return [_incident(incident) for incident in incidents if incident.open]


def _incident(incident: Incident) -> IncidentNow:
    page, date = page_of(incident.kind), incident.key.rpartition("/")[2]
    return IncidentNow(
        **incident.model_dump(include=set(IncidentNow.model_fields)),
        mode="" if page == "continuity" or (page == "rebuild" and not date) else page,
        date=date if page == "rebuild" else "",
    )


def _topic_row(topic: TopicSettings, summary: TopicSummary | None, kinds: Sequence[str]) -> TopicRow:
    known = summary or TopicSummary(topic=topic.topic, state="unknown", ledger_n=0)
    known = known.model_copy(update={"state": with_incidents(known.state, kinds)})
    return TopicRow(
        cluster=topic.cluster,
        owner=topic.owner,
        dag_id=dag_id(topic),
        freshness=topic.late_after.total_seconds(),
        incidents=len(kinds),
        **known.model_dump(exclude={"ledger_n", "landed"}),
    )


def topic_answer(
    now: TopicNow, overview: Overview | None, incidents: Iterable[Incident], *, may_acknowledge: bool
) -> TopicAnswer:
    """The topic's head. Only repeated observations show since when it waits."""
    topic, health = now.table.topic, now.health
    observed = (
        next((summary for summary in overview.topics if summary.topic == topic.topic), None) if overview else None
    )
    still = [incident for incident in incidents if incident.open and incident.topic == topic.topic]
    return TopicAnswer(
        cluster=topic.cluster,
        topic=topic.topic,
        table=now.table.url,
        owner=topic.owner,
        dag_id=dag_id(topic),
        time_zone=topic.time_zone,
        partition_by=names_of(topic.partition_by),
        freshness=topic.late_after.total_seconds(),
        promise=topic.freshness.total_seconds() if topic.freshness else None,
        unstored_since=min((part.unstored_since for part in health.partitions if part.unstored_since), default=None),
        unmeasured=sum(entry.oldest_unstored is None for entry in now.entries.values()),
        state=state_of(health, [incident.kind for incident in still]),
        behind_since=observed.behind_since if observed and health.behind_since else None,
        observed_at=max((part.observed_at for part in health.partitions if part.observed_at), default=None),
        ledger_n=health.ledger_n,
        committed_at=health.committed_at,
        rows=now.ledger.rows,
        lag=health.lag,
        missing=health.missing,
        remote_tier=health.tiered,
        counts={name: sum(_passes(part, name) for part in health.partitions) for name in PARTITION_FILTERS},
        dates=dict(Counter(date.state for date in health.dates.values())),
        failure=now.failure,
        may_acknowledge=may_acknowledge,
        followed=_followed(now.followed) if now.followed else None,
        state_table=_state_table(now.state_table) if now.state_table else None,
        agents=[_agent(index, now.at - AGENT_GONE) for index in now.agents],
        incidents=_open(still),
    )


def cluster_brokersets(cluster: str, now: BrokersetsNow) -> ClusterBrokersetsView:
    """A cluster's brokersets, with the figures of `tidemark brokersets show`."""
    rows = [_brokerset_row(load) for load in now.loads]
    return ClusterBrokersetsView(cluster=cluster, brokersets=rows, failure=now.failure)


def _brokerset_row(load: BrokersetLoad) -> BrokersetRow:
    (busiest, busiest_rate), (without, busiest_then, rate_then) = load.busiest, load.worst
    known = {name: value for name, value in load.answer().items() if name in BrokersetRow.model_fields}
    return BrokersetRow(
        **{**known, "brokers": len(load.brokers), "without": without},
        busiest=busiest,
        busiest_rate=busiest_rate,
        busiest_then=busiest_then,
        rate_then=rate_then,
    )


def _followed(state: SchemaState) -> SchemaNow:
    proposal = state.proposal
    return SchemaNow(
        subject=state.subject,
        version=state.adopted.version,
        adopted_at=state.adopted.at,
        changes=[_in_words(change) for change in state.adopted.changes],
        waiting_version=proposal.version if proposal else None,
        waits=[_in_words(change) for change in proposal.changes] if proposal else [],
    )


def _state_table(status: StateStatus) -> StateTableNow:
    return StateTableNow(
        **status.model_dump(include=set(StateTableNow.model_fields) - {"stopped"}),
        doubts=doubts(dict(status)),
        stopped=status.stopped.reason if status.stopped else "",
        proved_at=status.proved_at,
    )


def _agent(index: WatermarkIndex, gone: datetime) -> AgentNow:
    return AgentNow(
        broker=index.broker, version=index.agent_version, written_at=index.written_at, alive=index.written_at >= gone
    )


def _in_words(change: SchemaChange) -> str:
    return f"{change.path}: {change.detail}"


def _passes(part: PartitionHealth, only: PartitionFilter) -> bool:
    if only == "gaps":
        return bool(part.gaps)
    if only == "held":
        return bool(part.held_by)
    return only == "all" or part.waits


def chosen_partitions(
    now: TopicNow, only: PartitionFilter, offset: int, limit: int, at: Key | None
) -> tuple[int, int, Sequence[PartitionHealth]]:
    """(number of matching partitions, index of the page's first partition, the page's partitions).

    The page is the one with the partition ``at``, if given.
    """
    matching = [part for part in now.health.partitions if _passes(part, only)]
    if at is not None:
        place = next((n for n, part in enumerate(matching) if (part.incarnation, part.partition) == at), 0)
        offset = place // limit * limit
    return len(matching), offset, matching[offset : offset + limit]


def partition_row(now: TopicNow, part: PartitionHealth, words: Sequence[Acknowledgement]) -> PartitionRow:
    """A partition with its strip."""
    key = part.incarnation, part.partition
    return PartitionRow(
        state=state_of_partition(part),
        gaps=[_gap(gap, words) for gap in part.gaps],
        remote_tier=list(part.remote_tier),
        spans=spans_of(now.ledger.by_partition.get(key), now.entries.get(key), part.gaps),
        held_by=list(part.held_by),
        lag=part.lag,
        **part.model_dump(include=set(PartitionRow.model_fields) - {"gaps", "held_by", "lag", "remote_tier"}),
    )


def _gap(gap: Gap, words: Sequence[Acknowledgement]) -> GapNow:
    word = next((each for each in words if each.start <= gap.start and gap.end <= each.end), None)
    return GapNow(start=gap.start, end=gap.end, reason=gap.reason, detected_at=gap.detected_at, acknowledged=word)


def dates_answer(dates: Mapping[str, DateState], quarantined: Mapping[str, int], year: int | None) -> DatesAnswer:
    """The dates of ``year``, or of the newest year."""
    known = sorted({*dates, *(dt for dt in quarantined if dt)})
    years = sorted({int(dt[:4]) for dt in known})
    wanted = year if year is not None else max(years, default=None)
    rows = [
        DateRow(dt=dt, quarantined=quarantined.get(dt, 0), **dates.get(dt, DateState(rows=0)).model_dump())
        for dt in known
        if wanted is not None and dt.startswith(f"{wanted:04d}-")
    ]
    return DatesAnswer(
        years=years,
        year=wanted,
        dates=rows,
        undated=quarantined.get("", 0),
        quarantined=sum(quarantined.values()),
    )


def lineage_answer(start: int, end: int, derivation: Derivation) -> LineageAnswer:
    """The derivation of ``[start, end)``."""
    return LineageAnswer(
        start=start, end=end, rows=list(derivation.rows), segments=list(derivation.segments), more=derivation.more
    )


def spans_of(state: PartitionState | None, entry: IndexEntry | None, gaps: Iterable[Gap]) -> list[StripSpan]:
    """A partition as a strip of offsets, from the start of raw to the end of Kafka's log, without holes and in order.

    ``gaps`` are the open ones. A held partition waits from its first offset that is not landed: only planning knows
    which later offsets the transaction affects.
    """
    start = state.start_offset if state else 0
    landed = state.next_offset if state else start
    uploaded = max(landed, entry.least_stored_end, entry.uploaded_end) if entry else landed
    end = max(uploaded, entry.log_end_offset) if entry else uploaded
    spans = [StripSpan(kind="landed", start=start, end=landed)] if landed > start else []
    held = bool(state and state.held_by)
    at = landed
    for gap in sorted(gaps, key=lambda gap: gap.start):
        if gap.end <= at:
            continue
        spans += _waiting(at, max(at, gap.start), uploaded, held=held)
        at = max(at, gap.start)
        spans.append(StripSpan(kind="gap", start=at, end=gap.end, reason=gap.reason, since=gap.detected_at.isoformat()))
        at = gap.end
    spans += _waiting(at, end, uploaded, held=held)
    return spans


def _waiting(start: int, end: int, uploaded: int, *, held: bool) -> Iterator[StripSpan]:
    """Spans of ``[start, end)``, none of which is landed or missing."""
    border = min(max(start, uploaded), end)
    if start < border:
        yield StripSpan(kind="held" if held else "uploaded", start=start, end=border)
    if border < end:
        yield StripSpan(kind="log", start=border, end=end)
