"""The commands with which a person repairs what is stored, or hands it over.

``reupload`` uploads a range again, from this broker's replica or from packs. ``adopt`` takes over a prefix that another
uploader filled, or what Kafka's own tiered storage has stored. ``branch`` goes on with the log of a restored broker.
``take-name`` hands a cluster's name in the store over to the cluster that replaces its owner.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tidemark.errors import FormatError, TidemarkError
from tidemark.formats.keys import TopicPartition
from tidemark.kafka_log.indexes import MAX_OFFSET
from tidemark.kafka_tier.copies import TierStore
from tidemark.kafka_tier.encryption import private_key
from tidemark.store.identity import identity
from tidemark.terminal import Progress
from uploader_agent.broker.admin import Cleanup
from uploader_agent.broker.properties import Broker
from uploader_agent.cli.common import (
    DEFAULT_CONFIG,
    CommandAnswer,
    ConfigOption,
    OutputOption,
    authority_of,
    broker_of,
    cluster_name,
    metadata_of,
    open_incarnations,
    opened,
    surveyed,
)
from uploader_agent.observability.log_config import configure
from uploader_agent.repair.adoption import Adoption, partitions_here
from uploader_agent.repair.branching import Branching, Statement, confirmed
from uploader_agent.repair.from_packs import Completion
from uploader_agent.repair.reupload import RepairRow, Reupload
from uploader_agent.repair.tier_adoption import TierAdoption
from uploader_agent.settings import AgentSettings, load_settings
from uploader_agent.stored.incarnations import Incarnations


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
    output: OutputOption = "text",
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
    with open_incarnations(settings, broker, dry_run=dry_run) as incarnations:
        if from_packs:
            lines = Completion(incarnations, tp).run(start, end, dry_run=dry_run)
        else:
            replica = Reupload(incarnations, broker.node_id, broker.log_dirs, tp, time.sleep)
            lines = replica.run(start, end, dry_run=dry_run)
        for done, line in enumerate(lines, 1):
            answer.add(line)
            left |= line.outcome == "left"
            progress.say(f"reupload: {line.partition}: {done} segments, up to offset {line.next_offset}")
    answer.close(["PARTITION", "FROM", "TO", "BYTES", "OUTCOME", "WHY"])
    if left:
        raise typer.Exit(1)


def adopt(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    partition: Annotated[
        list[int] | None, typer.Option("--partition", min=0, help="Only this partition; may be repeated.")
    ] = None,
    kafka_tier: Annotated[
        str | None,
        typer.Option(help="Adopt from Kafka's own remote tier (KIP-405), which lies in this store: s3://bucket."),
    ] = None,
    key_prefix: Annotated[
        str, typer.Option(help="The remote tier's key.prefix, exactly as the brokers' plugin has it, such as tier/.")
    ] = "",
    key_file: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID=PATH", help="The private key (PEM) of a key pair of the remote tier; may be repeated."
        ),
    ] = None,
    copy: Annotated[
        bool, typer.Option("--copy", help="Copy the remote tier's plain logs, too, instead of referring to them.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only name the segments.")] = False,
    config: ConfigOption = DEFAULT_CONFIG,
    output: OutputOption = "text",
) -> None:
    """Take over a topic that another program has stored: Pinterest's uploader, or Kafka's own tiered storage.

    Without --kafka-tier, the segments are those of Pinterest's uploader, which lack manifests and offset.wm. Stop that
    uploader first, and run this on the leaders' brokers, beside the agent or before it is started.

    With --kafka-tier, they are those that Kafka's brokers have copied to a remote tier by Aiven's plugin. No broker is
    asked, and nothing in the remote tier is changed. Logs that are neither compressed nor encrypted stay where they
    lie, and manifests refer to them; others are copied. Run it once, before the topic's agents are started:

    tidemark-agent adopt orders --kafka-tier s3://tier --key-prefix prod/ --key-file key-1=/etc/tidemark/key-1.pem

    Each stored byte is read once and checked. offset.wm is written last, and the agent continues from there. Nothing is
    removed. Exits with 1 if a segment had to be left as it is: its offsets are a gap.
    """
    settings = load_settings(config)
    configure(settings)
    if kafka_tier is None and (key_prefix or key_file or copy):
        raise typer.BadParameter("--key-prefix, --key-file and --copy belong to --kafka-tier")
    broker = broker_of(settings)
    answer, progress, done, left = CommandAnswer(output), Progress(), 0, False
    with open_incarnations(settings, broker, dry_run=dry_run) as incarnations:
        if kafka_tier is None:
            rows = _of_pinterest(settings, broker, incarnations, topic, partition, dry_run=dry_run)
        else:
            keys = {name: private_key(path) for name, path in _key_files(key_file or ()).items()}
            tier = TierStore(incarnations.storage.store(kafka_tier), key_prefix, keys)
            adoption = TierAdoption(incarnations, tier, topic, broker.node_id, copy=copy)
            rows = adoption.run(partition or (), dry_run=dry_run)
        for row in rows:
            answer.add(row)
            done += 1
            left |= row.outcome == "left"
            progress.say(f"adopt: {row.partition}: {done} segments in all, from offset {row.base_offset}")
    answer.close(["PARTITION", "FROM", "TO", "BYTES", "OUTCOME", "WHY"])
    if left:
        raise typer.Exit(1)


def _of_pinterest(
    settings: AgentSettings,
    broker: Broker,
    incarnations: Incarnations,
    topic: str,
    partitions: list[int] | None,
    *,
    dry_run: bool,
) -> Iterator[RepairRow]:
    """Adopt what Pinterest's uploader has stored of the partitions that this broker has a replica of."""
    wanted = [tp for tp in partitions_here(broker.log_dirs, topic) if not partitions or tp.partition in partitions]
    if not wanted:
        where = ", ".join(map(str, broker.log_dirs))
        raise FormatError(topic, f"{where} has no such partition: run this on a broker that has a replica")
    with closing(metadata_of(settings, broker)) as metadata:
        policy = metadata.cleanup([topic]).get(topic, Cleanup()).policy
    for tp in wanted:
        yield from Adoption(incarnations, broker.node_id, broker.log_dirs, tp, policy).run(dry_run=dry_run)


