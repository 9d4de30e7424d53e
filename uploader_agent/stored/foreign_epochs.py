"""Leader epochs in ``offset.wm`` that the cluster never gave, because of damage or a manual change.

Such an epoch would fence the true leader for ever. It is *foreign* once one fact is certain: the cluster's metadata,
committed after the object was seen, still has this broker lead the partition under a lower epoch. Epochs only grow, and
an agent writes only epochs that were committed before. So no leader's agent wrote the object. The proof takes three
steps, each at least :data:`PAUSE` after the previous one, over the same version of the object:

1. the agent sees the object, then asks the cluster for the end of its metadata (:meth:`Authority.mark`);
2. the cluster confirms that end, and this broker has fetched up to it (:meth:`Authority.confirms`);
3. this broker, after a pause to apply the metadata, answers that it leads under the epoch that the agent uses.

If a question fails, is not confirmed, or the object has changed, the proof begins again. A lagging broker thus never
overrides a successor: it lacks the quorum's metadata, or it has the successor's epoch. Topics without ids are left
alone, since a re-created topic begins at epoch 0.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from tidemark.formats.keys import TopicPartition
from tidemark.storage import StoredWatermark
from uploader_agent.broker.admin import BrokerUnavailable, Led
from uploader_agent.broker.authority import Authority, MetadataMark
from uploader_agent.observability.metrics import Metrics

logger = structlog.get_logger(__name__)

PAUSE: Final = 60.0
"""Seconds between two steps. A broker applies fetched metadata within milliseconds."""

_RECENT_SECONDS: Final = 300.0


@dataclass(slots=True)
class _Case:
    """A version of ``offset.wm`` that fences a leadership, with the steps of its proof and the time of the last one."""

    etag: str
    led: Led
    mark: MetadataMark
    since: float
    seen: float
    confirmed: bool = False
    foreign: bool = False


class ForeignEpochs:
    """Judges the epochs that fence this broker's leaderships. Thread-safe; a call may wait for the network."""

    def __init__(
        self, broker: int, authority: Authority, metrics: Metrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``clock`` is monotonic, in seconds."""
        self._broker = broker
        self._authority = authority
        self._metrics = metrics
        self._clock = clock
        self._asking = threading.Lock()
        self._cases: dict[TopicPartition, _Case] = {}
        metrics.fenced.set_function(self._count)

    def judge(self, tp: TopicPartition, led: Led, stored: StoredWatermark) -> bool:
        """True if the epoch of ``stored``, just read and above that of ``led``, is certain to be foreign."""
        if led.topic_id is None:
            return False
        if self._asking.acquire(blocking=False):  # one question at a time; the other workers continue to upload
            try:
                self._try(tp, led, stored)
            except BrokerUnavailable as error:
                logger.info("epoch_not_judged", partition=str(tp), error=str(error))
            finally:
                self._asking.release()
        case = self._cases.get(tp)
        return case is not None and case.foreign and (case.etag, case.led) == (stored.etag, led)

    def _count(self) -> float:
        """The number of recently fenced partitions. Each is tried again at least every ``AgentTuning.retry_cap``."""
        since = self._clock() - _RECENT_SECONDS
        return float(sum(case.seen >= since and not case.foreign for case in list(self._cases.values())))

    def _try(self, tp: TopicPartition, led: Led, stored: StoredWatermark) -> None:
        """Take the next step. A case that fails begins again."""
        case, now = self._cases.get(tp), self._clock()
        if case is None or (case.etag, case.led) != (stored.etag, led):
            self._cases.pop(tp, None)
            self._cases[tp] = _Case(stored.etag, led, self._authority.mark(), self._clock(), now)
            return
        case.seen = now
        if case.foreign or now - case.since < PAUSE:
            return
        if not case.confirmed:
            confirmed = self._authority.confirms(case.mark)
            if confirmed is None:
                del self._cases[tp]
            elif confirmed:
                case.confirmed, case.since = True, self._clock()
            return
        leader = self._authority.leader(tp)
        if leader is None or (leader.broker, leader.led) != (self._broker, case.led):
            del self._cases[tp]
            return
        case.foreign = True
        self._metrics.foreign.inc()
        content = {"epoch": stored.watermark.leader_epoch, "broker": stored.watermark.broker, "etag": stored.etag}
        logger.error("epoch_is_foreign", partition=str(tp), leader_epoch=case.led.leader_epoch, offset_wm=content)
