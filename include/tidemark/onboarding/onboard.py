"""Puts onboarding together: from Kafka's facts and a sample to a change of the topics file that was tried.

A topic's settings are tried on the sample with the parser that would read its records. Columns that may be a record's
event time are ranked by their distance from the record's own time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tidemark.brokersets.load import PartitionLoad, rates_by_broker
from tidemark.config import parse
from tidemark.errors import ConfigError
from tidemark.formats.keys import check_cluster, check_topic
from tidemark.onboarding.detection import Detected, detect
from tidemark.onboarding.expectations import CostLine, Expectation, Rate, costs, expected_freshness, sampled_rate
from tidemark.onboarding.facts import Sample, TopicFacts, sample_rows
from tidemark.onboarding.proposal import ParserProposal, ProposalHints, propose_parser, propose_state, with_times
from tidemark.onboarding.topics_file import FileChange, checked, default_cluster, with_topic
from tidemark.parsers.base import Parsed, event_time_of
from tidemark.parsers.factory import parser_of
from tidemark.parsers.settings import EventTime, FollowingParser, followed_by
from tidemark.planning.schema_following import with_newest
from tidemark.topics import Deployment, TopicSettings, check_exists

MOST_REFUSED: Final = 0.5
"""A parser that refuses a larger part of the sample is not this topic's."""

_FARTHEST: Final = timedelta(days=30)
"""The most distance of the median from the time of its record; values farther away are not the time of an event."""

_LEAST_FILLED: Final = 0.5
_SURE_NEAR: Final = timedelta(days=1)
_SURE_FILLED: Final = 1.0
_UNITS: Final = ("s", "ms", "us", "ns")

_MICROSECOND: Final = timedelta(microseconds=1)
_LONGEST: Final = int(timedelta(days=36_500) / _MICROSECOND)

_MOST_REASONS: Final = 5
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class OnboardingRequest(NamedTuple):
    """The topic to add. ``keys`` are its further keys, as the topics file has them.

    ``event_time`` is ``auto``, ``none`` or a column; ``unit`` is that of a column of whole numbers. ``rate`` is in
    bytes a second.
    """

    path: Path
    cluster: str
    topic: str
    keys: Mapping[str, Any] = {}
    hints: ProposalHints = ProposalHints()
    event_time: str = "auto"
    unit: str | None = None
    rate: float | None = None
    compacted: bool = False


class Onboarding(NamedTuple):
    """The findings, and the change. ``loads`` are bytes a second by leading broker, empty if not known.

    A broker of whose partitions none is measured yet has None.
    """

    request: OnboardingRequest
    change: FileChange
    topic: TopicSettings
    facts: TopicFacts | None
    sample: Sample | None
    detected: Detected
    proposal: ParserProposal
    trial: Trial
    candidates: tuple[EventTimeCandidate, ...]
    rate: Rate | None
    loads: Mapping[int, float | None]
    costs: tuple[CostLine, ...]
    expected: Expectation
    notes: tuple[str, ...]


def read_file(path: Path) -> tuple[str, Deployment]:
    """The text of a topics file, and the deployment in it. Raises ConfigError."""
    check_exists(path)
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), [("", f"cannot be read: {error}")]) from error
    return text, parse(Deployment, text, str(path))


def check_request(request: OnboardingRequest, deployment: Deployment, facts: TopicFacts | None) -> None:
    """Refuse a request that cannot work. Raises ConfigError with each reason."""
    problems: list[tuple[str, str]] = []
    for check, name in ((check_cluster, request.cluster), (check_topic, request.topic)):
        try:
            check(name)
        except ValueError as error:
            problems.append(("", str(error)))
    if any((known.cluster, known.topic) == (request.cluster, request.topic) for known in deployment.topics):
        problems.append(("", f"is already in {request.path}"))
    if facts is not None and (facts.internal or request.topic.startswith("__")):
        problems.append(("", "is an internal topic of Kafka"))
    if facts is not None and facts.compacted and not request.compacted:
        rule = (
            f"is {facts.config['cleanup.policy']}: Kafka removes records that later ones replace, so the table would "
            "have only the records that were left when segments were uploaded; --compacted accepts that"
        )
        problems.append(("cleanup.policy", rule))
    if problems:
        raise ConfigError(f"{request.cluster}/{request.topic}", problems)


