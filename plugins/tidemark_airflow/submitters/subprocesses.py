"""The processes of a task's job: their output is written to the task's log, and they end when the task is killed."""

from __future__ import annotations

import logging
import shlex
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import psutil
from airflow.sdk.exceptions import AirflowException

from tidemark_airflow import settings
from tidemark_airflow.submitters.forked import ForkedJob

GRACE_SECONDS = 3.0
"""Seconds for a process to end by itself: Airflow gives a killed task 5 seconds."""
_LAST_LINES = 15
_LONGEST_LINE = 2000

log = logging.getLogger(__name__)


def run(name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run ``command`` with only ``environment``, and log its output line by line.

    Raises:
        AirflowException: it did not end with 0; the message has its last lines.
    """
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
            last = _logged(child.stdout)
        except BaseException:
            end([psutil.Process(child.pid), *descendants(child.pid)])
            raise
    _check(name, child.returncode, last)


def run_forked(job: ForkedJob, program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a ``program`` of ``spark/jobs`` as a fork of its host, with only ``environment``; otherwise like :func:`run`.

    Raises:
        AirflowException: no host takes the job, or it was killed, or the job did not end with 0.
    """
    path = str(settings.spark_job(program))
    log.info("Spark Connect: %s", shlex.join([path, *arguments]))
    try:
        with job.start(path, arguments, environment) as output:
            last = _logged(output)
        code = job.code()
    except BaseException:
        job.end()
        raise
    _check(program, code, last)


def _logged(lines: Iterable[str]) -> deque[str]:
    """Log the lines of a job's output; returns the last ones."""
    last: deque[str] = deque(maxlen=_LAST_LINES)
    for line in lines:
        last.append(line.rstrip()[:_LONGEST_LINE])
        log.info("%s", last[-1])
    return last


def _check(name: str, code: int, last: deque[str]) -> None:
    if code:
        raise AirflowException(f"{name} ended with code {code}; its last lines:\n" + "\n".join(last))


def run_job(how: str, python: str, program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a ``program`` of ``spark/jobs`` in ``python``, with only ``environment``; ``how`` is said in the log.

    Raises AirflowException as :func:`run`.
    """
    command = [python, str(settings.spark_job(program)), *arguments]
    log.info("%s: %s", how, shlex.join(command))
    run(program, command, environment)


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """All descendants of process ``pid`` (default: this process)."""
    return psutil.Process(pid).children(recursive=True)


def end(processes: Sequence[psutil.Process]) -> None:
    """Send SIGTERM, and SIGKILL to processes that still run after :data:`GRACE_SECONDS`.

    They are watched, not waited for. A wait would take the exit code of a child from its parent, and the parent would
    then take the ended job for a successful one.
    """
    for process in processes:
        _signal(process, psutil.Process.terminate)
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := [process for process in processes if _runs(process)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    for process in left:
        _signal(process, psutil.Process.kill)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _signal(process: psutil.Process, send: Callable[[psutil.Process], None]) -> None:
    try:
        send(process)
    except psutil.NoSuchProcess:
        log.debug("process %d has ended already", process.pid)
