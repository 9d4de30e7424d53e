"""The commands: their options, and the form of their answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import typer

from tidemark import installation
from tidemark.cli.backfill import backfill
from tidemark.cli.brokersets import brokersets_app
from tidemark.cli.config_check import config_app
from tidemark.cli.consume import consume
from tidemark.cli.continuity import continuity
from tidemark.cli.erase import erase_app
from tidemark.cli.incidents import incidents
from tidemark.cli.lineage import lineage
from tidemark.cli.options import DEFAULT_TOPICS, WRITING, As, Cluster, OnlyCluster, TopicName, Topics, iso_dates
from tidemark.cli.quarantine import quarantine
from tidemark.cli.raw import acknowledge_gap, verify_copy
from tidemark.cli.read_models import files_of, landed_of, opened, status_of, versions_of
from tidemark.cli.restore import restore
from tidemark.cli.schema import schema_app
from tidemark.cli.state import state_app
from tidemark.cli.topics import topics_app
from tidemark.cli.try_topic import try_topic
from tidemark.monitoring.judgement import exit_code
from tidemark.terminal import Output, columns

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
    output: As = Output.text,
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
    output: As = Output.text,
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
def versions(topics: Topics = DEFAULT_TOPICS, cluster: OnlyCluster = None, output: As = Output.text) -> None:
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
    output: As = Output.text,
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
    typer.echo(json.dumps(answer, ensure_ascii=False) if output is Output.json else "\n".join(lines))
