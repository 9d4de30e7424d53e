"""One segment, end to end: open, scan, send ``.log``, indexes, snapshot, and the manifest last.

Promises: an object is created, found equal, or replaced only where its bytes are a proved prefix of ours or have been
copied aside. What the manifest says was true of the very bytes that were sent. Any failure leaves the segment without
a manifest for these bytes, and a repetition finishes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import structlog

from tidemark.errors import PreconditionFailed, TidemarkError
from tidemark.formats.keys import PartitionKeys, TopicPartition
from tidemark.formats.manifest import ObjectSum, SegmentManifest
from tidemark.kafka_log import Lineage, UnfinishedTransaction
from tidemark.store import ObjectInfo, Store
from uploader_agent.clock import utc_now
from uploader_agent.disk.segment_files import (
    Bytes,
    OpenFile,
    PartitionFiles,
    SegmentChanged,
    SegmentContent,
    SegmentFiles,
    checksum,
    file_name,
)
from uploader_agent.hold import Hold
from uploader_agent.remote import manifests
from uploader_agent.remote.manifests import Facts, Observed, StoredManifest
from uploader_agent.remote.objects import Relation, Summed, create, find, put_derived, relate, replace, summed
from uploader_agent.upload.eligibility import Work
from uploader_agent.upload.implausible_fields import doubt
from uploader_agent.upload.provisional_tail import cut_indexes, cut_log
from uploader_agent.upload.superseded import copy_aside
from uploader_agent.upload.validation import (
    ScannedSegment,
    await_producer_snapshot,
    missing_end,
    policy_of,
    producer_snapshot,
    scan,
    transactions_in,
)

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class UploadRoute:
    """Where a partition's segments come from and where they go."""

    at: TopicPartition
    topic_id: str | None
    folder: Path
    store: Store
    keys: PartitionKeys
    broker: int
    hold: Hold | None = None

    def files(self) -> SegmentFiles:
        """The partition's files, also those that are held alone. Raises SegmentChanged where there are none."""
        if self.hold is None:
            return PartitionFiles(self.folder, self.topic_id)
        return self.hold.files(self.at, self.topic_id, self.folder)


def _accept(_scanned: ScannedSegment, lineage: Lineage) -> Lineage:
    """A leader's own log is right, and what is damaged in it is kept."""
    return lineage


def _silent(_base_offset: int) -> None:
    """Nobody needs to know."""


@dataclass(frozen=True, slots=True)
class Guards:
    """What an upload asks while it runs.

    ``fence`` raises if another leader has taken over. It is not asked any more once a stored ``.log`` was replaced by
    one that begins with it: a manifest that says so takes nothing away, and nobody else may ever come to write it.
    ``pause`` waits some seconds, shorter when the agent stops; ``superseded`` is told of each stored segment that was
    copied aside. ``judge`` raises if the segment must not go, given what its bytes and the log's lineage say, and
    returns the lineage for the manifest. Without ``supersede`` stored bytes that diverge are left, and
    :class:`Diverged` is raised. ``publish`` writes the manifest. ``announce`` is told the base offset of a stored
    ``.log`` that is about to be replaced, and makes sure that it is found again should this agent die before the
    manifest. ``now`` is the time.
    """

    fence: Callable[[], None]
    pause: Callable[[float], object]
    superseded: Callable[[], object]
    judge: Callable[[ScannedSegment, Lineage], Lineage] = _accept
    supersede: bool = True
    publish: Callable[[Store, PartitionKeys, SegmentManifest], StoredManifest] = manifests.write
    announce: Callable[[int], None] = _silent
    now: Callable[[], datetime] = utc_now


class Diverged(TidemarkError):
    """The store has other sound bytes under this base offset; they are left as they are."""


def upload(
    place: UploadRoute,
    work: Work,
    seen: Observed,
    guards: Guards,
    *,
    open_before: Iterable[UnfinishedTransaction] = (),
    known: bool = False,
) -> StoredManifest | None:
    """Bring ``work`` into the store and return the manifest that stands for it there; None if there is nothing yet.

    ``open_before`` are the transactions open at its start where no snapshot tells; ``known`` says that the store
    probably has the ``.log``, so that it is looked at before bytes are sent.

    Raises:
        SegmentChanged: the disk no longer shows what was to be uploaded.
        SegmentError: an active segment is damaged (a rotated one is kept as ``.corrupt``).
        Diverged: the store has other bytes, and ``guards`` forbid to replace them.
        StoreError: the store failed; nothing is lost by doing it all again.
    """
    with place.files() as files:
        return _Upload(place, work, seen, guards, files).run(open_before, known=known)


