"""The plans by which a table forgets erased rows: its files are made again without them, then the evidence of these.

Masks name the erased offsets. Those that the table does not follow yet are pending; a run takes each live file, of the
table or of quarantine, with evidence around one of their offsets, and the evidence of filtered rows there. Which rows
are erased, a task finds in the file.

Evidence may tell of an erased record later, too. With a sum over rows of which one was erased, and that of the others,
a guess of the whole record can be tested. Rows that hold have no such sum. These do, around a masked offset: rows that
hold no more, which are needed while their file is stored, since a program might restore it; and rows of class
``expired``. Folds leave them out. From rows of class ``expired`` the erased offsets are taken as rows of class
``erased``: no file tells which they are, so only those that can be of no other row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.plan import PartitionPlan, QuarantineTask, RunPlan, StoredMasks, TableFileTask
from tidemark.intervals import Intervals
from tidemark.planning.common import Key, following, masked_offsets
from tidemark.planning.maintenance.fold import FOLD_BYTES
from tidemark.planning.read import spans_of
from tidemark.planning.rebuild import files_by_date
from tidemark.raw.masks import mask_of
from tidemark.raw_topic import RawTopic
from tidemark.store import open_store
from tidemark.table.delta_table import TopicTable, open_delta
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import PARSED, EvidenceRow, evidence_key
from tidemark.table.evidence_reader import evidence_that_counts, rows_of
from tidemark.table.tampering import check_untampered

if TYPE_CHECKING:
    import pyarrow as pa


def plan_erasure(table: TopicTable, *, attempt: int | None = None) -> RunPlan | None:
    """The plan to take the rows of all pending masks out of the table; None if no mask is pending.

    Raises:
        FormatError: a mask, or another object, does not parse.
        TableTampered: another program changed the table.
    """
    standing = EffectiveEvidence.of(table)
    check_untampered(table, standing.ledger, standing.files)
    ledger = standing.ledger
    raw = RawTopic(table)
    numbers = raw.mask_numbers()
    if all(number <= ledger.masks.get(place, 0) for place, number in numbers.items()):
        return None
    pending = raw.masks_of(ledger, pending=True)
    files = _files(standing, {key: masked_offsets(table, masks) for key, masks in pending.items()})
    rows = [row for rows in files.values() for row in rows]
    delta = open_delta(table)
    return RunPlan(
        **(following(table, ledger, attempt) | {"masks": numbers}),
        kind="erase",
        partitions=tuple(
            PartitionPlan.of(state := ledger.by_partition[key], 0, state.next_offset, masks)
            for key, masks in sorted(pending.items())
        ),
        tasks=tuple(
            _task(table, ledger, path, rows)
            for path, rows in sorted(files.items())
            if rows[0].offset_class != "filtered"
        ),
        removes=tuple(sorted(path for path, rows in files.items() if rows[0].offset_class == "landed")),
        supersedes=files_by_date(row for row in rows if row.offset_class != "landed"),
        columns=tuple(field.name for field in delta.schema().fields if field.name != "dt") if delta is not None else (),
    )


def _files(standing: EffectiveEvidence, erased: Mapping[Key, Sequence[int]]) -> dict[str, list[EvidenceRow]]:
    """The evidence of each file that may have rows of ``erased`` offsets."""
    chosen = {
        row.file
        for row in standing.near({key: Intervals((at, at + 1) for at in offsets) for key, offsets in erased.items()})
        if row.file and bisect_left(erased[row.key], row.first) < bisect_left(erased[row.key], row.next)
    }
    files: dict[str, list[EvidenceRow]] = {}
    for row in standing.of_files(chosen):
        if row.file is not None and row.key in erased:
            files.setdefault(row.file, []).append(row)
    return files


def _task(table: TopicTable, ledger: Ledger, path: str, rows: Sequence[EvidenceRow]) -> QuarantineTask | TableFileTask:
    """The task of one file: a range for each span of offsets that its evidence tells apart."""
    refused = rows[0].offset_class == "quarantined"
    key = f"{table.keys.quarantine if refused else table.keys.root}/{path}"
    size = table.store.head(key).size
    ranges = [
        {
            "store": table.deployment.lake_store,
            "key": key,
            "etag": "",
            "base_offset": first,
            "start": 0,
            "end": size,
            "from_offset": first,
            "to_offset": after,
            "uploaded_at": ledger.committed_at,
            "quarantined": path if refused else "",
        }
        for first, after in spans_of(rows)
    ]
    state = ledger.by_partition[rows[0].key]
    at = {"incarnation": state.incarnation, "topic_id": state.topic_id, "partition": state.partition}
    return (QuarantineTask if refused else TableFileTask).model_validate({**at, "ranges": ranges})


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

    def rewritten(self, evidence: pa.Table) -> pa.Table:
        """``evidence`` with what takes the place of the rows that tell something."""
        import pyarrow as pa

        gone = self._gone(evidence)
        if not gone:
            return evidence
        rows = [
            made
            for number, row in enumerate(rows_of(evidence))
            for made in (_without(row, gone[number]) if number in gone else [row])
        ]
        return pa.Table.from_pylist(rows, evidence.schema)

    def _gone(self, evidence: pa.Table) -> dict[int, Sequence[int]]:
        """The numbers of the rows that tell something, and the erased offsets of each."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        expired: Any = pc.equal(evidence["class"], pa.scalar("expired"))
        stored = [file for file in evidence["file"].unique().to_pylist() if file in self.stored]
        is_stored: Any = pc.is_in(evidence["file"], pa.array(stored, pa.string()))
        forgotten = pc.and_(pc.invert(is_stored), pc.invert(self.standing.holds(evidence)))
        telling: Any = pc.and_(pc.is_valid(evidence["hash128"]), pc.or_(expired, forgotten))
        numbers = np.flatnonzero(telling.to_numpy() & self._around_masked(evidence))
        gone: dict[int, Sequence[int]] = dict.fromkeys(numbers.tolist(), ())
        numbers = np.flatnonzero(expired.to_numpy()) if self.erased else numbers[:0]
        for number, row in zip(numbers.tolist(), EvidenceRow.of(evidence.take(numbers)), strict=True):
            if row in self.erased:
                gone[number] = self.erased[row]
        return gone

    def _around_masked(self, evidence: pa.Table) -> Any:
        """A mask of the rows around a masked offset."""
        import numpy as np

        names = ("incarnation", "partition", "first", "next")
        incarnation, partition, first, after = (evidence[name].to_numpy() for name in names)
        around = np.zeros(len(evidence), np.bool_)
        for key, offsets in self.masked.items():
            masked = np.array(offsets, np.int64)
            its = (incarnation == key[0]) & (partition == key[1])
            around |= its & (np.searchsorted(masked, first) < np.searchsorted(masked, after))
        return around


def _without(row: dict[str, Any], gone: Sequence[int]) -> list[dict[str, Any]]:
    """The rows that take the place of ``row``, which loses its sum and the offsets ``gone``."""
    rows = [{**row, "rows": row["rows"] - len(gone), "hash128": None}]
    for first, after in Intervals((offset, offset + 1) for offset in gone):
        place = {"first": first, "next": after, "rows": after - first}
        rows.append({**row, **place, "class": "erased", "dt": None, "hash128": None})
    return [row for row in rows if row["rows"]]


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
    for row in standing.near({key: Intervals((at, at + 1) for at in masked) for key, masked in live.items()}, ()):
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

    Raises FormatError and StoreError.
    """
    forgetting = Forgetting.of(table)
    ledger = forgetting.standing.ledger
    if not forgetting.masked:
        return []
    telling = [
        attempt
        for attempt, rows in evidence_that_counts(table, ledger.landed)
        if forgetting.rewritten(rows) is not rows
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
