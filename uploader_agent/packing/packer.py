"""Packs the partitions of one bucket that have new batches: a tick claims them, stores packs, and puts the head.

Promises: a pack is created once under a random name. The head names it only when it is stored, and is replaced by
If-Match. Ranges that a failed tick packed are ignored, and the next tick packs the same or newer batches.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

import structlog
from crc32c import crc32c

from tidemark.errors import FormatError, LaterFormat, NotFound
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.head import MOST_ENTRY_BYTES, Head, HeadEntry
from tidemark.formats.raw.manifest import compacts
from tidemark.formats.raw.pack import (
    MOST_UNSEALED_AGE,
    MOST_UNSEALED_BYTES,
    MOST_UNSEALED_RANGES,
    RangeContent,
    WrittenRange,
    build,
)
from tidemark.formats.raw.watermark import MOST_TAILS
from tidemark.kafka_log import BatchHeader, Lineage, OpenTransaction
from tidemark.raw.heads import read_head
from tidemark.raw.packs import MOST_CHAIN, RangeLines, chain
from uploader_agent.disk.segment_files import Bytes, SegmentChanged
from uploader_agent.observability.health import Failing
from uploader_agent.observability.metrics import Metrics
from uploader_agent.packs.broker_head import BrokerHead, EntryLines, Unsealed, run_all
from uploader_agent.packs.packed_run import last_batch, last_batch_below, open_at_end
from uploader_agent.packs.reading import LARGEST_RANGE, NewRange, NextRange, NotPackable, WantedRange, read
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.runtime import Runtime
from uploader_agent.scheduling.retry import Failures
from uploader_agent.stored.histories import HistoryDiffers
from uploader_agent.stored.objects import Summed, create
from uploader_agent.upload.local_run import cleanup_of

TheirHeads = Mapping[int, Head | Exception | None]
"""Other brokers' heads by node id: None without a head, or the error of reading it."""


@dataclass
class PartitionTick:
    """A partition in a tick. ``packed`` are its stored ranges that the head does not name yet, of ``size`` bytes.

    ``following`` is the start of the range behind the last one that was read, and ``lineage`` its log's. ``doubt`` is
    the last one before it: what it reads may be of a log that has been replaced since.
    """

    partition: LedPartition
    sealed_end: int
    doubt: object
    packed: list[WrittenRange] = field(default_factory=list)
    following: NextRange | None = None
    lineage: Lineage = field(default_factory=Lineage)
    size: int = 0

    @property
    def start(self) -> int:
        """The offset at which the partition's next range begins."""
        return self.next_range.start

    @property
    def has_unpacked(self) -> bool:
        """True if there are committed offsets above the end of seals and packs."""
        return self.start < (self.partition.high_watermark or 0)

    @property
    def waiting(self) -> float:
        """The committed bytes that neither seals nor packs have, estimated from the bytes per offset so far."""
        partition = self.partition
        end = max(self.sealed_end, partition.packed.tail.end)
        return max(0, (partition.high_watermark or 0) - end) * (partition.bytes_per_offset or 0.0)

    @property
    def has_more(self) -> bool:
        """True if the packed ranges end below the high watermark."""
        return self.start < (self.partition.high_watermark or 0)

    @property
    def next_range(self) -> NextRange:
        """The start of the partition's next range."""
        return self.following or self.partition.packed.tail.next_range(self.sealed_end)

    def read(self, head: BrokerHead, shipped_at: datetime) -> NewRange | None:
        """Read the partition's next range. Raises as :func:`~uploader_agent.packs.reading.read`, and StoreError."""
        partition, next_range = self.partition, self.next_range
        high_watermark, topic_id = partition.high_watermark, partition.led.topic_id
        if high_watermark is None or topic_id is None or next_range.start >= high_watermark:
            return None
        local = partition.local.log
        cleanup = cleanup_of(partition.folder.parent, partition.tp, next_range.start, local.cleanup)
        wanted = WantedRange(
            tp=partition.tp,
            topic_id=topic_id,
            leader_epoch=partition.led.leader_epoch,
            beginning=next_range._replace(opened=self._opened(head, next_range)),
            end=high_watermark,
            compacted=compacts(cleanup.policy),
            marks_gaps=partition.marks_gaps,
            shipped_at=shipped_at,
            before=None if self.packed else self._before(next_range),
        )
        partition.packed.begin_packing(next_range.start)
        try:
            with partition.uploader.route.files() as files:
                return read(files, wanted)
        except HistoryDiffers as error:
            partition.uploader.doubt()
            raise SegmentChanged(str(error)) from error

    def add(self, new: NewRange) -> None:
        """Note that the range which was read last is added to a pack."""
        self.following, self.lineage = new.following, new.lineage

    def stored(self, written: WrittenRange) -> None:
        """Note that the added range is stored."""
        assert self.following is not None
        self.packed.append(written)
        self.following = self.following._replace(previous=written.pointer)
        self.size += written.size

    def entry(self, now: float) -> HeadEntry:
        """The partition's entry with the packed ranges; ``now`` is a time of the monotonic clock."""
        partition, last = self.partition, self.packed[-1]
        assert partition.confirmed is not None
        high_watermark, asked_at = partition.confirmed
        assert partition.led.topic_id is not None
        unsealed = partition.packed.tail.own_unsealed(self.sealed_end)
        unsealed = unsealed.plus(Unsealed(len(self.packed), self.size, self.packed[0].part.shipped_at))
        return HeadEntry(
            topic=partition.tp.topic,
            topic_id=partition.led.topic_id,
            partition=partition.tp.partition,
            epoch=partition.led.leader_epoch,
            lineage=self.lineage.since(self.sealed_end).entries,
            restores=self.lineage.restores,
            tail_end=last.part.next,
            last=last.pointer,
            high_watermark=max(high_watermark, last.part.next),
            observed_at=asked_at,
            oldest_unstored=_rounded(partition.unstored_age(now, last.part.next)),
            ranges=unsealed.ranges,
            size=unsealed.size,
            since=unsealed.since,
        )

    def _opened(self, head: BrokerHead, next_range: NextRange) -> tuple[OpenTransaction, ...] | None:
        """The transactions open at the next range's start, from the store; None if only the local log has them."""
        opened = next_range.opened
        if opened is None:
            opened = self.partition.remote.log.open_before(next_range.start)
        if opened is None and next_range.last is not None:
            opened = open_at_end(head.cluster, next_range.last)
        return opened

    def _before(self, next_range: NextRange) -> BatchHeader | None:
        """The last stored batch below the next range, if it is known."""
        packed = self.partition.packed.tail.last_batch
        if packed is not None and packed.next_offset == next_range.start:
            return packed
        return self.partition.remote.log.last_batch(next_range.start)


