"""Jobs as forks of a process that has imported their libraries, ``tidemark_spark.cluster.job_host``.

The host is started by the first job that needs it, and stays for the jobs of later tasks. There is one for each Python,
program folder and environment of this user: a host gets only variables that are the same for all of its jobs, and each
job gets its own ones with the request. The socket is in a folder that only this user may enter.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import stat
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TextIO

from airflow.sdk.exceptions import AirflowException

_TRIES: Final = 3
"""A host that ends just now, or has an installation of before, takes no job: then the next one is asked."""

_MODULE: Final = "tidemark_spark.cluster.job_host"
_LAST_BYTES: Final = 2000
_LONGEST_FOLDER: Final = 80
"""Linux allows 107 bytes for the path of a socket."""


class ForkedJob:
    """One job: :meth:`start` it, read its output to the end, then take :meth:`code`; or :meth:`end` it before."""

    def __init__(self, python: str, common: Mapping[str, str]) -> None:
        """``common`` are the variables of the host, which are the same for all jobs."""
        self._python = python
        self._common = dict(common)
        key = hashlib.sha256(json.dumps([python, sorted(self._common.items())]).encode()).hexdigest()[:16]
        self._path = _folder() / f"{key}.socket"
        self._connection: socket.socket | None = None

    def start(self, program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> TextIO:
        """Start ``program``, and return the stream of what it writes.

        Raises:
            AirflowException: no host takes the job; the message has the last lines of the host.
        """
        fields = {
            "program": program,
            "arguments": list(arguments),
            "environment": dict(environment),
            "directory": str(Path.cwd()),
        }
        body = json.dumps(fields).encode()
        for _ in range(_TRIES):
            output, written = os.pipe()
            connection = self._connected()
            try:
                with suppress(OSError):
                    socket.send_fds(connection, [struct.pack("!Q", len(body))], [written])
                    connection.sendall(body)
                    if connection.recv(1) == b"+":
                        self._connection = connection
                        return os.fdopen(output, errors="replace")
            finally:
                os.close(written)
            connection.close()
            os.close(output)
        said = self._log.read_bytes()[-_LAST_BYTES:].decode(errors="replace").strip()
        raise AirflowException(f"{self._python} -m {_MODULE} takes no job; its last lines:\n{said or 'none'}")

    def code(self) -> int:
        """The job's exit code, negative for a signal. Raises AirflowException if the host was killed."""
        assert self._connection is not None
        with self._connection.makefile("rb") as stream:
            answer = stream.read(4)
        if len(answer) < 4:
            raise AirflowException("the host of the job was killed; the job is started again by the next try")
        code: int = struct.unpack("!i", answer)[0]
        return code

    def end(self) -> None:
        """Have all processes of the job end: by SIGTERM, and by SIGKILL 3 s later. Safe in a signal's handler."""
        if self._connection is not None:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)

    @property
    def _log(self) -> Path:
        return self._path.with_suffix(".log")

    def _connected(self) -> socket.socket:
        """A connection to the host, which is started if there is none."""
        connection = socket.socket(socket.AF_UNIX)
        with _locked(self._path.with_suffix(".lock")):
            try:
                connection.connect(str(self._path))
            except (FileNotFoundError, ConnectionRefusedError):
                self._start_host()
                connection.connect(str(self._path))
        return connection

    def _start_host(self) -> None:
        self._path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener, self._log.open("wb") as log:
            listener.bind(str(self._path))
            listener.listen(64)
            host = subprocess.Popen(
                [self._python, "-m", _MODULE],
                env=self._common,
                cwd="/",
                stdin=listener.fileno(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _started.append(host)


_started: list[subprocess.Popen[bytes]] = []
"""The hosts that this process has started. It does not wait for them: they outlive it."""


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _folder() -> Path:
    """The folder of the hosts of this user. Raises AirflowException if it is not theirs alone, or its path too long."""
    folder = Path(tempfile.gettempdir()) / f"tidemark-hosts-{os.getuid()}"
    if len(os.fsencode(folder)) > _LONGEST_FOLDER:
        raise AirflowException(f"{folder}: is too long for the path of a socket: set TMPDIR to a shorter one")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise AirflowException(f"{folder}: must be a folder of this user alone, mode 0700: remove it")
    return folder
