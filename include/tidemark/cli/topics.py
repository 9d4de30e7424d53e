"""``tidemark topics add`` and ``tidemark try``: from a topic of Kafka to its settings, and to a table on this machine.

The former inspects the topic and its records, and proposes a change that a person reviews. The latter also lands the
topic, by the programs that a deployment runs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
import yaml

from tidemark import installation
from tidemark.cli.brokersets import DEFAULT_BROKERSETS, BrokersetsPath, duration
from tidemark.cli.options import DEFAULT_TOPICS, ClientConfig, Topics, client_settings, writes
from tidemark.errors import ConfigError, TidemarkError
from tidemark.onboarding.options import (
    DEFAULT_PARTITION_RATE,
    DEFAULT_RECORDS,
    DEFAULT_REPLICATION_FACTOR,
    MOST_RECORDS,
    Format,
    SampleSource,
    TimeUnit,
    WantedTopic,
    byte_rate,
    need_extra,
)
from tidemark.parsers.settings import Misfits
from tidemark.terminal import Progress

if TYPE_CHECKING:
    from tidemark.onboarding.gather import Right
    from tidemark.onboarding.onboard import Onboarding
    from tidemark.topics import Deployment


topics_app = typer.Typer(no_args_is_help=True, help="Topics of the topics file.")


AnswerFormat = Literal["text", "json", "patch"]
"""The form of the answer: for people, for programs, or the change alone."""


@topics_app.callback()
def _group() -> None:
    """Keep ``add`` a command of its own."""


@topics_app.command(
    epilog="Examples: tidemark topics add prod/orders --bootstrap broker-1:9092   "
    "tidemark topics add prod/orders --branch add-orders   "
    "tidemark topics add prod/orders --create --rate 20MiB --bootstrap broker-1:9092"
)
@writes
def add(
    topic: Annotated[str, typer.Argument(metavar="[CLUSTER/]TOPIC", help="The topic, and its cluster.")],
    topics: Topics = DEFAULT_TOPICS,
    bootstrap: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Brokers of the cluster; default: those of the topics file.")
    ] = None,
    client_config: ClientConfig = None,
    sample_from: Annotated[
        SampleSource, typer.Option("--from", help="Sample raw, else Kafka; or one of them.")
    ] = "auto",
    records: Annotated[
        int, typer.Option(min=1, max=MOST_RECORDS, help="Records to sample, at most.")
    ] = DEFAULT_RECORDS,
    record_format: Annotated[
        Format | None, typer.Option("--format", help="The format of values; default: detected.")
    ] = None,
    schema: Annotated[
        str | None, typer.Option(metavar="FILE", help="Avro's schema; the topics file names it from its own folder.")
    ] = None,
    descriptors: Annotated[
        str | None, typer.Option(metavar="FILE", help="Protobuf's descriptors, named like Avro's schema.")
    ] = None,
    message: Annotated[str | None, typer.Option(help="Protobuf's message, such as shop.Order.")] = None,
    registry: Annotated[
        str | None, typer.Option(metavar="NAME", help="The registry of the topics file that the table follows.")
    ] = None,
    subject: Annotated[str | None, typer.Option(help="The registry's subject; default: <topic>-value.")] = None,
    misfits: Annotated[
        Misfits | None, typer.Option(help="The treatment of values that their column cannot hold.")
    ] = None,
    event_time: Annotated[str, typer.Option(metavar="FIELD", help="The event time: a column, auto or none.")] = "auto",
    event_time_unit: Annotated[TimeUnit | None, typer.Option(help="Of a column of whole numbers.")] = None,
    table: Annotated[str | None, typer.Option(help="The table's name; default: the topic's.")] = None,
    owner: Annotated[str | None, typer.Option(help="Shown in Airflow.")] = None,
    freshness: Annotated[str | None, typer.Option(metavar="TIME", help="The promise from append to query.")] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes a second, such as 20MiB or 20MB/s; default: measured.")
    ] = None,
    compacted: Annotated[bool, typer.Option("--compacted", help="The topic may be compacted.")] = False,
    output: Annotated[
        AnswerFormat, typer.Option("--output", "-o", help="For people, for programs, or the patch alone.")
    ] = "text",
    patch: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the change to this file.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Change the topics file in place.")] = False,
    branch: Annotated[
        str | None, typer.Option(metavar="NAME", help="Commit the change on a new branch of git.")
    ] = None,
    create: Annotated[
        bool, typer.Option("--create", help="The topic does not exist: propose partitions and placement instead.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --create: create it, instead of printing the command.")
    ] = False,
    partitions: Annotated[int | None, typer.Option(min=1, help="For --create; default: by --rate.")] = None,
    partition_rate: Annotated[
        str, typer.Option(metavar="SIZE", help="For --create: bytes a second a partition.")
    ] = DEFAULT_PARTITION_RATE,
    replication_factor: Annotated[int, typer.Option(min=1, help="For --create.")] = DEFAULT_REPLICATION_FACTOR,
    brokerset: Annotated[str | None, typer.Option(help="For --create; default: the one that carries it best.")] = None,
    brokersets: BrokersetsPath = DEFAULT_BROKERSETS,
) -> None:
    """Inspect a topic and a sample of its records, and propose the change of the topics file that ingests it.

    Nothing is changed without --patch, --write or --branch. The change is tried on the sample, and validated as `config
    check` does, before it is written. Exits with 2 and the reason if the topic cannot be ingested like that. Progress
    goes to standard error. No question is asked.
    """
    need_extra()
    from tidemark.onboarding.gather import look_at
    from tidemark.onboarding.onboard import OnboardingRequest, read_file
    from tidemark.onboarding.proposal import ProposalHints

    _, deployment = read_file(topics)
    cluster, name = _split(topic, deployment)
    client = _client(deployment, cluster, bootstrap, client_config)
    if freshness is not None:
        duration(freshness, "--freshness")
    speed = None if rate is None else byte_rate(rate, "--rate")
    if yes and not create:
        raise ConfigError(
            "--yes", [("", "applies only with --create; --write, --patch and --branch change the topics file")]
        )
    if create:
        each = byte_rate(partition_rate, "--partition-rate")
        wanted = WantedTopic(cluster, name, speed, each, partitions, replication_factor, brokerset)
        _create(wanted, topics, deployment, client, brokersets, yes=yes, output=output)
        return
    hints = ProposalHints(
        format=record_format,
        schema=_from_folder("--schema", schema, topics),
        descriptors=_from_folder("--descriptors", descriptors, topics),
        message=message,
        registry=registry,
        subject=subject,
        misfits=misfits,
    )
    named = {"table": table, "owner": owner, "freshness": freshness}
    keys = {key: value for key, value in named.items() if value is not None}
    request = OnboardingRequest(topics, cluster, name, keys, hints, event_time, event_time_unit, speed, compacted)
    with Progress() as progress:
        onboarding, rights = look_at(request, deployment, client, sample_from, records, progress.say)
    _print(onboarding, rights, output)
    _apply(onboarding, patch, branch, write=write)


def _split(topic: str, deployment: Deployment) -> tuple[str, str]:
    """(cluster, topic) of ``cluster/topic``, or of a topic alone if the file has one cluster."""
    cluster, slash, name = topic.rpartition("/")
    if slash:
        return cluster, name
    if len(deployment.clusters) != 1:
        raise ConfigError(topic, [("", f"name its cluster: CLUSTER/{topic}")])
    return deployment.clusters[0], topic


def _client(deployment: Deployment, cluster: str, bootstrap: str | None, file: Path | None) -> dict[str, Any] | None:
    """kafka-python's settings; None if neither option nor file has the brokers' address."""
    address = bootstrap or deployment.bootstrap.get(cluster)
    return None if address is None else client_settings(address, file)


def _from_folder(option: str, given: str | None, topics: Path) -> str | None:
    """A file of the command line as a path from the topics file's folder."""
    if given is None:
        return None
    if not Path(given).is_file():
        raise ConfigError(option, [("", f"{given} is not a file; give its path from the working directory")])
    return os.path.relpath(given, topics.parent)