def _rounded(seconds: float | None) -> float | None:
    return seconds if seconds is None else round(seconds, 3)


def read_heads(head: BrokerHead, partitions: Collection[LedPartition], runtime: Runtime) -> TheirHeads:
    """The heads of all brokers that may have packed unsealed offsets of claimed ``partitions``, each read once.

    They are the brokers of the leaderships that ``offset.wm`` lists. Their heads are read after the claim, since by
    then they have everything that a reader accepted from them before the claim.
    """
    heads: dict[int, Head | Exception | None] = {}
    brokers = {broker for partition in partitions for _, broker in partition.uploader.other_tails()}
    run_all([partial(_read_head, head, broker, heads) for broker in brokers], runtime)
    return heads


def join_heads(partition: LedPartition, head: BrokerHead, broker: int, theirs: TheirHeads) -> None:
    """Join the partition to its tails: the entry of this broker, ``broker``, in the stored head, and former leaders'.

    Raises the error of a head that could not be read.
    """
    inherited: list[HeadEntry] = []
    for epoch, other in partition.uploader.other_tails():
        stored = head.entries if other == broker else theirs[other]
        if isinstance(stored, Exception):
            raise stored
        entries = stored.by_key if isinstance(stored, Head) else stored or {}
        key = partition.entry_key._replace(epoch=epoch)
        inherited += [entries[key]] if key in entries else []
    own = head.entries.get(partition.entry_key)
    partition.packed.join(head.version, own, inherited, partition.uploader.lineage())


def _read_head(head: BrokerHead, broker: int, heads: dict[int, Head | Exception | None]) -> None:
    """Add another broker's head to ``heads``; a damaged head counts as none, which only costs bytes."""
    try:
        version = read_head(head.cluster, broker)
        heads[broker] = version.value if version else None
    except LaterFormat as error:
        heads[broker] = error
    except FormatError as error:
        logger.warning("head_not_read", broker=broker, error=str(error))
        heads[broker] = None
    except Exception as error:  # noqa: BLE001 - only the partitions that need this head fail
        heads[broker] = error


