"""The tables that a job's command line names."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from tidemark.errors import ConfigError, FormatError
from tidemark.table.delta_table import Lake, open_lake
from tidemark.topics import load_topics


def lake_of(topics: Path, topic: str, cluster: str | None) -> Lake:
    """The table of a topic. Raises ConfigError: the topics file is wrong, or has no such topic."""
    [lake] = lakes_of(topics, [topic], cluster)
    return lake


def lakes_of(topics: Path, names: Sequence[str] | None, cluster: str | None) -> list[Lake]:
    """The tables of the topics ``names``, or of all. Raises ConfigError as :func:`lake_of` does."""
    deployment = load_topics(topics)
    try:
        chosen = [deployment.topic(name, cluster) for name in names] if names else deployment.topics
        return [open_lake(deployment, one) for one in chosen]
    except FormatError as error:
        raise ConfigError(str(topics), [("topics", str(error))]) from error


def day(text: str) -> date:
    """A date of the command line, such as 2026-11-20."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date such as 2026-11-20") from error
