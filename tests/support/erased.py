"""Masks as a pass of erasure writes them, beside the raw objects of a :class:`RawBuilder`."""

from __future__ import annotations

from collections.abc import Iterable

from tests.support.raw_builder import EPOCH, RawBuilder
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.masks import Mask
from tidemark.raw.masks import index_of


def erase(
    raw: RawBuilder, offsets: Iterable[int], partition: int = 0, epoch: int = EPOCH, approval: str = "0" * 64
) -> str:
    """Mask ``offsets`` of one leader epoch of the newest incarnation; returns the mask's key."""
    keys = raw.keys(partition)
    control = ControlKeys(keys.endpoint.prefix, raw.cluster)
    mask = Mask.of(raw.cluster, keys.place, partition, {epoch: sorted(offsets)}, [approval])
    key = mask.key(control)
    raw.store.put(key, mask.to_bytes())
    index = index_of(raw.store, control, keys.place).also([mask])
    raw.store.put(control.mask_index(keys.place), index.to_bytes())
    return key


def index_key(raw: RawBuilder) -> str:
    """The key of the index of the newest incarnation's masks."""
    keys = raw.keys()
    return ControlKeys(keys.endpoint.prefix, raw.cluster).mask_index(keys.place)
