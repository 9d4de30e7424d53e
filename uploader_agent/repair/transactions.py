"""Transactions around a segment that gets batches: the open ones at its start, and their effect on later segments."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from tidemark.errors import TidemarkError
from tidemark.formats.keys import PartitionKeys
from tidemark.formats.raw.manifest import ObjectSum, OpenTransaction, SegmentManifest
from tidemark.formats.raw.pack import PackedRange
from tidemark.kafka_log import Lineage, UnfinishedTransaction
from tidemark.raw import objects
from tidemark.raw.objects import StoredManifest, read_manifest
from tidemark.store import Store
from uploader_agent.stored import manifests
from uploader_agent.stored.lineage import KnownLineages
from uploader_agent.stored.objects import PutDerived, Summed, find, put_derived
from uploader_agent.stored.open_transactions import open_in_store
from uploader_agent.upload.manifest_rebuild import rebuild


class Undecided(TidemarkError):
    """The fate of a transaction is unknown; the message states a remedy."""


def open_at(
    store: Store, keys: PartitionKeys, manifest: SegmentManifest, lineage: Lineage, ranges: Iterable[PackedRange]
) -> tuple[UnfinishedTransaction, ...]:
    """The transactions open at the start of the segment, from the segments below it, or the range that ends there.

    Raises:
        Undecided: they are unknown. It is never assumed that there are none.
        StoreError: the store failed.
    """
    base, own = manifest.base_offset, manifest.history.with_history(lineage)
    known = open_in_store(store, keys, base, own)
    if known is not None:
        return known
    for _, range_ in ranges:
        if range_.next == base and Lineage(range_.epochs, range_.restores).divergence(own, base) is None:
            return tuple(txn.unfinished for txn in range_.open)
    rule = f"the transactions open at offset {base} are unknown"
    raise Undecided(f"{keys.manifest(manifest.name)}: {rule}: the segment before it is gone, and so are its packs")


def tell_following(
    store: Store,
    keys: PartitionKeys,
    after: SegmentManifest,
    opened: tuple[UnfinishedTransaction, ...],
    new: Collection[UnfinishedTransaction],
    lineage: Lineage,
) -> None:
    """Make indexes and manifests of the segments behind ``after`` again, up to the segment that decides all ``new``.

    ``opened`` are the transactions open at the end of ``after``, and ``new`` are the formerly unknown ones. An index
    that lists an aborted transaction without data is not wrong, so this comes before the data.

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
            rebuilt = _rebuilt(store, keys, stored.manifest, now, lineage, put)
            now = tuple(transaction.unfinished for transaction in rebuilt.open_transactions)
            left &= {*now}
            if put is put_derived and rebuilt != stored.manifest:
                manifests.write_over(store, keys, rebuilt, stored)
        if left:
            rule = f"no later segment decides the transaction of producer {min(left).producer_id}"
            raise Undecided(f"{keys.manifest(after.name)}: {rule}: try again once more of the log is sealed")


def _behind(store: Store, keys: PartitionKeys, after: SegmentManifest, lineage: Lineage) -> Iterator[StoredManifest]:
    """The segments behind ``after`` on ``lineage``, each beginning at the end of the one before."""
    at = after.next_offset
    while True:
        read = (read_manifest(store, keys, entry.name) for entry in objects.manifests(store, keys, at, at + 1))
        sound = (stored for stored in read if stored is not None and stored.manifest.state == "whole")
        following = next((stored for stored in sound if manifests.begins_on(stored.manifest, lineage)), None)
        if following is None:
            return
        yield following
        at = following.manifest.next_offset


def _rebuilt(
    store: Store,
    keys: PartitionKeys,
    manifest: SegmentManifest,
    opened: tuple[UnfinishedTransaction, ...],
    lineage: Lineage,
    put: PutDerived,
) -> SegmentManifest:
    """The manifest of the stored bytes if the transactions ``opened`` are open at their start."""
    log = find(store, keys.file(manifest.log_name))
    if log is None or log.etag != manifest.objects[manifest.log_name].etag:
        raise Undecided(f"{keys.file(manifest.log_name)}: is not what its manifest describes: `reupload` it first")
    if not log.size:
        return manifest.model_copy(update={"open_transactions": tuple(map(OpenTransaction.of, opened))})
    own = manifest.history.with_history(lineage)
    facts = rebuild(store, keys, manifest.name, log, KnownLineages.of(None, own), opened, put)
    opened_then = tuple(map(OpenTransaction.of, facts.summary.open_transactions))
    return manifest.model_copy(update={"objects": facts.objects, "open_transactions": opened_then})


def _only_sum(_store: Store, _key: str, ours: Summed) -> ObjectSum:
    return ObjectSum(size=ours.content.size, crc32c=f"{ours.crc32c:08x}", etag="")
