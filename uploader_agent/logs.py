"""The agent's log: one line an event, to standard error, for people or as JSON."""

from __future__ import annotations

import logging
import sys

import structlog

from uploader_agent.settings import LogSettings


def configure(settings: LogSettings) -> None:
    """Set up structlog, and quiet the client libraries, whose errors the agent reports itself."""
    renderers: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if settings.format == "json"
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, settings.level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    for name in ("kafka", "botocore", "boto3", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
