"""``tidemark erase``: requests for erasure, their approval by another person, and how far they are."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tidemark.cli.options import DEFAULT_TOPICS, As, Cluster, Topics, not_empty, writes
from tidemark.config import hint
from tidemark.erasure.reports import RequestOutcome, last_pass, reports_of
from tidemark.erasure.requests import ErasureFolder, ends_of, has_integers
from tidemark.erasure.secret import secrets
from tidemark.erasure.values import read_values
from tidemark.errors import ConfigError, NotFound
from tidemark.formats.keys import check_report
from tidemark.formats.raw.erasure import (
    KEY_COLUMN,
    Approved,
    ErasureRequest,
    NotApproved,
    SearchedTopic,
    StoredRequest,
    all_requests,
    approved,
    read_request,
)
from tidemark.inspection.agent_sightings import check_begun
from tidemark.table.delta_table import configured_table, open_topic_table
from tidemark.terminal import Output
from tidemark.topics import Deployment, load_topics
from tidemark.words import plural

erase_app = typer.Typer(no_args_is_help=True, help="The erasure of records by their keys.")


def _request_id(text: str | None) -> str | None:
    try:
        return text if text is None else check_report(text)
    except ValueError as error:
        raise typer.BadParameter("must be the id of a request: 16 of 0-9 a-f") from error


By = Annotated[str, typer.Option(callback=not_empty, help="Your name, for people who want to ask.")]


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
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
    output: As = Output.text,
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
        check_begun(table)
    given = read_values(*_text(file), hexadecimal=hexadecimal, integers=any(integers))
    told = reason.encode()
    if any(len(value) >= _TELLING and value in told for value in given):
        raise typer.BadParameter("has one of the values, and the store would keep it", param_hint="--reason")
    searched = [SearchedTopic(topic=name, column=column, confluent=confluent) for name in names]
    through = {table.topic.topic: ends_of(table) for table in tables}
    folder = ErasureFolder.of(deployment, chosen[0].cluster)
    made = folder.request(searched, through, {*given}, secret, by, reason)
    answer = {**_dumped(made), "duplicates": len(given) - len(made.values)}
    twice = f" (and {plural(answer['duplicates'], 'duplicate')})" if answer["duplicates"] else ""
    text = f"{made.id}: {_summary(made)}{twice}; waits for the approval of another person"
    typer.echo(json.dumps(answer, ensure_ascii=False) if output is Output.json else text)


@erase_app.command(epilog="Example: tidemark erase approve 9f3c52b07d1e4a66 --by grace")
@writes
def approve(
    name: Annotated[str, typer.Argument(metavar="ID", callback=_request_id, help="The request's id.")],
    by: By,
    records: Annotated[
        int | None, typer.Option(min=1, help="Allow a pass to erase so many offsets of a topic, even above 1 %.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
    output: As = Output.text,
) -> None:
    """Approve another person's request, after it was shown: the next pass erases the records for good.

    Needs another name and another identity in the store than the request has; else it exits with 1.
    """
    folder, stored = _find(load_topics(topics), cluster, name)
    folder.check(stored, by)
    if not yes:
        typer.echo(_summary(stored.request), err=True)
        typer.confirm("Erase their records for good?", abort=True, err=True)
    approval, new = folder.approve(stored, by, records)
    answer = {"id": name, **approval.model_dump(mode="json", exclude={"format", "id"}), "new": new}
    text = f"{name}: approved" if new else f"{name}: approved already, at {approval.at:%Y-%m-%d %H:%M} UTC"
    typer.echo(json.dumps(answer, ensure_ascii=False) if output is Output.json else text)


@erase_app.command(epilog="Example: tidemark erase status --output json")
def status(
    name: Annotated[
        str | None, typer.Argument(metavar="ID", callback=_request_id, help="The request's id; default: all.")
    ] = None,
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
    output: As = Output.text,
) -> None:
    """Show requests: what each asks for, who approved it, and the topics in which it is done.

    A topic is *hidden* while the last pass names objects that hold erased records, or may.

    Exits with 1 if an approval does not count.
    """
    deployment = load_topics(topics)
    if name is None:
        found = [each for of in _folders(deployment, cluster) for each in all_requests(of.store, of.control)]
        found.sort(key=lambda each: each.request.at)
    else:
        folder, _ = _find(deployment, cluster, name)
        found = [approved(folder.store, folder.control, name)]
    outcomes, remaining = _outcomes(deployment, [each.request for each in found])
    states = [_state(each, outcomes, remaining) for each in found]
    lines = [line for each, state in zip(found, states, strict=True) for line in _lines(each, state)]
    typer.echo(json.dumps(states, ensure_ascii=False) if output is Output.json else "\n".join(lines or ["no requests"]))
    if any(state["objection"] for state in states):
        raise typer.Exit(1)


_INPUT: Final = "standard input"

_TELLING: Final = 5
"""Shorter values may be a part of other words."""


def _text(file: Path | None) -> tuple[bytes, str]:
    """The text with the values, and its name in errors."""
    if file is None:
        return sys.stdin.buffer.read(), _INPUT
    try:
        return file.read_bytes(), str(file)
    except OSError as error:  # whose message has the name, and that may be a value
        rule = f"cannot be read ({error.strerror}); it is the name of a file with the values, and no value"
        raise ConfigError("FILE", [("", rule)]) from None


def _folders(deployment: Deployment, cluster: str | None) -> list[ErasureFolder]:
    """The folders of all clusters of the topics file, or of ``cluster``."""
    names = [name for name in deployment.clusters if cluster in {None, name}]
    if not names:
        rule = f"no topic belongs to a cluster {cluster}; {hint(str(cluster), deployment.clusters)}"
        raise ConfigError("the topics file", [("--cluster", rule)])
    return [ErasureFolder.of(deployment, name) for name in names]


def _find(deployment: Deployment, cluster: str | None, name: str) -> tuple[ErasureFolder, StoredRequest]:
    """The request with the id ``name``, and its folder. Raises NotFound, among others."""
    for folder in (folders := _folders(deployment, cluster)):
        try:
            return folder, read_request(folder.store, folder.control, name)
        except NotFound:
            continue
    raise NotFound(folders[0].control.erasure(name, "request"), "there is no such request; see tidemark erase status")


def _outcomes(
    deployment: Deployment, asked: Sequence[ErasureRequest]
) -> tuple[dict[tuple[str, str], RequestOutcome], dict[tuple[str, str], int]]:
    """For the topics in the topics file: the newest outcomes by id and topic, and the objects that remain."""
    named = {(each.cluster, searched.topic) for each in asked for searched in each.topics}
    tables = [configured_table(deployment, each) for each in deployment.topics if (each.cluster, each.topic) in named]
    by_topic = {(table.topic.cluster, table.topic.topic): list(reports_of(table)) for table in tables}
    reports = sorted((report for each in by_topic.values() for report in each), key=lambda report: report.at)
    outcomes = {(outcome.id, report.topic): outcome for report in reports for outcome in report.requests}
    passes = {topic: last_pass(each) for topic, each in by_topic.items()}
    remaining = {topic: len(last.raw.remaining + last.remaining) for topic, last in passes.items() if last}
    return outcomes, remaining


def _state(
    found: Approved | NotApproved,
    outcomes: Mapping[tuple[str, str], RequestOutcome],
    remaining: Mapping[tuple[str, str], int],
) -> dict[str, Any]:
    """The JSON of a request, with its approval, and for each topic how far it is and what a pass has told."""
    approval = found.approval.model_dump(mode="json", exclude={"format", "id"}) if isinstance(found, Approved) else None
    objection = found.objection if isinstance(found, NotApproved) else None
    answer = {**_dumped(found.request), "approval": approval, "objection": objection}
    for searched in answer["topics"]:
        outcome = outcomes.get((found.request.id, searched["topic"]))
        state = outcome.status if outcome and outcome.status != "found" else "approved"
        searched["state"] = state if approval else "waiting"
        searched["detail"] = outcome.detail if outcome else ""
        left = remaining.get((found.request.cluster, searched["topic"]), 0)
        if searched["state"] == "erased" and left:
            searched["state"], searched["detail"] = "hidden", f"{plural(left, 'object')} left: see the report"
        searched["records"] = outcome.records if outcome else {}
    return answer


def _dumped(made: ErasureRequest) -> dict[str, Any]:
    """The JSON of a request, with the number of its values."""
    return {**made.model_dump(mode="json", exclude={"format", "values"}), "values": len(made.values)}


def _lines(found: Approved | NotApproved, state: dict[str, Any]) -> Iterator[str]:
    yield f"{found.request.id}: {_summary(found.request)}"
    if isinstance(found, Approved):
        limit = f", up to {plural(found.approval.records, 'record')}" if found.approval.records else ""
        yield f"  approved by {found.approval.by} at {found.approval.at:%Y-%m-%d %H:%M} UTC{limit}"
    elif found.objection is not None:
        yield f"  the approval does not count: {found.objection}"
    else:
        yield "  waits for the approval of another person"
    for searched in state["topics"]:
        records = ", ".join(f"{count} in {place}" for place, count in sorted(searched["records"].items()))
        yield "; ".join(filter(None, (f"  {searched['topic']}: {searched['state']}", searched["detail"], records)))


def _summary(made: ErasureRequest) -> str:
    """One line about a request."""
    places = ", ".join(f"{made.cluster}/{searched.topic} {searched.column}" for searched in made.topics)
    when = f"{made.at:%Y-%m-%d %H:%M} UTC"
    return f"{plural(len(made.values), 'value')} of {places}, for {made.reason!r}, by {made.by} at {when}"
