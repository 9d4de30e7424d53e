"""``tidemark-agent adopt``: take over a prefix that another uploader filled."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from tidemark.errors import FormatError
from tidemark.terminal import Output, Progress
from uploader_agent.broker.admin import Cleanup
from uploader_agent.cli.common import (
    DEFAULT_CONFIG,
    CommandAnswer,
    ConfigOption,
    OutputOption,
    broker_of,
    metadata_of,
    open_destinations,
)
from uploader_agent.observability.log_config import configure
from uploader_agent.repair.adoption import Adoption, partitions_here
from uploader_agent.settings import load_settings


def adopt(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    partition: Annotated[
        list[int] | None, typer.Option("--partition", min=0, help="Only this partition; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only name the segments.")] = False,
    config: ConfigOption = DEFAULT_CONFIG,
    output: OutputOption = Output.text,
) -> None:
    """Take over a topic that Pinterest's uploader stored: manifests and offset.wm for segments that have none.

    Stop that uploader first, and run this on the leaders' brokers, beside the agent or before it is started. Each
    stored byte is read once and checked. offset.wm is written last, and the agent continues from there. Nothing is
    removed. Exits with 1 if a segment had to be left as it is: its offsets are a gap.
    """
    settings = load_settings(config)
    configure(settings)
    broker = broker_of(settings)
    wanted = [tp for tp in partitions_here(broker.log_dirs, topic) if not partition or tp.partition in partition]
    if not wanted:
        where = ", ".join(map(str, broker.log_dirs))
        raise FormatError(topic, f"{where} has no such partition: run this on a broker that has a replica")
    with closing(metadata_of(settings, broker)) as metadata:
        policy = metadata.cleanup([topic]).get(topic, Cleanup()).policy
    answer, progress, done, left = CommandAnswer(output), Progress(), 0, False
    with open_destinations(settings, broker, dry_run=dry_run) as destinations:
        for tp in wanted:
            for row in Adoption(destinations, broker.node_id, broker.log_dirs, tp, policy).run(dry_run=dry_run):
                answer.add(row)
                done += 1
                left |= row.outcome == "left"
                progress.say(f"adopt: {row.partition}: {done} segments in all, from offset {row.base_offset}")
    answer.close(["PARTITION", "FROM", "TO", "BYTES", "OUTCOME", "WHY"])
    if left:
        raise typer.Exit(1)
