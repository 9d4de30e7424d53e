"""The entries of a ``.txnindex``, with the last stable offsets that nothing of ours reads."""

from __future__ import annotations

from struct import Struct
from typing import Any

from tidemark.kafka_log import parse_txn_index

_ENTRY = Struct(">hqqqq")


def txn_entries(raw: bytes) -> list[tuple[Any, ...]]:
    """(producer id, first offset, last offset, last stable offset) of each entry of a valid index."""
    entries = [entry[1:] for entry in _ENTRY.iter_unpack(raw)]
    parsed = [(one.producer_id, one.first_offset, one.last_offset) for one in parse_txn_index(raw, "txnindex")]
    assert [entry[:3] for entry in entries] == parsed
    return entries
