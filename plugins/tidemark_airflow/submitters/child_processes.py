"""Submitters whose jobs are child processes of the task: plain Python, spark-submit, and a client of Spark Connect.

Their output is written to the task's log, and they end when the task is killed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shlex
import socket
import stat
import struct
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TextIO

import psutil
from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk.exceptions import AirflowException
from typing_extensions import override

from tidemark_airflow import settings
from tidemark_airflow.submitters.base import KeptId, SparkJob, Submitter
from tidemark_airflow.submitters.environment import job_environment

GRACE_SECONDS = 3.0
"""Seconds for a process to end by itself: Airflow gives a killed task 5 seconds."""
_LAST_LINES = 15
_LONGEST_LINE = 2000

_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
_ONE_COMPILER: Final = "-XX:TieredStopAtLevel=1"
"""The driver's JVM only schedules, and its second compiler would cost more than it saves."""

_TRIES: Final = 3
"""A host that ends just now, or has an installation of before, takes no job: then the next one is asked."""

_MODULE: Final = "tidemark_spark.cluster.job_host"
_LAST_BYTES: Final = 2000
_LONGEST_FOLDER: Final = 80
"""Linux allows 107 bytes for the path of a socket."""

log = logging.getLogger(__name__)


class PlainPython(Submitter):
    """Runs a job without Spark in ``python``; ``environment`` has further variables of the job."""

    def __init__(self, python: str, environment: Mapping[str, str]) -> None:
        self._python, self._environment = python, job_environment(environment)

    @override
    def run(self, job: SparkJob, kept: KeptId) -> str | None:
        command = [self._python, str(settings.spark_job(job.program)), *job.arguments]
        log.info("without Spark: %s", shlex.join(command))
        run(job.program, command, self._environment)
        return None

    @override
    def end(self) -> None:
        end(descendants())


class SparkSubmit(Submitter):
    """Starts a driver for each job; a job without tasks for Spark runs in plain Python instead, without a JVM.

    Spark's settings are the connection's; ``environment`` has further variables of the job.
    """

    def __init__(self, conn_id: str, environment: Mapping[str, str]) -> None:
        self._conn_id = conn_id
        self._environment = dict(environment)
        self._hook: SparkSubmitHook | None = None

    @override
    def run(self, job: SparkJob, kept: KeptId) -> str | None:
        if not job.needs_spark and (python := settings.python_of_spark()) is not None:
            return PlainPython(python, self._environment).run(job, kept)
        self._hook = SparkSubmitHook(
            conn_id=self._conn_id,
            name=job.name,
            application_args=list(job.arguments),
            spark_binary=settings.spark_submit(),
        )
        # Only through Popen: the hook adds ``env_vars`` to the whole environment of this process, with Airflow's keys.
        environment = job_environment(self._environment)
        # First, because the JVM applies the last of two options: the deployment's, here or in Spark's settings.
        environment[_OPTIONS] = f"{_ONE_COMPILER} {environment.get(_OPTIONS, '')}".rstrip()
        self._hook.submit(str(settings.spark_job(job.program)), env=environment)
        return None

    @override
    def end(self) -> None:
        """End all of the job's processes, since spark-submit alone would leave its driver behind."""
        started = descendants()
        try:
            if self._hook is not None:
                self._hook.on_kill()
        finally:
            end(started)


class SparkConnect(Submitter):
    """Runs a job as a client of the connection's server, in a fork of a process that has imported its libraries.

    The job gets the server's token through the environment, which is hidden from other users.
    """

    def __init__(self, conn_id: str, environment: Mapping[str, str]) -> None:
        self._conn_id = conn_id
        self._environment = dict(environment)
        self._job: ForkedJob | None = None

    @override
    def run(self, job: SparkJob, kept: KeptId) -> str | None:
        own = {**self._environment, "SPARK_REMOTE": SparkConnectHook(self._conn_id).get_connection_url()}
        environment = job_environment(own)
        common = {name: value for name, value in environment.items() if name not in own}
        self._job = ForkedJob(settings.spark_python(), common)
        path = str(settings.spark_job(job.program))
        log.info("Spark Connect: %s", shlex.join([path, *job.arguments]))
        try:
            with self._job.start(path, job.arguments, environment) as output:
                last = _logged(output)
            code = self._job.code()
        except BaseException:
            self._job.end()
            raise
        _check(job.program, code, last)
        return None

    @override
    def end(self) -> None:
        if self._job is not None:
            self._job.end()


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


class ForkedJob:
    """One job: :meth:`start` it, read its output to the end, then take :meth:`code`; or :meth:`end` it before.

    It is a fork of a process that has imported the jobs' libraries, ``tidemark_spark.cluster.job_host``. The first job
    that needs this host starts it, and it stays for the jobs of later tasks. There is one for each Python and
    environment of this user: a host gets only variables that are the same for all of its jobs, and each job gets its
    own ones with the request. The socket is in a folder that only this user may enter.
    """

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