def _create(
    wanted: WantedTopic,
    topics: Path,
    deployment: Deployment,
    client: dict[str, Any] | None,
    brokersets: Path,
    *,
    yes: bool,
    output: AnswerFormat,
) -> None:
    from tidemark.onboarding.creation import Creation, create

    def show(creation: Creation) -> None:
        if output == "json":
            typer.echo(json.dumps(creation.answer()))
        else:
            typer.echo("\n".join([*creation.lines(), creation.command]))

    create(wanted, topics, deployment, client, brokersets, show, execute=yes)
    if yes:
        typer.echo(f"{wanted.topic}: created; onboard it with this command, without --create", err=True)


def _print(onboarding: Onboarding, rights: Sequence[Right], output: AnswerFormat) -> None:
    from tidemark.onboarding.report import answer, lines

    if output == "json":
        typer.echo(json.dumps(answer(onboarding, rights), ensure_ascii=False))
        return
    typer.echo("\n".join(lines(onboarding, rights)), err=output == "patch")
    typer.echo(onboarding.change.patch(), nl=False)


def _apply(onboarding: Onboarding, patch: Path | None, branch: str | None, *, write: bool) -> None:
    from tidemark.onboarding.report import next_step

    name = f"{onboarding.request.cluster}/{onboarding.request.topic}"
    if patch is not None:
        patch.write_text(onboarding.change.patch(), encoding="utf-8")
        typer.echo(f"{patch}: the patch; `git apply {patch}` makes the change", err=True)
    if branch is not None:
        hints = onboarding.request.hints
        needed = [
            onboarding.request.path.parent / name for name in (hints.schema, hints.descriptors) if name is not None
        ]
        commit = onboarding.change.commit(branch, f"Ingest {name}\n", needed)
        typer.echo(f"{branch}: commit {commit[:12]}; the working tree is as it was", err=True)
    if write:
        onboarding.change.write()
        typer.echo(f"{onboarding.request.path}: changed", err=True)
    typer.echo(next_step(onboarding), err=True)


