"""``tidemark lineage``: a topic's way from Kafka over raw and table to catalogs, and who reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli.airflow_client import TOKEN, Airflow, read_token
from tidemark.cli.options import DEFAULT_TOPICS, As, Cluster, TopicName, Topics
from tidemark.cli.read_models import opened
from tidemark.inspection.data_flow import SAMPLE_BYTES, DataFlow, Listing, Named, data_flow
from tidemark.terminal import Output


def lineage(
    topic: TopicName,
    producers: Annotated[
        bool, typer.Option("--producers", help=f"Read {SAMPLE_BYTES >> 20} MiB of each partition for producer ids.")
    ] = False,
    airflow: Annotated[
        str | None,
        typer.Option(envvar="TIDEMARK_AIRFLOW_URL", metavar="URL", help="Ask this Airflow which DAGs read the table."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"A file with Airflow's token; default: the variable {TOKEN}.")
    ] = None,
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
    output: As = Output.text,
) -> None:
    """Show where a topic's rows come from and where they go: what is stored, the table, its catalogs, its readers.

    Storage does not know the names of producers: batches have the ids and epochs of idempotent ones, and no client id.
    Readers are DAGs and tasks of Airflow that name the table's assets; other readers leave no trace.
    """
    server = None if airflow is None else Airflow(airflow, read_token(token_file))
    table = opened(topics, topic, cluster)
    found = data_flow(table, producers=producers)
    readers = None if server is None else server.readers(f"{table.topic.cluster}/{table.topic.topic}")
    answer = {**found.model_dump(mode="json"), "readers": readers}
    lines = [*_lines(found), *_readers(readers)]
    typer.echo(json.dumps(answer, ensure_ascii=False) if output is Output.json else "\n".join(lines))


def _lines(found: DataFlow) -> Iterator[str]:
    raw, table = found.raw, found.table
    yield f"{found.cluster}/{found.topic}"
    yield f"  topic    {_name(found.kafka)}"
    for one in found.producers or ():
        yield f"    {one.incarnation}/{one.partition}: producer {one.producer_id}, epoch {one.epoch}"
    yield f"  raw      {_name(raw.dataset)}"
    yield f"    {raw.partitions} partitions: {raw.segments} segments, {raw.bytes} bytes, {raw.offsets} offsets"
    if raw.packed_ranges:
        more = f"{raw.packed_ranges} ranges, {raw.packed_bytes} bytes, {raw.packed_offsets} offsets"
        yield f"    in packs, beyond the segments: {more}"
    yield from (f"    damaged: {damage}" for damage in raw.unread)
    yield f"  table    {_name(table.dataset)}"
    version = "not there yet" if table.delta_version is None else f"Delta version {table.delta_version}"
    yield f"    {version}, ledger {table.ledger}: {table.rows} rows, {table.files} files, {table.bytes} bytes"
    if table.dates:
        yield f"    {table.dates} dates, {table.first_date} to {table.last_date}"
    if table.columns:
        yield f"    {', '.join(f'{column.name} {column.kind}' for column in table.columns)}"
    yield from (f"  catalog  {listing.catalog}: {_listed(listing)}" for listing in found.catalogs)


def _readers(readers: Sequence[Mapping[str, str]] | None) -> Iterator[str]:
    for one in readers or ():
        yield f"  reader   {one['dag']}" + (f", task {one['task']}" if one["task"] else "") + f": {one['asset']}"
    if readers is not None and not readers:
        yield "  readers  none that Airflow knows of"


def _name(one: Named) -> str:
    return f"{one.namespace} {one.name}"


def _listed(one: Listing) -> str:
    state = one.state
    if state is None or (state.at is None and state.failing_since is None):
        return "not listed yet"
    if state.failing_since is not None:
        return f"fails since {state.failing_since:%Y-%m-%d %H:%M} UTC: {state.error}"
    return f"{state.identifier}, ledger {state.ledger_n}" + (f", {one.behind} commits behind" if one.behind else "")
