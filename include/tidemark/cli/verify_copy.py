"""``tidemark verify-copy``: proves that raw, copied to another place, is whole, and makes it readable there."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tidemark.cli.options import DEFAULT_TOPICS, As, Cluster, Topics, writes
from tidemark.inspection.raw_copy import check_copy
from tidemark.table.delta_table import open_topic_table
from tidemark.terminal import Output
from tidemark.topics import load_topics


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
    chosen = (
        [deployment.topic(topic, cluster)] if topic else [t for t in deployment.topics if cluster in {None, t.cluster}]
    )
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
