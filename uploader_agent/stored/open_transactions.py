"""The transactions open at an offset, as the stored segments know them."""

from __future__ import annotations

from itertools import takewhile
from typing import Final

from tidemark.formats.keys import PartitionKeys
from tidemark.kafka_log import Lineage, UnfinishedTransaction, carry_forward, scan_batches
from tidemark.raw import objects
from tidemark.raw.objects import REACH, read_manifest
from tidemark.raw.stored_bytes import pieces
from tidemark.store import Store
from uploader_agent.stored.objects import find
from uploader_agent.stored.stored_log import StoredSegment

_NEAREST: Final = 64
"""Segments below an offset that are read: a segment of each branch has it or ends there."""


def open_in_store(
    store: Store, keys: PartitionKeys, offset: int, lineage: Lineage
) -> tuple[UnfinishedTransaction, ...] | None:
    """The transactions open at ``offset`` of the log with this ``lineage``; None if no stored segment tells them.

    A manifest lists those open at its segment's end. Inside a segment, its batches below ``offset`` tell the rest.

    Raises:
        FormatError: a segment is damaged.
        StoreError: the store failed.
    """
    if offset == 0:
        return ()
    for entry in reversed([*objects.manifests(store, keys, max(0, offset - REACH), offset)][-_NEAREST:]):
        stored = read_manifest(store, keys, entry.name)
        segment = StoredSegment.of(stored.manifest, lineage) if stored else None
        if segment is None or segment.state != "whole" or segment.readable_end < offset:
            continue
        if segment.next_offset == offset:
            return segment.open_transactions
        opened = open_in_store(store, keys, segment.base_offset, lineage)
        log = find(store, keys.segment(segment.name, "log"))
        if opened is not None and log is not None:
            batches = scan_batches(pieces(store, log), log.key, segment.base_offset)
            return carry_forward(opened, takewhile(lambda header: header.next_offset <= offset, batches))
    return None
