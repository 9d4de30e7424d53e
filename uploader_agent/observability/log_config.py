"""The agent's log: one line per event to standard error, for people or as JSON, without secrets.

The agent logs no secret itself, but it logs messages of client libraries, which may quote one. So every known secret is
blotted out of every line: passwords and tokens of the configuration, and the values of secret variables of AWS and the
agent in the environment.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType

import structlog

from tidemark.config import is_secret
from tidemark.store.schemes import CREDENTIALS
from uploader_agent.settings import ENVIRONMENT_PREFIX, AgentSettings

logger = structlog.get_logger(__name__)

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
