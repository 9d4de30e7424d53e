"""``tidemark-agent copy``: a test bench for replicas of our own; the agent does not run on them yet."""

from __future__ import annotations

import logging
import signal
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event
from typing import Annotated

import typer

from tidemark.terminal import Output, Progress
from uploader_agent.cli.common import CommandAnswer, OutputOption
from uploader_agent.disk.locks import lock_directories


def copy(
    bootstrap: Annotated[str, typer.Option(metavar="HOST:PORT", help="Brokers, separated by commas.")],
    topic: Annotated[str, typer.Option(help="The topic.")],
    to: Annotated[Path, typer.Option(metavar="DIR", help="The spool. It is made, or continued.")],
    rack: Annotated[str, typer.Option(help="The own rack: batches come from a replica there, if it has one.")] = "",
    follow: Annotated[bool, typer.Option("--follow", help="Go on until SIGTERM or SIGINT.")] = False,
    largest_message: Annotated[
        int, typer.Option(min=1, max=1024, metavar="MIB", help="MiB of the largest batch that is accepted.")
    ] = 64,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML with kafka-python's settings, such as security_protocol.")
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Copy a topic's log from its brokers into files as a broker has them, up to the high watermarks at the start.

    Each checksum is checked. DIR then has the batches of each partition's leader, byte for byte, and its leader epochs.
    A later run continues there. Needs READ and DESCRIBE on the topic; nothing is written to the store. Exits with 1 if
    a partition could not be copied.
    """
    # kafka-python is slow to import, and no other command needs these parts of it.
    from tidemark.kafka_admin import client_settings
    from uploader_agent.intake.brokers import BrokerConnections
    from uploader_agent.intake.copying import TopicCopy
    from uploader_agent.intake.fetching import FetchLimits

    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    settings = client_settings(bootstrap, config, "--config")
    limits, stopping, answer, progress = (
        FetchLimits(largest_message=largest_message << 20),
        Event(),
        CommandAnswer(output),
        Progress(),
    )
    to.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(lock_directories([to]))
        cluster = stack.enter_context(closing(BrokerConnections(settings, limits, rack)))
        copying = stack.enter_context(closing(TopicCopy(cluster, topic, to, follow=follow)))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopping.set())

        def stopped() -> bool:
            progress.say(f"copy: {topic}: {copying.size:,} bytes")
            return stopping.is_set()

        copying.run(stopped)
        rows = copying.rows()
    for row in rows:
        answer.add(row)
    answer.close(["PARTITION", "STATE", "FROM", "TO", "HIGH WM", "BYTES", "LEADER", "EPOCH", "WHY"])
    wanted = "following" if follow else "copied"
    if any(row.state != wanted for row in rows):
        raise typer.Exit(1)
