"""Leader epochs that stand in ``offset.wm`` although the cluster never gave them: damage, or somebody's hand.

Such an epoch would fence the true leader for ever. It is *foreign* once it is certain that the cluster's metadata, as
committed after the object was seen, still has this broker lead the partition under a lower epoch: epochs only grow, and
an agent writes none that was not committed before. So the object was not written by a leader's agent. Certainty takes
three steps, each at least :data:`PAUSE` after the one before, over one and the same version of the object:

1. the object is seen, then the cluster is asked up to where its metadata goes (:meth:`Authority.mark`);
2. that was so, and this broker has fetched up to there (:meth:`Authority.confirms`);
3. this broker, which has had a pause to apply it, says that it leads under the epoch that the agent goes by.

What cannot be asked, is not confirmed, or is another by then, begins again. A lagging broker thus never overrides a
successor: it does not have what the quorum has, or a successor's epoch is there. Topics without ids are left alone,
since one that was made again begins at epoch 0.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from tidemark.formats.keys import TopicPartition
from uploader_agent.broker.admin import BrokerUnavailable, Leader, Led
from uploader_agent.broker.authority import Authority, MetadataMark
from uploader_agent.observability.metrics import Metrics
from uploader_agent.remote.watermark import StoredWatermark

logger = structlog.get_logger(__name__)

PAUSE: Final = 60.0
"""Seconds between two steps. A broker applies what it has fetched of the metadata within milliseconds."""

_LATELY: Final = 300.0


@dataclass(slots=True)
class _Case:
    """A version of ``offset.wm`` that fences a leadership, since when, and how far its trial has come."""

    etag: str
    led: Led
    mark: MetadataMark
    since: float
    seen: float
    confirmed: bool = False
    foreign: bool = False


class ForeignEpochs:
    """Judges what fences this broker's leaderships; thread-safe. A question may wait for the network."""

    def __init__(
        self, broker: int, authority: Authority, metrics: Metrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``clock`` gives seconds."""
        self._broker = broker
        self._authority = authority
        self._metrics = metrics
        self._clock = clock
        self._asking = threading.Lock()
        self._cases: dict[TopicPartition, _Case] = {}
        metrics.fenced.set_function(self._count)

    def judge(self, at: TopicPartition, led: Led, stored: StoredWatermark) -> bool:
        """Whether the epoch of ``stored``, which is above that of ``led`` and was just read, is foreign for certain."""
        if led.topic_id is None:
            return False
        if self._asking.acquire(blocking=False):  # one question at a time: other workers have their uploads
            try:
                self._try(at, led, stored)
            except BrokerUnavailable as error:
                logger.info("epoch_not_judged", partition=str(at), error=str(error))
            finally:
                self._asking.release()
        case = self._cases.get(at)
        return case is not None and case.foreign and (case.etag, case.led) == (stored.etag, led)

    def _count(self) -> float:
        """Partitions that were fenced lately: one that is fenced is tried again at least each ``upload.retry_cap``."""
        since = self._clock() - _LATELY
        return float(sum(case.seen >= since and not case.foreign for case in list(self._cases.values())))

    def _try(self, at: TopicPartition, led: Led, stored: StoredWatermark) -> None:
        """Take the next step. A case that fails begins again."""
        case, now = self._cases.get(at), self._clock()
        if case is None or (case.etag, case.led) != (stored.etag, led):
            self._cases.pop(at, None)
            self._cases[at] = _Case(stored.etag, led, self._authority.mark(), self._clock(), now)
            return
        case.seen = now
        if case.foreign or now - case.since < PAUSE:
            return
        if not case.confirmed:
            confirmed = self._authority.confirms(case.mark)
            if confirmed is None:
                del self._cases[at]
            elif confirmed:
                case.confirmed, case.since = True, self._clock()
            return
        found = self._authority.leader(at)
        if found != Leader(self._broker, case.led):
            del self._cases[at]
            return
        case.foreign = True
        self._metrics.foreign.inc()
        said = {"epoch": stored.watermark.leader_epoch, "broker": stored.watermark.broker, "etag": stored.etag}
        logger.error("epoch_is_foreign", partition=str(at), leader_epoch=case.led.leader_epoch, offset_wm=said)
