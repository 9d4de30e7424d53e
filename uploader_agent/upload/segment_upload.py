"""Seals one run, end to end: open, scan, send ``.log``, indexes, and the manifest last.

Promises: an object is created, or found equal. A ``.log`` of another branch of the log is copied aside and replaced,
and nothing else is. What the manifest says was true of the very bytes that were sent. Any failure leaves the run
without a manifest for these bytes, and a repetition finishes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import structlog

from tidemark.errors import PreconditionFailed, SegmentError, TidemarkError
from tidemark.formats.keys import ControlKeys, PartitionKeys, TopicPartition
from tidemark.formats.manifest import ObjectSum, SegmentManifest
from tidemark.formats.watermark import Watermark
from tidemark.kafka_log import Lineage, UnfinishedTransaction
from tidemark.raw.stored_bytes import stored_checksum
from tidemark.store import ObjectInfo, Store
from uploader_agent.disk.segment_files import (
    PartitionFiles,
    SegmentChanged,
    SegmentFiles,
    checksum,
    file_name,
)
from uploader_agent.hold import Hold
from uploader_agent.remote import manifests
from uploader_agent.remote.lineage import KnownLineages, OffLineage
from uploader_agent.remote.manifests import Facts, Observed, StoredManifest
from uploader_agent.remote.objects import Summed, create, find, put_derived, replace, same, summed
from uploader_agent.upload.eligibility import Work
from uploader_agent.upload.implausible_fields import doubt
from uploader_agent.upload.local_run import LocalRun, open_before, open_run
from uploader_agent.upload.manifest_rebuild import NotRebuilt, rebuild
from uploader_agent.upload.validation import ScannedSegment, missing_end, policy_of, scan

logger = structlog.get_logger(__name__)

_SUPERSEDED = ("log", "index", "timeindex", "txnindex", "corrupt")
"""The extensions of a segment's objects that are copied before they are replaced."""


@dataclass(frozen=True, slots=True)
class UploadRoute:
    """The source and the destination of a partition's segments."""

    tp: TopicPartition
    topic_id: str | None
    folder: Path
    store: Store
    keys: PartitionKeys
    broker: int
    hold: Hold | None = None

    def files(self) -> SegmentFiles:
        """The partition's files, including those that are only held. Raises SegmentChanged if there are none."""
        if self.hold is None:
            return PartitionFiles(self.folder, self.topic_id)
        return self.hold.files(self.tp, self.topic_id, self.folder)

    def manifest(self, facts: Facts, seen: Observed) -> SegmentManifest:
        """The manifest of one of the partition's segments."""
        return manifests.build(self.tp, self.keys, self.topic_id, self.broker, facts, seen)


@dataclass(frozen=True, slots=True)
class Guards:
    """What an upload asks while it runs.

    ``fence`` raises if another leader has taken over. ``on_superseded`` is called for each stored segment that was
    copied aside. ``judge`` compares the run's bytes with the log's lineage: it raises if the run must not be sealed,
    and otherwise returns the lineage for the manifest. Without ``supersede`` stored bytes that diverge are left, and
    :class:`Diverged` is raised. ``publish`` writes the manifest.
    """

    fence: Callable[[], None]
    on_superseded: Callable[[], object]
    judge: Callable[[ScannedSegment, Lineage], Lineage]
    supersede: bool = True
    publish: Callable[[Store, PartitionKeys, SegmentManifest], StoredManifest] = manifests.write


@dataclass(frozen=True, slots=True)
class StoredBefore:
    """What is known of the store around a run.

    ``watermark`` is that of ``offset.wm``. ``open_transactions`` are those open at the end of the stored segment before
    the run; None if that is not known. ``has_log`` says that the store probably has a ``.log`` under the run's base
    offset, so that it is looked at before bytes are sent.
    """

    watermark: Watermark | None = None
    open_transactions: tuple[UnfinishedTransaction, ...] | None = None
    has_log: bool = False


class Diverged(TidemarkError):
    """The store has other sound bytes under this base offset; they are left as they are."""


def upload(
    route: UploadRoute, work: Work, seen: Observed, guards: Guards, before: StoredBefore
) -> StoredManifest | None:
    """Seal ``work`` and return the stored manifest under its base offset; None if there is nothing yet.

    That manifest may be of a run that ends elsewhere, which another agent has sealed.

    Raises:
        SegmentChanged: the disk no longer shows what was to be sealed, or shows less than the store has.
        SegmentError: an active segment is damaged (a rotated one is kept as ``.corrupt``).
        Diverged: the store has other bytes, and ``guards`` forbid to replace them.
        StoreError: the store failed; it is safe to repeat the whole upload.
    """
    with route.files() as files:
        run = open_run(files, work)
        return _Upload(route, work, seen, guards, before, files, run).run() if run else None


