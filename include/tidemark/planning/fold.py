"""The plan of a fold: the evidence of many landed attempts becomes one object, so that a reader gets few.

A topic that lands every minute has 1,440 evidence objects a day. Like small files they are merged with their
neighbours, and so that none is written again more often than it can double.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from tidemark.formats.ledger import Ledger
from tidemark.formats.plan import RunPlan
from tidemark.planning.common import following
from tidemark.planning.plan_store import find_plan
from tidemark.table.delta_table import TopicTable
from tidemark.table.evidence import evidence_key

FOLD_FROM: Final = 100
"""The fewest attempts that are folded: a fold costs a commit, and listed attempts cost little."""

FOLD_BYTES: Final = 32 << 20
"""The most bytes that are folded into one object: it takes some 100 MB of memory while it is made."""

KEPT: Final = 20
"""The last attempts, which are not folded: their results tell how fast runs are here."""

_SKEW: Final = timedelta(minutes=5)
"""By how much the clocks of two planners may differ."""


def has_landed(table: TopicTable, ledger: Ledger, plan: RunPlan) -> bool:
    """Whether the attempt of ``plan`` has landed; not known of one that is so old that it can commit no more.

    The store is asked only if the plan is older than a fold that is listed: a run is repeated after that.

    Raises:
        StoreError: the store failed.
    """
    if plan.attempt in ledger.landed:
        return True
    later = (one.attempt for one in ledger.folds if plan.created_at <= one.at + _SKEW)
    return any(plan.attempt in fold.folds for one in later if (fold := find_plan(table, one)) is not None)


def landed_attempts(table: TopicTable, ledger: Ledger) -> frozenset[int]:
    """The attempts that have landed, but for those that can commit no more. Raises StoreError."""
    folds = (find_plan(table, one.attempt) for one in ledger.folds)
    return frozenset([*ledger.landed, *(attempt for fold in folds if fold is not None for attempt in fold.folds)])


def plan_fold(table: TopicTable, ledger: Ledger) -> RunPlan:
    """What to fold; empty if there is nothing. Evidence that is missing is left to the next vacuum to report."""
    folds: tuple[int, ...] = ()
    if len(ledger.landed) >= FOLD_FROM:
        there = {info.key: info.size for info in table.store.list(table.keys.evidence)}
        sizes = {one: there.get(evidence_key(table, one)) for one in ledger.landed}
        folds = to_fold(ledger.landed, sizes)
    return RunPlan(**following(table, ledger), kind="fold", folds=folds)


def to_fold(landed: Sequence[int], sizes: Mapping[int, int | None]) -> tuple[int, ...]:
    """Which attempts of the ledger's list to fold into one, by the sizes of their evidence objects in bytes.

    They are neighbours in that list, since it has the order of the commits, and evidence may refer to what landed
    before it. An object that has more bytes than all others together, or fills one by itself, stays as it is. So do the
    last ones. If there are only a few, none is folded.
    """
    chosen: list[int] = []
    total = 0
    for one in landed[: max(0, len(landed) - KEPT)]:
        size = sizes[one]
        if size is not None and 2 * size <= FOLD_BYTES and total + size <= FOLD_BYTES:
            chosen.append(one)
            total += size
        elif len(chosen) >= FOLD_FROM:
            break
        else:
            chosen, total = [], 0
    known = [sizes[one] or 0 for one in chosen]
    while known and 2 * max(known) > sum(known):
        after = known.index(max(known)) + 1
        chosen, known = chosen[after:], known[after:]
    return tuple(chosen) if len(chosen) >= FOLD_FROM else ()
