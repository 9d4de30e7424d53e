"""The fields that every plan has: the ledger that it follows, the settings and the code, and its own identity."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tidemark.formats.table.ledger import Ledger, new_attempt
from tidemark.planning.code_digest import code_digest
from tidemark.table.delta_table import TopicTable


def following(
    table: TopicTable, ledger: Ledger, attempt: int | None = None, *, created_at: datetime | None = None
) -> dict[str, Any]:
    """The fields of a ``RunPlan`` that all kinds share; a new attempt unless one is given."""
    topic = table.topic
    return {
        "attempt": new_attempt() if attempt is None else attempt,
        "cluster": topic.cluster,
        "topic": topic.topic,
        "table": topic.table,
        "generation": ledger.generation,
        "ledger_n": ledger.n,
        "ledger_attempt": ledger.attempt,
        "configuration": topic.digest,
        "code": code_digest(),
        "layout": topic.parquet,
        "field_ids": ledger.field_ids,
        "accepts": table.accepts,
        "created_at": created_at or table.store.now(),
    }
