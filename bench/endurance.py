"""What Airflow's processes and a Spark Connect server hold as time goes by: an hour with a run now and then.

One topic, one small segment every 75 s, stores on the local disk. Each minute the proportional set sizes of each
component go to a file; what is told is their growth. Processes that come and go (tasks, the dag-processor's readers)
are counted apart from those that last, since only the latter can grow without end.
"""

from __future__ import annotations

import csv
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

import psutil

from bench.data import HOME
from bench.measure import MB, Row
from bench.stack import DAG, connect_env, tree
from tests.spark.world import World
from tests.support.airflow import AirflowStack
from tests.support.paths import ROOT
from tests.support.pipeline import pipeline_env
from tests.support.process import ManagedProcess
from tests.support.spark import ConnectServer
from tests.tidemark.kafka_log.build import simple

SCAN_SECONDS: Final = 10.0
RUN_SECONDS: Final = 75.0
SAMPLE_SECONDS: Final = 60.0
SETTLED: Final = 30.0
"""Minutes after which the slope is taken too: caches have filled by then."""

_LASTING: Final = 90.0
"""Seconds; a process that has lived for so long is no task of this load."""


class Sample(NamedTuple):
    """Of one component: minutes since the start, and bytes (PSS) of its processes that last, and of all."""

    minutes: float
    component: str
    lasting: float
    whole: float


def measure(minutes: float) -> list[Row]:
    """Start everything, let it work for ``minutes``, stop it."""
    folder = HOME / "endurance"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "world").mkdir(parents=True)
    world = World(folder / "world", "batch: {age: 0s}")
    env = pipeline_env(world.topics_file, folder / "spark-conf", scan_seconds=SCAN_SECONDS)
    env["AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL"] = "30"  # Airflow's default, unlike the tests'
    with ConnectServer(folder) as server:
        env |= connect_env(server)
        with (
            AirflowStack(
                folder / "airflow", dags=ROOT / "dags", plugins=ROOT / "plugins", env=env, unpaused=[DAG]
            ) as stack,
            _Sampler((*stack.processes, server.process), HOME / "endurance.csv") as sampler,
        ):
            _work(world, minutes * 60)
        commits = world.ledger.n
    return list(_rows(sampler.samples, commits))


def _work(world: World, seconds: float) -> None:
    """A segment every now and then, whether or not the one before has landed."""
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        world.raw.segment([simple(world.raw.partition().end)])
        world.raw.publish()
        time.sleep(min(RUN_SECONDS, left))


class _Sampler:
    """Looks at components once a minute until it is left, and writes what it finds to a file at once."""

    def __init__(self, components: Sequence[ManagedProcess], path: Path) -> None:
        self.samples: list[Sample] = []
        self._components = components
        self._path = path
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with self._path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(Sample._fields)
            looks = 0
            while True:
                for component in self._components:
                    self.samples.append(sample := self._look(component))
                    writer.writerow(sample)
                file.flush()
                looks += 1
                if self._stop.wait(max(0.0, self._began + looks * SAMPLE_SECONDS - time.monotonic())):
                    return

    def _look(self, component: ManagedProcess) -> Sample:
        lasting = whole = 0.0
        for process in tree(component):
            try:
                size = float(process.memory_full_info().pss)
                lasts = process.pid == component.pid or time.time() - process.create_time() > _LASTING
            except psutil.NoSuchProcess:
                continue  # a task that has just ended
            whole += size
            lasting += size if lasts else 0.0
        return Sample((time.monotonic() - self._began) / 60, component.name, lasting, whole)


def _rows(samples: Sequence[Sample], commits: int) -> Iterator[Row]:
    last = max(one.minutes for one in samples)
    note = f"PSS of what lasts; {last:.0f} minutes, {commits} commits, the dag-processor looks every 30 s"
    for name in dict.fromkeys(one.component for one in samples):
        own = [one for one in samples if one.component == name]
        for minutes in (at for at in (1.0, 5.0, 30.0, 60.0) if at < last + 1):
            nearest = min(own, key=lambda one: abs(one.minutes - minutes))
            yield Row("endurance", f"{name}: after {minutes:.0f} min", "MB", (nearest.lasting / MB,), note)
        yield Row("endurance", f"{name}: most, with tasks", "MB", (max(one.whole for one in own) / MB,))
        for since in (5.0, SETTLED):
            later = [one for one in own if one.minutes > since]
            if len(later) > 1:
                slope, _ = statistics.linear_regression(
                    [one.minutes / 60 for one in later], [one.lasting / MB for one in later]
                )
                yield Row("endurance", f"{name}: growth from {since:.0f} min on", "MB/h", (slope,))
    sys.stderr.write(f"each minute's figures are in {HOME / 'endurance.csv'}\n")
