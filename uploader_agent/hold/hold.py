"""What is held: rotated segments whose files outlive the broker's retention until the store has them.

Promises: a held segment is the one that was seen in the log directory, byte for byte, or it does not count and is
dropped, and said. It belongs to (partition, topic id), whoever leads. All methods are thread-safe, but for
:meth:`Hold.look` and :meth:`Hold.enforce`, which are the loop's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import structlog

from tidemark.errors import ConfigError, FormatError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.watermark import Watermark
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage
from uploader_agent.disk.log_dirs import DirectoryListing, LocalSegment, list_segments
from uploader_agent.disk.segment_files import PartitionFiles, SegmentChanged, SegmentFiles
from uploader_agent.hold import discovery
from uploader_agent.hold.backends import HoldBackend, close_all
from uploader_agent.hold.deleted_segments import agrees, believable
from uploader_agent.hold.descriptors import raise_limit
from uploader_agent.hold.discovery import FoundSegment, Owned
from uploader_agent.hold.evicted_offsets import EvictedOffsets, Owner
from uploader_agent.hold.eviction import Space
from uploader_agent.hold.held_segments import HeldKey, HeldSegments
from uploader_agent.hold.limits import HoldLimits, space_of
from uploader_agent.hold.record import HeldSegment
from uploader_agent.hold.segment_files import HeldFiles
from uploader_agent.observability.metrics import Metrics
from uploader_agent.runtime import MACHINE, Runtime
from uploader_agent.settings import HoldSettings

logger = structlog.get_logger(__name__)

YIELDED = "yielded.json"

_SNAPSHOT_WAIT = 60.0
"""Seconds after a rotation for which a missing producer snapshot is looked for again."""


class HoldLook(NamedTuple):
    """A partition's segments by base offset: those held that lie below what its directory has, and the directory's.

    The last ``live`` one is active; there is none if the directory is gone.
    """

    gone: list[LocalSegment]
    live: list[LocalSegment]


class Hold:
    """All held segments of one agent."""

    def __init__(
        self,
        settings: HoldSettings,
        log_dirs: Collection[Path],
        state_dir: Path,
        metrics: Metrics,
        *,
        descriptors: int | None = None,
        runtime: Runtime = MACHINE,
        space: Callable[[Path], Space] = space_of,
    ) -> None:
        """Read back what a former agent held by links. ``descriptors`` are those to keep; by default, as many as go.

        Raises:
            ConfigError: a directory for links lies in a log directory, which the broker would not start with.
        """
        check_links(settings.links, log_dirs)
        self._settings = settings
        self._metrics = metrics
        links = settings.links if settings.enabled else ()
        self._shelf = HeldSegments(links, raise_limit() if descriptors is None else descriptors)
        self._yielded = EvictedOffsets(state_dir / YIELDED)
        self._limits = HoldLimits(settings, log_dirs, self._shelf, self._yielded, metrics, runtime.monotonic, space)
        self._time = runtime.time
        self._unheld: dict[Owner, int] = {}
        self._ignored: dict[Owner, set[int]] = {}
        self._said: set[object] = set()

    # -- for all ------------------------------------------------------------------------------------------------------

    def segments(self, at: TopicPartition, topic_id: str | None) -> list[LocalSegment]:
        """The held segments of a partition, by base offset; whether their files are still in the log directory or not.

        They need not join up, and after a replica was made anew they may overlap. ``next_offset`` is never None.
        """
        return [note.segment for _, (note, _) in sorted(self._shelf.of((at, topic_id)).items())]

    def owners(self) -> list[Owner]:
        """(partition, topic id) of all that is held."""
        return self._shelf.owners()

    def files(self, at: TopicPartition, topic_id: str | None, folder: Path | None) -> SegmentFiles:
        """A partition's files, to be used with ``with``: what ``folder`` has, else what is held.

        ``folder`` is None where the partition is on no disk here any more. See :class:`HeldFiles`.

        Raises:
            SegmentChanged: the directory is gone or another incarnation's, and nothing is held.
        """
        owner = (at, topic_id)
        held = self._shelf.of(owner)
        live: PartitionFiles | None = None
        if folder is not None:
            try:
                live = PartitionFiles(folder, topic_id)
            except SegmentChanged:
                if not held:
                    raise
        elif not held:
            raise SegmentChanged(f"{at}: is on no disk here, and nothing of it is held")
        return HeldFiles(folder or Path(str(at)), live, held, lambda base, why: self._spoilt(HeldKey(owner, base), why))

    def release(self, at: TopicPartition, topic_id: str | None, below: int) -> None:
        """Give up the held segments that end at or below the offset ``below``: the store has them for good."""
        self._release((at, topic_id), Intervals([(0, below)]))

    def yielded(self, at: TopicPartition, topic_id: str | None) -> Intervals:
        """Offsets that were given up to stay within the bounds: a gap there has the reason ``staging_full``."""
        return self._yielded.get((at, topic_id))

    def recorded(self, at: TopicPartition, topic_id: str | None, offsets: Intervals) -> None:
        """Forget that ``offsets`` were given up: ``offset.wm`` says so."""
        self._yielded.remove((at, topic_id), offsets)

    def reconfigure(self, settings: HoldSettings) -> None:
        """Go on with other bounds; ``enabled`` and ``links`` are those from the start."""
        self._limits.settings = settings

    def close(self) -> None:
        """Let go of all descriptors; links stay for the next agent."""
        self._shelf.close()

    # -- for the loop -------------------------------------------------------------------------------------------------

    def look(
        self,
        at: TopicPartition,
        topic_id: str | None,
        leader_epoch: int,
        folder: Path,
        final: Intervals,
        watermark: Watermark | None,
        listing: DirectoryListing | None = None,
    ) -> HoldLook:
        """Look at a led partition's directory, hold what retention may take, release what is ``final`` in the store.

        ``watermark`` is the partition's, if it is known; ``listing`` the directory's, if it is.
        """
        listing = list_segments(folder) if listing is None else listing
        if not self._settings.enabled or not listing.segments:
            return HoldLook([], listing.segments)
        owned = Owned(at, topic_id, leader_epoch)
        self._release((at, topic_id), final)
        # First, since what does not count any more must not hide what has taken its place.
        judged = self._drop_what_no_longer_counts(owned, folder, listing, watermark)
        self._hold_new(owned, folder, listing, final, watermark)
        return HoldLook(self._below(owned, listing) if judged else [], listing.segments)

    def enforce(self) -> None:
        """Give up what is beyond the bounds, and count what is held. To be followed by a look at all partitions."""
        self._limits.enforce()
        self._metrics.unheld_segments.set(sum(self._unheld.values()))
        self._unheld.clear()

    def _release(self, owner: Owner, final: Intervals) -> None:
        for base, (note, _) in self._shelf.of(owner).items():
            if final.covers(base, note.next_offset):
                self._shelf.drop(HeldKey(owner, base))
        self._yielded.remove(owner, final)

    def _hold_new(
        self, owned: Owned, folder: Path, listing: DirectoryListing, final: Intervals, watermark: Watermark | None
    ) -> None:
        """Open what is not held yet."""
        owner = (owned.at, owned.topic_id)
        held = self._shelf.of(owner)
        new: list[LocalSegment] = []
        for segment in listing.segments:
            if segment.next_offset is None or final.covers(segment.base_offset, segment.next_offset):
                continue
            if segment.base_offset in held:
                if held[segment.base_offset][0].segment == segment:
                    continue
                self._spoilt(
                    HeldKey(owner, segment.base_offset), "the live segment is another one: the log was truncated"
                )
            new.append(segment)
        ignored = self._ignored.get(owner, set()) & listing.deleted
        bases = discovery.unknown_deleted(listing, held, final) - ignored
        self._ignored[owner] = ignored | bases
        if not self._ignored[owner]:
            del self._ignored[owner]
        self._unheld.pop(owner, None)
        if not (new or bases or self._lacking_snapshot(owner)):
            return
        try:
            with PartitionFiles(folder, owned.topic_id) as files:
                self._hold_rotated(files, owned, new)
                self._hold_deleted(files, owned, listing, bases, watermark)
                self._hold_snapshots(files, owner)
        except SegmentChanged:
            return  # the directory went away: another look settles it
        except (FormatError, OSError) as error:
            self._say((folder, type(error)), "cannot_hold", folder=str(folder), error=str(error))
        held = self._shelf.of(owner)
        self._unheld[owner] = sum(segment.base_offset not in held for segment in new)

    def _hold_rotated(self, files: PartitionFiles, owned: Owned, new: list[LocalSegment]) -> None:
        if not new:
            return
        with closing(discovery.rotated(files, owned, files.lineage(), new)) as found:
            for one in found:
                if not self._shelf.add(*one):
                    return  # what is newer would find no room either

    def _hold_deleted(
        self,
        files: PartitionFiles,
        owned: Owned,
        listing: DirectoryListing,
        bases: set[int],
        watermark: Watermark | None,
    ) -> None:
        if not bases:
            return
        found = {one.note.base_offset: one for one in discovery.deleted(files, owned, bases)}
        held = [note for note, _ in self._shelf.of((owned.at, owned.topic_id)).values()]
        notes, start = [one.note for one in found.values()], listing.segments[0].base_offset
        chosen = {note.base_offset for note in believable(notes, held, start, files.lineage(), watermark)}
        for base, one in found.items():
            if base in chosen:
                self._take_deleted(one)
            else:
                close_all(one.files)

    def _take_deleted(self, found: FoundSegment) -> None:
        note = found.note
        known = self._shelf.add(*found)
        logger.info(
            "deleted_segment_found",
            partition=str(note.at),
            base_offset=note.base_offset,
            next_offset=note.next_offset,
            held=known,
        )

    def _lacking_snapshot(self, owner: Owner) -> list[HeldSegment]:
        since = self._time() - _SNAPSHOT_WAIT
        notes = [note for note, _ in self._shelf.of(owner).values()]
        return [note for note in notes if note.snapshot not in note.files and note.rotated_at > since]

    def _hold_snapshots(self, files: PartitionFiles, owner: Owner) -> None:
        for note in self._lacking_snapshot(owner):
            descriptor = discovery.snapshot(files, note)
            if descriptor is not None:
                self._shelf.extend(HeldKey(owner, note.base_offset), note.snapshot, descriptor)

    def _drop_what_no_longer_counts(
        self, owned: Owned, folder: Path, listing: DirectoryListing, watermark: Watermark | None
    ) -> bool:
        """Judge the held segments that the directory no longer has; False if they cannot be judged now."""
        owner = (owned.at, owned.topic_id)
        live = {segment.base_offset for segment in listing.segments}
        gone = {base: held for base, held in self._shelf.of(owner).items() if base not in live}
        if not gone:
            return True
        try:
            with PartitionFiles(folder, owned.topic_id) as files:
                lineage = files.lineage()
        except SegmentChanged:
            return False
        except FormatError as error:
            self._say((folder, type(error)), "lineage_unreadable", folder=str(folder), error=str(error))
            return False
        for base, (note, keeper) in gone.items():
            reason = _no_longer_counts(note, keeper, lineage, watermark)
            if reason:
                self._spoilt(HeldKey(owner, base), reason)
        return True

    def _below(self, owned: Owned, listing: DirectoryListing) -> list[LocalSegment]:
        """The held segments below the first live one."""
        start = listing.segments[0].base_offset
        return [segment for segment in self.segments(owned.at, owned.topic_id) if segment.base_offset < start]

    def _spoilt(self, key: HeldKey, reason: str) -> None:
        self._shelf.drop(key)
        at, _ = key.owner
        logger.warning("held_segment_dropped", partition=str(at), base_offset=key.base_offset, reason=reason)

    def _say(self, what: object, event: str, **details: str) -> None:
        if what not in self._said:
            self._said.add(what)
            logger.warning(event, **details)


def check_links(links: Collection[Path], log_dirs: Collection[Path]) -> None:
    """Raise ConfigError if a directory for links lies in a log directory: the broker would not start with it."""
    for folder in links:
        for log_dir in log_dirs:
            if folder.resolve().is_relative_to(log_dir.resolve()):
                rule = f"{folder} lies in the log directory {log_dir}: Kafka does not start with strangers there"
                raise ConfigError("the agent's file", [("hold.links", rule)])


def _no_longer_counts(note: HeldSegment, keeper: HoldBackend, live: Lineage, watermark: Watermark | None) -> str | None:
    """Why a held segment is not what the log had; None if it is."""
    try:
        stat = keeper.stat(note.log)
    except OSError as error:
        return str(error)
    if (stat.st_size, stat.st_mtime) != (note.size, note.modified):
        return "it was written to after it was rotated: the log was truncated"
    diverged = note.diverges(live)
    if diverged is not None:
        return f"the live lineage leaves it at offset {diverged}"
    if note.deleted and not agrees(note, live, watermark):
        return "it was found .deleted, and the watermark's lineage is another one"
    return None
