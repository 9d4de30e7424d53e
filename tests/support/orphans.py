"""Ends what a process of pytest has started and left behind, however that process ended.

Each process of pytest marks its environment, which its children inherit or are given, and starts a watcher that waits
for the end of a pipe. Only that process holds the pipe's other end, so it closes also when the process is killed; the
watcher then ends every process on this machine that carries the mark.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping

import psutil

MARK = "TIDEMARK_TEST_PROCESS"
_PATIENCE = 5.0
"""Seconds that processes have to end by themselves after SIGTERM."""


class OrphanWatch:
    """Marks this process's environment, and ends the marked processes with it."""

    def __init__(self) -> None:
        mark = uuid.uuid4().hex
        env = {name: value for name, value in os.environ.items() if name != MARK}
        command = [sys.executable, "-m", "tests.support.orphans", mark]
        self._watcher = subprocess.Popen(command, stdin=subprocess.PIPE, env=env, start_new_session=True)
        os.environ[MARK] = mark

    def close(self) -> None:
        """End now what is left; returns when it has ended."""
        self._watcher.communicate()


def marked(env: Mapping[str, str]) -> dict[str, str]:
    """An environment of a child, with the mark of this process if it has one."""
    mark = os.environ.get(MARK)
    return dict(env) if mark is None else {**env, MARK: mark}


def end_marked(mark: str) -> list[psutil.Process]:
    """End all processes of this user that carry ``mark``, and return them: SIGTERM first, then SIGKILL."""
    found = [process for process in psutil.process_iter() if _carries(process, mark)]
    for process in found:
        _end(process, force=False)
    deadline = time.monotonic() + _PATIENCE
    while (left := [process for process in found if _runs(process)]) and time.monotonic() < deadline:
        psutil.wait_procs(left, timeout=0.1)
    for process in left:
        _end(process, force=True)
    return found


def _runs(process: psutil.Process) -> bool:
    """Whether it has not ended; what has ended stays a zombie while the session that started it waits for us."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _carries(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(MARK) == mark
    except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
        return False  # it has ended meanwhile, or is another user's


def _end(process: psutil.Process, *, force: bool) -> None:
    try:
        process.kill() if force else process.terminate()
    except psutil.NoSuchProcess:
        return  # it has ended by itself


if __name__ == "__main__":
    sys.stdin.read()
    while end_marked(sys.argv[1]):
        pass  # a process that was ended may have started another one
