"""The masks of erased offsets. All partitions of a topic share its index, so that one GET serves them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Final

from tidemark.decode.offset_mask import OffsetMask
from tidemark.formats.raw.masks import MaskName
from tidemark.raw.masks import mask_index_of, mask_of
from tidemark.storage import ClusterStore

SECONDS: Final = 30.0
"""The longest that an index counts. Then it is read again, and without that nothing is delivered."""

_NEVER: Final = float("-inf")


class TopicMasks:
    """The masks of one incarnation of a topic. Thread-safe: a caller waits while another one reads the index."""

    def __init__(self, cluster: ClusterStore, place: str) -> None:
        """Start with nothing read."""
        self._cluster, self._place = cluster, place
        self._lock = threading.Lock()
        self._read_at = _NEVER
        self._by_partition: dict[int, tuple[MaskName, ...]] = {}

    def of(self, partition: int) -> tuple[MaskName, ...]:
        """The masks of a partition that count. Raises errors of :func:`tidemark.raw.masks.mask_index_of`."""
        with self._lock:
            began = time.monotonic()
            if began - self._read_at >= SECONDS:
                by_partition: dict[int, list[MaskName]] = {}
                for mask in mask_index_of(self._cluster, self._place).masks:
                    by_partition.setdefault(mask.partition, []).append(mask)
                self._by_partition = {number: tuple(masks) for number, masks in by_partition.items()}
                self._read_at = began
            return self._by_partition.get(partition, ())

    def read(self, masks: Iterable[MaskName], restores: tuple[int, ...]) -> OffsetMask:
        """The offsets of ``masks`` in a log with ``restores``. Raises what :func:`mask_of` does."""
        keys = (
            self._cluster.keys.mask(self._place, mask.partition, mask.start, mask.end, mask.digest) for mask in masks
        )
        return OffsetMask((mask_of(self._cluster.store, key) for key in keys), restores=restores)
