"""Shared parts of the jobs' command lines: their tables, their output, and their exit codes."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Final

from tidemark.errors import ConfigError, SparkUnavailable, TidemarkError
from tidemark.formats.keys import check_report
from tidemark.inspection.agent_sightings import check_begun
from tidemark.table.delta_table import TopicTable, committed_ledger, open_topic_table
from tidemark.topics import Deployment, TopicSettings, load_topics
from tidemark_spark.cluster.target import ClusterTarget
from tidemark_spark.model import Executor
from tidemark_spark.openlineage.recorder import EVENTS, OFF, Recorder

_MAX_ATTEMPT: Final = (1 << 63) - 1


def job_parser(program: str, description: str, example: str) -> argparse.ArgumentParser:
    """A parser with the options of all jobs. ``example`` follows the topics file in the example's command line."""
    parser = argparse.ArgumentParser(
        prog=program,
        description=description,
        epilog=f"Example: spark-submit spark/jobs/{program} --topics include/topics.yaml {example}",
    )
    parser.add_argument("--topics", type=Path, required=True, metavar="FILE", help="the topics file")
    parser.add_argument("--cluster", help="needed where two clusters have the topic's name")
    parser.add_argument(
        "--lineage",
        type=_lineage,
        default=EVENTS,
        metavar="WHERE",
        help="events (default): send OpenLineage events if OPENLINEAGE_URL or another variable of its client says "
        "where; off: send none; or the place where the task that started the job takes what it sends",
    )
    return parser


def add_topic(parser: argparse.ArgumentParser) -> None:
    """Add ``--topic`` for a job with one topic."""
    parser.add_argument("--topic", required=True, metavar="NAME")


def add_some_topics(parser: argparse.ArgumentParser) -> None:
    """Add ``--topic`` for a job with some topics or all."""
    parser.add_argument("--topic", action="append", metavar="NAME", help="repeatable (default: all of the file)")


def add_topics(parser: argparse.ArgumentParser) -> None:
    """Add ``--topic`` for a job with one topic or several."""
    parser.add_argument("--topic", action="append", required=True, metavar="NAME", help="repeatable")


def add_since(parser: argparse.ArgumentParser, subject: str) -> None:
    """Add ``--since`` for an audit of some topics, of which some may be done; ``subject`` is what is audited."""
    parser.add_argument(
        "--since",
        type=_moment,
        metavar="TIME",
        help=f"pass over topics of which {subject} passed an audit at this time or later, such as "
        "2026-11-21T03:00:00+00:00: a retry goes on where the last try ended",
    )


def add_attempt(parser: argparse.ArgumentParser) -> None:
    """Add ``--attempt`` for a job that makes its plan itself."""
    parser.add_argument(
        "--attempt", type=_attempt, metavar="N", help="execute this attempt's plan; make it if it does not exist"
    )


def tables_of(options: argparse.Namespace) -> list[TopicTable]:
    """The tables of the command line's topics, or of all topics.

    Raises:
        ConfigError: the topics file is wrong, or has no such topic.
    """
    deployment = load_topics(options.topics)
    return [open_topic_table(deployment, topic) for topic in _topics(deployment, options)]


def _topics(deployment: Deployment, options: argparse.Namespace) -> list[TopicSettings]:
    names = [options.topic] if isinstance(options.topic, str) else options.topic
    return [deployment.topic(name, options.cluster) for name in names] if names else list(deployment.topics)


