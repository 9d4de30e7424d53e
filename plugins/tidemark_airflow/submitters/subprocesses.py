"""The processes that a task starts: their output goes to the task's log, and they end when it is killed."""

from __future__ import annotations

import logging
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import psutil
from airflow.sdk.exceptions import AirflowException

GRACE_SECONDS = 3.0
"""How long a process may take to end by itself: Airflow gives a task that it kills 5 seconds."""
_LAST_LINES = 15
_LONGEST_LINE = 2000

log = logging.getLogger(__name__)


def run(name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run ``command`` with no more than ``environment``, and log what it prints, line by line.

    Raises:
        AirflowException: it did not end with 0; with the last lines that it printed.
    """
    last: deque[str] = deque(maxlen=_LAST_LINES)
    with subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                last.append(line.rstrip()[:_LONGEST_LINE])
                log.info("%s", last[-1])
        except BaseException:
            end([psutil.Process(child.pid), *descendants(child.pid)])
            raise
    if child.returncode:
        raise AirflowException(f"{name} ended with code {child.returncode}; its last lines:\n" + "\n".join(last))


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """All that process ``pid`` (default: this one) has started, and what those started."""
    return psutil.Process(pid).children(recursive=True)


def end(processes: Sequence[psutil.Process]) -> None:
    """SIGTERM, and SIGKILL for those that still run after :data:`GRACE_SECONDS`.

    They are watched, not waited for. A wait would take the exit code of a child from its parent, and the parent would
    then take the ended job for a successful one.
    """
    for process in processes:
        _tell(process, psutil.Process.terminate)
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := [one for one in processes if _runs(one)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    for process in left:
        _tell(process, psutil.Process.kill)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _tell(process: psutil.Process, what: Callable[[psutil.Process], None]) -> None:
    try:
        what(process)
    except psutil.NoSuchProcess:
        log.debug("process %d has ended already", process.pid)