logger = structlog.get_logger(__name__)


class Packer:
    """For one thread, and one bucket. ``revisit`` is called with a partition that is to be planned again.

    Only partitions of which ``is_led`` is true are packed. A partition that was left, and is led again under the same
    epoch, is another object, and has the same entry in the head: its former object, from a tick that had failed, would
    take the entry back to where that had been.
    """

    def __init__(
        self,
        broker: int,
        head: BrokerHead,
        failures: Failures,
        is_led: Callable[[LedPartition], bool],
        revisit: Callable[[LedPartition], None],
        metrics: Metrics,
        runtime: Runtime,
    ) -> None:
        self.head = head
        self.backlog = Backlog(head.name, runtime)
        self._broker = broker
        self._failures = failures
        self._is_led = is_led
        self._revisit = revisit
        self._metrics = metrics
        self._runtime = runtime
        self._paused: dict[TopicPartition, float] = {}
        self._missed: set[TopicPartition] = set()
        """The partitions that have failed in this tick."""

    def pack(self, partitions: Iterable[LedPartition]) -> list[LedPartition]:
        """Pack new batches, and put the head; return the partitions that are to be tried again."""
        self._missed = set()
        led = self._still_led(partitions)
        wanted = [partition for partition in led if self._may_try(partition)]
        unclaimed = [partition for partition in wanted if not _is_claimed(partition)]
        self._try_all(unclaimed, lambda partition: partition.uploader.claim())
        again = self._pack_claimed([partition for partition in wanted if _is_claimed(partition)])
        self.backlog.done(partition for partition in wanted if partition.tp not in self._missed)
        return again

    def read_tails(self, partitions: list[LedPartition]) -> None:
        """Find out how far surveyed ``partitions`` are packed, and write nothing."""
        try:
            self.head.read()
            self._joined(partitions)
        except Exception as error:  # noqa: BLE001 - reported like an error while packing
            self._failed(partitions, error)

    def resume(self, tails: Iterable[tuple[LedPartition, HeadEntry | None]]) -> None:
        """Continue each partition from its leadership's entry in the head, which differs from the known one.

        A former process may have put it after its last index. So its last batch is compared with the log here: if that
        ends where the entry does, there is nothing to pack, and nothing else would compare them.
        """
        lines = RangeLines()
        for partition, own in tails:
            partition.packed.resume(own)
            self._try(partition, partial(self._compare_joined, partition, lines))
            self._revisit(partition)

    def forget(self, tp: TopicPartition) -> None:
        """Drop the state of a partition that this broker no longer leads."""
        self._failures.forget(tp)
        self._paused.pop(tp, None)
        self.backlog.forget(tp)

    def _still_led(self, partitions: Iterable[LedPartition]) -> list[LedPartition]:
        """The ``partitions`` that were not left meanwhile; the others wait for nothing any more."""
        partitions = [*partitions]
        self.backlog.done(partition for partition in partitions if not self._is_led(partition))
        return [partition for partition in partitions if self._is_led(partition)]

    # -- one partition -------------------------------------------------------------------------------------------------

    def _may_try(self, partition: LedPartition) -> bool:
        paused = self._paused.get(partition.tp, 0.0)
        return partition.may_pack_tail and partition.uploader.parting is None and paused <= self._runtime.monotonic()

    def _try(self, partition: LedPartition, step: Callable[[], object]) -> bool:
        """Return True if ``step`` succeeded. A failure delays only this partition, for a pause."""
        try:
            step()
        except NotPackable as error:
            partition.packed.failed(str(error))
            self._to_be_sealed(partition, partition.high_watermark or 0, str(error))
        except Exception as error:  # noqa: BLE001 - an error of one partition must not stop the others
            self._paused[partition.tp] = self._runtime.monotonic() + self._has_failed(partition, error)
        else:
            return True
        return False

    def _try_all(self, partitions: Iterable[LedPartition], step: Callable[[LedPartition], object]) -> None:
        """Try ``step`` with each of ``partitions``, a few at the same time."""
        run_all([partial(self._try, partition, partial(step, partition)) for partition in partitions], self._runtime)

    def _failed(self, partitions: Iterable[LedPartition], error: Exception) -> None:
        for partition in partitions:
            self._has_failed(partition, error)

    def _has_failed(self, partition: LedPartition, error: Exception) -> float:
        """Note a failure, and return the seconds for which the partition is to wait.

        A failure of a partition that was left is none: what is noted of it was dropped, and nobody would drop it again.
        """
        if not self._is_led(partition):
            return 0.0
        self._missed.add(partition.tp)
        self.backlog.failed(error)
        pause, message = self._failures.failed(partition.tp, error)
        if message:
            partition.packed.failed(message)
        return pause

    def _join(self, partition: LedPartition, theirs: TheirHeads, lines: RangeLines) -> None:
        """Join a partition to its tails, once its log is known to have the last batch of them."""
        join_heads(partition, self.head, self._broker, theirs)
        self._compare_joined(partition, lines)

    def _compare_joined(self, partition: LedPartition, lines: RangeLines) -> None:
        """Compare the last batch that a former process or leader has packed with the partition's log."""
        try:
            last = self._last_packed(partition, lines)
            if last is not None:
                partition.packed.note_last(last)
                if partition.uploader.lacks(last):
                    self._revisit(partition)
        except NotFound:  # retention has removed the pack: seals hold it
            return
        except Exception:
            partition.packed.begin_again()  # to join, and compare, once more
            raise

    def _last_packed(self, partition: LedPartition, lines: RangeLines) -> BatchHeader | None:
        """The last batch that a former process or leader has packed below the end of the tail; None without one."""
        head, tail = self.head, partition.packed.tail
        pointer, cut = tail.last_pointer, tail.cut
        if pointer is not None:
            return last_batch(head.cluster.store, lines.read(head.cluster, pointer))
        if cut is None or cut[0] <= partition.remote.log.sealed_end:
            return None
        end, entry = cut
        with suppress(FormatError):  # damage proves nothing
            ranges = chain(head.cluster, entry, end - 1, lines.read)
            return last_batch_below(head.cluster.store, ranges, end)
        return None

    def _announce_tail(self, partition: LedPartition) -> None:
        """Add this leadership's tail to ``offset.wm``; without room for it, have the partition sealed."""
        uploader = partition.uploader
        uploader.announce_tail()
        if not uploader.may_pack and len(uploader.tails) >= MOST_TAILS:
            reason = "offset.wm lists as many tails as it may: their offsets are sealed first"
            self._to_be_sealed(partition, partition.high_watermark or 0, reason)

    def _to_be_sealed(self, partition: LedPartition, end: int, reason: str) -> None:
        if partition.packed.seal_up_to(end):
            logger.debug("tail_to_be_sealed", partition=str(partition.tp), end=end, reason=reason)
            self._revisit(partition)

    # -- all partitions ------------------------------------------------------------------------------------------------

    def _pack_claimed(self, members: list[LedPartition]) -> list[LedPartition]:
        """Pack ``members``, and put the head; return the members that are to be tried again."""
        head, started = self.head, self._runtime.monotonic()
        if not members:
            return []
        try:
            head.make_whole()
            # What is packed of a suspect log would hide the batch that differs from those who compare the newest ones.
            joined = [partition for partition in self._joined(members) if partition.uploader.is_trusted]
            ticks = [PartitionTick(one, one.remote.log.sealed_end, one.uploader.last_doubt) for one in joined]
            packable = [tick for tick in ticks if tick.has_unpacked and not self._is_large(tick)]
            unlisted = (tick.partition for tick in packable if not tick.partition.uploader.may_pack)
            self._try_all(unlisted, self._announce_tail)
            self._write_packs([tick for tick in packable if tick.partition.uploader.may_pack])
            if any(tick.packed for tick in ticks):
                self._name(head, ticks)
                self._metrics.pack_seconds.observe(self._runtime.monotonic() - started)
        except Exception as error:  # noqa: BLE001 - the thread must continue, and tries again
            self._failed(members, error)
            return members  # the head may have been written: until that is known, packing has not ended
        for partition in members:
            partition.packed.end_packing()
        return []

    def _name(self, head: BrokerHead, ticks: list[PartitionTick]) -> None:
        """Put the head with the ranges that ``ticks`` have packed, and take account of them.

        Not with those of a partition that was left meanwhile: if it is led again, its seals do not know that batches
        were being packed, see :meth:`Tail.packed_below`. Nor with those of a log that was found to be another one.
        """
        ticks = [tick for tick in ticks if self._is_led(tick.partition) and tick.partition.uploader.is_trusted]
        packed = [tick for tick in ticks if tick.packed]
        if not packed:
            return
        changed = head.entries.copy()
        for tick in packed:
            if not self._try(tick.partition, partial(self._add_entry, changed, tick)):
                tick.packed.clear()
        self.drop_sealed(changed, (tick.partition for tick in ticks))
        head.put(changed)
        for tick in packed:
            self._advance(tick)

    def _joined(self, members: list[LedPartition]) -> list[LedPartition]:
        """Join ``members`` to the tails in the heads, and return the members that are joined."""
        head = self.head
        new = [partition for partition in members if partition.packed.tail.joined != head.version]
        theirs = read_heads(head, new, self._runtime)
        lines = RangeLines()
        failed = {led.tp for led in new if not self._try(led, partial(self._join, led, theirs, lines))}
        return [partition for partition in members if partition.tp not in failed]

    def _write_packs(self, ticks: list[PartitionTick]) -> None:
        """Store packs with the next ranges of all ``ticks``, until no more are left. A pack has one per partition."""
        store, keys = self.head.cluster.store, self.head.cluster.keys
        while ticks:
            added: deque[PartitionTick] = deque()
            more: list[PartitionTick] = []
            for pack in build(self._broker, self._next_ranges(ticks, added), LARGEST_RANGE):
                body = pack.body
                create(store, keys.pack(pack.name), Summed(Bytes(str(pack.name), body), crc32c(body)))
                self._metrics.packs.inc()
                for written in pack.ranges:
                    tick = added.popleft()
                    tick.stored(written)
                    more += [tick] if tick.has_more else []
                del pack, body  # the next one takes as much memory
            ticks = more

    def _next_ranges(
        self, ticks: Iterable[PartitionTick], added: deque[PartitionTick]
    ) -> Iterator[tuple[RangeContent, bytes]]:
        """The next range of each of ``ticks``, and its bytes; the ticks that have one are appended to ``added``."""
        for tick in ticks:
            new = self._next(tick)
            if new is not None:
                tick.add(new)
                added.append(tick)
                yield new.content, new.data

    def _next(self, tick: PartitionTick) -> NewRange | None:
        """The partition's next range, if there is one, and room for it."""
        ranges: list[NewRange] = []

        def read() -> None:
            range_ = tick.read(self.head, self._runtime.utc_now())
            if range_ is not None:
                ranges.append(range_)

        self._try(tick.partition, read)
        if not ranges:
            tick.partition.packed.found_no_range(tick.start)
            self._revisit(tick.partition)
            return None
        return ranges[0] if self._has_room(tick, ranges[0]) else None

    def _is_large(self, tick: PartitionTick) -> bool:
        """True if a partition has more new bytes than may be packed, or than packing is worth; it is then sealed.

        A quiet tail of several ranges would take a pack for each, and the seal sends its bytes again.
        """
        partition = tick.partition
        fits = partition.packed.tail.unsealed(tick.sealed_end).size + tick.waiting <= MOST_UNSEALED_BYTES
        if fits and (partition.freshness is not None or tick.waiting <= LARGEST_RANGE):
            return False
        self._to_be_sealed(partition, partition.high_watermark or 0, f"about {tick.waiting:.0f} bytes of it are new")
        return True

    def _has_room(self, tick: PartitionTick, new: NewRange) -> bool:
        """True if the range ``new`` may be packed as well; otherwise have the partition sealed."""
        partition = tick.partition
        tail = partition.packed.tail
        before = tail.unsealed(tick.sealed_end)
        large = before.size + tick.size + len(new.data) > MOST_UNSEALED_BYTES
        long = tail.own_unsealed(tick.sealed_end).ranges + len(tick.packed) >= MOST_CHAIN
        if not large and not long:
            return True
        end = new.content.first if before.ranges else partition.high_watermark or 0
        error = f"its seals are late: {before} are packed, and no reader takes more"
        partition.packed.failed(error)
        self._to_be_sealed(partition, end, error)
        return False

    # -- the head ------------------------------------------------------------------------------------------------------

    def _add_entry(self, entries: EntryLines, tick: PartitionTick) -> None:
        """Replace the partition's entry; if the head has no room for a larger one, have the partition sealed."""
        if not entries.put(tick.entry(self._runtime.monotonic()), MOST_ENTRY_BYTES):
            tick.packed.clear()
            reason = "the head has no room for it"
            self._to_be_sealed(tick.partition, tick.partition.high_watermark or 0, reason)

    def _advance(self, tick: PartitionTick) -> None:
        """Take account of a partition's ranges that the head now names."""
        partition = tick.partition
        if not tick.packed or tick.following is None:
            return
        if partition.uploader.last_doubt is not tick.doubt:
            partition.uploader.suspect()
            self._revisit(partition)
        partition.packed.advance(tick.packed, tick.following, tick.sealed_end)
        self.backlog.packed(partition)
        self._failures.succeeded(partition.tp, wrote=True)
        self._metrics.packed_ranges.inc(len(tick.packed))
        self._metrics.packed_bytes.inc(tick.size)
        self.limit(partition, tick.size)

    def limit(self, partition: LedPartition, next_size: int = 0) -> None:
        """Have the partition sealed if more is packed than may be, or will be with ``next_size`` more bytes."""
        tail = partition.packed.tail
        unsealed = tail.unsealed(partition.remote.log.sealed_end)
        old = unsealed.since is not None and self._runtime.utc_now() - unsealed.since >= MOST_UNSEALED_AGE
        large = unsealed.size + next_size > MOST_UNSEALED_BYTES
        if old or large or unsealed.ranges >= MOST_UNSEALED_RANGES:
            self._to_be_sealed(partition, tail.end, f"much of it is packed and not sealed: {unsealed}")

    @staticmethod
    def drop_sealed(entries: EntryLines, led: Iterable[LedPartition]) -> list[LedPartition]:
        """Remove the entries of ``led`` partitions that are sealed to their ends; return the partitions."""
        dropped: list[LedPartition] = []
        for partition in led:
            tail_end = entries.tail_end(partition.entry_key)
            if tail_end is not None and tail_end <= partition.remote.log.next_offset:
                entries.remove(partition.entry_key)
                dropped.append(partition)
        return dropped


