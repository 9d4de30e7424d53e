"""The part of the fetcher that finds positions: resets, offset queries, and validation (KIP-320)."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import Any

from kafka import errors as kafka_errors
from kafka.consumer.fetcher import Fetcher
from kafka.future import Future

from tidemark.consumer.offset_reset import Queries
from tidemark.consumer.tier_metadata import Scouts
from tidemark.consumer.tier_selection import TierSelector
from tidemark.consumer.wakeup import Wakeup
from tidemark.formats.keys import TopicPartition

log = logging.getLogger(__name__)


class TieredOffsets(Fetcher):  # type: ignore[misc]  # kafka-python has no types
    """A fetcher's positions. ``queries`` and ``scouts`` are None for KAFKA_ONLY, where kafka-python does all itself."""

    _reset_task: Any

    def __init__(
        self,
        client: Any,
        subscriptions: Any,
        *,
        placements: TierSelector,
        scouts: Scouts | None,
        queries: Queries | None,
        wakeup: Wakeup,
        **configs: Any,
    ) -> None:
        super().__init__(client, subscriptions, **configs)
        self._placements = placements
        self._scouts = scouts
        self._queries = queries
        self._wakeup = wakeup
        self._reset_error: Exception | None = None
        self._reset_lock = threading.Lock()
        self._resetting = False

    def reset_offsets_if_needed(self, timeout_ms: float | None = None) -> Any:
        """Reset as kafka-python does, over the tiers of the mode."""
        if self._queries is None or self._scouts is None:
            task = super().reset_offsets_if_needed(timeout_ms)
            if task is not None:
                task.add_both(self._wakeup.wake)
            return task
        error, self._reset_error = self._reset_error, None
        if error is not None:
            raise error
        with self._reset_lock:
            if not self._resetting and self._subscriptions.partitions_needing_reset():
                self._resetting, self._reset_task = True, Future()
                limit = self.config["request_timeout_ms"] if timeout_ms is None else timeout_ms
                self._scouts.run(partial(self._reset, self._reset_task, limit))
        return None if self._reset_task is None or self._reset_task.is_done else self._reset_task

    def _reset(self, task: Any, timeout_ms: float) -> None:
        """Reset in a scout's thread, until no partition needs it: the caller may request more meanwhile."""
        try:
            while wanted := self._to_reset():
                self._reset_these(wanted, timeout_ms)
        except kafka_errors.RetriableError as error:
            log.info("the start or end of partitions is not known yet; asking again: %s", error)
        except Exception as error:  # noqa: BLE001  # raised by the caller's next call
            self._reset_error = error
        finally:
            with self._reset_lock:
                self._resetting = False
            # Only kafka-python's own thread may wake its tasks that wait for this one.
            self._net.call_soon_threadsafe(lambda: task.success(None))

    def _to_reset(self) -> dict[TopicPartition, int]:
        with self._reset_lock:
            wanted = {}
            for tp in self._subscriptions.partitions_needing_reset():
                state = self._subscriptions.assignment.get(tp)
                if state is not None and state.reset_strategy is not None:
                    wanted[tp] = state.reset_strategy
            self._resetting = bool(wanted)
            return wanted

    def _reset_these(self, wanted: dict[TopicPartition, int], timeout_ms: float) -> None:
        assert self._queries is not None
        answers = self._queries.by_time(wanted, timeout_ms)
        missing = set(wanted) - set(answers)
        if missing:
            raise kafka_errors.KafkaTimeoutError(f"no tier says where {missing} begin or end")
        for tp, answer in answers.items():
            self._reset_offset_if_needed(tp, wanted[tp], answer.offset)

    def offsets_by_times(
        self, timestamps: dict[TopicPartition, int], timeout_ms: float | None = None
    ) -> dict[Any, Any]:
        """Offsets as in kafka-python, over the tiers of the mode."""
        if self._queries is None:
            return super().offsets_by_times(timestamps, timeout_ms)  # type: ignore[no-any-return]
        return dict.fromkeys(timestamps) | self._queries.by_time(timestamps, timeout_ms)

    def beginning_or_end_offset(
        self, partitions: Any, timestamp: int, timeout_ms: float | None = None
    ) -> dict[Any, int]:
        """Offsets as in kafka-python, over the tiers of the mode."""
        if self._queries is None:
            return super().beginning_or_end_offset(partitions, timestamp, timeout_ms)  # type: ignore[no-any-return]
        return self._queries.of_all(partitions, timestamp, timeout_ms)

    def maybe_validate_positions(self) -> None:
        """Validate Kafka's positions as kafka-python does. Remote positions are compared with the remote lineage."""
        for tp in self._subscriptions.assigned_partitions():
            if self._placements.of(tp).tier == "kafka":
                epoch = self._manager.cluster.leader_epoch_for_partition(tp)
                self._subscriptions.maybe_validate_position_for_current_leader(tp, epoch)

    def validate_offsets_if_needed(self, timeout_ms: float | None = None) -> Any:
        """Validate as kafka-python does, and wake the caller at the end."""
        before = self._validation_task
        task = super().validate_offsets_if_needed(timeout_ms)
        if task is not None and task is not before:
            task.add_both(self._wakeup.wake)
        return task
