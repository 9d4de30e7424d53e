"""The hosts of jobs (``tidemark_airflow.submitters.child_processes``), and a folder of its own with which they end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import psutil

_MODULE = "tidemark_spark.cluster.job_host"


@contextmanager
def own_hosts() -> Iterator[Path]:
    """Hosts are started in this folder while the context lasts. A path of pytest's would be too long for a socket."""
    folder = Path(tempfile.mkdtemp(prefix="hosts-"))
    try:
        with patch.object(tempfile, "tempdir", str(folder)):
            yield folder
    finally:
        for host in hosts_in(folder):
            host.kill()
        shutil.rmtree(folder)


def hosts_in(folder: Path) -> list[psutil.Process]:
    """The hosts with a socket below ``folder``."""

    def listens_in(host: psutil.Process) -> bool:
        return any(str(part.laddr).startswith(f"{folder}/") for part in host.net_connections("unix"))

    return job_hosts(listens_in)


def job_hosts(wanted: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    """The ``wanted`` ones of this user's hosts, on the whole machine."""
    return [process for process in psutil.process_iter() if _is_host(process, wanted)]


def _is_host(process: psutil.Process, wanted: Callable[[psutil.Process], bool]) -> bool:
    try:
        return _MODULE in process.cmdline() and wanted(process)
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # it has ended, or is another user's
        return False
