"""What the store has of one partition: learnt once from ``offset.wm`` and the manifests above it, then kept up.

Only what lies at or above the watermark's last segment is listed and held, so the memory does not grow with the
age of a topic.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemark.errors import FormatError
from tidemark.formats.keys import PartitionKeys
from tidemark.formats.manifest import SegmentManifest
from tidemark.formats.watermark_index import IndexEntry
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage, UnfinishedTransaction
from tidemark.store import Store
from uploader_agent.disk.segment_files import file_name
from uploader_agent.remote import gaps, listing, manifests, watermark
from uploader_agent.remote.listing import Based
from uploader_agent.remote.manifests import StoredManifest
from uploader_agent.remote.objects import find
from uploader_agent.remote.watermark import IsForeign, StoredWatermark


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """What a manifest says, as far as uploading goes. ``readable_end`` is where damage or another lineage begins.

    ``log_etag`` is that of the ``.log`` that the manifest speaks of; None if it speaks of a ``.corrupt``.
    """

    base_offset: int
    next_offset: int
    readable_end: int
    state: str
    broker: int
    open_transactions: tuple[UnfinishedTransaction, ...]
    log_etag: str | None
    lineage: Lineage

    @classmethod
    def of(cls, manifest: SegmentManifest, lineage: Lineage) -> StoredSegment:
        """``manifest`` as seen from a leader whose log has ``lineage``."""
        end = manifest.damage.offset if manifest.damage else manifest.next_offset
        own = Lineage(manifest.lineage)
        diverged = own.divergence(lineage, end)
        readable = end if diverged is None else max(manifest.base_offset, diverged)
        opened = tuple(UnfinishedTransaction(**one.model_dump()) for one in manifest.open_transactions)
        log = manifest.objects.get(file_name(manifest.base_offset, "log"))
        etag = log.etag if log else None
        return cls(
            manifest.base_offset, manifest.next_offset, readable, manifest.state, manifest.broker, opened, etag, own
        )


@dataclass(slots=True)
class RemoteState:
    """One partition's part of the store.

    ``broker`` is this one, ``logs`` the bases whose ``.log`` was seen there, ``read`` the ETags of the manifests that
    were read, by base.
    """

    broker: int
    stored: StoredWatermark | None = None
    foreign: StoredWatermark | None = None
    """What lies under ``offset.wm`` instead, and is only to be replaced."""
    segments: dict[int, StoredSegment] = field(default_factory=dict)
    logs: set[int] = field(default_factory=set)
    read: dict[int, str] = field(default_factory=dict)
    mismatched: dict[int, Based] = field(default_factory=dict)
    """The ``.log`` objects that are not those of their manifests: an agent died while it replaced them."""
    below: Intervals = field(default_factory=Intervals)
    """What the watermark vouches for, on this leader's lineage; acknowledged gaps are part of it."""
    bytes_per_offset: float | None = None
    """Of the newest segment that was seen in the store."""

    @classmethod
    def settled(cls, entry: IndexEntry, broker: int) -> RemoteState:
        """What this broker's watermark index vouches for: everything up to its uploaded end, under its leadership."""
        state = cls(broker, below=Intervals([(0, entry.uploaded_end)]), bytes_per_offset=entry.bytes_per_offset)
        if entry.provisional is not None:
            base, end = entry.provisional, entry.uploaded_end
            state.segments[base] = StoredSegment(base, end, end, "provisional", broker, (), None, Lineage())
        return state

    @property
    def present(self) -> Intervals:
        """Offsets that can be read from the store."""
        return self._readable_below | Intervals((one.base_offset, one.readable_end) for one in self.segments.values())

    @property
    def final(self) -> Intervals:
        """Offsets that need no upload: what is present as whole, and what this broker has kept as corrupt."""
        provisional = Intervals(
            (one.base_offset, one.next_offset) for one in self.segments.values() if one.state == "provisional"
        )
        done = (one for one in self.segments.values() if one.state == "whole")
        kept = (one for one in self.segments.values() if one.state == "corrupt" and one.broker == self.broker)
        whole = Intervals((one.base_offset, one.readable_end) for one in done)
        return (
            (self._readable_below - provisional) | whole | Intervals((one.base_offset, one.next_offset) for one in kept)
        )

    @property
    def _readable_below(self) -> Intervals:
        """``below`` without the gaps that the watermark passes because a person acknowledged them."""
        return self.below - gaps.offsets(self.stored.watermark.acknowledged_gaps) if self.stored else self.below

    @property
    def damaged(self) -> Intervals:
        """Offsets from the first bad batch of a corrupt segment to its end."""
        return Intervals(
            (one.readable_end, one.next_offset) for one in self.segments.values() if one.state == "corrupt"
        )

    @property
    def end(self) -> int:
        """The end of the last uploaded segment, be it beyond a hole; 0 if there is none."""
        readable = (one.readable_end for one in self.segments.values() if one.readable_end > one.base_offset)
        return max([*(part.end for part in self.below), *readable], default=0)

    @property
    def provisional(self) -> int | None:
        """Base offset of the first segment that may still grow; None if all are final."""
        return min((one.base_offset for one in self.segments.values() if one.state == "provisional"), default=None)

    def open_before(self, base_offset: int) -> tuple[UnfinishedTransaction, ...]:
        """The transactions open at ``base_offset``, if the segment that ends there is known; else none."""
        ends = (one for one in self.segments.values() if one.next_offset == base_offset and one.state == "whole")
        return next((one.open_transactions for one in ends), ())

    def history(self, lineage: Lineage) -> Lineage:
        """``lineage``, with what the stored segments on it know of the offsets below its start.

        A broker forgets the epochs below its log start offset; segments that were held are uploaded after that.
        """
        live = (one for one in self.segments.values() if one.readable_end > one.base_offset)
        for one in sorted(live, key=lambda one: one.base_offset, reverse=True):
            lineage = lineage.with_history(one.lineage)
        return lineage

    def add(self, found: StoredManifest, lineage: Lineage) -> None:
        """A manifest is in the store."""
        segment = StoredSegment.of(found.manifest, lineage)
        if segment.base_offset >= max(self.segments, default=0):
            self.bytes_per_offset = _bytes_per_offset(found.manifest) or self.bytes_per_offset
        self.segments[segment.base_offset] = segment
        self.read[segment.base_offset] = found.etag
        if segment.log_etag is not None:
            self.logs.add(segment.base_offset)
        self.mismatched.pop(segment.base_offset, None)

    def vouched(self, stored: StoredWatermark) -> None:
        """The watermark is in the store: what lies wholly below its last segment need not be held any longer."""
        self.stored, self.foreign = stored, None
        self.below |= Intervals([(stored.watermark.start_offset, stored.watermark.next_offset)])
        for base in [base for base in self.segments if base < stored.base_offset]:
            if self.segments[base].next_offset <= stored.base_offset and self.segments[base].state == "whole":
                del self.segments[base]
                self.logs.discard(base)


