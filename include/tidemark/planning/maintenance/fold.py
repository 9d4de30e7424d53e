"""The plan of a fold: the evidence of many landed attempts becomes one object, so that a reader gets few.

A topic that lands every minute has 1,440 evidence objects a day. Like small files they are merged with their
neighbours, and no object is written again more often than its size can double.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.plan import RunPlan
from tidemark.planning.common import find_plan, following
from tidemark.table.delta_table import TopicTable
from tidemark.table.evidence import evidence_key

FOLD_FROM: Final = 100
"""Fewest attempts that are folded: a fold costs a commit, and listed attempts cost little."""

FOLD_BYTES: Final = 32 << 20
"""Most bytes that are folded into one object, which takes some 100 MB of memory while it is made."""

KEPT: Final = 20
"""The last attempts, which are not folded: their results show how fast runs are here."""

_SKEW: Final = timedelta(minutes=5)
"""Largest difference between the clocks of two planners."""


def has_landed(table: TopicTable, ledger: Ledger, plan: RunPlan) -> bool:
    """True if the attempt of ``plan`` has landed; unknown for an attempt that is too old to commit anything.

    The store is asked only if the plan is older than a listed fold: a run is repeated after that. Raises
    StoreError.
    """
    if plan.attempt in ledger.landed:
        return True
    later = (fold.attempt for fold in ledger.folds if plan.created_at <= fold.at + _SKEW)
    return any(plan.attempt in fold.folds for key in later if (fold := find_plan(table, key)) is not None)


def landed_attempts(table: TopicTable, ledger: Ledger) -> frozenset[int]:
    """The attempts that have landed, without attempts that are too old to commit anything. Raises StoreError."""
    folds = (find_plan(table, fold.attempt) for fold in ledger.folds)
    return frozenset([*ledger.landed, *(attempt for fold in folds if fold is not None for attempt in fold.folds)])


def plan_fold(table: TopicTable, ledger: Ledger) -> RunPlan:
    """The plan of a fold; empty if there is nothing to fold. The next vacuum reports missing evidence."""
    folds: tuple[int, ...] = ()
    if len(ledger.landed) >= FOLD_FROM:
        listed = {info.key: info.size for info in table.store.list(table.keys.evidence)}
        sizes = {attempt: listed.get(evidence_key(table, attempt)) for attempt in ledger.landed}
        folds = to_fold(ledger.landed, sizes)
    return RunPlan(**following(table, ledger), kind="fold", folds=folds)


def to_fold(landed: Sequence[int], sizes: Mapping[int, int | None]) -> tuple[int, ...]:
    """The attempts of the ledger's list to fold into one, by the sizes of their evidence objects in bytes.

    They are neighbours in that list, since it has the order of the commits, and evidence may refer to earlier commits.
    An object that has more bytes than all others together, or fills a fold by itself, stays as it is. So do the last
    attempts. If there are only a few, none is folded.
    """
    chosen: list[int] = []
    total = 0
    for attempt in landed[: max(0, len(landed) - KEPT)]:
        size = sizes[attempt]
        if size is not None and 2 * size <= FOLD_BYTES and total + size <= FOLD_BYTES:
            chosen.append(attempt)
            total += size
        elif len(chosen) >= FOLD_FROM:
            break
        else:
            chosen, total = [], 0
    known = [sizes[attempt] or 0 for attempt in chosen]
    while known and 2 * max(known) > sum(known):
        after = known.index(max(known)) + 1
        chosen, known = chosen[after:], known[after:]
    return tuple(chosen) if len(chosen) >= FOLD_FROM else ()
