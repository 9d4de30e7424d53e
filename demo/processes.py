"""Processes of a demo: recorded, so that ``make down`` stops them, and found by their folder if they were not."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import psutil

from demo.steps import Steps
from tests.support.hosts import job_hosts
from tests.support.paths import STATE
from tests.support.process import ProcessRecord

HOME = STATE / "demo"
_RECORDS = "processes.json"


class StillRunning(RuntimeError):
    """Raised when a process runs in the demo's folder."""


def record(records: Iterable[ProcessRecord]) -> None:
    """Record the running processes, in the order in which they must be stopped."""
    written = HOME / f"{_RECORDS}.new"
    written.write_text(json.dumps([asdict(process) for process in records]))
    written.replace(HOME / _RECORDS)


def recorded() -> list[ProcessRecord]:
    """The processes that a kept demo started, in the order in which they must be stopped."""
    if not (HOME / _RECORDS).exists():
        return []
    return [ProcessRecord(**item) for item in json.loads((HOME / _RECORDS).read_text())]


def forget() -> None:
    """Remove the record."""
    (HOME / _RECORDS).unlink(missing_ok=True)


def check_ended() -> None:
    """Raise :class:`StillRunning` if a recorded process runs, or any process that uses the folder.

    Kafka keeps files open: the folder must not be removed below a process.
    """
    if any(process.find() for process in recorded()):
        raise StillRunning("an earlier demo is still running: `make down` stops it")
    if left := living_in(HOME):
        listed = "\n".join(f"  {process.pid}: {' '.join(process.info['cmdline'] or ())[:150]}" for process in left)
        raise StillRunning(f"{HOME} is in use, and must not be removed yet; end these processes:\n{listed}")


def living_in(folder: Path) -> list[psutil.Process]:
    """Processes with a working directory in ``folder``, or with a path there as an argument, except ours."""
    ours = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    running = psutil.process_iter(["cmdline", "cwd", "status"])
    return [process for process in running if process.pid not in ours and _uses(process, folder)]


def _uses(process: psutil.Process, folder: Path) -> bool:
    """True if the process uses the folder. Another user's process may hide its paths; then it is not the demo's."""
    if process.info["status"] == psutil.STATUS_ZOMBIE:
        return False
    within = Path(process.info["cwd"] or os.sep).is_relative_to(folder)
    return within or any(f"{folder}{os.sep}" in f"{word}{os.sep}" for word in process.info["cmdline"] or ())


def end_job_hosts() -> None:
    """Kill the hosts of jobs (docs/airflow.md) of this folder's Spark, which would stay for a quarter of an hour."""
    hosts = job_hosts(lambda host: Path(host.environ().get("SPARK_CONF_DIR", os.sep)).is_relative_to(HOME))
    for host in hosts:
        host.kill()
    psutil.wait_procs(hosts, timeout=10)


def down(steps: Steps, timeout: float = 30.0) -> None:
    """Stop the processes of a kept demo, and no others, with SIGKILL after ``timeout``.

    Raises:
        StillRunning: another process runs in the folder.
    """
    for process in recorded():
        outcome = "stopped" if process.stop(timeout) else "had ended already:"
        steps.say(f"{outcome} {process.name} (pid {process.pid})")
    end_job_hosts()
    forget()
    check_ended()
