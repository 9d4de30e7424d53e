"""A folder of its own for the hosts of jobs (``tidemark_airflow.submitters.forked``), which end with it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
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
    return [process for process in psutil.process_iter() if _listens_in(process, folder)]


def _listens_in(process: psutil.Process, folder: Path) -> bool:
    try:
        if _MODULE not in process.cmdline():
            return False
        return any(str(part.laddr).startswith(f"{folder}/") for part in process.net_connections("unix"))
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
