"""All commands, and those that show what a deployment has: tables, incidents, quarantine, lineage, schemas."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tidemark import installation
from tidemark.cli.airflow_client import TOKEN, Airflow, read_token
from tidemark.cli.backfill import backfill
from tidemark.cli.brokersets import brokersets_app
from tidemark.cli.config_check import config_app
from tidemark.cli.consume import consume, restore
from tidemark.cli.continuity import continuity
from tidemark.cli.erase import erase_app
from tidemark.cli.options import (
    DEFAULT_TOPICS,
    WRITING,
    As,
    Cluster,
    OnlyCluster,
    TopicName,
    Topics,
    chosen_clusters,
    iso_dates,
    writes,
)
from tidemark.cli.raw import acknowledge_gap, verify_copy
from tidemark.cli.read_models import evidence_of, files_of, landed_of, opened, status_of, versions_of
from tidemark.cli.topics import topics_app, try_topic
from tidemark.errors import ConfigError
from tidemark.formats.table.schema_state import SchemaChange, SchemaState
from tidemark.inspection.agent_reports import check_begun
from tidemark.inspection.data_flow import SAMPLE_BYTES, DataFlow, Listing, Named, data_flow
from tidemark.inspection.quarantine import Quarantine, QuarantinedExample, quarantine_of
from tidemark.monitoring.incident_store import read_incidents
from tidemark.monitoring.incidents import Incidents, in_utc
from tidemark.monitoring.judgement import exit_code
from tidemark.parsers.settings import followed_by
from tidemark.schemas.merge import read_state
from tidemark.table.delta_table import TopicTable, configured_table, open_topic_table
from tidemark.table.state_table import StateTable
from tidemark.table.state_view import Engine, state_view
from tidemark.terminal import Output, columns
from tidemark.timestamps import utc_now
from tidemark.topics import load_topics
from tidemark.words import plural, printable, utc_time

schema_app = typer.Typer(no_args_is_help=True, help="The schema that a topic follows.")


@schema_app.command(epilog="Example: tidemark schema show orders --output json")
def show(topic: TopicName, topics: Topics = DEFAULT_TOPICS, cluster: Cluster = None, output: As = "text") -> None:
    """Show the adopted versions, with times, and the version that waits. Exits with 1 if a version waits."""
    table = _following(topics, topic, cluster)
    stored = read_state(table.store, table.keys)
    if stored is None:
        typer.echo("null" if output == "json" else f"{topic}: nothing was adopted yet; its next run does it")
        return
    state = stored.value
    if output == "json":
        typer.echo(json.dumps(_dumped_schema(state), ensure_ascii=False))
    else:
        typer.echo("\n".join(_schema_lines(topic, state)))
    if state.proposal is not None and state.proposal.version != state.dismissed:
        raise typer.Exit(1)


@schema_app.command(epilog="Example: tidemark schema dismiss orders --version 7")
@writes
def dismiss(
    topic: TopicName,
    version: Annotated[int, typer.Option(help="The version that waits; see `tidemark schema show`.")],
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
) -> None:
    """Close the incident of a version that does not fit the table: its records land with the columns that fit.

    To accept it instead, rebuild the whole table with `rebuild.py --all --schema VERSION`.
    """
    from tidemark.planning import schema_following

    table = _following(topics, topic, cluster)
    schema_following.dismiss(table, version)
    typer.echo(f"{topic}: version {version} is dismissed; the next look closes its incident")


@schema_app.command(epilog="Example: tidemark schema revert orders --version 6")
@writes
def revert(
    topic: TopicName,
    version: Annotated[int, typer.Option(help="The version to go back to; see `tidemark schema show`.")],
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
) -> None:
    """Take back what was adopted after a version, unless the table has its columns already.

    The newest version is not adopted again: register another one.
    """
    from tidemark.planning import schema_following

    table = _following(topics, topic, cluster)
    schema_following.revert(table, version)
    typer.echo(f"{topic}: version {version} is adopted again, and the newest is dismissed; register another one")


def _following(topics: Path, name: str, cluster: str | None) -> TopicTable:
    deployment = load_topics(topics)
    topic = deployment.topic(name, cluster)
    if followed_by(topic.parser) is None:
        rule = f"{topic.cluster}/{topic.topic} follows no registry: its parser has no schema with registry and subject"
        raise ConfigError(str(topics), [("topics", rule)])
    return configured_table(deployment, topic)


def _dumped_schema(state: SchemaState) -> dict[str, Any]:
    """The state without definitions, which are base64."""
    shown = state.model_dump(
        mode="json", exclude={"format": True, "adopted": {"definition"}, "proposal": {"definition"}}
    )
    return shown | {"definition": _definition(state)}


def _definition(state: SchemaState) -> Any:
    """The adopted definition, as JSON; Protobuf's descriptors stay in base64."""
    return state.adopted.definition if state.kind == "protobuf" else json.loads(state.adopted.data)


