"""Reads masks and their indexes. A mask never changes, so a process reads each once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from tidemark.concurrency import Lru
from tidemark.errors import FormatError, NotFound
from tidemark.formats.base import Version
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.masks import Mask, MaskIndex, MaskName, digest_of
from tidemark.storage import ClusterStore
from tidemark.store import Store

if TYPE_CHECKING:
    from tidemark.decode.offset_mask import OffsetMask

_MOST_MASKED_OFFSETS: Final = 4_000_000
"""Most offsets of the masks that a process remembers; about 36 bytes each."""

_known_masks: Final[Lru[tuple[str, str], Mask]] = Lru(_MOST_MASKED_OFFSETS, lambda mask: mask.count, at_least=1)


def read_index(cluster: ClusterStore, place: str) -> Version[MaskIndex] | None:
    """The index of the masks of an incarnation, with its ETag; None if nothing of it was ever erased.

    Raises:
        FormatError: it does not parse, or is about another topic.
        StoreError: the store failed.
    """
    key = cluster.keys.mask_index(place)
    try:
        version = MaskIndex.load_version(cluster.store, key)
    except NotFound:
        return None
    index = version.value
    if (index.cluster, index.place) != (cluster.keys.cluster, place):
        raise FormatError(key, f"is about {index.cluster}/{index.place}, but its key names another topic")
    if [mask.number for mask in index.masks] != list(range(1, len(index.masks) + 1)):
        raise FormatError(key, "numbers its masks otherwise than 1, 2, 3, …: restore its last version")
    return version


def mask_index_of(cluster: ClusterStore, place: str) -> MaskIndex:
    """The masks of an incarnation that count now; raises errors of :func:`read_index`."""
    version = read_index(cluster, place)
    return version.value if version else MaskIndex(cluster=cluster.keys.cluster, place=place)


def read_mask(store: Store, key: str) -> Mask:
    """The mask under ``key``.

    Raises:
        FormatError: it does not parse, or its content is not that of its key.
        StoreError: the store failed, or the mask is gone, without which no record may be delivered.
    """
    body = store.get(key, limit=Mask.most_bytes).body
    mask = Mask.from_bytes(body, key)
    if not key.endswith(mask.key(ControlKeys("", mask.cluster), digest_of(body))):
        raise FormatError(key, "has another content than its key names: restore its first version")
    return mask


def mask_of(store: Store, key: str) -> Mask:
    """The mask under ``key``; raises errors of :func:`read_mask`."""
    name = store.url, key
    if (mask := _known_masks.get(name)) is None:
        mask = read_mask(store, key)
        _known_masks.keep(name, mask)
    return mask


class TopicMasks:
    """The masks of one incarnation of a topic, whose partitions share its index. Thread-safe.

    An index counts for ``max_age`` seconds. Then one caller reads it again, and the others wait: without it nothing is
    delivered.
    """

    def __init__(self, cluster: ClusterStore, place: str, max_age: float) -> None:
        """Start with nothing read."""
        self._cluster, self._place, self._max_age = cluster, place, max_age
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._by_partition: dict[int, tuple[MaskName, ...]] = {}

    def of(self, partition: int) -> tuple[MaskName, ...]:
        """The masks of a partition that count. Raises errors of :func:`mask_index_of`."""
        with self._lock:
            began = time.monotonic()
            if began - self._read_at >= self._max_age:
                by_partition: dict[int, list[MaskName]] = {}
                for mask in mask_index_of(self._cluster, self._place).masks:
                    by_partition.setdefault(mask.partition, []).append(mask)
                self._by_partition = {number: tuple(masks) for number, masks in by_partition.items()}
                self._read_at = began
            return self._by_partition.get(partition, ())

    def read(self, masks: Iterable[MaskName], restores: tuple[int, ...]) -> OffsetMask:
        """The offsets of ``masks`` in a log with ``restores``. Raises what :func:`mask_of` does."""
        from tidemark.decode.offset_mask import OffsetMask  # who plans needs no NumPy

        keys = (
            self._cluster.keys.mask(self._place, mask.partition, mask.start, mask.end, mask.digest) for mask in masks
        )
        return OffsetMask((mask_of(self._cluster.store, key) for key in keys), restores=restores)
