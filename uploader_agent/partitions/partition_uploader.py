"""What workers do for one led partition: survey the store, upload segments, and keep ``offset.wm`` up to date.

A job is either a piece of work (a segment) or a survey: learn what the store has, search it for data that fills holes,
and update ``offset.wm``. Several segments of a partition may be uploaded at a time; their ends are written to
``offset.wm`` together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import structlog

from tidemark.errors import PreconditionFailed
from tidemark.formats.acknowledgements import acknowledged
from tidemark.formats.keys import ControlKeys, PartitionKeys, TopicPartition
from tidemark.formats.watermark import Watermark
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage
from tidemark.store import Store
from uploader_agent.broker.admin import UNKNOWN_POLICY, Led, Offsets
from uploader_agent.disk.log_dirs import LocalSegment
from uploader_agent.disk.segment_files import PartitionFiles, SegmentChanged
from uploader_agent.hold import Hold
from uploader_agent.remote import gaps, stored_log, watermark
from uploader_agent.remote.gaps import Evidence
from uploader_agent.remote.incarnations import TopicIncarnation
from uploader_agent.remote.manifests import Observed, StoredManifest
from uploader_agent.remote.remote_state import RemoteState
from uploader_agent.remote.stored_log import StoredLog
from uploader_agent.remote.watermark import StoredWatermark, WatermarkState
from uploader_agent.repair.gap_search import Search, Wanted
from uploader_agent.runtime import MACHINE, Runtime
from uploader_agent.upload.eligibility import Work
from uploader_agent.upload.segment_upload import Rules, StoredBefore, UploadRoute, upload
from uploader_agent.upload.validation import ScannedSegment

logger = structlog.get_logger(__name__)

Survey = Literal["survey"]
SURVEY: Survey = "survey"
Job = Work | Survey

_ATTEMPTS = 3
"""How often one publication reads and writes ``offset.wm`` when the store reports that it has changed in between."""


@dataclass(frozen=True, slots=True)
class Context:
    """What all partitions of an agent share. ``resolve`` says where a topic's incarnation lies.

    ``sleep`` waits some seconds, and less when the agent stops. ``on_truncated`` counts what elections cut off.
    ``is_foreign`` tells whether an ``offset.wm`` that fences a leadership has an epoch that the cluster never gave.
    While a partition has holes, the store is searched every ``search_interval`` seconds.
    """

    broker: int
    resolve: Callable[[TopicPartition, str | None], tuple[TopicIncarnation, Store, PartitionKeys]]
    control_store: Store
    control: ControlKeys
    sleep: Callable[[float], object]
    on_truncated: Callable[[], object]
    hold: Hold
    is_foreign: Callable[[TopicPartition, Led, StoredWatermark], bool]
    search_interval: float = 0.0
    runtime: Runtime = MACHINE


@dataclass(frozen=True, slots=True)
class LocalLog:
    """The log as disk and broker last showed it. The loop replaces it as a whole, so any thread may read it.

    ``segments`` are held or on the disk, by base offset, the last one active. ``offsets`` come from the broker or its
    checkpoint. ``disk_start`` is the base offset of the first segment on the disk, None without one. ``observed_start``
    is its value when the broker gave the ``offsets``.
    """

    segments: tuple[LocalSegment, ...] = ()
    offsets: Offsets | None = None
    cleanup_policy: str = UNKNOWN_POLICY
    disk_start: int | None = None
    observed_start: int | None = None

    @property
    def rotated(self) -> Intervals:
        """The offsets of all segments but the active one."""
        ended = ((one.base_offset, one.next_offset) for one in self.segments if one.next_offset is not None)
        return Intervals(ended)


class PartitionUploader:
    """Uploads one partition under one leader epoch of one topic id. Thread-safe: any worker may carry out a job."""

    def __init__(self, tp: TopicPartition, led: Led, folder: Path, context: Context, remote: RemoteState) -> None:
        """``remote`` records what the store has. The partition's owner keeps :attr:`local` up to date."""
        self.local = LocalLog()
        self._tp = tp
        self._led = led
        self._folder = folder
        self._context = context
        self._remote = remote
        self._route: UploadRoute | None = None  # set before the remote state says that it was surveyed
        self._search = Search(context.control_store, context.control, context.search_interval, context.runtime)
        self._writing = context.runtime.lock()  # held by the one worker that writes offset.wm
        self._unwritten = True

    @property
    def where(self) -> tuple[Store, PartitionKeys]:
        """The store and the keys of a surveyed partition."""
        assert self._route is not None
        return self._route.store, self._route.keys

    @property
    def claimed(self) -> bool:
        """Whether ``offset.wm`` has this leader epoch and its lineage: nothing is sealed before that."""
        written = self._remote.watermark
        return written is not None and written.leader_epoch == self._led.leader_epoch

    @property
    def needs_survey(self) -> bool:
        """Whether a surveyed partition has something to write to ``offset.wm``, or to search the store for."""
        return self._unwritten or self._search.is_due(self.holes())

    def acknowledged(self) -> Intervals:
        """The offsets of a surveyed partition that people have acknowledged as lost, read from the store."""
        return acknowledged(self._context.control_store, self._context.control, self.where[1])

    def lineage(self) -> Lineage:
        """The log's lineage, from its directory. Raises SegmentChanged if the directory is gone."""
        with PartitionFiles(self._folder, self._led.topic_id) as files:
            return files.lineage()

    def holes(self) -> Intervals:
        """The offsets that neither the store nor the disk has undamaged, and that no person has acknowledged."""
        coverage, written = self._remote.coverage, self._remote.watermark
        passed = gaps.offsets(written.acknowledged_gaps) if written else Intervals()
        return (self._lost(coverage.present, coverage.start) | (coverage.damaged - coverage.present)) - passed

    def reconsider_gaps(self) -> None:
        """Look for the reasons of unexplained gaps again, as there is new evidence."""
        if any(gap.reason == "unknown" for gap in self._remote.gaps_found):
            self._unwritten = True

    def run(self, job: Job) -> StoredManifest | None:
        """Carry out ``job``; the manifest of an uploaded segment. Raises what store, disk and formats raise."""
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

    def learn(self) -> None:
        """Find out what the store has, unless that is known."""
        if self._remote.surveyed:
            return
        incarnation, store, keys = self._context.resolve(self._tp, self._led.topic_id)
        log = self._load(store, keys)
        hold = self._context.hold
        given_up = [part.start for part in hold.yielded(self._tp, self._led.topic_id)]
        bases = [
            *(name.base for name in log.segments),
            *given_up,
            *(segment.base_offset for segment in self.local.segments[:1]),
        ]
        self._route = UploadRoute(self._tp, self._led.topic_id, self._folder, store, keys, self._context.broker, hold)
        self._remote.survey(log, incarnation.number, min(bases, default=0))

    def publish(self) -> None:
        """Write ``offset.wm`` if something has changed. Results of several workers go into one write."""
        while self._unwritten and self._writing.acquire(blocking=False):
            try:
                self._unwritten = False
                self._write_watermark()
            except BaseException:
                self._unwritten = True
                raise
            finally:
                self._writing.release()

    def _load(self, store: Store, keys: PartitionKeys) -> StoredLog:
        epoch, topic_id = self._led.leader_epoch, self._led.topic_id
        return stored_log.load(store, keys, self.lineage(), epoch, topic_id, self._context.broker, self._is_foreign)

    def _is_foreign(self, stored: StoredWatermark) -> bool:
        return self._context.is_foreign(self._tp, self._led, stored)

    def _upload(self, work: Work) -> StoredManifest | None:
        assert self._route is not None
        assert self.local.offsets is not None
        remote = self._remote
        base = work.base_offset
        before = StoredBefore(remote.watermark, remote.open_before(base), has_log=remote.has_log(base))
        stored = upload(self._route, work, self._observed(self.local.offsets), Rules(self._judge), before)
        if stored is not None:
            remote.add(stored, self.lineage())
        return stored

    def _judge(self, scanned: ScannedSegment, lineage: Lineage) -> Lineage:
        """A leader's own log is right, and what is damaged in it is kept; what a later leader wrote is not its own.

        A broker that was deposed without knowing may have truncated its log, and fetched what the next leader has not
        committed yet, while the last high watermark that it answered is of before.
        """
        latest = max((epoch for epoch, _ in scanned.summary.epochs), default=0)
        if latest > self._led.leader_epoch and scanned.damage is None:
            rule = f"has batches of leader epoch {latest}, and this broker leads under {self._led.leader_epoch}"
            raise SegmentChanged(f"{self._folder}: {rule}: the next leader seals them")
        return lineage

    def _observed(self, offsets: Offsets) -> Observed:
        return Observed(offsets, self.local.cleanup_policy, self._led.leader_epoch)

    def _search_store(self, lineage: Lineage) -> None:
        """If it is time, search the store for data of holes."""
        assert self._route is not None
        if not self._search.is_due(self.holes()):
            return
        wanted = Wanted(
            route=self._route,
            holes=self.holes,
            gaps=self._remote.gaps,
            local_start=self.local.disk_start or 0,
            lineage=lineage,
            seen=self._observed(self.local.offsets or Offsets(self._remote.end)),
        )
        self._search.run(wanted, self._remote)

    def _lost(self, present: Intervals, start: int) -> Intervals:
        """What is neither ``present`` nor on the disk nor held, below the active segment."""
        local = self.local
        active = local.segments[-1].base_offset if local.segments else start
        return present.missing(start, max(start, active)) - local.rotated

    def _write_watermark(self) -> None:
        store, keys = self.where
        lineage, attempts = self.lineage(), 0
        self._check_begun(lineage)
        self._search_store(lineage)
        while True:
            before, foreign = self._remote.stored, self._remote.foreign
            previous = watermark.truncate(before.watermark, lineage, self._led.leader_epoch) if before else None
            new = watermark.compute(self._state(lineage, before, previous), previous)
            if before and not watermark.says_more(new, before.watermark):
                return
            known = before.base_offset if before else new.start_offset
            lowest = known if known < new.next_offset else new.start_offset
            base = watermark.last_base(self._remote.readable_bases, new.next_offset, lowest)
            try:
                written = watermark.write(store, keys, base, new, foreign or before)
            except PreconditionFailed:
                self._remote.reload(self._load(store, keys))
                attempts += 1
                if attempts == _ATTEMPTS:
                    raise  # the store reports conflicts without a change: leave it to the back-off
                continue
            if before and new.next_offset < (end := before.watermark.next_offset):
                self._context.on_truncated()
                cut = {"next_offset": new.next_offset, "was": end, "leader_epoch": new.leader_epoch}
                logger.warning("log_truncated", partition=str(self._tp), **cut)
            self._remote.vouch(written)
            named = Intervals((gap.start, gap.end) for gap in (*new.gaps, *new.acknowledged_gaps))
            self._context.hold.recorded(self._tp, self._led.topic_id, named)
            return

    def _check_begun(self, lineage: Lineage) -> None:
        """Raise SegmentChanged while the log has not begun this leader epoch, which metadata may name before.

        The lineage in ``offset.wm`` would say that the branch goes on that this leadership ends. Logs of message
        formats before v2 have no epochs (``LeaderEpochFileCache``).
        """
        if lineage.entries and lineage.entries[-1][0] < self._led.leader_epoch:
            rule = f"its log has leader epoch {lineage.entries[-1][0]}, and does not show {self._led.leader_epoch} yet"
            raise SegmentChanged(f"{self._folder}: {rule}")

    def _state(self, lineage: Lineage, before: StoredWatermark | None, previous: Watermark | None) -> WatermarkState:
        remote = self._remote
        start, present, _, damaged = remote.coverage
        passed = previous.acknowledged_gaps if previous else ()
        known = (*(previous.gaps if previous else remote.gaps_found), *passed)
        # An acknowledged gap stays until the store has its offsets: those on the disk may never be uploaded.
        missing = self._lost(present, start) | (gaps.offsets(passed) - present)
        now = self._context.runtime.utc_now()
        found = gaps.find_gaps(missing, damaged - present, self._evidence(before, previous), known, now)
        holding, passed = gaps.split(found, gaps.offsets(passed) | self._search.acknowledged)
        remote.find_gaps(holding)
        foreign = remote.foreign
        return WatermarkState(
            self._led.topic_id,
            self._led.leader_epoch,
            self._context.broker,
            start,
            present,
            remote.history(lineage),
            holding,
            passed,
            (foreign.watermark.leader_epoch,) if foreign else (),
        )

    def _evidence(self, before: StoredWatermark | None, previous: Watermark | None) -> Evidence:
        local, cut = self.local, Intervals()
        if before and previous:
            cut = Intervals([(previous.next_offset, before.watermark.next_offset)])
        return Evidence(
            yielded=self._context.hold.yielded(self._tp, self._led.topic_id),
            cut=cut,
            log_start=local.offsets.log_start_offset if local.offsets else None,
            disk_start=local.observed_start,
        )
