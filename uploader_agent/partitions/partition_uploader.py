"""Carries out the jobs of a led partition: surveys the store, seals runs, and keeps ``offset.wm`` up to date.

Several segments of a partition may be uploaded at a time; their ends are written to ``offset.wm`` together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from tidemark.errors import PreconditionFailed
from tidemark.formats.keys import Endpoint, TopicPartition
from tidemark.formats.raw.gaps import split_acknowledged
from tidemark.formats.raw.head import HeadEntry
from tidemark.formats.raw.watermark import Watermark
from tidemark.intervals import Intervals
from tidemark.kafka_log import BatchHeader, Lineage
from tidemark.kafka_log.indexes import MAX_OFFSET
from tidemark.raw.objects import StoredManifest
from tidemark.storage import ClusterStore, PartitionStore, StoredWatermark
from uploader_agent.broker.admin import Cleanup, Led, Offsets
from uploader_agent.disk.segment_files import PartitionFiles, SegmentChanged, SegmentFiles
from uploader_agent.hold import Hold
from uploader_agent.log_source import FoundParting, LogSource
from uploader_agent.observability.metrics import Metrics
from uploader_agent.packs.seal_packed import seal_fuller, seal_packed
from uploader_agent.packs.tail import Tail, TailSources, TailState, shared_tails
from uploader_agent.partitions import jobs
from uploader_agent.partitions.jobs import CHECK, SURVEY, Job, LocalState, Standing
from uploader_agent.repair.gaps import Evidence, GapSearch, SearchInput, find_gaps
from uploader_agent.runtime import Runtime
from uploader_agent.stored import stored_log, watermark
from uploader_agent.stored.foreign_epochs import ForeignEpochs
from uploader_agent.stored.histories import (
    HistoriesPart,
    Parting,
    find_parting,
    local_batches,
    local_difference,
    log_bounds,
)
from uploader_agent.stored.incarnations import Incarnations
from uploader_agent.stored.other_origin import OtherOrigin
from uploader_agent.stored.stored_log import RemoteState, StoredLog
from uploader_agent.stored.watermark import Fenced
from uploader_agent.upload.local_run import ScannedSegment, SealRun
from uploader_agent.upload.segment_upload import PacksDiffer, SegmentSealer, UploadRoute


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What all partitions of an agent share. Any thread may use it.

    ``cluster`` has the objects in the deployment's default store. ``settled_head`` returns the version of this broker's
    head in a bucket if no earlier PUT of it can take effect any more; otherwise None, and the head is settled soon. It
    raises the error of the last try to settle it. While a partition has holes, the store is searched
    every ``search_interval`` seconds. ``begins_in_tier`` is true if a partition begins in the store where its log does,
    although only Kafka's own remote tier has that part: it is fetched then.
    """

    broker: int
    incarnations: Incarnations
    cluster: ClusterStore
    hold: Hold
    settled_head: Callable[[Endpoint], int | None]
    foreign_epochs: ForeignEpochs
    other_origin: OtherOrigin
    source: LogSource
    metrics: Metrics
    search_interval: float
    begins_in_tier: Callable[[], bool]
    runtime: Runtime

    def bucket_of(self, tp: TopicPartition) -> Endpoint:
        """The bucket that has the packs of ``tp``, and the head that names them."""
        return self.incarnations.storage.endpoint(*tp).root


logger = structlog.get_logger(__name__)

_ATTEMPTS = 3
"""Tries of one publication of ``offset.wm`` while the store reports that it has changed in between."""


