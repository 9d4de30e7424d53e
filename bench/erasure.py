"""Erasure: the search for records in the table and in raw, and the run that takes them out of the table.

All of it runs in this process, without Spark, on local directories: the figures are of a core.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Final

from bench.convert import new_table
from bench.data import HOME, Data, Topic
from bench.measure import MB, Row, Usage, metered
from tests.tidemark.erasure.asked import SECRET, approve, asked
from tidemark.erasure.reports import ErasureReport
from tidemark.formats.raw.erasure import PartitionEnd, SearchedTopic
from tidemark.formats.table.plan import ConversionTask
from tidemark.planning import plan_ingest, write_plan
from tidemark.store import StoreOptions, open_store
from tidemark.table.delta_table import TopicTable, committed_ledger
from tidemark_spark.erasing.rewriting import SealOutcome, SealTask
from tidemark_spark.erasing.search import SearchJob, SearchResult, SearchTask, search
from tidemark_spark.erasure_pass import Pass, erase
from tidemark_spark.model import Job, Outcome
from tidemark_spark.run.driver import run
from tidemark_spark.worker import convert

TOPIC: Final = Topic("zstd", 250)
SOUGHT: Final = 1_000
"""Values of the request; each is the key of one record."""


def measure(made: Data) -> list[Row]:
    """The figures, each of one run: a dry run's search in the table, one in raw, and the pass."""
    rows: list[Row] = []
    raw = f"file://{made.raw(TOPIC)}"
    shutil.rmtree(made.raw(TOPIC) / "_erased", ignore_errors=True)
    shutil.rmtree(made.raw(TOPIC) / "_erasure", ignore_errors=True)
    for where, keep in (("the table", None), ("raw", ["timestamp", "value"])):
        table = new_table(TOPIC, raw, f"file://{HOME}/local", keep=keep)
        _land(table)
        _ask(table, made)
        report, usage = _pass(table, dry_run=True)
        count = sum(report.searched.values())
        note = f"{count:,} rows, {SOUGHT:,} values, {sum(report.requests[0].records.values())} found"
        rows.append(Row("erasure", f"search in {where}", "million rows/CPU-s", (count / 1e6 / usage.cpu,), note))
        rows.append(
            Row(
                "erasure",
                f"search in {where}: peak memory",
                "MB",
                (usage.peak / MB,),
                "this process, with its libraries",
            )
        )
        if keep is None:
            live = committed_ledger(table).rows
            report, usage = _pass(table, dry_run=False)
            size = made[TOPIC].value_bytes * live / made[TOPIC].records
            note = f"{report.rows} of {live:,} rows; search included"
            rows.append(Row("erasure", "pass over the table", "MB of values/CPU-s", (size / MB / usage.cpu,), note))
            shutil.rmtree(made.raw(TOPIC) / "_erased")
    shutil.rmtree(made.raw(TOPIC) / "_erasure")
    return rows


def _land(table: TopicTable) -> None:
    while True:
        plan = plan_ingest(table)
        if plan.empty:
            return
        write_plan(table, plan)
        run(table, plan, _converted, first=True)


def _converted(job: Job, tasks: Sequence[ConversionTask]) -> list[Outcome]:
    return [convert(job, task) for task in tasks]


def _searched(common: SearchJob, tasks: Sequence[SearchTask]) -> list[SearchResult]:
    return [search(common, task) for task in tasks]


def _left(_options: StoreOptions, _tasks: Sequence[SealTask]) -> list[SealOutcome]:
    """Nothing is rewritten: the next pass searches the same bytes."""
    return []


def _ask(table: TopicTable, made: Data) -> None:
    step = made[TOPIC].records // SOUGHT
    values = [b"k%012d" % (number * step) for number in range(SOUGHT)]
    ends = tuple(PartitionEnd(*state.key, state.next_offset) for state in committed_ledger(table).partitions)
    name = TOPIC.name
    request = asked(values).model_copy(
        update={"cluster": "bench", "topics": (SearchedTopic(topic=name),), "through": {name: ends}}
    )
    approve(open_store(table.deployment.raw.url), request, records=SOUGHT)


def _pass(table: TopicTable, *, dry_run: bool) -> tuple[ErasureReport, Usage]:
    work = Pass(table, "bench", lambda: {SECRET.fingerprint: SECRET}, _searched, _converted, _left)
    reports: list[ErasureReport] = []
    usage = metered(lambda: reports.append(erase(work, dry_run=dry_run)))
    return reports[0], usage
