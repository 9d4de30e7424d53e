"""A reader as simple as can be: what it gets by the catalogue's answers."""

from __future__ import annotations

from tests.tidemark.remote.model import Row
from tidemark.decode import aborted_mask, decode_batches, scan_headers
from tidemark.remote import Stretch
from tidemark.storage import Storage


def read(storage: Storage, stretch: Stretch) -> list[Row]:
    """The records of a stretch."""
    segment = stretch.segment
    store = storage.store(segment.store)
    data = store.get_range(segment.key, stretch.position, segment.stop, if_match=segment.etag or None)
    headers = scan_headers(data, segment.key, segment.base, position=stretch.position)
    found: list[Row] = []
    for rows in decode_batches(
        data,
        headers,
        name=segment.key,
        partition=0,
        incarnation=0,
        select=~aborted_mask(headers, stretch.aborted),
        from_offset=stretch.start,
        to_offset=stretch.end,
        position=stretch.position,
    ):
        for row in rows.to_pylist():
            time = round(row["kafka_timestamp"].timestamp() * 1000)
            found.append(Row(row["kafka_offset"], time, row["kafka_value"], row["kafka_leader_epoch"]))
    return found
