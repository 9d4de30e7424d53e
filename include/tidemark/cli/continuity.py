"""``tidemark continuity``: the fate of every offset, and a check that the classes add up."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

import typer

from tidemark.cli.options import DEFAULT_TOPICS, As, Cluster, TopicName, Topics, iso_dates
from tidemark.cli.read_models import opened
from tidemark.formats.table.state_status import doubts
from tidemark.inspection.offset_accounting import CLASSES, DATED
from tidemark.monitoring.continuity import continuity_of
from tidemark.monitoring.judgement import exit_code
from tidemark.terminal import Output, columns

_BESIDE: Final = ("truncated", "remote_tier", "lost", "corrupt", "leaving", "lag")


def continuity(
    topic: TopicName,
    dt: Annotated[
        list[str] | None, typer.Option(callback=iso_dates, help="Show the rows of this date too; may be repeated.")
    ] = None,
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
    output: As = Output.text,
) -> None:
    """Show the class of every offset of a topic, its gaps, and the transactions that hold a partition.

    Reads the committed ledger, the evidence of landed offsets, the agents' reports of the rest, and the topic's open
    incidents. Exits with 1 if the topic needs a person: offsets are missing or late, the classes do not add up, or an
    incident is open.
    """
    report = continuity_of(opened(topics, topic, cluster), dt or ())
    typer.echo(json.dumps(report, ensure_ascii=False) if output is Output.json else "\n".join(_lines(report)))
    raise typer.Exit(exit_code(report["state"]))


def _lines(report: dict[str, Any]) -> Iterator[str]:
    yield f"{report['topic']}: ledger {report['ledger']}, {report['rows']} rows in {report['table']}"
    yield report["verdict"]
    yield from (f"incident: {incident['title']}, since {incident['since']}" for incident in report["incidents"])
    if report["landed"] != report["rows"]:
        yield f"evidence has {report['landed']} landed rows, and the ledger {report['rows']}"
    yield from (f"evidence of attempt {attempt} is missing" for attempt in report["missing_evidence"])
    yield from _partitions(report["partitions"])
    for partition in report["partitions"]:
        name = f"{partition['incarnation']}/{partition['partition']}"
        if not partition["balanced"]:
            yield f"{name}: {partition['covered']} offsets are covered, and {partition['classed']} have a class"
        for gap in partition["gaps"]:
            yield f"{name}: gap {gap['from']} to {gap['to']}: {gap['reason']}, since {gap['detected_at']}"
        for held in partition["held_by"]:
            yield f"{name}: held by the open transaction of producer {held['producer_id']} from {held['first_offset']}"
    if report["state_table"]:
        yield _state(report["state_table"])
    for date in report["dates"]:
        counts = {kind: sum(part[kind] for part in date["partitions"]) for kind in DATED}
        counted = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count or kind != "expired")
        yield f"{date['dt']}: {counted}" + ("" if date["balanced"] else f"; and the ledger says {date['rows']} rows")


def _state(state: dict[str, Any]) -> str:
    """A line about the state table: its commit, its doubts, and the age of its proof."""
    stopped = f"; stopped: {state['stopped']['reason']}" if state["stopped"] else ""
    proof = f"every key was audited since {state['proved_at']}" if state["proved_at"] else "not yet audited as a whole"
    name = f"{state['table']}: commit {state['n']} of ledger {state['of']}, {state['rows']} rows"
    return "; ".join([name, *doubts(state), proof]) + stopped


def _partitions(partitions: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A table of the columns with a nonzero value."""
    names = [name for name in CLASSES if any(partition["classes"][name] for partition in partitions)]
    beside = [name for name in _BESIDE if any(partition[name] for partition in partitions)]
    rows = [["partition", "start", "next", *names, *beside, "state"]]
    for partition in partitions:
        counts = [*(partition["classes"][name] for name in names), *(partition[name] for name in beside)]
        name = f"{partition['incarnation']}/{partition['partition']}"
        rows.append(
            [name, *map(str, [partition["start_offset"], partition["next_offset"], *counts]), partition["state"]]
        )
    yield columns(rows, right=True)
