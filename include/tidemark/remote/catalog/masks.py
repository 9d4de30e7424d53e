"""The masks of erased offsets. All partitions of a topic share its index, so that one GET serves them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Final

from tidemark.decode.offset_mask import OffsetMask
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.masks import MaskName
from tidemark.raw.objects import mask_index_of, mask_of
from tidemark.remote.catalog.storage import Storage
from tidemark.store import Store

SECONDS: Final = 30.0
"""The longest that an index counts. Then it is read again, and without that nothing is delivered."""

_NEVER: Final = float("-inf")


class TopicMasks:
    """The masks of one incarnation of a topic. Thread-safe: a caller waits while another one reads the index."""

    def __init__(self, store: Store, control: ControlKeys, place: str) -> None:
        """Start with nothing read."""
        self._store, self._control, self._place = store, control, place
        self._lock = threading.Lock()
        self._read_at = _NEVER
        self._by_partition: dict[int, tuple[MaskName, ...]] = {}

    def of(self, partition: int) -> tuple[MaskName, ...]:
        """The masks of a partition that count. Raises errors of :func:`tidemark.raw.objects.mask_index_of`."""
        with self._lock:
            began = time.monotonic()
            if began - self._read_at >= SECONDS:
                by_partition: dict[int, list[MaskName]] = {}
                for mask in mask_index_of(self._store, self._control, self._place).masks:
                    by_partition.setdefault(mask.partition, []).append(mask)
                self._by_partition = {number: tuple(masks) for number, masks in by_partition.items()}
                self._read_at = began
            return self._by_partition.get(partition, ())

    def read(self, masks: Iterable[MaskName], restores: tuple[int, ...]) -> OffsetMask:
        """The offsets of ``masks`` in a log with ``restores``. Raises what :func:`mask_of` does."""
        keys = (self._control.mask(self._place, mask.partition, mask.start, mask.end, mask.digest) for mask in masks)
        return OffsetMask((mask_of(self._store, key) for key in keys), restores=restores)


class MasksByPlace:
    """The masks of a storage's cluster, by the place of an incarnation. Thread-safe."""

    def __init__(self, storage: Storage) -> None:
        """Start with nothing read."""
        self._storage = storage
        self._lock = threading.Lock()
        self._places: dict[str, TopicMasks] = {}

    def of(self, place: str) -> TopicMasks:
        """The masks of the incarnation at ``place``."""
        with self._lock:
            if place not in self._places:
                default = self._storage.default()
                control = ControlKeys(default.prefix, self._storage.cluster)
                self._places[place] = TopicMasks(self._storage.store(default.store), control, place)
            return self._places[place]
