"""``tidemark-agent reupload``: uploads a range again, from this broker's replica or from packs."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from tidemark.formats.keys import TopicPartition
from tidemark.kafka_log.names import MAX_OFFSET
from tidemark.terminal import Output, Progress
from uploader_agent.cli.common import (
    DEFAULT_CONFIG,
    CommandAnswer,
    ConfigOption,
    OutputOption,
    broker_of,
    open_destinations,
)
from uploader_agent.observability.log_config import configure
from uploader_agent.repair.from_packs import FromPacks
from uploader_agent.repair.reupload import Reupload
from uploader_agent.settings import load_settings


def reupload(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    partition: Annotated[int, typer.Argument(min=0, help="The partition's number.")],
    start: Annotated[int, typer.Option("--from", min=0, help="The first offset.")] = 0,
    end: Annotated[int, typer.Option("--to", min=0, help="The offset after the last; default: all.")] = MAX_OFFSET,
    from_packs: Annotated[
        bool, typer.Option("--from-packs", help="Add to stored segments the records that only packs have.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only name the segments.")] = False,
    config: ConfigOption = DEFAULT_CONFIG,
    output: OutputOption = Output.text,
) -> None:
    """Upload a range again from this broker's replica, leader or not, even if the store has it as final.

    Adopts equal bytes, puts missing objects again, and rewrites manifests that no longer match; offset.wm is left to
    the leader's agent. With --from-packs it reads no disk: it adds the records that compaction had removed before a
    segment was sealed, and that packs still have. May run beside the agent. Exits with 1 if a segment had to be left as
    it is.
    """
    settings = load_settings(config)
    configure(settings)
    broker = broker_of(settings)
    tp, answer, progress, left = TopicPartition(topic, partition), CommandAnswer(output), Progress(), False
    with open_destinations(settings, broker, dry_run=dry_run) as destinations:
        if from_packs:
            lines = FromPacks(destinations, tp).run(start, end, dry_run=dry_run)
        else:
            replica = Reupload(destinations, broker.node_id, broker.log_dirs, tp, time.sleep)
            lines = replica.run(start, end, dry_run=dry_run)
        for done, line in enumerate(lines, 1):
            answer.add(line)
            left |= line.outcome == "left"
            progress.say(f"reupload: {line.partition}: {done} segments, up to offset {line.next_offset}")
    answer.close(["PARTITION", "FROM", "TO", "BYTES", "OUTCOME", "WHY"])
    if left:
        raise typer.Exit(1)
