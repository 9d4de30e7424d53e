"""Puts onboarding together: from Kafka's facts and a sample to a change of the topics file that was tried.

A topic's settings are tried on the sample with the parser that would read its records. Columns that may be a record's
event time are ranked by their distance from the record's own time.

The topic is added to the file's text, and then as a patch, in place, or as a commit on a branch of its own. Comments,
order and quotes stay as they are. A list of topics in block style gets lines, and no other line changes. A list in flow
style (``topics: [...]``) is written again by ruamel.yaml, which keeps comments.
"""

from __future__ import annotations

import difflib
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import yaml
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from tidemark.brokersets.load import PartitionLoad, rates_by_broker
from tidemark.config import parse
from tidemark.errors import ConfigError
from tidemark.formats.keys import check_cluster, check_topic
from tidemark.onboarding.detection import Detected, detect
from tidemark.onboarding.expectations import CostLine, Expectation, Rate, costs, expected_freshness, sampled_rate
from tidemark.onboarding.facts import Sample, TopicFacts, sample_rows
from tidemark.onboarding.proposal import ParserProposal, ProposalHints, propose_parser, propose_state, with_times
from tidemark.parsers.base import Parsed, event_time_of
from tidemark.parsers.factory import parser_of
from tidemark.parsers.settings import EventTime, FollowingParser, followed_by
from tidemark.planning.schema_following import with_newest
from tidemark.topics import Deployment, TopicSettings, check_exists

_WIDTH: Final = 4096
"""Columns of a line; ruamel.yaml must not break lines that a person has not broken."""

_GIT: Final = "git"
_NO_BRANCH: Final = "0" * 40
"""The value that ``git update-ref`` takes for a branch that must not exist yet."""


def with_topic(text: str, source: Path, topic: Mapping[str, Any]) -> str:
    """The ``text`` of the topics file ``source``, with ``topic`` as its last topic. It is not validated yet.

    Raises:
        ConfigError: the file is not a mapping, or its ``topics`` are not a list.
    """
    document = _document(text, source)
    topics = document.get("topics")
    if not isinstance(topics, CommentedSeq):
        raise ConfigError(str(source), [("topics", "must be a list of topics")])
    if topics.fa.flow_style() or not topics:
        return _rewritten(document, topics, topic)
    lines = text.splitlines(keepends=True)
    dash, end = _last_item(lines, topics)
    added = _rendered(topic, dash)
    if end and not lines[end - 1].endswith("\n"):
        lines[end - 1] += "\n"
    return "".join([*lines[:end], added, *lines[end:]])


def default_cluster(text: str) -> str | None:
    """The cluster of topics that name none in the valid ``text``; None if each names its own."""
    document = yaml.safe_load(text)
    cluster = (document.get("defaults") or {}).get("cluster") or document.get("cluster")
    return cluster if isinstance(cluster, str) else None


def checked(text: str, source: Path, before: Deployment, name: str, cluster: str) -> TopicSettings:
    """The settings of the added topic in ``text``, after the checks of ``tidemark config check``.

    Raises:
        ConfigError: the text breaks a rule, or differs from ``before`` in another topic.
    """
    after = parse(Deployment, text, str(source))
    kept = after.model_copy(update={"topics": after.topics[:-1]})
    if kept != before:
        raise ConfigError(str(source), [("topics", "the change would alter more than the new topic; add it by hand")])
    return after.topic(name, cluster)


def _document(text: str, source: Path) -> CommentedMap:
    try:
        document = _yaml().load(text)
    except YAMLError as error:
        raise ConfigError(str(source), [("", f"is not valid YAML: {type(error).__name__}")]) from None
    if not isinstance(document, CommentedMap):
        raise ConfigError(str(source), [("", "must be a mapping of keys to values")])
    return document


def _yaml() -> YAML:
    yaml_ = YAML(typ="rt")
    yaml_.preserve_quotes = True
    yaml_.width = _WIDTH
    yaml_.indent(mapping=2, sequence=4, offset=2)
    return yaml_


def _last_item(lines: Sequence[str], topics: CommentedSeq) -> tuple[int, int]:
    """(the column of the items' dashes, the number of the line behind the last item)."""
    first, _ = topics.lc.item(len(topics) - 1)
    dash = lines[first].index("-")
    end = first + 1
    for number in range(first + 1, len(lines)):
        content = lines[number].strip()
        indent = len(lines[number]) - len(lines[number].lstrip())
        if content and indent > dash:
            end = number + 1
        elif content and not content.startswith("#"):
            break
    return dash, end


def _rendered(topic: Mapping[str, Any], dash: int) -> str:
    """The lines of ``topic`` as an item of a list with its dashes in column ``dash``."""
    stream = StringIO()
    _yaml().dump(_commented(topic), stream)
    first, *others = stream.getvalue().splitlines()
    margin = " " * dash
    return "".join(f"{line}\n" for line in [f"{margin}- {first}", *(f"{margin}  {line}" for line in others)])


def _rewritten(document: CommentedMap, topics: CommentedSeq, topic: Mapping[str, Any]) -> str:
    topics.fa.set_block_style()
    topics.append(_commented(topic))
    stream = StringIO()
    _yaml().dump(document, stream)
    return stream.getvalue()


