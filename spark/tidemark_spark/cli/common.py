"""What the command lines of all jobs share: which tables they are about, what they print, and how they end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path

from tidemark.errors import ConfigError, TidemarkError
from tidemark.table.delta_table import TopicTable, open_topic_table
from tidemark.topics import load_topics


def job_parser(program: str, description: str, example: str) -> argparse.ArgumentParser:
    """A parser with what every job takes. ``example`` is what follows the topics file on a command line."""
    parser = argparse.ArgumentParser(
        prog=program,
        description=description,
        epilog=f"Example: spark-submit spark/jobs/{program} --topics include/topics.yaml {example}",
    )
    parser.add_argument("--topics", type=Path, required=True, metavar="FILE", help="the topics file")
    parser.add_argument("--cluster", help="needed where two clusters have the topic's name")
    return parser


def add_topic(parser: argparse.ArgumentParser) -> None:
    """``--topic``, of a job for one topic."""
    parser.add_argument("--topic", required=True, metavar="NAME")


def add_some_topics(parser: argparse.ArgumentParser) -> None:
    """``--topic``, of a job for some topics or all."""
    parser.add_argument("--topic", action="append", metavar="NAME", help="repeatable (default: all of the file)")


def tables_of(options: argparse.Namespace) -> list[TopicTable]:
    """The tables of the topics that the command line names, or of all.

    Raises:
        ConfigError: the topics file is wrong, or has no such topic.
    """
    deployment = load_topics(options.topics)
    names = [options.topic] if isinstance(options.topic, str) else options.topic
    chosen = [deployment.topic(name, options.cluster) for name in names] if names else deployment.topics
    return [open_topic_table(deployment, topic) for topic in chosen]


def exit_code(job: Callable[[], int], failed: int = 1) -> int:
    """What ``job`` returns. After an error, which goes to standard error: 2 if it is one of configuration.

    ``failed`` is the exit code after any other error.
    """
    try:
        return job()
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except TidemarkError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return failed


def show(text: str) -> None:
    """Print ``text``, at once: a job's output is often read through a pipe."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def day(text: str) -> date:
    """A date of the command line, such as 2026-11-20."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date such as 2026-11-20") from error
