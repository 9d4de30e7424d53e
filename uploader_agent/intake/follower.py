"""The follower of one partition: it copies its leader's log as a replica does, without being in any replica set.

The leader alone says which batches are its log: a follower asks for the lineage under each leadership (KIP-101,
KIP-320), cuts its own log where that leaves the leader's, and takes no batch that is not on it. Questions about epochs
name the topic. So a lineage counts only after the leader has answered a Fetch by topic id under the same epoch: a topic
that was made again in between is refused, before anything is cut.

A broker answers a Fetch with committed batches only: nothing above a high watermark is ever taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import chain
from typing import Final, NamedTuple

from tidemark.errors import FormatError, StoreError, TidemarkError
from tidemark.formats.keys import SegmentName, TopicPartition
from tidemark.kafka_log import BatchHeader, Lineage, OpenTransaction, SegmentScanner
from tidemark.raw import objects
from tidemark.raw.segments import segment_of
from tidemark.storage import PartitionStore, StoredWatermark
from uploader_agent.broker.admin import BrokerUnavailable, Leader
from uploader_agent.intake.fetching import (
    FetchedPart,
    FetchStopped,
    PartitionRefused,
    Refusal,
    StopReason,
    TopicAnswer,
    Wanted,
)
from uploader_agent.intake.leader_logs import LeaderLog
from uploader_agent.intake.spool import PartitionSpool
from uploader_agent.stored.histories import Parting, last_batch
from uploader_agent.stored.stored_log import StoredSegment, transactions_open_at


class StoredEnd(NamedTuple):
    """The offset below which the store accounts for all offsets, and the batch before it, if a segment has all of it.

    ``opened`` are the transactions that are open there.
    """

    offset: int
    last: BatchHeader | None = None
    opened: tuple[OpenTransaction, ...] = ()


def stored_end(partition: PartitionStore, topic_id: str, lineage: Lineage) -> StoredEnd:
    """The stored end of a partition of this topic id, on this lineage. Raises StoreError and FormatError."""
    found = partition.watermark()
    if not isinstance(found, StoredWatermark) or found.watermark.topic_id != topic_id:
        return StoredEnd(0)
    end, lineage = found.watermark.next_offset, lineage.restored(found.watermark.restores)
    cut = found.lineage.divergence(lineage, end)
    if cut is not None:
        return StoredEnd(cut, opened=transactions_open_at(partition, cut, lineage) or ())
    base = found.base_offset
    # Then those of other branches, and what was rewritten.
    others = (listed.name for listed in partition.manifests(base, base + 1))
    for name in chain([SegmentName(base)], others):
        stored = objects.read_manifest(partition, name)
        known = StoredSegment.of(stored.manifest, lineage) if stored else None
        if stored and known and known.state == "whole" and known.readable_end == known.next_offset == end:
            last = last_batch(
                partition, segment_of(stored.manifest, partition.keys.manifest(name), partition.store.url), end
            )
            whole = last is not None and last.base_offset not in stored.manifest.gone
            return StoredEnd(end, last if whole else None, known.open_transactions)
    return StoredEnd(end, opened=transactions_open_at(partition, end, lineage) or ())


_PAUSE_SECONDS: Final = 0.25
"""Time after a refusal before the next question."""

_NEAR_SECONDS: Final = 10.0
"""Time for which a near replica is read before the leader is asked again. One that gave nothing has fallen behind."""

_SHUN_SECONDS: Final = 60.0
"""Time for which the leader is read after a near replica has failed."""

_DENIED_SECONDS: Final = 60.0
"""Time without the topic id in any broker's answer after which the topic of a spool is gone."""

_MOST_DAMAGED: Final = 5
"""Damaged answers in a row from the leader after which the partition stops: its log is damaged, not the way here."""


