"""The plan of a run that makes a table's files again without their erased rows.

Masks name the erased offsets. Those that the table does not follow yet are pending; the run takes each live file, of
the table or of quarantine, with evidence around one of their offsets, and the evidence of filtered rows there. Which
rows are erased, a task finds in the file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.plan import PartitionPlan, QuarantineTask, RunPlan, TableFileTask
from tidemark.intervals import Intervals
from tidemark.planning.common import Key, following, masked_offsets
from tidemark.planning.read import spans_of
from tidemark.planning.rebuild import files_by_date
from tidemark.raw_topic import RawTopic
from tidemark.table.delta_table import TopicTable, open_delta
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import EvidenceRow
from tidemark.table.tampering import check_untampered


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
