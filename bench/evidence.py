"""Evidence: what an audit and a compaction of one date read of it, with a week of evidence and with a year.

The evidence is made here: each day, 54 runs land records of 112 partitions, a compaction merges the day's files, and
the evidence is folded as a vacuum does it. A year has 20,000 commits and 5 million rows. Each question is answered by a
process of its own, on a local directory.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml

from bench.data import HOME
from bench.measure import MB, Row
from tidemark.formats.table.ledger import Ledger
from tidemark.planning.maintenance.compaction import placed
from tidemark.planning.maintenance.fold import to_fold
from tidemark.table.delta_table import LiveFile, LiveFiles, TopicTable, open_topic_table
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import evidence_key, schema, to_bytes
from tidemark.table.evidence_reader import folded, renamed
from tidemark.topics import load_topics
from tidemark_spark.audit.date_evidence import evidence_of
from tidemark_spark.audit.evidence import hulls_of

_DAYS: Final = {"a week": 7, "a year": 365}
_RUNS: Final = 54
_PARTITIONS: Final = 112
_MARKERS: Final = 28
"""The partitions with a transaction marker in each run."""
_RECORDS: Final = 10_000
"""Offsets of a partition in a run."""
_FIRST_DAY: Final = date(2026, 1, 1)
_DIGEST: Final = "6a9247b4f8e96a9247b4f8e96a9247b4"
_ROUNDS: Final = 3


class _Made(NamedTuple):
    """A table with the evidence of some days; the last day's files are not merged yet."""

    table: TopicTable
    ledger: Ledger
    rows: int
    commits: int


def measure() -> list[Row]:
    """The figures of each question with each history."""
    rows: list[Row] = []
    for name, days in _DAYS.items():
        made = _made(days)
        size = sum(info.size for info in made.table.store.list(made.table.keys.evidence))
        note = (
            f"{made.rows:,} rows of {made.commits:,} commits, {size / MB:.0f} MB in {len(made.ledger.landed)} objects"
        )
        for question in ("audit", "compaction"):
            answers = [_asked(question, days) for _ in range(_ROUNDS)]
            for column, unit in enumerate(("s", "CPU-s", "MB")):
                what = "peak memory" if unit == "MB" else "time"
                values = tuple(answer[column] for answer in answers)
                rows.append(Row("evidence", f"{question} of a date, {name}: {what}", unit, values, note))
    return rows


def _made(days: int) -> _Made:
    table = _table(days)
    store = table.store
    rng = np.random.default_rng(1)
    numbers = random.Random(1)  # noqa: S311 - the data must be repeatable
    landed: list[int] = []
    sizes: dict[int, int | None] = {}
    rows = commits = 0

    def put(evidence: pa.Table, attempt: int) -> None:
        body = to_bytes(evidence)
        store.put(evidence_key(table, attempt), body)
        landed.append(attempt)
        sizes[attempt] = len(body)

    for day in range(days):
        of_day: list[pa.Table] = []
        for run in range(_RUNS):
            attempt = numbers.getrandbits(62)
            evidence = _of_run(day, run, attempt, rng)
            put(evidence, attempt)
            of_day.append(evidence)
        if day < days - 1:
            attempt = numbers.getrandbits(62)
            put(_merged(pa.concat_tables(of_day), day, attempt), attempt)
            of_day.append(of_day[0].slice(0, 0))
            rows += _RUNS * _PARTITIONS
        rows += _RUNS * (_PARTITIONS + _MARKERS)
        commits += len(of_day)
        chosen = to_fold(landed, sizes)
        if chosen:
            body = folded(table, chosen)
            attempt = numbers.getrandbits(62)
            store.put(evidence_key(table, attempt), body)
            at = landed.index(chosen[0])
            landed[at : at + len(chosen)] = [attempt]
            sizes[attempt] = len(body)
            for old in chosen:
                store.delete(evidence_key(table, old))
    ledger = Ledger.genesis("bench", "orders", "orders").model_copy(update={"landed": tuple(landed)})
    (HOME / f"evidence-{days}.json").write_bytes(ledger.to_bytes())
    return _Made(table, ledger, rows, commits)


def _day(number: int) -> date:
    return _FIRST_DAY + timedelta(number)


def _file(day: int, run: int, partition: int) -> str:
    first = (day * _RUNS + run) * _RECORDS
    return f"dt={_day(day)}/0_{partition}_{first}_{first + _RECORDS - 2}_{day:06x}{run:06x}.parquet"


def _merged_file(day: int, partition: int) -> str:
    first = day * _RUNS * _RECORDS
    return f"dt={_day(day)}/0_{partition}_{first}_{first + _RUNS * _RECORDS - 2}_{day:012x}.parquet"


