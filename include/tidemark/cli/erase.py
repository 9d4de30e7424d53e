"""``tidemark erase``: requests for erasure, their approval by another person, and how far they are.

A person gives the values of a request one a line, and no message has a value, or a part of one. A data protection
officer keeps the report of a request as text.
"""

from __future__ import annotations

import codecs
import json
import re
import sys
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tidemark.cli.options import DEFAULT_TOPICS, As, Cluster, Topics, not_empty, writes
from tidemark.erasure.reports import RequestOutcome, RequestProgress, TopicProgress, left, progress_of
from tidemark.erasure.requests import (
    ErasureFolder,
    all_requests,
    approved,
    ends_of,
    find_request,
    folders_of,
    has_integers,
    summary,
)
from tidemark.erasure.secret import secrets
from tidemark.errors import ConfigError
from tidemark.formats import object_sizes
from tidemark.formats.keys import check_report
from tidemark.formats.raw.erasure import (
    KEY_COLUMN,
    Approved,
    ErasureRequest,
    ErasureWithdrawal,
    NotApproved,
    SearchedTopic,
)
from tidemark.inspection.agent_reports import check_begun
from tidemark.table.delta_table import committed_ledger, open_topic_table
from tidemark.timestamps import utc_now
from tidemark.topics import load_topics
from tidemark.words import plural

erase_app = typer.Typer(no_args_is_help=True, help="The erasure of records by their keys.")

By = Annotated[str, typer.Option(callback=not_empty, help="Your name, for people who want to ask.")]

_INPUT: Final = "standard input"

_TELLING: Final = 5
"""Shorter values may be a part of other words."""

MOST_VALUES: Final = object_sizes.ERASURE // 80
"""Most values of a request, so that its object stays below its limit."""

_HEX: Final = re.compile(rb"(?:[0-9A-Fa-f]{2})+")
_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]*")

NOT_COVERED: Final = (
    "Kafka itself: its retention or compaction removes the records from the brokers",
    "exports, topics restored from raw, and whatever readers have copied",
    "backups and replicas of the buckets",
    "logs of jobs, alerts that were sent, and names of fields without a column, which results of runs count",
    "batches that cannot be decoded and values that no parser found, which are counted above",
    "what an unclean election cut off, where nothing is masked",
    "records that Kafka committed after the request",
)


def _request_id(text: str | None) -> str | None:
    try:
        return text if text is None else check_report(text)
    except ValueError as error:
        raise typer.BadParameter("must be the id of a request: 16 of 0-9 a-f") from error


def _due(day: datetime | None) -> datetime | None:
    """A day of the command line from today on. Raises BadParameter if it is over."""
    if day is not None and day.date() < utc_now().date():
        raise typer.BadParameter("is over: a request cannot be due before it is made")
    return day


RequestId = Annotated[str, typer.Argument(metavar="ID", callback=_request_id, help="The request's id.")]


@erase_app.command(epilog="Example: tidemark erase request --topic orders --reason DSR-1182 --by ada < keys.txt")
@writes
def request(
    topic: Annotated[list[str], typer.Option(metavar="NAME", help="A topic of the topics file; may be repeated.")],
    reason: Annotated[str, typer.Option(callback=not_empty, help="Why; not the value itself, for all may read it.")],
    by: By,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The values, one a line; default: standard input.")
    ] = None,
    column: Annotated[str, typer.Option(help="The column that has the values, or its path into structs.")] = KEY_COLUMN,
    confluent: Annotated[
        bool, typer.Option("--confluent", help="Keys may begin with the 5 bytes of a registry's serializer.")
    ] = False,
    hexadecimal: Annotated[bool, typer.Option("--hex", help="The values are bytes in hexadecimal digits.")] = False,
    due: Annotated[
        datetime | None,
        typer.Option(metavar="DATE", formats=["%Y-%m-%d"], callback=_due, help="The last day; default: in 30 days."),
    ] = None,
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
    output: As = "text",
) -> None:
    """Ask to erase the records that have one of the values, up to the present end of the topics. Prints the id.

    The store gets digests of the values under the first secret of TIDEMARK_ERASURE_SECRET, and no value. Nothing
    happens before another person approves it.
    """
    secret = next(iter(secrets().values()))
    deployment = load_topics(topics)
    names = [*dict.fromkeys(topic)]
    chosen = [deployment.topic(name, cluster) for name in names]
    if len({each.cluster for each in chosen}) > 1:
        raise ConfigError(str(topics), [("--topic", "the topics are of several clusters: make a request for each")])
    integers = [has_integers(each, column, confluent=confluent) for each in chosen]
    tables = [open_topic_table(deployment, each) for each in chosen]
    for table in tables:
        check_begun(table, committed_ledger(table).n)
    given = read_values(*_read_text(file), hexadecimal=hexadecimal, integers=any(integers))
    told = reason.encode()
    if any(len(value) >= _TELLING and value in told for value in given):
        raise typer.BadParameter("has one of the values, and the store would keep it", param_hint="--reason")
    searched = [SearchedTopic(topic=name, column=column, confluent=confluent) for name in names]
    through = {table.topic.topic: ends_of(table) for table in tables}
    folder = ErasureFolder.of(deployment, chosen[0].cluster)
    made = folder.request(searched, through, {*given}, secret, by, reason, due.date() if due else None)
    answer = {**_dumped(made), "duplicates": len(given) - len(made.values)}
    twice = f" (and {plural(answer['duplicates'], 'duplicate')})" if answer["duplicates"] else ""
    text = f"{made.id}: {summary(made)}{twice}; waits for the approval of another person"
    typer.echo(json.dumps(answer, ensure_ascii=False) if output == "json" else text)


