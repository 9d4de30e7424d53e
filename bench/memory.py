"""Peak memory of the convert job, run as a command: its driver (Python and JVM) and its workers, by segment size."""

from __future__ import annotations

import shutil
import subprocess
import threading
from contextlib import suppress
from typing import Final

import psutil
import yaml

from bench.data import HOME, Data, Topic
from bench.measure import Row
from tests.support.paths import ROOT
from tests.support.spark import spark_env, submit_command

TOPICS: Final = (Topic("none", 1000, 1, 64 << 20), Topic("none", 1000, 1, 1 << 30), Topic("zstd", 1000))
_INTERVAL: Final = 0.1


def measure(made: Data) -> list[Row]:
    """One run for each topic; proportional set sizes, each process's own peak."""
    rows: list[Row] = []
    for topic in TOPICS:
        peaks = _peaks(made, topic)
        note = f"{topic.codec}, segments of up to {topic.segment >> 20} MiB, spark-submit with local[2], default heap"
        for name, aim in (("a worker", "aim 400"), ("driver, Python and JVM", "aim 900")):
            rows.append(Row("memory", f"{name} ({aim})", "MB", (peaks[name] / 1e6,), note))
    return rows


def _peaks(made: Data, topic: Topic) -> dict[str, int]:
    lake = HOME / "memory"
    shutil.rmtree(lake, ignore_errors=True)
    lake.mkdir(parents=True)
    topics = lake / "topics.yaml"
    raw = {"url": f"file://{made.raw(topic)}"}
    file = {"cluster": "bench", "raw": raw, "lake": f"file://{lake}/lake", "topics": [{"topic": topic.name}]}
    topics.write_text(yaml.safe_dump(file))
    command = submit_command([ROOT / "spark/jobs/ingest.py", "--topics", topics, "--topic", topic.name])
    with (lake / "job.log").open("wb") as log:
        job = subprocess.Popen(command, env=spark_env(), stdout=log, stderr=subprocess.STDOUT)
        meter = _Peaks(job.pid)
        code = job.wait()
        meter.stop()
    if code != 0:
        raise RuntimeError(f"the job ended with {code}; see {lake}/job.log")
    return {"a worker": meter.worker, "driver, Python and JVM": meter.driver}


class _Peaks(threading.Thread):
    """Samples a job until it is stopped: the most that a worker, and JVM and driver together, had at once."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._job = psutil.Process(pid)
        self._ended = threading.Event()
        self.worker = self.driver = 0
        self.start()

    def stop(self) -> None:
        """End it."""
        self._ended.set()
        self.join()

    def run(self) -> None:
        """Look again and again."""
        while not self._ended.wait(_INTERVAL):
            with suppress(psutil.Error):
                self._look()

    def _look(self) -> None:
        driver = 0
        for process in [self._job, *self._job.children(recursive=True)]:
            with suppress(psutil.Error):
                size, words = process.memory_full_info().pss, process.cmdline()
                if "pyspark.daemon" in words:
                    self.worker = max(self.worker, size)
                else:
                    driver += size
        self.driver = max(self.driver, driver)
