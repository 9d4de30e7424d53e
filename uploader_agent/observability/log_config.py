"""The agent's log: one line per event to standard error, for people or as JSON, without secrets.

The agent logs no secret itself, but it logs messages of client libraries, which may quote one. So every known secret is
blotted out of every line: passwords and tokens of the configuration, and the values of secret variables of AWS and the
agent in the environment.

An error that repeats does not fill the log: see :class:`ErrorDeduplicator`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Literal

import structlog
from structlog.typing import FilteringBoundLogger

from tidemark.config import is_secret
from tidemark.store.schemes import CREDENTIALS
from uploader_agent.settings import ENVIRONMENT_PREFIX, AgentSettings

logger = structlog.get_logger(__name__)

Level = Literal["debug", "info", "warning", "error"]

_CREDENTIALS = (*CREDENTIALS, ENVIRONMENT_PREFIX)
_QUIET = ("kafka", "kazoo", "botocore", "boto3", "urllib3")
_SHORTEST = 4
"""Characters of the shortest secret that is blotted out: shorter secrets would blot out half of the log."""


def configure(settings: AgentSettings, environment: Mapping[str, str] = os.environ) -> None:
    """Set up structlog, and silence the client libraries: the agent reports their errors itself."""
    renderers: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if settings.log.format == "json"
        # A plain traceback: richer ones print local variables.
        else [
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        ]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *renderers,
            _Blot(sorted(_secrets(settings, environment))),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, settings.log.level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    sys.excepthook = _crashed
    threading.excepthook = lambda crash: _crashed(crash.exc_type, crash.exc_value, crash.exc_traceback)


def _crashed(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    """Log an exception that nothing caught, like every other event."""
    logger.critical("crashed", exc_info=(kind, error, trace))


class _Blot:
    """The last processor: replaces each secret in the finished line, plain or as JSON and Python write it."""

    def __init__(self, secrets: Sequence[str]) -> None:
        written = {
            form
            for secret in secrets
            for form in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1])
            if len(secret) >= _SHORTEST
        }
        longest_first = sorted(written, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if written else None

    def __call__(self, _logger: object, _method: str, line: structlog.typing.EventDict) -> str:
        text = str(line)
        return self._pattern.sub("***", text) if self._pattern else text


def _secrets(settings: AgentSettings, environment: Mapping[str, str]) -> set[str]:
    """Values of settings and variables with names that mark them as secret."""
    variables = {name: value for name, value in environment.items() if name.startswith(_CREDENTIALS)}
    options: list[Mapping[str, object]] = [variables]
    if settings.broker is not None:
        options += [settings.broker.client, settings.broker.zookeeper]
    if settings.fetch is not None:
        options.append(settings.fetch.client)
    return {str(value) for section in options for name, value in _leaves(section) if is_secret(name)}


def _leaves(section: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        else:
            yield name, value


class ErrorDeduplicator:
    """Logs each error to ``logger`` once, again with its count each ``every``, and its end on a line of its own.

    A key names the thing that fails, such as ``("index", url)``. The error may change while it lasts; the next line
    states the newest. Memory is one entry for each key that has not cleared. Thread-safe.
    """

    def __init__(
        self, logger: FilteringBoundLogger, every: timedelta, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.every = every
        self._logger = logger
        self._clock = clock
        self._troubles: dict[Hashable, _Trouble] = {}
        self._lock = threading.Lock()

    def failed(self, key: Hashable, event: str, /, level: Level = "warning", **details: object) -> None:
        """Note a failure of ``key``. A repeated line has ``times``, the failures since the first."""
        now = self._clock()
        with self._lock:
            trouble = self._troubles.get(key)
            if trouble is None:
                self._troubles[key] = _Trouble(now, now)
            else:
                trouble.times += 1
                if now - trouble.logged < self.every.total_seconds():
                    return
                trouble.logged = now
                details["times"] = trouble.times
        getattr(self._logger, level)(event, **details)

    def cleared(self, key: Hashable, event: str, /, **details: object) -> None:
        """Note that ``key`` works. Logged if it had failed, with ``times`` and ``seconds``, the duration."""
        with self._lock:
            trouble = self._troubles.pop(key, None)
        if trouble is not None:
            lasted = round(self._clock() - trouble.began, 3)
            self._logger.info(event, **details, times=trouble.times, seconds=lasted)

    def failing(self) -> set[Hashable]:
        """The keys that have failed and not cleared."""
        with self._lock:
            return set(self._troubles)


@dataclass(slots=True)
class _Trouble:
    """An error that has not cleared: the times of its start and of its last line, and its count."""

    began: float
    logged: float
    times: int = 1