def onboard(
    request: OnboardingRequest,
    facts: TopicFacts | None,
    sample: Sample | None,
    loads: list[PartitionLoad],
    now: datetime,
    say: Callable[[str], None] = lambda _: None,
) -> Onboarding:
    """The change for ``request``, tried on ``sample``; ``loads`` are of its partitions that agents report.

    Raises:
        ConfigError: it cannot work; names the reason, and the option that would change that.
        RegistryUnavailable: a schema cannot be fetched.
    """
    text, before = read_file(request.path)
    check_request(request, before, facts)
    detected = detect(sample.values if sample is not None else [])
    say(f"{detected.values} values look like {detected.shape}, framing {detected.framing}")
    proposal = propose_parser(request.topic, detected, sample, request.hints, before.registries)
    rows = sample.rows if sample is not None else sample_rows([])

    def settled(parser: Mapping[str, Any] | None, state: Mapping[str, Any] | None = None) -> tuple[str, TopicSettings]:
        after = with_topic(text, request.path, _item(request, default_cluster(text), parser, state))
        return after, checked(after, request.path, before, request.topic, request.cluster)

    _, topic = settled(proposal.settings)
    trial = tried(_adopted(topic), rows, now)
    likely = _candidates_of_trial(trial, rows)
    setting = _event_time(request, likely)
    units = {each.field: each.unit for each in (*(candidate.setting for candidate in likely), setting) if each}
    timed = with_times(proposal, units)
    if timed != proposal and _fits_as_well(tried(_adopted(settled(timed.settings)[1]), rows, now), trial):
        proposal = timed
        setting = setting and EventTime(field=setting.field)
    parser = proposal.settings
    if setting is not None:
        if parser is None:
            raise ConfigError("--event-time", [("", "values that are kept as bytes have no columns; leave it out")])
        parser = {**parser, "event_time": dict(event_time_setting(setting))}
    state = propose_state(topic, facts, sample, proposal, trial.parsed.columns.schema)
    after, topic = settled(parser, state)
    trial = tried(_adopted(topic), rows, now)
    _check_trial(request, trial)
    rate = _rate(request, sample, loads)
    partitions = facts.partitions if facts is not None else max(len(loads), sample.partitions if sample else 1)
    return Onboarding(
        request=request,
        change=FileChange(request.path, text, after),
        topic=topic,
        facts=facts,
        sample=sample,
        detected=detected,
        proposal=proposal,
        trial=trial,
        candidates=tuple(likely),
        rate=rate,
        loads=loads_of_leaders(facts, loads, rate),
        costs=tuple(costs(topic, facts, rate, partitions)) if rate is not None else (),
        expected=expected_freshness(topic, facts, rate),
        notes=(*proposal.notes, *_notes(topic, trial)),
    )