_TRY_CLUSTER: Final = "try"
_LOG_LINES: Final = 15


@writes
def try_topic(
    topic: Annotated[str, typer.Argument(help="A topic of Kafka.")],
    bootstrap: Annotated[str, typer.Option(metavar="HOST:PORT", help="Brokers of its cluster.")],
    to: Annotated[str, typer.Option(metavar="PLACE", help="A folder, or a URL such as s3://bucket/prefix.")],
    client_config: ClientConfig = None,
    folder: Annotated[
        Path, typer.Option("--files", metavar="FOLDER", help="For the configuration, fetched segments and logs.")
    ] = Path("tidemark-try"),
) -> None:
    """Land what a topic has in a table, on this machine alone; the next time, what is new since.

    An agent fetches all committed records, `tidemark topics add` proposes columns, and Spark's job lands the records.
    Nothing is written to Kafka. All settings are in two files in --files, for other commands to go on with.
    """
    _check_installation()
    _check_topic(topic, client_settings(bootstrap, client_config))
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    place = to.rstrip("/") if "://" in to else Path(to).absolute().as_uri()
    client = {} if client_config is None else yaml.safe_load(client_config.read_text())
    agent, topics = _try_files(folder, place, topic, {"bootstrap": bootstrap, "client": client})

    typer.echo(f"{topic}: fetching its segments; {folder}/agent.log tells how")
    run_program(folder / "agent.log", "tidemark-agent", "upload-once", "--tails", "--config", agent)
    if topic not in [entry["topic"] for entry in yaml.safe_load(topics.read_text())["topics"]]:
        typer.echo(f"{topic}: proposing columns; {topics} has them")
        options = () if client_config is None else ("--client-config", client_config)
        asked = ("--topics", topics, "--bootstrap", bootstrap, *options)
        run_program(
            folder / "onboarding.log", "tidemark", "topics", "add", f"{_TRY_CLUSTER}/{topic}", *asked, "--write"
        )
    typer.echo(f"{topic}: landing; {folder}/spark.log tells how")
    spark = ("--master", "local[2]", "--conf", "spark.ui.enabled=false")
    job = (installation.folder("jobs") / "ingest.py", "--topics", topics, "--topic", topic)
    run_program(folder / "spark.log", "spark-submit", *spark, *job)
    run_program(None, "tidemark", "status", topic, "--topics", topics)


