"""The held sets of an agent, and the offsets of those that were evicted to stay within the bounds."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import structlog

from tidemark.errors import FormatError
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.keys import TopicPartition
from tidemark.intervals import Intervals
from uploader_agent.hold.backends import (
    DescriptorBackend,
    HardLinkBackend,
    HeldSegment,
    HoldBackend,
    close_all,
    read_back,
)

logger = structlog.get_logger(__name__)

Owner = tuple[TopicPartition, str | None]

Held = dict[int, tuple[HeldSegment, HoldBackend]]
"""Held segments of one partition and topic id, by base offset."""

_EFFECT = "descriptors hold instead, until the agent ends"


class HeldKey(NamedTuple):
    """The owner of a held set, and its segment."""

    owner: Owner
    base_offset: int


class HeldSegments:
    """All held sets: by hard links where these can be made, else by descriptors while there are any.

    Any thread may read and drop sets; only one thread adds them.
    """

    def __init__(self, links: tuple[Path, ...], descriptors: int) -> None:
        """Read back the sets in ``links``, the directories for hard links; at most ``descriptors`` are kept open."""
        self._descriptors = descriptors
        self._open = 0
        self._newest = -1.0  # no segment that may lose its descriptors to an older one was modified later than this
        self._sets: dict[Owner, Held] = {}
        self._lock = threading.RLock()
        self._said: set[object] = set()
        self._links: dict[int, list[Path]] = {}
        self._unread = links
        self.read_links()

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._sets.values()))

    def of(self, owner: Owner) -> Held:
        """A copy of a partition's held segments."""
        with self._lock:
            return dict(self._sets.get(owner, {}))

    def owners(self) -> list[Owner]:
        """The owners of the held sets."""
        with self._lock:
            return list(self._sets)

    def all(self) -> Iterator[tuple[HeldKey, HeldSegment, HoldBackend]]:
        """All held sets."""
        with self._lock:
            everything = [(owner, dict(held)) for owner, held in self._sets.items()]
        for owner, held in everything:
            for base, (note, keeper) in held.items():
                yield HeldKey(owner, base), note, keeper

    def add(self, note: HeldSegment, files: Mapping[str, int], device: int) -> bool:
        """Hold the open ``files`` of a log directory on ``device``, and own them; return False if there is no room."""
        keeper = self._link(note, files, device)
        if keeper is None and not self._has_room(len(files) + 1, note.modified):
            close_all(files)
            return False
        if keeper is not None:
            close_all(files)
        self._put(note, keeper or DescriptorBackend(files))
        return True

    def read_links(self) -> None:
        """Read back the sets in the directories for links that could not be read before."""
        unread, self._unread = self._unread, ()
        for folder in unread:
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                usable = self._links.setdefault(folder.stat().st_dev, [])
                if folder not in usable:
                    usable.append(folder)
                for note, keeper in read_back(folder):
                    self._put(note, keeper)
            except OSError as error:
                self._unread = (*self._unread, folder)
                self._warn_once((folder, error.errno), "links_unusable", folder=str(folder), error=str(error))

    def drop(self, key: HeldKey) -> None:
        """Release a set."""
        with self._lock:
            held = self._sets.get(key.owner, {})
            if key.base_offset not in held:
                return
            _, keeper = held.pop(key.base_offset)
            if not held:
                del self._sets[key.owner]
            self._open -= keeper.count
        keeper.drop()

    def close(self) -> None:
        """Drop the sets that only this process keeps, by descriptors."""
        for key, _, keeper in list(self.all()):
            if keeper.count:
                self.drop(key)

    def _put(self, note: HeldSegment, keeper: HoldBackend) -> None:
        with self._lock:
            self._open += keeper.count
            self._newest = max(self._newest, note.modified if keeper.count else -1.0)
            self._sets.setdefault((note.tp, note.topic_id), {})[note.base_offset] = note, keeper

    def _link(self, note: HeldSegment, files: Mapping[str, int], device: int) -> HoldBackend | None:
        folders = self._links.get(device, [])
        if self._links and not folders:
            rule = f"no directory of hold.links is on the file system of {note.tp}"
            self._warn_once(("device", device), "links_impossible", error=rule, effect=_EFFECT)
        for parent in folders:
            try:
                return HardLinkBackend.make(parent, note, files)
            except OSError as error:
                cause = {"folder": str(parent), "error": str(error)}
                self._warn_once((parent, error.errno), "links_impossible", **cause, effect=_EFFECT)
        return None

    def _has_room(self, needed: int, modified: float) -> bool:
        """True if ``needed`` more descriptors fit; if necessary, newer segments that are not gone lose theirs."""
        while self._open + needed > self._descriptors:
            if modified >= self._newest:
                return False
            newer = [
                (note.modified, key)
                for key, note, keeper in self.all()
                if keeper.count and note.modified > modified and not keeper.is_last(note.log)
            ]
            if not newer:
                self._newest = modified
                return False
            self._newest, newest = max(newer, key=lambda item: item[0])
            self.drop(newest)
        return True

    def _warn_once(self, subject: object, event: str, **details: str) -> None:
        if subject not in self._said:
            self._said.add(subject)
            logger.warning(event, **details)


class EvictedOffsets:
    """Evicted offsets by owner, kept in the file ``path`` until the watermark records them. Not thread-safe.

    The store may be unreachable after an eviction, and the agent may restart: the reason of the gap must survive that.
    An unusable file is only logged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets = self._read()

    def get(self, owner: Owner) -> Intervals:
        """The evicted offsets of a partition."""
        return self._offsets.get(owner, Intervals())

    def add(self, evicted: Iterable[tuple[Owner, tuple[int, int]]]) -> None:
        """Add evicted offsets of each owner, and write the file."""
        for owner, offsets in evicted:
            self._offsets[owner] = self.get(owner) | Intervals([offsets])
        self._write()

    def remove(self, owner: Owner, recorded: Intervals) -> None:
        """Remove offsets that are now recorded as a gap, or that the store turned out to have."""
        before = self.get(owner)
        after = before - recorded
        if after == before:
            return
        self._offsets[owner] = after
        if not after:
            del self._offsets[owner]
        self._write()

    def _read(self) -> dict[Owner, Intervals]:
        try:
            entries = _File.from_bytes(self._path.read_bytes(), str(self._path)).yielded
        except FileNotFoundError:
            return {}
        except (OSError, FormatError) as error:
            logger.warning("evicted_offsets_not_read", error=str(error), effect="gaps may state a less exact reason")
            return {}
        return {
            (TopicPartition(entry.topic, entry.partition), entry.topic_id): Intervals(entry.offsets)
            for entry in entries
        }

    def _write(self) -> None:
        entries = tuple(
            _Entry(topic=tp.topic, partition=tp.partition, topic_id=topic_id, offsets=offsets.parts)
            for (tp, topic_id), offsets in sorted(self._offsets.items(), key=lambda item: (item[0][0], str(item[0][1])))
        )
        temporary = self._path.with_suffix(".new")
        try:
            temporary.write_bytes(_File(yielded=entries).to_bytes())
            temporary.rename(self._path)
        except OSError as error:
            effect = "a restart would forget these gaps' reason"
            logger.warning("evicted_offsets_not_written", error=str(error), effect=effect)


class _Entry(Model):
    topic: str
    partition: int
    topic_id: str | None
    offsets: tuple[tuple[int, int], ...]


class _File(StoredObject):
    yielded: tuple[_Entry, ...]