def on_each_table(
    options: argparse.Namespace,
    work: Callable[[TopicTable], int],
    wanted: Callable[[TopicSettings], bool] = lambda _: True,
) -> int:
    """Do ``work`` for the table of each ``wanted`` topic of the command line; returns the largest exit code, or 0.

    The tables are opened one after the other. An error is printed, counts as exit code 1, and does not keep others from
    their work. Standard error has a line with each topic before its work, and a last line with those that failed. The
    error of an only topic is raised.

    Raises:
        ConfigError: the topics file is wrong, or has no such topic.
        SparkUnavailable: there is no Spark for the other topics either.
        TidemarkError: the only topic failed.
    """
    deployment = load_topics(options.topics)
    topics = [topic for topic in _topics(deployment, options) if wanted(topic)]
    if len(topics) == 1:
        return work(open_topic_table(deployment, topics[0]))
    worst, failed = 0, list[str]()
    for topic in topics:
        name = f"{topic.cluster}/{topic.topic}"
        sys.stderr.write(f"topic {name}\n")
        try:
            code = work(open_topic_table(deployment, topic))
        except SparkUnavailable:
            raise
        except TidemarkError as error:
            sys.stderr.write(f"{name}: {type(error).__name__}: {error}\n")
            code = 1
        except Exception:  # noqa: BLE001 - whatever it is, it is of this topic
            sys.stderr.write(f"{name}:\n{traceback.format_exc()}")
            code = 1
        if code:
            failed.append(name)
        worst = max(worst, code)
    if failed:
        sys.stderr.write(f"failed for {len(failed)} of {len(topics)} topics: {', '.join(failed)}\n")
    return worst


def begun_table(options: argparse.Namespace) -> TopicTable:
    """The table of the command line's topic.

    Raises:
        ConfigError: the topics file is wrong, or has no such topic.
        NeverSeen: there is no table, and no agent was ever seen that could upload data.
    """
    [table] = tables_of(options)
    return begun(table)


def begun(table: TopicTable) -> TopicTable:
    """``table``. Raises NeverSeen if there is none, and no agent was ever seen that could upload data."""
    check_begun(table, committed_ledger(table).n)
    return table


def check_cluster(deployment: Deployment, options: argparse.Namespace, program: str) -> None:
    """Check ``--cluster`` of a job for a cluster. Raises ConfigError."""
    if options.cluster not in deployment.clusters:
        rule = f"must be a cluster of the topics file, which has: {', '.join(deployment.clusters)}"
        raise ConfigError(program, [("--cluster", rule)])


def executor_of(options: argparse.Namespace, given: Executor | None, name: str) -> Executor:
    """``given``, or Spark on the command line's target; ``name`` is shown on its pages. Raises ConfigError."""
    from tidemark_spark.cluster import session  # which only jobs with tasks need

    return given or session.spark(f"tidemark {name}", ClusterTarget.of(options))


def exit_code(job: Callable[[], int], failed: int = 1) -> int:
    """The result of ``job``, or after an error, which is printed to standard error, 2 or ``failed``.

    2 stands for a configuration error.
    """
    try:
        return job()
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except TidemarkError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return failed


def run_job(name: str, options: argparse.Namespace, job: Callable[[Recorder], int], failed: int = 1) -> int:
    """The :func:`exit_code` of ``job``, after its lineage is sent or handed over.

    ``name`` is the name of the job's program, without ``.py``.
    """
    recorder = Recorder(name, options)
    recorder.begin()
    error: BaseException | None = None

    def watched() -> int:
        nonlocal error
        try:
            return job(recorder)
        except BaseException as raised:
            error = raised
            raise

    code = failed
    try:
        code = exit_code(watched, failed)
    finally:
        recorder.end(error or (RuntimeError(f"{name}.py ended with exit code {code}") if code else None))
    return code


def show(text: str) -> None:
    """Print ``text`` at once: a job's output is often read through a pipe."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def report_name(text: str) -> str:
    """The name of a report on the command line."""
    try:
        return check_report(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _lineage(text: str) -> str:
    if text in {EVENTS, OFF}:
        return text
    try:
        return check_report(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} must be {EVENTS}, {OFF}, or a place: 16 of 0-9 a-f") from error


def _attempt(text: str) -> int:
    if not text.isdecimal() or int(text) > _MAX_ATTEMPT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to {_MAX_ATTEMPT}")
    return int(text)


def _moment(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 2026-11-21T03:00:00+00:00") from error
    if at.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} has no time zone: add it, such as +00:00")
    return at


def day(text: str) -> date:
    """A date on the command line, such as 2026-11-20."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date such as 2026-11-20") from error
