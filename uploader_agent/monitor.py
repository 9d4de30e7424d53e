"""The agent's own state: its metrics, its health, its status line, and its waits."""

from __future__ import annotations

from uploader_agent.components import Components
from uploader_agent.partitions import lag

_BROKER_LIMIT = 10.0
"""Seconds without an answer after which the broker counts as unreachable."""


class Monitor:
    """Reports the agent's state. The loop calls it; :meth:`waiting` is for any thread."""

    def __init__(self, components: Components) -> None:
        self.index_read = False
        """True once the former watermark index has been read, or the agent continues without it."""
        self._parts = components

    def measure(self) -> None:
        """Set the metrics that are computed over all partitions."""
        parts = self._parts
        parts.metrics.waiting.set(parts.queue.waiting())
        partitions, now = parts.leadership.partitions.values(), parts.runtime.monotonic()
        lag.measure(partitions, parts.waits(), parts.metrics, parts.runtime.time())
        ages = (partition.unstored_age(now) or 0.0 for partition in partitions)
        parts.metrics.oldest_unpacked.set(max(ages, default=0.0))
        stalled = parts.packs.stalled()
        parts.metrics.packs_stalled.set(stalled.seconds if stalled is not None else 0.0)
        if parts.source.has_whole_log:
            parts.metrics.stopped_partitions.labels("other_log").set(len(parts.leadership.parted()))
        parts.metrics.damaged_heads.set(sum(head.made_at is None for head in parts.packs.damaged()))
        parts.disk_faults.look()

    def turn(self) -> None:
        """Report the state to health and supervisor; log when trouble begins and when it is over."""
        parts = self._parts
        parts.health.unfinished(parts.queue.unfinished())
        if parts.poller.hangs(_BROKER_LIMIT):
            parts.leadership.silent(parts.poller.open_for())
        if not parts.health.ready:
            parts.health.waits_for = self._waits_for()
        trouble = parts.health.trouble()
        if trouble:
            parts.repeats.failed("health", "unhealthy", "error", reason=trouble)
        else:
            parts.repeats.cleared("health", "healthy_again")
        parts.notifier.turned(ready=parts.health.ready, status=self._status())

    def waiting(self) -> dict[str, object]:
        """The waits of the agent as a whole, of log directories and of partitions, for ``/waiting``. For any thread."""
        unreadable = self._parts.leadership.unreadable
        return {
            "agent": self._waits_for(),
            "log_dirs": [{"path": str(path), "reason": reason} for path, reason in unreadable.items()],
            "partitions": [wait.to_json() for wait in self._parts.waits()],
        }

    def _status(self) -> str:
        health = self._parts.health
        wrong = health.trouble() or health.waits_for
        partitions, jobs = len(self._parts.leadership.partitions), self._parts.queue.unfinished()
        return f"{wrong or 'healthy'}; {partitions} partitions led, {jobs} jobs"

    def _waits_for(self) -> str | None:
        """The condition that is missing until the agent is ready."""
        if not self._parts.leadership.seen:
            return "the broker has not said yet which partitions it leads"
        failing = self._parts.index.failing()
        error = f": {failing.error}" if failing else ""
        if not self.index_read:
            return f"the watermark index that the agent wrote before has not been read yet{error}"
        return None if self._parts.index.has_written else f"the store has not taken the watermark index yet{error}"
