"""Commands that write to raw: ``tidemark acknowledge-gap`` gives up lost offsets, ``verify-copy`` proves a copy."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from tidemark.cli.options import DEFAULT_TOPICS, As, Cluster, TopicName, Topics, not_empty, writes
from tidemark.inspection.gap_acknowledgement import GapsOf, gaps_of
from tidemark.inspection.raw_copy import check_copy
from tidemark.table.delta_table import open_topic_table
from tidemark.terminal import Output
from tidemark.topics import load_topics


@writes
def acknowledge_gap(
    topic: TopicName,
    partition: Annotated[int, typer.Argument(min=0, help="The partition's number.")],
    start: Annotated[int, typer.Argument(metavar="FROM", min=0, help="The first lost offset.")],
    end: Annotated[int, typer.Argument(metavar="TO", min=0, help="The offset after the last lost one.")],
    by: Annotated[str, typer.Option(callback=not_empty, help="Your name, for people who want to ask.")],
    reason: Annotated[str, typer.Option(callback=not_empty, help="Why they are lost, and may be given up.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    incarnation: Annotated[
        int | None, typer.Option(help="The incarnation of a topic that was created again; default: the newest.")
    ] = None,
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
    output: As = Output.text,
) -> None:
    """Accept that offsets of an open gap are lost, so that the partition continues past them.

    They are classed as acknowledged from then on. You cannot undo this. The leader's agent sees it within its scan
    interval; if only runs have found the gap, the next run does. Exits with 1 for offsets that are not in an open gap,
    and shows the open gaps.
    """
    deployment = load_topics(topics)
    settings = deployment.topic(topic, cluster)
    known = gaps_of(open_topic_table(deployment, settings), partition, incarnation)
    if not yes and known.said(start, end) is None:
        _ask(known, start, end)
    acknowledgement, new = known.acknowledge(start, end, by, reason)
    answer: dict[str, Any] = {
        "topic": f"{settings.cluster}/{settings.topic}",
        "partition": partition,
        **acknowledgement.model_dump(mode="json", by_alias=True, exclude={"format"}),
        "new": new,
    }
    outcome = "acknowledged" if new else f"acknowledged already, at {acknowledgement.at:%Y-%m-%d %H:%M} UTC"
    line = f"{answer['topic']} {partition}: {start} to {end} {outcome}"
    typer.echo(json.dumps(answer, ensure_ascii=False) if output is Output.json else line)


def _ask(gaps: GapsOf, start: int, end: int) -> None:
    """Show the open gaps on standard error, and ask whether to continue."""
    gaps.check(start, end)
    typer.echo(f"Open gaps of {gaps.at}:", err=True)
    for gap in gaps.standing(start, end):
        typer.echo(f"  {gap.start} to {gap.end}: {gap.reason}, since {gap.detected_at:%Y-%m-%d %H:%M} UTC", err=True)
    typer.confirm(f"Give up {end - start} offsets, {start} to {end}, for good?", abort=True, err=True)


@writes
def verify_copy(
    topic: Annotated[str | None, typer.Argument(help="A topic of the topics file; default: all.")] = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Write this copy's ETags into manifests whose objects are proved.")
    ] = False,
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
    output: As = Output.text,
) -> None:
    """Check a copy of raw: all that manifests, watermarks and heads name must be there, with the same bytes.

    Reads the objects of all segments where the store does not know their CRC32C. Exits with 1 if anything is missing
    or differs. With --renew it needs the agent's rights.
    """
    deployment = load_topics(topics)
    chosen = [deployment.topic(topic, cluster)] if topic else deployment.topics_of(cluster)
    copies = [check_copy(open_topic_table(deployment, settings), renew=renew) for settings in chosen]
    if output is Output.json:
        typer.echo(json.dumps([copy.model_dump(mode="json") for copy in copies], ensure_ascii=False))
    else:
        for copy in copies:
            found = f"{copy.partitions} partitions, {copy.segments} segments, {copy.bytes} bytes"
            typer.echo(f"{copy.cluster}/{copy.topic}: {found}, {copy.renewed} manifests renewed")
            typer.echo("".join(f"  {finding}\n" for finding in copy.findings), nl=False)
    if any(copy.findings for copy in copies):
        raise typer.Exit(1)