class _Upload:
    """The steps of :func:`upload`, which share these."""

    def __init__(self, place: UploadRoute, work: Work, seen: Observed, guards: Guards, files: SegmentFiles) -> None:
        self._place = place
        self._work = work
        policy = policy_of(place.folder.parent, place.at, work.base_offset, seen.cleanup_policy)
        self._seen = dataclasses.replace(seen, cleanup_policy=policy)
        self._guards = guards
        self._files = files
        self._path = files.path(self._name("log"))
        self._owed = False  # a manifest, for a stored log that has grown by us

    def run(self, open_before: Iterable[UnfinishedTransaction], *, known: bool) -> StoredManifest | None:
        """All of it."""
        log, final = self._open_log(), not self._work.provisional
        if self._work.provisional and not log.size:
            return None
        rotated_at = self._rotated_at(log) if final else None
        snapshot = None
        if rotated_at is not None:
            snapshot = await_producer_snapshot(
                self._files, self._work.end, rotated_at, self._guards.pause, self._guards.now
            )
        before = producer_snapshot(self._files, self._work.base_offset)
        indexes = self._open_indexes() if final else []  # now: retention may take them while the log is read
        scanned = self._scan(log, transactions_in(before) if before else open_before)
        lineage = self._files.lineage()
        self._check_unchanged(log)
        lineage = self._guards.judge(scanned, lineage)
        sent = self._send_corrupt(log, scanned) if scanned.damage else self._send_log(log, scanned, known=known)
        if isinstance(sent, StoredManifest):
            return sent
        objects = dict(self._send_derived(scanned, indexes, snapshot, sent)) | sent
        self._check_unchanged(log)
        facts = Facts(
            base_offset=self._work.base_offset,
            next_offset=self._work.end if final else scanned.summary.next_offset,
            summary=scanned.summary,
            damage=scanned.damage,
            provisional=self._work.provisional,
            lineage=lineage,
            open_transactions=transactions_in(snapshot) if snapshot else scanned.summary.open_transactions,
            rotated_at=rotated_at,
            objects=objects,
        )
        place = self._place
        manifest = manifests.build(place.at, place.keys, place.topic_id, place.broker, facts, self._seen)
        self._fence()
        return self._guards.publish(place.store, place.keys, manifest)

    def _name(self, extension: str) -> str:
        return file_name(self._work.base_offset, extension)

    def _open_log(self) -> OpenFile:
        log = self._files.open(self._name("log"))
        if log is None:
            raise SegmentChanged(f"{self._path}: is gone")
        if self._work.provisional:
            return cut_log(log, self._path, self._work.base_offset, self._work.end)
        # A listing that ran while segments were added may have missed one: only a second look proves the end.
        if self._files.next_base(self._work.base_offset) != self._work.end:
            raise SegmentChanged(f"{self._path}: does not end at {self._work.end} any more")
        return log

    def _rotated_at(self, log: OpenFile) -> datetime:
        """Kafka trims the time index when it rolls a segment (``LogSegment.onBecomeInactiveSegment``)."""
        index = self._files.open(self._name("timeindex"))
        moment = max(log.stat.st_mtime, index.stat.st_mtime if index else 0.0)
        return datetime.fromtimestamp(moment, UTC)

    def _scan(self, log: OpenFile, open_before: Iterable[UnfinishedTransaction]) -> ScannedSegment:
        opened = tuple(open_before)
        scanned = scan(log, self._path, self._work.base_offset, opened)
        if not self._work.provisional:
            scanned = doubt(log, self._path, self._work, opened, self._files.lineage(), scanned)
        if scanned.damage or self._work.provisional:
            return scanned
        damage = missing_end(scanned.summary, self._work.end, self._seen.cleanup_policy)
        return dataclasses.replace(scanned, damage=damage)

    def _check_unchanged(self, log: OpenFile) -> None:
        """Appends may go on behind a provisional tail; nothing else may happen to what was read."""
        if log.has_shrunk() if self._work.provisional else log.has_changed():
            raise SegmentChanged(f"{self._path}: changed while it was read")

    def _send_log(
        self, log: OpenFile, scanned: ScannedSegment, *, known: bool
    ) -> dict[str, ObjectSum] | StoredManifest:
        """Place the ``.log``: its sum, or the stored manifest that makes ours superfluous."""
        store, keys = self._place.store, self._place.keys
        key, ours = keys.file(log.name), Summed(log, scanned.crc32c)
        there = (find(store, key) if known else None) or create(store, key, ours)
        if isinstance(there, ObjectSum):
            return {log.name: there}
        relation = relate(store, there, ours)
        if relation is Relation.SAME:
            return {log.name: summed(ours, there.etag)}
        if relation is Relation.OURS_IS_PREFIX:
            stored = manifests.read(store, keys, self._work.base_offset)
            if stored is not None and _etag(stored, log.name) == there.etag:
                return stored
        if relation is not Relation.STORED_IS_PREFIX:
            self._set_aside(there)
        self._guards.announce(self._work.base_offset)
        sent = replace(store, key, ours, there)
        self._owed = relation is Relation.STORED_IS_PREFIX
        return {log.name: sent}

    def _send_corrupt(self, log: OpenFile, scanned: ScannedSegment) -> dict[str, ObjectSum] | StoredManifest:
        """Keep all bytes of a damaged segment, unless the store has a sound copy already."""
        store, keys = self._place.store, self._place.keys
        logger.error("segment_corrupt", file=self._path, **(scanned.damage.model_dump() if scanned.damage else {}))
        stored = manifests.read(store, keys, self._work.base_offset)
        if stored is not None and stored.manifest.state == "whole":
            return stored
        name = self._name("corrupt")
        ours = Summed(log, scanned.crc32c)
        there = create(store, keys.file(name), ours)
        if isinstance(there, ObjectInfo):
            self._set_aside(there)
            there = replace(store, keys.file(name), ours, there)
        return {name: there}

    def _set_aside(self, stored: ObjectInfo) -> None:
        if not self._guards.supersede:
            raise Diverged(f"{stored.key}: holds other bytes than {self._path}, and only their leader may replace them")
        self._guards.fence()
        place, base = self._place, self._work.base_offset
        copies = copy_aside(place.store, place.keys, base, stored, self._seen.leader_epoch)
        self._guards.superseded()
        logger.warning("segment_superseded", file=self._path, stored=stored.key, copies=copies)

    def _open_indexes(self) -> list[OpenFile]:
        files = [self._files.open(self._name(extension)) for extension in ("index", "timeindex", "txnindex")]
        return [file for file in files if file is not None and (file.size or not file.name.endswith(".txnindex"))]

    def _send_derived(
        self, scanned: ScannedSegment, indexes: Sequence[OpenFile], snapshot: Bytes | None, sent: dict[str, ObjectSum]
    ) -> Iterator[tuple[str, ObjectSum]]:
        """Send what follows from the ``.log`` that was ``sent``; nothing beside a corrupt one."""
        if scanned.damage:
            return
        contents: Iterable[SegmentContent] = [*indexes, snapshot] if snapshot else indexes
        if self._work.provisional:
            contents = cut_indexes(self._files, self._work.base_offset, scanned.summary)
        for content in contents:
            ours = Summed(content, checksum(content))
            key = self._place.keys.file(content.name)
            yield content.name, put_derived(self._place.store, key, ours, partial(self._check_ours, sent))

    def _fence(self) -> None:
        if not self._owed:
            self._guards.fence()

    def _check_ours(self, sent: dict[str, ObjectSum]) -> None:
        """Raise unless the ``.log`` is still what was ``sent``: what follows from another one is not ours to replace.

        Everybody places the ``.log`` before what follows from it, so that of two with different bytes one stops here,
        or finds that what it is about to replace has changed.
        """
        self._fence()
        log = self._name("log")
        stored = find(self._place.store, self._place.keys.file(log))
        if stored is None or stored.etag != sent[log].etag:
            raise PreconditionFailed(self._place.keys.file(log), "was replaced by another agent meanwhile")


def _etag(stored: StoredManifest, name: str) -> str | None:
    found = stored.manifest.objects.get(name)
    return found.etag if found else None
