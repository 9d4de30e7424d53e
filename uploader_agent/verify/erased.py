"""Compares a seal that an erasure has rewritten with the broker's own bytes, which have the erased records still.

Batches without an erased record have the same bytes. Of the others the headers must agree, and the counts of records
with those of the manifest; an agent decodes no record, so it does not see what else was changed in there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest

from tidemark.kafka_log import BatchHeader


def difference(
    stored: Iterator[BatchHeader], local: Iterator[BatchHeader], gone: Mapping[int, int], path: str
) -> str | None:
    """The first difference of a seal from ``path`` apart from the records that are ``gone`` from it, in words."""
    left = dict(gone)
    for ours, theirs in zip_longest(stored, local):
        if ours is None or theirs is None:
            return f"has {'more' if theirs is None else 'fewer'} batches than {path}"
        erased = left.pop(ours.base_offset, 0)
        if not _agree(ours, theirs, erased):
            return f"has another batch at offset {ours.base_offset} than {path}, beside erased records"
    if left:
        return f"has no batch at offset {min(left)}, of which its manifest says that records were erased"
    return None


def _agree(ours: BatchHeader, theirs: BatchHeader, erased: int) -> bool:
    if not erased:
        return ours._replace(position=0) == theirs._replace(position=0)
    return _identity(ours, ours.record_count + erased) == _identity(theirs, theirs.record_count)


def _identity(header: BatchHeader, records: int) -> tuple[object, ...]:
    producer = header.producer_id, header.producer_epoch, header.base_sequence
    kind = header.magic, header.is_transactional, header.is_control, header.timestamp_type
    return header.base_offset, header.next_offset, header.leader_epoch, producer, kind, records
