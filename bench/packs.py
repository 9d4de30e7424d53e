"""What a tick costs the agent: CPU and memory while each of many partitions gets a batch in every tick.

``python -m bench.packs 1000`` makes that many partitions on a disk made by hand, and a broker that answers at once.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.tidemark.kafka_log.build import simple
from tests.uploader_agent.fakes import ID, World
from tidemark.formats.keys import TopicPartition
from uploader_agent.broker.admin import Led
from uploader_agent.disk.watcher import NoWatcher

_FRESHNESS = 15
_RECORDS = 10


def main() -> None:
    """Print the CPU time of a tick and the memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("partitions", type=int, nargs="?", default=1000)
    parser.add_argument("--ticks", type=int, default=12)
    parser.add_argument("--append", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.append is not None:
        _append(options.append, options.partitions, int(os.environ["START"]))
        return
    memory = Path("/dev/shm")  # noqa: S108 - a directory of our own is made in it
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        _run(Path(folder), options.partitions, options.ticks)


def _append(root: Path, partitions: int, base: int) -> None:
    for number in range(partitions):
        path = root / f"orders-{number}" / f"{0:020d}.log"
        with path.open("ab") as file:
            file.write(simple(base, _RECORDS, leader_epoch=3))


def _run(root: Path, partitions: int, ticks: int) -> None:
    world = World(root)
    ats = [TopicPartition("orders", number) for number in range(partitions)]
    world.metadata.leads = {at: Led(3, ID) for at in ats}
    for at in ats:
        world.disk.partition(at).segment(0, b"")
    every = _FRESHNESS / 3
    settings: dict[str, Any] = {
        "freshness": {".*": f"{_FRESHNESS}s"},
        "tail_after": "1h",
        "scan_interval": "1h",
        "upload": {},
    }
    gc.collect()
    with world.agent(NoWatcher(), **settings) as agent, agent.running():
        for tick in range(ticks + 3):
            command = [sys.executable, "-m", "bench.packs", str(partitions), "--append", str(world.disk.log_dirs[0])]
            env = {**os.environ, "START": str(tick * _RECORDS)}
            subprocess.run(command, env=env, check=True)
            world.metadata.default_high = (tick + 1) * _RECORDS
            before, ranges = time.process_time(), agent.metrics.packed_ranges._value.get()
            time.sleep(every)
            packed = agent.metrics.packed_ranges._value.get() - ranges
            used = time.process_time() - before
            rss = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
            print(f"tick {tick}: {packed:.0f} ranges, {used:.3f} s of CPU, {rss:.0f} MiB", flush=True)  # noqa: T201 - the result
        quiet = time.process_time()
        time.sleep(2 * every)
        quiet = time.process_time()
        time.sleep(2 * every)
        print(f"a quiet tick: {(time.process_time() - quiet) / 2:.3f} s of CPU")  # noqa: T201


if __name__ == "__main__":
    main()
