"""The sums of evidence that tell of erased records and that nothing needs any more, and the folds that leave them out.

With a sum over rows of which one was erased, and that of the others, a guess of the whole record can be tested. Rows
that hold have no such sum. These do, around a masked offset: rows that hold no more, which are needed while their file
is stored, since a program might restore it; and rows of class ``expired``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

from tidemark.formats.table.plan import RunPlan
from tidemark.planning.common import Key, following, masked_offsets
from tidemark.planning.maintenance.fold import FOLD_BYTES
from tidemark.raw.topic import RawTopic
from tidemark.table.delta_table import TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import evidence_key
from tidemark.table.evidence_reader import evidence_that_counts, rows_of


class Forgetting(NamedTuple):
    """The choice of rows that lose their sum: by the ``masked`` offsets, ascending, and the ``stored`` files."""

    standing: EffectiveEvidence
    masked: Mapping[Key, Sequence[int]]
    stored: Collection[str]

    @classmethod
    def of(cls, table: TopicTable) -> Self:
        """The choice for the masks, the evidence and the files as they are now.

        Raises:
            FormatError: a mask, or another object, does not parse.
            StoreError: a store did not answer.
        """
        standing = EffectiveEvidence.of(table)
        masks = RawTopic(table).masks_of(standing.ledger, pending=False)
        folders = (f"{table.keys.root}/", f"{table.keys.quarantine}/") if masks else ()
        stored = {info.key.removeprefix(folder) for folder in folders for info in table.store.list(folder)}
        return cls(standing, {key: masked_offsets(table, stored) for key, stored in masks.items()}, stored)

    def __call__(self, row: Mapping[str, Any]) -> bool:
        """True if a row of the evidence, by column, loses its sum."""
        masked = self.masked.get((row["incarnation"], row["partition"]), ())
        if row["hash128"] is None or bisect_left(masked, row["first"]) == bisect_left(masked, row["next"]):
            return False
        return row["class"] == "expired" or (row["file"] not in self.stored and not self.standing.holds(row))


def plan_forgetting(table: TopicTable) -> list[RunPlan]:
    """The plans of folds that leave out all sums which nothing needs; one for each run of neighbours of FOLD_BYTES.

    Raises:
        FormatError: a mask, or another object, does not parse.
        StoreError: a store did not answer.
    """
    forgetting = Forgetting.of(table)
    ledger = forgetting.standing.ledger
    if not forgetting.masked:
        return []
    telling = [
        attempt
        for attempt, rows in evidence_that_counts(table, ledger.landed)
        if any(forgetting(row) for row in rows_of(rows))
    ]
    sizes = {info.key: info.size for info in table.store.list(table.keys.evidence)} if telling else {}
    runs = _runs(ledger.landed, {*telling}, {at: sizes.get(evidence_key(table, at), 0) for at in ledger.landed})
    return [RunPlan(**following(table, ledger), kind="fold", folds=run, forgets=True) for run in runs]


def _runs(landed: Sequence[int], telling: Collection[int], sizes: Mapping[int, int]) -> Iterator[tuple[int, ...]]:
    """Runs of neighbours in ``landed`` that begin and end with ``telling`` attempts and have at most FOLD_BYTES.

    An attempt that is larger is a run by itself.
    """
    run: list[int] = []
    between: list[int] = []
    for attempt in landed:
        if not run and attempt not in telling:
            continue
        between.append(attempt)
        if attempt not in telling:
            continue
        if run and sum(sizes[at] for at in (*run, *between)) > FOLD_BYTES:
            yield tuple(run)
            run, between = [], [attempt]
        run, between = [*run, *between], []
    if run:
        yield tuple(run)
