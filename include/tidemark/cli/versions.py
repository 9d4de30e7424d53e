"""``tidemark versions``: the version that each part ran when it last wrote to the store."""

from __future__ import annotations

import json

import typer

from tidemark.cli.options import DEFAULT_TOPICS, As, OnlyCluster, Topics, chosen_clusters
from tidemark.inspection.stated_versions import StatedVersion, stated_versions
from tidemark.terminal import Output, columns
from tidemark.topics import load_topics


def versions(topics: Topics = DEFAULT_TOPICS, cluster: OnlyCluster = None, output: As = Output.text) -> None:
    """Show the version of each broker's agent, of the triggerer, and of the job that committed last to each table.

    Parts state it in the objects that they write, at the time shown. A dash means that no object states it.
    """
    deployment = load_topics(topics)
    names = chosen_clusters(topics, deployment, cluster)
    stated = [version for name in names for version in stated_versions(deployment, name)]
    if output is Output.json:
        plain = [{**each._asdict(), "at": each.at.isoformat() if each.at else None} for each in stated]
        typer.echo(json.dumps(plain, ensure_ascii=False))
    else:
        typer.echo(columns([("CLUSTER", "PART", "NAME", "VERSION", "AT (UTC)"), *map(_row, stated)]))


def _row(stated: StatedVersion) -> tuple[str | None, ...]:
    at = f"{stated.at:%Y-%m-%d %H:%M:%S}" if stated.at else None
    return stated.cluster, stated.part, stated.name, stated.version, stated.error or at
