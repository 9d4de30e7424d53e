"""The masks of a topic, as readers of its partitions need them. A process reads each mask once: they never change."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Final

from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.masks import Mask, MaskIndex, read_index, read_mask
from tidemark.store import Store

_MOST_OFFSETS: Final = 4_000_000
"""Most offsets of the masks that a process remembers; about 36 bytes each."""

_known: Final[OrderedDict[tuple[str, str], Mask]] = OrderedDict()
_lock: Final = Lock()


def index_of(store: Store, control: ControlKeys, place: str) -> MaskIndex:
    """The masks of an incarnation that count now; raises errors of :func:`~tidemark.formats.raw.masks.read_index`."""
    version = read_index(store, control, place)
    return version.value if version else MaskIndex(cluster=control.cluster, place=place)


def mask_of(store: Store, key: str) -> Mask:
    """The mask under ``key``; raises errors of :func:`~tidemark.formats.raw.masks.read_mask`."""
    name = store.url, key
    with _lock:
        if (known := _known.get(name)) is not None:
            _known.move_to_end(name)
            return known
    mask = read_mask(store, key)
    with _lock:
        _known[name] = mask
        while len(_known) > 1 and sum(each.count for each in _known.values()) > _MOST_OFFSETS:
            _known.popitem(last=False)
    return mask
