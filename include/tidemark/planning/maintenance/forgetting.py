"""What evidence tells of erased records and nothing needs any more, and the folds that leave it out.

With a sum over rows of which one was erased, and that of the others, a guess of the whole record can be tested. Rows
that hold have no such sum. These do, around a masked offset: rows that hold no more, which are needed while their file
is stored, since a program might restore it; and rows of class ``expired``. From the latter the erased offsets are taken
as rows of class ``erased``: no file tells which they are, so only those that can be of no other row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.plan import RunPlan, StoredMasks
from tidemark.intervals import Intervals
from tidemark.planning.common import Key, following, masked_offsets
from tidemark.planning.maintenance.fold import FOLD_BYTES
from tidemark.raw.masks import mask_of
from tidemark.raw_topic import RawTopic
from tidemark.store import open_store
from tidemark.table.delta_table import TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import PARSED, EvidenceRow, evidence_key
from tidemark.table.evidence_reader import evidence_that_counts, rows_of


class Forgetting(NamedTuple):
    """The choice of rows that lose something: by the ``masked`` offsets, ascending, and the ``stored`` files.

    ``erased`` has offsets that rows of class ``expired`` lose.
    """

    standing: EffectiveEvidence
    masked: Mapping[Key, Sequence[int]]
    stored: Collection[str]
    erased: Mapping[EvidenceRow, Sequence[int]]

    @classmethod
    def of(cls, table: TopicTable) -> Self:
        """The choice for the masks, the evidence and the files as they are now.

        Raises:
            FormatError: a mask, or another object, does not parse.
            StoreError: a store did not answer.
        """
        standing, raw = EffectiveEvidence.of(table), RawTopic(table)
        ledger = standing.ledger
        masks = raw.masks_of(ledger, pending=False)
        folders = (f"{table.keys.root}/", f"{table.keys.quarantine}/") if masks else ()
        stored = {info.key.removeprefix(folder) for folder in folders for info in table.store.list(folder)}
        masked = {key: masked_offsets(table, named) for key, named in masks.items()}
        followed = all(number <= ledger.masks.get(place, 0) for place, number in raw.mask_numbers().items())
        live = {key: _live(table, ledger, key, named) for key, named in masks.items()} if followed else {}
        return cls(standing, masked, stored, _expired(standing, live))

    def rewritten(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """The rows that take the place of a ``row`` of the evidence, by column; just this one if it stays."""
        gone = self.erased.get(EvidenceRow.of(row), ()) if row["class"] == "expired" else ()
        if not gone and not self._tells(row):
            return [row]
        rows = [{**row, "rows": row["rows"] - len(gone), "hash128": None}]
        for first, after in Intervals((offset, offset + 1) for offset in gone):
            place = {"first": first, "next": after, "rows": after - first}
            rows.append({**row, **place, "class": "erased", "dt": None, "hash128": None})
        return [row for row in rows if row["rows"]]

    def _tells(self, row: Mapping[str, Any]) -> bool:
        masked = self.masked.get((row["incarnation"], row["partition"]), ())
        if row["hash128"] is None or bisect_left(masked, row["first"]) == bisect_left(masked, row["next"]):
            return False
        return row["class"] == "expired" or (row["file"] not in self.stored and not self.standing.holds(row))


def _live(table: TopicTable, ledger: Ledger, key: Key, named: StoredMasks) -> list[int]:
    """The masked offsets, ascending, whose leader epoch is that of the branch which the table follows."""
    store, lineage = open_store(named.store, table.deployment.store), ledger.by_partition[key].history
    live: set[int] = set()
    for mask in (mask_of(store, key) for key in named.keys):
        parted = lineage.parted_at(mask.restores)
        for part in mask.epochs:
            shared = (offset for offset in part.offsets if parted is None or offset < parted)
            live |= {offset for offset in shared if part.epoch in {-1, lineage.epoch_at(offset)}}
    return sorted(live)


def _expired(standing: EffectiveEvidence, live: Mapping[Key, Sequence[int]]) -> dict[EvidenceRow, list[int]]:
    """The erased offsets of rows of class ``expired``: those around which lies no other row that they may be of.

    The erasure has taken its offsets from the rows of records, which may lie around them nevertheless.
    """
    around: dict[tuple[Key, int], list[EvidenceRow]] = {}
    for row in standing.evidence():
        masked = live.get(row.key, ())
        for offset in masked[bisect_left(masked, row.first) : bisect_left(masked, row.next)]:
            around.setdefault((row.key, offset), []).append(row)
    erased: dict[EvidenceRow, list[int]] = {}
    for (_, offset), rows in sorted(around.items()):
        exact = [row for row in rows if row.rows == row.next - row.first]
        match exact or [row for row in rows if row.offset_class not in PARSED]:
            case [row] if row.offset_class == "expired":
                erased.setdefault(row, []).append(offset)
    return erased


def plan_forgetting(table: TopicTable) -> list[RunPlan]:
    """The plans of folds that leave out what nothing needs; one for each run of neighbours of FOLD_BYTES.

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
        if any(forgetting.rewritten(row) != [row] for row in rows_of(rows))
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
