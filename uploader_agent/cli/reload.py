"""The reload on SIGHUP: the agent's file is read again, and applied as a whole or refused as a whole."""

from __future__ import annotations

from pathlib import Path

import structlog

from tidemark.errors import ConfigError
from uploader_agent.agent import Agent
from uploader_agent.observability.log_config import configure
from uploader_agent.observability.metrics import Metrics
from uploader_agent.observability.systemd import Notifier
from uploader_agent.settings import load_settings

logger = structlog.get_logger(__name__)


class Reload:
    """A reload of the file; the loop calls it, see :meth:`uploader_agent.agent.Agent.soon`."""

    def __init__(self, path: Path, agent: Agent, metrics: Metrics, notifier: Notifier) -> None:
        self._path = path
        self._agent = agent
        self._notifier = notifier
        self._applied = metrics.reloads.labels("applied")
        self._refused = metrics.reloads.labels("refused")

    def __call__(self) -> None:
        """Read the file and apply it. If it is wrong, log the error and keep the old configuration in force."""
        with self._notifier.reloading():
            try:
                settings = load_settings(self._path)
                changed = self._agent.reconfigure(settings, str(self._path))
            except ConfigError as error:
                self._refused.inc()
                logger.warning("reload_refused", error=str(error), instead="the old configuration stays in force")
            else:
                configure(settings)
                self._applied.inc()
                logger.info("reload_applied", changed=changed)
