"""Parts that plans share: the ledger that a plan follows, its settings, code and identity, and its masks."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from tidemark.formats.table.ledger import Ledger, new_attempt
from tidemark.formats.table.plan import StoredMasks
from tidemark.intervals import Intervals
from tidemark.planning.code_digest import code_digest
from tidemark.raw.masks import mask_of
from tidemark.raw.topic import RawTopic
from tidemark.store import open_store
from tidemark.table.delta_table import TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence

Key = tuple[int, int]


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
        "masks": ledger.masks,
        "created_at": created_at or table.store.now(),
    }


def spared_offsets(raw: RawTopic, standing: EffectiveEvidence) -> dict[Key, Intervals]:
    """The masked offsets by partition that have another class than ``erased`` in the table's evidence.

    Their records wait for the erasure, or had left the table before. A run over the table reads them as ever.

    Raises:
        FormatError: a mask does not parse.
    """
    masks = raw.masks_of(standing.ledger, pending=False)
    if not masks:
        return {}
    erased: dict[Key, list[tuple[int, int]]] = {}
    for row in standing.evidence():
        if row.offset_class == "erased":
            erased.setdefault(row.key, []).append((row.first, row.next))
    return {
        key: Intervals((offset, offset + 1) for offset in masked_offsets(standing.table, stored))
        - Intervals(erased.get(key, ()))
        for key, stored in masks.items()
    }


def masked_offsets(table: TopicTable, stored: StoredMasks, approvals: Collection[str] | None = None) -> list[int]:
    """The offsets of the ``stored`` masks, of all leader epochs, ascending.

    With ``approvals``, only those of masks all of whose approvals are among them.
    """
    store = open_store(stored.store, table.deployment.store)
    masks = [mask_of(store, key) for key in stored.keys]
    if approvals is not None:
        masks = [mask for mask in masks if set(mask.approvals) <= set(approvals)]
    return sorted({offset for mask in masks for part in mask.epochs for offset in part.offsets})
