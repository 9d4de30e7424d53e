"""Parsers that make a task die or linger, once, when it is in the middle of its file. TIDEMARK_UNRULY arms them.

The variable names a directory, in which a file tells that something has happened. Unarmed they only parse: so a run
without mishap gives the bytes that one with it must give.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pyarrow as pa

from tests.spark.convert.parsing import all_sizes
from tidemark.errors import ParserError

MIDDLE = 40
"""Offset from which a task is in the middle of its file."""
_PATIENCE = 240.0


def sizes(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The size of each value; what TIDEMARK_MISHAP names happens to the first task of partition 0 to come so far."""
    folder = os.environ.get("TIDEMARK_UNRULY")
    at, partition = rows.column("kafka_offset")[0].as_py(), rows.column("kafka_partition")[0].as_py()
    if folder and partition == 0 and at >= MIDDLE:
        _MISHAPS[os.environ["TIDEMARK_MISHAP"]](Path(folder))
    return all_sizes(rows)


def _worker_dies(folder: Path) -> None:
    if _first(folder / "died"):
        os.kill(os.getpid(), signal.SIGKILL)


def _executor_dies(folder: Path) -> None:
    """The executor is the parent of the daemon that forked this worker."""
    if _first(folder / "died"):
        executor = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
        if Path(f"/proc/{executor}/comm").read_text() != "java\n":
            raise RuntimeError("not an executor")
        os.kill(executor, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def _lingers(folder: Path) -> None:
    """Wait until another attempt has come as far, then go on beside it."""
    if not _first(folder / "lingered"):
        (folder / "overtaken").touch()
        return
    end = time.monotonic() + _PATIENCE
    while not (folder / "overtaken").exists() and time.monotonic() < end:
        time.sleep(0.02)


def _fails(folder: Path) -> None:
    if _first(folder / "failed"):
        raise MemoryError("planted")


def _always_fails(folder: Path) -> None:
    raise ParserError(f"planted by {folder.name}")  # for which no record is to blame


def _beats(folder: Path) -> None:
    """Touch a file until somebody ends this process."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        (folder / "beat").touch()
        time.sleep(0.02)


def _told(folder: Path) -> None:
    """What the file ``mishap`` says, if there is one: a server serves many tests, and none can arm it anew."""
    if (folder / "mishap").exists():
        _MISHAPS[(folder / "mishap").read_text()](folder)


def _first(path: Path) -> bool:
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


_MISHAPS = {
    "worker dies": _worker_dies,
    "executor dies": _executor_dies,
    "lingers": _lingers,
    "fails": _fails,
    "always fails": _always_fails,
    "beats": _beats,
    "told": _told,
}
