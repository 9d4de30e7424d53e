"""A week of a topic that lands every minute: what its table costs to open, to plan and to commit, day by day.

The week's clock is ours: 1,440 landings a day from packs, a seal and a compaction an hour, a vacuum a day, one after
the other in this process on the local disk. ``python -m bench.week`` is a process of its own, since everything that
asks for the time must get the week's. Delta's log goes by the times of files: these are set back as days go by.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any, Final
from unittest.mock import patch

import tidemark.timestamps
from bench.data import HOME
from bench.measure import Row

MINUTES: Final = 1440
RECORDS: Final = 20
"""Of each partition, each minute."""

DAY: Final = timedelta(days=1)


def measure(days: int) -> list[Row]:
    """A week, or as many days."""
    command = [sys.executable, "-m", "bench.week", str(days)]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [Row(**{**one, "values": tuple(one["values"])}) for one in json.loads(found.stdout)]


class Clock:
    """The week's time, which begins so long ago that it ends now."""

    def __init__(self, days: int) -> None:
        self.now = tidemark.timestamps.utc_now() - days * DAY

    def __call__(self) -> datetime:
        """The time now."""
        return self.now


def main() -> None:
    """Print the rows as JSON."""
    days = int(sys.argv[1])
    clock = Clock(days)
    patch.object(tidemark.timestamps, "utc_now", clock).start()  # before anything imports it by name
    folder = HOME / "week"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sys.stdout.write(json.dumps([asdict(row) for row in _week(folder, clock, days)]))


def _week(folder: Path, clock: Clock, days: int) -> Iterator[Row]:
    from tests.spark.world import World, in_process
    from tests.support.live_end import Packer
    from tests.tidemark.kafka_log.build import Record, batch
    from tidemark.formats.ledger import Published
    from tidemark.planning import plan_compaction, plan_ingest, write_plan
    from tidemark.planning.fold import plan_fold
    from tidemark.store import LocalStore
    from tidemark.table.delta_table import committed_ledger, live_files, open_delta, open_topic_table
    from tidemark_spark.model import Job
    from tidemark_spark.run.driver import run
    from tidemark_spark.run.fold import fold
    from tidemark_spark.vacuum import vacuum

    patch.object(LocalStore, "now", lambda _store: clock.now).start()
    world = World(folder, "freshness: 60s")
    raw, packer = world.raw, Packer(world.raw)
    pending: list[bytes] = []
    parts: list[Any] = []
    took: dict[str, list[float]] = {}
    note = f"one partition, {RECORDS} records a minute, {MINUTES} landings a day, compaction each hour, vacuum each day"

    def timed(name: str, began: float) -> None:
        took.setdefault(name, []).append(time.perf_counter() - began)

    def land() -> None:
        known = raw.partition()
        start = known.tail_end or 0
        at = int(clock.now.timestamp() * 1000)
        data = batch(start, [Record(number, at, b"k%d" % number, b"v" * 100) for number in range(RECORDS)])
        raw.now = raw.observed_at = clock.now
        parts.append(packer.pack([data]).part)
        pending.append(data)
        known.tail_end = start + RECORDS
        raw.publish()
        table = open_topic_table(world.table.deployment, world.table.topic)
        began = time.perf_counter()
        plan = plan_ingest(table, close_dates=False)
        write_plan(table, plan)
        timed("plan", began)
        outcomes = in_process(Job.of(table, plan), plan.tasks)
        began = time.perf_counter()
        assert run(table, plan, lambda _job, _tasks: outcomes).status == "landed"
        timed("commit", began)

    def seal() -> None:
        raw.segment(pending, parts=parts, rotated=False)
        raw.partition().tails = ()
        packer.drop()
        pending.clear()
        parts.clear()
        raw.publish()

    def compact() -> None:
        began = time.perf_counter()
        plan = plan_compaction(world.table)
        if not plan.empty:
            write_plan(world.table, plan)
            run(world.table, plan, in_process)
        fold(world.table, plan_fold(world.table, world.ledger))
        timed("compaction", began)

    for day in range(1, days + 1):
        took.clear()
        for minute in range(MINUTES):
            land()
            if minute % 60 == 59:
                seal()
                compact()
            clock.now += timedelta(minutes=1)
        raw.observed_at = clock.now
        raw.publish()
        plan = plan_ingest(world.table)
        write_plan(world.table, plan)
        run(world.table, plan, in_process)
        newest = committed_ledger(world.table)
        world.table.store.put(
            world.table.keys.published, Published(n=newest.n, attempt=newest.attempt, at=clock.now).to_bytes()
        )
        began = time.perf_counter()
        vacuum(world.table)
        timed("vacuum", began)
        for _ in range(5):
            began = time.perf_counter()
            committed_ledger(world.table)
            timed("open", began)
        ledger, delta = committed_ledger(world.table), open_delta(world.table)
        assert delta is not None
        log = _log(folder / "lake" / world.table.keys.root / "_delta_log")
        yield Row("week", f"day {day}: open the table and its ledger", "ms", (1000 * median(took["open"]),), note)
        yield Row("week", f"day {day}: plan, p50", "ms", (1000 * median(took["plan"]),))
        yield Row("week", f"day {day}: plan, last hour's p50", "ms", (1000 * median(took["plan"][-60:]),))
        yield Row("week", f"day {day}: commit, p50", "ms", (1000 * median(took["commit"]),))
        yield Row("week", f"day {day}: commit, last hour's p50", "ms", (1000 * median(took["commit"][-60:]),))
        yield Row("week", f"day {day}: compaction, p50", "ms", (1000 * median(took["compaction"]),))
        yield Row("week", f"day {day}: vacuum", "s", tuple(took["vacuum"]))
        yield Row("week", f"day {day}: live files", "", (len(live_files(delta)),))
        yield Row("week", f"day {day}: objects to read of Delta's log", "", (log[0],))
        yield Row("week", f"day {day}: bytes to read of Delta's log", "KB", (log[1] / 1000,))
        yield Row("week", f"day {day}: objects of Delta's log", "", (log[2],))
        yield Row("week", f"day {day}: ledger", "KB", (len(ledger.to_bytes()) / 1000,))
        ledgers = len(list(world.table.store.list(world.table.keys.ledgers)))
        yield Row("week", f"day {day}: ledgers that are kept", "", (ledgers,))
        yield Row("week", f"day {day}: attempts whose evidence counts", "", (len(ledger.landed),))
        sys.stderr.write(f"day {day} of {days} done\n")
        _set_back(folder / "lake")
    world.check()
    yield Row("week", "rows, each there once", "", (world.ledger.rows,))


def _log(folder: Path) -> tuple[int, int, int]:
    """Objects and bytes that a reader reads: the last checkpoint and what came after it; and how many lie there."""
    last = json.loads((folder / "_last_checkpoint").read_text())["version"]
    files = [path for path in folder.iterdir() if path.name[:20].isdigit()]
    read = [path for path in files if int(path.name[:20]) > last or "checkpoint" in path.name]
    read = [path for path in read if int(path.name[:20]) >= last]
    return len(read) + 1, sum(path.stat().st_size for path in read), len(files)


def _set_back(folder: Path) -> None:
    """A day has gone by: so much older are all files."""
    seconds = DAY.total_seconds()
    for path in [found for found in folder.rglob("*") if found.is_file()]:
        status = path.stat()
        os.utime(path, (status.st_atime - seconds, status.st_mtime - seconds))


if __name__ == "__main__":
    main()