def _bytes_per_offset(manifest: SegmentManifest) -> float | None:
    """How large its offsets are, to the thousandth; None where it has no readable byte."""
    log = manifest.objects.get(file_name(manifest.base_offset, "log"))
    if log is None or not log.size or manifest.next_offset == manifest.base_offset:
        return None
    return round(log.size / (manifest.next_offset - manifest.base_offset), 3)


def load(
    store: Store,
    keys: PartitionKeys,
    lineage: Lineage,
    leader_epoch: int,
    topic_id: str | None,
    broker: int,
    is_foreign: IsForeign,
) -> RemoteState:
    """Learn what the store has, as the leader with this ``lineage``; without a watermark, by all that is listed.

    Raises:
        Fenced: a later leader has taken over.
        ContinuityError: the lineages contradict each other.
        FormatError: an object there does not parse; it is named.
        StoreError: the store failed.
    """
    found_watermark = watermark.fence(store, keys, topic_id, leader_epoch, is_foreign)
    foreign = found_watermark is not None and found_watermark.foreign
    state = RemoteState(broker, None if foreign else found_watermark, found_watermark if foreign else None)
    first = 0
    if state.stored is not None:
        first = state.stored.base_offset
        vouched = watermark.truncate(state.stored.watermark, lineage, leader_epoch)
        # What is above a hole has its manifests listed below, each with the lineage that tells whether it still counts.
        state.below = Intervals([(vouched.start_offset, vouched.next_offset)])
        if vouched.next_offset <= first:  # cut off below line 1: it goes back to the last segment below the cut
            first = _last_base_below(store, keys, vouched.next_offset)
    listed = listing.list_segments(store, keys, first)
    state.logs.update(base for base, _ in listed.logs)
    for base, info in listed.manifests:
        found = manifests.read(store, keys, base)
        if found is None:
            raise FormatError(info.key, "was listed, but cannot be read")
        state.add(found, lineage)
    logs = [*listed.logs]
    for base in state.stored.watermark.replacing if state.stored else ():
        replaced, there = manifests.read(store, keys, base), find(store, keys.segment(base, "log"))
        if replaced is not None and there is not None:
            state.add(replaced, lineage)
            logs.append(Based(base, there))
    for log in logs:
        segment = state.segments.get(log.base_offset)
        if segment is not None and segment.log_etag not in {None, log.info.etag}:
            state.mismatched[log.base_offset] = log
    return state


def _last_base_below(store: Store, keys: PartitionKeys, offset: int) -> int:
    below = listing.list_segments(store, keys, max(0, offset - listing.REACH), offset).manifests
    return below[-1].base_offset if below else 0