def _is_claimed(partition: LedPartition) -> bool:
    """True if ``offset.wm`` has the leadership, and the state of the store is known."""
    return partition.remote.log.surveyed and partition.uploader.claimed


class Backlog:
    """The partitions of a bucket that wait to be packed, and the time since the last of them was packed. Thread-safe.

    Seals may cover a partition in the meantime.
    """

    def __init__(self, head: str, runtime: Runtime) -> None:
        """Begin without partitions; ``head`` names the bucket."""
        self._head = head
        self._clock = runtime.monotonic
        self._lock = threading.Lock()
        self._waiting: dict[TopicPartition, LedPartition] = {}
        self._since = 0.0
        self._failure: str | None = None

    def add(self, partitions: Iterable[LedPartition]) -> None:
        """Add ``partitions``, which are to be packed."""
        with self._lock:
            if not self._left():
                self._note_progress()
            self._waiting |= {partition.tp: partition for partition in partitions}

    def packed(self, partition: LedPartition) -> None:
        """Note that batches of ``partition`` were packed."""
        with self._lock:
            self._note_progress()
        self.done([partition])

    def done(self, partitions: Iterable[LedPartition]) -> None:
        """Remove ``partitions``: they have no more batches to pack now."""
        with self._lock:
            for partition in partitions:
                if self._waiting.get(partition.tp) is partition:  # and not the partition under a later leadership
                    del self._waiting[partition.tp]

    def forget(self, tp: TopicPartition) -> None:
        """Remove a partition that this broker no longer leads, or leads under another epoch."""
        with self._lock:
            self._waiting.pop(tp, None)

    def failed(self, error: Exception) -> None:
        """Note an error after which packing will be tried again."""
        with self._lock:
            self._failure = f"{type(error).__name__}: {error}"

    def stalled(self) -> Failing | None:
        """The time since batches were last packed; None if no partition waits."""
        with self._lock:
            left, seconds, error = self._left(), self._clock() - self._since, self._failure
        words = (
            f"nothing was packed for {seconds:.0f} s beside {self._head}, though {left} partitions wait to be packed"
        )
        return Failing(seconds, f"{words}; the last failure: {error}" if error else words, error) if left else None

    def _note_progress(self) -> None:
        self._since, self._failure = self._clock(), None

    def _left(self) -> int:
        """Drop partitions that seals now cover, and return the number of the others."""
        partitions = self._waiting.values()
        self._waiting = {led.tp: led for led in partitions if (led.high_watermark or 0) > led.stored_end}
        return len(self._waiting)