def _schema_lines(topic: str, state: SchemaState) -> Iterator[str]:
    yield f"{topic}: {state.subject}, version {state.adopted.version}, adopted {in_utc(state.adopted.at)}"
    for step in state.history:
        changes = "; ".join(map(_described_change, step.changes)) or "no change of columns"
        yield f"  version {step.version}, {in_utc(step.at)}: {changes}"
    if state.proposal is not None:
        dismissed = ", dismissed" if state.proposal.version == state.dismissed else ""
        changes = "; ".join(map(_described_change, state.proposal.changes))
        yield f"  version {state.proposal.version} waits{dismissed}: {changes}"
    if state.unanswered_since is not None:
        yield f"  the registry has not answered since {in_utc(state.unanswered_since)}: {state.reason}"


def _described_change(change: SchemaChange) -> str:
    return f"{change.path} {change.kind} ({change.detail})"


state_app = typer.Typer(no_args_is_help=True, help="State tables: one row for each key.")


@state_app.callback()
def _state_group() -> None:
    """State tables: one row for each key."""


@state_app.command(epilog="Example: tidemark state sql customers --engine duckdb")
def sql(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="A topic with a state table.")],
    engine: Annotated[Engine, typer.Option(help="The engine that reads it.")],
    table: Annotated[str | None, typer.Option(help="The name of the topic's table in the engine.")] = None,
    state: Annotated[str | None, typer.Option(help="The name of the state table in the engine.")] = None,
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
) -> None:
    """Print a query for the newest record of each key: the state table, and the records that have landed since.

    Make a view of it. Without --table and --state, DuckDB and Spark read the tables by their addresses.
    """
    deployment = load_topics(topics)
    opened = StateTable.open(open_topic_table(deployment, deployment.topic(topic, cluster)))
    typer.echo(state_view(opened, engine, table, state), nl=False)


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
    output: As = "text",
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
    lines = [*_flow_lines(flow), *_reader_lines(readers)]
    typer.echo(json.dumps(answer, ensure_ascii=False) if output == "json" else "\n".join(lines))


def _flow_lines(flow: DataFlow) -> Iterator[str]:
    raw, table = flow.raw, flow.table
    yield f"{flow.cluster}/{flow.topic}"
    yield f"  topic    {_dataset_name(flow.kafka)}"
    for producer in flow.producers or ():
        partition = f"{producer.incarnation}/{producer.partition}"
        yield f"    {partition}: producer {producer.producer_id}, epoch {producer.epoch}"
    yield f"  raw      {_dataset_name(raw.dataset)}"
    yield f"    {raw.partitions} partitions: {raw.segments} segments, {raw.bytes} bytes, {raw.offsets} offsets"
    if raw.packed_ranges:
        more = f"{raw.packed_ranges} ranges, {raw.packed_bytes} bytes, {raw.packed_offsets} offsets"
        yield f"    in packs, beyond the segments: {more}"
    yield from (f"    damaged: {damage}" for damage in raw.unread)
    yield f"  table    {_dataset_name(table.dataset)}"
    version = "not there yet" if table.delta_version is None else f"Delta version {table.delta_version}"
    yield f"    {version}, ledger {table.ledger}: {table.rows} rows, {table.files} files, {table.bytes} bytes"
    if table.dates:
        yield f"    {table.dates} dates, {table.first_date} to {table.last_date}"
    if table.columns:
        yield f"    {', '.join(f'{column.name} {column.kind}' for column in table.columns)}"
    yield from (f"  catalog  {listing.catalog}: {_listing_line(listing)}" for listing in flow.catalogs)


