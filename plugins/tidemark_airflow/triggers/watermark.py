"""The trigger behind the sensor: one scan of the watermark indexes serves all waiting topics.

Airflow's triggerer runs :meth:`WatermarkTrigger.open_shared_stream` once for all triggers with an equal
:meth:`~WatermarkTrigger.shared_stream_key`, also for triggers of deferred tasks, and passes each scan to every
trigger's own :meth:`~WatermarkTrigger.filter_shared_stream`. A trigger that starts late misses nothing, since each scan
is the whole state. Blocking calls run in a thread.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Hashable
from datetime import timedelta
from functools import cache
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from tidemark.errors import TidemarkError
from tidemark.timestamps import utc_now
from tidemark_airflow import connections
from tidemark_airflow.triggers.committed import CommittedLedgers
from tidemark_airflow.triggers.index_scanner import IndexScanner, Scan, Source
from tidemark_airflow.triggers.readiness import Baseline, Event, Watch

log = logging.getLogger(__name__)


@cache
def spare_collector() -> None:
    """Exclude the loaded modules of Airflow and the store from garbage collection, once.

    They stay anyway, and traversing them during a first scan stopped the event loop for 0.2 s each time.
    """
    gc.freeze()


HOLD = timedelta(seconds=3)
"""Age of a trigger until which its event is held back.

Airflow's scheduler must have noted that the task is deferred before the task is resumed. Otherwise it takes the former
process's end for a failure of the next one (apache/airflow#72716), which costs a try and its delay.
"""


class ScanTrigger(BaseEventTrigger):
    """Waits for scans of a cluster, which all such triggers of the cluster share.

    :param source: the place of the watermark indexes, a dumped :class:`tidemark_airflow.triggers.index_scanner.Source`
    """

    def __init__(self, *, source: dict[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # Airflow leaves it untyped
        self.source = Source.model_validate(source)
        connections.install()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments, all of JSON's types."""
        kwargs = {"source": self.source.model_dump(mode="json"), **self._more()}
        return f"{type(self).__module__}.{type(self).__qualname__}", kwargs

    def _more(self) -> dict[str, Any]:
        """The arguments beside the source."""
        raise NotImplementedError

    def shared_stream_key(self) -> Hashable | None:
        """A key that is equal for all waits on a cluster."""
        return "tidemark-watermarks", self.source.model_dump_json()

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Scan]:
        """Scans, one after the other, for ever."""
        scanner = await asyncio.to_thread(IndexScanner, Source.model_validate(kwargs["source"]))
        spare_collector()
        while True:
            yield await asyncio.to_thread(scanner.scan)
            await asyncio.sleep(scanner.pause)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Events from a scan of this trigger's own, for a triggerer that shares none."""
        async for event in self.filter_shared_stream(self.open_shared_stream(self.serialize()[1])):
            yield event

    def landed_elsewhere(self) -> CommittedLedgers:
        """The copies of the cluster's ledgers; opens the store the first time: not on an event loop."""
        return CommittedLedgers.of(self.source.lake, self.source.keys, self.source.options.model_dump_json())


class WatermarkTrigger(ScanTrigger):
    """Fires once, when the watermarks of one topic are a reason to start a run.

    :param source: see :class:`ScanTrigger`
    :param baseline: the landed and published state, a dumped :class:`tidemark_airflow.triggers.readiness.Baseline`
    """

    def __init__(self, *, source: dict[str, Any], baseline: dict[str, Any]) -> None:
        super().__init__(source=source)
        self.baseline = Baseline.model_validate(baseline)

    def _more(self) -> dict[str, Any]:
        return {"baseline": self.baseline.model_dump(mode="json")}

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Scan]) -> AsyncIterator[TriggerEvent]:
        """The topic's single event."""
        watch = Watch(self.baseline)
        started = utc_now()
        async for scan in shared_stream:
            rows = scan.topics.get(self.baseline.topic, ())
            if not watch.has_seen(rows):
                # One topic's rows take no time, but a thousand topics wake up at once.
                await asyncio.to_thread(watch.see, rows)
            now = utc_now()
            if scan.failing_since is not None and now - max(started, scan.failing_since) >= self.baseline.late_after:
                event: Event | None = Event(status="failed", reason=scan.failure)
            else:
                event = watch.judge(rows, now)
                if event is not None and self.baseline.live and await asyncio.to_thread(self._follow, watch):
                    event = None
            if event is None and now >= self.baseline.look_again_at:
                event = Event(status="refresh")
            if event is not None:
                await asyncio.sleep((HOLD - (utc_now() - started)).total_seconds())
                yield TriggerEvent(event.model_dump(mode="json"))  # type: ignore[no-untyped-call] # likewise
                return

    def _follow(self, watch: Watch) -> bool:
        """True if live landings have meanwhile landed a part of the offsets that ``watch`` waits for."""
        committed = self.landed_elsewhere()
        try:
            committed.look()
        except (TidemarkError, OSError):
            log.warning("%s: not read; the run that starts will see", self.source.keys.committed, exc_info=True)
            return False
        return watch.follow(committed.landed(self.baseline.topic), utc_now())
