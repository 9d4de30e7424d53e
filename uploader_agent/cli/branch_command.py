"""``tidemark-agent branch``: go on with the log of a restored broker."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated

import typer

from tidemark.errors import FormatError
from tidemark.formats.keys import TopicPartition
from tidemark.store.identity import identity
from tidemark.terminal import Output
from uploader_agent.cli.common import (
    DEFAULT_CONFIG,
    CommandAnswer,
    ConfigOption,
    OutputOption,
    authority_of,
    broker_of,
    open_destinations,
    surveyed,
)
from uploader_agent.repair.branching import Branching, BranchRefused, Statement, confirmed
from uploader_agent.settings import load_settings


def branch(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    partition: Annotated[int, typer.Argument(min=0, help="The partition's number.")],
    execute: Annotated[bool, typer.Option("--execute", help="Go on with the disk's log; else only look.")] = False,
    reason: Annotated[str, typer.Option(help="What has happened, for the record; --execute needs it.")] = "",
    by: Annotated[str, typer.Option(help="Your name, for the record; --execute needs it.")] = "",
    unproved: Annotated[
        bool, typer.Option("--unproved", help="Also if the disk's log begins where they part, so that it may be below.")
    ] = False,
    config: ConfigOption = DEFAULT_CONFIG,
    output: OutputOption = Output.text,
) -> None:
    """Go on with the log of a restored broker, which is another history than the stored one.

    Run it on the leader's broker, beside the agent, which has stopped the partition and seals the rest at its next
    scan. Without --execute it only shows where the two part. What was stored from there on stays in the store, and is
    of a dead branch, as after an unclean election: tables take its rows back, and consumers read the disk's log. It
    cannot be undone. If the stored history is the one to keep, restore the topic from it instead.
    """
    if execute and not (reason.strip() and by.strip()):
        raise typer.BadParameter("say who goes on with the disk's log, and why: --by NAME --reason TEXT")
    settings, tp, answer = load_settings(config), TopicPartition(topic, partition), CommandAnswer(output)
    if settings.fetch is not None:
        raise BranchRefused("a slot has only the newest part of a log: it cannot tell where two histories part")
    broker = broker_of(settings)
    with (
        surveyed(settings, [topic]) as components,
        open_destinations(settings, broker, dry_run=not execute) as destinations,
    ):
        led = components.leadership.partitions.get(tp)
        if led is None:
            rule = "is not led by this broker, as far as it has answered: run this on its leader's"
            raise FormatError(str(tp), rule)
        _, store, keys = destinations.resolve(tp, led.led.topic_id)
        replicas = led.uploader.local.replicas
        branching = Branching(tp, led.led, led.folder, store, keys, broker.node_id, replicas)
        if execute:
            authority = authority_of(settings, broker, lambda: broker)
            confirm = partial(confirmed, authority, tp, broker.node_id, led.led, time.sleep)
            said = Statement(by, identity(settings.store, store.url), reason)
            row = branching.go_on(said, confirm, unproved=unproved)
        else:
            row = branching.look()
    answer.add(row)
    answer.close(["PARTITION", "AT", "STORED END", "LOG END", "OUTCOME", "BOTH"])
    if row.outcome == "would branch" and output is Output.text:
        typer.echo(f"To go on: tidemark-agent branch {topic} {partition} --execute --by NAME --reason TEXT")
