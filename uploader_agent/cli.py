"""The command ``tidemark-agent``.

Exit codes: 0 done; 1 something failed, and a message says what; 2 the configuration or the command line is wrong.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import structlog
import typer

from tidemark.endpoints import resolver_of
from tidemark.errors import ConfigError, TidemarkError
from tidemark.store import open_store
from uploader_agent import __version__, reports
from uploader_agent.broker import Broker, parse_properties, read_broker
from uploader_agent.events import InotifyDoorbell
from uploader_agent.health import HttpServer
from uploader_agent.hold import check_links, guarantee
from uploader_agent.lock import lock_directories
from uploader_agent.logs import configure
from uploader_agent.loop import Agent
from uploader_agent.metadata import AdminMetadata, connect
from uploader_agent.metrics import Metrics
from uploader_agent.notify import Notifier
from uploader_agent.reload import Reload
from uploader_agent.settings import AgentSettings, load_settings
from uploader_agent.throttle import StoreTraffic

logger = structlog.get_logger(__name__)

app = typer.Typer(
    help="Take finalized Kafka log segments from this broker's disks to object storage.",
    epilog="Example: tidemark-agent run --config /etc/tidemark/agent.yaml",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(help="About the agent's file.", no_args_is_help=True)
app.add_typer(config_app, name="config")


class Output(StrEnum):
    """How a command answers."""

    TEXT = "text"
    JSON = "json"


ConfigOption = Annotated[
    Path,
    typer.Option("--config", "-c", help="The agent's YAML file.", envvar="TIDEMARK_AGENT_CONFIG", show_default=True),
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="text for people, json for programs.")]
DEFAULT_CONFIG = Path("/etc/tidemark/agent.yaml")


@app.command(
    epilog="Example: tidemark-agent run -c agent.yaml  (SIGTERM ends it properly, SIGHUP reads the file again)"
)
def run(config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Upload segments as they are rotated, until SIGTERM or SIGINT."""
    settings, notifier = load_settings(config), Notifier()
    with _agent(settings, notifier) as agent, ExitStack() as stack:
        if settings.http.port is not None:
            server = HttpServer(settings.http.host, settings.http.port, agent.health, agent.metrics.registry)
            stack.enter_context(server)
            logger.info("http_listening", host=settings.http.host, port=server.port)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: agent.stop())
        reload = Reload(config, agent, notifier)
        signal.signal(signal.SIGHUP, lambda *_: agent.soon(reload))
        logger.info("agent_started", version=__version__)
        agent.run()
        logger.info("agent_stopped")


@app.command("upload-once", epilog="Example: tidemark-agent upload-once -c agent.yaml --output json")
def upload_once(config: ConfigOption = DEFAULT_CONFIG, output: OutputOption = Output.TEXT) -> None:
    """Upload all that may go now, and exit: 1 if a partition failed."""
    settings = load_settings(config)
    with _agent(settings) as agent:
        agent.upload_once()
        lines = reports.of(agent.leadership.partitions.values())
    _print(lines, output, seen=agent.leadership.seen)
    if not agent.leadership.seen or any(line.error for line in lines):
        raise typer.Exit(1)


@app.command(epilog="Example: tidemark-agent status -c agent.yaml --output json")
def status(config: ConfigOption = DEFAULT_CONFIG, output: OutputOption = Output.TEXT) -> None:
    """Compare disk, broker and store without uploading anything; may run beside the agent."""
    settings = load_settings(config)
    configure(settings)
    with _build(settings, _broker(settings), read_only=True) as agent:
        agent.survey()
        lines = reports.of(agent.leadership.partitions.values())
    _print(lines, output, seen=agent.leadership.seen)
    if not agent.leadership.seen or any(line.error for line in lines):
        raise typer.Exit(1)


@config_app.command(epilog="Example: tidemark-agent config check -c agent.yaml")
def check(config: ConfigOption = DEFAULT_CONFIG, output: OutputOption = Output.TEXT) -> None:
    """Read the file and the broker's own files, try what holding needs, and show what follows. Contacts nobody."""
    settings = load_settings(config)
    broker = _broker(settings)
    check_links(settings.hold.links, broker.log_dirs)
    holding = guarantee.check(broker.log_dirs, settings.hold)
    properties = parse_properties(settings.broker.properties.read_text(encoding="utf-8"))
    delay = guarantee.delete_delay(holding, properties, settings.scan_interval)
    endpoint = resolver_of(settings.raw).default()
    found = {
        "broker": broker.node_id,
        "cluster": settings.cluster or broker.cluster_id,
        "mode": broker.mode,
        "bootstrap": broker.bootstrap,
        "security_protocol": broker.security_protocol,
        "log_dirs": [str(folder) for folder in broker.log_dirs],
        "store": endpoint.store,
        "prefix": endpoint.prefix,
    }
    if output is Output.JSON:
        said = {"holding": [one._asdict() for one in holding], "file_delete_delay_ms": delay._asdict()}
        typer.echo(json.dumps(found | said))
        return
    typer.echo("\n".join([*(f"{key}: {value}" for key, value in found.items()), *guarantee.lines(holding, delay)]))


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def _broker(settings: AgentSettings) -> Broker:
    return read_broker(settings.broker.properties, settings.broker.bootstrap)


@contextmanager
def _build(
    settings: AgentSettings, broker: Broker, *, notifier: Notifier | None = None, read_only: bool = False
) -> Iterator[Agent]:
    """The agent with its real surroundings."""
    connections = max(settings.store.connections, settings.upload.concurrency + 2)
    options = settings.store.model_copy(update={"connections": connections})
    client = settings.broker.client
    with (
        closing(StoreTraffic(Metrics(), settings.upload.bandwidth)) as traffic,
        closing(
            AdminMetadata(broker.node_id, lambda: connect(broker.bootstrap, broker.security_protocol, client))
        ) as metadata,
        closing(InotifyDoorbell()) as doorbell,
    ):
        opener = partial(open_store, options=options, traffic=traffic)
        yield Agent(
            settings, broker, metadata, opener, doorbell, notifier=notifier, traffic=traffic, read_only=read_only
        )


@contextmanager
def _agent(settings: AgentSettings, notifier: Notifier | None = None) -> Iterator[Agent]:
    """The agent that uploads, with its directories locked."""
    configure(settings)
    broker = _broker(settings)
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    links = [folder for folder in settings.hold.links if folder.is_dir()]
    with (
        lock_directories([*broker.log_dirs, settings.state_dir, *links]),
        _build(settings, broker, notifier=notifier) as agent,
    ):
        yield agent


def _print(lines: list[reports.Line], output: Output, *, seen: bool) -> None:
    if output is Output.JSON:
        typer.echo(json.dumps({"broker_reached": seen, "partitions": [line._asdict() for line in lines]}))
    else:
        typer.echo(reports.table(lines))


def main() -> None:
    """Entry point: errors that are ours become one message and an exit code."""
    try:
        app()
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    except (TidemarkError, OSError) as error:
        sys.stderr.write(f"tidemark-agent: {error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
