"""``tidemark config check``: whether the topics file is right, and what it names is there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemark.cli.options import DEFAULT_TOPICS, As, ClientConfig, Topics, client_settings
from tidemark.cli.read_models import agent_problems, summary_of
from tidemark.endpoints import resolver_of
from tidemark.errors import FormatError, StoreError
from tidemark.inspection.reachability import reachability
from tidemark.store.probe import CLOCK, TRIED, Tried, try_clock
from tidemark.terminal import Output
from tidemark.topics import Deployment, load_topics
from tidemark.words import plural

config_app = typer.Typer(no_args_is_help=True, help="The topics file.")


@config_app.callback()
def _group() -> None:
    """Keep ``check`` a command of its own."""


@config_app.command(epilog="Example: tidemark config check --agents --topics include/topics.yaml")
def check(
    topics: Topics = DEFAULT_TOPICS,
    agents: Annotated[
        bool,
        typer.Option(
            "--agents",
            help="Ask whether agents were seen for each topic, and whether each freshness can be held.",
        ),
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Check the file alone: ask no store, broker or registry.")
    ] = False,
    client_config: ClientConfig = None,
    output: As = Output.text,
) -> None:
    """Check the topics file, and whether its buckets, brokers and registries answer these credentials.

    Exits with 2 and names each problem if the file is wrong. Exits with 1 if a bucket cannot be listed or read, or if
    brokers or a registry do not answer; with --agents also if no agent was ever seen for some topic, or if a topic's
    freshness cannot be held as agents and Airflow are set up. Writing is tried without leaving anything behind; that
    these credentials may not is only said. So is a wrong clock of this host.
    """
    if agents and offline:
        raise typer.BadParameter("asks the store; leave out one of the two", param_hint="--agents with --offline")
    deployment = load_topics(topics)
    found = summary_of(deployment)
    checks = [] if offline else [*_asked(deployment, client_config), *_of_agents(deployment, asked=agents)]
    if output is Output.json:
        typer.echo(json.dumps({"topics": found, "checks": [one._asdict() for one in checks]}, ensure_ascii=False))
    else:
        typer.echo(f"{topics}: {plural(len(found), 'topic')}")
        for topic in found:
            typer.echo(f"{topic['topic']} → {topic['table']}")
        for one in checks:
            typer.echo(one.line)
        if offline:
            typer.echo("nothing was asked (--offline): buckets, brokers and registries may be wrong")
    failed = [one for one in checks if one.failed]
    for one in failed:
        typer.echo(one.complaint, err=True)
    if any(not one.what.startswith("put ") and one.what != CLOCK for one in failed):
        raise typer.Exit(1)


def _asked(deployment: Deployment, client_config: Path | None) -> Iterator[Tried]:
    def client_of(bootstrap: str) -> Mapping[str, Any]:
        return client_settings(bootstrap, client_config)

    raw, found = resolver_of(deployment.raw).default().store, list[Tried]()
    for one in reachability(deployment, client_of):
        found.append(one)
        yield one
    if Tried(f"list {raw}", "yes", TRIED) in found:
        yield try_clock(raw, deployment.store)


def _of_agents(deployment: Deployment, *, asked: bool) -> Iterator[Tried]:
    what = "agents"
    if not asked:
        yield Tried(what, "not tried", "--agents asks what they have said")
        return
    try:
        problems = agent_problems(deployment)
    except (StoreError, FormatError) as error:
        yield Tried(what, "unknown", f"what they have said cannot be read: {error}")
        return
    yield from (Tried(what, "no", one) for one in problems)
    if not problems:
        live = sum(one.freshness is not None for one in deployment.topics)
        said = f"they have seen each of the {len(deployment.topics)} topics"
        yield Tried(what, "yes", f"{said}; what their files say of freshness holds {live} promises")
