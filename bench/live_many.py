"""Cost of one landing of a cluster with 1,000 live topics, for several numbers of topics with new records.

The parts of a run follow one another in a process of its own: the scan and the trigger's judgement, then the job's
plans, conversion and commits. Stores are directories, and tasks run in this process instead of in Spark, so that CPU is
that of Tidemark alone. Each topic has one partition and a broker of its own, which has packed twenty records.
``python -m bench.live_many`` prints the rows as JSON; ``--profile`` prints where the largest landing takes its time.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from bench.data import HOME
from bench.measure import Row

TOPICS: Final = 1000
NEWS: Final = (0, 10, 100, 1000)
RECORDS: Final = 20


def measure() -> list[Row]:
    """Figures of a fresh process, since the memory of this process includes what other parts left."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.live_many"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return [Row(**{**row, "values": tuple(row["values"])}) for row in json.loads(done)]


@dataclass
class Phases:
    """Wall and CPU seconds of each named phase."""

    seconds: dict[str, tuple[float, float]] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the body as the phase ``name``."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.seconds[name] = time.perf_counter() - wall, time.process_time() - cpu


class Inline:
    """An executor that notes the time of its call: plans come before it, commits after it."""

    def __init__(self) -> None:
        self.began = self.ended = (0.0, 0.0)

    def on_each(self, work: Callable[[Any, Any], Any], common: Any, tasks: Sequence[Any]) -> list[Any]:
        """Run the tasks one after the other."""
        self.began = time.perf_counter(), time.process_time()
        outcomes = [work(common, task) for task in tasks]
        self.ended = time.perf_counter(), time.process_time()
        return outcomes

    def finished(self) -> int:
        """Zero: nothing asks."""
        return 0


def main() -> None:
    """Print the rows as JSON, or a profile."""
    parser = argparse.ArgumentParser(prog="python -m bench.live_many", description=__doc__)
    parser.add_argument("--topics", type=int, default=TOPICS, help="number of topics (default: %(default)s)")
    parser.add_argument("--profile", action="store_true", help="profile the largest landing, with one thread")
    options = parser.parse_args()
    folder = HOME / "live-many"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows = list(_measured(folder, options.topics, profile=options.profile))
    if not options.profile:
        sys.stdout.write(json.dumps([asdict(row) for row in rows]))


def _measured(folder: Path, topics: int, *, profile: bool) -> Iterator[Row]:
    from tests.spark.live.live_world import LiveWorld
    from tests.support.live_end import Packer
    from tests.tidemark.kafka_log.build import Record, batch
    from tidemark.timestamps import utc_now

    names = [f"topic-{number}" for number in range(topics)]
    world = LiveWorld(folder / "world", *names)
    packers = {name: Packer(world.topics[name].raw, broker=1 + number) for number, name in enumerate(names)}
    ends = dict.fromkeys(names, 0)

    def pack(chosen: Sequence[str]) -> None:
        for name in chosen:
            now, start = utc_now(), ends[name]
            at = int(now.timestamp() * 1000)
            records = [Record(number, at, b"k%d" % number, b"v" * 100) for number in range(RECORDS)]
            raw = world.topics[name].raw
            raw.now = raw.observed_at = now
            packers[name].pack([batch(start, records)])
            ends[name] = raw.partition().tail_end = start + RECORDS
            raw.publish()

    pack(names)
    landing = Landing(world)
    landing.once()
    for count in (*NEWS[:-1], topics):
        chosen = names[:count]
        pack(chosen)
        phases = _profiled(landing) if profile and count == topics else landing.once()
        note = f"{count} of {topics} topics have news, one partition each; directories, and tasks in the same process"
        for name, (wall, cpu) in phases.seconds.items():
            yield Row("live-many", f"{count} with news: {name}", "s", (wall,), note)
            yield Row("live-many", f"{count} with news: {name}, CPU", "s", (cpu,))
        yield Row("live-many", f"{count} with news: size of the landing", "KB", (landing.bytes / 1e3,))
        yield Row("live-many", f"{count} with news: memory", "MiB RSS", (psutil.Process().memory_info().rss / 2**20,))
        sys.stderr.write(f"{count} with news: {phases.seconds}\n")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield Row("live-many", "memory, most", "MiB RSS", (peak,))


class Landing:
    """The trigger's and the job's parts of a run, with a scanner that lives on, like the triggerer's."""

    def __init__(self, world: Any) -> None:
        from tidemark_airflow.triggers.committed import CommittedLedgers
        from tidemark_airflow.triggers.index_scanner import IndexScanner, Source

        self._world, self.bytes = world, 0
        source = Source.of(world.deployment, "east", 10)
        self._scanner = IndexScanner(source)
        self._committed = CommittedLedgers(world.store, source.keys)

    def once(self) -> Phases:
        """Run one landing of all topics that are ahead, and return its phases."""
        from datetime import timedelta

        from tidemark.formats.table.live_landing import read_landing, write_landing
        from tidemark.timestamps import utc_now
        from tidemark_airflow.triggers.live_readiness import LiveTopic, LiveWatch, landing_of
        from tidemark_spark.live.landing import land

        world, phases, executor = self._world, Phases(), Inline()
        live = [LiveTopic(topic=topic, every=timedelta()) for topic in world.topics]
        with phases.phase("scan"):
            scan = self._scanner.scan()
        with phases.phase("ledgers' copies"):
            self._committed.look()
        last = read_landing(world.store, world.key)
        with phases.phase("trigger"):
            now = utc_now()
            due = LiveWatch(live).due(scan.topics, self._committed.landed, last.value, now)
        landing = landing_of("east", due, last.value, now)
        self.bytes = len(landing.to_bytes())
        if not due:
            return phases
        write_landing(world.store, world.key, landing, last.etag)
        before = time.perf_counter(), time.process_time()
        done = land(world.deployment, landing, executor)
        after = time.perf_counter(), time.process_time()
        for name, start, end in (
            ("plans", before, executor.began),
            ("conversion", executor.began, executor.ended),
            ("commits", executor.ended, after),
        ):
            phases.seconds[name] = end[0] - start[0], end[1] - start[1]
        assert {topic.status for topic in done.topics} == {"landed"}, done
        ended = done.model_copy(update={"ended_at": utc_now()})
        write_landing(world.store, world.key, ended, read_landing(world.store, world.key).etag)
        return phases


def _profiled(landing: Landing) -> Phases:
    """Run one landing in one thread, as a profile covers a single thread, and print the profile."""
    from unittest.mock import patch

    def one_by_one(function: Callable[[Any], Any], items: Sequence[Any], threads: int = 1) -> list[Any]:
        return [function(item) for item in items]

    profile = cProfile.Profile()
    with patch("tidemark_spark.live.landing.in_parallel", one_by_one):
        profile.enable()
        phases = landing.once()
        profile.disable()
    pstats.Stats(profile).sort_stats("cumulative").print_stats(90)
    return phases


if __name__ == "__main__":
    main()
