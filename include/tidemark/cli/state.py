"""``tidemark state``: state tables, for analysts."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.cli.options import DEFAULT_TOPICS, Cluster, Topics
from tidemark.table.delta_table import open_topic_table
from tidemark.table.state_table import StateTable
from tidemark.table.state_view import Engine, state_view
from tidemark.topics import load_topics

state_app = typer.Typer(no_args_is_help=True, help="State tables: one row for each key.")


@state_app.callback()
def _group() -> None:
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
