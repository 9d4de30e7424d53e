"""``tidemark lineage``: a topic's way from Kafka over raw and table to catalogs and readers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli.airflow_client import TOKEN, Airflow, read_token
from tidemark.cli.options import DEFAULT_TOPICS, As, Cluster, TopicName, Topics
from tidemark.cli.read_models import opened
from tidemark.inspection.agent_sightings import check_begun
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
    """Show the origin and the readers of a topic's rows: the stored data, the table, its catalogs, its readers.

    Storage does not know the names of producers: batches have the ids and epochs of idempotent ones, and no client id.
    Readers are DAGs and tasks of Airflow that name the table's assets; other readers leave no trace.
    """
    server = None if airflow is None else Airflow(airflow, read_token(token_file))
    table = opened(topics, topic, cluster)
    flow = data_flow(table, producers=producers)
    check_begun(table, flow.table.ledger)
    readers = None if server is None else server.readers(f"{table.topic.cluster}/{table.topic.topic}")
    answer = {**flow.model_dump(mode="json"), "readers": readers}
    lines = [*_lines(flow), *_readers(readers)]
    typer.echo(json.dumps(answer, ensure_ascii=False) if output is Output.json else "\n".join(lines))


def _lines(flow: DataFlow) -> Iterator[str]:
    raw, table = flow.raw, flow.table
    yield f"{flow.cluster}/{flow.topic}"
    yield f"  topic    {_name(flow.kafka)}"
    for producer in flow.producers or ():
        partition = f"{producer.incarnation}/{producer.partition}"
        yield f"    {partition}: producer {producer.producer_id}, epoch {producer.epoch}"
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
    yield from (f"  catalog  {listing.catalog}: {_listed(listing)}" for listing in flow.catalogs)


def _readers(readers: Sequence[Mapping[str, str]] | None) -> Iterator[str]:
    for reader in readers or ():
        task = f", task {reader['task']}" if reader["task"] else ""
        yield f"  reader   {reader['dag']}{task}: {reader['asset']}"
    if readers is not None and not readers:
        yield "  readers  none that Airflow knows of"


def _name(dataset: Named) -> str:
    return f"{dataset.namespace} {dataset.name}"


def _listed(listing: Listing) -> str:
    state = listing.state
    if state is None or (state.at is None and state.failing_since is None):
        return "not listed yet"
    if state.failing_since is not None:
        return f"fails since {state.failing_since:%Y-%m-%d %H:%M} UTC: {state.error}"
    behind = f", {listing.behind} commits behind" if listing.behind else ""
    return f"{state.identifier}, ledger {state.ledger_n}{behind}"
