"""Erasure: the search for records in the table and in raw, and a pass that takes them out of both.

The tasks run in one plain process, without Spark, on local directories: the figures are of a core. Every hundredth
batch has a record that a request names.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from bench.convert import Pooled, new_table
from bench.data import HOME, Data, Topic, upload
from bench.measure import MB, Row, Usage, metered
from tests.tidemark.erasure.asked import SECRET, approve, asked
from tidemark.decode import scan_headers
from tidemark.erasure.reports import ErasureReport
from tidemark.formats.keys import SegmentName
from tidemark.formats.raw.erasure import PartitionEnd, SearchedTopic
from tidemark.planning import plan_ingest, write_plan
from tidemark.store import open_store
from tidemark.table.delta_table import TopicTable, committed_ledger
from tidemark_spark.erasing.rewriting import rewrite
from tidemark_spark.erasing.search import search
from tidemark_spark.erasure_pass import Pass, erase
from tidemark_spark.kinds.ingest import Ingest
from tidemark_spark.run.driver import run

TOPIC: Final = Topic("zstd", 1000)
TOUCHED: Final = 100
"""The batches for each record that is sought."""


class Worker(Pooled):
    """A process that runs tasks."""

    def peak(self) -> float:
        """The most memory that the process ever had, in MB: the kernel's figure."""
        text = self.pool.submit(Path("/proc/self/status").read_text).result()
        fields = dict(line.split(":", 1) for line in text.splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024 / MB


@contextmanager
def worker() -> Iterator[Worker]:
    """A new process, which has loaded what it needs and nothing else."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        for task in (search, Ingest.work, rewrite):
            pool.submit(callable, task).result()  # which imports its module
        yield Worker(pool)


def measure(made: Data) -> list[Row]:
    """The figures, each of one run: a dry run's search in the table, one in raw, and the pass over both."""
    rows: list[Row] = []
    raw = HOME / "erasure-raw"
    upload(made.cluster, f"file://{raw}", [TOPIC.name])
    values, batches = _values(raw, made[TOPIC].records)
    tables = {
        where: new_table(TOPIC, f"file://{raw}", f"file://{HOME}/local", keep=keep)
        for where, keep in (("raw", ["timestamp", "value"]), ("the table", None))
    }
    for where, table in tables.items():
        with worker() as landing:
            _land(table, landing)
        _ask(table, values)
        with worker() as working:
            report, usage = _pass(table, working, dry_run=True)
            count = sum(report.searched.values())
            note = f"{count:,} rows, {len(values):,} values, {sum(report.requests[0].records.values())} found"
            rows.append(Row("erasure", f"search in {where}", "million rows/CPU-s", (count / 1e6 / usage.cpu,), note))
            rows.append(Row("erasure", f"search in {where}: memory", "MB", (working.peak(),), "the worker's most"))
    with worker() as working:
        report, usage = _pass(tables["the table"], working, dry_run=False)
        size = made[TOPIC].value_bytes
        note = f"{size / 2**30:.1f} GiB, {report.rows} rows of {report.raw.records} records in {batches:,} batches"
        note += f", {report.raw.rewritten} segments written; with the search"
        rows.append(Row("erasure", "pass over table and raw", "MB of values/CPU-s", (size / MB / usage.cpu,), note))
        rows.append(Row("erasure", "pass: memory", "MB", (working.peak(),), "the worker's most"))
    shutil.rmtree(raw)
    return rows


def _values(raw: Path, records: int) -> tuple[list[bytes], int]:
    """Keys of so many records that one batch in a hundred has one, and the number of batches."""
    batches = 0
    for log in raw.glob(f"**/{TOPIC.name}-*/*.log"):
        parsed = SegmentName.parse(log.name)
        assert parsed is not None
        batches += len(scan_headers(log.read_bytes(), log.name, parsed[0].base))
    wanted = batches // TOUCHED
    return [b"k%012d" % (number * records // wanted) for number in range(wanted)], batches


def _land(table: TopicTable, worker: Worker) -> None:
    while True:
        plan = plan_ingest(table)
        if plan.empty:
            return
        write_plan(table, plan)
        run(table, plan, worker, first=True)


def _ask(table: TopicTable, values: Sequence[bytes]) -> None:
    ends = tuple(PartitionEnd(*state.key, state.next_offset) for state in committed_ledger(table).partitions)
    name = TOPIC.name
    request = asked(values).model_copy(
        update={"cluster": "bench", "topics": (SearchedTopic(topic=name),), "through": {name: ends}}
    )
    approve(open_store(table.deployment.raw.url), request, records=len(values))


def _pass(table: TopicTable, worker: Worker, *, dry_run: bool) -> tuple[ErasureReport, Usage]:
    secrets = {SECRET.fingerprint: SECRET}
    work = Pass(table, "bench", lambda: secrets, worker)
    reports: list[ErasureReport] = []
    usage = metered(lambda: reports.append(erase(work, dry_run=dry_run)))
    return reports[0], usage
