"""How each of the API's answers is made of what was read. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from tidemark.brokersets.load import BrokersetLoad
from tidemark.formats.gaps import Acknowledgement, Gap
from tidemark.formats.ledger import DateState
from tidemark.formats.partitioning import names_of
from tidemark.formats.schema_state import SchemaChange, SchemaState
from tidemark.inspection.offset_lineage import Derivation
from tidemark.monitoring.health import Key, PartitionHealth
from tidemark.monitoring.incidents import Incident
from tidemark.monitoring.judgement import STATES, state_of, state_of_partition, with_incidents
from tidemark.monitoring.kinds import IncidentKind
from tidemark.monitoring.overview import Overview, TopicSummary
from tidemark.topics import TopicSettings
from tidemark_airflow.dag_factories.ingest import dag_id
from tidemark_airflow.web.models import (
    PARTITION_FILTERS,
    BrokersetRow,
    ClusterBrokersets,
    ClusterNow,
    DateRow,
    DatesAnswer,
    GapNow,
    IncidentNow,
    LineageAnswer,
    PartitionFilter,
    PartitionRow,
    SchemaNow,
    TopicAnswer,
    TopicRow,
    TopicsAnswer,
)
from tidemark_airflow.web.offset_strips import spans_of
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
    """Those in ``state`` whose name, owner or table ``contains`` a text: ``limit`` of them from ``offset`` on.

    Incidents that are about no single topic do not name those that are ``hidden`` from who asks.
    """
    known = {
        (cluster, one.topic): one for cluster, found in overviews.items() for one in (found.topics if found else ())
    }
    text = contains.casefold()
    still = [one for one in incidents if one.open]
    kinds: dict[tuple[str, str | None], list[IncidentKind]] = {}
    for incident in still:
        kinds.setdefault((incident.cluster, incident.topic), []).append(incident.kind)
    rows = [
        _topic_row(one, known.get((one.cluster, one.topic)), kinds.get((one.cluster, one.topic), ()))
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
        incidents=[_without(one, hidden) for one in _open(one for one in still if one.topic is None)],
    )


def _without(incident: IncidentNow, hidden: Collection[str]) -> IncidentNow:
    """The incident without words that name a ``hidden`` topic: a sentence with such a name is left out as a whole."""
    told = {name: _HIDDEN for name in ("title", "text", "likely", "mend") if _names(getattr(incident, name), hidden)}
    return incident.model_copy(update=told)


def _names(text: str, hidden: Collection[str]) -> bool:
    return not {word.strip(".") for word in re.findall(r"[\w.-]+", text)}.isdisjoint(hidden)


def _open(incidents: Iterable[Incident]) -> list[IncidentNow]:
    return [IncidentNow(**one.model_dump(include=set(IncidentNow.model_fields))) for one in incidents if one.open]


def _topic_row(topic: TopicSettings, summary: TopicSummary | None, kinds: Sequence[IncidentKind]) -> TopicRow:
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
    """The topic's head. Only repeated observations can tell since when it waits."""
    topic, health = now.table.topic, now.health
    observed = next((one for one in overview.topics if one.topic == topic.topic), None) if overview else None
    still = [one for one in incidents if one.open and one.topic == topic.topic]
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
        unstored_since=min((one.unstored_since for one in health.partitions if one.unstored_since), default=None),
        unmeasured=sum(entry.oldest_unstored is None for entry in now.entries.values()),
        state=state_of(health, [one.kind for one in still]),
        behind_since=observed.behind_since if observed and health.behind_since else None,
        observed_at=max((one.observed_at for one in health.partitions if one.observed_at), default=None),
        ledger_n=health.ledger_n,
        committed_at=health.committed_at,
        rows=now.ledger.rows,
        lag=health.lag,
        missing=health.missing,
        counts={name: sum(_passes(one, name) for one in health.partitions) for name in PARTITION_FILTERS},
        dates=dict(Counter(one.state for one in health.dates.values())),
        failure=now.failure,
        may_acknowledge=may_acknowledge,
        followed=_followed(now.followed) if now.followed else None,
        incidents=_open(still),
    )


def cluster_brokersets(cluster: str, now: BrokersetsNow) -> ClusterBrokersets:
    """A cluster's brokersets: the figures of `tidemark brokersets show`."""
    rows = [_brokerset_row(one) for one in now.loads]
    return ClusterBrokersets(cluster=cluster, brokersets=rows, failure=now.failure)


def _brokerset_row(load: BrokersetLoad) -> BrokersetRow:
    (busiest, busiest_rate), (without, busiest_then, rate_then) = load.busiest, load.worst
    known = {name: one for name, one in load.answer().items() if name in BrokersetRow.model_fields}
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
        changes=[_told(one) for one in state.adopted.changes],
        waiting_version=proposal.version if proposal else None,
        waits=[_told(one) for one in proposal.changes] if proposal else [],
    )


def _told(change: SchemaChange) -> str:
    return f"{change.path}: {change.detail}"


def _passes(one: PartitionHealth, only: PartitionFilter) -> bool:
    if only == "gaps":
        return bool(one.gaps)
    if only == "held":
        return bool(one.held_by)
    return only == "all" or one.waits


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
    return PartitionRow(
        state=state_of_partition(one),
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
                "unstored_since",
                "waits_since",
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
