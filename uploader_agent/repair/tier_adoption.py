"""Takes over what Kafka's own tiered storage (KIP-405) has stored, without a broker: segments become Tidemark's.

The copies of a topic are read from the remote tier alone. Those of the newest history are taken in the order of
offsets: each is read once and checked batch by batch. If its ``.log`` is the plain log, a manifest refers to it where
it lies; otherwise the log is decoded and stored. The manifest is the last of a segment's objects. A copy that is
damaged, incomplete or encrypted under an unknown key is told by the key of its object. If another copy has its offsets,
that one is taken; otherwise they become a gap, and the rest goes on.

``offset.wm`` is written after a partition's manifests, and the watermark index after all partitions. A killed run can
be started again and continues where it stopped. Nothing in the remote tier is ever written or deleted. docs/tiered.md
has the design.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import IO, Final

from tidemark.concurrency import THREADS, in_parallel
from tidemark.errors import FormatError, NotFound
from tidemark.formats.keys import SegmentName, TopicPartition
from tidemark.formats.raw.gaps import REMOTE_TIER, Gap, GapReason
from tidemark.formats.raw.manifest import ObjectSum, ReferredLog, SegmentManifest
from tidemark.formats.raw.watermark import Watermark
from tidemark.formats.raw.watermark_index import IndexEntry, WatermarkIndex
from tidemark.intervals import Interval, Intervals
from tidemark.kafka_log import Lineage, OpenTransaction, open_transactions, parse_producer_snapshot
from tidemark.kafka_tier.copies import (
    ListedCopy,
    ProvedCopy,
    SegmentCopy,
    TierStore,
    belongs,
    continued,
    list_copies,
    newness,
    prove,
)
from tidemark.kafka_tier.encryption import KeyNotGiven
from tidemark.raw.objects import StoredManifest, read_manifest
from tidemark.storage import OtherWatermark, PartitionStore, StoredWatermark
from uploader_agent import __version__
from uploader_agent.broker.admin import Cleanup, Offsets
from uploader_agent.disk.segment_files import Bytes, checksum, opened
from uploader_agent.repair.reupload import Outcome, RepairRow
from uploader_agent.runtime import utc_now
from uploader_agent.stored import stored_log, watermark
from uploader_agent.stored.incarnations import Incarnations
from uploader_agent.stored.objects import Summed, create, put_derived, write_manifest
from uploader_agent.upload.segment_upload import UploadRoute

_NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The index entry's time of observation: nobody has asked a broker, so no date may become final by it."""

_COMPACTED: Final = Cleanup("compact,delete")
_DELETED: Final = Cleanup("delete")