def _reader_lines(readers: Sequence[Mapping[str, str]] | None) -> Iterator[str]:
    for reader in readers or ():
        task = f", task {reader['task']}" if reader["task"] else ""
        yield f"  reader   {reader['dag']}{task}: {reader['asset']}"
    if readers is not None and not readers:
        yield "  readers  none that Airflow knows of"


def _dataset_name(dataset: Named) -> str:
    return f"{dataset.namespace} {dataset.name}"


def _listing_line(listing: Listing) -> str:
    state = listing.state
    if state is None or (state.at is None and state.failing_since is None):
        return "not listed yet"
    if state.failing_since is not None:
        return f"fails since {state.failing_since:%Y-%m-%d %H:%M} UTC: {state.error}"
    behind = f", {listing.behind} commits behind" if listing.behind else ""
    return f"{state.identifier}, ledger {state.ledger_n}{behind}"


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
    output: As = "text",
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
    lines = found.files if files else _quarantine_lines(found)
    typer.echo(found.model_dump_json() if output == "json" else "\n".join(lines))
    raise typer.Exit(int(bool(found.lost)))


def _quarantine_lines(found: Quarantine) -> Iterator[str]:
    yield f"{found.cluster}/{found.topic}: {plural(found.records, 'record')} in quarantine at ledger {found.ledger_n}"
    yield from (f"  {dt or 'no date'}: {records:,}" for dt, records in found.dates.items())
    yield from (f"  not in the store: {file}; its dates can be rebuilt from raw" for file in found.lost)
    for reason in found.reasons:
        schema = "" if reason.schema_id is None else f" of schema {reason.schema_id}"
        version = "" if reason.schema_version is None else f" (version {reason.schema_version})"
        yield f"{plural(reason.records, 'record')}{schema}{version}: {printable(reason.reason)}"
        yield from (f"  {_example(found.topic, example)}" for example in reason.examples)


def _example(topic: str, example: QuarantinedExample) -> str:
    place = f"{topic}-{example.partition}-{example.start}"
    place += f" of incarnation {example.incarnation}" if example.incarnation else ""
    place += "" if example.timestamp_ms is None else f" at {utc_time(example.timestamp_ms)}"
    if example.kind == "batch":
        return f"{place}: a batch, up to offset {example.end - 1}"
    return f"{place}: {'null' if example.value is None else example.value}"


_WATCH_STALE = timedelta(minutes=10)


def incidents(
    closed: Annotated[bool, typer.Option("--closed", help="Show also incidents closed in the last 30 days.")] = False,
    topics: Topics = DEFAULT_TOPICS,
    cluster: OnlyCluster = None,
    output: As = "text",
) -> None:
    """Show the open incidents: each problem, its begin, its likely cause and the remedy.

    Reads the records of the DAG tidemark_watch. Exits with 1 if an incident is open, or if the DAG has not run lately.
    """
    deployment = load_topics(topics)
    names = chosen_clusters(topics, deployment, cluster)
    recorded = [read_incidents(deployment, name) for name in names]
    stale = [entry.cluster for entry in recorded if utc_now() - entry.at > _WATCH_STALE]
    shown = [entry.model_copy(update={"incidents": _chosen_incidents(entry, closed=closed)}) for entry in recorded]
    if output == "json":
        typer.echo(
            json.dumps([_dumped_incidents(entry, stale=entry.cluster in stale) for entry in shown], ensure_ascii=False)
        )
    else:
        typer.echo("\n".join(line for entry in shown for line in _incident_lines(entry, stale=entry.cluster in stale)))
    if stale or any(item.open for entry in recorded for item in entry.incidents):
        raise typer.Exit(1)


