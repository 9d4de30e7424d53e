"""``tidemark continuity``: what became of every offset, and whether it adds up."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

import typer

from tidemark.cli.options import DEFAULT_TOPICS, As, Cluster, TopicName, Topics, iso_dates
from tidemark.cli.read_models import opened
from tidemark.inspection.offset_accounting import CLASSES, DATED
from tidemark.monitoring.continuity import continuity_of
from tidemark.monitoring.judgement import exit_code
from tidemark.terminal import Output, columns

_BESIDE: Final = ("truncated", "lost", "corrupt", "leaving", "lag")


def continuity(
    topic: TopicName,
    dt: Annotated[
        list[str] | None, typer.Option(callback=iso_dates, help="Show the rows of this date too; may be repeated.")
    ] = None,
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
    output: As = Output.text,
) -> None:
    """Show what became of every offset of a topic: by class, with gaps, and with what holds each partition.

    Reads the committed ledger, the evidence of what has landed, what the agents say of the rest, and the topic's open
    incidents. Exits with 1 if the topic needs a person: offsets are missing or late, the classes do not add up, or an
    incident is open.
    """
    found = continuity_of(opened(topics, topic, cluster), dt or ())
    typer.echo(json.dumps(found, ensure_ascii=False) if output is Output.json else "\n".join(_lines(found)))
    raise typer.Exit(exit_code(found["state"]))


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield f"{found['topic']}: ledger {found['ledger']}, {found['rows']} rows in {found['table']}"
    yield found["verdict"]
    yield from (f"incident: {one['title']}, since {one['since']}" for one in found["incidents"])
    if found["landed"] != found["rows"]:
        yield f"evidence has {found['landed']} landed rows, and the ledger {found['rows']}"
    yield from (f"evidence of attempt {one} is missing" for one in found["missing_evidence"])
    yield from _partitions(found["partitions"])
    for one in found["partitions"]:
        name = f"{one['incarnation']}/{one['partition']}"
        if not one["balanced"]:
            yield f"{name}: {one['covered']} offsets are covered, and {one['classed']} have a class"
        for gap in one["gaps"]:
            yield f"{name}: gap {gap['from']} to {gap['to']}: {gap['reason']}, since {gap['detected_at']}"
        for held in one["held_by"]:
            yield f"{name}: held by the open transaction of producer {held['producer_id']} from {held['first_offset']}"
    for one in found["dates"]:
        counts = {name: sum(part[name] for part in one["partitions"]) for name in DATED}
        told = ", ".join(f"{count} {name}" for name, count in counts.items() if count or name != "expired")
        yield f"{one['dt']}: {told}" + ("" if one["balanced"] else f"; and the ledger says {one['rows']} rows")


def _partitions(partitions: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A table of those columns that say something."""
    names = [name for name in CLASSES if any(one["classes"][name] for one in partitions)]
    beside = [name for name in _BESIDE if any(one[name] for one in partitions)]
    rows = [["partition", "start", "next", *names, *beside, "state"]]
    for one in partitions:
        counts = [*(one["classes"][name] for name in names), *(one[name] for name in beside)]
        name = f"{one['incarnation']}/{one['partition']}"
        rows.append([name, *map(str, [one["start_offset"], one["next_offset"], *counts]), one["state"]])
    yield columns(rows, right=True)
