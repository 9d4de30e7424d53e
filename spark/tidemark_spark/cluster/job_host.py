"""Runs jobs as forks of one process that has imported what they need, so that none of them imports it again.

A job of a Spark Connect deployment takes a second or two of CPU time to import its libraries, and less than that for
its work. So a task of Airflow, see ``tidemark_airflow.submitters.child_processes``, starts this process once, with a
listening socket as its standard input, and asks it for a fork for each job. The host itself runs nothing of a job, and
starts no thread. A request is a JSON object behind its length in 8 bytes, and comes with the descriptor of the job's
output:

* ``program`` and ``arguments``: the file and the command line of the job
* ``environment`` and ``directory``: the job's whole environment, and its working directory

The answer is ``+`` once the job runs, then its exit code in 4 bytes, negative for a signal. A job whose client goes
away ends with all of its processes. The host ends after :data:`IDLE_SECONDS` without a job, and before the next job
once the installation has changed.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import sysconfig
import time
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

IDLE_SECONDS: Final = 900.0
GRACE_SECONDS: Final = 3.0
"""Time for a job to end by itself: Airflow gives a killed task 5 seconds."""

_REQUEST_SECONDS: Final = 10.0
_EARLY: Final = ("pyspark.sql.connect.session", "tidemark_spark.cluster.connect_client")
"""Modules that jobs import only once they have tasks for Spark."""


class Request(NamedTuple):
    """A job to run; ``output`` is the descriptor of its standard output and error."""

    program: str
    arguments: list[str]
    environment: dict[str, str]
    directory: str
    output: int


class _Job:
    """A running fork; ``end_at`` is the time of its SIGKILL, once its client has gone."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid, self.connection = pid, connection
        self.ended = os.pidfd_open(pid)
        self.end_at: float | None = None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the job."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


