"""A server as a child process: started with a log, watched while it starts, stopped with all its children."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from tests.support.orphans import marked
from tests.support.waiting import HUNG, wait_until

_SAME_START_SECONDS = 1.0  # psutil derives the start from the boot time, which may drift with the clock
_KILL_SECONDS = 10.0


class ProcessFailed(RuntimeError):
    """The process ended when it should not have, or with a code that it should not have; carries the log's tail."""


@dataclass(frozen=True)
class ProcessRecord:
    """What identifies a process on this machine for ever: its id, and when it started. JSON-friendly fields."""

    name: str
    pid: int
    started: float

    def find(self) -> psutil.Process | None:
        """The recorded process, or None if it has ended, even if its id was given to another since."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < _SAME_START_SECONDS
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None

    def stop(self, timeout: float = 30.0) -> bool:
        """Stop it and everything that it started: SIGTERM first, SIGKILL after ``timeout``. True if it was running."""
        process = self.find()
        if process is None:
            return False
        family = _family(process)
        _signal([process], signal.SIGTERM)
        psutil.wait_procs([process], timeout=timeout)
        _kill(family)
        return True


def _family(process: psutil.Process) -> list[psutil.Process]:
    """The process and all its descendants; psutil remembers their start times, so none is mistaken later."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _signal(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue  # it ended by itself, which is what was wanted


def _kill(processes: Sequence[psutil.Process]) -> None:
    left = [process for process in processes if process.is_running()]
    _signal(left, signal.SIGKILL)
    psutil.wait_procs(left, timeout=_KILL_SECONDS)


class ManagedProcess:
    """A child in its own session, so that a Ctrl-C at the terminal is ours to handle; usable with ``with``."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Nothing is started yet. ``env`` is the whole environment (default: this process's), but for a test's mark."""
        self.name = name
        self.log = log
        self._argv = [str(part) for part in argv]
        self._env = None if env is None else marked(env)
        self._cwd = cwd
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start it; the log is appended to."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                cwd=self._cwd,
                start_new_session=True,
            )
        return self

    @property
    def pid(self) -> int:
        """The id of the process started last."""
        return self._started().pid

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._child is not None and self._child.poll() is None

    def record(self) -> ProcessRecord:
        """What another process needs in order to stop this one."""
        return ProcessRecord(self.name, self.pid, psutil.Process(self.pid).create_time())

    def run(self, timeout: float) -> None:
        """Start it, and wait for its end; :class:`ProcessFailed` unless that is with 0."""
        self.start()
        try:
            code = self.wait(timeout)
        finally:
            self.stop()
        if code:
            raise ProcessFailed(f"{self.name} ended with code {code}\n{self.log_tail()}")

    def wait(self, timeout: float) -> int:
        """Wait for it to end by itself and return its exit code; TimeoutExpired leaves it running."""
        return self._started().wait(timeout)

    def wait_until(self, probe: Callable[[], bool], *, timeout: float = HUNG, what: str = "ready") -> float:
        """Seconds until ``probe`` was true; :class:`ProcessFailed` at once if the process ends before that."""

        def check() -> None:
            if not self.running:
                raise ProcessFailed(f"{self.name} ended with code {self._started().returncode}\n{self.log_tail()}")

        try:
            return wait_until(probe, timeout=timeout, what=f"{self.name} {what}", check=check)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.log_tail()}") from error

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process alone, not to its children."""
        os.kill(self.pid, number)

    def stop(self, timeout: float = 30.0) -> None:
        """End it and its children: SIGTERM, then SIGKILL after ``timeout``. Nothing happens if it has ended."""
        self._end(signal.SIGTERM, timeout)

    def kill(self) -> None:
        """SIGKILL it and its children, as a crash of the machine would."""
        self._end(signal.SIGKILL, _KILL_SECONDS)

    def _end(self, number: signal.Signals, timeout: float) -> None:
        child = self._child
        if child is None or child.poll() is not None:
            return
        family = _family(psutil.Process(child.pid))
        child.send_signal(number)
        try:
            child.wait(timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait(_KILL_SECONDS)
        _kill(family[1:])

    def log_tail(self, lines: int = 30) -> str:
        """The end of the log, for messages."""
        if not self.log.exists():
            return "(no log)"
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return f"--- {self.log}\n" + "\n".join(text.splitlines()[-lines:])

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            raise ProcessFailed(f"{self.name} was never started")
        return self._child

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def stop_all(processes: Sequence[ManagedProcess], timeout: float = 30.0) -> None:
    """Stop processes side by side, in no particular order."""
    with ThreadPoolExecutor(max_workers=max(1, len(processes))) as pool:
        list(pool.map(lambda process: process.stop(timeout), processes))
