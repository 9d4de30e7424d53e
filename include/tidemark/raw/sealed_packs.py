"""The seals of a partition around ranges of packs, and the batches of the ranges that these seals lack.

A seal *claims* a packed batch if it has the batch's offsets, on its own branch of the log. It may claim a batch and not
hold it: compaction had removed records from the log that was sealed. An offset and an epoch identify one batch, and
compaction only takes records out of it, so headers show which copy has more. That does not hold if brokers were
restored from a backup: then a pack may have batches of another history than the seal.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidemark.errors import FormatError, NotFound, PreconditionFailed
from tidemark.formats.keys import MANIFEST_EXTENSION, SegmentName
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.formats.raw.pack import PackedRange, Range
from tidemark.kafka_log import BatchHeader, Lineage
from tidemark.kafka_log.batch import is_same, overlapping
from tidemark.kafka_log.scan import scan_batches
from tidemark.raw import objects
from tidemark.raw.objects import LOOK_BACK, pieces
from tidemark.raw.packs import read_range_bytes
from tidemark.storage import PartitionStore
from tidemark.store import ObjectInfo

_NEAREST: Final = 64
"""Most seals at and below a range that are searched for its part: on a single lineage it is in the first of them."""


class Lacking(NamedTuple):
    """Number of ``batches`` in ``[start, end)`` that the seal ``name`` claims, ``packs`` have, and no seal holds.

    With ``other`` the seal has other batches at their offsets: it is of another history. ``compacted`` is true if
    compaction may have removed them.
    """

    name: SegmentName
    batches: int
    start: int
    end: int
    packs: tuple[str, ...]
    other: bool = False
    compacted: bool = True


class BatchId(NamedTuple):
    """The identity of a batch. ``restores`` are those of its log up to its offset."""

    base_offset: int
    leader_epoch: int
    restores: tuple[int, ...] = ()


class _Wanted(NamedTuple):
    """A batch with the most records of any pack, the packs that have it, and whether compaction may take some."""

    header: BatchHeader
    packs: frozenset[str]
    compacted: bool

    @property
    def next_offset(self) -> int:
        """The end of the batch."""
        return self.header.next_offset


@dataclass
class SealsAround:
    """The seals of one partition that may hold some ranges. Each manifest is read once.

    ``lineage`` is the partition's newest, as far as it is known: a manifest's lineage may begin above its segment.
    """

    partition: PartitionStore
    lineage: Lineage = field(default_factory=Lineage)
    listed: dict[SegmentName, tuple[ObjectInfo, ObjectInfo]] = field(default_factory=dict)
    names: list[SegmentName] = field(default_factory=list)
    _manifests: dict[SegmentName, SegmentManifest | None] = field(default_factory=dict)

    def look(self, first: int, end: int) -> None:
        """List the seals that may hold some of the offsets ``[first, end)``. Raises StoreError."""
        for distance in LOOK_BACK:
            start = max(0, first - distance)
            by_name: dict[SegmentName, dict[str, ObjectInfo]] = {}
            for entry in self.partition.objects(start, end):
                by_name.setdefault(entry.name, {})[entry.extension] = entry.info
            self.listed = {
                name: (infos[MANIFEST_EXTENSION], infos["log"])
                for name, infos in by_name.items()
                if {MANIFEST_EXTENSION, "log"} <= infos.keys()
            }
            self.names = sorted(self.listed)
            if start == 0 or any(name.base <= first for name in self.names):
                break

    def manifest(self, name: SegmentName) -> SegmentManifest | None:
        """The manifest of a listed seal; None if the seal is damaged, gone, or has another log than its manifest.

        Raises:
            FormatError: it does not parse.
            StoreError: the store failed.
        """
        if name not in self._manifests:
            stored = objects.read_manifest(self.partition, name)
            whole = stored.manifest if stored is not None and stored.manifest.state == "whole" else None
            log = whole.objects.get(whole.log_name) if whole is not None else None
            self._manifests[name] = whole if log is not None and log.etag == self.listed[name][1].etag else None
        return self._manifests[name]

    def compacted(self, name: SegmentName) -> bool:
        """True if the broker's cleaner may have removed records from the seal ``name``, or its policy is unknown."""
        manifest = self._sound(name)
        return manifest is None or manifest.compacted or manifest.cleanup_policy == "unknown"

    def listing(self, range_: Range) -> SegmentName | None:
        """The seal that lists the range, with its very bytes, or None. Raises errors of :meth:`manifest`."""
        part = range_.first, range_.next, range_.crc32c
        below = self.names[: bisect_right(self.names, range_.first, key=lambda name: name.base)]
        for name in below[::-1][:_NEAREST]:
            manifest = self.manifest(name)
            if manifest and part in {(other.first, other.next, other.crc32c) for other in manifest.parts}:
                return name
        return None

    def claiming(self, batch: BatchId, next_offset: int) -> SegmentName | None:
        """The first seal that claims a batch which ends at ``next_offset``, or None."""
        return next((name for name in self.names if self._claims(name, batch, next_offset)), None)

    def lacking(self, ranges: Iterable[PackedRange], on_damage: Callable[[FormatError], None]) -> list[Lacking]:
        """The batches of ``ranges`` that seals claim and lack. A damaged seal neither claims nor holds anything.

        Each seal is read once, and only if it does not list the ranges. ``on_damage`` gets errors of damaged ranges.

        Raises:
            StoreError: the store failed.
        """
        wanted = self._wanted(ranges, on_damage)
        held: set[BatchId] = set()
        others: set[BatchId] = set()
        claims: dict[BatchId, SegmentName] = {}
        for name in self.names:
            claimed = [batch for batch, most in wanted.items() if self._claims(name, batch, most.next_offset)]
            if claimed and (seal := self._held(name, claimed, wanted)) is not None:
                complete, differing = seal
                held |= complete
                others |= differing
                claims = dict.fromkeys(claimed, name) | claims
        parted = {claims[batch] for batch in others & claims.keys()}
        lost = claims.keys() - held
        other = {batch for batch in lost if claims[batch] in parted}
        return [
            *_by_seal(lost - other, claims, wanted, self),
            *_by_seal(other, claims, wanted, self, other=True),
        ]

    def _wanted(
        self, ranges: Iterable[PackedRange], on_damage: Callable[[FormatError], None]
    ) -> dict[BatchId, _Wanted]:
        """The batches of the ranges that some seal overlaps and none lists."""
        wanted: dict[BatchId, _Wanted] = {}
        for packed in ranges:
            if not self._overlaps(packed.range) or self._is_listed(packed.range):
                continue
            try:
                headers = [
                    *scan_batches([read_range_bytes(self.partition.store, packed)], packed.key, packed.range.first)
                ]
            except NotFound:
                continue  # retention has deleted the pack: seals hold its content
            except FormatError as error:
                on_damage(error)
                continue
            for header in headers:
                batch = id_of(header, packed.range.restores)
                before = wanted.get(batch, _Wanted(header, frozenset(), False))
                most = max(before.header, header, key=lambda one: one.record_count)
                compacted = before.compacted or packed.range.compacted
                wanted[batch] = _Wanted(most, before.packs | {packed.key}, compacted)
        return wanted

    def _overlaps(self, range_: Range) -> bool:
        return any(
            (manifest := self._sound(name)) is not None and range_.first < manifest.next_offset
            for name in self.names
            if name.base < range_.next
        )

    def _sound(self, name: SegmentName) -> SegmentManifest | None:
        """The :meth:`manifest`, or None also if it does not parse."""
        try:
            return self.manifest(name)
        except FormatError:
            return None

    def _is_listed(self, range_: Range) -> bool:
        try:
            return self.listing(range_) is not None
        except FormatError:
            return False

    def _claims(self, name: SegmentName, batch: BatchId, next_offset: int) -> bool:
        manifest = self._sound(name) if name.base <= batch.base_offset else None
        return manifest is not None and claims(manifest, self.lineage, batch, next_offset)

    def _held(
        self, name: SegmentName, claimed: Iterable[BatchId], wanted: dict[BatchId, _Wanted]
    ) -> tuple[set[BatchId], set[BatchId]] | None:
        """The batches of ``wanted`` that the seal has with all records, and those at whose offsets it has others.

        None if its log is damaged or was replaced.
        """
        log, manifest = self.listed[name][1], self._sound(name)
        gone, restores = (manifest.gone, manifest.restores) if manifest else ({}, ())
        complete: set[BatchId] = set()

        def note(header: BatchHeader) -> BatchHeader:
            batch = id_of(header, restores)
            most, erased = wanted.get(batch), gone.get(header.base_offset, 0)
            whole = most is not None and header.record_count + erased >= most.header.record_count
            if most is not None and whole and is_same(header, most.header) is not False:
                complete.add(batch)
            return header

        try:
            headers = map(note, scan_batches(pieces(self.partition.store, log), log.key, name.base))
            packed = [wanted[batch].header for batch in sorted(claimed)]
            pairs = [*overlapping(headers, packed, lambda one: one, lambda one: one)]
            for _ in headers:
                pass  # those after the last packed one
        except (FormatError, NotFound, PreconditionFailed):
            return None
        return complete, {id_of(ours, restores) for header, ours in pairs if is_same(header, ours) is False}


