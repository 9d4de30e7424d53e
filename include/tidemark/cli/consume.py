"""A topic's history: ``tidemark consume`` prints it, ``tidemark restore`` copies it into a topic of any cluster.

The former reads the remote tier or both tiers, and writes JSON lines, values or Arrow.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import typer

from tidemark.cli.options import (
    DEFAULT_TOPICS,
    As,
    ClientConfig,
    Cluster,
    First,
    Isolation,
    Last,
    OnGap,
    Partitions,
    Topics,
    checked_topic,
    client_settings,
    need_consumer_extra,
    show,
    storage_of,
    writes,
)
from tidemark.consumer.tier_selection import Mode
from tidemark.errors import ConfigError, RestoreError
from tidemark.offset_bounds import BEGINNING, END, parse_bounds
from tidemark.terminal import Output

if TYPE_CHECKING:
    from tidemark.restore.report import RestoreReport
    from tidemark.restore.run import RestoreRequest
    from tidemark.storage import Storage

_INTERRUPTED = 130


Format = Literal["json", "text", "raw", "arrow"]
"""The form of the written records, see :mod:`tidemark.cli.consumed_records`."""


def consume(
    topic: Annotated[str, typer.Argument(help="The topic. The topics file need not name it.")],
    partition: Partitions = None,
    first: First = None,
    last: Last = None,
    limit: Annotated[int | None, typer.Option(min=0, metavar="N", help="Stop after N records.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait at the end for more, until Ctrl-C.")] = False,
    form: Annotated[Format, typer.Option("--format", help="The form of the written records.")] = "json",
    file: Annotated[Path, typer.Option(metavar="FILE", help="The file to write; - is standard output.")] = Path("-"),
    delimiter: Annotated[str, typer.Option(help="Of raw values; \\n, \\t and \\0 mean what they do in C.")] = "\\n",
    length_prefixed: Annotated[
        bool, typer.Option("--length-prefixed", help="Raw values after their length, 4 bytes, -1 for null.")
    ] = False,
    isolation: Isolation = "read_committed",
    on_gap: OnGap = "error",
    bootstrap: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Brokers; without this option none is contacted.")
    ] = None,
    mode: Annotated[Mode, typer.Option(help="The tier to read from, with --bootstrap.")] = Mode.REMOTE_PREFERRED,
    group: Annotated[str | None, typer.Option(help="A consumer group to join; commits written records.")] = None,
    client_config: ClientConfig = None,
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
) -> None:
    """Write a topic's records, of all partitions or some, from the remote tier.

    --from and --to are: beginning, end, an offset (1000), one of a partition (3:1000), a time (2026-11-20T08:00Z, UTC
    unless it says otherwise) or @MILLISECONDS. --to is where to stop: the first offset that is not written.

    Without --bootstrap it contacts no broker. With it, --mode says which tier has precedence; --group continues from
    the group's committed offsets. Exits with 1 at a gap, unless gaps are skipped, at an offset that does not exist, and
    if storage fails; with 2 if the command line is wrong; with 130 after Ctrl-C. A closed pipe ends it quietly.
    """
    need_consumer_extra()
    from tidemark.cli.consumed_records import Asked, batches_of_kafka, batches_of_remote, writer_of
    from tidemark.terminal import Counting

    logging.getLogger("kafka").setLevel(logging.ERROR)  # important messages are raised as errors
    asked = Asked(
        topic=topic,
        partitions=tuple(partition or ()),
        first=parse_bounds(first or (), "--from", BEGINNING),
        last=parse_bounds(last or (), "--to", END),
        committed=isolation == "read_committed",
        on_gap=on_gap,
        follow=follow,
        limit=limit,
    )
    _check(follow and bool(last), "--follow", "never ends: leave out --to or --follow")
    _check(bool(group) and bootstrap is None, "--group", "needs --bootstrap: groups live in the brokers")
    _check(bool(group) and bool(partition or last), "--group", "shares partitions out: leave out --partition and --to")
    _check(bool(client_config) and bootstrap is None, "--client-config", "needs --bootstrap")
    needed = not (bootstrap is not None and mode is Mode.KAFKA_ONLY)
    storage = storage_of(topics, topic, cluster) if needed else None
    with _sink(file) as sink, Counting("records") as progress:
        write, end = writer_of(
            form, sink, topic, stream=file == Path("-"), delimiter=delimiter, prefixed=length_prefixed
        )
        if bootstrap is not None:
            settings = client_settings(bootstrap, client_config)
            batches = batches_of_kafka(asked, mode, storage, group, settings)
        else:
            assert storage is not None
            batches = batches_of_remote(asked, storage)
        try:
            for rows in batches:
                write(rows)
                progress.add(len(rows), rows.nbytes)
            end()
            sink.flush()
        except BrokenPipeError:
            _give_up_output()
        except KeyboardInterrupt:
            end()
            raise typer.Exit(_INTERRUPTED) from None
        finally:
            batches.close()


def _check(wrong: bool, option: str, rule: str) -> None:
    if wrong:
        raise ConfigError(option, [("", rule)])


@contextmanager
def _sink(file: Path) -> Iterator[BinaryIO]:
    if file == Path("-"):
        yield sys.stdout.buffer
        return
    try:
        opened = file.open("wb")
    except OSError as error:
        raise ConfigError(str(file), [("--file", f"cannot be written: {error.strerror}")]) from error
    try:
        with opened:
            yield opened
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from error


def _give_up_output() -> None:
    """Redirect standard output to nowhere after its reader has gone, so that Python's own flush at exit succeeds."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


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
    compression: Annotated[
        Literal["none", "gzip", "lz4", "zstd"], typer.Option(help="Codec of the written batches.")
    ] = "zstd",
    isolation: Isolation = "read_committed",
    on_gap: OnGap = "error",
    client_config: ClientConfig = None,
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
    output: As = "text",
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
        target=checked_topic(to_topic, "--to-topic"),
        partitions=tuple(sorted(set(partition or ()))),
        first=parse_bounds(first or (), "--from", BEGINNING),
        last=parse_bounds(last or (), "--to", END),
        committed=isolation == "read_committed",
        on_gap=on_gap,
        transactional=transactional,
        create=create,
        append=append,
        codec=compression,
        config=_topic_config(config or (), create=create),
    )
    if dry_run:
        _estimate(request, storage, output)
        return
    report = _restored(request, storage, client_settings(bootstrap, client_config), verify=verify)
    for warning in report.warnings:
        typer.echo(f"note: {warning}", err=True)
    show(report.answer(), report.lines(), output)


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
    from tidemark.remote.reader.read_range import remote_partitions
    from tidemark.remote.topics import RemoteTopics
    from tidemark.restore.run import estimate

    parts = remote_partitions(RemoteTopics(storage), request.topic, request.partitions)
    estimates = [estimate(request, part) for part in parts]
    total = sum(partition.end - partition.start for partition in estimates)
    size = sum(partition.size for partition in estimates)
    partitions = [partition.answer() for partition in estimates]
    amount = f"at most {total:,} records, about {size / 1e6:,.1f} MB of segments"
    lines = [
        f"{request.cluster}/{request.topic} → {request.target}: {amount}; nothing was written",
        *(line for partition in estimates for line in partition.lines()),
    ]
    show({"bytes": size, "records_at_most": total, "partitions": partitions}, lines, output)


def _topic_config(pairs: list[str] | tuple[str, ...], *, create: bool) -> dict[str, str]:
    if pairs and not create:
        raise ConfigError("--config", [("", "applies only with --create")])
    split = [pair.partition("=") for pair in pairs]
    for name, equals, _ in split:
        if not (name and equals):
            raise ConfigError("--config", [("", f"{name!r} must be NAME=VALUE")])
    return {name: value for name, _, value in split}
