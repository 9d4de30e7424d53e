"""Samples a topic from the segments that agents stored; no broker is asked."""

from __future__ import annotations

from tidemark.onboarding.sample import Sample, Span, chosen, ends, rows_of
from tidemark.remote.catalog.storage import Storage
from tidemark.remote.reader.read_range import iter_range
from tidemark.remote.topics import RemoteTopics


def raw_sample(storage: Storage, topic: str, records: int) -> Sample | None:
    """At most about ``records`` records; None if the agents have stored none.

    Raises:
        StoreError, FormatError, SegmentError: raw cannot be read.
    """
    topics = RemoteTopics(storage)
    numbers = topics.partitions_for_topic(topic)
    spans: dict[int, Span] = {}
    for number in chosen(numbers):
        known = topics.partition(topic, number)
        if known is not None:
            spans[number] = Span(known.start, max(known.start, known.end(committed=True)))
    each = max(2, records // max(1, len(spans)))
    batches = [
        batch
        for number, span in spans.items()
        for part in ends(span, each)
        for batch in iter_range(topic, number, *part, storage=storage, on_gap="skip")
    ]
    rows = rows_of(batches)
    return Sample("raw", rows, spans, len(numbers)) if len(rows) else None