def _commented(value: Any, depth: int = 0) -> Any:
    """``value`` for ruamel.yaml: mappings in a list, such as columns, and deep ones take a line each."""
    if isinstance(value, Mapping):
        mapping = CommentedMap((key, _commented(item, depth + 1)) for key, item in value.items())
        if depth > 1:
            mapping.fa.set_flow_style()
        return mapping
    if isinstance(value, list | tuple):
        listed = CommentedSeq(_commented(item, depth + 2) for item in value)
        if all(not isinstance(item, Mapping) for item in value):
            listed.fa.set_flow_style()
        return listed
    return DoubleQuotedScalarString(value) if isinstance(value, str) and not _is_plain(value) else value


def _is_plain(text: str) -> bool:
    """True if the reader of topics files, which follows YAML 1.1, reads the bare ``text`` as this text."""
    try:
        read: object = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return False
    return read == text


class FileChange(NamedTuple):
    """A text file, with its content before and after."""

    path: Path
    before: str
    after: str

    def patch(self) -> str:
        """A unified diff that ``git apply`` and ``patch -p1`` take at the top of the repository, if there is one."""
        top = _git_top(self.path)
        resolved = self.path.resolve()
        name = (resolved.relative_to(top) if top else Path(self.path.name)).as_posix()
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True), self.after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
        )
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def write(self) -> None:
        """Replace the file at once. Raises ConfigError if it has changed since it was read."""
        self._check_unchanged(self.path.read_bytes().decode(), "has changed meanwhile; run it again")
        path = self.path.resolve()  # a link stays one
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
                file.write(self.after)
            Path(name).chmod(path.stat().st_mode & 0o777)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def commit(self, branch: str, message: str, needed: Sequence[Path] = ()) -> str:
        """Make a commit of this change alone on the new ``branch``, from HEAD; return its id.

        Neither the working tree nor the index changes. ``needed`` are files that the change refers to.

        Raises:
            ConfigError: there is no repository, the branch exists, a file differs from HEAD, or git fails.
        """
        top = _git_top(self.path)
        if top is None:
            raise ConfigError("--branch", [("", f"{self.path} is not in a git repository; use --patch or --write")])
        _git(top, ["check-ref-format", "--branch", branch])
        name = self.path.resolve().relative_to(top).as_posix()
        self._check_unchanged(_git(top, ["show", f"HEAD:{name}"]), "differs from HEAD; commit it first")
        for path in needed:
            _check_committed(top, path)
        mode = _git(top, ["ls-tree", "HEAD", "--", name]).split()[0]
        with tempfile.TemporaryDirectory() as folder:
            index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
            _git(top, ["read-tree", "HEAD"], index)
            blob = _git(top, ["hash-object", "-w", "--stdin"], given=self.after).strip()
            _git(top, ["update-index", "--cacheinfo", f"{mode},{blob},{name}"], index)
            tree = _git(top, ["write-tree"], index).strip()
        commit = _git(top, ["commit-tree", tree, "-p", "HEAD", "-F", "-"], given=message).strip()
        _git(top, ["update-ref", f"refs/heads/{branch}", commit, _NO_BRANCH])
        return commit

    def _check_unchanged(self, content: str, rule: str) -> None:
        if content != self.before:
            raise ConfigError(str(self.path), [("", rule)])


def _check_committed(top: Path, path: Path) -> None:
    name = path.resolve()
    if not name.is_relative_to(top):
        raise ConfigError(str(path), [("", f"is outside the repository {top}, so a branch cannot contain it")])
    blob = _git(top, ["hash-object", "--", str(name)]).strip()
    listed = _git(top, ["ls-tree", "HEAD", "--", name.relative_to(top).as_posix()]).split()
    if len(listed) < 3 or listed[2] != blob:
        raise ConfigError(
            str(path), [("", "is not in HEAD, or differs from it, and the topic needs it; commit it first")]
        )


def _git_top(path: Path) -> Path | None:
    """The top of the repository of ``path``; None if it is in none, or if there is no git."""
    try:
        done = _run_git(["rev-parse", "--show-toplevel"], path.resolve().parent, {}, None)
    except FileNotFoundError:
        return None
    return Path(done.stdout.strip()).resolve() if done.returncode == 0 else None


def _git(top: Path, arguments: Sequence[str], more: Mapping[str, str] | None = None, given: str | None = None) -> str:
    done = _run_git(arguments, top, more or {}, given)
    if done.returncode:
        message = " ".join((done.stderr or done.stdout).split())
        raise ConfigError("--branch", [(f"git {arguments[0]}", f"failed: {message or 'git gave no reason'}")])
    return done.stdout


def _run_git(
    arguments: Sequence[str], folder: Path, more: Mapping[str, str], given: str | None
) -> subprocess.CompletedProcess[str]:
    """Git's result, with the ends of lines unchanged."""
    environment, content = {**os.environ, **more}, None if given is None else given.encode()
    done = subprocess.run(
        [_GIT, *arguments], cwd=folder, env=environment, input=content, capture_output=True, check=False
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


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
    likely: list[EventTimeCandidate] = []
    if len(trial.landed):  # quarantine uses the records' own times
        own = rows.column("kafka_timestamp").take(trial.landed)
        likely = event_time_candidates(trial.parsed.columns.take(trial.landed), own)
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
        parser = {**parser, "event_time": setting.model_dump(exclude_none=True)}
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