def _item(
    request: OnboardingRequest, default: str | None, parser: Mapping[str, Any] | None, state: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The topic as an item of the file. Its cluster is stated, unless it is the file's ``default``."""
    stated = {} if request.cluster == default else {"cluster": request.cluster}
    item: dict[str, Any] = {"topic": request.topic, **stated, **request.keys}
    parts = {"state": state, "parser": parser}
    return item | {name: dict(settings) for name, settings in parts.items() if settings is not None}


def _adopted(topic: TopicSettings) -> TopicSettings:
    return with_newest(topic) if followed_by(topic.parser) is not None else topic


def _candidates_of_trial(trial: Trial, rows: pa.RecordBatch) -> list[EventTimeCandidate]:
    """Candidates from the rows that landed: quarantine uses the records' own times."""
    if not len(trial.landed):
        return []
    return event_time_candidates(
        trial.parsed.columns.take(trial.landed), rows.column("kafka_timestamp").take(trial.landed)
    )


def _fits_as_well(trial: Trial, before: Trial) -> bool:
    return (trial.refused, sum(trial.misfits.values())) <= (before.refused, sum(before.misfits.values()))


def _event_time(request: OnboardingRequest, likely: list[EventTimeCandidate]) -> EventTime | None:
    if request.event_time == "none":
        return None
    if request.event_time == "auto":
        return next((candidate.setting for candidate in likely if candidate.sure), None)
    known = next((candidate.setting for candidate in likely if candidate.setting.field == request.event_time), None)
    if request.unit is not None or known is None:
        return EventTime.model_validate({"field": request.event_time, "unit": request.unit})
    return known


def _check_trial(request: OnboardingRequest, trial: Trial) -> None:
    if trial.refused > MOST_REFUSED * trial.rows:
        reasons = "; ".join(f"{count} times: {reason}" for reason, count in trial.reasons.items())
        rule = (
            f"the parser would refuse {trial.refused} of {trial.rows} records of the sample ({reasons}); state --format"
        )
        raise ConfigError(f"{request.cluster}/{request.topic}", [("parser", rule)])


def _rate(request: OnboardingRequest, sample: Sample | None, loads: list[PartitionLoad]) -> Rate | None:
    if request.rate is not None:
        return Rate(request.rate, "option")
    known = [load.rate for load in loads if load.rate is not None]
    if known:
        return Rate(sum(known), "agents")
    return sampled_rate(sample) if sample is not None and len(sample.rows) else None


def loads_of_leaders(
    facts: TopicFacts | None, loads: list[PartitionLoad], rate: Rate | None
) -> dict[int, float | None]:
    """Bytes a second by broker, from the agents, else spread evenly over the preferred leaders."""
    measured: dict[int, float | None] = {}
    for load in loads:
        known = measured.setdefault(load.leader, None)
        if load.rate is not None:
            measured[load.leader] = (known or 0.0) + load.rate
    known_of_none = all(known is None for known in measured.values())
    if not known_of_none or facts is None or rate is None or not facts.partitions:
        return {} if known_of_none else measured
    each = rate.bytes_a_second / facts.partitions
    spread = [PartitionLoad(facts.topic, number, replicas[0], each) for number, replicas in enumerate(facts.replicas)]
    return {**rates_by_broker(spread)}


def _notes(topic: TopicSettings, trial: Trial) -> list[str]:
    notes = []
    if topic.state is not None:
        notes.append(
            f"the state table {topic.state_table} has the newest record of each key (envelope {topic.state.envelope})"
        )
    allowed = topic.quarantine.rate
    if trial.refused > allowed * trial.rows:
        notes.append(
            f"{trial.refused} of {trial.rows} would go to quarantine, more than quarantine.rate ({allowed:.2%}), "
            "and an alert would be raised"
        )
    if trial.insane:
        notes.append(f"{trial.insane} records have a time outside of sane_timestamps: they would go to quarantine")
    return notes


class EventTimeCandidate(NamedTuple):
    """A column that may be the event time. Distances are absolute; ``filled`` is the part of the rows with a value."""

    setting: EventTime
    filled: float
    median: timedelta
    farthest: timedelta

    @property
    def sure(self) -> bool:
        """True if it is taken unless a person chooses another: each row has a value, and most are within a day."""
        return self.filled >= _SURE_FILLED and self.median <= _SURE_NEAR

    def answer(self) -> dict[str, Any]:
        """The column for programs; distances in seconds."""
        return {
            "field": self.setting.field,
            "unit": self.setting.unit,
            "filled": self.filled,
            "median_distance": self.median.total_seconds(),
            "farthest_distance": self.farthest.total_seconds(),
        }


def event_time_candidates(columns: pa.RecordBatch, timestamps: pa.Array[Any]) -> list[EventTimeCandidate]:
    """The columns that may be an event time, the most likely first.

    ``timestamps`` are the records' own, of ``kafka_timestamp``'s type. A row without a value or a time is left out.
    """
    own = timestamps.cast(pa.int64())
    likely = [
        column for wanted in _possible(columns.schema) if (column := _candidate(columns, wanted, own)) is not None
    ]
    return sorted(likely, key=lambda column: (round(1 - column.filled, 2), column.median, column.setting.field))


def _possible(schema: pa.Schema) -> Iterator[EventTime]:
    for path, kind in _fields(schema):
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            yield EventTime(field=path)
        elif pa.types.is_int64(kind) or pa.types.is_int32(kind):
            yield from (EventTime(field=path, unit=unit) for unit in _UNITS)


def _fields(schema: pa.Schema) -> Iterator[tuple[str, pa.DataType]]:
    """The fields of columns and of structs in them, by their path. JSON's columns have no structs."""
    waiting: list[tuple[str, pa.DataType]] = [(field.name, field.type) for field in reversed(list(schema))]
    while waiting:
        path, kind = waiting.pop()
        yield path, kind
        if pa.types.is_struct(kind):
            inner: Any = kind
            waiting += [(f"{path}.{field.name}", field.type) for field in reversed(list(inner))]


def _candidate(columns: pa.RecordBatch, wanted: EventTime, own: pa.Array[Any]) -> EventTimeCandidate | None:
    times = event_time_of(columns, wanted)
    if times is None or not len(times):
        return None
    known: list[int | None] = own.to_pylist()
    in_column: list[int | None] = times.to_pylist()
    pairs = [(event, at) for event, at in zip(in_column, known, strict=True) if event is not None and at is not None]
    dated = sum(at is not None for at in known)
    if not dated or len(pairs) < _LEAST_FILLED * dated:
        return None
    # As Python's numbers: a count taken for seconds is far outside of int64.
    distances = sorted(abs(event - at) for event, at in pairs)
    median = distances[len(distances) // 2]
    if median > _FARTHEST / _MICROSECOND:
        return None
    return EventTimeCandidate(
        wanted, len(pairs) / dated, median * _MICROSECOND, min(distances[-1], _LONGEST) * _MICROSECOND
    )


def insane_times(times: pa.Array[Any] | None, earliest: int, latest: int) -> int:
    """The number of ``times`` outside of the bounds; all in microseconds since 1970."""
    if times is None:
        return 0
    given = np.array([time for time in times.to_pylist() if time is not None], dtype=object)
    return int(((given < earliest) | (given > latest)).sum()) if len(given) else 0


def event_time_setting(event_time: EventTime) -> Mapping[str, str]:
    """The setting of an event time, as the topics file has it."""
    return {"field": event_time.field, **({"unit": event_time.unit} if event_time.unit else {})}


class Trial(NamedTuple):
    """The result of parsing a sample. All counts are of rows.

    ``refused`` would go to quarantine, ``reasons`` are the most frequent reasons. ``nulls`` are by column, of the rows
    that landed; ``landed`` has their places. ``misfits`` are fields, by name, that their column cannot hold and that
    would land as null; ``unknown`` are fields that no column takes. ``insane`` have a time outside of
    ``sane_timestamps``.
    """

    rows: int
    refused: int
    reasons: Mapping[str, int]
    types: Mapping[str, str]
    nulls: Mapping[str, int]
    misfits: Mapping[str, int]
    unknown: Mapping[str, int]
    insane: int
    landed: pa.Array[Any]
    parsed: Parsed

    def answer(self) -> dict[str, Any]:
        """The result for programs."""
        names = ("rows", "refused", "reasons", "misfits", "unknown", "insane")
        columns = {name: {"type": kind, "null": self.nulls[name]} for name, kind in self.types.items()}
        return {**{name: getattr(self, name) for name in names}, "columns": columns}


def tried(topic: TopicSettings, rows: pa.RecordBatch, now: datetime) -> Trial:
    """Parse ``rows`` with the settings of ``topic``; a schema that it follows was adopted.

    Raises:
        ConfigError: the parser cannot be made: a schema cannot become columns, or a name is not valid.
        RegistryUnavailable: a schema could not be fetched.
    """
    parsed = parser_of(topic.parser, topic.topic).parse(rows)
    landed = pa.array([row for row in range(len(rows)) if row not in parsed.refused], pa.int64())
    columns = parsed.columns.take(landed)
    sane = topic.sane_timestamps
    earliest = datetime(sane.earliest.year, sane.earliest.month, sane.earliest.day, tzinfo=topic.zone)
    times = parsed.event_time
    if times is None:
        times = rows.column("kafka_timestamp").cast(pa.int64())
    return Trial(
        rows=len(rows),
        refused=len(parsed.refused),
        reasons=dict(Counter(parsed.refused.values()).most_common(_MOST_REASONS)),
        types={field.name: str(field.type) for field in columns.schema},
        nulls={name: column.null_count for name, column in zip(columns.schema.names, columns.columns, strict=True)},
        misfits=_misfits(topic, rows, parsed),
        unknown=parsed.unknown,
        insane=insane_times(times, _microseconds(earliest), _microseconds(now + sane.ahead)),
        landed=landed,
        parsed=parsed,
    )


def _misfits(topic: TopicSettings, rows: pa.RecordBatch, parsed: Parsed) -> dict[str, int]:
    """The fields that rows would lose if misfits landed: they are unknown then, and were not before."""
    if not isinstance(topic.parser, FollowingParser) or (topic.parser.misfits == "quarantine" and not parsed.refused):
        return {}
    landing = topic.parser.model_copy(update={"misfits": "land"})
    relaxed = parser_of(landing, topic.topic).parse(rows)
    names = {field.name for field in relaxed.columns.schema} | {
        ".".join(column.keys) for column in getattr(topic.parser, "columns", ())
    }
    return {name: count for name, count in relaxed.unknown.items() if name in names}


def _microseconds(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)
