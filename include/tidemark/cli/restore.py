"""``tidemark restore``: a range of a topic's history back into a topic of any cluster."""

from __future__ import annotations

import json
import logging
import threading
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli.options import (
    DEFAULT_TOPICS,
    As,
    ClientConfig,
    Cluster,
    First,
    Isolation,
    IsolationLevel,
    Last,
    OnGap,
    OnGaps,
    Partitions,
    Topics,
    client_settings,
    need_consumer_extra,
    storage_of,
    writes,
)
from tidemark.errors import ConfigError, RestoreError
from tidemark.formats.keys import check_topic
from tidemark.offset_bounds import BEGINNING, END, parse_bounds
from tidemark.terminal import Output

if TYPE_CHECKING:
    from tidemark.restore.report import RestoreReport
    from tidemark.restore.run import RestoreRequest
    from tidemark.storage import Storage


class Compression(StrEnum):
    """The codec of the written batches."""

    none = "none"
    gzip = "gzip"
    lz4 = "lz4"
    zstd = "zstd"


@writes
def restore(
    topic: Annotated[str, typer.Argument(help="The topic whose history is restored.")],
    to_topic: Annotated[str, typer.Option("--to-topic", metavar="NAME", help="The topic to write to.")],
    bootstrap: Annotated[str, typer.Option(metavar="HOST:PORT", help="Brokers of the target's cluster.")],
    partition: Partitions = None,
    first: First = None,
    last: Last = None,
    transactional: Annotated[
        bool, typer.Option("--transactional", help="Records and progress in one transaction.")
    ] = False,
    create: Annotated[
        bool, typer.Option("--create", help="Create the target if it does not exist, with as many partitions.")
    ] = False,
    config: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Configuration for --create; may be repeated.")
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="The target may already have records.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Read the target back and compare.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be read; contact no broker.")
    ] = False,
    compression: Annotated[Compression, typer.Option(help="Codec of the written batches.")] = Compression.zstd,
    isolation: Isolation = IsolationLevel.read_committed,
    on_gap: OnGap = OnGaps.error,
    client_config: ClientConfig = None,
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
    output: As = Output.text,
) -> None:
    """Write a range of a topic's history into a topic of any cluster: each record once, also after a kill.

    --from and --to are: beginning, end, an offset (1000), one of a partition (3:1000), a time (2026-11-20T08:00Z, UTC
    unless it says otherwise) or @MILLISECONDS. --to is where to stop: the first offset that is not restored.

    Partition, order, key, value, headers and timestamp are kept; offsets, producer ids, the codec and batches are not,
    and a time that a broker set becomes a create time. The same command continues where it was stopped. Exits with 1 if
    the target has or gets records of other writers, if reading or writing fails, and if --verify finds a difference.
    """
    need_consumer_extra()
    from tidemark.restore.run import RestoreRequest

    logging.getLogger("kafka").setLevel(logging.ERROR)  # important messages are raised as errors
    storage = storage_of(topics, topic, cluster)
    request = RestoreRequest(
        cluster=storage.cluster,
        topic=topic,
        target=_checked(to_topic),
        partitions=tuple(sorted(set(partition or ()))),
        first=parse_bounds(first or (), "--from", BEGINNING),
        last=parse_bounds(last or (), "--to", END),
        committed=isolation is IsolationLevel.read_committed,
        on_gap=on_gap.value,
        transactional=transactional,
        create=create,
        append=append,
        codec=compression.value,
        config=_config(config or (), create=create),
    )
    if dry_run:
        _estimate(request, storage, output)
        return
    report = _restored(request, storage, client_settings(bootstrap, client_config), verify=verify)
    for warning in report.warnings:
        typer.echo(f"note: {warning}", err=True)
    text = "\n".join(report.lines())
    typer.echo(json.dumps(report.answer(), ensure_ascii=False) if output is Output.json else text)


def _restored(request: RestoreRequest, storage: Storage, client: dict[str, Any], *, verify: bool) -> RestoreReport:
    from kafka.errors import KafkaError

    from tidemark.remote.reader.tier import RemoteTier
    from tidemark.restore.report import verified
    from tidemark.restore.run import Restore
    from tidemark.restore.target import Target
    from tidemark.terminal import Counting

    ready = threading.Event()
    try:
        with (
            Target(request.target, request.group, client) as target,
            RemoteTier(storage, committed=request.committed, on_gap=request.on_gap, on_ready=ready.set) as tier,
        ):
            with Counting("records") as progress:
                report = Restore(request, tier, target, ready, progress.set).run()
            return verified(report, target) if verify else report
    except KafkaError as error:
        place = f"{request.target} at {', '.join(client['bootstrap_servers'])}"
        raise RestoreError(f"{place}: {error}; run the restore again to continue") from error


def _estimate(request: RestoreRequest, storage: Storage, output: Output) -> None:
    from tidemark.remote.reader.topic_ranges import remote_partitions
    from tidemark.remote.topics import RemoteTopics
    from tidemark.restore.run import estimate

    estimates = estimate(request, remote_partitions(RemoteTopics(storage), request.topic, request.partitions))
    total = sum(partition.end - partition.start for partition in estimates)
    size = sum(partition.size for partition in estimates)
    if output is Output.json:
        partitions = [partition.answer() for partition in estimates]
        answer = {"bytes": size, "records_at_most": total, "partitions": partitions}
        typer.echo(json.dumps(answer, ensure_ascii=False))
        return
    amount = f"at most {total:,} records, about {size / 1e6:,.1f} MB of segments"
    lines = [f"{request.cluster}/{request.topic} → {request.target}: {amount}; nothing was written"]
    typer.echo("\n".join([*lines, *(line for partition in estimates for line in partition.lines())]))


def _checked(target: str) -> str:
    try:
        return check_topic(target)
    except ValueError as error:
        raise ConfigError("--to-topic", [("", str(error))]) from error


def _config(pairs: list[str] | tuple[str, ...], *, create: bool) -> dict[str, str]:
    if pairs and not create:
        raise ConfigError("--config", [("", "applies only with --create")])
    split = [pair.partition("=") for pair in pairs]
    for name, equals, _ in split:
        if not (name and equals):
            raise ConfigError("--config", [("", f"{name!r} must be NAME=VALUE")])
    return {name: value for name, _, value in split}
