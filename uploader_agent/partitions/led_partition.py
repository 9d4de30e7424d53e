"""A led partition: its state on the disk and the broker, and the jobs that follow.

The loop's thread owns it: it looks at the disk, takes the broker's answers (both in :class:`LocalState`) and plans
jobs. Workers carry them out (:class:`PartitionUploader`), and write the state of the store (:class:`RemoteState`). The
thread of the bucket packs, and writes the state of the packs (:class:`TailState`). docs/agent-design.md has a table
of all threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final

import structlog

from tidemark.errors import FormatError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.head import EntryKey
from tidemark.formats.raw.watermark_index import IndexEntry
from tidemark.kafka_log import BatchHeader
from uploader_agent.broker.admin import Led, Offsets
from uploader_agent.disk.log_dirs import LocalSegment
from uploader_agent.disk.partition_dir import Active, ActiveReader, LogTail, PartitionFolder
from uploader_agent.log_source import FoundParting
from uploader_agent.packs.tail import TailState
from uploader_agent.partitions import jobs
from uploader_agent.partitions.jobs import CHECK, Job
from uploader_agent.partitions.local_log import QUESTION_BACKOFF, LocalState, Observation
from uploader_agent.partitions.partition_uploader import Context, PartitionUploader
from uploader_agent.stored.histories import Parting
from uploader_agent.stored.stored_log import RemoteState
from uploader_agent.upload import local_run
from uploader_agent.upload.local_run import SealRun

logger = structlog.get_logger(__name__)

_MOST_MARKS: Final = 32


class Ages:
    """The ends of the log at several times, for the age of its oldest byte that is not stored, by a monotonic clock.

    The loop notes them, any thread asks.
    """

    def __init__(self, now: float) -> None:
        """Begin at ``now``; the log before is unknown."""
        self._marks: tuple[tuple[float, int], ...] = ((now, 0),)

    def note(self, moment: float, end: int) -> None:
        """Note that at ``moment`` the log ended at the offset ``end`` or below: offsets above were appended later."""
        kept = [mark for mark in self._marks if mark[1] < end or mark[0] > moment]
        if len(kept) >= _MOST_MARKS:
            del kept[1]  # offsets that were appended between its neighbours now count as older
        self._marks = tuple(sorted([*kept, (moment, end)]))

    def forget(self, stored_end: int) -> None:
        """Drop the times of offsets below ``stored_end``, which are stored, except for the last one."""
        marks = self._marks
        below = [mark for mark in marks if mark[1] <= stored_end]
        self._marks = (*below[-1:], *(mark for mark in marks if mark[1] > stored_end))

    def since(self, stored_end: int) -> float:
        """A moment after which everything from ``stored_end`` on was appended."""
        below = [moment for moment, end in self._marks if end <= stored_end]
        return max(below, default=self._marks[0][0])


class LedPartition:
    """A partition under one leader epoch of one topic id; another epoch is another object."""

    def __init__(self, tp: TopicPartition, led: Led, folder: Path, context: Context) -> None:
        self.tp = tp
        self.led = led
        self.folder = folder
        self.bucket = context.bucket_of(tp)
        self.disk = PartitionFolder(folder, context.runtime)
        self.local = LocalState()
        self.remote = RemoteState(context.broker)
        self.packed = TailState()
        self.uploader = PartitionUploader(tp, led, folder, context, self.local, self.remote, self.packed)
        self.freshness: float | None = None
        """The promised seconds from append to query; None if the tail is packed only when it is quiet."""
        self.looked_at = context.runtime.monotonic()
        self.ages = Ages(self.looked_at)
        """The ends of the log at several times, if the topic has a ``freshness``."""
        self.confirmed: tuple[int, datetime] | None = None  # the high watermark, and when the broker was asked for it
        """The high watermark that the broker has answered under this leadership."""
        self._error: str | None = None
        self._is_local = False  # True if the last error was one of this host's disk
        self._is_busy = True  # True before the first plan, and if the last one had a job or a wait
        self.observation: Observation | None = None
        """The broker's last answer; replaced as a whole, since other threads read it."""
        self.question_pause = QUESTION_BACKOFF.first
        """Seconds until the broker is asked again; they grow while its answers do not help."""
        self._hold = context.hold
        self._source = context.source
        self._monotonic = context.runtime.monotonic
        self._active = ActiveReader()
        self._answered = -1  # the number of the newest question that has an answer
        self._gone: list[LocalSegment] = []  # held, and below the first one on the disk
        self._holding = False  # True if the last look found segments to hold
        self._short: tuple[LogTail | None, int] | None = None
        """The tail of the directory and the stored end for which a check of a log that seemed too short was planned."""
        self.is_parting_confirmed = False
        """True once the broker has answered again, after the log had been found to part, that it leads it."""

    @property
    def is_unsettled(self) -> bool:
        """True if another plan may find something, though nothing of the log has changed.

        That is so before the first plan, if the last one had a job or a wait, if the packs call for another one, and
        while the log is to be compared with the stored one.
        """
        return self._is_busy or self.uploader.unchecked or self.packed.plan_wanted

    @property
    def error(self) -> str | None:
        """The error of the last job; None if it succeeded."""
        return self._error

    @property
    def fault(self) -> str | None:
        """The reason for which the directory or a file of it cannot be read; None if it could be at the last try."""
        return self.disk.error or (self._error if self._is_local else None)

    def failed(self, error: str, *, local: bool = False) -> None:
        """Note the error of a job; ``local`` if the disk failed. For the worker that carried it out."""
        self._error, self._is_local = error, local

    def succeeded(self) -> None:
        """Note that a job succeeded. For the worker that carried it out."""
        self._error, self._is_local = None, False

    @property
    def segments(self) -> tuple[LocalSegment, ...]:
        """The segments held and on the disk at the last look, by base offset; the last one is active."""
        return self.local.log.segments

    @property
    def offsets(self) -> Offsets | None:
        """The offsets from the broker or its checkpoint; None before the first."""
        return self.observation.offsets if self.observation else None

    # -- disk and broker ----------------------------------------------------------------------------------------------

    def trust_index(self, entry: IndexEntry) -> None:
        """Trust this broker's former watermark index until there is a job.

        It counts only if it was written under this same leadership, which knew its packs, so had claimed what there
        was, has no gap, and states the last batch, which the log is checked for.
        """
        same = (entry.topic_id, entry.leader_epoch) == (self.led.topic_id, self.led.leader_epoch)
        whole = entry.packs_known and not entry.gaps and entry.next_offset == entry.uploaded_end
        if same and whole and (entry.last_batch is not None or not entry.least_stored_end):
            self.remote.trust(entry)
            self.uploader.doubt()
            self.packed.trust(entry.tail_end or 0)
            self._source.stored(self.tp, self.led.topic_id, entry.next_offset)

    def look(self) -> bool:
        """Look at the disk again, hold segments that are not in the store, and return True if anything is new.

        If no segment is to be held and the directory is unchanged, it does nothing more.
        """
        before, gone = self.disk.tail, self._gone
        self.looked_at = self._monotonic()
        listed = self.disk.look()
        if self.disk.replaced and self.remote.log.known:
            self.uploader.doubt()
        same = not self.follows and self.disk.error is None and not self._has_grown()
        if self.freshness is not None and same and (end := self._log_end) is not None:
            self.ages.forget(self.stored_end)
            self.ages.note(self.looked_at, end)
        if listed or self._holding:
            stored = self.remote.log
            final = stored.final
            if (parting := self.uploader.parting) is not None:
                final = final.clip(0, parting.at)  # above, the store has another history
            owner = self.tp, self.led.topic_id, self.led.leader_epoch
            self._gone, segments = self._hold.look(*owner, self.folder, final, stored.watermark, self.disk.listing)
            live = ((segment.base_offset, segment.next_offset) for segment in segments)
            self._holding = bool(self._gone) or any(
                end is not None and final.missing(start, end) for start, end in live
            )
        changed = self.disk.tail != before or self._gone != gone
        if listed or changed:
            here, tail = self.disk.listing.segments, self.disk.tail
            if self.marks_gaps:
                here = [segment for segment in here if segment.size or not segment.rotated]
            self.local.looked((*self._gone, *here), tail.first if tail else None)
        return changed

    def read_active(self) -> Active | None:
        """The current active segment; None if it cannot be read. For the poller's thread.

        Raises:
            SegmentChanged: the directory is gone, or now belongs to another incarnation of the topic.
        """
        try:
            return self._active.read(self.folder, self.led.topic_id)
        except (FormatError, OSError) as error:
            logger.debug("active_segment_not_read", partition=str(self.tp), error=str(error))
            return None

    def last_followed(self, tail: LogTail | None) -> Observation | None:
        """The last answer about a log that the directory follows, if the directory had this ``tail`` then.

        The directory grows after the log, so it has nothing new while the leader repeats that answer.
        """
        last = self.observation
        return last if last and last.is_stated and last.active and last.tail == tail else None

    def observe(self, answer: Observation, question: int) -> bool:
        """Apply the answer to this question. Return False, and drop it, if a later question was answered before."""
        if question <= self._answered:
            return False
        before, self._answered = self.observation, question
        if answer.asked_at is not None:
            self.confirmed = answer.offsets.high_watermark, answer.asked_at
        if answer.log_end is None:  # the log end is unknown: the former observation of the whole log stays
            answer = before.with_offsets(answer.offsets) if before else replace(answer, asked_at=None)
        moved = before is None or answer.offsets.high_watermark > before.offsets.high_watermark
        self._take(answer)
        if not self.outdated or (moved and self.waits_for_high_watermark()):
            self.question_pause = QUESTION_BACKOFF.first
        else:
            self.question_pause = QUESTION_BACKOFF.longer(self.question_pause)
        return True

    def unanswered(self, question: int) -> None:
        """Note that ``question`` got no answer."""
        if question > self._answered:
            self.question_pause = QUESTION_BACKOFF.longer(self.question_pause)

    def fall_back(self, offsets: Offsets) -> None:
        """Use ``offsets`` of the checkpoint, since the broker does not answer."""
        before = self.observation
        self._take(before.with_offsets(offsets) if before else Observation(offsets))

    def apply_freshness(self, freshness: float | None) -> None:
        """Set the topic's freshness in seconds; None to pack its tail only when it is quiet."""
        self.freshness = freshness if self.may_pack_tail else None
        self.local.list_tail(listed=self.freshness is not None)

    @property
    def follows(self) -> bool:
        """True if the directory follows the log, as the last answer told: it may have grown unseen."""
        return self.observation is not None and self.observation.is_stated

    def held_at(self, observation: Observation, confirmed_at: datetime | None) -> datetime | None:
        """The last time at which the offsets of ``observation`` were valid, see :meth:`Observation.held_at`.

        A directory that cannot be read does not show what was appended since the broker was asked.
        """
        return observation.asked_at if self.disk.error else observation.held_at(confirmed_at, self.disk.tail)

    @property
    def outdated(self) -> bool:
        """True if the broker's offsets may have changed since it was last asked."""
        return self.observation is None or self.observation.is_outdated(self.disk.tail)

    @property
    def names_remote_tier(self) -> bool:
        """True if ``offset.wm`` says what only Kafka's remote tier has: retention there shows in no file."""
        stored = self.remote.log
        return bool(stored.remote_tier) or any(gap.in_remote_tier for gap in stored.gaps)

    def _take(self, observation: Observation) -> None:
        known, self.observation = self.observation, observation
        start = observation.tail.first if observation.tail else None
        if known is not None and known.says_the_same(observation) and start == self.local.log.observed_start:
            return
        if self.local.answered(observation.offsets, start):
            self.uploader.reconsider_gaps()

    # -- packs ---------------------------------------------------------------------------------------------------------

    @property
    def may_pack_tail(self) -> bool:
        """True if the tail may be packed: the topic has a topic id. Without one, its name may return."""
        return self.led.topic_id is not None

    @property
    def packs_known(self) -> bool:
        """True if the end of the packed offsets is known; without it, the end of the stored offsets is unknown.

        A new leadership knows it once it has read the heads of the brokers that ``offset.wm`` lists. Between its claim
        and that, it knows that nothing is packed if ``offset.wm`` lists no broker, or has all committed offsets except
        gaps. Before its claim, it knows so if ``offset.wm`` was never written.
        """
        if not self.may_pack_tail or self.packed.tail.known:
            return True
        stored = self.remote.log
        if stored.surveyed and not self.uploader.claimed:
            return stored.watermark is None  # a leader claims before it packs
        if stored.surveyed and not self.uploader.tails:
            return True
        sealed = stored.end if stored.gaps else stored.next_offset
        return self.confirmed is not None and stored.known and self.confirmed[0] <= sealed

    @property
    def seals_quiet_tail(self) -> bool:
        """True if a quiet tail is sealed, since it cannot be packed.

        A range needs a topic id, and a high watermark that the broker has answered under this leadership. At the last
        try, a range could not be read if the tail is behind a gap, is damaged, or has no leader epochs.
        """
        by_checkpoint = self.offsets is not None and self.offsets.source == "checkpoint"
        tail = self.packed.tail
        stuck = tail.stuck_at == max(self.remote.log.sealed_end, tail.end)
        return not self.may_pack_tail or by_checkpoint or stuck

    @property
    def high_watermark(self) -> int | None:
        """The high watermark that the broker has answered under this leadership; None before that."""
        return self.confirmed[0] if self.confirmed else None

    @property
    def entry_key(self) -> EntryKey:
        """The key of this leadership's entry in the head. A topic without a topic id has no entry."""
        return EntryKey(self.led.topic_id or "", self.tp.partition, self.led.leader_epoch, self.remote.log.restored)

    @property
    def marks_gaps(self) -> bool:
        """See :attr:`LogSource.marks_gaps`."""
        return self._source.marks_gaps

    @property
    def retention_left(self) -> float | None:
        """See :meth:`LogSource.retention_left`."""
        return self._source.retention_left(self.tp, self.led.topic_id)

    @property
    def stored_end(self) -> int:
        """The end of the offsets in seals and packs, even above a hole."""
        return max(self.remote.log.end, self.packed.tail.end)

    @property
    def bytes_per_offset(self) -> float | None:
        """The bytes per offset in packs, or else in the newest segment; None if neither is known."""
        stored, tail = self.remote.log, self.packed.tail
        sealed_end, end = stored.sealed_end, tail.end
        size = tail.unsealed(sealed_end).size if stored.surveyed else 0
        return size / (end - sealed_end) if size and end > sealed_end else stored.bytes_per_offset

    def unstored_age(self, now: float, stored_end: int | None = None) -> float | None:
        """The most seconds since the append of the oldest byte that is not stored; 0 if all bytes are stored.

        None if the age is unknown, or the topic has no ``freshness``. ``now`` is the runtime's monotonic time,
        ``stored_end`` the end of the stored offsets; default: the known one.
        """
        log_end = self._log_end
        if log_end is None or self.freshness is None:
            return None
        end = self.stored_end if stored_end is None else stored_end
        if self.segments:
            end = max(end, self.segments[0].base_offset)  # offsets below are a gap, which nobody can store
        if self.disk.error is None and not self._has_grown() and end >= log_end:
            return 0.0
        return max(0.0, now - self.ages.since(end))

    @property
    def _log_end(self) -> int | None:
        return self.observation.log_end if self.observation else None

    def _has_grown(self) -> bool:
        """True if the disk shows another tail than the one with the known end."""
        tail, known = self.disk.tail, self.observation
        active = known.active if known else None
        if tail is None or active is None:
            return tail is not None and tail.size > 0
        return (tail.base_offset, tail.size) != (active.base_offset, active.size)

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def plan(self, quiet_before: float | None) -> list[Job]:
        """The jobs to do, in order, according to the last look at the disk and the broker's last answer.

        A tail is sealed if its last append was before ``quiet_before``, in seconds since 1970, or if much of it is
        packed; if ``quiet_before`` is None, only if much of it is packed.
        """
        self.packed.plan_begins()  # first: what the packs wish from now on may be missing from the values below
        local, stored, tail = self.local.log, self.remote.log, self.packed.tail
        lacked = jobs.missing(local, stored, self._source)
        short = (self.disk.tail, self.stored_end) if self.is_short else None
        standing = self.uploader.standing(stored, jobs.holes(lacked[0], stored))
        if short is not None and short != self._short:  # once for each tail: the check tells what is to be done
            standing = replace(standing, is_unchecked=True)
        found = jobs.plan(local, stored, tail, lacked, standing, quiet_before)
        if found.begins_again:
            self.uploader.begin_again()
        if short is not None and CHECK in found.jobs:
            self._short = short
        self._is_local = self._is_local and bool(found.jobs)  # without a job nothing is tried again
        self._is_busy = bool(found.jobs or self.remote.log.gaps or self.has_unstored_tail or self.pending())
        return found.jobs

    @property
    def is_short(self) -> bool:
        """True if the log ends below what is stored of it."""
        if self._log_end is None or self._has_grown() or not self._source.has_whole_log:
            return False
        return self._log_end < self.stored_end

    @property
    def found_parting(self) -> FoundParting | None:
        """Where the log parts from the stored history, once that is certain."""
        found = self.uploader.found_parting
        if found is not None and self.is_parting_confirmed:
            return found
        return self._source.partings.get((self.tp, self.led.topic_id or ""))

    @property
    def parting(self) -> Parting | None:
        """The parting of :attr:`found_parting`."""
        found = self.found_parting
        return found.parting if found is not None else None

    def confirm_parting(self, asked_at: datetime) -> None:
        """Note that the broker, asked at ``asked_at``, leads the log: a log that it has to leave is not told."""
        found = self.uploader.found_parting
        self.is_parting_confirmed = found is not None and (self.is_parting_confirmed or asked_at > found.found_at)

    @property
    def last_batch(self) -> BatchHeader | None:
        """The last batch below the end of seals and packs; None if it is not known."""
        tail, stored = self.packed.tail, self.remote.log
        if tail.end <= stored.end:
            return stored.last_batch()
        last = tail.last_batch
        return last if last is not None else stored.stated_last_below(tail.end)

    def work(self, quiet_before: float | None) -> Iterator[SealRun]:
        """The runs to seal in the known state. ``quiet_before`` is as in :meth:`plan`."""
        return jobs.runs(self.local.log, self.remote.log, self.packed.tail, quiet_before)

    def tail_due(self, tail_after: float) -> float | None:
        """The time at which an active segment that is not stored will have been quiet for ``tail_after`` seconds."""
        tail = self.disk.tail
        return tail.modified + tail_after if tail is not None and self.has_unstored_tail else None

    @property
    def has_unstored_tail(self) -> bool:
        """True if the active segment ends above the stored offsets, or its end is unknown."""
        tail, log_end = self.disk.tail, self._log_end
        if log_end is None or self._has_grown():
            return tail is not None and tail.size > 0
        return max(tail.base_offset if tail else 0, self.stored_end) < log_end

    def waits_for_high_watermark(self) -> bool:
        """True if a rotated segment may be ready for upload at a newer high watermark."""
        return local_run.waiting_for(
            self.segments, self.remote.log.final, self.offsets.high_watermark if self.offsets else 0
        )

    def pending(self) -> list[LocalSegment]:
        """Rotated segments that are not final in the store."""
        final = self.remote.log.final
        return [
            segment
            for segment in self.segments
            if segment.next_offset is not None and final.missing(segment.base_offset, segment.next_offset)
        ]
