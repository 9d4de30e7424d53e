"""Masks as a pass of erasure writes them, beside the raw objects of a :class:`RawBuilder`."""

from __future__ import annotations

from collections.abc import Iterable

from tests.support.raw_builder import EPOCH, RawBuilder
from tidemark.formats.keys import ControlKeys, SegmentName
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.formats.raw.masks import Mask
from tidemark.formats.table.plan import StoredMasks
from tidemark.raw.masks import mask_index_of
from tidemark.raw.objects import read_manifest, remove_segment
from tidemark.storage import ClusterStore, PartitionStore
from tidemark.store import StoreOptions
from tidemark_spark.erasing.rewriting import SealTask, rewrite


def erase(
    raw: RawBuilder, offsets: Iterable[int], partition: int = 0, epoch: int = EPOCH, approval: str = "0" * 64
) -> str:
    """Mask ``offsets`` of one leader epoch of the newest incarnation; returns the mask's key."""
    keys = raw.keys(partition)
    control = ControlKeys(keys.endpoint.prefix, raw.cluster)
    mask = Mask.of(raw.cluster, keys.place, partition, {epoch: sorted(offsets)}, [approval])
    key = mask.key(control)
    raw.store.put(key, mask.to_bytes())
    index = mask_index_of(ClusterStore(raw.store, control), keys.place).also([mask])
    raw.store.put(control.mask_index(keys.place), index.to_bytes())
    return key


def index_key(raw: RawBuilder) -> str:
    """The key of the index of the newest incarnation's masks."""
    keys = raw.keys()
    return ControlKeys(keys.endpoint.prefix, raw.cluster).mask_index(keys.place)


def rewrite_seal(raw: RawBuilder, key: str, number: int = 1) -> SegmentManifest:
    """Rewrite the seal with the log ``key`` without its masked records, and delete it, as a pass of erasure does."""
    folder, _, file = key.rpartition("/")
    parsed = SegmentName.parse(file)
    assert parsed is not None
    partition = int(folder.rpartition("-")[2])
    keys = raw.keys(partition)
    old = read_manifest(PartitionStore(raw.store, keys), parsed[0])
    assert old is not None
    control = ControlKeys(keys.endpoint.prefix, raw.cluster)
    index = mask_index_of(ClusterStore(raw.store, control), keys.place)
    names = index.within(partition, old.manifest.base_offset, old.manifest.next_offset)
    masks = StoredMasks(store=raw.store.url, keys=tuple(index.key_of(control, mask) for mask in names))
    done = rewrite(StoreOptions(), SealTask(keys, old, masks, number))
    assert done.new is not None, done
    remove_segment(
        PartitionStore(raw.store, keys),
        parsed[0],
        old.etag,
        {name: stored.etag for name, stored in old.manifest.objects.items()},
    )
    return done.new