class JobHost:
    """Serves one listening socket, which is removed from its folder when no further job is accepted."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._jobs: dict[int, _Job] = {}
        self._accepts = True
        self._files = _installed()

    def serve(self, idle: float = IDLE_SECONDS) -> Request | None:
        """Start jobs until none is wanted any more. In a fork, returns the job to run there; None in the host."""
        while self._accepts or self._jobs:
            events = self._selector.select(self._until_next(idle))
            for key, _ in events:
                if key.fileobj is self._listener:
                    request = self._accepted()
                    if request is not None:
                        return request
                else:
                    self._look(key.data)
            self._kill_overdue()
            if not events and not self._jobs:
                self._close()
        return None

    def _until_next(self, idle: float) -> float | None:
        """Seconds until a job is overdue or the host is idle for too long; None if only a job can end the wait."""
        times = [job.end_at for job in self._jobs.values() if job.end_at is not None]
        if times:
            return max(0.0, min(times) - time.monotonic())
        return None if self._jobs else idle

    def _accepted(self) -> Request | None:
        """Fork for the next client. In the fork, returns its request."""
        connection, _ = self._listener.accept()
        if _installed() != self._files:
            self._close()  # this process has the modules of before; the client starts another one
            connection.close()
            return None
        try:
            request = _received(connection)
        except (OSError, ValueError):  # the client is gone, which nobody else needs to know
            connection.close()
            return None
        _import_for(request.program)
        self._files |= _installed()
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            self._forget()
            connection.close()
            return request
        with suppress(PermissionError, ProcessLookupError):  # the fork may have been faster
            os.setpgid(pid, pid)
        os.close(request.output)
        job = self._jobs[pid] = _Job(pid, connection)
        self._selector.register(connection, selectors.EVENT_READ, job)
        self._selector.register(job.ended, selectors.EVENT_READ, job)
        with suppress(OSError):
            connection.sendall(b"+")
        return None

    def _look(self, job: _Job) -> None:
        """Answer that a job has ended, or end a job without a client."""
        if job.pid not in self._jobs:
            return
        pid, status = os.waitpid(job.pid, os.WNOHANG)
        if pid:
            self._ended(job, os.waitstatus_to_exitcode(status))
        elif job.end_at is None and _is_closed(job.connection):
            self._selector.unregister(job.connection)
            job.end_at = time.monotonic() + GRACE_SECONDS
            job.signal(signal.SIGTERM)

    def _ended(self, job: _Job, code: int) -> None:
        del self._jobs[job.pid]
        self._selector.unregister(job.ended)
        os.close(job.ended)
        if job.end_at is None:
            self._selector.unregister(job.connection)
        else:
            job.signal(signal.SIGKILL)  # what the job has started may have outlived it
        with suppress(OSError):
            job.connection.sendall(struct.pack("!i", code))
        job.connection.close()

    def _kill_overdue(self) -> None:
        for job in self._jobs.values():
            if job.end_at is not None and job.end_at <= time.monotonic():
                job.signal(signal.SIGKILL)

    def _close(self) -> None:
        """Accept no more jobs."""
        if self._accepts:
            self._accepts = False
            with suppress(FileNotFoundError):
                Path(self._listener.getsockname()).unlink()
            self._selector.unregister(self._listener)
            self._listener.close()

    def _forget(self) -> None:
        """Close in a fork what belongs to the host."""
        self._selector.close()
        self._listener.close()
        for job in self._jobs.values():
            job.connection.close()
            os.close(job.ended)


def main() -> int:
    """Serve on standard input; in a fork, run its job, which ends like any program."""
    listener = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    request = JobHost(listener).serve()
    if request is not None:
        _run(request)
    return 0


def _run(request: Request) -> None:
    """Run the job as if Python had been started with it."""
    os.dup2(request.output, 1)
    os.dup2(request.output, 2)
    os.close(request.output)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.directory)
    sys.argv[:] = [request.program, *request.arguments]
    sys.path[0] = str(Path(request.program).parent)
    runpy.run_path(request.program, run_name="__main__")


def _import_for(program: str) -> None:
    """Import what a job of ``program`` will import, unless that is done."""
    if program in _imported:
        return
    _imported.add(program)
    loads: list[partial[Any]] = [partial(import_module, name) for name in _EARLY]
    for load in (partial(runpy.run_path, program, run_name="imported"), *loads):
        # The job meets the same error, and it has an output to say so.
        with suppress(Exception, SystemExit):
            load()
    gc.collect()
    gc.freeze()  # a collection in a fork would copy the pages of all that is loaded


_imported: set[str] = set()


def _received(connection: socket.socket) -> Request:
    """The request of a client. Raises OSError or ValueError if it does not come, or is none."""
    connection.settimeout(_REQUEST_SECONDS)
    head, outputs, _, _ = socket.recv_fds(connection, 8, 1)
    try:
        [size] = struct.unpack("!Q", head)
        with connection.makefile("rb") as stream:
            fields = json.loads(stream.read(size))
        [output] = outputs
        return Request(**fields, output=output)
    except (OSError, ValueError, TypeError, struct.error) as error:
        for output in outputs:
            os.close(output)
        raise ValueError("no request") from error
    finally:
        connection.settimeout(None)


def _is_closed(connection: socket.socket) -> bool:
    """True if the other end is gone, or has shut its side."""
    try:
        return not connection.recv(1, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _installed() -> dict[str, int]:
    """Times of change of the loaded modules of Tidemark, and of the folder with the installed packages."""
    ours = (module for name, module in list(sys.modules.items()) if name.partition(".")[0] in _OURS)
    files = [*(file for module in ours if (file := getattr(module, "__file__", None))), sysconfig.get_path("purelib")]
    found: dict[str, int] = {}
    for file in files:
        with suppress(FileNotFoundError):  # then it is missing in the answer, which differs
            found[file] = Path(file).stat().st_mtime_ns
    return found


_OURS: Final = {"tidemark", "tidemark_spark"}


if __name__ == "__main__":
    sys.exit(main())
