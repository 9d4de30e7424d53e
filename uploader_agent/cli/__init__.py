"""The command ``tidemark-agent``.

Exit codes: 0 done; 1 something failed, as a message states; 2 the configuration or the command line is wrong.
"""

from __future__ import annotations

import json
import signal
import sys
from contextlib import ExitStack
from functools import partial
from typing import Annotated

import structlog
import typer

from tidemark.errors import ConfigError, TidemarkError
from tidemark.terminal import Output
from uploader_agent import __version__
from uploader_agent.agent import Agent
from uploader_agent.cli import inspect_commands
from uploader_agent.cli.common import DEFAULT_CONFIG, ConfigOption, OneShot, OutputOption, locked, surveyed
from uploader_agent.cli.config_check import config_app
from uploader_agent.cli.inspect_commands import leaders, plan, verify_command
from uploader_agent.cli.repair_commands import adopt, branch, reupload, take_name
from uploader_agent.cli.start import await_log_dir, reload
from uploader_agent.components import Components
from uploader_agent.heap import configure_heap
from uploader_agent.observability.health import Notifier, http_server
from uploader_agent.settings import load_settings
from uploader_agent.tuning import STANDARD, AgentTuning

logger = structlog.get_logger(__name__)

app = typer.Typer(
    help="Take finalized Kafka log segments from this broker's disks to object storage.",
    epilog="Example: tidemark-agent run --config /etc/tidemark/agent.yaml",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(config_app, name="config")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Options that come before the name of a command."""


@app.command(
    epilog="Example: tidemark-agent run -c agent.yaml  (SIGTERM ends it properly, SIGHUP reads the file again)"
)
def run(context: typer.Context, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Upload segments as they are rotated, until SIGTERM or SIGINT."""
    configure_heap()
    settings, notifier, tuning = load_settings(config), Notifier(), context.obj or STANDARD
    await_log_dir(settings, notifier, tuning)
    with locked(settings, notifier, tuning) as components, ExitStack() as stack:
        agent, metrics = Agent(components), components.metrics
        host, port = settings.http.host, settings.http.port
        if port is not None:
            server = stack.enter_context(http_server(host, port, components.health, metrics.registry, agent.waiting))
            logger.info("http_listening", host=host, port=server.port)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: agent.stop())
        reloading = partial(reload, config, agent, metrics, notifier)
        signal.signal(signal.SIGHUP, lambda *_: agent.soon(reloading))
        logger.info("agent_started", version=__version__)
        agent.run()
        logger.info("agent_stopped")
        if components.log_dirs.replaced is not None:
            raise TidemarkError(f"{components.log_dirs.replaced}; start the agent again, to work for that one")


@app.command("upload-once", epilog="Example: tidemark-agent upload-once -c agent.yaml --tails")
def upload_once(
    context: typer.Context,
    config: ConfigOption = DEFAULT_CONFIG,
    tails: Annotated[
        bool, typer.Option("--tails", help="Also seal tails that are not quiet, before the last replica goes.")
    ] = False,
    output: OutputOption = "text",
) -> None:
    """Upload rotated segments and the tails that were quiet for tail_after, and exit: with 1 if a partition failed."""
    settings = load_settings(config)
    with locked(settings, tuning=context.obj or STANDARD) as components:
        OneShot(components).upload(tails=tails)
    _report(components, output)
    if not components.index.has_written:
        failing = components.index.failing()
        why = failing.error if failing else "see the log"
        raise TidemarkError(f"the watermark index was not written, so readers do not learn of the upload: {why}")


@app.command(epilog="Example: tidemark-agent status -c agent.yaml --output json")
def status(config: ConfigOption = DEFAULT_CONFIG, output: OutputOption = "text") -> None:
    """Compare disk, broker and store without uploading anything; may run beside the agent.

    Names the offsets that are not stored, with the reason. A running agent reports its waits at /waiting.
    """
    with surveyed(load_settings(config)) as components:
        _report(components, output)


app.command(epilog="Example: tidemark-agent plan -c agent.yaml --topic orders")(plan)
app.command(epilog="Example: tidemark-agent leaders -c agent.yaml --output json")(leaders)
app.command("verify", epilog="Example: tidemark-agent verify -c agent.yaml --topic orders --deep")(verify_command)
app.command(epilog="Example: tidemark-agent adopt orders --dry-run")(adopt)
app.command(epilog='Example: tidemark-agent branch orders 7 --execute --by ada --reason "restored after the fire"')(
    branch
)
app.command(epilog="Example: tidemark-agent reupload orders 7 --from 81000 --to 82000 --dry-run")(reupload)
app.command("take-name", epilog="Example: tidemark-agent take-name MkU3OEVBNTcwNTJENDM2Qk -c agent.yaml")(take_name)


def _report(components: Components, output: Output) -> None:
    """Print the state of each partition, and its waits. Exit with 1 if the state is unknown, or a partition failed."""
    leadership, waits = components.leadership, components.waits()
    broker_reached, lines = leadership.has_answer, inspect_commands.status_rows(leadership.partitions.values())
    unread = {str(path): reason for path, reason in leadership.unreadable.items()}
    if output == "json":
        answer = {
            "broker_reached": broker_reached,
            "log_dirs": [{"path": path, "reason": reason} for path, reason in unread.items()],
            "partitions": [line.to_json() for line in lines],
            "waiting": [wait.to_json() for wait in waits],
        }
        typer.echo(json.dumps(answer))
    else:
        failing = [f"{path} cannot be read: {reason}" for path, reason in unread.items()]
        typer.echo("\n".join([inspect_commands.status_table(lines), *failing, *map(str, waits)]))
    faults = [line.error for line in lines] + [partition.fault for partition in leadership.partitions.values()]
    if not broker_reached or unread or leadership.absent or any(faults):
        raise typer.Exit(1)


def main(tuning: AgentTuning = STANDARD) -> None:
    """Entry point: an expected error becomes a message and an exit code. Tests pass another ``tuning``."""
    try:
        app(obj=tuning)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    except (TidemarkError, OSError) as error:
        sys.stderr.write(f"tidemark-agent: {error}\n")
        sys.exit(1)
