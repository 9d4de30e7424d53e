"""Notifications to the service manager that started the agent: systemd's protocol, ``sd_notify(3)``.

They are datagrams of ``NAME=value`` lines to the socket in ``NOTIFY_SOCKET``; without it, nothing is sent. They are a
courtesy: if the manager does not listen, that is logged, and the agent works on.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

import structlog

from uploader_agent.observability.log_config import ErrorDeduplicator

logger = structlog.get_logger(__name__)

_INTERVAL = 10.0
"""Seconds between two status lines, unless the watchdog's limit is shorter."""

_MICROSECONDS = 1_000_000


class Notifier:
    """Sends notifications to the manager of this process. Not thread-safe; the loop owns it."""

    def __init__(
        self, environment: Mapping[str, str] = os.environ, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self._watchdog = _watchdog(environment)
        self._interval = min(_INTERVAL, self._watchdog / 3) if self._watchdog else _INTERVAL
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
