"""The restore itself: read, send, wait for the acknowledgements, commit the progress; and repeat."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidemark.formats.raw.hashsum import combine
from tidemark.remote.reader.topic_ranges import read_spans, remote_partitions
from tidemark.restore.producer import Sender
from tidemark.restore.records import Record, hash_sum, records_of
from tidemark.restore.report import PartitionReport, RestoreReport
from tidemark.restore.request import RestoreRequest
from tidemark.restore.resume import ResumePoint, begin, check_branch, prepare
from tidemark.restore.target import Target

if TYPE_CHECKING:
    from tidemark.remote.reader.blocks import Block
    from tidemark.remote.reader.tier import RemoteTier

STEP_RECORDS: Final = 20_000
STEP_BYTES: Final = 16 << 20
"""Most records, and bytes of their columns, that are sent between two commits of the progress, and held in memory."""


class Restore:
    """One run. The tier's ``on_ready`` sets ``ready``; ``on_progress`` gets the records and bytes done so far."""

    def __init__(
        self,
        request: RestoreRequest,
        tier: RemoteTier,
        target: Target,
        ready: threading.Event,
        on_progress: Callable[[int, int], None] = lambda records, size: None,
    ) -> None:
        self._request = request
        self._tier = tier
        self._target = target
        self._ready = ready
        self._on_progress = on_progress
        self._lines: dict[int, ResumePoint] = {}
        self._waiting: list[tuple[int, list[Record], list[int]]] = []  # partition, records, their offsets
        self._records = self._size = 0  # of the waiting records
        self._sent = self._done = self._bytes = 0

    def run(self) -> RestoreReport:
        """Restore the rest. Raises errors of :func:`prepare`, :func:`begin`, :class:`Sender` and the tier."""
        started = time.monotonic()
        topics = self._tier.topics
        request = self._request
        parts = remote_partitions(topics, request.topic, request.partitions)
        warnings = prepare(request, parts, topics.partitions_for_topic(request.topic), self._target)
        sender = Sender(self._target, transactional=request.transactional, shared=request.shared, codec=request.codec)
        try:
            self._lines = {line.partition: line for line in begin(request, parts, self._target)}
            for line in self._lines.values():
                sender.expect(line.partition, line.expected)
            self._copy(sender)
        finally:
            sender.close()
        return RestoreReport(
            source=f"{request.cluster}/{request.topic}",
            target=self._target.topic,
            group=self._target.group,
            transactional=request.transactional,
            seconds=time.monotonic() - started,
            sent=self._sent,
            bytes=self._bytes,
            warnings=tuple(warnings),
            partitions=tuple(_reported(line) for line in self._lines.values()),
        )

    def _copy(self, sender: Sender) -> None:
        spans = [line.span for line in self._lines.values() if not line.progress.done]
        for partition, block in read_spans(self._tier, self._request.topic, spans, self._ready):
            self._take(self._lines[partition], block)
            if self._records >= STEP_RECORDS or self._size >= STEP_BYTES:
                self._step(sender)
        for line in self._lines.values():
            if line.overlap is not None:
                line.overlap.finish()
        self._step(sender)

    def _take(self, line: ResumePoint, block: Block) -> None:
        rows = block.rows
        if len(rows):
            line.total = combine(line.total, hash_sum(rows, line.partition, line.records))
            line.records += len(rows)
            records, offsets = records_of(rows), rows.column("kafka_offset").to_numpy().tolist()
            held = 0 if line.overlap is None else line.overlap.skip(records, offsets)
            self._waiting.append((line.partition, records[held:], offsets[held:]))
            self._records += len(rows)
            self._size += rows.nbytes
        line.next = block.next_offset
        line.epoch = max(line.epoch, block.leader_epoch)

    def _step(self, sender: Sender) -> None:
        """Send the waiting records, and commit the progress when all of them are acknowledged."""
        for partition, records, offsets in self._waiting:
            sender.send(partition, records, offsets)
        sender.flush()
        for line in self._lines.values():
            self._check_branch(line)
        moved = {
            line.partition: line.reached(sender.next_offset(line.partition) if line.compared is None else line.compared)
            for line in self._lines.values()
            if line.next > line.progress.next
        }
        if moved:
            sender.commit(moved)
        for partition, progress in moved.items():
            self._lines[partition].progress = progress
        self._sent += sum(len(records) for _, records, _ in self._waiting)
        self._done += self._records
        self._bytes += self._size
        self._waiting.clear()
        self._records = self._size = 0
        self._on_progress(self._done, self._bytes)

    def _check_branch(self, line: ResumePoint) -> None:
        """Stop before the progress covers records that an election has cut off meanwhile."""
        part = self._tier.partition(self._request.topic, line.partition)
        if part is not None:
            check_branch(part, line.next, line.epoch)


def _reported(line: ResumePoint) -> PartitionReport:
    return PartitionReport(partition=line.partition, resumed=line.resumed, progress=line.progress)
