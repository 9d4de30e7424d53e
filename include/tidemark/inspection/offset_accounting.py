"""The fate of every offset of a topic: the committed ledger and the valid evidence, added up and compared.

Streams the evidence, so that memory grows with partitions and with the requested dates alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any, Final, get_args

from tidemark.formats.table.ledger import PartitionState
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import PARSED, OffsetClass

CLASSES: Final[tuple[str, ...]] = get_args(OffsetClass)
"""The classes of the offsets below a partition's next offset."""

DATED: Final = (*PARSED, "expired")
"""The classes of offsets that have a date."""

Key = tuple[int, int]


def accounts_of(standing: EffectiveEvidence, dates: Collection[str] = ()) -> dict[str, Any]:
    """The sums, as the values of JSON.

    ``balanced`` is false wherever the evidence does not add up to the ledger: for a partition to its ``next_offset``,
    for the table and for each of ``dates`` to its rows. ``truncated`` offsets were landed, and cut off.
    """
    table = standing.table
    ledger = standing.ledger
    classes: dict[Key, Counter[str]] = {}
    dated: dict[str, dict[Key, Counter[str]]] = {dt: {} for dt in sorted(dates)}
    for row in (row for rows in standing.by_attempt() for row in rows):
        key = row.key
        classes.setdefault(key, Counter())[row.offset_class] += row.rows
        if row.day in dated:
            dated[row.day].setdefault(key, Counter())[row.offset_class] += row.rows
    states = ledger.by_partition
    unknown = sorted(classes.keys() - states.keys())
    partitions = [_partition(state, classes.get(key, Counter()), standing) for key, state in sorted(states.items())]
    landed = sum(counts["landed"] for counts in classes.values())
    days = [_date(dt, ledger.dates[dt].rows if dt in ledger.dates else 0, parts) for dt, parts in dated.items()]
    sums: dict[str, Any] = {
        "topic": f"{ledger.cluster}/{ledger.topic}",
        "table": table.url,
        "ledger": ledger.n,
        "committed_at": ledger.committed_at.isoformat(),
        "rows": ledger.rows,
        "landed": landed,
        "missing_evidence": standing.missing,
        "partitions": partitions,
        "dates": days,
    }
    balanced = landed == ledger.rows and not unknown and all(part["balanced"] for part in (*partitions, *days))
    return sums | {"balanced": balanced}


def _partition(state: PartitionState, classes: Counter[str], standing: EffectiveEvidence) -> dict[str, Any]:
    classed = sum(classes.values())
    return {
        "incarnation": state.incarnation,
        "partition": state.partition,
        "topic_id": state.topic_id,
        "start_offset": state.start_offset,
        "next_offset": state.next_offset,
        "covered": state.next_offset,
        "classes": {name: classes[name] for name in CLASSES},
        "classed": classed,
        "balanced": classed == state.next_offset,
        "truncated": standing.truncated.get(state.key, 0),
        "held_by": [hold.model_dump(mode="json", by_alias=True) for hold in state.held_by],
    }


def _date(dt: str, rows: int, parts: dict[Key, Counter[str]]) -> dict[str, Any]:
    landed = sum(counts["landed"] for counts in parts.values())
    return {
        "dt": dt,
        "rows": rows,
        "landed": landed,
        "balanced": landed == rows,
        "partitions": [
            {"incarnation": key[0], "partition": key[1], **{name: counts[name] for name in DATED}}
            for key, counts in sorted(parts.items())
        ],
    }
