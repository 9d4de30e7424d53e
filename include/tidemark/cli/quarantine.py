"""``tidemark quarantine``: the refused records of a topic, by reason, with examples."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated

import typer

from tidemark.cli.options import DEFAULT_TOPICS, As, Cluster, TopicName, Topics
from tidemark.cli.read_models import evidence_of, opened
from tidemark.inspection.quarantine import Quarantine, QuarantinedExample, quarantine_of
from tidemark.terminal import Output
from tidemark.words import plural, utc_time


def quarantine(
    topic: TopicName,
    first: Annotated[
        datetime | None, typer.Option("--from", formats=["%Y-%m-%d"], help="The first date, inclusive.")
    ] = None,
    last: Annotated[
        datetime | None, typer.Option("--to", formats=["%Y-%m-%d"], help="The last date, inclusive.")
    ] = None,
    files: Annotated[
        bool, typer.Option("--files", help="Only list the files that count, for another engine; read none of them.")
    ] = False,
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
    output: As = Output.text,
) -> None:
    """Show why records of a topic were refused: how many, by reason and schema, with three examples of each.

    A record belongs to the date of its timestamp; those without a sane one have no date, and are left out if dates are
    given. Files that a replay has replaced do not count, even while they are still there. Exits with 1 if a file that
    counts is not in the store.
    """
    since, until = (day.date().isoformat() if day else None for day in (first, last))
    if since and until and since > until:
        raise typer.BadParameter(f"{since} is after --to {until}; swap them", param_hint="--from")

    def wanted(dt: str) -> bool:
        return (since is None or dt >= since) and (until is None or "" < dt <= until)

    table = opened(topics, topic, cluster)
    found = quarantine_of(table, evidence_of(table), wanted, most_files=0 if files else None)
    lines = found.files if files else _lines(found)
    typer.echo(found.model_dump_json() if output is Output.json else "\n".join(lines))
    raise typer.Exit(int(bool(found.lost)))


def _lines(found: Quarantine) -> Iterator[str]:
    yield f"{found.cluster}/{found.topic}: {plural(found.records, 'record')} in quarantine at ledger {found.ledger_n}"
    yield from (f"  {dt or 'no date'}: {records:,}" for dt, records in found.dates.items())
    yield from (f"  not in the store: {file}; its dates can be rebuilt from raw" for file in found.lost)
    for reason in found.reasons:
        yield reason.text()
        yield from (f"  {_example(found.topic, example)}" for example in reason.examples)


def _example(topic: str, example: QuarantinedExample) -> str:
    place = f"{topic}-{example.partition}-{example.start}"
    place += f" of incarnation {example.incarnation}" if example.incarnation else ""
    place += "" if example.timestamp_ms is None else f" at {utc_time(example.timestamp_ms)}"
    if example.kind == "batch":
        return f"{place}: a batch, up to offset {example.end - 1}"
    return f"{place}: {'null' if example.value is None else example.value}"
