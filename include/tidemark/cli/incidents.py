"""``tidemark incidents``: what is wrong now, as the watch found it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Any

import typer

from tidemark.cli.options import DEFAULT_TOPICS, As, Topics
from tidemark.config import hint
from tidemark.errors import ConfigError
from tidemark.monitoring.incident_store import read_incidents
from tidemark.monitoring.incidents import Incidents
from tidemark.terminal import Output
from tidemark.timestamps import utc_now
from tidemark.topics import load_topics

_STALE = timedelta(minutes=10)


def incidents(
    closed: Annotated[bool, typer.Option("--closed", help="Show also those of the last 30 days.")] = False,
    topics: Topics = DEFAULT_TOPICS,
    cluster: Annotated[str | None, typer.Option(help="Only this cluster.")] = None,
    output: As = Output.text,
) -> None:
    """Show the open incidents: what is wrong, since when, why, and what to do.

    Reads what the DAG tidemark_watch has recorded. Exits with 1 if there are any, or if the DAG has not run lately.
    """
    deployment = load_topics(topics)
    names = [one for one in deployment.clusters if cluster in {None, one}]
    if not names:
        rule = f"no topic is of a cluster {cluster}; {hint(str(cluster), deployment.clusters)}"
        raise ConfigError(str(topics), [("--cluster", rule)])
    found = [read_incidents(deployment, one).incidents for one in names]
    stale = [one.cluster for one in found if utc_now() - one.at > _STALE]
    shown = [one.model_copy(update={"incidents": _chosen(one, closed=closed)}) for one in found]
    if output is Output.json:
        typer.echo(json.dumps([_dumped(one, stale=one.cluster in stale) for one in shown], ensure_ascii=False))
    else:
        typer.echo("\n".join(line for one in shown for line in _lines(one, stale=one.cluster in stale)))
    if stale or any(item.open for one in found for item in one.incidents):
        raise typer.Exit(1)


def _chosen(found: Incidents, *, closed: bool) -> tuple[Any, ...]:
    return tuple(one for one in found.incidents if one.open or closed)


def _dumped(found: Incidents, *, stale: bool) -> dict[str, Any]:
    return {**found.model_dump(mode="json", exclude={"format"}), "stale": stale}


def _lines(found: Incidents, *, stale: bool) -> Iterator[str]:
    open_ones = sum(one.open for one in found.incidents)
    looked = f"looked at {found.at:%Y-%m-%d %H:%M} UTC" if found.at.timestamp() else "never looked at"
    yield f"{found.cluster}: {open_ones} open, {looked}" + (": does the DAG tidemark_watch run?" if stale else "")
    for one in found.incidents:
        until = f" to {one.closed_at:%Y-%m-%d %H:%M} UTC" if one.closed_at else ""
        yield f"  {one.kind}: {one.title}, since {one.since:%Y-%m-%d %H:%M} UTC{until}"
        if one.open:
            yield from (f"    {line}" for line in (one.text, f"likely: {one.likely}", f"what to do: {one.mend}"))
