"""A restore, by its request: read, send, wait for the acknowledgements, commit the progress; and repeat.

Before it, the resume point of each partition is found: its progress, or the start if the target has no other records. A
dry run shows the amount that a restore would read, from the catalogue alone.

Records are sent by kafka-python's idempotent producer, and each record's offset is checked. Promises: the records of a
partition arrive in the order in which they were given (KIP-679: idempotent, acks=all, at most 5 requests in flight).
:meth:`Sender.flush` returns only when all are acknowledged, at successive offsets. Any failure stops the restore. A
failed record is not sent again here: the resumed restore reads from the target which records have arrived.

Relies on how kafka-python 3.0 treats a list of headers, see :class:`_Headers`: a test with real brokers covers it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal

from kafka import KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError, MessageSizeTooLargeError
from kafka.serializer import Serializer
from typing_extensions import override

from tidemark.errors import ConfigError, ForeignRecords, OutOfRange, RestoreError
from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.hashsum import combine
from tidemark.intervals import Interval
from tidemark.offset_bounds import BEGINNING, END, OffsetBounds
from tidemark.remote.partition import RemotePartition
from tidemark.remote.reader.read_range import RemoteEdges, read_spans, remote_partitions, span_of
from tidemark.restore.progress import RestoreProgress, asked
from tidemark.restore.records import Record, hash_sum, records_of
from tidemark.restore.report import RestoreReport
from tidemark.restore.target import Target

if TYPE_CHECKING:
    from tidemark.remote.reader.blocks import Block
    from tidemark.remote.reader.tier import RemoteTier


Codec = Literal["none", "gzip", "lz4", "zstd"]

_BATCH_BYTES: Final = 256 << 10
_LARGEST: Final = 64 << 20  # of a request, and so of a record: the target's max.message.bytes decides
_CLOSE_SECONDS: Final = 5.0
_NOTHING: Final = b""


class _Headers(list[tuple[str, Any]]):
    """Headers with null values, which ``send`` refuses although the format has them.

    The producer checks that values are bytes, then calls the serializers with the list, and later adds up the sizes of
    its items if it counts as true. So the serializer adds the nulls, and the list counts as false.
    """

    def __init__(self, headers: Iterable[tuple[str, bytes | None]]) -> None:
        self._kept = list(headers)
        super().__init__((key, _NOTHING) for key, _ in self._kept)

    def __bool__(self) -> bool:
        return False

    def reveal(self) -> None:
        """Put the nulls in."""
        self[:] = self._kept


_NULL: Final = object()
"""A null key: the producer refuses records that have neither key nor value, and Kafka does not."""


class _Serializer(Serializer):  # type: ignore[misc]  # kafka-python has no types
    @override
    def serialize(self, topic: str, headers: list[tuple[str, bytes]], data: object) -> object:
        if isinstance(headers, _Headers):
            headers.reveal()
        return None if data is _NULL else data


class Sender:
    """Sends to ``target``. If ``shared``, other programs may write as well, so offsets do not detect them.

    ``expected`` are the offsets in the target of each partition's next record; who makes the sender sets the first.
    """

    def __init__(self, target: Target, *, transactional: bool, shared: bool, codec: Codec) -> None:
        """Connect; a transactional sender first fences an earlier sender of its name, and ends its open transaction."""
        self._target = target
        self._transactional = transactional
        self._shared = shared
        self._open = False
        self._sent: dict[int, list[tuple[int, Any]]] = {}
        self.expected: dict[int, int] = {}
        names = {"transactional_id": target.group} if transactional else {}
        self._producer = KafkaProducer(
            **target.client,
            **names,
            enable_idempotence=True,
            acks="all",
            compression_type=None if codec == "none" else codec,
            batch_size=min(_BATCH_BYTES, target.largest_batch),  # kafka-python's flush fails where a batch is split
            linger_ms=20,
            max_request_size=_LARGEST,
            key_serializer=_Serializer(),
            allow_auto_create_topics=False,
        )
        if transactional:
            self._producer.init_transactions()

    def send(self, partition: int, records: Iterable[Record], offsets: Iterable[int]) -> None:
        """Begin to send records, which the source has at ``offsets``.

        Raises kafka-python's errors, also for earlier records, and :class:`RestoreError` for a record that is too large
        for any request.
        """
        if self._transactional:
            self._begin()
        sent = self._sent.setdefault(partition, [])
        for (key, value, headers, timestamp), offset in zip(records, offsets, strict=True):
            nulls = any(header is None for _, header in headers)
            try:
                future = self._producer.send(
                    self._target.topic,
                    value,
                    _NULL if key is None else key,
                    headers=_Headers(headers) if nulls else headers,
                    partition=partition,
                    timestamp_ms=timestamp,
                )
            except MessageSizeTooLargeError as error:
                raise self._refused(partition, offset, error) from error
            sent.append((offset, future))

    def flush(self) -> None:
        """Wait until all records are acknowledged.

        Raises:
            ForeignRecords: a record did not get the offset after the one before.
            RestoreError: the brokers refused a record, or did not acknowledge it in time.
        """
        self._producer.flush()
        for partition, sent in self._sent.items():
            for offset, future in sent:
                try:
                    acknowledged = future.get().offset
                except KafkaError as error:
                    raise self._refused(partition, offset, error) from error
                self._check(partition, acknowledged)

    def commit(self, progress: Mapping[int, RestoreProgress]) -> None:
        """Commit ``progress`` after :meth:`flush`: in the transaction with the records, or on its own."""
        if not self._transactional:
            self._target.save(progress)
        else:
            self._begin()
            self._producer.send_offsets_to_transaction(self._target.offsets(progress), self._target.group)
            self._producer.commit_transaction()
            self._open = False
            for partition in self._sent:
                self.expected[partition] += 1  # the marker of the commit
        self._sent.clear()

    def close(self) -> None:
        """Give up unacknowledged records. The next sender of this name, or a timeout, aborts an open transaction."""
        try:
            self._producer.close(timeout=_CLOSE_SECONDS)
        except KafkaTimeoutError:
            return  # the error that ended the restore is raised; the next run finds the records that have arrived

    def _refused(self, partition: int, offset: int, error: KafkaError) -> RestoreError:
        place = f"{self._target.topic}-{partition}: the record at offset {offset} of the source"
        return RestoreError(f"{place} was refused ({error}); have the target accept it, and run the restore again")

    def _begin(self) -> None:
        if not self._open:
            self._producer.begin_transaction()
            self._open = True

    def _check(self, partition: int, offset: int) -> None:
        expected = self.expected[partition]
        if offset != expected and not self._shared:
            observation = f"a restored record got the offset {offset}: another program writes to the target. {FOREIGN}"
            raise ForeignRecords(self._target.topic, partition, expected, observation)
        self.expected[partition] = offset + 1


FOREIGN: Final = (
    "Restore into a separate topic; or stop the other writers, delete the target's records and start again. "
    "With --transactional --append others may write"
)


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """The range of ``topic`` from ``first`` to ``last``, of ``partitions`` (all if none is named), into ``target``.

    ``committed``: without aborted transactions, and only as far as transactions are decided. ``append``: the target may
    hold records before the restore begins. ``config`` is for a topic that is created.
    """

    cluster: str
    topic: str
    target: str
    partitions: tuple[int, ...] = ()
    first: OffsetBounds = field(default=OffsetBounds(BEGINNING))
    last: OffsetBounds = field(default=OffsetBounds(END))
    committed: bool = True
    on_gap: Literal["error", "skip"] = "error"
    transactional: bool = False
    create: bool = False
    append: bool = False
    codec: Codec = "zstd"
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The group with the progress, and the transactional id."""
        return f"tidemark-restore.{self.cluster}.{self.topic}.{self.target}"

    @property
    def shared(self) -> bool:
        """True if others may write to the target meanwhile: only if records and progress are one transaction."""
        return self.transactional and self.append

    def asked(self, partition: int) -> str:
        """The digest that distinguishes this restore of a partition from another one into the same target."""
        first, last = self.first.of(partition), self.last.of(partition)
        return asked(self.cluster, self.topic, partition, first, last, self.committed, self.transactional)