def claims(manifest: SegmentManifest, lineage: Lineage, batch: BatchId, next_offset: int) -> bool:
    """True if the segment has the offsets of a batch that ends at ``next_offset``, on the batch's branch of the log.

    ``lineage`` is the partition's newest; it completes the manifest's.
    """
    if not manifest.base_offset <= batch.base_offset < next_offset <= manifest.next_offset:
        return False
    own = manifest.history.with_history(lineage)
    theirs = Lineage(((batch.leader_epoch, batch.base_offset),), batch.restores)
    return own.divergence(theirs, batch.base_offset + 1) is None


def id_of(header: BatchHeader, restores: tuple[int, ...]) -> BatchId:
    """The identity of the batch, in a log with ``restores``."""
    begun = Lineage(restores=restores).restores_below(header.base_offset)
    return BatchId(header.base_offset, header.leader_epoch, begun)


def bounds(ranges: Iterable[Range]) -> tuple[int, int]:
    """The lowest and the highest offset of ``ranges``, which has at least one."""
    spans = [(range_.first, range_.next) for range_ in ranges]
    return min(first for first, _ in spans), max(end for _, end in spans)


def _by_seal(
    lacking: Iterable[BatchId],
    claims: dict[BatchId, SegmentName],
    wanted: dict[BatchId, _Wanted],
    seals: SealsAround,
    *,
    other: bool = False,
) -> list[Lacking]:
    by_seal: dict[SegmentName, list[BatchId]] = {}
    for batch in sorted(lacking):
        by_seal.setdefault(claims[batch], []).append(batch)
    return [
        Lacking(
            name,
            len(batches),
            batches[0].base_offset,
            max(wanted[batch].next_offset for batch in batches),
            tuple(sorted({pack for batch in batches for pack in wanted[batch].packs})),
            other,
            seals.compacted(name) or any(wanted[batch].compacted for batch in batches),
        )
        for name, batches in sorted(by_seal.items())
    ]
