"""Stores the ranges of one round as packs, each as soon as it is large enough: they lie in memory until then."""

from __future__ import annotations

from crc32c import crc32c

from tidemark.formats.keys import ControlKeys, PackName
from tidemark.formats.pack import PackWriter, RangeContent, WrittenRange, pack_name
from tidemark.store import Store
from uploader_agent.disk.segment_files import Bytes
from uploader_agent.observability.metrics import Metrics
from uploader_agent.packs.reading import LARGEST_RANGE
from uploader_agent.remote.objects import Summed, create


class Packs:
    """New packs of one broker."""

    def __init__(self, store: Store, control: ControlKeys, broker: int, metrics: Metrics) -> None:
        self._store = store
        self._control = control
        self._broker = broker
        self._metrics = metrics
        self._written: list[WrittenRange] = []
        self._writer: PackWriter | None = None
        self._size = 0

    def add(self, content: RangeContent, data: bytes) -> None:
        """Add a range; what lies in memory is stored first if it has no room beside it. Raises StoreError."""
        if self._writer is not None and self._size + len(data) > LARGEST_RANGE:
            self._store_pack()
        while True:
            if self._writer is None:
                self._writer = PackWriter(PackName(self._broker, pack_name()))
            if self._writer.add(content, data):
                self._size += len(data)
                return
            self._store_pack()

    def finish(self) -> list[WrittenRange]:
        """Store what is left. All ranges, as they were added; all are stored. Raises StoreError."""
        if self._writer is not None:
            self._store_pack()
        return self._written

    def _store_pack(self) -> None:
        assert self._writer is not None
        name, body, ranges = self._writer.finish()
        self._writer, self._size = None, 0
        create(self._store, self._control.pack(name), Summed(Bytes(str(name), body), crc32c(body)))
        self._metrics.packs.inc()
        self._written += ranges
