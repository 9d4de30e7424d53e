"""``tidemark-agent take-name``: hand a cluster's name in the store over to the cluster that replaces its owner."""

from __future__ import annotations

from typing import Annotated

import typer

from uploader_agent.cli.common import DEFAULT_CONFIG, ConfigOption, broker_of, cluster_name, opened
from uploader_agent.observability.log_config import configure
from uploader_agent.settings import load_settings


def take_name(
    former: Annotated[
        str, typer.Argument(help="The id of the cluster that owns the name, as the agent's refusal has it.")
    ],
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Have this broker's cluster own its name in the store from now on, in place of the cluster FORMER.

    For a cluster that was made again under its old name. Stop the agents of FORMER for good, wait three minutes, and
    run this on any broker of the new cluster. What is stored stays: topics that were made again are new incarnations.
    """
    settings = load_settings(config)
    configure(settings)
    broker = broker_of(settings)
    with opened(settings) as (open_any, _), cluster_name(settings, broker, open_any) as owned:
        owner = owned.hand_over(former)
    typer.echo(f"the cluster {owner.cluster_id} owns the name; before: {', '.join(owner.former) or 'none'}")