def _chosen_incidents(recorded: Incidents, *, closed: bool) -> tuple[Any, ...]:
    return tuple(incident for incident in recorded.incidents if incident.open or closed)


def _dumped_incidents(recorded: Incidents, *, stale: bool) -> dict[str, Any]:
    return {**recorded.model_dump(mode="json", exclude={"format"}), "stale": stale}


def _incident_lines(recorded: Incidents, *, stale: bool) -> Iterator[str]:
    open_ones = sum(incident.open for incident in recorded.incidents)
    looked = f"looked at {recorded.at:%Y-%m-%d %H:%M} UTC" if recorded.at.timestamp() else "never looked at"
    yield f"{recorded.cluster}: {open_ones} open, {looked}" + (": does the DAG tidemark_watch run?" if stale else "")
    for incident in recorded.incidents:
        until = f" to {incident.closed_at:%Y-%m-%d %H:%M} UTC" if incident.closed_at else ""
        yield f"  {incident.kind}: {incident.title}, since {incident.since:%Y-%m-%d %H:%M} UTC{until}"
        if incident.open:
            yield from (
                f"    {line}" for line in (incident.text, f"likely: {incident.likely}", f"what to do: {incident.mend}")
            )


Folder = Literal["dags", "jobs", "deploy"]
"""The names of :data:`tidemark.installation.FILES`."""

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(config_app, name="config")
app.add_typer(schema_app, name="schema")
app.add_typer(erase_app, name="erase")
app.add_typer(state_app, name="state")
app.add_typer(brokersets_app, name="brokersets")
app.add_typer(topics_app, name="topics")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(installation.VERSION)
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Options that come before the name of a command."""


@app.command(epilog="Example: tidemark files orders --dt 2026-11-20 --topics include/topics.yaml")
def files(
    topic: TopicName,
    dt: Annotated[list[str] | None, typer.Option(callback=iso_dates, help="Only this date; may be repeated.")] = None,
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
    output: As = "text",
) -> None:
    """List the live data files of a topic's table, for engines that do not read Delta."""
    listed = files_of(opened(topics, topic, cluster), dt)
    _print(listed, [file["url"] for file in listed], output)


@app.command(epilog="Example: tidemark status orders --output json")
def status(
    topic: Annotated[
        str | None, typer.Argument(help="A topic of the topics file; without one, a line of each.")
    ] = None,
    topics: Topics = DEFAULT_TOPICS,
    cluster: Cluster = None,
    output: As = "text",
) -> None:
    """Show how far a topic has landed: its state, each partition's next offset and gaps, each date's rows.

    Without a topic, show a line of each. Exits with 1 if a topic needs a person, as tidemark continuity does.
    """
    if topic is None:
        landed = landed_of(topics, cluster)
        _print(landed, [f"{_landed_line(topic)}: {topic['state']}" for topic in landed], output)
        raise typer.Exit(max(exit_code(topic["state"]) for topic in landed))
    topic_status = status_of(opened(topics, topic, cluster))
    _print(topic_status, _status_lines(topic_status), output)
    raise typer.Exit(exit_code(topic_status["state"]))


@app.command(epilog="Example: tidemark versions --output json")
def versions(topics: Topics = DEFAULT_TOPICS, cluster: OnlyCluster = None, output: As = "text") -> None:
    """Show the version of each broker's agent, of the triggerer, and of the job that committed last to each table.

    Parts state it in the objects that they write, at the time shown. A dash means that no object states it.
    """
    stated = versions_of(topics, cluster)
    names = ("cluster", "part", "name", "version")
    rows = [(*(each[name] for name in names), each["error"] or each["at"]) for each in stated]
    _print(stated, [columns([(*map(str.upper, names), "AT"), *rows])], output)


