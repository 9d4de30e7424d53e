"""Stores the ranges of one round as packs. A pack is kept in memory until it is large enough."""

from __future__ import annotations

from typing import Generic, TypeVar

from crc32c import crc32c

from tidemark.formats.keys import ControlKeys, PackName
from tidemark.formats.raw.pack import PackWriter, RangeContent, WrittenRange, pack_name
from tidemark.store import Store
from uploader_agent.disk.segment_files import Bytes
from uploader_agent.observability.metrics import Metrics
from uploader_agent.packs.reading import LARGEST_RANGE
from uploader_agent.stored.objects import Summed, create

Tag = TypeVar("Tag")


class Packs(Generic[Tag]):
    """New packs of one broker. Each range is added with a tag, which is returned once the range is stored."""

    def __init__(self, store: Store, control: ControlKeys, broker: int, metrics: Metrics) -> None:
        self._store = store
        self._control = control
        self._broker = broker
        self._metrics = metrics
        self._tags: list[Tag] = []
        self._writer: PackWriter | None = None
        self._size = 0

    def add(self, tag: Tag, content: RangeContent, data: bytes) -> list[tuple[Tag, WrittenRange]]:
        """Add a range. If the pack in memory has no room for it, store that pack first and return its ranges.

        Raises StoreError.
        """
        stored: list[tuple[Tag, WrittenRange]] = []
        if self._writer is not None and self._size + len(data) > LARGEST_RANGE:
            stored = self._store_pack()
        while True:
            if self._writer is None:
                self._writer = PackWriter(PackName(self._broker, pack_name()))
            if self._writer.add(content, data):
                self._size += len(data)
                self._tags.append(tag)
                return stored
            stored += self._store_pack()

    def finish(self) -> list[tuple[Tag, WrittenRange]]:
        """Store the pack in memory, and return its ranges. Raises StoreError."""
        return self._store_pack() if self._writer is not None else []

    def _store_pack(self) -> list[tuple[Tag, WrittenRange]]:
        assert self._writer is not None
        name, body, ranges = self._writer.finish()
        tags, self._tags = self._tags, []
        self._writer, self._size = None, 0
        create(self._store, self._control.pack(name), Summed(Bytes(str(name), body), crc32c(body)))
        self._metrics.packs.inc()
        return [*zip(tags, ranges, strict=True)]
