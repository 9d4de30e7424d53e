"""``tidemark incidents``: the current problems, as the watch found them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Any

import typer

from tidemark.cli.options import DEFAULT_TOPICS, As, OnlyCluster, Topics, chosen_clusters
from tidemark.monitoring.incident_store import read_incidents
from tidemark.monitoring.incidents import Incidents
from tidemark.terminal import Output
from tidemark.timestamps import utc_now
from tidemark.topics import load_topics

_STALE = timedelta(minutes=10)


def incidents(
    closed: Annotated[bool, typer.Option("--closed", help="Show also incidents closed in the last 30 days.")] = False,
    topics: Topics = DEFAULT_TOPICS,
    cluster: OnlyCluster = None,
    output: As = Output.text,
) -> None:
    """Show the open incidents: each problem, its begin, its likely cause and the remedy.

    Reads the records of the DAG tidemark_watch. Exits with 1 if an incident is open, or if the DAG has not run lately.
    """
    deployment = load_topics(topics)
    names = chosen_clusters(topics, deployment, cluster)
    recorded = [read_incidents(deployment, name) for name in names]
    stale = [entry.cluster for entry in recorded if utc_now() - entry.at > _STALE]
    shown = [entry.model_copy(update={"incidents": _chosen(entry, closed=closed)}) for entry in recorded]
    if output is Output.json:
        typer.echo(json.dumps([_dumped(entry, stale=entry.cluster in stale) for entry in shown], ensure_ascii=False))
    else:
        typer.echo("\n".join(line for entry in shown for line in _lines(entry, stale=entry.cluster in stale)))
    if stale or any(item.open for entry in recorded for item in entry.incidents):
        raise typer.Exit(1)


def _chosen(recorded: Incidents, *, closed: bool) -> tuple[Any, ...]:
    return tuple(incident for incident in recorded.incidents if incident.open or closed)


def _dumped(recorded: Incidents, *, stale: bool) -> dict[str, Any]:
    return {**recorded.model_dump(mode="json", exclude={"format"}), "stale": stale}


def _lines(recorded: Incidents, *, stale: bool) -> Iterator[str]:
    open_ones = sum(incident.open for incident in recorded.incidents)
    looked = f"looked at {recorded.at:%Y-%m-%d %H:%M} UTC" if recorded.at.timestamp() else "never looked at"
    yield f"{recorded.cluster}: {open_ones} open, {looked}" + (": does the DAG tidemark_watch run?" if stale else "")
    for incident in recorded.incidents:
        until = f" to {incident.closed_at:%Y-%m-%d %H:%M} UTC" if incident.closed_at else ""
        yield f"  {incident.kind}: {incident.title}, since {incident.since:%Y-%m-%d %H:%M} UTC{until}"
        if incident.open:
            yield from (
                f"    {line}" for line in (incident.text, f"likely: {incident.likely}", f"what to do: {incident.mend}")
            )