class _Upload:
    """The steps of :func:`upload`, which share these."""

    def __init__(
        self,
        route: UploadRoute,
        work: Work,
        seen: Observed,
        guards: Guards,
        before: StoredBefore,
        files: SegmentFiles,
        run: LocalRun,
    ) -> None:
        self._route = route
        self._work = work
        policy = policy_of(route.folder.parent, route.tp, run.base_offset, seen.cleanup_policy)
        self._seen = dataclasses.replace(seen, cleanup_policy=policy)
        self._guards = guards
        self._before = before
        self._files = files
        self._run = run
        self._base = run.base_offset
        self._path = files.path(run.segment.name)
        self._opened = open_before(files, run, work, before.open_transactions)

    def run(self) -> StoredManifest:
        """Carry out all steps, the manifest last."""
        rotated_at, known = self._rotated_at(), self._files.lineage()
        scanned = scan(self._run.log, self._path, self._base, self._opened)
        lineage = self._files.lineage()
        scanned = self._examine(scanned, lineage)
        self._check_unchanged()
        if self._work.is_tail and lineage != known:
            raise SegmentChanged(f"{self._path}: its leader epochs changed while it was read")
        lineage = self._guards.judge(scanned, lineage)
        sent = self._send_corrupt(scanned) if scanned.damage else self._send_log(scanned, lineage)
        if isinstance(sent, StoredManifest):
            return sent
        objects = dict(self._send_derived(scanned, sent)) | sent
        self._check_unchanged()
        facts = Facts(
            base_offset=self._base,
            next_offset=scanned.summary.next_offset if self._work.is_tail else self._work.end,
            summary=scanned.summary,
            damage=scanned.damage,
            lineage=lineage,
            rotated_at=rotated_at,
            objects=objects,
        )
        return self._publish(facts)

    def _publish(self, facts: Facts) -> StoredManifest:
        route, manifest = self._route, self._route.manifest(facts, self._seen)
        self._guards.fence()
        return self._guards.publish(route.store, route.keys, manifest)

    def _rotated_at(self) -> datetime | None:
        """When the segment was rotated that ends with this run; None if the run does not end it.

        Kafka trims the time index when it rolls a segment (``LogSegment.onBecomeInactiveSegment``).
        """
        if self._work.end != self._work.segment_end:
            return None
        index = self._files.open(file_name(self._work.segment, "timeindex"))
        moment = max(self._run.segment.stat.st_mtime, index.stat.st_mtime if index else 0.0)
        return datetime.fromtimestamp(moment, UTC)

    def _examine(self, scanned: ScannedSegment, lineage: Lineage) -> ScannedSegment:
        """``scanned`` with all damage. Raises SegmentError for that of an active segment."""
        log, work = self._run.log, self._work._replace(base_offset=self._base)
        scanned = doubt(log, self._path, work, self._opened, lineage, scanned)
        if work.is_tail and scanned.damage:
            damage = scanned.damage
            raise SegmentError(self._path, log.start + damage.position, damage.offset, damage.rule)
        if scanned.damage or work.is_tail:
            return scanned
        missing = missing_end(scanned.summary, work.end, self._seen.cleanup_policy)
        return dataclasses.replace(scanned, damage=missing)

    def _check_unchanged(self) -> None:
        """Appends may go on behind the run of an active segment; nothing else may happen to what was read."""
        log = self._run.log
        if log.has_shrunk() if self._work.is_tail else log.has_changed():
            raise SegmentChanged(f"{self._path}: changed while it was read")

    def _send_log(self, scanned: ScannedSegment, lineage: Lineage) -> dict[str, ObjectSum] | StoredManifest:
        """Place the ``.log``: its sum, or the manifest of what is stored there already."""
        store, log = self._route.store, self._run.log
        key, ours = self._route.keys.file(log.name), Summed(log, scanned.crc32c)
        there = (find(store, key) if self._before.has_log else None) or create(store, key, ours)
        if isinstance(there, ObjectInfo) and same(store, there, ours):
            there = summed(ours, there.etag)
        if isinstance(there, ObjectSum):
            return {log.name: there}
        adopted = self._adopt(there, lineage)
        if adopted is not None:
            return adopted
        self._set_aside(there)
        return {log.name: replace(store, key, ours, there)}

    def _adopt(self, log: ObjectInfo, lineage: Lineage) -> StoredManifest | None:
        """The manifest of another agent's run that is stored as ``log``, made if it has none; None off ``lineage``.

        Raises SegmentChanged if the run ends above the high watermark, so that the log may yet come to have it.
        """
        route, base = self._route, self._base
        stored = manifests.read(route.store, route.keys, base)
        if stored is not None and _etag(stored, self._run.log.name) == log.etag:
            diverges = Lineage(stored.manifest.lineage).divergence(lineage, stored.manifest.next_offset)
            return stored if diverges is None or diverges > base else None
        if not self._guards.supersede:
            return None
        lineages = KnownLineages.of(self._before.watermark, lineage)
        fence = self._guards.fence
        try:
            facts = rebuild(route.store, route.keys, base, log, lineages, self._opened, fence)
        except (NotRebuilt, OffLineage) as error:
            logger.warning("stored_segment_not_adopted", partition=str(route.tp), error=str(error))
            return None
        if facts.next_offset > self._seen.offsets.high_watermark:
            if self._seen.log_end is not None and facts.next_offset > self._seen.log_end:
                return None
            rule = f"ends at {facts.next_offset}, and the high watermark is {self._seen.offsets.high_watermark}"
            raise SegmentChanged(f"{log.key}: {rule}: the log must have all of it before its manifest is made")
        logger.info("stored_segment_adopted", partition=str(route.tp), key=log.key, next_offset=facts.next_offset)
        return self._publish(facts)

    def _send_corrupt(self, scanned: ScannedSegment) -> dict[str, ObjectSum] | StoredManifest:
        """Keep all bytes of a damaged run, unless the store has a sound copy already."""
        store, keys = self._route.store, self._route.keys
        logger.error("segment_corrupt", file=self._path, **(scanned.damage.model_dump() if scanned.damage else {}))
        stored = manifests.read(store, keys, self._base)
        if stored is not None and stored.manifest.state == "whole":
            return stored
        name = file_name(self._base, "corrupt")
        ours = Summed(self._run.log, scanned.crc32c)
        there = create(store, keys.file(name), ours)
        if isinstance(there, ObjectInfo):
            self._set_aside(there)
            there = replace(store, keys.file(name), ours, there)
        return {name: there}

    def _set_aside(self, stored: ObjectInfo) -> None:
        if not self._guards.supersede:
            raise Diverged(f"{stored.key}: holds other bytes than {self._path}, and only their leader may replace them")
        self._guards.fence()
        route = self._route
        copies = _copy_aside(route.store, route.keys, self._base, stored, self._seen.leader_epoch)
        self._guards.on_superseded()
        logger.warning("segment_superseded", file=self._path, stored=stored.key, copies=copies)

    def _send_derived(self, scanned: ScannedSegment, sent: dict[str, ObjectSum]) -> Iterator[tuple[str, ObjectSum]]:
        """Send the indexes of the ``.log`` that was ``sent``; none beside a corrupt one."""
        if scanned.damage:
            return
        for content in scanned.indexes.files():
            ours = Summed(content, checksum(content))
            key = self._route.keys.file(content.name)
            yield content.name, put_derived(self._route.store, key, ours, partial(self._check_ours, sent))

    def _check_ours(self, sent: dict[str, ObjectSum]) -> None:
        """Raise unless the ``.log`` is still what was ``sent``: what follows from another one is not ours to replace.

        Everybody places the ``.log`` before what follows from it, so that of two with different bytes one stops here,
        or finds that what it is about to replace has changed.
        """
        self._guards.fence()
        name = self._run.log.name
        stored = find(self._route.store, self._route.keys.file(name))
        if stored is None or stored.etag != sent[name].etag:
            raise PreconditionFailed(self._route.keys.file(name), "was replaced by another agent in the meantime")


