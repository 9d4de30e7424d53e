"""Transactions around a segment that gets batches: what is open where it begins, and what the later ones must know."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from tidemark.errors import TidemarkError
from tidemark.formats.keys import PartitionKeys
from tidemark.formats.manifest import ObjectSum, OpenTransaction, SegmentManifest
from tidemark.formats.pack import PackedRange
from tidemark.kafka_log import Lineage, UnfinishedTransaction
from tidemark.store import Store
from uploader_agent.remote import listing, manifests
from uploader_agent.remote.lineage import KnownLineages
from uploader_agent.remote.manifests import StoredManifest
from uploader_agent.remote.objects import PutDerived, Summed, find, put_derived
from uploader_agent.remote.stored_log import StoredLog
from uploader_agent.upload.manifest_rebuild import rebuild

_NEAREST: Final = 64
"""Segments below another one that are looked at: one of its branch ends where it begins."""


class Undecided(TidemarkError):
    """Nobody knows what became of a transaction; the message says what can be done."""


def open_at(
    store: Store, keys: PartitionKeys, manifest: SegmentManifest, lineage: Lineage, ranges: Iterable[PackedRange]
) -> tuple[UnfinishedTransaction, ...]:
    """The transactions open where the segment begins: by the one that ends there, or by a range that does.

    Raises:
        Undecided: nobody knows. It is never assumed that none is.
        StoreError: the store failed.
    """
    base, own = manifest.base_offset, Lineage(manifest.lineage).with_history(lineage)
    if base == 0:
        return ()
    below = StoredLog(manifest.broker)
    for entry in listing.list_segments(store, keys, max(0, base - listing.REACH), base).manifests[-_NEAREST:]:
        stored = manifests.read(store, keys, entry.name)
        if stored is not None:
            below.add(stored, own)
    known = below.open_before(base)
    if known is not None:
        return known
    for _, one in ranges:
        if one.next == base and Lineage(one.epochs).divergence(own, base) is None:
            return tuple(txn.unfinished for txn in one.open)
    rule = f"nobody knows which transactions are open at offset {base}"
    raise Undecided(f"{keys.manifest(manifest.name)}: {rule}: the segment before it is gone, and so are its packs")


def tell_following(
    store: Store,
    keys: PartitionKeys,
    after: SegmentManifest,
    opened: tuple[UnfinishedTransaction, ...],
    new: Collection[UnfinishedTransaction],
    lineage: Lineage,
) -> None:
    """Make indexes and manifests of the segments behind ``after`` again, up to the one that decides all ``new``.

    ``opened`` will be open at the end of ``after``, and of these ``new`` were not known there. An index that lists an
    aborted transaction without data says nothing wrong, so this comes before the data.

    Raises:
        Undecided: no segment decides them yet. Nothing is written.
        FormatError: a segment is damaged.
        StoreError: the store failed.
    """
    for put in (_only_sum, put_derived):
        left, now = {*new}, opened
        for stored in _behind(store, keys, after, lineage):
            if not left:
                break
            told = _told(store, keys, stored.manifest, now, lineage, put)
            now = tuple(one.unfinished for one in told.open_transactions)
            left &= {*now}
            if put is put_derived and told != stored.manifest:
                manifests.write_over(store, keys, told, stored)
        if left:
            rule = f"no later segment decides the transaction of producer {min(left).producer_id}"
            raise Undecided(f"{keys.manifest(after.name)}: {rule}: try again once more of the log is sealed")


def _behind(store: Store, keys: PartitionKeys, after: SegmentManifest, lineage: Lineage) -> Iterator[StoredManifest]:
    """The segments behind ``after`` on ``lineage``, each where the one before ends."""
    at = after.next_offset
    while True:
        listed = listing.list_segments(store, keys, at, at + 1).manifests
        read = (manifests.read(store, keys, entry.name) for entry in listed)
        sound = (one for one in read if one is not None and one.manifest.state == "whole")
        found = next((one for one in sound if manifests.begins_on(one.manifest, lineage)), None)
        if found is None:
            return
        yield found
        at = found.manifest.next_offset


def _told(
    store: Store,
    keys: PartitionKeys,
    manifest: SegmentManifest,
    opened: tuple[UnfinishedTransaction, ...],
    lineage: Lineage,
    put: PutDerived,
) -> SegmentManifest:
    """The manifest that follows from the stored bytes if ``opened`` are open where they begin."""
    log = find(store, keys.file(manifest.log_name))
    if log is None or log.etag != manifest.objects[manifest.log_name].etag:
        raise Undecided(f"{keys.file(manifest.log_name)}: is not what its manifest describes: `reupload` it first")
    if not log.size:
        return manifest.model_copy(update={"open_transactions": tuple(map(OpenTransaction.of, opened))})
    own = Lineage(manifest.lineage).with_history(lineage)
    facts = rebuild(store, keys, manifest.name, log, KnownLineages.of(None, own), opened, put)
    opened_then = tuple(map(OpenTransaction.of, facts.summary.open_transactions))
    return manifest.model_copy(update={"objects": facts.objects, "open_transactions": opened_then})


def _only_sum(_store: Store, _key: str, ours: Summed) -> ObjectSum:
    return ObjectSum(size=ours.content.size, crc32c=f"{ours.crc32c:08x}", etag="")