class TierAdoption:
    """The remote tier's copies of one topic, and the prefix that takes them over."""

    def __init__(
        self, incarnations: Incarnations, tier: TierStore, topic: str, broker: int, *, copy: bool = False
    ) -> None:
        """List the topic's copies, and choose its life; nothing is written. ``broker`` names the watermark index.

        With ``copy`` no manifest refers to the remote tier: each log is copied.

        Raises:
            FormatError: the tier has no copy of the topic, or none of the life that is the newest one in the store.
            StoreError: a store failed.
        """
        self._incarnations, self._tier, self._broker, self._copy = incarnations, tier, broker, copy
        self._topic = topic
        self._copies, self._strangers = list_copies(tier, topic)
        if not self._copies:
            rule = (
                "has no copy of a segment: check the topic's name, and --key-prefix, which is the plugin's key.prefix"
            )
            raise FormatError(f"{tier.store.url}/{tier.prefix}{topic}-…", rule)
        self._topic_id = self._life(self._copies)
        self._entries: list[IndexEntry] = []

    def _life(self, copies: Sequence[ListedCopy]) -> str:
        """The id of the topic's newest life: by Tidemark's list if there is one, else by the times of the copies."""
        lives = {copy.name.topic_id for copy in copies}
        cluster = self._incarnations.storage.cluster_store()
        known = cluster.incarnations(self._topic).incarnations
        if known and known[-1].topic_id not in lives:
            rule = (
                f"names {known[-1].topic_id} as the topic's newest life, and the remote tier has only {sorted(lives)}"
            )
            raise FormatError(cluster.keys.incarnations(self._topic), f"{rule}: there is nothing to adopt")
        if known:
            return str(known[-1].topic_id)
        return max(lives, key=self._last_copied) if len(lives) > 1 else lives.pop()

    def _last_copied(self, topic_id: str) -> int:
        """The time at which the newest readable copies of a life were made; -1 if there are none."""
        own = [copy for copy in self._copies if copy.name.topic_id == topic_id and not copy.missing]
        times = [-1]
        for _, copies in groupby(own, key=lambda copy: copy.name.partition):
            for copy in reversed([*copies]):
                try:
                    times.append(SegmentCopy.open(self._tier, copy).manifest.about.event_timestamp_ms)
                    break
                except (FormatError, NotFound):
                    continue
        return max(times)

    def run(self, partitions: Collection[int] = (), *, dry_run: bool = False) -> Iterator[RepairRow]:
        """Adopt the ``partitions``, or all, eight at a time; the watermark index comes last.

        The rows of a partition come once it is done. What is wrong with one as a whole is told in a row, and does not
        stop the others.

        Raises:
            FormatError: the tier has no copy of one of the ``partitions``.
            StoreError: a store failed; what is done stays, and the next run continues.
        """
        for topic_id, copies in groupby(self._copies, key=lambda copy: copy.name.topic_id):
            if topic_id != self._topic_id:
                detail = (
                    f"another life of the topic, with the id {topic_id}, of which the tier has {len([*copies])} copies"
                )
                yield RepairRow(self._topic, None, None, 0, "passed over", detail)
        for key in self._strangers:
            yield RepairRow(self._topic, None, None, 0, "passed over", f"{key}: is no object of a copy")
        own = [copy for copy in self._copies if copy.name.topic_id == self._topic_id]
        groups = {number: [*listed] for number, listed in groupby(own, key=lambda copy: copy.name.partition)}
        if lacking := sorted({*partitions} - groups.keys()):
            rule = f"has no copy of partition {lacking[0]}, but of {sorted(groups)}"
            raise FormatError(f"{self._tier.store.url}/{self._tier.prefix}{self._topic}-{self._topic_id}", rule)
        wanted = [number for number in groups if not partitions or number in partitions]
        with ThreadPoolExecutor(THREADS) as pool:
            for rows in pool.map(lambda number: self._partition(number, groups[number], dry_run=dry_run), wanted):
                yield from rows
        if self._entries:
            self._write_index()

    def _partition(self, number: int, listed: list[ListedCopy], *, dry_run: bool) -> list[RepairRow]:
        """Adopt one partition."""
        tp = TopicPartition(self._topic, number)
        rows: list[RepairRow] = []
        try:
            incarnation, partition = self._incarnations.resolve(tp, self._topic_id)
            adoption = _Partition(self._tier, partition, tp, self._topic_id, listed, copies=self._copy)
            rows.extend(adoption.run(dry_run=dry_run))
        except FormatError as error:
            return [*rows, RepairRow(str(tp), None, None, 0, "left", str(error))]
        if adoption.watermark is not None:
            self._entries.append(_entry(tp, self._topic_id, incarnation, adoption.watermark))
        return rows

    def _write_index(self) -> None:
        """Name the partitions in the watermark index of this broker, unless an agent has written one.

        Planners learn from indexes which partitions there are. The agent replaces the whole object with its own.
        """
        cluster = self._incarnations.storage.cluster_store()
        key = cluster.keys.index(self._broker)
        found = WatermarkIndex.load_version_or_none(cluster.store, key)
        if found is not None and found.value.endpoints is not None:
            return
        entries = {(one.topic, one.partition): one for one in (found.value.entries if found else ())}
        entries |= {(one.topic, one.partition): one for one in self._entries}
        index = WatermarkIndex(
            cluster=cluster.keys.cluster,
            broker=self._broker,
            agent_version=__version__,
            written_at=utc_now(),
            entries=tuple(entries.values()),
        )
        etag = found.etag if found is not None else None
        cluster.store.put(key, index.to_bytes(), if_match=etag, if_none_match=etag is None)


