"""``tidemark-agent config check``: checks the agent's file, and the broker and stores that it names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated, Any

import typer

from tidemark.endpoints import resolver_of
from tidemark.errors import TidemarkError
from tidemark.formats.keys import ControlKeys
from tidemark.store.probe import CLOCK, TRIED, Tried, try_clock, try_store
from uploader_agent.broker.admin import BrokerUnavailable
from uploader_agent.broker.properties import Broker
from uploader_agent.cli.common import (
    DEFAULT_CONFIG,
    ConfigOption,
    OutputOption,
    broker_of,
    cluster_name,
    holding,
    metadata_of,
    opened,
)
from uploader_agent.hold import check_links, preflight
from uploader_agent.settings import AgentSettings, load_settings

config_app = typer.Typer(help="About the agent's file.", no_args_is_help=True)


@config_app.callback()
def _group() -> None:
    """Keep ``check`` a command of its own."""


@config_app.command(epilog="Example: tidemark-agent config check -c agent.yaml")
def check(
    config: ConfigOption = DEFAULT_CONFIG,
    offline: Annotated[
        bool, typer.Option("--offline", help="Check the files alone: ask neither store nor broker.")
    ] = False,
    output: OutputOption = "text",
) -> None:
    """Read the file and the broker's own files, try to hold files, ask store and broker, and show the results.

    Exits with 1 if the store does not let the agent list, read and write, or if the broker does not answer. Nothing is
    written: the store is asked to replace a version that does not exist. A wrong clock of this host is only reported.
    """
    settings = load_settings(config)
    broker = broker_of(settings)
    check_links(settings.hold.links, broker.log_dirs)
    endpoint = resolver_of(settings.raw).default()
    facts = {
        "broker": broker.node_id,
        "cluster": settings.cluster or broker.cluster_id,
        "mode": broker.mode,
        "bootstrap": broker.bootstrap,
        "security_protocol": broker.security_protocol,
        "log_dirs": [str(folder) for folder in broker.log_dirs],
        "store": endpoint.store,
        "prefix": endpoint.prefix,
    }
    held: dict[str, Any] = {}
    lines: list[str] = []
    if settings.broker is not None:
        guarantees, delay = holding(settings, settings.broker, broker)
        held = {"holding": [guarantee._asdict() for guarantee in guarantees], "file_delete_delay_ms": delay._asdict()}
        lines = [*preflight.lines(guarantees, delay)]
    checks = [] if offline else [*_asked(settings, broker)]
    if output == "json":
        typer.echo(json.dumps(facts | held | {"checks": [tried._asdict() for tried in checks]}))
    else:
        typer.echo("\n".join([*(f"{key}: {value}" for key, value in facts.items()), *lines]))
        for tried in checks:
            typer.echo(tried.line)
        if offline:
            typer.echo("nothing was asked (--offline): store and broker may not answer")
    failed = [tried for tried in checks if tried.failed]
    for tried in failed:
        typer.echo(tried.complaint, err=True)
    if any(tried.what != CLOCK for tried in failed):
        raise typer.Exit(1)


def _try_name(settings: AgentSettings, broker: Broker) -> Tried:
    """Compare the cluster with the one that owns its name in the store."""
    subject = f"write as the cluster {settings.cluster or broker.cluster_id}"
    try:
        with opened(settings) as (open_any, _), cluster_name(settings, broker, open_any) as owned:
            refusal = owned.refusal()
    except (TidemarkError, OSError) as error:
        return Tried(subject, "unknown", str(error))
    return Tried(subject, "no", str(refusal)) if refusal else Tried(subject, "yes", "no other cluster owns the name")


def _asked(settings: AgentSettings, broker: Broker) -> Iterator[Tried]:
    """Try the broker and each store. Writes are tried in the folder of the packs, which only this agent uses."""
    cluster, resolver = settings.cluster or broker.cluster_id, resolver_of(settings.raw)
    default = resolver.default()
    others = (resolver.resolve(cluster, topic, 0) for topic in settings.raw.topics)
    for url, prefix in {endpoint.store: endpoint.prefix for endpoint in (*others, default)}.items():
        folder = ControlKeys(prefix, cluster).packs(broker.node_id).rstrip("/")
        results = [*try_store(url, settings.store, folder, writes=True)]
        yield from results
        if url == default.store and Tried(f"list {url}", "yes", TRIED) in results:
            yield try_clock(url, settings.store)
            yield _try_name(settings, broker)
    subject = f"broker at {broker.bootstrap}"
    try:
        with closing(metadata_of(settings, broker)) as metadata:
            yield Tried(subject, "yes", f"its cluster has {', '.join(map(str, metadata.brokers()))}")
    except BrokerUnavailable as error:
        yield Tried(subject, "unknown", str(error))
