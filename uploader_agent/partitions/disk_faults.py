"""What the agent cannot read of its broker's disks, and since when: for health, metrics, the index and people.

A log directory counts at once. A partition counts after :data:`PATIENCE`, since its directory comes, moves and goes
with topics, disks and replicas, a moment before or after the metadata says so.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Final

from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.watermark_index import DiskFault
from uploader_agent.observability.log_config import ErrorDeduplicator
from uploader_agent.observability.metrics import Metrics
from uploader_agent.partitions.leadership import Leadership
from uploader_agent.runtime import MACHINE, Runtime

PATIENCE: Final = 20.0
"""Seconds for which a partition's log must be unreadable before that counts."""

_NAMED = 5
"""Most partitions that a line names."""


class DiskFaults:
    """Collects the faults. The loop looks, any thread reads."""

    def __init__(
        self, leadership: Leadership, metrics: Metrics, repeats: ErrorDeduplicator, runtime: Runtime = MACHINE
    ) -> None:
        self.current: tuple[DiskFault, ...] = ()
        """The faults at the last look, log directories first. It is replaced as a whole."""
        self._leadership = leadership
        self._metrics = metrics
        self._repeats = repeats
        self._runtime = runtime
        self._since: dict[Path | TopicPartition, tuple[float, datetime]] = {}
        """When each was found first, by both clocks."""

    def look(self) -> None:
        """Find what cannot be read now."""
        leadership, before, now = self._leadership, self._since, self._runtime.monotonic()
        found: dict[Path | TopicPartition, str] = dict(leadership.unreadable.items())
        found |= dict[Path | TopicPartition, str](leadership.unread().items())
        patient: set[Path | TopicPartition] = {what for what in found if isinstance(what, TopicPartition)}
        if leadership.log_dirs.problem is not None:
            file, rule = leadership.log_dirs.problem
            found[file] = rule
            patient.add(file)  # it may just be written
        new = now, self._runtime.utc_now()
        self._since = {what: before.get(what, new) for what in found}
        lasting = {what for what in patient if now - self._since[what][0] >= PATIENCE} - leadership.unconfirmed
        told = {what: rule for what, rule in found.items() if what not in patient or what in lasting}
        self.current = tuple(self._fault(what, told[what]) for what in sorted(told, key=_order))
        self._report({what: rule for what, rule in told.items() if isinstance(what, TopicPartition)})

    def trouble(self) -> str | None:
        """The faults in words; None without any."""
        faults = self.current
        if not faults:
            return None
        more = f"; and {len(faults) - 1} more, which /waiting names" if len(faults) > 1 else ""
        return f"{described(faults[0])}{more}"

    def _fault(self, what: Path | TopicPartition, rule: str) -> DiskFault:
        found_at = self._since[what][1]
        if isinstance(what, Path):
            return DiskFault(path=str(what), rule=rule, found_at=found_at)
        return DiskFault(topic=what.topic, partition=what.partition, rule=rule, found_at=found_at)

    def _report(self, unread: dict[TopicPartition, str]) -> None:
        self._metrics.logs_unreadable.set(len(unread))
        if not unread:
            self._repeats.cleared("unread", "logs_readable_again")
            return
        named = [f"{tp}: {unread[tp]}" for tp in sorted(unread)[:_NAMED]]
        self._repeats.failed("unread", "logs_unreadable", "error", partitions=len(unread), such_as=named)


def described(fault: DiskFault) -> str:
    """One fault in words."""
    if fault.path is not None:
        return f"{fault.path} cannot be read: {fault.rule}"
    return f"the log of {fault.topic}-{fault.partition} cannot be read: {fault.rule}"


def _order(what: Path | TopicPartition) -> tuple[bool, str, int]:
    if isinstance(what, TopicPartition):
        return True, what.topic, what.partition
    return False, str(what), 0