def _live(days: int) -> Iterator[LiveFile]:
    for day in range(days - 1):
        for partition in range(_PARTITIONS):
            yield LiveFile(
                _merged_file(day, partition), 64 << 20, _RUNS * (_RECORDS - _marker(partition)), str(_day(day))
            )
    for run in range(_RUNS):
        for partition in range(_PARTITIONS):
            yield LiveFile(_file(days - 1, run, partition), 1 << 20, _RECORDS - _marker(partition), str(_day(days - 1)))


def _marker(partition: int) -> int:
    return int(partition < _MARKERS)


def _of_run(day: int, run: int, attempt: int, rng: np.random.Generator) -> pa.Table:
    """The evidence of a run: for each partition what landed, and for some the marker behind it."""
    first = (day * _RUNS + run) * _RECORDS
    partitions = np.repeat(np.arange(_PARTITIONS), [1 + _marker(number) for number in range(_PARTITIONS)])
    markers = np.zeros(len(partitions), bool)
    markers[1 : 2 * _MARKERS : 2] = True
    held = np.array([_RECORDS - _marker(number) for number in range(_PARTITIONS)])[partitions]
    number = len(partitions)
    hashes = [rng.bytes(16) for _ in range(number)]
    marked = markers.tolist()
    names = [f"east/orders-{partition}/{first:020d}.log" for partition in partitions]
    return pa.table(
        {
            "incarnation": np.zeros(number, np.int32),
            "partition": partitions.astype(np.int32),
            "first": np.where(markers, first + held, first),
            "next": np.where(markers, first + _RECORDS, first + held),
            "class": ["transaction_marker" if one else "landed" for one in marked],
            "rows": np.where(markers, 1, held),
            "dt": [None if one else _day(day) for one in marked],
            "segment": names,
            "byte_start": np.zeros(number, np.int64),
            "byte_end": rng.integers(1 << 20, 1 << 30, _PARTITIONS)[partitions],
            "hash128": [None if one else value for one, value in zip(marked, hashes, strict=True)],
            "file": [
                None if one else _file(day, run, int(partition))
                for one, partition in zip(marked, partitions, strict=True)
            ],
            "configuration": [_DIGEST * 2] * number,
            "code": [_DIGEST[:16]] * number,
            "attempt": np.full(number, attempt),
        },
        schema=schema(),
    )


def _merged(of_day: pa.Table, day: int, attempt: int) -> pa.Table:
    """The evidence of the day's compaction."""
    landed = of_day.filter(pc.equal(of_day["class"], pa.scalar("landed")))
    names = pa.array([_merged_file(day, int(number)) for number in landed["partition"].to_numpy()], pa.string())
    landed = landed.set_column(landed.schema.get_field_index("file"), "file", names)
    attempts = pa.array(np.full(len(landed), attempt), pa.int64())
    landed = landed.set_column(landed.schema.get_field_index("attempt"), schema().field("attempt"), attempts)
    return landed.sort_by([("partition", "ascending"), ("first", "ascending")]).cast(schema())


def _table(days: int) -> TopicTable:
    path = HOME / f"evidence-{days}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    lake = HOME / f"evidence-{days}"
    lake.mkdir(exist_ok=True)
    content = {
        "cluster": "bench",
        "raw": {"url": f"file://{lake}"},
        "lake": f"file://{lake}",
        "topics": [{"topic": "orders"}],
    }
    path.write_text(yaml.safe_dump(content))
    deployment = load_topics(path)
    return open_topic_table(deployment, deployment.topics[0])


def _asked(question: str, days: int) -> tuple[float, float, float]:
    """Seconds, CPU seconds and MB of a question, asked in a process of its own."""
    command = [sys.executable, "-m", "bench.evidence", question, str(days)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    wall, cpu, peak = (float(number) for number in done.stdout.split())
    return wall, cpu, peak


def _answer(question: str, days: int) -> tuple[float, float, float]:
    """Seconds, CPU seconds, and MB of peak memory of this process, with all that it has loaded."""
    made = Ledger.from_bytes((HOME / f"evidence-{days}.json").read_bytes(), "ledger")
    table, live = _table(days), LiveFiles.of(_live(days))
    wanted = {file.path: file for file in live if file.dt == str(_day(days - 1))}
    started, cpu = time.perf_counter(), time.process_time()
    standing = EffectiveEvidence(table, made, live)
    if question == "audit":
        for rows in evidence_of(standing, frozenset({str(_day(days - 2))})).values():
            hulls_of(rows)
    else:
        if len(placed(standing, table, wanted)) != len(wanted):
            raise RuntimeError(f"{table.url}: files without evidence")
        renamed(table, made.landed, {path: f"{path}-merged" for path in wanted}, 1)
    used = time.perf_counter() - started, time.process_time() - cpu
    [peak] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return *used, int(peak.split()[1]) * 1024 / MB


def _main(arguments: Sequence[str]) -> None:
    question, days = arguments
    sys.stdout.write(" ".join(map(str, _answer(question, int(days)))) + "\n")


if __name__ == "__main__":
    _main(sys.argv[1:])
