"""``tidemark try``: a topic from its brokers to a table on this machine, by the programs that a deployment runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import yaml

from tidemark import installation
from tidemark.cli.options import ClientConfig, client_settings, writes
from tidemark.errors import ConfigError, TidemarkError

_CLUSTER: Final = "try"
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
    agent, topics = _files(folder, place, topic, {"bootstrap": bootstrap, "client": client})

    typer.echo(f"{topic}: fetching its segments; {folder}/agent.log tells how")
    run_program(folder / "agent.log", "tidemark-agent", "upload-once", "--tails", "--config", agent)
    if topic not in [entry["topic"] for entry in yaml.safe_load(topics.read_text())["topics"]]:
        typer.echo(f"{topic}: proposing columns; {topics} has them")
        options = () if client_config is None else ("--client-config", client_config)
        asked = ("--topics", topics, "--bootstrap", bootstrap, *options)
        run_program(folder / "onboarding.log", "tidemark", "topics", "add", f"{_CLUSTER}/{topic}", *asked, "--write")
    typer.echo(f"{topic}: landing; {folder}/spark.log tells how")
    spark = ("--master", "local[2]", "--conf", "spark.ui.enabled=false")
    job = (installation.folder("jobs") / "ingest.py", "--topics", topics, "--topic", topic)
    run_program(folder / "spark.log", "spark-submit", *spark, *job)
    run_program(None, "tidemark", "status", topic, "--topics", topics)


def _files(folder: Path, place: str, topic: str, fetch: Mapping[str, Any]) -> tuple[Path, Path]:
    """The agent's file, written anew, and the topics file, which keeps what was proposed.

    Raises:
        ConfigError: the topics file is of another place.
    """
    agent, topics = folder / "agent.yaml", folder / "topics.yaml"
    common: dict[str, Any] = {"cluster": _CLUSTER, "raw": {"url": f"{place}/raw"}, "store": _store(place)}
    if not topics.exists():
        _write(topics, {**common, "lake": f"{place}/lake", "topics": []})
    elif (lake := yaml.safe_load(topics.read_text())["lake"]) != f"{place}/lake":
        raise ConfigError(str(topics), [("lake", f"is {lake}: give --to its folder, or --files another one")])
    agent.touch(mode=0o600)  # the client's settings may have a password
    settings = {"fetch": {**fetch, "spool": str(folder / "spool")}, "state_dir": str(folder / "agent-state")}
    _write(agent, {**common, **settings, "include": [topic]})
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


def _store(place: str) -> dict[str, Any]:
    """Of variables of AWS's tools, what the files need: keys stay in the environment."""
    if not place.startswith("s3://"):
        return {}
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    own = {"endpoint_url": endpoint, "path_style": True} if endpoint else {}
    return {**own, "region": os.environ.get("AWS_REGION", "us-east-1")}


def _write(path: Path, settings: Mapping[str, Any]) -> None:
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
