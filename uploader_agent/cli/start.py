"""What ``run`` does around the loop: it waits for a log directory at the start, and reloads the agent's file."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack
from pathlib import Path

import structlog
import typer

from tidemark.errors import ConfigError
from uploader_agent.agent import Agent
from uploader_agent.broker.properties import NoLogDir
from uploader_agent.cli.common import broker_of
from uploader_agent.observability.health import Health, Notifier, http_server
from uploader_agent.observability.log_config import ErrorDeduplicator, configure
from uploader_agent.observability.metrics import Metrics
from uploader_agent.settings import AgentSettings, load_settings
from uploader_agent.tuning import STANDARD, AgentTuning

logger = structlog.get_logger(__name__)

_TRY_INTERVAL = 1.0
"""Seconds between two tries."""


def await_log_dir(settings: AgentSettings, notifier: Notifier, tuning: AgentTuning = STANDARD) -> None:
    """Return once a log directory of the broker can be read; until then serve the pages, which say what is missing.

    Without a ``meta.properties`` nobody knows the cluster, and so neither the keys in the store nor anything to do. The
    disks may be mounted later than the agent starts; to end again and again would say less than the pages do.

    Raises:
        ConfigError: the broker's file is wrong.
        typer.Exit: SIGTERM or SIGINT came first.
    """
    missing = _missing(settings)
    if missing is None:
        return
    configure(settings)
    repeats = ErrorDeduplicator(logger, tuning.log_repeat)
    metrics, stopping = Metrics(), threading.Event()

    def reason() -> str:
        return f"no log directory can be read: {missing}"

    health = Health(float("inf"), tuning.stuck_after, disk_trouble=reason)
    with ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            stack.callback(signal.signal, number, signal.getsignal(number))
            signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else lambda *_: stopping.set())
        if settings.http.port is not None:
            unread = [{"path": str(path), "reason": str(missing)} for path in missing.log_dirs]
            address = settings.http.host, settings.http.port
            stack.enter_context(http_server(*address, health, metrics.registry, lambda: _waiting(health, unread)))
        while missing is not None:
            health.waits_for = reason()
            metrics.log_dirs_unreadable.set(len(missing.log_dirs))
            repeats.failed("start", "log_dirs_unreadable", "error", error=str(missing))
            notifier.turned(ready=False, status=health.waits_for)
            if stopping.wait(_TRY_INTERVAL):
                raise typer.Exit
            missing = _missing(settings)
        repeats.cleared("start", "log_dir_readable")


def _waiting(health: Health, unread: list[dict[str, str]]) -> dict[str, object]:
    return {"agent": health.waits_for, "log_dirs": unread, "partitions": []}


def _missing(settings: AgentSettings) -> NoLogDir | None:
    """The reason that no log directory can be read; None if one can."""
    if settings.broker is None:
        return None
    try:
        broker_of(settings)
    except NoLogDir as error:
        return error
    return None


def reload(path: Path, agent: Agent, metrics: Metrics, notifier: Notifier) -> None:
    """Read the agent's file again, on SIGHUP, and apply it as a whole; a wrong one is refused as a whole, and logged.

    The loop calls it, see :meth:`uploader_agent.agent.Agent.soon`.
    """
    with notifier.reloading():
        try:
            settings = load_settings(path)
            changed = agent.reconfigure(settings, str(path))
        except ConfigError as error:
            metrics.reloads.labels("refused").inc()
            logger.warning("reload_refused", error=str(error), instead="the old configuration stays in force")
        else:
            configure(settings)
            metrics.reloads.labels("applied").inc()
            logger.info("reload_applied", changed=changed)
