"""When a host ends, in this process: what it does for a job is tested with its client, tests/plugins/submitters."""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemark_spark.cluster import job_host
from tidemark_spark.cluster.job_host import JobHost


@pytest.fixture
def path() -> Iterator[Path]:
    """Where a socket may be: a path of pytest's is too long."""
    folder = Path(tempfile.mkdtemp(prefix="host-"))
    yield folder / "socket"
    shutil.rmtree(folder)


def listening(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    return listener


def test_it_ends_if_no_job_comes(path: Path) -> None:
    assert JobHost(listening(path)).serve(idle=0.01) is None
    assert not path.exists(), "nobody may connect to it any more"


def test_it_takes_no_job_once_the_installation_has_changed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = JobHost(listening(path))
    installed = job_host._installed()
    assert any(file.endswith("job_host.py") for file in installed)
    monkeypatch.setattr(job_host, "_installed", lambda: {**installed, "another.py": 1})
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        assert host.serve() is None
        assert client.recv(1) == b"", "no job has started, so the client asks another host"
    assert not path.exists()


@pytest.mark.parametrize("said", [b"", b"\0" * 8, b"\0" * 7 + b"\2[]", b"\0" * 7 + b"\2{}"])
def test_a_client_that_asks_for_nothing_disturbs_nobody(path: Path, said: bytes) -> None:
    host = JobHost(listening(path))
    thread = threading.Thread(target=host.serve, kwargs={"idle": 0.2})
    thread.start()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(said)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
    thread.join()
    assert not path.exists(), "it went on until it was idle"
