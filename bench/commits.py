"""Time and memory of the commit of one file to a table that has many, without Spark, in a directory.

The other files exist in the table's log alone: a commit reads none of them.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa

from bench.data import HOME
from bench.measure import Row
from tidemark.formats.table.plan import RunPlan
from tidemark.formats.table.steps import DataFile
from tidemark.planning.common import following
from tidemark.table.delta_table import TopicTable, ledger_of, live_files, open_delta, open_topic_table
from tidemark.table.tampering import check_untampered
from tidemark.topics import load_topics
from tidemark_spark.kinds.kind import TableChange
from tidemark_spark.kinds.registry import kind_of
from tidemark_spark.run import commit
from tidemark_spark.run.commit import publish

FILES: Final = (10_000, 100_000, 1_000_000)
_DAYS: Final = 365
_A_COMMIT: Final = 250_000
"""Files that a commit of the preparation adds."""


def measure() -> list[Row]:
    """Figures of a fresh process for each number of files."""
    rows = []
    for count in FILES:
        folder = HOME / "commits"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        found = _in_a_process("measure", folder, _in_a_process("prepare", folder, count)["files"])
        note = f"{count:,} live files"
        rows += [
            Row("commits", "look: open, compare with the ledger", "s", (found["look"],), note),
            Row("commits", "look: open, compare with the ledger", "CPU-s", (found["look_cpu"],), note),
            Row("commits", "look and commit", "s", (found["all"],), note),
            Row("commits", "look and commit", "CPU-s", (found["all_cpu"],), note),
            Row("commits", "look and commit: most memory beyond the imports", "MiB RSS", (found["mib"],), note),
        ]
    return rows


def _in_a_process(step: str, folder: Path, count: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.commits", step, str(folder), str(count)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return found


def main() -> None:
    """Prepare a table in a folder, or measure a commit to the table there; print the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.commits", description=__doc__)
    parser.add_argument("step", choices=("prepare", "measure"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", type=int, help="number of live files")
    options = parser.parse_args()
    sys.stdout.write(
        json.dumps({"prepare": _prepare, "measure": _measured}[options.step](options.folder, options.files))
    )


def _table(folder: Path) -> TopicTable:
    path = folder / "topics.yaml"
    for name in ("raw", "lake"):
        (folder / name).mkdir(exist_ok=True)
    topics = "topics: [{topic: orders, cluster: east}]"
    path.write_text(f"raw: {{url: 'file://{folder}/raw'}}\nlake: 'file://{folder}/lake'\n{topics}\n")
    deployment = load_topics(path)
    return open_topic_table(deployment, deployment.topic("orders"))


def _file(number: int) -> DataFile:
    """A file of a date; each date has files of many partitions."""
    dt, first = date(2025, 1, 1) + timedelta(number % _DAYS), number * 1000
    at = int(datetime(dt.year, dt.month, dt.day, 12, tzinfo=UTC).timestamp() * 1_000_000)
    path = f"dt={dt}/0_{number % 64}_{first}_{first + 999}_{number * 7919 % 2**48:012x}.parquet"
    return DataFile(path, 64 << 20, 1000, dt, number % 64, first, first + 999, at, at + 3_600_000_000)


def _commit(table: TopicTable, files: list[DataFile]) -> None:
    """Commit ``files`` as an ingest does that has no offsets; the last of them exists, with no bytes."""
    plan = RunPlan(**following(table, ledger_of(table, open_delta(table))), kind="ingest")
    table.store.put(f"{table.keys.root}/{files[-1].path}", b"")
    publish(kind_of(table, plan), TableChange(tuple(files), (), ()))


def _prepare(folder: Path, count: int) -> dict[str, Any]:
    with patch.object(commit, "_check_files"):
        for first in range(0, count, _A_COMMIT):
            _commit(_table(folder), [_file(number) for number in range(first, min(count, first + _A_COMMIT))])
    _table(folder).by_delta_rs().create_checkpoint()
    return {"files": count}


def _measured(folder: Path, count: int) -> dict[str, Any]:
    file = replace(_file(10 * count), size=0)
    pa.array([0]).to_numpy()  # which loads pandas, whatever the table
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    table, began, cpu = _table(folder), time.perf_counter(), time.process_time()
    _look(table)
    looked, of_look = time.perf_counter(), time.process_time()
    _commit(table, [file])
    return {
        "look": looked - began,
        "look_cpu": of_look - cpu,
        "all": time.perf_counter() - began,
        "all_cpu": time.process_time() - cpu,
        "mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
    }


def _look(table: TopicTable) -> None:
    """Open the table, and compare it with its ledger, as a plan does, and the driver before it converts."""
    delta = open_delta(table)
    check_untampered(table, ledger_of(table, delta), live_files(delta))


if __name__ == "__main__":
    main()