def _key_files(options: Iterable[str]) -> dict[str, Path]:
    """The files of the options ``ID=PATH``."""
    files: dict[str, Path] = {}
    for option in options:
        name, separator, path = option.partition("=")
        if not (name and separator and path):
            raise typer.BadParameter(f"{option!r} must be ID=PATH", param_hint="--key-file")
        files[name] = Path(path)
    return files


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
    output: OutputOption = "text",
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
        raise TidemarkError("a slot has only the newest part of a log: it cannot tell where two histories part")
    broker = broker_of(settings)
    with (
        surveyed(settings, [topic]) as components,
        open_incarnations(settings, broker, dry_run=not execute) as incarnations,
    ):
        led = components.leadership.partitions.get(tp)
        if led is None:
            rule = "is not led by this broker, as far as it has answered: run this on its leader's"
            raise FormatError(str(tp), rule)
        _, stored = incarnations.resolve(tp, led.led.topic_id)
        replicas = led.local.log.replicas
        branching = Branching(tp, led.led, led.folder, stored, broker.node_id, replicas)
        if execute:
            authority = authority_of(settings, broker, lambda: broker)
            confirm = partial(confirmed, authority, tp, broker.node_id, led.led, time.sleep)
            said = Statement(by, identity(settings.store, stored.store.url), reason)
            row = branching.go_on(said, confirm, unproved=unproved)
        else:
            row = branching.look()
    answer.add(row)
    answer.close(["PARTITION", "AT", "STORED END", "LOG END", "OUTCOME", "BOTH"])
    if row.outcome == "would branch" and output == "text":
        typer.echo(f"To go on: tidemark-agent branch {topic} {partition} --execute --by NAME --reason TEXT")


def take_name(
    former: Annotated[
        str, typer.Argument(help="The id of the cluster that owns the name, as the agent's refusal has it.")
    ],
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Have this broker's cluster own its name in the store from now on, in place of the cluster FORMER.

    For a cluster that was made again under its old name. Stop the agents of FORMER for good, wait three minutes, and
    run this on any broker of the new cluster. What is stored stays: topics that were made again are new incarnations.
    """
    settings = load_settings(config)
    configure(settings)
    broker = broker_of(settings)
    with opened(settings) as (open_any, _), cluster_name(settings, broker, open_any) as owned:
        owner = owned.hand_over(former)
    typer.echo(f"the cluster {owner.cluster_id} owns the name; before: {', '.join(owner.former) or 'none'}")
