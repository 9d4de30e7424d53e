"""What grows: a table of 100,000 files, a plan over 100,000 segments; and a run that has nothing to do."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

from bench.data import HOME
from bench.measure import Row, run
from tests.spark.world import World, in_process
from tests.support.memory import own_peak
from tests.support.paths import ROOT
from tests.support.spark import spark_env, submit_command
from tests.tidemark.kafka_log.build import simple
from tidemark.errors import ContinuityError
from tidemark.formats.ledger import DateState, Ledger, PartitionState
from tidemark.planning import plan_ingest, plan_rebuild
from tidemark.table.delta_table import LiveFile, live_files, open_delta
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import EvidenceRow, evidence_key, to_parquet
from tidemark.table.tampering import files_digest
from tidemark.timestamps import utc_now
from tidemark_spark.model import DataFile
from tidemark_spark.run import driver
from tidemark_spark.run.delta_log import commit, open_or_create

FILES: Final = 100_000
COMMITS: Final = 100
DATES: Final = 50
ROWS: Final = 1000
"""Rows of each file."""

SEGMENTS: Final = 100_000
ROUNDS: Final = 3
_FIRST: Final = date(2026, 1, 1)


def measure() -> list[Row]:
    """All of it; what needs memory of its own in a process of its own."""
    rows = [*_segments(10_000), *_segments(64 << 20), *_nothing_to_do()]
    done = subprocess.run([sys.executable, "-m", "bench.scale", str(FILES)], check=True, stdout=subprocess.PIPE)
    found = json.loads(done.stdout)
    return [*rows, *(Row("scale", one["name"], one["unit"], tuple(one["values"]), one["note"]) for one in found)]


def _segments(size: int) -> list[Row]:
    """Plan after plan over a generated listing."""
    root = _fresh("many")
    command = [sys.executable, "-m", "tests.support.many", str(SEGMENTS), str(size), str(root)]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    note = f"{SEGMENTS} segments of {size} bytes, listing and manifests generated; {found['plans']} plans"
    return [
        Row("scale", "planning: all segments", "s", (found["seconds"],), note),
        Row("scale", "planning: peak memory (aim 1024)", "MiB", (found["peak_bytes"] / (1 << 20),), note),
        Row("scale", "planning: largest plan", "MB", (found["plan_bytes"] / 1e6,), note),
    ]


def _nothing_to_do() -> list[Row]:
    """The convert job as a command, where the table has everything."""
    world = World(_fresh("nothing"))
    world.raw.segment([simple(0)])
    world.land()
    arguments: list[str | Path] = [ROOT / "spark/jobs/ingest.py", "--topics", world.topics_file, "--topic", "orders"]
    rows: list[Row] = []
    for name, command in (
        ("spark-submit", submit_command(arguments)),
        ("Python alone", [sys.executable, *map(str, arguments)]),
    ):
        found = [run(command, env=spark_env(), log=HOME / "nothing.log") for _ in range(ROUNDS + 1)][1:]
        note = "an empty plan; Spark's session is not started"
        rows.append(Row("scale", f"nothing to do, {name}", "s", tuple(one.wall for one in found), note))
        rows.append(Row("scale", f"nothing to do, {name}: CPU", "s", tuple(one.cpu for one in found)))
    return rows


def _fresh(name: str) -> Path:
    folder = HOME / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def table(files: int) -> list[Row]:
    """Load, plan, commit and continuity of a table with so many live files, whose data is not there."""
    world = World(_fresh("table"))
    began = time.monotonic()
    _fill(world, files)
    note = f"{files} files of {ROWS} rows in {COMMITS} commits and {DATES} dates, local disk"
    rows = [Row("scale", "table: made by as many commits", "s", (time.monotonic() - began,), note)]
    world.raw.partition().end = world.next_offset()
    dt = (_FIRST + timedelta(days=7)).isoformat()
    timings: dict[str, list[float]] = {}

    def timed(name: str, action: Callable[[], object]) -> None:
        started = time.monotonic()
        action()
        timings.setdefault(name, []).append(time.monotonic() - started)

    for _ in range(ROUNDS):
        timed("load: log and live files", lambda: _live(world))
        timed("load: evidence that holds", lambda: sum(map(len, EffectiveEvidence.of(world.table).by_attempt())))
        world.raw.segment([simple(world.raw.partition().end)])
        world.raw.publish()
        timed("plan: ingest", lambda: plan_ingest(world.table))
        plan = world.plan()
        timed("run: convert three records, commit", lambda at=plan: driver.run(world.table, at, in_process))  # type: ignore[misc]
    timed("plan: rebuild of a date, up to its raw", lambda: _refused(world, dt))
    peak = own_peak() / (1 << 20)
    rows += [Row("scale", f"table: {name}", "s", tuple(found), note) for name, found in timings.items()]
    return [*rows, Row("scale", "table: peak memory of the driver's Python", "MiB", (peak,), note)]


def _live(world: World) -> int:
    found = open_delta(world.table)
    return 0 if found is None else len(live_files(found))


def _refused(world: World, dt: str) -> None:
    """Evidence and live files are read in full; then raw has nothing of it."""
    try:
        plan_rebuild(world.table, [dt])
    except ContinuityError:
        return
    raise AssertionError("raw has no such segments")


def _fill(world: World, files: int) -> None:
    """Commits with evidence and ledgers, as runs make them; the data files alone are left out."""
    each = files // COMMITS
    ledger = world.ledger
    topic_id = world.raw.lives.incarnations[-1].topic_id
    live: list[LiveFile] = []
    for number in range(COMMITS):
        start = number * each
        added = [_file(index) for index in range(start, start + each)]
        live += (one.live for one in added)
        attempt = number + 1
        ledger = Ledger(
            n=ledger.n + 1,
            attempt=attempt,
            parent=ledger.as_parent(),
            cluster="east",
            topic="orders",
            table="orders",
            kind="ingest",
            partitions=(
                PartitionState(
                    incarnation=0,
                    topic_id=topic_id,
                    partition=0,
                    start_offset=0,
                    next_offset=(start + each) * ROWS,
                    verdicts_end=(start + each) * ROWS,
                    leader_epoch=3,
                    lineage=((3, 0),),
                ),
            ),
            dates={
                (_FIRST + timedelta(days=day)).isoformat(): DateState(rows=ROWS * (start + each) // DATES)
                for day in range(DATES)
            },
            rows=(start + each) * ROWS,
            files=files_digest(live),
            landed=(*ledger.landed, attempt),
            committed_at=utc_now(),
        )
        evidence = [_evidence(one) for one in added]
        body = to_parquet(evidence, configuration="c", code="c", attempt=attempt)
        world.table.store.put(evidence_key(world.table, attempt), body)
        world.table.store.put(world.table.keys.ledger(ledger.n, attempt), ledger.to_bytes())
        commit(world.table, open_or_create(world.table), ledger, added, ())


def _file(index: int) -> DataFile:
    dt = _FIRST + timedelta(days=index % DATES)
    first, noon = index * ROWS, int(datetime(dt.year, dt.month, dt.day, 12, tzinfo=UTC).timestamp()) * 1_000_000
    path = f"dt={dt}/0_0_{first}_{first + ROWS - 1}_{index:012x}.parquet"
    return DataFile(path, 50_000_000, ROWS, dt, 0, first, first + ROWS - 1, noon, noon)


def _evidence(file: DataFile) -> EvidenceRow:
    return EvidenceRow(
        incarnation=0,
        partition=0,
        first=file.first_offset,
        next=file.last_offset + 1,
        offset_class="landed",
        rows=file.rows,
        dt=file.dt,
        segment=f"raw/{file.first_offset:020d}.log",
        byte_start=0,
        byte_end=1 << 26,
        hash128=file.first_offset,
        file=file.path,
    )


if __name__ == "__main__":
    sys.stdout.write(json.dumps([asdict(row) for row in table(int(sys.argv[1]))]))
