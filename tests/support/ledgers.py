"""States of a ledger, for tests of what reads one."""

from __future__ import annotations

from typing import Any

from tidemark.formats.table.ledger import PartitionState


def landed(next_offset: int, partition: int = 0, **more: Any) -> PartitionState:
    """A partition that is landed up to ``next_offset``, by markers below it; ``more`` are other fields."""
    usual = {"incarnation": 0, "topic_id": None, "start_offset": 0, "verdicts_end": next_offset, "leader_epoch": 0}
    return PartitionState(partition=partition, next_offset=next_offset, **{**usual, **more})
