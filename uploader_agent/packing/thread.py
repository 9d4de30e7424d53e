"""The thread that packs in one bucket. It wakes when there are batches to pack, and to maintain the head."""

from __future__ import annotations

from collections.abc import Callable, Collection

import structlog

from tidemark.formats.keys import TopicPartition
from uploader_agent.packing.head_maintenance import HeadMaintenance
from uploader_agent.packing.packer import Packer
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.runtime import Runtime
from uploader_agent.scheduling.throttle import StoreTraffic

logger = structlog.get_logger(__name__)

_AGAIN, _LONGEST = 1.0, 10.0
"""Seconds after which a failed tick is repeated, at first and at most."""


class PackThread:
    """Packs in one bucket, and maintains its head. Thread-safe."""

    def __init__(
        self,
        name: str,
        packer: Packer,
        head_maintenance: HeadMaintenance,
        interval: Callable[[], float],
        traffic: StoreTraffic,
        runtime: Runtime,
    ) -> None:
        """Maintain the head every ``interval()`` seconds. In ``traffic``, packs have priority over segments."""
        self.name = name
        self._traffic = traffic
        self._packer = packer
        self._head_maintenance = head_maintenance
        self._interval = interval
        self._clock = runtime.monotonic
        self._changed = runtime.condition()
        self._wanted: dict[TopicPartition, LedPartition] = {}
        self._failed: dict[TopicPartition, LedPartition] = {}
        self._repeat_at = float("inf")
        self._pause = _AGAIN
        self._maintain_at = 0.0
        self._stopped = False
        self.thread = runtime.thread(name, self._run)

    def start(self) -> None:
        """Pack from now on."""
        self.thread.start()

    def pack(self, partitions: Collection[LedPartition]) -> None:
        """Pack the new batches of ``partitions``, soon."""
        self._packer.backlog.add(partitions)
        with self._changed:
            self._wanted |= {partition.tp: partition for partition in partitions}
            self._changed.notify_all()

    def maintain(self) -> None:
        """Maintain the head now."""
        with self._changed:
            self._maintain_at = 0.0
            self._changed.notify_all()

    def forget(self, tps: Collection[TopicPartition]) -> None:
        """Drop partitions that this broker no longer leads, or leads under another epoch."""
        with self._changed:
            for tp in tps:
                self._wanted.pop(tp, None)
                self._failed.pop(tp, None)
                self._packer.forget(tp)

    def stop(self) -> None:
        """Begin no more ticks."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def join(self, timeout: float) -> None:
        """Wait for the running tick, at most ``timeout`` seconds."""
        if self.thread.ident is not None:
            self.thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopped and not self._wanted and (pause := self._next_time - self._clock()) > 0:
                    self._changed.wait(pause)
                if self._stopped:
                    return
                wanted = self._take()
            self._work(wanted)

    @property
    def _next_time(self) -> float:
        return min(self._repeat_at, self._maintain_at)

    def _take(self) -> list[LedPartition]:
        wanted = {**self._failed, **self._wanted} if self._clock() >= self._repeat_at else self._wanted
        if wanted is not self._wanted:
            self._failed, self._repeat_at = {}, float("inf")
        self._wanted = {}
        return [*wanted.values()]

    def _work(self, wanted: list[LedPartition]) -> None:
        try:
            with self._traffic.first():
                failed = self._packer.pack(wanted) if wanted else []
            if self._clock() >= self._maintain_at:
                self._maintain_at = self._clock() + self._interval()
                self._head_maintenance.look()
        except Exception:
            logger.exception("packing_failed")  # the thread must go on: other partitions wait
            failed = wanted
        if not failed:
            self._pause = _AGAIN if wanted else self._pause
            return
        with self._changed:
            self._failed |= {partition.tp: partition for partition in failed}
            self._repeat_at = min(self._repeat_at, self._clock() + self._pause)
        self._pause = min(2 * self._pause, _LONGEST)