STEP_RECORDS: Final = 20_000
STEP_BYTES: Final = 16 << 20
"""Most records, and bytes of their columns, that are sent between two commits of the progress, and held in memory."""

STABLE_SECONDS: Final = 3.0
"""Time for which a target's end must stand still before the records of a killed process count as arrived."""


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
        """Restore the rest. Raises errors of :func:`prepare`, :func:`resume_points`, :class:`Sender` and the tier."""
        started = time.monotonic()
        topics = self._tier.topics
        request = self._request
        parts = remote_partitions(topics, request.topic, request.partitions)
        warnings = prepare(request, parts, topics.partitions_for_topic(request.topic), self._target)
        sender = Sender(self._target, transactional=request.transactional, shared=request.shared, codec=request.codec)
        try:
            self._lines = {line.partition: line for line in resume_points(request, parts, self._target)}
            sender.expected |= {line.partition: line.expected for line in self._lines.values()}
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
            progress={line.partition: line.progress for line in self._lines.values()},
            resumed=frozenset(line.partition for line in self._lines.values() if line.resumed),
        )

    def _copy(self, sender: Sender) -> None:
        left = [(line.partition, line.progress) for line in self._lines.values() if not line.progress.done]
        spans = {partition: Interval(progress.next, progress.end) for partition, progress in left}
        for partition, block in read_spans(self._tier, self._request.topic, spans, self._ready):
            self._take(self._lines[partition], block)
            if self._records >= STEP_RECORDS or self._size >= STEP_BYTES:
                self._step(sender)
        for line in self._lines.values():
            if line.overlap is not None:
                line.overlap.finish()
        self._step(sender)

    def _take(self, line: ResumePoint, block: Block) -> None:
        rows, taken = block.rows, line.taken
        epoch = max(taken.epoch, block.leader_epoch)
        line.taken = replace(taken, next=block.next_offset, records=taken.records + len(rows), epoch=epoch)
        if len(rows):
            total = combine(taken.total, hash_sum(rows, line.partition, taken.records))
            line.taken = replace(line.taken, total=total)
            records, offsets = records_of(rows), rows.column("kafka_offset").to_numpy().tolist()
            held = 0 if line.overlap is None else line.overlap.skip(records, offsets)
            self._waiting.append((line.partition, records[held:], offsets[held:]))
            self._records += len(rows)
            self._size += rows.nbytes

    def _step(self, sender: Sender) -> None:
        """Send the waiting records, and commit the progress when all of them are acknowledged."""
        for partition, records, offsets in self._waiting:
            sender.send(partition, records, offsets)
        sender.flush()
        for line in self._lines.values():  # before the progress covers records that an election has cut off meanwhile
            if part := self._tier.partition(self._request.topic, line.partition):
                check_branch(part, line.taken.next, line.taken.epoch)
        moved = {
            line.partition: replace(
                line.taken, target_next=sender.expected[line.partition] if line.compared is None else line.compared
            )
            for line in self._lines.values()
            if line.taken.next > line.progress.next
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


class Overlap:
    """The records ``[start, end)`` of the target beyond the last progress, compared with the history one by one.

    Without transactions a process that is killed leaves records that no progress covers. They must be the next ones of
    the history: then they are not sent again. Records below ``next`` were found.
    """

    def __init__(
        self, topic: str, partition: int, start: int, end: int, held: Iterator[list[tuple[int, Record]]]
    ) -> None:
        self._topic, self._partition = topic, partition
        self.next, self._end = start, end
        self._held = chain.from_iterable(held)

    @property
    def done(self) -> bool:
        """True if all of these records were found in the history."""
        return self.next >= self._end

    def skip(self, records: Sequence[Record], offsets: Sequence[int]) -> int:
        """The number of ``records``, the next of the history at ``offsets`` of the source, that lie in the target.

        Raises:
            ForeignRecords: the target holds another record, or lacks an offset.
        """
        for count, (record, source) in enumerate(zip(records, offsets, strict=True)):
            if self.done:
                return count
            held = next(self._held, None)
            if held is None or held[0] != self.next:
                raise self._refused("a record that was there is missing; does retention or compaction delete records?")
            if held[1] != record:
                raise self._refused(
                    f"the record is not the source's at {source}: another program writes to the target, or the record "
                    f"was erased meanwhile. {FOREIGN}"
                )
            self.next += 1
        return len(records)

    def finish(self) -> None:
        """End the history. Raises :class:`ForeignRecords` if the target has more records."""
        if not self.done:
            raise self._refused(f"it has records beyond the restored range: another program writes to it. {FOREIGN}")

    def _refused(self, observation: str) -> ForeignRecords:
        return ForeignRecords(self._topic, self._partition, self.next, observation)


@dataclass(slots=True)
class ResumePoint:
    """One partition: its committed progress, the target's next offset, and records that the target may hold already."""

    partition: int
    progress: RestoreProgress
    expected: int
    taken: RestoreProgress
    """The progress once all records taken so far are acknowledged, but for their end in the target."""

    overlap: Overlap | None = None
    resumed: bool = False

    @property
    def compared(self) -> int | None:
        """The target's offset up to which its records were found in the history; None if the search is over."""
        return None if self.overlap is None or self.overlap.done else self.overlap.next


def prepare(
    request: RestoreRequest, parts: Sequence[RemotePartition], everything: Collection[int], target: Target
) -> list[str]:
    """Create the target if requested, and check that it fits; returns in words the properties that will be lost.

    ``everything`` are all partitions of the source. Raises ConfigError if the target does not exist or does not fit.
    """
    if request.create and not target.partitions():
        target.create(max(everything) + 1, request.config)
    partitions = target.partitions()
    if not partitions:
        raise ConfigError(target.topic, [("", "does not exist in the target's cluster: create it, or say --create")])
    needed = max(part.partition for part in parts) + 1
    if partitions < needed:
        rule = f"has {partitions} partitions, and {needed} are needed, because each record keeps its partition"
        raise ConfigError(target.topic, [("partitions", rule)])
    return target.check(transactional=request.transactional)


def asked_of(request: RestoreRequest, part: RemotePartition) -> Interval:
    """The offsets ``[start, end)`` of a request in a partition, as of now. Raises OutOfRange if some are missing."""
    edges = RemoteEdges(part, committed=request.committed)
    span = span_of(part, request.first, request.last, edges)
    readable = edges.end()
    if span.end > max(readable, span.start):
        raise OutOfRange(part.topic, part.partition, span.end - 1, part.start, readable)
    return span


def check_branch(part: RemotePartition, next_offset: int, epoch: int) -> None:
    """Raise :class:`RestoreError` if an election cut off records below ``next_offset``, read up to leader ``epoch``."""
    cut = part.diverged(next_offset, epoch) if epoch >= 0 else None
    if cut is not None:
        raise RestoreError(
            f"{part.topic}-{part.partition}: an unclean election gave the source other records from offset {cut} on, "
            f"and those up to {next_offset} are restored: delete the target and its group, and start again"
        )


def resume_points(request: RestoreRequest, parts: Sequence[RemotePartition], target: Target) -> list[ResumePoint]:
    """The resume points of ``parts``; commits the progress of new partitions, before any of their records.

    Raises:
        RestoreError: another restore into the target is not finished, or the source's topic was created again.
        ForeignRecords: the target holds records that no restore of this source wrote.
        OutOfRange: the range, or the rest of it, is not in the remote tier.
    """
    numbers = [part.partition for part in parts]
    known = target.progress(numbers)
    if not request.transactional and any(not progress.done for progress in known.values()):
        _await_stable_edges(target, numbers)
    edges = target.edges(numbers)
    lines = [_resume_point(request, part, target, known.get(part.partition), edges[part.partition]) for part in parts]
    new = {line.partition: line.progress for line in lines if not line.resumed}
    if new:
        target.save(new)
    return lines


def _resume_point(
    request: RestoreRequest,
    part: RemotePartition,
    target: Target,
    known: RestoreProgress | None,
    edges: tuple[int, int],
) -> ResumePoint:
    number, (_, end) = part.partition, edges
    same = known is not None and known.asked == request.asked(number)
    if known is not None and not same and not known.done:
        raise RestoreError(
            f"{target.topic}-{number}: another restore from {request.topic} is at {known.next} of {known.end}: "
            f"continue with its own options, including --transactional, or delete the group {target.group} and the "
            "target, and start again"
        )
    if known is None or not same:
        return _new_resume_point(request, part, target, known, edges)
    if part.incarnation != known.incarnation:
        raise RestoreError(
            f"{request.topic}-{number} was created again since the restore began: its offsets have other records now"
        )
    if end < known.target_next:
        observation = (
            f"it ends, but {known.records} records were restored up to {known.target_next}: it was created again, or "
            f"lost records; delete the group {target.group}, and restore into an empty topic"
        )
        raise ForeignRecords(target.topic, number, end, observation)
    line = ResumePoint(number, known, end, known, resumed=True)
    if known.done:
        return line
    if known.next < part.start:
        raise OutOfRange(part.topic, number, known.next, part.start, RemoteEdges(part, committed=True).end())
    check_branch(part, known.next, known.epoch)
    if request.transactional:
        _refuse_foreign(request, target, number, known.target_next, end)
    elif end > known.target_next:
        held = target.read(number, known.target_next, end, committed=False)
        line.overlap = Overlap(target.topic, number, known.target_next, end, held)
    return line


def _new_resume_point(
    request: RestoreRequest,
    part: RemotePartition,
    target: Target,
    known: RestoreProgress | None,
    edges: tuple[int, int],
) -> ResumePoint:
    number, (start, end) = part.partition, edges
    if not request.append:
        _refuse_foreign(request, target, number, max(start, known.target_next if known else 0), end)
    first, last = asked_of(request, part)
    progress = RestoreProgress(
        asked=request.asked(number),
        incarnation=part.incarnation,
        first=first,
        end=last,
        next=first,
        target_first=end,
        target_next=end,
    )
    return ResumePoint(number, progress, end, progress)


def _refuse_foreign(request: RestoreRequest, target: Target, number: int, start: int, end: int) -> None:
    """Raise :class:`ForeignRecords` if ``[start, end)`` of the target holds a record other than markers and aborts."""
    if request.append:
        return
    for held in target.read(number, start, end, committed=True) if start < end else ():
        seen = f"there are records that this restore did not write. {FOREIGN}; or use --append to restore behind them"
        raise ForeignRecords(target.topic, number, held[0][0], seen)


def _await_stable_edges(target: Target, numbers: Sequence[int]) -> None:
    """Wait until the records that a killed process had still in flight have arrived, or will not arrive."""
    seen: Mapping[int, tuple[int, int]] = {}
    while (now := target.edges(numbers)) != seen:
        seen = now
        time.sleep(STABLE_SECONDS)


@dataclass(slots=True)
class PartitionEstimate:
    """Offsets ``[start, end)``, with as many records at most; ``size`` is in compressed bytes of segments.

    Ranges of packs count as segments.
    """

    partition: int
    start: int
    end: int
    segments: int = 0
    size: int = 0
    gaps: list[Gap] = field(default_factory=list)

    def answer(self) -> dict[str, Any]:
        """The estimate as JSON."""
        gaps = [{"from": gap.start, "to": gap.end, "reason": gap.reason} for gap in self.gaps]
        return {
            "partition": self.partition,
            "from": self.start,
            "to": self.end,
            "segments": self.segments,
            "bytes": self.size,
            "records_at_most": self.end - self.start,
            "gaps": gaps,
        }

    def lines(self) -> Iterator[str]:
        """The estimate in lines of text, for people."""
        size = f"{self.size / 1e6:,.1f} MB of {self.segments} segments"
        yield f"  {self.partition}: {self.start} to {self.end}, at most {self.end - self.start:,} records, about {size}"
        for gap in self.gaps:
            yield f"    gap {gap.start} to {gap.end}: {gap.reason}; it ends the restore, unless --on-gap skip"


def estimate(request: RestoreRequest, part: RemotePartition) -> PartitionEstimate:
    """The estimate for a partition. Raises errors of the restore."""
    start, end = asked_of(request, part)
    estimated = PartitionEstimate(part.partition, start, end)
    at = start
    while at < end:
        stretch = part.next_stretch(at, committed=request.committed)
        if stretch is None:
            break
        if isinstance(stretch, Gap):
            estimated.gaps.append(stretch)
            at = stretch.end
            continue
        segment = stretch.segment
        estimated.segments += 1
        share = (min(stretch.end, end) - stretch.start) / max(1, segment.end - segment.base)
        estimated.size += round(segment.size * min(1.0, share))
        at = stretch.end
    return estimated