class FollowerState(StrEnum):
    """The states of a follower; in all but the last two it goes on by itself."""

    WAITING = "waiting"
    """The leader, or its lineage, is not known."""
    PROVING = "proving"
    """The lineage is known, and waits for an answer to a Fetch by topic id."""
    FOLLOWING = "following"
    """The spool is a prefix of the leader's log, and grows."""
    OVER = "over"
    """The topic was deleted, or made again."""
    STOPPED = "stopped"
    """Only a person can help."""


class _Pending(NamedTuple):
    """Changes of the spool that a lineage calls for: a ``cut``, and a segment at ``start`` if it ends below.

    ``offset`` is where batches are needed afterwards. ``last`` is the batch before, which the leader's log must have.
    """

    lineage: Lineage
    cut: int | None
    start: StoredEnd
    offset: int
    last: BatchHeader | None = None


FindStoredEnd = Callable[[TopicPartition, str, Lineage], StoredEnd]
"""Finds the stored end of a partition of this topic id, on this lineage. Raises StoreError and FormatError."""


class PartitionFollower:
    """One partition of the incarnation ``topic_id``.

    ``high_watermark`` and ``log_end`` are the leader's as it last stated them; None under a new leadership. ``idle``
    counts the leader's answers in a row that had room for batches, and had none below the high watermark. ``error`` is
    the last reason to wait or stop.
    """

    def __init__(
        self, tp: TopicPartition, topic_id: str, spool: PartitionSpool, stored_end: FindStoredEnd | None = None
    ) -> None:
        """Without ``stored_end`` a spool begins where the log does."""
        self.tp = tp
        self.topic_id = topic_id
        self.spool = spool
        self.state = FollowerState.WAITING
        self.leader: Leader | None = None
        self.high_watermark: int | None = None
        self.log_end: int | None = None
        self.idle = 0
        self.newest: int | None = None
        """The timestamp of the newest records that were fetched, in milliseconds since 1970."""
        self.bytes_per_offset: float | None = None
        """The mean size of an offset in the batches that were fetched last."""
        self.error: TidemarkError | None = None
        self.parting: Parting | None = None
        """Where the leader's log parts from what was fetched, or stored, before; the follower has stopped then."""
        self._stored_end = stored_end
        self._asked: Leader | None = None
        """The leader that is being asked for its log."""
        self._in_doubt = False
        """A leader has refused the topic id."""
        self._denied_since: float | None = None
        """The time since which no broker has had the topic id, and no leader has answered for it."""
        self._pending: _Pending | None = None
        self._stated_from = 0
        """The offset below which the leader states no epochs. It has moved its log start there, and lost it in a crash:
        it may have batches below, whose epochs are as they say."""
        self._proof: Wanted | None = None
        """The request whose answer proves that the pending lineage is of this topic id: it was sent afterwards."""
        self._wanted: Wanted | None = None
        self._paused_until = 0.0
        self._near: int | None = None
        self._near_until = 0.0
        self._near_gave = False
        self._shun_until = 0.0
        self._damaged = 0

    @property
    def ended(self) -> bool:
        """True if the follower does nothing more."""
        return self.state in {FollowerState.OVER, FollowerState.STOPPED}

    @property
    def known(self) -> Lineage:
        """The lineage of the spool's batches: its checkpoint may know more epochs already."""
        return self.spool.lineage.truncated(self.spool.end or 0)

    def asks_for_leader(self, now: float) -> bool:
        """True if the follower needs to :meth:`hear` of its topic."""
        return self.state is FollowerState.WAITING and self._asked is None and now >= self._paused_until

    def hear(self, topic: TopicAnswer | None, now: float) -> Leader | None:
        """Take the topic as a broker knows it; the leader whose log has to be asked for, if any."""
        if self.ended:
            return None
        if isinstance(topic, FetchStopped):
            self.stop(topic)
            return None
        if isinstance(topic, BrokerUnavailable):
            self._denied_since = None
            self._pause(topic, now)
            return None
        if topic is None or topic.topic_id != self.topic_id:
            # That broker may be behind, so the leader must have refused the id as well, or has not been asked.
            self._denied_since = now if self._denied_since is None else self._denied_since
            if self._in_doubt or now - self._denied_since >= _DENIED_SECONDS:
                self._end(FollowerState.OVER, TidemarkError(f"{self.tp}: the topic was deleted, or made again"))
            else:
                self._pause(None, now)
            return None
        self._denied_since = None
        leader = topic.leaders.get(self.tp.partition)
        epoch = self.leader.led.leader_epoch if self.leader else -1
        if leader is None or leader.broker < 0 or leader.led.leader_epoch < epoch:
            self._pause(None, now)  # no leader, or news that are older than ours
        elif self._asked is not None and leader.led.leader_epoch <= self._asked.led.leader_epoch:
            return None
        elif self.state is FollowerState.WAITING or leader.led.leader_epoch > epoch:
            self.state, self._pending, self._proof = FollowerState.WAITING, None, None
            self._asked = leader
            return leader
        return None

    def take_log(self, leader: Leader, log: LeaderLog | PartitionRefused | BrokerUnavailable, now: float) -> None:
        """Take the log that the ``leader`` of :meth:`hear` states, unless there is news of another since."""
        if leader is not self._asked:
            return
        self._asked = None
        match log:
            case PartitionRefused():
                self._refused(log, now, from_leader=True)
            case BrokerUnavailable():
                self._wait(log, now)
            case LeaderLog():
                try:
                    pending = self._changes(log)
                except (StoreError, FormatError) as error:  # where the store ends is not known
                    self._wait(error, now)
                    return
                self.leader, self.high_watermark, self.log_end, self.idle = leader, None, log.end, 0
                self._near, self._pending = None, pending
                self.state = FollowerState.PROVING

    def wanted(self, now: float) -> Wanted | None:
        """The part of the next request; None while there is nothing to ask for. It stays the same object meanwhile."""
        if self.leader is None or now < self._paused_until:
            return None
        if self._proof is not None:
            return self._proof
        if self._pending is not None:
            lineage, last = self._pending.lineage, self._pending.last
            offset = last.base_offset if last is not None else self._pending.offset
        elif self.state is FollowerState.FOLLOWING and self.spool.end is not None:
            lineage, offset = self.spool.lineage, self.spool.end
        else:
            return None
        last_epoch = lineage.epoch_at(offset - 1) if offset else None
        broker, near = self._source(now)
        near = near and (self._pending is None or self._pending.last is None)
        epoch = self.leader.led.leader_epoch
        wanted = Wanted(self.tp, self.topic_id, broker, near, offset, epoch, -1 if last_epoch is None else last_epoch)
        if self._pending is not None:
            self._proof = self._wanted = wanted
        elif wanted != self._wanted:
            self._wanted = wanted
        return self._wanted

    def wanted_until(self, now: float) -> float:
        """The time until which :meth:`wanted` stays as it is while nothing is heard."""
        near_until = self._near_until if self._near is not None else 0.0
        return min((time for time in (near_until, self._shun_until) if time > now), default=float("inf"))

    def take(self, part: FetchedPart, now: float) -> None:
        """Take a part of an answer. It may be late, or come twice: then it is not what is wanted now."""
        wanted = part.wanted
        if self.leader is None or self.ended or wanted.leader_epoch != self.leader.led.leader_epoch:
            return
        from_leader = wanted.broker == self.leader.broker
        if part.refused is not None:
            self._refused(part.refused, now, from_leader=from_leader)
            return
        repeats_last = wanted is self._proof and self._prove(part)
        if self.state is not FollowerState.FOLLOWING or not (repeats_last or wanted.offset == self.spool.end):
            return
        if part.diverges:
            self._leave(None, now, from_leader=from_leader)
            return
        if from_leader:
            self.high_watermark, self._denied_since = part.high_watermark, None
            if part.near_replica >= 0 and part.near_replica != self.leader.broker:
                self._near, self._near_until, self._near_gave = part.near_replica, now + _NEAR_SECONDS, False
                return
        before = self.spool.end
        self._append(part, now, from_leader=from_leader)
        if self.spool.end != before:
            self.idle, self._damaged, self.error = 0, 0, None
            self._near_gave |= not from_leader
        elif from_leader and part.first and not part.records and wanted.offset < part.high_watermark:
            self.idle += 1

    def begin_again(self, now: float) -> None:
        """Empty the spool, and begin it where the store ends now."""
        if not self.ended:
            self.spool.empty()
            self._wait(None, now)

    def stop(self, error: FetchStopped) -> None:
        """Stop for good."""
        self._end(FollowerState.STOPPED, error)

    def unanswered(self, error: TidemarkError, now: float) -> None:
        """Take the news that the broker of the last request did not answer."""
        if self.leader is not None and self._near is not None:
            self._leave(error, now, from_leader=False)
        elif not self.ended:
            self._wait(error, now)

    def _changes(self, log: LeaderLog) -> _Pending:
        """The changes of the spool under a lineage, and the offset from which it needs batches then."""
        spool, (start, log_end, lineage) = self.spool, log
        self._stated_from = lineage.entries[0][1] if lineage.entries else 0
        if spool.end is None:
            return _Pending(lineage, None, *self._beginning(lineage, start, log_end))
        end: int = min(spool.end, log_end)
        own = self.known
        diverged = own.divergence(lineage, end)
        end = end if diverged is None else diverged
        cut = end if end < spool.end else None
        # Batches below the log start stay: they were committed, and their epochs are known from an older lineage.
        whole = (
            lineage.with_history(own.truncated(end)) if (spool.start or 0) < max(start, self._stated_from) else lineage
        )
        emptied = cut is not None and cut <= (spool.start or 0)
        if emptied:
            return _Pending(whole, cut, *self._beginning(lineage, start, log_end))
        last = spool.last if cut is None and spool.last and start <= spool.last.base_offset else None
        return _Pending(whole, cut, StoredEnd(start), max(start, end), last)

    def _beginning(self, lineage: Lineage, start: int, log_end: int) -> tuple[StoredEnd, int, BatchHeader | None]:
        """The beginning of an empty spool, as the rest of its changes: what the store has need not be fetched again."""
        stored = self._stored_end(self.tp, self.topic_id, lineage) if self._stored_end else StoredEnd(0)
        if start <= stored.offset <= log_end:
            last = stored.last if stored.last is not None and start <= stored.last.base_offset else None
            return stored, stored.offset, last
        begin = max(start, min(stored.offset, log_end))
        return StoredEnd(begin), begin, None

    def _has_last(self, part: FetchedPart) -> bool:
        """True if the leader's log has the last batch, as far as compaction has left it; stops if it has another there.

        False while the answer does not tell: others have filled it, or a new leader has not committed the batch yet.
        """
        last = self._pending.last if self._pending is not None else None
        if last is None or part.diverges:
            return True
        try:
            theirs = next(_headers(part, f"{self.tp} from broker {part.wanted.broker}"), None)
        except FormatError:
            return True  # what is damaged there is not needed again
        if theirs is None:
            return part.first and part.high_watermark >= last.next_offset
        if theirs.base_offset > last.base_offset or _is_same(last, theirs):
            return True
        found = f"{theirs.base_offset} under epoch {theirs.leader_epoch} with CRC {theirs.crc:08x}"
        known = f"{last.base_offset} under epoch {last.leader_epoch} with CRC {last.crc:08x} was fetched"
        rule = "another log has this topic's id, as after a restore of brokers from a backup"
        remedy = "have the topic made again, under another id, or exclude it"
        differ = f"{self.tp}: the leader has a batch at {found}, and one at {known}"
        at = min(last.base_offset, theirs.base_offset)
        start, end = self._stated_from, max(self.log_end or 0, theirs.next_offset)
        self.parting = Parting(at, max(self.spool.end or 0, last.next_offset), start, end, last, theirs)
        self.stop(FetchStopped(StopReason.OTHER_LOG, f"{differ}: {rule}; {remedy}"))
        return False

    def _prove(self, part: FetchedPart) -> bool:
        """Apply the pending changes: the leader has answered for this topic id, so the lineage is of this topic.

        Not if it has another last batch, or does not tell. True if the answer begins with the last batch.
        """
        if not self._has_last(part):
            return False
        pending, self._pending, self._proof = self._pending, None, None
        if pending is None:
            return False
        self.spool.follow(pending.lineage, pending.cut)
        if self.spool.end is None or self.spool.end < pending.start.offset:
            self.spool.begin(pending.start.offset, pending.start.opened)
        self.state, self._in_doubt = FollowerState.FOLLOWING, False
        return pending.last is not None

    def _append(self, part: FetchedPart, now: float, *, from_leader: bool) -> None:
        """Write the sound batches of the answer that continue the log and lie on the leader's lineage."""
        spool = self.spool
        assert spool.end is not None
        begin = end = 0
        newest, transactional = -1, list[BatchHeader]()
        first, last, following = None, None, spool.end
        problem: TidemarkError | None = None
        try:
            for header in _headers(part, f"{self.tp} from broker {part.wanted.broker}"):
                if header.next_offset <= following and first is None:
                    begin = end = header.end  # the broker sends whole batches, from the one that has the offset
                    continue
                problem = self._unfit(header, part.high_watermark, from_leader=from_leader)
                if problem is not None:
                    break
                self._note_epoch(header)
                first, last, newest = first or header, header, max(newest, header.max_timestamp)
                end, following = header.end, header.next_offset
                if header.is_transactional:
                    transactional.append(header)
            else:
                if not end and part.first and part.records:
                    problem = FormatError(str(self.tp), f"the answer from offset {spool.end} on has no whole batch")
        except FormatError as error:
            problem = error
        if first is not None:
            self.newest = max(self.newest or -1, newest)
            self.bytes_per_offset = (end - begin) / (following - first.base_offset)
            spool.append(part.records[begin:end], first.base_offset, following, last, transactional)
        elif from_leader and isinstance(problem, FormatError) and self._stops_at(problem):
            return
        if problem is not None:
            self._leave(problem, now, from_leader=from_leader)

    def _stops_at(self, damage: FormatError) -> bool:
        """Note another damaged answer of the leader, and stop if there were too many."""
        self._damaged += 1
        if self._damaged < _MOST_DAMAGED:
            return False
        remedy = "look at that broker's disk, or let another replica lead"
        rule = f"{self.tp}: the leader sent damage {self._damaged} times: {damage}"
        self.stop(FetchStopped(StopReason.DAMAGE, f"{rule}; {remedy}"))
        return True

    def _note_epoch(self, header: BatchHeader) -> None:
        """Note the epoch of a batch that is not in the lineage, or begins earlier than the lineage says."""
        lineage, epoch = self.spool.lineage, header.leader_epoch
        known = lineage.epoch_at(header.base_offset)
        if known is None and header.last_offset >= self._stated_from:
            return  # the log start lies within the batch
        if epoch >= 0 and known != epoch:
            entries = dict(lineage.entries) | {epoch: header.base_offset}
            self.spool.follow(Lineage.of(sorted(entries.items()), f"{self.tp}: the epochs of its batches"), None)

    def _cut_before(self, header: BatchHeader) -> bool:
        """Cut the spool at a batch that the log start lies within, if the spool has an earlier epoch there; True if so.

        The leader states no epochs below its log start. Only this batch shows that the spool left the log before.
        """
        spool, base = self.spool, header.base_offset
        known = spool.lineage.epoch_at(base)
        if known is None or header.leader_epoch <= known:
            return False
        others = (entry for entry in spool.lineage.entries if entry[1] < base or entry[0] > header.leader_epoch)
        entries = dict(others) | {header.leader_epoch: base}
        spool.follow(Lineage.of(sorted(entries.items()), f"{self.tp}: the epochs of its batches"), base)
        if spool.end is None or spool.end < base:
            spool.begin(base)
        return True

    def _unfit(self, header: BatchHeader, high_watermark: int, *, from_leader: bool) -> TidemarkError | None:
        """The reason for which a batch is not taken; None if it is fit."""
        where = f"{self.tp}: the batch at offset {header.base_offset} under epoch {header.leader_epoch}"
        if header.base_offset < self.spool.data_end and not (from_leader and self._cut_before(header)):
            return TidemarkError(f"{where} overlaps what is already there, up to {self.spool.data_end}")
        # By its last offset: the log start, where a lineage begins, may lie within the batch.
        unstated = from_leader and header.last_offset < self._stated_from and header.leader_epoch >= 0
        if not unstated and not self.spool.lineage.is_live(header.last_offset, header.leader_epoch):
            return TidemarkError(f"{where} is not on the leader's lineage: a replica that has not truncated sent it")
        if header.next_offset > high_watermark:
            return TidemarkError(f"{where} reaches above the high watermark {high_watermark} of the same answer")
        return None

    def _source(self, now: float) -> tuple[int, bool]:
        """The broker to fetch from, and whether it may name a near replica."""
        assert self.leader is not None
        if self._near is not None and self._pending is None:
            if now < self._near_until:
                return self._near, True
            if not self._near_gave and (self.high_watermark or 0) > (self.spool.end or 0):
                self._shun_until = now + _SHUN_SECONDS
            self._near = None
        return self.leader.broker, now >= self._shun_until

    def _refused(self, refused: PartitionRefused, now: float, *, from_leader: bool) -> None:
        match refused.refusal:
            case Refusal.RIGHT:
                rule = f"{self.tp}: the right READ is missing: give it to this user on the topic"
                self.stop(FetchStopped(StopReason.RIGHT, rule))
            case Refusal.LATER if from_leader:
                self._pause(refused, now)
            case Refusal.TOPIC if from_leader:
                self._in_doubt = True
                self._wait(refused, now)
            case _:
                self._leave(refused, now, from_leader=from_leader)

    def _leave(self, error: TidemarkError | None, now: float, *, from_leader: bool) -> None:
        """Leave a near replica for the leader, or take the leadership again."""
        if from_leader:
            self._wait(error, now)
        else:
            self._near, self._shun_until = None, now + _SHUN_SECONDS
            self.error = error

    def _wait(self, error: TidemarkError | None, now: float) -> None:
        self.state, self._pending, self._proof = FollowerState.WAITING, None, None
        self._pause(error, now)

    def _pause(self, error: TidemarkError | None, now: float) -> None:
        self.error = error or self.error
        self._paused_until = now + _PAUSE_SECONDS

    def _end(self, state: FollowerState, error: TidemarkError) -> None:
        self.state, self.error, self._pending, self._asked = state, error, None, None


def _is_same(before: BatchHeader, now: BatchHeader) -> bool:
    """True if ``now`` is the batch ``before``, or what compaction has left of it; not told of formats before v2."""
    if (before.base_offset, before.leader_epoch) != (now.base_offset, now.leader_epoch):
        return False
    rewritten = now.magic < 2 or now.record_count < before.record_count or now.has_delete_horizon
    return before.crc == now.crc or rewritten


def _headers(part: FetchedPart, name: str) -> Iterator[BatchHeader]:
    """The headers of the whole batches of an answer, whose checksums are right. Raises SegmentError."""
    records = part.records
    base = int.from_bytes(records[:8], "big", signed=True) if len(records) > 8 else 0
    return SegmentScanner(name, base).batches(records)
