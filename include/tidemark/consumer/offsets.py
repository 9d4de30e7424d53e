"""The part of the fetcher that finds positions: resets, questions about offsets, and their validation (KIP-320)."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from kafka import errors as kafka_errors
from kafka.consumer.fetcher import Fetcher
from kafka.future import Future

from tidemark.consumer.bell import Bell
from tidemark.consumer.placing import Placements
from tidemark.consumer.resetting import Queries
from tidemark.consumer.scouting import Scouts
from tidemark.layout import TopicPartition

log = logging.getLogger(__name__)


class TieredOffsets(Fetcher):  # type: ignore[misc]  # kafka-python has no types
    """``queries`` and ``scouts`` are None for KAFKA_ONLY, where all is kafka-python's own."""

    _reset_task: Any

    def __init__(
        self,
        client: Any,
        subscriptions: Any,
        *,
        placements: Placements,
        scouts: Scouts | None,
        queries: Queries | None,
        bell: Bell,
        **configs: Any,
    ) -> None:
        super().__init__(client, subscriptions, **configs)
        self._placements = placements
        self._scouts = scouts
        self._queries = queries
        self._bell = bell
        self._reset_error: Exception | None = None

    def reset_offsets_if_needed(self, timeout_ms: float | None = None) -> Any:
        """As kafka-python, over the tiers of the mode."""
        if self._queries is None or self._scouts is None:
            task = super().reset_offsets_if_needed(timeout_ms)
            if task is not None:
                task.add_both(self._bell.ring)
            return task
        error, self._reset_error = self._reset_error, None
        if error is not None:
            raise error
        wanted = {
            tp: self._subscriptions.assignment[tp].reset_strategy
            for tp in self._subscriptions.partitions_needing_reset()
        }
        if wanted and (self._reset_task is None or self._reset_task.is_done):
            self._reset_task = Future()
            self._scouts.run(partial(self._reset, wanted, self._reset_task, timeout_ms))
        return None if self._reset_task is None or self._reset_task.is_done else self._reset_task

    def _reset(self, wanted: dict[TopicPartition, int], task: Any, timeout_ms: float | None) -> None:
        """In a scout's thread."""
        assert self._queries is not None
        limit = self.config["request_timeout_ms"] if timeout_ms is None else timeout_ms
        try:
            for tp, found in self._queries.by_time(wanted, limit).items():
                self._reset_offset_if_needed(tp, wanted[tp], found.offset)
        except kafka_errors.RetriableError as error:
            log.info("where %s begin or end is not known yet; asking again: %s", list(wanted), error)
        except Exception as error:  # noqa: BLE001  # raised by the caller's next call
            self._reset_error = error
        finally:
            # kafka-python's tasks that wait for it are woken by its own thread alone.
            self._net.call_soon_threadsafe(lambda: task.success(None))

    def offsets_by_times(
        self, timestamps: dict[TopicPartition, int], timeout_ms: float | None = None
    ) -> dict[Any, Any]:
        """As kafka-python, over the tiers of the mode."""
        if self._queries is None:
            return super().offsets_by_times(timestamps, timeout_ms)  # type: ignore[no-any-return]
        return dict.fromkeys(timestamps) | self._queries.by_time(timestamps, timeout_ms)

    def beginning_or_end_offset(
        self, partitions: Any, timestamp: int, timeout_ms: float | None = None
    ) -> dict[Any, int]:
        """As kafka-python, over the tiers of the mode."""
        if self._queries is None:
            return super().beginning_or_end_offset(partitions, timestamp, timeout_ms)  # type: ignore[no-any-return]
        return self._queries.of_all(partitions, timestamp, timeout_ms)

    def maybe_validate_positions(self) -> None:
        """As kafka-python for what Kafka reads; what the remote tier reads is compared with its own lineage."""
        for tp in self._subscriptions.assigned_partitions():
            if self._placements.of(tp).tier == "kafka":
                epoch = self._manager.cluster.leader_epoch_for_partition(tp)
                self._subscriptions.maybe_validate_position_for_current_leader(tp, epoch)

    def validate_offsets_if_needed(self, timeout_ms: float | None = None) -> Any:
        """As kafka-python, and rings when it is done."""
        before = self._validation_task
        task = super().validate_offsets_if_needed(timeout_ms)
        if task is not None and task is not before:
            task.add_both(self._bell.ring)
        return task
