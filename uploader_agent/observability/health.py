"""The agent's health, and those who hear of it: whoever asks for a page of :data:`PAGES`, and the service manager.

The server listens on 127.0.0.1 by default, and only if it has a port. An answer other than "ok" states the reason.

The service manager that started the agent gets systemd's notifications (``sd_notify(3)``): datagrams of ``NAME=value``
lines to the socket in ``NOTIFY_SOCKET``. Without it, nothing is sent. They are a courtesy: if the manager does not
listen, that is logged, and the agent works on.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import NamedTuple, Self

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from uploader_agent.observability.log_config import ErrorDeduplicator
from uploader_agent.runtime import Thread

logger = structlog.get_logger(__name__)

PAGES = ("/-/alive", "/-/healthy", "/-/ready", "/metrics", "/waiting")
QUESTION_LIMIT = 60.0
"""Seconds after which a question to the broker should long have failed under the client's own time limits."""


class Failing(NamedTuple):
    """Something has not worked for ``seconds``; ``words`` tell what, for how long, and the last ``error``, if any."""

    seconds: float
    words: str
    error: str | None


class Health:
    """Collects the reports of the loop and the workers, and judges them.

    The agent is unhealthy if its loop has not turned for ``turn_limit`` seconds, a thread has ended, a question to the
    broker has been open for a minute, a disk of the broker cannot be read, a log is not the stored one, or work has
    waited for ``stuck_after`` and none was finished: jobs of the workers, partitions to pack in a bucket, the watermark
    index, or questions to the broker. The last two are due each minute, so they show what fails an idle agent; before
    the agent is ready, a minute of failures is enough.
    """

    def __init__(
        self,
        turn_limit: float,
        stuck_after: timedelta,
        clock: Callable[[], float] = time.monotonic,
        *,
        question_open_for: Callable[[], float] = lambda: 0.0,
        packs_stalled: Callable[[], Failing | None] = lambda: None,
        failing: Iterable[Callable[[], Failing | None]] = (),
        disk_trouble: Callable[[], str | None] = lambda: None,
        other_histories: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Begin unready.

        ``question_open_for`` returns the seconds for which the broker has not answered, ``packs_stalled`` the bucket in
        which partitions have waited longest to be packed, each of ``failing`` the failure of what is due each minute,
        ``disk_trouble`` what cannot be read of the broker's disks, and ``other_histories`` the partitions with a log
        that is another history than the stored one.
        """
        self.stuck_after = stuck_after
        self.turn_limit = turn_limit
        self.waits_for: str | None = "the disk and the broker have not been looked at yet"
        self._question_open_for = question_open_for
        self._packs_stalled = packs_stalled
        self._failing = tuple(failing)
        self._disk_trouble = disk_trouble
        self._other_histories = other_histories
        self._clock = clock
        self._turned = self._progressed = clock()
        self._unfinished = 0
        self._last_failure: str | None = None
        self._segments_fail = False
        self._threads: dict[str, Thread] = {}
        self._stopping = False

    def watch(self, name: str, thread: Thread) -> None:
        """Report trouble if ``thread`` ends before the agent stops."""
        self._threads[name] = thread

    def stopping(self) -> None:
        """Note that the agent stops, so that its threads may end."""
        self._stopping = True

    def turned(self) -> None:
        """Note a turn of the loop."""
        self._turned = self._clock()

    def unfinished(self, jobs: int) -> None:
        """Note the number of jobs that wait, run, or have failed and are to be tried again."""
        self._unfinished = jobs
        if not jobs:
            self._progressed = self._clock()
            self._segments_fail = False

    def finished(self, *, segment: bool) -> None:
        """Note that a worker has stored a segment, or has finished a survey.

        While segments fail, surveys do not count as progress: a store may allow reads and refuse every write.
        """
        if segment:
            self._segments_fail = False
        if not self._segments_fail:
            self._progressed = self._clock()
            self._last_failure = None

    def failed(self, error: str, *, segment: bool) -> None:
        """Note that a job has failed and will be tried again."""
        self._last_failure = error
        self._segments_fail = self._segments_fail or segment

    @property
    def ready(self) -> bool:
        """True once the agent has learnt the partitions that it leads, and the store has taken its watermark index."""
        return self.waits_for is None

    def stopped(self) -> str | None:
        """The part of the agent that has stopped, so that only a restart helps; None if all parts run."""
        still = self._clock() - self._turned
        if still > self.turn_limit:
            return f"the loop has not turned for {still:.0f} s"
        started = {name: thread for name, thread in [*self._threads.items()] if thread.ident is not None}
        ended = [name for name, thread in started.items() if not thread.is_alive()]
        if ended and not self._stopping:
            return f"the threads {', '.join(ended)} have ended, see the log for why: restart the agent"
        return None

    def trouble(self) -> str | None:
        """The reason that the agent is unhealthy; None if it is healthy."""
        if stopped := self.stopped():
            return stopped
        open_for = self._question_open_for()
        if open_for > QUESTION_LIMIT:
            return f"the broker has not answered a question for {open_for:.0f} s, not even with an error"
        stuck = self._clock() - self._progressed
        if self._unfinished and stuck > self.stuck_after.total_seconds():
            failure = f"; the last failure: {self._last_failure}" if self._last_failure else ""
            return f"nothing was finished for {stuck:.0f} s, though {self._unfinished} jobs are waiting{failure}"
        if unread := self._disk_trouble():
            return unread
        limit = self.stuck_after.total_seconds()
        packs = self._packs_stalled()
        if packs is not None and packs.seconds > limit:
            return packs.words
        patience = limit if self.ready else min(limit, QUESTION_LIMIT)
        failures = (failing() for failing in self._failing)
        failed = next((failure.words for failure in failures if failure and failure.seconds > patience), None)
        return failed or self._other_histories()


class HttpServer:
    """Serves the pages in a thread of its own; usable with ``with``."""

    def __init__(
        self,
        host: str,
        port: int,
        health: Health,
        registry: CollectorRegistry,
        waiting: Callable[[], Mapping[str, object]],
    ) -> None:
        """Bind at once, so that a port that is taken is an error at the start. Raises OSError.

        ``waiting`` returns the answer of ``/waiting``, as JSON.
        """
        shared = {"health": health, "registry": registry, "waiting": staticmethod(waiting)}
        self._server = ThreadingHTTPServer((host, port), type("Handler", (_Handler,), shared))
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    @property
    def port(self) -> int:
        """The TCP port that it listens on, even if the system chose it."""
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


def http_server(
    host: str, port: int, health: Health, registry: CollectorRegistry, waiting: Callable[[], Mapping[str, object]]
) -> HttpServer:
    """See :class:`HttpServer`. Raises OSError that names the setting."""
    try:
        return HttpServer(host, port, health, registry, waiting)
    except OSError as error:
        raise OSError(error.errno, f"http: cannot listen on {host}:{port}: {error.strerror}") from error


class _Handler(BaseHTTPRequestHandler):
    health: Health
    registry: CollectorRegistry
    waiting: Callable[[], Mapping[str, object]]
    timeout = 5

    def do_GET(self) -> None:
        """Answer each of :data:`PAGES`; anything else with 404."""
        if self.path == "/metrics":
            self._answer(200, generate_latest(self.registry), CONTENT_TYPE_LATEST)
        elif self.path == "/-/alive":
            self._judge(self.health.stopped())
        elif self.path == "/-/healthy":
            self._judge(self.health.trouble())
        elif self.path == "/-/ready":
            self._judge(self.health.waits_for)
        elif self.path == "/waiting":
            self._answer(200, f"{json.dumps(self.waiting(), indent=1)}\n".encode(), "application/json")
        else:
            self._answer(404, f"try one of {', '.join(PAGES)}\n".encode(), "text/plain; charset=utf-8")

    def _judge(self, wrong: str | None) -> None:
        self._answer(503 if wrong else 200, f"{wrong or 'ok'}\n".encode(), "text/plain; charset=utf-8")

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name for it
        """Log nothing: requests are not logged."""


_STATUS_INTERVAL = 10.0
"""Seconds between two status lines, unless the watchdog's limit is shorter."""

_MICROSECONDS = 1_000_000


class Notifier:
    """Sends notifications to the manager of this process. Not thread-safe; the loop owns it."""

    def __init__(
        self, environment: Mapping[str, str] = os.environ, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self._watchdog = _watchdog(environment)
        self._interval = min(_STATUS_INTERVAL, self._watchdog / 3) if self._watchdog else _STATUS_INTERVAL
        self._clock = clock
        self._repeats = ErrorDeduplicator(logger, timedelta(minutes=5), clock)
        self._ready = False
        self._next = -float("inf")

    @property
    def next_time(self) -> float:
        """The latest time, on the clock, for the next call of :meth:`turned`."""
        return self._next if self._address else float("inf")

    def turned(self, *, ready: bool, status: str) -> None:
        """Keep the watchdog quiet, and show ``status``, one line, in ``systemctl status``. Called every turn."""
        first, now = ready and not self._ready, self._clock()
        if not (first or now >= self._next):
            return
        self._ready = self._ready or ready
        self._next = now + self._interval
        fields = {"STATUS": status}
        if first:
            fields["READY"] = "1"
        if self._watchdog:
            fields["WATCHDOG"] = "1"
        self._send(fields)

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """A context in which the configuration is read again."""
        if self._ready:
            self._send({"RELOADING": "1", "MONOTONIC_USEC": str(time.monotonic_ns() // 1000)})
        yield
        if self._ready:
            self._send({"READY": "1"})

    def stopping(self) -> None:
        """Notify that the agent finishes its running uploads and then ends."""
        self._send({"STOPPING": "1", "STATUS": "finishing the uploads under way"})

    def _send(self, fields: Mapping[str, str]) -> None:
        if not self._address:
            return
        message = "\n".join(f"{name}={value}" for name, value in fields.items()).encode()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.connect(self._address)
                sender.send(message)
        except OSError as error:
            self._repeats.failed("manager", "service_manager_not_told", error=str(error))
        else:
            self._repeats.cleared("manager", "service_manager_told_again")


def _address(name: str) -> str | None:
    """The socket's address: a path, or a name in the abstract namespace, which is written with ``@``."""
    if name.startswith("@"):
        return f"\0{name[1:]}"
    return name or None


def _watchdog(environment: Mapping[str, str]) -> float | None:
    """Seconds within which the manager expects a sign of life (``sd_watchdog_enabled(3)``); None if it expects none."""
    addressee = environment.get("WATCHDOG_PID") or str(os.getpid())
    microseconds = environment.get("WATCHDOG_USEC", "")
    if addressee != str(os.getpid()) or not microseconds.isdecimal():
        return None
    return int(microseconds) / _MICROSECONDS or None
