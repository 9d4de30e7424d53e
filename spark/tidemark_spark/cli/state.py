"""The command line of state tables."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime

from tidemark.errors import ConfigError
from tidemark.formats.table.statuses import AUDIT_PARTS
from tidemark.planning.state import is_due
from tidemark.table.delta_table import TopicTable
from tidemark.table.state_table import StateTable, state_status
from tidemark.topics import load_topics
from tidemark_spark.cli.common import add_since, add_some_topics, executor_of, job_parser, on_each_table, run_job, show
from tidemark_spark.cluster.target import add_options
from tidemark_spark.model import Executor
from tidemark_spark.state.audit import audit_state
from tidemark_spark.state.run import run_state


def main(arguments: Sequence[str] | None = None, executor: Executor | None = None) -> int:
    """Run the job, on Spark unless ``executor`` does it; returns the exit code."""
    options = _parser().parse_args(arguments)
    return run_job("state", options, lambda _lineage: _state(options, executor))


def _state(options: argparse.Namespace, executor: Executor | None) -> int:
    executor = executor_of(options, executor, "state")

    def brought(of: TopicTable) -> int:
        if options.due and not is_due(of, of.store.now()):
            return 0
        show(run_state(StateTable.open(of), executor, rebuild=options.rebuild).to_bytes().decode())
        return 0

    def audited(of: TopicTable) -> int:
        part = of.store.now().toordinal() % AUDIT_PARTS if options.part is None else options.part
        if options.since is not None and _passed_since(of, part, options.since):
            return 0
        audit = audit_state(StateTable.open(of), part, executor)
        show(audit.to_bytes().decode())
        return int(audit.different > 0)

    _check(options)
    work = audited if options.audit else brought
    return on_each_table(options, work, lambda topic: bool(options.topic) or topic.state is not None)


def _check(options: argparse.Namespace) -> None:
    if not options.topic and not any(topic.state for topic in load_topics(options.topics).topics):
        raise ConfigError("state.py", [("--topics", "no topic of the file has `state:`")])
    if options.since is not None and not options.audit:
        raise ConfigError("state.py", [("--since", "is an option of --audit")])


def _passed_since(table: TopicTable, part: int, since: datetime) -> bool:
    status = state_status(table)
    last = status.audits.get(part) if status is not None else None
    return last is not None and last.at >= since and not last.different


def _parser() -> argparse.ArgumentParser:
    parser = job_parser(
        "state.py",
        "Bring the state tables of topics, one row for each key, to the newest commits of their tables.",
        "--topic customers",
    )
    add_some_topics(parser)
    add_options(parser)
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument(
        "--audit", action="store_true", help=f"compare 1/{AUDIT_PARTS} of the keys with the table, and change nothing"
    )
    parser.add_argument("--part", type=int, choices=range(AUDIT_PARTS), help="the part to audit (default: by the date)")
    add_since(parser, "the part")
    modes.add_argument("--due", action="store_true", help="pass over topics whose state.every has not passed yet")
    modes.add_argument("--rebuild", action="store_true", help="make the state again from all rows of the table")
    return parser
