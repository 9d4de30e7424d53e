"""Gaps that runs found and agents did not: an object was removed, or does not hold the data that its manifest lists."""

from __future__ import annotations

from tidemark.formats.raw.gaps import Gap
from tidemark.intervals import Intervals
from tidemark.planning.ingest import decision_of
from tidemark.raw.byte_ranges import TARGET_BYTES
from tidemark.raw.topic import RawTopic
from tidemark.table.delta_table import TopicTable, committed_ledger


def lost(table: TopicTable, incarnation: int, partition: int) -> tuple[Gap, ...]:
    """The gaps that hold the partition in the committed ledger, if a plan made now would find them, too.

    Landed offsets that an unclean election cut off are not gaps: they are replaced, not given up.

    Raises:
        FormatError: an object in the store does not parse.
        StoreError: a store did not answer.
    """
    ledger = committed_ledger(table)
    state = ledger.by_partition.get((incarnation, partition))
    if state is None or not state.gaps:
        return ()
    raw = RawTopic(table)
    part = next((candidate for candidate in raw.partitions(ledger) if candidate.key == state.key), None)
    decision = decision_of(table, raw, part, ledger, TARGET_BYTES) if part else None
    if decision is None:
        return ()
    still_lost = Intervals.of(decision.plan.gaps)
    return tuple(
        gap.model_copy(update={"start": start, "end": end})
        for gap in state.gaps
        for start, end in still_lost & Intervals([(max(gap.start, state.next_offset), gap.end)])
    )