def _try_files(folder: Path, place: str, topic: str, fetch: Mapping[str, Any]) -> tuple[Path, Path]:
    """The agent's file, written anew, and the topics file, which keeps what was proposed.

    Raises:
        ConfigError: the topics file is of another place.
    """
    agent, topics = folder / "agent.yaml", folder / "topics.yaml"
    common: dict[str, Any] = {"cluster": _TRY_CLUSTER, "raw": {"url": f"{place}/raw"}, "store": _store_settings(place)}
    if not topics.exists():
        _write_settings(topics, {**common, "lake": f"{place}/lake", "topics": []})
    elif (lake := yaml.safe_load(topics.read_text())["lake"]) != f"{place}/lake":
        raise ConfigError(str(topics), [("lake", f"is {lake}: give --to its folder, or --files another one")])
    agent.touch(mode=0o600)  # the client's settings may have a password
    settings = {"fetch": {**fetch, "spool": str(folder / "spool")}, "state_dir": str(folder / "agent-state")}
    _write_settings(agent, {**common, **settings, "include": [topic]})
    return agent, topics


def _check_installation() -> None:
    """Raise ConfigError that names the part that this environment or machine lacks."""
    installation.need("agent", "kafka", "inotify_simple", "structlog")
    installation.need("onboarding", "ruamel.yaml")
    installation.need("spark", "pyspark", "deltalake")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise ConfigError("this machine", [("", "lacks Java, which Spark runs on: install version 17 or newer")])


def _check_topic(topic: str, client: Mapping[str, Any]) -> None:
    """Raise ConfigError if the brokers have no such topic; BrokerError if they do not answer."""
    from tidemark.onboarding.kafka_source import KafkaSource

    with KafkaSource(client) as kafka:
        if kafka.facts(topic) is None:
            raise ConfigError(topic, [("", f"{','.join(client['bootstrap_servers'])} has no such topic")])


def _store_settings(place: str) -> dict[str, Any]:
    """Of variables of AWS's tools, what the files need: keys stay in the environment."""
    if not place.startswith("s3://"):
        return {}
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    own = {"endpoint_url": endpoint, "path_style": True} if endpoint else {}
    return {**own, "region": os.environ.get("AWS_REGION", "us-east-1")}


def _write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    path.write_text(yaml.safe_dump(dict(settings), sort_keys=False))


def run_program(log: Path | None, program: str, *arguments: str | Path) -> None:
    """Run a program of this environment; its output goes to ``log``. Raises TidemarkError with the end of that."""
    command = [Path(sys.executable).with_name(program), *arguments]
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with nullcontext() if log is None else log.open("w") as output:
        done = subprocess.run(command, env=env, stdout=output, stderr=output and subprocess.STDOUT, check=False)
    if done.returncode:
        told = [] if log is None else log.read_text().splitlines()[-_LOG_LINES:]
        raise TidemarkError(
            "\n".join([*told, f"{program} ended with exit code {done.returncode}; {log or 'see above'}"])
        )
