"""The log directories of the broker beside the agent, as ``server.properties`` names them now.

Each of them stays known while it is named, whether it answers or not. One that answers has a ``meta.properties`` of
this broker: a disk that is not mounted leaves an empty directory, and one from elsewhere holds other logs.

The file may change before the broker is restarted with it. So a directory that it no longer names is still followed
while it answers as this broker's. If all that it names are of another broker or cluster, the broker was replaced.
"""

from __future__ import annotations

from pathlib import Path

import structlog
from typing_extensions import override

from tidemark.errors import ConfigError, FormatError, TidemarkError
from uploader_agent.broker.properties import META, Broker, NoLogDir, read_broker, read_identity
from uploader_agent.disk.locks import AlreadyRunning, DirectoryLocks
from uploader_agent.disk.log_dirs import LogDirs

logger = structlog.get_logger(__name__)


class BrokerReplaced(TidemarkError):
    """The broker has become another one; an agent that is started now works for that one."""


class BrokerDirs(LogDirs):
    """Follows ``broker``, which :func:`read_broker` has read with the same arguments; locks what it reads."""

    def __init__(
        self, path: Path, broker: Broker, bootstrap: str | None = None, locks: DirectoryLocks | None = None
    ) -> None:
        """Without ``locks``, for commands that may run beside an agent, nothing is locked.

        Raises:
            AlreadyRunning: another agent has locked one of the directories.
        """
        super().__init__(broker.log_dirs)
        self.broker = broker
        """The broker as its file describes it now; another broker's file is not taken."""
        self._path = path
        self._bootstrap = bootstrap
        self._identity = broker.identity
        self._locks = locks
        for log_dir in self.named:
            try:
                self.check(log_dir)
            except AlreadyRunning:
                raise
            except (OSError, FormatError) as error:
                logger.debug("log_dir_not_locked", folder=str(log_dir), error=str(error))  # the next look tries again

    @override
    def follow(self) -> None:
        try:
            now = read_broker(self._path, self._bootstrap)
        except NoLogDir as error:
            self._follow(error.log_dirs)
            self.problem = self.replaced = None
            return
        except ConfigError as error:
            rule = f"the broker's configuration cannot be followed, and an agent would not start with it: {error}"
            self.problem = self._path, rule
            return
        self.problem = None
        self._follow(now.log_dirs)
        if now.identity == self._identity:
            self.broker, self.replaced = now, None
        elif not any(self._is_ours(log_dir) for log_dir in now.log_dirs):
            self.replaced = f"{self._path}: the broker is now {now.identity}, and was {self._identity}"

    @override
    def check(self, log_dir: Path) -> None:
        try:
            self._check_identity(log_dir)
            if self._locks is not None:
                self._locks.take(log_dir)
        except (OSError, TidemarkError):
            if self._locks is not None:
                self._locks.release(log_dir)
            raise

    def _check_identity(self, log_dir: Path) -> None:
        found = read_identity(log_dir)
        if not found.is_of(self._identity):
            rule = f"is of {found}, and the agent's broker is {self._identity}"
            raise FormatError(str(log_dir / META), rule)

    def _follow(self, named: tuple[Path, ...]) -> None:
        """Follow ``named``, after those that were named before and still answer: the later ones count."""
        left = [log_dir for log_dir in self.named if log_dir not in named and self._is_ours(log_dir)]
        followed = (*left, *named)
        for log_dir in set(followed) - set(self.named):
            logger.info("log_dir_added", folder=str(log_dir))
        for log_dir in set(self.named) - set(followed):
            logger.info("log_dir_left", folder=str(log_dir))
            if self._locks is not None:
                self._locks.release(log_dir)
        self.named = followed

    def _is_ours(self, log_dir: Path) -> bool:
        try:
            return read_identity(log_dir).is_of(self._identity)
        except (OSError, FormatError):
            return False
