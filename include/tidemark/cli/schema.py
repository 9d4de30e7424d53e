"""``tidemark schema``: the version of its registry's schema that a topic has adopted, and the version that waits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemark.cli.options import DEFAULT_TOPICS, As, Cluster, TopicName, Topics, writes
from tidemark.errors import ConfigError
from tidemark.formats.table.schema_state import SchemaChange, SchemaState
from tidemark.monitoring.incidents import in_utc
from tidemark.parsers.settings import followed_by
from tidemark.schemas.merge import read_state
from tidemark.table.delta_table import TopicTable, configured_table
from tidemark.topics import load_topics

schema_app = typer.Typer(no_args_is_help=True, help="The schema that a topic follows.")


@schema_app.command(epilog="Example: tidemark schema show orders --output json")
def show(topic: TopicName, topics: Topics = DEFAULT_TOPICS, cluster: Cluster = None, output: As = "text") -> None:
    """Show the adopted versions, with times, and the version that waits. Exits with 1 if a version waits."""
    table = _following(topics, topic, cluster)
    stored = read_state(table.store, table.keys)
    if stored is None:
        typer.echo("null" if output == "json" else f"{topic}: nothing was adopted yet; its next run does it")
        return
    state = stored.value
    if output == "json":
        typer.echo(json.dumps(_dumped(state), ensure_ascii=False))
    else:
        typer.echo("\n".join(_lines(topic, state)))
    if state.proposal is not None and state.proposal.version != state.dismissed:
        raise typer.Exit(1)


@schema_app.command(epilog="Example: tidemark schema dismiss orders --version 7")
@writes
def dismiss(
    topic: TopicName,
    version: Annotated[int, typer.Option(help="The version that waits; see `tidemark schema show`.")],
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
) -> None:
    """Close the incident of a version that does not fit the table: its records land with the columns that fit.

    To accept it instead, rebuild the whole table with `rebuild.py --all --schema VERSION`.
    """
    from tidemark.planning import schema_following

    table = _following(topics, topic, cluster)
    schema_following.dismiss(table, version)
    typer.echo(f"{topic}: version {version} is dismissed; the next look closes its incident")


@schema_app.command(epilog="Example: tidemark schema revert orders --version 6")
@writes
def revert(
    topic: TopicName,
    version: Annotated[int, typer.Option(help="The version to go back to; see `tidemark schema show`.")],
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
) -> None:
    """Take back what was adopted after a version, unless the table has its columns already.

    The newest version is not adopted again: register another one.
    """
    from tidemark.planning import schema_following

    table = _following(topics, topic, cluster)
    schema_following.revert(table, version)
    typer.echo(f"{topic}: version {version} is adopted again, and the newest is dismissed; register another one")


def _following(topics: Path, name: str, cluster: str | None) -> TopicTable:
    deployment = load_topics(topics)
    topic = deployment.topic(name, cluster)
    if followed_by(topic.parser) is None:
        rule = f"{topic.cluster}/{topic.topic} follows no registry: its parser has no schema with registry and subject"
        raise ConfigError(str(topics), [("topics", rule)])
    return configured_table(deployment, topic)


def _dumped(state: SchemaState) -> dict[str, Any]:
    """The state without definitions, which are base64."""
    shown = state.model_dump(
        mode="json", exclude={"format": True, "adopted": {"definition"}, "proposal": {"definition"}}
    )
    return shown | {"definition": _definition(state)}


def _definition(state: SchemaState) -> Any:
    """The adopted definition, as JSON; Protobuf's descriptors stay in base64."""
    return state.adopted.definition if state.kind == "protobuf" else json.loads(state.adopted.data)


def _lines(topic: str, state: SchemaState) -> Iterator[str]:
    yield f"{topic}: {state.subject}, version {state.adopted.version}, adopted {in_utc(state.adopted.at)}"
    for step in state.history:
        changes = "; ".join(map(_described, step.changes)) or "no change of columns"
        yield f"  version {step.version}, {in_utc(step.at)}: {changes}"
    if state.proposal is not None:
        dismissed = ", dismissed" if state.proposal.version == state.dismissed else ""
        changes = "; ".join(map(_described, state.proposal.changes))
        yield f"  version {state.proposal.version} waits{dismissed}: {changes}"
    if state.unanswered_since is not None:
        yield f"  the registry has not answered since {in_utc(state.unanswered_since)}: {state.reason}"


def _described(change: SchemaChange) -> str:
    return f"{change.path} {change.kind} ({change.detail})"