@erase_app.command(epilog="Example: tidemark erase approve 9f3c52b07d1e4a66 --by grace")
@writes
def approve(
    name: RequestId,
    by: By,
    records: Annotated[
        int | None, typer.Option(min=1, help="Allow a pass to erase so many offsets of a topic, even above 1 %.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
    output: As = "text",
) -> None:
    """Approve another person's request, after it was shown: the next pass erases the records for good.

    Needs another name and another identity in the store than the request has; else it exits with 1.
    """
    folder, stored = find_request(load_topics(topics), cluster, name)
    folder.check(stored, by)
    if not yes:
        typer.echo(summary(stored.request), err=True)
        typer.confirm("Erase their records for good?", abort=True, err=True)
    approval, new = folder.approve(stored, by, records)
    answer = {"id": name, **approval.model_dump(mode="json", exclude={"format", "id"}), "new": new}
    text = f"{name}: approved" if new else f"{name}: approved already, at {approval.at:%Y-%m-%d %H:%M} UTC"
    typer.echo(json.dumps(answer, ensure_ascii=False) if output == "json" else text)


@erase_app.command(epilog="Example: tidemark erase withdraw 9f3c52b07d1e4a66 --by ada --reason 'asked again'")
@writes
def withdraw(
    name: RequestId,
    reason: Annotated[str, typer.Option(callback=not_empty, help="Why; all may read it.")],
    by: By,
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
    output: As = "text",
) -> None:
    """Withdraw a request: no pass carries it out any more. What passes have erased stays so."""
    folder, stored = find_request(load_topics(topics), cluster, name)
    withdrawal = folder.withdraw(stored, by, reason)
    answer = withdrawal.model_dump(mode="json", exclude={"format"})
    text = f"{name}: {withdrawn_by(withdrawal)}"
    typer.echo(json.dumps(answer, ensure_ascii=False) if output == "json" else text)


@erase_app.command(epilog="Example: tidemark erase status --output json")
def status(
    name: Annotated[
        str | None, typer.Argument(metavar="ID", callback=_request_id, help="The request's id; default: all.")
    ] = None,
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
    output: As = "text",
) -> None:
    """Show requests: what each asks for, who approved it, the days left, and the topics in which it is done.

    A topic is *hidden* while the last pass names objects that hold erased records, or may. *near* marks what is not
    closed ten days before its date, or after half of a shorter time.

    Exits with 1 if an approval does not count.
    """
    deployment = load_topics(topics)
    if name is None:
        found = [each for of in folders_of(deployment, cluster) for each in all_requests(of.cluster)]
        found.sort(key=lambda each: each.request.at)
    else:
        folder, _ = find_request(deployment, cluster, name)
        found = [approved(folder.cluster, name)]
    today, known = utc_now().date(), progress_of(deployment, found)
    states = [_state(each, today) for each in known]
    lines = [line for each in known for line in _lines(each, today)]
    typer.echo(json.dumps(states, ensure_ascii=False) if output == "json" else "\n".join(lines or ["no requests"]))
    if any(state["objection"] for state in states):
        raise typer.Exit(1)


@erase_app.command(epilog="Example: tidemark erase report 9f3c52b07d1e4a66 > DSR-1182.txt")
def report(name: RequestId, topics: Topics = DEFAULT_TOPICS, cluster: Cluster = None, output: As = "text") -> None:
    """Print the report of a request, to be kept: what was asked, found and erased, what remains, what is not covered.

    It has no value, and none can be tested against it.
    """
    deployment = load_topics(topics)
    folder, stored = find_request(deployment, cluster, name)
    [known] = progress_of(deployment, [approved(folder.cluster, name)])
    now = utc_now()
    state = _state(known, now.date())
    answer = {
        **state,
        "topics": [each | _found(topic) for each, topic in zip(state["topics"], known.topics, strict=True)],
        "reported_at": now.isoformat(),
        "request_sha256": stored.sha256,
        "approval_sha256": known.asked.sha256 if isinstance(known.asked, Approved) else None,
        "not_covered": NOT_COVERED,
    }
    lines = report_lines(known, stored.sha256, now)
    typer.echo(json.dumps(answer, ensure_ascii=False) if output == "json" else "\n".join(lines))


def _read_text(file: Path | None) -> tuple[bytes, str]:
    """The text with the values, and its name in errors."""
    if file is None:
        return sys.stdin.buffer.read(), _INPUT
    try:
        return file.read_bytes(), str(file)
    except OSError as error:  # whose message has the name, and that may be a value
        rule = f"cannot be read ({error.strerror}); it is the name of a file with the values, and no value"
        raise ConfigError("FILE", [("", rule)]) from None


def _state(known: RequestProgress, today: date) -> dict[str, Any]:
    """The JSON of a request, with its approval, the days left, and for each topic how far it is."""
    asked = known.asked
    approval = asked.approval.model_dump(mode="json", exclude={"format", "id"}) if isinstance(asked, Approved) else None
    return {
        **_dumped(asked.request),
        "approval": approval,
        "objection": asked.objection if isinstance(asked, NotApproved) else None,
        "withdrawal": asked.withdrawal and asked.withdrawal.model_dump(mode="json", exclude={"format", "id"}),
        "days_left": known.days_left(today),
        "near": known.is_near(today),
        "kept_until": known.kept_until and known.kept_until.isoformat(),
        "closed_at": known.closed_at and known.closed_at.isoformat(),
        "topics": [
            {
                **topic.searched.model_dump(mode="json"),
                "state": topic.state,
                "detail": topic.detail,
                "records": topic.outcome.records if topic.outcome else {},
            }
            for topic in known.topics
        ],
    }


def _found(topic: TopicProgress) -> dict[str, Any]:
    """The JSON of what passes found of a topic of a request, and of what remains."""
    return {
        "dates": topic.outcome.dates if topic.outcome else {},
        "passes": [
            each.model_dump(mode="json", include={"attempt", "at", "by", "dry_run", "unsearchable", "gone"})
            for each in topic.passes
        ],
        "closed_at": topic.closed_at and topic.closed_at.isoformat(),
        "remaining": [item.model_dump(mode="json") for item in topic.remaining],
    }


def _dumped(made: ErasureRequest) -> dict[str, Any]:
    """The JSON of a request, with the number of its values."""
    dumped = made.model_dump(mode="json", exclude={"format", "values"})
    return {**dumped, "values": len(made.values), "due": made.due_on.isoformat()}


def _lines(known: RequestProgress, today: date) -> Iterator[str]:
    yield f"{known.request.id}: {summary(known.request)}"
    yield f"  {time_left(known, today)}"
    yield f"  {approved_by(known.asked)}"
    if known.asked.withdrawal is not None:
        yield f"  {withdrawn_by(known.asked.withdrawal)}"
    for topic in known.topics:
        found = counted(topic.outcome) if topic.outcome else ""
        yield "; ".join(filter(None, (f"  {topic.searched.topic}: {topic.state}", topic.detail, found)))


def read_values(text: bytes, source: str, *, hexadecimal: bool = False, integers: bool = False) -> list[bytes]:
    """The canonical value of each line of ``text``: its UTF-8, or with ``hexadecimal`` the bytes that it spells.

    ``source`` names the text in errors. With ``integers``, each line is a whole number as JSON writes it.

    Raises:
        ConfigError: a line is empty or of another form, or there are no lines, or too many.
    """
    lines = text.removeprefix(codecs.BOM_UTF8).removesuffix(b"\n").split(b"\n")
    if not 0 < len(lines) <= MOST_VALUES or lines == [b""]:
        number = "no lines" if lines == [b""] else f"{len(lines)} lines"
        rule = f"has {number}; a request has 1 to {MOST_VALUES} values, a line each: divide more among several requests"
        raise ConfigError(source, [("", rule)])
    return [
        _value(line.removesuffix(b"\r"), f"{source}: line {number}", hexadecimal=hexadecimal, integers=integers)
        for number, line in enumerate(lines, 1)
    ]


def _value(line: bytes, place: str, *, hexadecimal: bool, integers: bool) -> bytes:
    if not line:
        raise ConfigError(place, [("", "is empty; remove it: no record is erased for having no value")])
    if hexadecimal:
        if not _HEX.fullmatch(line):
            raise ConfigError(place, [("", "is not bytes in hexadecimal digits, as --hex says")])
        return bytes.fromhex(line.decode())
    if integers and not _INTEGER.fullmatch(line):
        raise ConfigError(place, [("", "is not a whole number without leading zeros, as the values of the column are")])
    try:
        line.decode()
    except UnicodeDecodeError:
        raise ConfigError(place, [("", "is not UTF-8; write bytes in hexadecimal digits, with --hex")]) from None
    return line


def report_lines(known: RequestProgress, sha256: str, now: datetime) -> Iterator[str]:
    """The report of a request, whose object has this SHA-256."""
    request, asked = known.request, known.asked
    yield f"Erasure request {request.id} of cluster {request.cluster}, as of {_time(now)}"
    yield f"  {time_left(known, now.date())}"
    yield from ("", "ASKED")
    yield f"  reason: {request.reason}"
    yield f"  asked by {request.by} at {_time(request.at)}, as {request.written_as}"
    yield f"  SHA-256 of request.json: {sha256}"
    yield f"  {approved_by(asked)}" + (f", as {asked.approval.written_as}" if isinstance(asked, Approved) else "")
    if isinstance(asked, Approved):
        yield f"  SHA-256 of approval.json, which masks name: {asked.sha256}"
    if asked.withdrawal is not None:
        yield f"  {withdrawn_by(asked.withdrawal)}, as {asked.withdrawal.written_as}"
    yield f"  {plural(len(request.values), 'value')}, as digests under the secret {request.secret}"
    for searched in request.topics:
        ends = plural(len(request.through[searched.topic]), "partition")
        yield f"  {searched.topic}: in {searched.column}, up to the end that each of {ends} had then"
    yield from ("", "FOUND AND ERASED")
    for topic in known.topics:
        yield from _found_lines(topic)
    yield from ("", "REMAINS")
    for topic in known.topics:
        yield f"  {topic.searched.topic}: {_remains(topic)}"
        yield from (f"    {item}" for item in topic.remaining)
    yield from ("", "NOT COVERED")
    yield from (f"  {item}" for item in NOT_COVERED)


def time_left(known: RequestProgress, today: date) -> str:
    """The date of a request, and the days left or the time at which it was closed."""
    due, days = f"due on {known.request.due_on}", known.days_left(today)
    if known.closed_at is not None:
        return f"{due}, closed at {_time(known.closed_at)}"
    if known.due_on > known.request.due_on and days >= 0:
        return f"{due}, and what remains is kept until {_time(known.kept_until)}: due again on {known.due_on}"
    left = f"{plural(days, 'day')} left" if days >= 0 else f"OVERDUE by {plural(-days, 'day')}"
    return f"{due}, {left}{' (near)' if days >= 0 and known.is_near(today) else ''}"


def approved_by(asked: Approved | NotApproved) -> str:
    """Who has approved a request."""
    if isinstance(asked, Approved):
        limit = f", up to {plural(asked.approval.records, 'record')}" if asked.approval.records else ""
        return f"approved by {asked.approval.by} at {_time(asked.approval.at)}{limit}"
    if asked.objection is not None:
        return f"the approval does not count: {asked.objection}"
    return "waits for the approval of another person"


def withdrawn_by(withdrawal: ErasureWithdrawal) -> str:
    """Who has withdrawn a request, and why."""
    return f"withdrawn by {withdrawal.by} at {_time(withdrawal.at)}: {withdrawal.reason}"


def counted(outcome: RequestOutcome) -> str:
    """The number of records that a pass found, by place."""
    return ", ".join(f"{count} in {place}" for place, count in sorted(outcome.records.items()))


def _found_lines(topic: TopicProgress) -> Iterator[str]:
    name, outcome = topic.searched.topic, topic.outcome
    if outcome is None:
        yield f"  {name}: {topic.state}, no pass has searched it{': ' if topic.detail else ''}{topic.detail}"
        return
    last = topic.passes[-1]
    found = outcome.detail or counted(outcome) or "nothing found"
    yield f"  {name}: {outcome.status} by attempt {last.attempt} of {last.by} at {_time(last.at)}: {found}"
    yield from (f"    {dt}: {plural(rows, 'row')} of the table" for dt, rows in sorted(outcome.dates.items()))
    if last.unsearchable:
        yield f"    {last.unsearchable} batches or values could not be searched"
    if last.gone:
        yield f"    {last.gone} offsets were not in raw any more"


def _remains(topic: TopicProgress) -> str:
    if topic.state not in {"hidden", "erased"}:
        return "all of it, since it is not erased"
    return left(topic.remaining) if topic.remaining else f"nothing, since {_time(topic.closed_at)}"


def _time(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC" if at else "never"
