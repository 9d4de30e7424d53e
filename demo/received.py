"""Runs a command, and says afterwards what came over the network meanwhile: ``python -m demo.received COMMAND...``.

It needs nothing but Python, since it runs before anything is installed. What other programs receive is counted as well.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Final

_EVERY: Final = 0.25
_LEAST: Final = 16_000
"""Bytes a second that count as a download: a machine receives something all the time."""
_WORTH_TELLING: Final = 1_000_000


def main() -> int:
    """Run it; its exit code."""
    done, seen, began = threading.Event(), [received()], time.monotonic()
    watcher = threading.Thread(target=_watch, args=(seen, done), daemon=True)
    watcher.start()
    code = subprocess.call(sys.argv[1:])
    took = time.monotonic() - began
    done.set()
    watcher.join()
    if not code and seen[-1] - seen[0] >= _WORTH_TELLING:
        sys.stdout.write(f"== {told(seen, took)}\n")
    return code


def told(seen: list[int], took: float) -> str:
    """What the counts say that were read during ``took`` seconds at equal intervals."""
    busy = sum(after - before >= _LEAST * _EVERY for before, after in pairwise(seen))
    share = busy / max(1, len(seen) - 1)
    amount = (seen[-1] - seen[0]) / 1e6
    return f"all is there after {took:.0f} s; the network brought {amount:,.0f} MB in {share * took:.0f} s of them"


def received(lines: Iterable[str] | None = None) -> int:
    """The bytes that this machine has received from others since its start; 0 where the kernel does not say."""
    if lines is None:
        counters = Path("/proc/net/dev")
        lines = counters.read_text().splitlines() if counters.exists() else []
    fields = [line.partition(":") for line in lines if ":" in line]
    return sum(int(counts.split()[0]) for name, _, counts in fields if name.strip() != "lo")


def _watch(seen: list[int], done: threading.Event) -> None:
    while not done.wait(_EVERY):
        seen.append(received())
    seen.append(received())


if __name__ == "__main__":
    sys.exit(main())
