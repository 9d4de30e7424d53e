"""One led partition: what its disk shows, what the store has of it, and what is to be done about the difference.

The loop looks at the disk and plans; workers carry out. A job is either a piece of work (a segment) or a survey: learn
what the store has, search it for what holes lack, and bring ``offset.wm`` up to date. Several segments of a partition
may go at a time; their ends are written to ``offset.wm`` together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import structlog

from tidemark.errors import FormatError, PreconditionFailed
from tidemark.formats.acknowledgements import acknowledged
from tidemark.formats.gaps import Gap
from tidemark.formats.keys import ControlKeys, PartitionKeys, TopicPartition
from tidemark.formats.watermark import Watermark
from tidemark.formats.watermark_index import IndexEntry
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage
from tidemark.store import Store
from uploader_agent.broker.admin import UNKNOWN_POLICY, Led, Offsets
from uploader_agent.disk.active_segment import Active, ActiveReader
from uploader_agent.disk.log_dirs import LocalSegment
from uploader_agent.disk.partition_dir import Folder
from uploader_agent.disk.segment_files import PartitionFiles
from uploader_agent.hold import Hold
from uploader_agent.partitions.observation import Observation, Pace
from uploader_agent.remote import gaps, partition_state, watermark
from uploader_agent.remote.gaps import Evidence
from uploader_agent.remote.incarnations import TopicIncarnation
from uploader_agent.remote.manifests import Observed, StoredManifest
from uploader_agent.remote.partition_state import RemoteState
from uploader_agent.remote.watermark import StoredWatermark, WatermarkState
from uploader_agent.repair.gap_search import Search, Wanted
from uploader_agent.runtime import MACHINE, Runtime
from uploader_agent.upload import eligibility
from uploader_agent.upload.eligibility import Work
from uploader_agent.upload.segment_upload import Guards, UploadRoute, upload

logger = structlog.get_logger(__name__)

Survey = Literal["survey"]
SURVEY: Survey = "survey"
Job = Work | Survey

_ATTEMPTS = 3
"""How often ``offset.wm`` is read anew and written in one go, when it is said to be another than was read."""


@dataclass(frozen=True, slots=True)
class Context:
    """What all partitions of an agent share. ``settle`` says where a topic's incarnation lies.

    ``pause`` waits some seconds, shorter when the agent stops; ``superseded`` counts what is copied aside.
    ``is_foreign`` tells whether the cluster never gave the epoch of an ``offset.wm`` that fences a leadership.
    While a partition has holes, the store is searched every ``search_interval`` seconds.
    """

    broker: int
    settle: Callable[[TopicPartition, str | None], tuple[TopicIncarnation, Store, PartitionKeys]]
    control_store: Store
    control: ControlKeys
    pause: Callable[[float], object]
    superseded: Callable[[], object]
    hold: Hold
    is_foreign: Callable[[TopicPartition, Led, StoredWatermark], bool]
    search_interval: float = 0.0
    runtime: Runtime = MACHINE


class _Settled(NamedTuple):
    next_offset: int
    incarnation: int


class LedPartition:
    """A partition under one leader epoch of one topic id; another epoch is another object."""

    def __init__(self, at: TopicPartition, led: Led, folder: Path, context: Context) -> None:
        self.at = at
        self.led = led
        self.folder = folder
        self.disk = Folder(folder, context.runtime)
        self.restless = True
        """Whether there was something to do, or to wait for, when it was last planned."""
        self.changes = 0
        """Goes up with each change of what is known of store and broker."""
        self.cleanup_policy = UNKNOWN_POLICY
        self.life: TopicIncarnation | None = None
        self.error: str | None = None
        self.observation: Observation | None = None
        """What the broker said last; replaced as a whole, since other threads read it."""
        self.pace = Pace()
        self._context = context
        self._place: UploadRoute | None = None
        self._remote = RemoteState(context.broker)
        self._start: int | None = None
        self._active = ActiveReader()
        self._answered = -1  # the number of the newest question that has an answer
        self._gone: list[LocalSegment] = []  # held, and below the first one on the disk
        self._holding = False  # whether something was to be held when last looked
        self._disk_start: int | None = None  # as it was before the broker said what its log start is
        self._gaps: tuple[Gap, ...] = ()
        self._replacing: set[int] = set()  # stored segments below line 1 that are being replaced
        self._search = Search(context.control_store, context.control, context.search_interval, context.runtime)
        self._lock = threading.Lock()  # over what is known of the store
        self._writing = context.runtime.lock()  # held by the one worker that writes offset.wm
        self._unwritten = True
        self._settled: _Settled | None = None

    # -- the loop's side ----------------------------------------------------------------------------------------------

    def settle(self, entry: IndexEntry) -> None:
        """Take this broker's former watermark index at its word, until there is something to do.

        It counts only if it was written under this very leadership, knew of no gap, and all was contiguous.
        """
        same = (entry.topic_id, entry.leader_epoch) == (self.led.topic_id, self.led.leader_epoch)
        if same and not entry.gaps and entry.next_offset == entry.uploaded_end and self._place is None:
            with self._lock:
                self._settled = _Settled(entry.next_offset, entry.incarnation)
                self._remote = RemoteState.settled(entry, self._context.broker)
            self.changes += 1

    @property
    def settled(self) -> _Settled | None:
        """What the former index says, as long as it is all that is known of the store."""
        return self._settled if self._place is None else None

    @property
    def segments(self) -> list[LocalSegment]:
        """The segments held and on the disk, as last seen, by base offset; the last one is active."""
        return [*self._gone, *self.disk.listing.segments]

    def look(self) -> bool:
        """Look at the disk again, and hold what is not in the store; whether there is something new.

        Where nothing is to be held, and the directory is as it was, there is nothing more to it.
        """
        before, gone = self.disk.tail, self._gone
        listed = self.disk.look()
        if listed or self._holding:
            with self._lock:
                final = self._remote.final
            owner, folder = (self.at, self.led.topic_id, self.led.leader_epoch), self.folder
            found = self._context.hold.look(*owner, folder, final, self.watermark, self.disk.listing)
            self._gone = found.gone
            rotated = ((one.base_offset, one.next_offset) for one in found.live if one.next_offset is not None)
            self._holding = bool(found.gone) or any(final.missing(start, end) for start, end in rotated)
        return self.disk.tail != before or self._gone != gone

    def read_active(self) -> Active | None:
        """The active segment by now; None if it cannot be read. For the poller's thread.

        Raises:
            SegmentChanged: the directory is gone, or belongs to another incarnation of the topic by now.
        """
        try:
            return self._active.read(self.folder, self.led.topic_id)
        except (FormatError, OSError) as error:
            logger.debug("active_segment_not_read", partition=str(self.at), error=str(error))
            return None

    def observe(self, answer: Observation, question: int) -> bool:
        """The broker has answered ``question``, as they are numbered; False if a later one was answered before.

        An answer that comes late is dropped: what it says was true before what is known already.
        """
        if question <= self._answered:
            return False
        before, self._answered = self.observation, question
        if answer.log_end is None:  # no observation of the whole log: what was observed before stays so
            answer = before.with_offsets(answer.offsets) if before else replace(answer, asked_at=None)
        moved = before is None or answer.offsets.high_watermark > before.offsets.high_watermark
        self._take(answer)
        if not self.outdated or (moved and self.waits_for_high_watermark()):
            self.pace.reset()
        else:
            self.pace.slow_down()
        return True

    def unanswered(self, question: int) -> None:
        """The broker has not said anything in answer to ``question``."""
        if question > self._answered:
            self.pace.slow_down()

    def fall_back(self, offsets: Offsets) -> None:
        """The broker says nothing; its checkpoint says ``offsets``."""
        before = self.observation
        self._take(before.with_offsets(offsets) if before else Observation(offsets))

    @property
    def outdated(self) -> bool:
        """Whether the broker may say other offsets now than when it was last asked."""
        return self.observation is None or self.observation.is_outdated(self.disk.tail)

    def plan(self, quiet_before: float) -> list[Job]:
        """What is to be done, in order, by what was last seen of disk and broker."""
        jobs = self._plan(quiet_before)
        self.restless = bool(jobs or self.gaps or self.has_news or self.pending())
        return jobs

    def _plan(self, quiet_before: float) -> list[Job]:
        if not self.segments:
            return []
        if self._place is None and self._settled is None:
            return [SURVEY]
        if self.offsets is None:
            return []
        with self._lock:
            final, present = self._remote.final, self._remote.present
        high_watermark = self.offsets.high_watermark
        jobs: list[Job] = [*eligibility.finished(self.segments, final, high_watermark)]
        jobs += eligibility.quiet_tail(self.segments, present, high_watermark, quiet_before)
        if self._place is None:
            return [SURVEY] if jobs or self._holes() else []
        return [SURVEY, *jobs] if self._unwritten or self._search.is_due(self._holes()) else jobs

    def tail_due(self, tail_after: float) -> float | None:
        """When the active segment will have been quiet for ``tail_after`` seconds; None if it has no news."""
        tail = self.disk.tail
        return tail.modified + tail_after if tail is not None and self.has_news else None

    @property
    def has_news(self) -> bool:
        """Whether the active segment goes beyond what is stored, as far as is known: in doubt it does."""
        tail, known = self.disk.tail, self.observation
        if tail is None or not tail.size:
            return False
        active = known.active if known else None
        if known is None or active is None or known.log_end is None:
            return True
        grown = (tail.base_offset, tail.size) != (active.base_offset, active.size)
        return grown or max(tail.base_offset, self.uploaded_end) < known.log_end

    def waits_for_high_watermark(self) -> bool:
        """Whether a rotated segment may be ready to go as soon as the high watermark is asked for again."""
        with self._lock:
            final = self._remote.final
        return eligibility.waiting_for(self.segments, final, self.offsets.high_watermark if self.offsets else 0)

    def pending(self) -> list[LocalSegment]:
        """Rotated segments that are not in the store as final."""
        with self._lock:
            final = self._remote.final
        return [
            segment
            for segment in self.segments
            if segment.next_offset is not None and final.missing(segment.base_offset, segment.next_offset)
        ]

    @property
    def next_offset(self) -> int:
        """Up to where the store has everything."""
        if self.settled is not None:
            return self.settled.next_offset
        return self.watermark.next_offset if self.watermark else self.start

    @property
    def incarnation(self) -> int | None:
        """The number of the topic's incarnation; None until it is agreed upon."""
        if self.settled is not None:
            return self.settled.incarnation
        return self.life.number if self.life else None

    @property
    def provisional(self) -> int | None:
        """Base offset of the stored segment that may still grow."""
        with self._lock:
            return self._remote.provisional

    @property
    def bytes_per_offset(self) -> float | None:
        """How many bytes an offset takes in the newest stored segment; None if that is not known."""
        with self._lock:
            return self._remote.bytes_per_offset

    def learn(self) -> None:
        """Find out what the store has, unless that is known."""
        if self._place is None:
            self._learn()

    def _live_start(self) -> int | None:
        """Base of the first segment on the disk."""
        return self.disk.tail.first if self.disk.tail else None

    @property
    def offsets(self) -> Offsets | None:
        """What the broker last said, or its checkpoint; None before that."""
        return self.observation.offsets if self.observation else None

    def _take(self, observation: Observation) -> None:
        self.observation = observation
        self.changes += 1
        disk_start = self._live_start()
        if disk_start != self._disk_start and any(gap.reason == "unknown" for gap in self._gaps):
            self._unwritten = True  # there is new evidence
        self._disk_start = disk_start

    @property
    def watermark(self) -> Watermark | None:
        """``offset.wm`` as last read or written."""
        stored = self._remote.stored
        return stored.watermark if stored else None

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The holes that hold the partition up; known before there is an ``offset.wm`` to name them."""
        return self.watermark.gaps if self.watermark else self._gaps

    @property
    def start(self) -> int:
        """Where the partition begins in the store; 0 until that is known."""
        return self._start or 0

    @property
    def uploaded_end(self) -> int:
        """The end of the last uploaded segment."""
        with self._lock:
            return self._remote.end

    @property
    def surveyed(self) -> bool:
        """Whether it is known what the store has."""
        return self._place is not None

    @property
    def where(self) -> tuple[Store, PartitionKeys]:
        """The store and the keys of a surveyed partition."""
        assert self._place is not None
        return self._place.store, self._place.keys

    def acknowledged(self) -> Intervals:
        """The offsets of a surveyed partition that people have acknowledged as lost, read from the store."""
        context, keys = self._context, self.where[1]
        return acknowledged(context.control_store, context.control, keys)

    def lineage(self) -> Lineage:
        """The log's, as its directory has it. Raises SegmentChanged if that is gone."""
        with PartitionFiles(self.folder, self.led.topic_id) as files:
            return files.lineage()

    # -- the workers' side --------------------------------------------------------------------------------------------

    def run(self, job: Job) -> StoredManifest | None:
        """Carry out ``job``; the manifest, if a segment went. Raises what the store, the disk and the formats raise."""
        try:
            return self._run(job)
        finally:
            self.changes += 1

    def _run(self, job: Job) -> StoredManifest | None:
        if job == SURVEY:
            self.learn()
            self._unwritten = True
            self.publish()
            return None
        assert isinstance(job, Work)
        stored = self._upload(job)
        if stored is not None:
            self._unwritten = True
            self.publish()
        return stored

    def publish(self) -> None:
        """Write ``offset.wm`` if it has something new to say. What several workers finish goes into one write."""
        while self._unwritten and self._writing.acquire(blocking=False):
            try:
                self._unwritten = False
                self._write_watermark()
            except BaseException:
                self._unwritten = True
                raise
            finally:
                self._writing.release()

    def _learn(self) -> None:
        life, store, keys = self._context.settle(self.at, self.led.topic_id)
        remote = self._load(store, keys)
        with self._lock:
            self._remote = remote
            self.life = life
            hold, broker = self._context.hold, self._context.broker
            given_up = [part.start for part in hold.yielded(self.at, self.led.topic_id)]
            bases = [*remote.segments, *given_up, *(segment.base_offset for segment in self.segments[:1])]
            self._start = remote.stored.watermark.start_offset if remote.stored else min(bases)
            self._place = UploadRoute(self.at, self.led.topic_id, self.folder, store, keys, broker, hold)

    def _load(self, store: Store, keys: PartitionKeys) -> RemoteState:
        epoch, topic_id = self.led.leader_epoch, self.led.topic_id
        return partition_state.load(
            store, keys, self.lineage(), epoch, topic_id, self._context.broker, self._is_foreign
        )

    def _is_foreign(self, stored: StoredWatermark) -> bool:
        return self._context.is_foreign(self.at, self.led, stored)

    def _upload(self, work: Work) -> StoredManifest | None:
        place, offsets = self._place, self.offsets
        assert place is not None
        assert offsets is not None
        with self._lock:
            opened, known = self._remote.open_before(work.base_offset), work.base_offset in self._remote.logs
        seen = Observed(offsets, self.cleanup_policy, self.led.leader_epoch)
        context = self._context
        guards = Guards(
            self._fence, context.pause, context.superseded, announce=self._announce, now=context.runtime.utc_now
        )
        stored = upload(place, work, seen, guards, open_before=opened, known=known)
        if stored is not None:
            lineage = self.lineage()
            with self._lock:
                self._remote.add(stored, lineage)
                self._replacing.discard(work.base_offset)
        return stored

    def _announce(self, base_offset: int) -> None:
        """Have ``offset.wm`` say which stored segment is about to be replaced, where the next leader would not list it.

        Between a ``.log`` and its manifest this agent may die, and the next leader's segments may begin elsewhere.
        """
        with self._lock:
            stored = self._remote.stored
            if stored is None or base_offset >= stored.base_offset:
                return
            self._replacing.add(base_offset)
        with self._writing:
            self._write_watermark()
        self.publish()  # what ended meanwhile has found the lock taken

    def _fence(self) -> None:
        assert self._place is not None
        store, keys = self._place.store, self._place.keys
        watermark.fence(store, keys, self.led.topic_id, self.led.leader_epoch, self._is_foreign)

    def _holes(self) -> Intervals:
        """What neither the store nor the disk has, or only damaged, and nobody has acknowledged."""
        with self._lock:
            present, damaged, start = self._remote.present, self._remote.damaged, self._start or 0
        passed = gaps.offsets(self.watermark.acknowledged_gaps) if self.watermark else Intervals()
        return (self._lost(present, start) | (damaged - present)) - passed

    def _search_store(self, lineage: Lineage) -> None:
        """Mend what a dead agent left half replaced; learn what the store has for holes after all, if it is time."""
        assert self._place is not None
        with self._lock:
            mismatched = list(self._remote.mismatched.values())
        if not mismatched and not self._search.is_due(self._holes()):
            return
        offsets = self.offsets or Offsets(self._remote.end)
        wanted = Wanted(
            place=self._place,
            holes=self._holes,
            gaps=self.gaps,
            local_start=self._live_start() or 0,
            lineage=lineage,
            seen=Observed(offsets, self.cleanup_policy, self.led.leader_epoch),
            fence=self._fence,
        )
        for log in mismatched:
            self._search.mend(log, wanted, self._remote, self._lock)
        if self._search.is_due(self._holes()):
            self._search.run(wanted, self._remote, self._lock)

    def _lost(self, present: Intervals, start: int) -> Intervals:
        """What is neither ``present`` nor on the disk nor held, below the active segment."""
        local = Intervals((one.base_offset, one.next_offset) for one in self.segments if one.next_offset is not None)
        active = self.segments[-1].base_offset if self.segments else start
        return present.missing(start, max(start, active)) - local

    def _write_watermark(self) -> None:
        assert self._place is not None
        store, keys = self._place.store, self._place.keys
        lineage, attempts = self.lineage(), 0
        self._search_store(lineage)
        while True:
            with self._lock:
                before, foreign = self._remote.stored, self._remote.foreign
            previous = watermark.truncate(before.watermark, lineage, self.led.leader_epoch) if before else None
            new = watermark.compute(self._view(lineage, previous), previous)
            if new is None or (before and not watermark.says_more(new, before.watermark)):
                return
            with self._lock:
                bases = [one.base_offset for one in self._remote.segments.values() if one.state != "corrupt"]
            base = watermark.last_base(bases, new.next_offset, before.base_offset if before else new.start_offset)
            try:
                written = watermark.write(store, keys, base, new, foreign or before)
            except PreconditionFailed:
                self._reload(store, keys)
                attempts += 1
                if attempts == _ATTEMPTS:
                    raise  # the store only says so: the back-off has its turn
                continue
            with self._lock:
                self._remote.vouched(written)
            self._context.hold.recorded(
                self.at,
                self.led.topic_id,
                Intervals((gap.start, gap.end) for gap in (*new.gaps, *new.acknowledged_gaps)),
            )
            return

    def _reload(self, store: Store, keys: PartitionKeys) -> None:
        """Somebody else wrote ``offset.wm``. Raises Fenced if it was a later leader."""
        remote = self._load(store, keys)
        with self._lock:
            remote.segments = remote.segments | self._remote.segments
            self._remote = remote

    def _view(self, lineage: Lineage, previous: Watermark | None) -> WatermarkState:
        with self._lock:
            present, damaged, start = self._remote.present, self._remote.damaged, self._start or 0
            lineage = self._remote.history(lineage)
        passed = previous.acknowledged_gaps if previous else ()
        known = (*(previous.gaps if previous else self._gaps), *passed)
        # An acknowledged gap stays one until the store has its offsets: what the disk has of them may never get there.
        missing = self._lost(present, start) | (gaps.offsets(passed) - present)
        now = self._context.runtime.utc_now()
        found = gaps.find_gaps(missing, damaged - present, self._evidence(previous), known, now)
        holding, passed = gaps.split(found, gaps.offsets(passed) | self._search.acknowledged)
        self._gaps = holding
        topic_id, epoch, broker = self.led.topic_id, self.led.leader_epoch, self._context.broker
        with self._lock:
            replacing, foreign = tuple(sorted(self._replacing)), self._remote.foreign
        epochs = (foreign.watermark.leader_epoch,) if foreign else ()
        return WatermarkState(topic_id, epoch, broker, start, present, lineage, holding, passed, replacing, epochs)

    def _evidence(self, previous: Watermark | None) -> Evidence:
        cuts = previous.truncations if previous else ()
        return Evidence(
            yielded=self._context.hold.yielded(self.at, self.led.topic_id),
            cut=Intervals((cut.at, cut.old_next) for cut in cuts),
            log_start=self.offsets.log_start_offset if self.offsets else None,
            disk_start=self._disk_start,
        )
