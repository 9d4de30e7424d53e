"""The command line of state tables."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tidemark.errors import ConfigError
from tidemark.formats.table.state_ledger import Leaf
from tidemark.formats.table.statuses import AUDIT_PARTS
from tidemark.planning.state import is_due
from tidemark.table.state_table import StateTable
from tidemark_spark.cli.common import add_some_topics, executor_of, job_parser, run_job, show, tables_of
from tidemark_spark.cluster.executor import Executor
from tidemark_spark.cluster.target import add_options
from tidemark_spark.state.audit import LeafAudit, LeafAuditTask, audit_leaf, audit_state
from tidemark_spark.state.first_round import last_of_files
from tidemark_spark.state.model import LeafTask, MadeLeaves, NewestTask, SortedRuns, StateJob
from tidemark_spark.state.run import Rounds, run_state
from tidemark_spark.state.second_round import merged_leaf, removed_buckets


def main(arguments: Sequence[str] | None = None, executor: Executor | None = None) -> int:
    """Run the job, on Spark unless ``executor`` does it; returns the exit code."""
    options = _parser().parse_args(arguments)
    return run_job("state", options, lambda _lineage: _state(options, executor))


def _state(options: argparse.Namespace, executor: Executor | None) -> int:
    executor = executor_of(options, executor, "state")

    def first(job: StateJob, tasks: Sequence[NewestTask]) -> list[SortedRuns]:
        return executor.on_each(last_of_files, job, tasks) if tasks else []

    def removed(job: StateJob, leaves: Sequence[Leaf]) -> list[frozenset[int]]:
        return executor.on_each(removed_buckets, job, leaves) if leaves else []

    def second(job: StateJob, tasks: Sequence[LeafTask]) -> list[MadeLeaves]:
        return executor.on_each(merged_leaf, job, tasks) if tasks else []

    def compare(job: StateJob, tasks: Sequence[LeafAuditTask]) -> list[LeafAudit]:
        return executor.on_each(audit_leaf, job, tasks) if tasks else []

    code = 0
    tables = [table for table in tables_of(options) if options.topic or table.topic.state]
    if not tables:
        raise ConfigError("state.py", [("--topics", "no topic of the file has `state:`")])
    for table in map(StateTable.open, tables):
        if options.due and not is_due(table.of, table.store.now()):
            continue
        if not options.audit:
            show(run_state(table, Rounds(removed, first, second), rebuild=options.rebuild).to_bytes().decode())
            continue
        part = table.store.now().toordinal() % AUDIT_PARTS if options.part is None else options.part
        audit = audit_state(table, part, first, compare)
        show(audit.to_bytes().decode())
        code = max(code, audit.different > 0)
    return code


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
    modes.add_argument("--due", action="store_true", help="pass over topics whose state.every has not passed yet")
    modes.add_argument("--rebuild", action="store_true", help="make the state again from all rows of the table")
    return parser