def _etag(stored: StoredManifest, name: str) -> str | None:
    found = stored.manifest.objects.get(name)
    return found.etag if found else None


def _copy_aside(store: Store, keys: PartitionKeys, base_offset: int, log: ObjectInfo, epoch: int) -> list[str]:
    """Copy the stored set of ``base_offset``, whose ``.log`` (or ``.corrupt``) is ``log``; return the copies' keys.

    What a diverging segment replaces is kept, so that no uploaded byte is ever destroyed: under
    ``_superseded/<cluster>/<topic>-<p>/<epoch>/<CRC32C of the .log>/``, in the bucket of the data itself, since a topic
    that is kept apart stays apart. The folder named by the checksum keeps two replacements under one epoch from
    meeting, and makes a repetition harmless. The manifest's copy comes last.

    Raises:
        PreconditionFailed: an object is replaced meanwhile.
    """
    control = ControlKeys(keys.endpoint.prefix, keys.cluster)
    folder = control.superseded(keys.place, keys.partition, epoch) + f"{stored_checksum(store, log):08x}/"
    copies: list[str] = []
    for key in [keys.segment(base_offset, extension) for extension in (*_SUPERSEDED, manifests.EXTENSION)]:
        there = find(store, key)
        if there is not None:
            target = folder + key.removeprefix(keys.folder)
            store.copy(key, target, source_etag=there.etag)
            copies.append(target)
    return copies