class PartitionUploader:
    """Uploads one partition under one leader epoch of one topic id. Thread-safe: any worker may carry out a job."""

    def __init__(
        self,
        tp: TopicPartition,
        led: Led,
        folder: Path,
        context: Context,
        local: LocalState,
        remote: RemoteState,
        packed: TailState,
    ) -> None:
        """``local`` has the state of the log on the disk, ``remote`` of the store, ``packed`` of the packs."""
        self._tp = tp
        self._led = led
        self._folder = folder
        self._context = context
        self._local = local
        self._remote = remote
        self._packed = packed
        self._sources = TailSources()
        self._surveying = context.runtime.lock()  # held by the thread that surveys
        self._route: UploadRoute | None = None  # set before the remote state counts as surveyed
        self._search = GapSearch(context.cluster, context.search_interval, context.runtime)
        self._writing = context.runtime.lock()  # held by the worker that writes offset.wm
        self._unwritten = True
        self._in_doubt = False
        """True if the directory lacks what is not known to be stored: a late write may have stored it."""
        self.unchecked = False
        """True while it is not known whether the directory still has the log that is stored."""
        self.last_doubt = object()
        """The last doubt that the directory may have another log than the stored one: each is an object of its own.

        What was read before one, and is stored after it, may be of another log. So whoever reads and stores compares
        the last doubt before with that after. Before the first one, it is a doubt that nobody had.
        """
        self.suspected = False
        """True while the log has another batch than a stored one, or a segment of another agent was adopted, and it is
        not compared as a whole yet."""
        self.found_parting: FoundParting | None = None
        """Where the log parts from the stored history; nothing is stored of it then. Replaced as a whole."""
        self._tail_wanted = False  # until offset.wm lists this leadership's tail

    @property
    def parting(self) -> Parting | None:
        """The parting of :attr:`found_parting`."""
        return self.found_parting.parting if self.found_parting is not None else None

    @property
    def route(self) -> UploadRoute:
        """The source and destination of a surveyed partition."""
        assert self._route is not None
        return self._route

    @property
    def where(self) -> PartitionStore:
        """The objects of a surveyed partition."""
        return self.route.partition

    @property
    def claimed(self) -> bool:
        """True if ``offset.wm`` has this leader epoch, its lineage and this origin; nothing is sealed before that."""
        return self._is_claim(self._remote.log.watermark)

    def _is_claim(self, written: Watermark | None) -> bool:
        ours = self._led.leader_epoch, self._context.source.origin
        return written is not None and (written.leader_epoch, written.origin) == ours

    @property
    def may_pack(self) -> bool:
        """True if the partition is claimed, and ``offset.wm`` lists this leadership's tail."""
        log = self._remote.log
        written = log.watermark
        return log.surveyed and self._is_claim(written) and written is not None and self._own_pair in written.tails

    @property
    def tails(self) -> tuple[tuple[int, int], ...]:
        """The leaderships in ``offset.wm``, as (leader epoch, broker), that may have packed unsealed offsets."""
        written = self._remote.log.watermark
        return written.tails if written else ()

    @property
    def _tail_brokers(self) -> frozenset[int]:
        written = self._remote.log.watermark
        return written.tail_brokers if written else frozenset()

    @property
    def _may_record_gaps(self) -> bool:
        """True if missing offsets are gaps. Before the claim, a former leader may have packed them."""
        return self.claimed or not self.tails

    @property
    def _own_pair(self) -> tuple[int, int]:
        return self._led.leader_epoch, self._context.broker

    def other_tails(self) -> list[tuple[int, int]]:
        """The other leaderships in :attr:`tails` of a claimed partition."""
        return [tail for tail in self.tails if tail != self._own_pair]

    def claim(self) -> None:
        """Survey the partition if necessary, and write this leader epoch to ``offset.wm`` unless it has it."""
        self.learn()
        if not self.claimed:
            self._unwritten = True
            self.publish()

    def announce_tail(self) -> None:
        """Have ``offset.wm`` of a claimed partition list this leadership in ``tails``, before anything is packed."""
        if not self.may_pack:
            self._tail_wanted = self._unwritten = True
            self.publish()

    def doubt(self) -> None:
        """Have the log compared with the stored history, before more of it is sealed. For any thread."""
        self.last_doubt = object()
        self.unchecked = True

    def lacks(self, stored: BatchHeader) -> bool:
        """True if the log has another batch than ``stored``: then it is compared as a whole. For any thread."""
        with self._files() as files:
            differs = local_difference(files, stored) is not None
        if differs:
            self.suspect()
        return differs

    def suspect(self) -> None:
        """Have the log compared with the stored history as a whole, before anything more is stored or stated of it.

        For any thread.
        """
        self.suspected = True  # before the doubt: a check that begins in between compares the whole
        self.doubt()

    @property
    def is_trusted(self) -> bool:
        """True if nothing shows that the log is another one than the stored one. For any thread."""
        return not self.suspected and self.parting is None

    def standing(self, log: StoredLog, holes: Intervals) -> Standing:
        """How the leadership stands, if the store has ``log``, and neither it nor the disk what is in ``holes``."""
        return Standing(
            is_parted=self.parting is not None,
            is_unchecked=self.unchecked,
            is_claimed=self._is_claim(log.watermark),
            is_in_doubt=self._in_doubt,
            awaits_start=self.awaits_start,
            needs_survey=self._search.is_due(holes) or self._unwritten or self._in_doubt,
        )

    def acknowledged(self) -> Intervals:
        """The offsets of a surveyed partition that people have acknowledged as lost, read from the store."""
        keys = self.where.keys
        return self._context.cluster.acknowledged(keys.place, keys.partition)

    def lineage(self) -> Lineage:
        """The log's lineage, from its directory. Raises SegmentChanged if the directory is gone."""
        with self._files() as files:
            return files.lineage()

    def _files(self) -> PartitionFiles:
        return PartitionFiles(self._folder, self._led.topic_id, self._route.restores if self._route else ())

    def holes(self) -> Intervals:
        """The offsets that neither the store nor the disk has undamaged, and that no person has acknowledged."""
        log = self._remote.log
        return jobs.holes(self._lost(log), log)

    def reconsider_gaps(self) -> None:
        """Look for the reasons of gaps again, and for what only the remote tier has, since there is new evidence."""
        log = self._remote.log
        if log.gaps_found or (log.watermark and log.watermark.remote_tier) or self._local.log.start_evidence[2]:
            self._unwritten = True

    def run(self, job: Job) -> StoredManifest | None:
        """Carry out ``job``; return the manifest of an uploaded segment. Raises errors of store, disk and formats."""
        if job == CHECK:
            self._check()
            return None
        if job == SURVEY:
            self.learn()
            self._unwritten = True
            self.publish()
            return None
        assert isinstance(job, SealRun)
        self._check_before(job.base_offset)
        stored = self._upload(job)
        if stored is not None:
            self._unwritten = True
            self.publish()
        return stored

    def filled(self, stored: StoredManifest) -> None:
        """Count a segment that was sealed from elsewhere than this directory. For any thread."""
        self._remote.add(stored, self.lineage())
        self._unwritten = True

    @property
    def awaits_start(self) -> bool:
        """True if the first ``offset.wm`` waits for the broker to say where the log begins, which is below the disk."""
        if self._remote.log.stored is not None or not self._context.begins_in_tier():
            return False
        offsets = self._local.log.offsets
        return offsets is None or offsets.log_start_offset is None

    def learn(self) -> None:
        """Survey the partition, unless it is surveyed. Raises HistoriesPart if its log is not the stored one."""
        with self._surveying:
            if not self._remote.log.surveyed or self.parting is not None:
                self._survey()

    def _check(self) -> None:
        """Compare the log with the stored history as far as that is known, and survey the partition if they differ."""
        self.unchecked, doubt = False, self.last_doubt
        try:
            log, tail = self._remote.log, self._packed.tail
            with self._files() as files:
                lasts = log.last_batch(), tail.last_batch
                differs = self.suspected or self._differs(files, max(log.end, tail.end), lasts)
            if differs:
                with self._surveying:
                    self._survey(differs=True)
            self.suspected = self.suspected and self.last_doubt is not doubt
        except BaseException:
            self.unchecked = True
            raise

    def _check_before(self, base_offset: int) -> None:
        """Raise SegmentChanged if the log is not known to have the last stored batch below ``base_offset``."""
        last = self._remote.log.last_batch(base_offset)
        if (last is not None and self.lacks(last)) or self.unchecked or self.parting is not None:
            raise SegmentChanged(f"{self._folder}: its log is to be compared with the stored one")

    def _differs(self, files: SegmentFiles, end: int, lasts: Iterable[BatchHeader | None]) -> bool:
        """True if the log ends below ``end``, the end of what is stored, or has another batch than one of ``lasts``."""
        bounds = log_bounds(files)
        if bounds is None:
            return False
        short = self._context.source.has_whole_log and bounds[1] < end
        return short or any(last is not None and local_difference(files, last) is not None for last in lasts)

    def _judge_history(self, partition: PartitionStore, log: StoredLog, lineage: Lineage, *, differs: bool) -> None:
        """Find out whether the directory has the log that is stored, up to where ``lineage`` leaves it.

        Objects are read only if it ``differs`` from what was known before, or now.
        """
        with self._files() as files:
            lasts = log.last_batch(), self._packed.tail.last_batch
            differs = differs or self.parting is not None or log.is_split or self._differs(files, log.end, lasts)
            parting = self._find_parting(partition, log, lineage, files) if differs else None
            if parting is None and log.foreign is not None:
                parting = self._later_history(log, files)
            if parting is None and self.parting is not None:
                parting = self._later_batches(log.end, files)
            if files.lineage() != lineage:
                raise SegmentChanged(f"{self._folder}: its leader epochs changed while it was read")
        self._part(parting)

    def _part(self, parting: Parting | None) -> None:
        known = self.found_parting
        found_at = known.found_at if known is not None else self._context.runtime.utc_now()
        self.found_parting = FoundParting(parting, found_at) if parting is not None else None

    def _check_packs(self, lineage: Lineage, base_offset: int) -> None:
        """Raise HistoriesPart if the log is not the one of which packs have the offsets from ``base_offset`` on."""
        lineage, entries = self._known_lineage(lineage), self._packed_entries()
        ranges = self._sources.ranges(self.route, entries, lineage, base_offset)
        tails = shared_tails(entries, lineage)
        end = max((tail.end for tail in tails), default=0)
        with self._files() as files:
            parting = find_parting(self.where, files, lineage, ranges, end=end, shared=tails)
        if parting is not None and parting.local is not None:
            self._part(parting)
            raise self._parted(parting)

    def _later_history(self, log: StoredLog, files: SegmentFiles) -> Parting | None:
        """The parting from segments of later leaders than this one, although the cluster never gave such an epoch.

        A damaged ``offset.wm`` alone may have any epoch. Segments of it prove that the metadata were restored.
        """
        later = [
            segment
            for segment in log.segments.values()
            if segment.next_offset > segment.readable_end
            and max(segment.lineage.epochs, default=0) > self._led.leader_epoch
        ]
        bounds = log_bounds(files)
        if not later or bounds is None:
            return None
        at, end = min(segment.readable_end for segment in later), max(segment.next_offset for segment in later)
        return Parting(at, end, *bounds, None, None)

    def _later_batches(self, end: int, files: SegmentFiles) -> Parting | None:
        """The parting of a log with a batch of a later leader than this one above ``end``, up to which all is stored.

        Metadata that were restored alone may have this broker lead under an epoch from before the log's last one.
        """
        bounds, epoch = log_bounds(files), self._led.leader_epoch
        later = (batch for batch in local_batches(files, end) if batch.header.leader_epoch > epoch and batch.is_sound)
        first = next(later, None)
        if bounds is None or first is None:
            return None
        return Parting(max(bounds[0], end), end, *bounds, None, first.header)

    def _find_parting(
        self, partition: PartitionStore, log: StoredLog, lineage: Lineage, files: SegmentFiles
    ) -> Parting | None:
        """The parting of the log from what is sealed, or else from what is packed, as the store has it now."""
        lineage, whole = log.history(lineage), self._context.source.has_whole_log
        since = self.parting.at if self.parting is not None else MAX_OFFSET
        parting = find_parting(partition, files, lineage, end=log.end, shared=log.shared, since=since)
        if parting is None:
            brokers = {*self._local.log.replicas, *(log.watermark.tail_brokers if log.watermark else ())}
            brokers.add(self._context.broker)
            ranges, end, shared = self._sources.history(self.route, brokers, lineage, log.end, log.shared)
            if ranges:
                parting = find_parting(partition, files, lineage, ranges, end=end, shared=shared, since=since)
        if parting is None or (parting.local is None and not whole):
            return None
        return parting._replace(stored_end=max(parting.stored_end, self._packed.tail.end))

    def _survey(self, *, differs: bool = False) -> None:
        incarnation, partition = self._context.incarnations.resolve(self._tp, self._led.topic_id)
        lineage = self.lineage()
        log = self._load(partition, lineage)
        self._check_begun(lineage, has_epochs=log.has_epochs)
        hold = self._context.hold
        evicted = [part.start for part in hold.evicted(self._tp, self._led.topic_id)]
        bases = [
            *(name.base for name in log.segments),
            *evicted,
            *(segment.base_offset for segment in self._local.log.segments[:1]),
        ]
        if not bases and log.stored is None:
            raise SegmentChanged(f"{self._folder}: no segment here or in the store tells the first offset")
        restores, broker = log.watermark.restores if log.watermark else (), self._context.broker
        if restores != (self._route.restores if self._route else ()):
            self._packed.begin_again()
        origin = self._context.source.origin
        self._route = UploadRoute(self._tp, self._led.topic_id, self._folder, partition, broker, hold, origin, restores)
        self._judge_history(partition, log, lineage.restored(restores), differs=differs)
        self._remote.survey(log, incarnation, min(bases, default=0))
        if self.parting is not None:
            raise self._parted(self.parting)

    def _parted(self, parting: Parting) -> HistoriesPart:
        restored = "the broker or the cluster's metadata was restored from a backup, or another log has this topic's id"
        go_on = f"tidemark-agent branch {self._tp.topic} {self._tp.partition}"
        remedy = f"nothing more of it is stored: look at both, then go on with the disk's by `{go_on}`"
        return HistoriesPart(f"{self._folder}: {parting}: {restored}; {remedy}")

    def publish(self) -> None:
        """Write ``offset.wm`` if its content has changed. One write has the results of several workers.

        Nothing is written of a log that is suspected: what was adopted may be of another history.
        """
        while (
            self._unwritten and not self.suspected and not self.awaits_start and self._writing.acquire(blocking=False)
        ):
            try:
                self._unwritten = False
                self._write_watermark()
            except BaseException:
                self._unwritten = True
                raise
            finally:
                self._writing.release()

    def _load(self, partition: PartitionStore, lineage: Lineage) -> StoredLog:
        epoch, topic_id = self._led.leader_epoch, self._led.topic_id
        return stored_log.load(partition, lineage, epoch, topic_id, self._context.broker, self._is_foreign)

    def _reload(self, partition: PartitionStore, lineage: Lineage) -> None:
        """Read the store again. Raises SegmentChanged if its history is another one now: a survey must come first."""
        log = self._load(partition, lineage)
        if log.watermark is not None and log.watermark.restores != self.route.restores:
            self._remote.forget()
            raise SegmentChanged(
                f"{partition.keys.watermark}: a person has gone on with another history: it is surveyed first"
            )
        self._remote.reload(log)

    def _is_foreign(self, stored: StoredWatermark) -> bool:
        return self._context.foreign_epochs.judge(self._tp, self._led, stored)

    def _upload(self, work: SealRun) -> StoredManifest | None:
        local, doubt = self._local.log, self.last_doubt
        offsets, cleanup = local.offsets, local.cleanup
        assert offsets is not None
        base = work.base_offset
        # Before the packed parts, and compared after the scan: what was packed in between is not among the parts.
        head, packed_end = self._settled_head(cleanup), self._packed.tail.packed_below(work.end)
        lineage = Lineage()

        def judge(scanned: ScannedSegment, known: Lineage) -> Lineage:
            nonlocal lineage
            lineage = known
            same = self._settled_head(cleanup) == head and self._packed.tail.packed_below(work.end) == packed_end
            if cleanup.may_compact and (packed_end is None or not same):
                raise SegmentChanged(f"{self._folder}: batches below {work.end} are being packed: they are sealed then")
            return self._judge_run(scanned, known)

        with self.route.files() as files:
            known, log, tail = files.lineage(), self._remote.log, self._packed.tail
            sealer = SegmentSealer(
                route=self.route,
                offsets=offsets,
                cleanup=cleanup,
                judge=judge,
                watermark=log.watermark,
                open_transactions=log.open_before(base),
                has_log=log.has_log(base),
                packed=self._sources.parts(self.route, tail, self._unread_brokers(tail, cleanup), known, base),
                adopted=self.suspect,
            )
            try:
                stored = sealer.seal(files, work)
            except PacksDiffer as error:
                logger.info("packs_differ", partition=str(self._tp), error=str(error))
                self._check_packs(known, base)
                if cleanup.may_compact:
                    stored = self._seal_fuller(sealer, work)
                else:  # what differs is of another branch, or damaged
                    stored = replace(sealer, compare_packs=False).seal(files, work)
        if stored is not None:
            if self.last_doubt is not doubt:
                self.suspect()
            self._remote.add(stored, lineage)
        return stored

    def _settled_head(self, cleanup: Cleanup) -> int | None:
        """The version of this broker's head, if it may name batches of a compacted log; otherwise None.

        Raises SegmentChanged while a PUT of the head may still take effect: its outcome was unknown, or its process was
        killed. Readers would then land records that compaction has removed here.
        """
        if not cleanup.may_compact or self._context.broker not in self._tail_brokers:
            return None
        version = self._context.settled_head(self._context.bucket_of(self._tp))
        if version is None:
            raise SegmentChanged(f"{self._folder}: this broker's head is to be put again before the log is sealed")
        return version

    def _unread_brokers(self, tail: Tail, cleanup: Cleanup) -> frozenset[int]:
        """The brokers with heads that may name ranges that ``tail`` does not know.

        For a compacted log, all heads are read again: a deposed leader, or a late PUT of this broker's head, may since
        have named batches that compaction has removed here.
        """
        return self._tail_brokers if tail.joined is None or cleanup.may_compact else frozenset()

    def _packed_entries(self) -> list[HeadEntry]:
        """The entries in the heads of all brokers that may have packed offsets of this log.

        These are the brokers that ``offset.wm`` lists, and all replicas: a leader of another branch may have dropped
        tails from ``offset.wm`` to which this log has returned.
        """
        return self._sources.entries(self.route, {self._context.broker, *self._local.log.replicas, *self._tail_brokers})

    def _seal_fuller(self, sealer: SegmentSealer, work: SealRun) -> StoredManifest | None:
        """Seal ``work`` with its records that only packs still have."""
        lineage, entries = self._known_lineage(self.lineage()), self._packed_entries()
        ranges = self._sources.ranges(self.route, entries, lineage, work.base_offset)
        return seal_fuller(sealer, work, entries, ranges, lineage)

    def _known_lineage(self, lineage: Lineage) -> Lineage:
        """``lineage``, extended below its first start with the lineage in ``offset.wm``."""
        written = self._remote.log.watermark
        return lineage.with_history(written.history) if written else lineage

    def _seal_packed(
        self, entries: Sequence[HeadEntry], start: int, end: int, lineage: Lineage
    ) -> StoredManifest | None:
        """Seal the packs of ``entries`` in ``[start, end)``; None if they have nothing at ``start``."""
        lineage = self._known_lineage(lineage)
        ranges = self._sources.ranges(self.route, entries, lineage, start)
        if not ranges:
            return None
        local = self._local.log
        offsets = local.offsets or Offsets(end)
        return seal_packed(self.route, entries, ranges, lineage, start, end, offsets, local.cleanup, self._remote.log)

    def _seal_lost(self, entries: Sequence[HeadEntry], lineage: Lineage) -> None:
        """Seal offsets from packs that neither disk nor store has, before they are recorded as a gap."""
        for hole in self.holes():
            try:
                while (left := self.holes() & Intervals([hole])) and (
                    stored := self._seal_packed(entries, left.parts[0].start, left.parts[0].end, lineage)
                ):
                    self._remote.add(stored, lineage)
            except SegmentChanged as error:
                logger.warning("packs_not_sealed", partition=str(self._tp), error=str(error))

    def _judge_run(self, scanned: ScannedSegment, lineage: Lineage) -> Lineage:
        """Return ``lineage``, or raise SegmentChanged if undamaged batches are of a later leader.

        A leader's own log is right, and its damaged bytes are kept. But a broker that was deposed without knowing may
        have truncated its log, and fetched batches that the next leader has not committed yet, while its last answered
        high watermark is from before. If it is the leader after all, the cluster's metadata were restored.
        """
        latest = max((epoch for epoch, _ in scanned.summary.epochs), default=0)
        if latest > self._led.leader_epoch and scanned.damage is None:
            with self._files() as files:
                self._part(self._later_batches(self._remote.log.end, files))
            rule = f"has batches of leader epoch {latest}, and this broker leads under {self._led.leader_epoch}"
            raise SegmentChanged(f"{self._folder}: {rule}: the next leader seals them")
        return lineage

    def _search_store(self, lineage: Lineage) -> None:
        """Search the store for data of holes, if a search is due."""
        if not self._may_record_gaps or not self._search.is_due(self.holes()):
            return
        local = self._local.log
        wanted = SearchInput(
            route=self.route,
            holes=self.holes,
            local_start=local.disk_start or 0,
            lineage=lineage,
            offsets=local.offsets or Offsets(self._remote.log.end),
            cleanup=local.cleanup,
        )
        entries = self._packed_entries()  # before the search: an entry is removed when its tail is sealed
        self._search.run(wanted, self._remote)
        self._seal_lost(entries, lineage)

    def _lost(self, log: StoredLog) -> Intervals:
        """The offsets that ``log``, the disk and the hold lack for good. For others, the source begins again."""
        lost, awaited = jobs.missing(self._local.log, log, self._context.source)
        if awaited:
            self.begin_again()
        return lost

    def begin_again(self) -> None:
        """Have the source fetch what the directory lacks, and the store read again, which may have it by then."""
        self._context.source.begin_again(self._tp, self._led.topic_id)
        self._in_doubt = True

    def _write_watermark(self) -> None:
        partition = self.where
        # The epochs come first. All below is worked out from this lineage, and a log that follows a later leader by now
        # must not be stated under this epoch.
        lineage, attempts = self.lineage(), 0
        self._check_begun(lineage)
        if self._in_doubt:
            self._in_doubt = False
            self._reload(partition, lineage)
        self._begin_in_tier()
        self._search_store(lineage)  # a gap stops readers, so what lies in the store or in packs is found before
        while True:
            # In each round anew: other workers add segments, and after a conflict another agent has written.
            log = self._remote.log
            before = log.stored
            previous = watermark.truncate(before.watermark, lineage, self._led.leader_epoch) if before else None
            new = self._new_watermark(log, lineage, previous)
            if self.suspected:  # meanwhile another worker has adopted a segment, which counts already
                raise SegmentChanged(f"{self._folder}: its log is to be compared with the stored one")
            if before and not watermark.says_more(new, before.watermark):
                # The source hears of it although nothing is written: it may be that of a new process.
                self._context.source.stored(self._tp, self._led.topic_id, new.accounted_end)
                return
            if before and before.watermark.origin != new.origin and self._local.log.cleanup.may_compact:
                self._context.other_origin.check(self._tp, self._led.topic_id)
            # Line 1 stays while no segment in memory begins below the next offset, but never above that: the next
            # leader lists segments from line 1 on, and would miss those that are sealed after a cut below it.
            known = before.base_offset if before else new.start_offset
            lowest = known if known < new.next_offset else new.start_offset
            base = watermark.last_base(log.readable_bases, new.next_offset, lowest)
            try:
                written = watermark.write(partition, base, new, log.foreign or before)
            except PreconditionFailed:  # by a later leader, who fences this one, or by a late write of a former one
                self._reload(partition, lineage)
                attempts += 1
                if attempts == _ATTEMPTS:
                    raise  # the store reports conflicts without a change: leave it to the back-off
                continue
            if before and new.next_offset < (end := before.watermark.next_offset):
                self._context.metrics.truncated.inc()
                cut = {"next_offset": new.next_offset, "was": end, "leader_epoch": new.leader_epoch}
                logger.warning("log_truncated", partition=str(self._tp), **cut)
            self._remote.watermark_stored(written)
            # The source and the hold drop files that they are told of here, so they hear of them last. If the process
            # ends before, they keep the files, and hear of them after the next start.
            self._context.source.stored(self._tp, self._led.topic_id, new.accounted_end)
            self._tail_wanted = self._tail_wanted and self._own_pair not in new.tails
            named = Intervals.of((*new.gaps, *new.acknowledged_gaps))
            self._context.hold.recorded(self._tp, self._led.topic_id, named)
            return

    def _begin_in_tier(self) -> None:
        """Have a new partition begin where its log does, if Kafka's own remote tier has that part."""
        log, offsets = self._remote.log, self._local.log.offsets
        if log.stored is None and self._context.begins_in_tier() and offsets is not None and offsets.tier is not None:
            start = offsets.log_start_offset
            assert start is not None, "a broker that states its local start has stated the log's"
            self._remote.begin_at(min(log.start, start))

    def _check_begun(self, lineage: Lineage, *, has_epochs: bool = False) -> None:
        """Raise SegmentChanged if the log has not begun this leader epoch, and Fenced if it follows a later leader.

        Metadata may name the epoch earlier, and this agent may learn of the next one late. Then a survey counts
        offsets, and a claim continues a branch, that this leadership does not have. Logs of message formats before v2
        have no epochs (``LeaderEpochFileCache``): neither has the store then. With ``has_epochs`` it has.
        """
        if not lineage.entries and not has_epochs:
            return
        newest, own = lineage.entries[-1][0] if lineage.entries else None, self._led.leader_epoch
        if newest is not None and newest > own:
            raise Fenced(f"{self._folder}: its log follows the leader of epoch {newest}, and this agent's is {own}")
        if newest != own:
            raise SegmentChanged(f"{self._folder}: the newest leader epoch of its log is {newest}, and not {own}")

    def _new_watermark(self, log: StoredLog, lineage: Lineage, previous: Watermark | None) -> Watermark:
        """``offset.wm`` as ``log`` needs it, after ``previous``: the log's own, up to where ``lineage`` leaves it."""
        present, damaged = log.present, log.damaged
        passed = previous.acknowledged_gaps if previous else ()
        known = (*(previous.gaps if previous else log.gaps_found), *passed)
        # An acknowledged gap stays until the store has its offsets: if the disk has them, they may never be uploaded.
        missing = self._lost(log) | (Intervals.of(passed) - present)
        if not self._may_record_gaps:
            missing, damaged = missing & Intervals.of(known), damaged & Intervals.of(known)
            self._unwritten = True  # the claim comes first
        now = self._context.runtime.utc_now()
        evidence = self._evidence(log.watermark, previous)
        all_gaps = find_gaps(missing, damaged - present, evidence, known, now)
        holding, passed = split_acknowledged(all_gaps, Intervals.of(passed) | self._search.acknowledged)
        self._remote.set_gaps(holding)
        below = evidence.below(log.start)
        if below is None:  # what was last known
            below = Intervals(log.watermark.remote_tier if log.watermark else ())
        return watermark.compute(
            previous,
            topic_id=self._led.topic_id,
            leader_epoch=self._led.leader_epoch,
            broker=self._context.broker,
            start=log.start,
            present=present,
            lineage=log.history(lineage),
            gaps=holding,
            acknowledged_gaps=passed,
            foreign_epochs=(log.foreign.leader_epoch,) if log.foreign else (),
            may_pack=self._local.log.lists_tail or self._tail_wanted,
            origin=self._context.source.origin,
            remote_tier=below,
        )

    def _evidence(self, before: Watermark | None, previous: Watermark | None) -> Evidence:
        local, cut = self._local.log, Intervals()
        if before and previous:
            cut = Intervals([(previous.next_offset, before.next_offset)])
        return Evidence(
            evicted=self._context.hold.evicted(self._tp, self._led.topic_id),
            cut=cut,
            log_start=local.offsets.log_start_offset if local.offsets else None,
            disk_start=local.observed_start,
            tier=local.offsets.tier if local.offsets else None,
        )
