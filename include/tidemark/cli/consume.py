"""``tidemark consume``: a topic's history from the remote tier, or both tiers, as JSON lines, values or Arrow."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from tidemark.cli.options import (
    DEFAULT_TOPICS,
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
)
from tidemark.consumer.modes import Mode
from tidemark.errors import ConfigError
from tidemark.offset_bounds import BEGINNING, END, parse_bounds

_INTERRUPTED = 130


class Format(StrEnum):
    """The form of the written records, see :mod:`tidemark.cli.consumed_records`."""

    json = "json"
    text = "text"
    raw = "raw"
    arrow = "arrow"


def consume(
    topic: Annotated[str, typer.Argument(help="The topic. The topics file need not name it.")],
    partition: Partitions = None,
    first: First = None,
    last: Last = None,
    limit: Annotated[int | None, typer.Option(min=0, metavar="N", help="Stop after N records.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait at the end for more, until Ctrl-C.")] = False,
    form: Annotated[Format, typer.Option("--format", help="The form of the written records.")] = Format.json,
    file: Annotated[Path, typer.Option(metavar="FILE", help="The file to write; - is standard output.")] = Path("-"),
    delimiter: Annotated[str, typer.Option(help="Of raw values; \\n, \\t and \\0 mean what they do in C.")] = "\\n",
    length_prefixed: Annotated[
        bool, typer.Option("--length-prefixed", help="Raw values after their length, 4 bytes, -1 for null.")
    ] = False,
    isolation: Isolation = IsolationLevel.read_committed,
    on_gap: OnGap = OnGaps.error,
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
        committed=isolation is IsolationLevel.read_committed,
        on_gap=on_gap.value,
        follow=follow,
        to_given=bool(last),
        limit=limit,
    )
    _check(asked.follow and asked.to_given, "--follow", "never ends: leave out --to or --follow")
    _check(bool(group) and bootstrap is None, "--group", "needs --bootstrap: groups live in the brokers")
    _check(bool(group) and bool(partition or last), "--group", "shares partitions out: leave out --partition and --to")
    _check(bool(client_config) and bootstrap is None, "--client-config", "needs --bootstrap")
    needed = not (bootstrap is not None and mode is Mode.KAFKA_ONLY)
    storage = storage_of(topics, topic, cluster) if needed else None
    with _sink(file) as sink, Counting("records") as progress:
        writer = writer_of(
            form.value, sink, topic, stream=file == Path("-"), delimiter=delimiter, prefixed=length_prefixed
        )
        if bootstrap is not None:
            settings = client_settings(bootstrap, client_config)
            batches = batches_of_kafka(asked, mode, storage, group, settings)
        else:
            assert storage is not None
            batches = batches_of_remote(asked, storage)
        try:
            for rows in batches:
                writer.write(rows)
                progress.add(len(rows), rows.nbytes)
            writer.close()
            sink.flush()
        except BrokenPipeError:
            _give_up_output()
        except KeyboardInterrupt:
            writer.close()
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