@app.command(epilog="Example: export AIRFLOW__CORE__DAGS_FOLDER=$(tidemark paths dags)")
def paths(
    name: Annotated[Folder | None, typer.Argument(help="Print only this folder's path.")] = None,
    output: As = "text",
) -> None:
    """Print where DAG files, Spark's programs and deployment files are installed."""
    folders = {folder: str(installation.folder(folder)) for folder in installation.FILES}
    lines = [f"{folder:8} {folders[folder]}  ({content})" for folder, (_, content) in installation.FILES.items()]
    _print(folders if name is None else folders[name], lines if name is None else [folders[name]], output)


app.command(epilog="Example: tidemark continuity orders --dt 2026-11-20 --output json")(continuity)
app.command(epilog="Example: tidemark incidents --output json")(incidents)
app.command(epilog="Example: tidemark quarantine orders --from 2026-11-20 --output json")(quarantine)
app.command(epilog="Example: tidemark lineage orders --producers --airflow https://airflow.example")(lineage)
app.command(
    "acknowledge-gap",
    epilog="Example: tidemark acknowledge-gap orders 7 81234 81999 --by ada --reason 'disk of broker 3, INC-512'",
)(acknowledge_gap)
app.command(
    epilog="Example: tidemark backfill kafka-1/orders --from 2026-11-18 --to 2026-11-20 --airflow https://airflow.example"
)(backfill)
app.command(
    epilog="Examples: tidemark consume orders --from 2026-11-20 --limit 10 | jq .value   "
    "tidemark consume orders --partition 3 --from 3:1000 --to 3:2000 --format arrow --file orders.arrow"
)(consume)
app.command(
    epilog="Example: tidemark restore orders --to-topic orders-again --create --bootstrap broker-1:9092 "
    "--from 2026-11-20 --to 2026-11-21 --verify"
)(restore)

app.command("try", epilog="Example: tidemark try orders --bootstrap broker-1:9092 --to s3://bucket/tidemark")(try_topic)
app.command("verify-copy", epilog="Example: tidemark verify-copy --topics restored.yaml --renew")(verify_copy)


def commands(group: typer.Typer, prefix: str = "") -> Iterator[tuple[str, Callable[..., None]]]:
    """Name and function of each command of ``group`` and of its groups: ``schema dismiss``."""
    for command in group.registered_commands:
        function = command.callback
        assert function is not None, "registered by its function"
        yield prefix + (command.name or function.__name__.replace("_", "-")), function
    for below in group.registered_groups:
        assert below.typer_instance is not None, "registered by its app"
        yield from commands(below.typer_instance, f"{prefix}{below.name} ")


_writing = sorted(name for name, function in commands(app) if function in WRITING)
app.info.help = (
    "What Tidemark's tables and its remote tier hold, and whether its configuration is right. Only "
    f"{', '.join(_writing[:-1])} and {_writing[-1]} write."
)


def _landed_line(status: dict[str, Any]) -> str:
    return f"{status['topic']}: ledger {status['n']}, {status['rows']} rows in {status['table']}"


def _status_lines(status: dict[str, Any]) -> list[str]:
    lines = [_landed_line(status), status["verdict"], *(f"  incident: {title}" for title in status["incidents"])]
    for partition in status["partitions"]:
        lives = f" of the topic's incarnation {partition['incarnation']}" if partition["incarnation"] else ""
        lines.append(f"  partition {partition['partition']}{lives}: next offset {partition['next_offset']}")
        lines += [
            f"    {start} to {end}: remote_tier, below its first offset in the store"
            for start, end in partition["remote_tier"]
        ]
        lines += [f"    gap {gap['from']} to {gap['to']}: {gap['reason']}" for gap in partition["gaps"]]
        lines += [
            f"    held by producer {held['producer_id']} from {held['first_offset']}" for held in partition["held_by"]
        ]
    lines += [f"  {dt}: {date['rows']} rows, {date['state']}" for dt, date in status["dates"].items()]
    return lines


def _print(answer: Any, lines: list[str], output: Output) -> None:
    typer.echo(json.dumps(answer, ensure_ascii=False) if output == "json" else "\n".join(lines))