def _entry(tp: TopicPartition, topic_id: str, incarnation: int, stored: Watermark) -> IndexEntry:
    end = max([stored.next_offset, *(end for _, end in stored.ranges_above)])
    return IndexEntry(
        topic=tp.topic,
        partition=tp.partition,
        topic_id=topic_id,
        incarnation=incarnation,
        restored=len(stored.restores),
        leader_epoch=stored.leader_epoch,
        next_offset=stored.next_offset,
        uploaded_end=end,
        log_end_offset=stored.next_offset,
        high_watermark=stored.next_offset,
        observed_at=_NEVER,
        gaps=stored.gaps,
        remote_tier=stored.remote_tier,
    )


@dataclass
class _Failed:
    """A copy that cannot be taken, with the reason for which its offsets are missing unless another copy has them."""

    start: int
    end: int | None
    reason: GapReason
    detail: str


@dataclass
class _Partition:
    """One partition's adoption, copy by copy. ``watermark`` is the one that is stored; None without any."""

    tier: TierStore
    partition: PartitionStore
    tp: TopicPartition
    topic_id: str
    listed: list[ListedCopy]
    copies: bool
    watermark: Watermark | None = None
    _failed: list[_Failed] = field(default_factory=list)
    _stored: list[StoredManifest] = field(default_factory=list)

    def run(self, *, dry_run: bool) -> Iterator[RepairRow]:
        """Adopt the copies in the order of offsets, and ``offset.wm`` at the end.

        Raises:
            FormatError: another uploader or another history is there already, or an object of ours does not parse.
            StoreError: a store failed.
        """
        before = self._before()
        copies: list[SegmentCopy] = []
        for copy in in_parallel(self._opened, self.listed):
            if isinstance(copy, SegmentCopy):
                copies.append(copy)
            else:
                yield copy
        history = self._history(copies)
        own: list[SegmentCopy] = []
        for copy in copies:
            if belongs(copy.manifest.about, history):
                own.append(copy)
            else:
                yield self._row(copy, "passed over", f"is of another history than {history.entries}")
        self._check_history(history, own, before)
        covered = Intervals() if before is None else _covered(before.watermark)
        self.watermark = None if before is None else before.watermark
        yield from self._take(own, history, covered, before, dry_run=dry_run)
        if self._stored and not dry_run:
            self._write_watermark(history, covered, before)

    def _before(self) -> StoredWatermark | None:
        found = self.partition.watermark()
        if isinstance(found, OtherWatermark):
            rule = "was written by another uploader: take its prefix over first, without --kafka-tier"
            raise FormatError(self.partition.keys.watermark, rule)
        if found is not None and found.watermark.topic_id != self.topic_id:
            rule = f"is of the topic id {found.watermark.topic_id}, and the remote tier's is {self.topic_id}"
            raise FormatError(self.partition.keys.watermark, rule)
        return found

    def _opened(self, listed: ListedCopy) -> SegmentCopy | RepairRow:
        name, key = listed.name, listed.name.key(self.tier.prefix, "rsm-manifest")
        size = sum(info.size for info in listed.objects.values())
        if "rsm-manifest" not in listed.objects:
            detail = f"{key}: is missing: the copy was not finished, or is being deleted"
            return RepairRow(str(self.tp), name.base, None, size, "passed over", detail)
        try:
            return SegmentCopy.open(self.tier, listed)
        except NotFound as error:
            return RepairRow(str(self.tp), name.base, None, size, "passed over", str(error))
        except FormatError as error:
            self._failed.append(_Failed(name.base, None, "corrupt", str(error)))
            return RepairRow(str(self.tp), name.base, None, size, "left", str(error))

    def _history(self, copies: Iterable[SegmentCopy]) -> Lineage:
        """The newest history, by the index of the newest copy; of copies with a damaged one only by their epochs."""
        unread: list[SegmentCopy] = []
        for copy in sorted(copies, key=lambda copy: newness(copy.manifest.about), reverse=True):
            try:
                history = copy.indexes().history
            except FormatError:  # told where the copy is taken
                unread.append(copy)
            else:
                return continued(history, (one.manifest.about for one in unread))
        return continued(Lineage(), (one.manifest.about for one in unread))

    def _check_history(self, history: Lineage, own: list[SegmentCopy], before: StoredWatermark | None) -> None:
        if before is None or not own:
            return
        stored, tier_end = before.watermark, max(copy.manifest.about.next_offset for copy in own)
        at = stored.history.divergence(history, min(stored.next_offset, tier_end))
        if at is not None:
            rule = (
                f"has a history that the remote tier's leaves at offset {at}: the leader's agent has to follow it first"
            )
            raise FormatError(self.partition.keys.watermark, rule)

    # -- copy by copy -------------------------------------------------------------------------------------------------

    def _take(
        self,
        own: list[SegmentCopy],
        history: Lineage,
        covered: Intervals,
        before: StoredWatermark | None,
        *,
        dry_run: bool,
    ) -> Iterator[RepairRow]:
        present = {entry.name for entry in stored_log.list_segments(self.partition, 0)[0]}
        waiting = sorted(own, key=lambda copy: copy.name.base, reverse=True)
        at = min((copy.name.base for copy in own), default=0) if before is None else before.watermark.start_offset
        near: list[SegmentCopy] = []  # those that begin at or below `at`, and were not tried
        known: tuple[OpenTransaction, ...] | None = None if at else ()
        while waiting or near:
            at, skipped = _after(covered, at)
            known = None if skipped else known
            while waiting and waiting[-1].name.base <= at:
                near.append(waiting.pop())
            for passed in [copy for copy in near if copy.manifest.about.next_offset <= at]:
                near.remove(passed)
                yield self._row(passed, "passed over", "its offsets are stored, or lie below the partition's start")
            if not near:
                if waiting:
                    at, known = max(at, waiting[-1].name.base), None
                continue
            copy = max(near, key=_preference)
            near.remove(copy)
            opened_at = self._open_at(own, copy.name.base, known if copy.name.base == at else None)
            row, opened_after = self._adopt(copy, history, opened_at, present, dry_run=dry_run)
            yield row
            if row.outcome != "left":
                at, known = copy.manifest.about.next_offset, opened_after

    def _open_at(
        self, own: list[SegmentCopy], at: int, known: tuple[OpenTransaction, ...] | None
    ) -> tuple[OpenTransaction, ...] | None:
        """The transactions open at ``at``: ``known`` ones, or those in the snapshot of a copy that ends there."""
        if known is not None:
            return known
        for copy in own:
            if copy.manifest.about.next_offset == at:
                try:
                    key = copy.key("indexes")
                    return open_transactions(parse_producer_snapshot(copy.indexes().producers, key))
                except FormatError:  # told where that copy was taken
                    continue
        return None

    def _adopt(
        self,
        copy: SegmentCopy,
        history: Lineage,
        open_before: tuple[OpenTransaction, ...] | None,
        present: Collection[SegmentName],
        *,
        dry_run: bool,
    ) -> tuple[RepairRow, tuple[OpenTransaction, ...] | None]:
        """Store one copy. Returns its row, and the transactions open at its end if they are known."""
        plain = SegmentName(copy.name.base)
        branch = SegmentName.of_branch(plain.base, copy.manifest.about.epochs[0][0])
        for name in (plain, branch):
            stored = read_manifest(self.partition, name) if name in present else None
            if stored is not None and self._is_of(stored.manifest, copy):
                self._stored.append(stored)
                return self._row(copy, "as it was"), stored.manifest.open_transactions
        refers = copy.manifest.is_plain and not self.copies
        if dry_run:
            return self._row(copy, "would refer" if refers else "would adopt"), None
        # No agent creates a log under a name that refers elsewhere: it tries the plain name first.
        name = branch if refers or plain in present else plain
        try:
            if refers:
                proved = prove(copy, history, open_before)
                written = self._refer(copy, name, proved)
            else:
                with tempfile.TemporaryFile() as file:
                    proved = prove(copy, history, open_before, file.write)
                    written = self._write(copy, name, proved, file)
        except FormatError as error:
            about = copy.manifest.about
            reason = REMOTE_TIER if isinstance(error, KeyNotGiven) else "corrupt"
            self._failed.append(_Failed(about.start_offset, about.next_offset, reason, str(error)))
            return self._row(copy, "left", str(error)), None
        self._stored.append(written)
        return self._row(copy, "referred" if refers else "adopted"), proved.open_transactions

    def _is_of(self, manifest: SegmentManifest, copy: SegmentCopy) -> bool:
        """True if the stored segment is that of the copy: an offset and its epoch identify a batch."""
        about, log = copy.manifest.about, manifest.log
        same_place = (manifest.topic_id, manifest.next_offset) == (self.topic_id, about.next_offset)
        same_size = log is not None and log.size == copy.manifest.size
        if manifest.refers is not None:
            here = manifest.refers.store, manifest.refers.key, manifest.refers.etag
            there = self.tier.store.url, copy.key("log"), copy.objects["log"].etag if "log" in copy.objects else None
            same_size &= here == there
        return same_place and same_size and belongs(about, manifest.history)

    def _write(self, copy: SegmentCopy, name: SegmentName, proved: ProvedCopy, file: IO[bytes]) -> StoredManifest:
        """The objects of a segment, its manifest last. Raises FormatError if another object has the name of its log."""
        store, keys = self.partition.store, self.partition.keys
        file.flush()
        log = Summed(opened(name.file("log"), file.fileno()), proved.summary.crc32c)
        created = create(store, keys.segment(name, "log"), log, look_first=True)
        if not isinstance(created, ObjectSum):
            raise FormatError(created.key, "has other bytes than the copy in the remote tier, and no manifest")
        return self._publish(copy, name, proved, {name.file("log"): created})

    def _refer(self, copy: SegmentCopy, name: SegmentName, proved: ProvedCopy) -> StoredManifest:
        """The objects of a segment whose log stays where it lies."""
        refers = ReferredLog(
            store=self.tier.store.url,
            key=copy.key("log"),
            owner="kafka",
            size=proved.summary.size,
            crc32c=f"{proved.summary.crc32c:08x}",
            etag=copy.objects["log"].etag,
        )
        return self._publish(copy, name, proved, {}, refers)

    def _publish(
        self,
        copy: SegmentCopy,
        name: SegmentName,
        proved: ProvedCopy,
        log: dict[str, ObjectSum],
        refers: ReferredLog | None = None,
    ) -> StoredManifest:
        """The indexes of a segment, and then its manifest."""
        about, objects = copy.manifest.about, dict(log)
        for extension, data in proved.files.items():
            content = Bytes(name.file(extension), data)
            key = self.partition.keys.file(content.name)
            objects[content.name] = put_derived(self.partition.store, key, Summed(content, checksum(content)))
        route = UploadRoute(self.tp, self.topic_id, Path(str(self.tp)), self.partition, about.broker_id)
        manifest = route.manifest(
            name,
            proved.summary,
            proved.lineage,
            objects,
            Offsets(about.next_offset, about.next_offset, 0),
            _COMPACTED if proved.has_holes else _DELETED,
            next_offset=about.next_offset,
            rotated_at=datetime.fromtimestamp(about.event_timestamp_ms / 1000, UTC),
        ).model_copy(update={"open_transactions": proved.open_transactions})
        return write_manifest(self.partition, manifest.referring(refers))

    # -- the end ------------------------------------------------------------------------------------------------------

    def _write_watermark(self, history: Lineage, covered: Intervals, before: StoredWatermark | None) -> None:
        """Replace ``offset.wm``, or create it, if it says more than before."""
        previous = before.watermark if before is not None else None
        if previous is not None and max(previous.history.epochs, default=-1) > history.entries[-1][0]:
            history = previous.history.with_history(history)
        for stored in self._stored:
            history = history.with_history(stored.manifest.history)
        spans = Intervals((one.manifest.base_offset, one.manifest.next_offset) for one in self._stored)
        present = covered | spans
        bases = [one.manifest.base_offset for one in self._stored]
        starts = [*bases, *(failed.start for failed in self._failed)]
        start = min(starts) if previous is None else previous.start_offset
        acknowledged = previous.acknowledged_gaps if previous is not None else ()
        brokers = {one.manifest.next_offset: one.manifest.broker for one in self._stored}
        new = watermark.compute(
            previous,
            topic_id=self.topic_id,
            leader_epoch=max(history.entries[-1][0], previous.leader_epoch if previous is not None else 0),
            broker=previous.broker if previous is not None else brokers[max(brokers)],
            start=start,
            present=present.clip(start, 1 << 63),
            lineage=history,
            gaps=self._gaps(start, present, previous),
            acknowledged_gaps=acknowledged,
            origin=previous.origin if previous is not None else "disk",
            remote_tier=Intervals(previous.remote_tier if previous is not None else ()),
        )
        self.watermark = new
        if not watermark.says_more(new, previous):
            return
        bases += [before.base_offset] if before is not None else []
        base = watermark.last_base(bases, new.next_offset, start)
        watermark.put(self.partition, base, new, before.etag if before is not None else None)

    def _gaps(self, start: int, present: Intervals, previous: Watermark | None) -> tuple[Gap, ...]:
        """The offsets that no sound copy has, with the reason of the copy that should have them."""
        ends = [part.end for part in present] + [failed.end for failed in self._failed if failed.end is not None]
        acknowledged = Intervals.of(previous.acknowledged_gaps) if previous is not None else Intervals()
        missing = Intervals(present.missing(start, max([start, *ends]))) - acknowledged
        gaps: list[Gap] = []
        for gap in previous.gaps if previous is not None else ():
            gaps += [gap.model_copy(update=part._asdict()) for part in missing & Intervals.of([gap])]
        missing -= Intervals.of(gaps)
        for failed in self._failed:
            end = failed.end
            for part in missing:  # of a manifest that cannot be read only the start is known
                if end is None and part.start <= failed.start < part.end:
                    end = part.end
            reached = missing & Intervals([(failed.start, max(failed.start, end or 0))])
            gaps += [_gap(part, failed.reason) for part in reached]
            missing -= reached
        gaps += [_gap(part, "unknown") for part in missing]
        return tuple(sorted(gaps, key=lambda gap: gap.start))

    def _row(self, copy: SegmentCopy, outcome: Outcome, detail: str | None = None) -> RepairRow:
        if detail is not None and not detail.startswith(self.tier.prefix + self.tp.topic):
            detail = f"{copy.key('rsm-manifest')}: {detail}"
        about = copy.manifest.about
        return RepairRow(str(self.tp), about.start_offset, about.next_offset, copy.manifest.size, outcome, detail)


def _preference(copy: SegmentCopy) -> tuple[int, int, int]:
    """Of several copies that have an offset, that with the highest value is tried first."""
    about = copy.manifest.about
    return about.next_offset, about.start_offset, about.event_timestamp_ms


def _covered(stored: Watermark) -> Intervals:
    """The offsets that a watermark says are stored."""
    whole = Intervals([(stored.start_offset, stored.next_offset)]) | Intervals(stored.ranges_above)
    return whole - Intervals.of(stored.acknowledged_gaps)


def _after(covered: Intervals, at: int) -> tuple[int, bool]:
    """The first offset from ``at`` on that is not ``covered``, and whether that is another one."""
    end = covered.contiguous_from(at)
    return end, end != at


def _gap(part: Interval, reason: GapReason) -> Gap:
    fields = {"from": part.start, "to": part.end, "reason": reason, "detected_at": utc_now()}
    return Gap.model_validate(fields)
