"""Reads masks and their indexes. A mask never changes, so a process reads each once."""

from __future__ import annotations

from typing import Final

from tidemark.errors import FormatError, NotFound
from tidemark.formats.base import Version
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.masks import Mask, MaskIndex, digest_of
from tidemark.lru import Lru
from tidemark.storage import ClusterStore
from tidemark.store import Store

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
