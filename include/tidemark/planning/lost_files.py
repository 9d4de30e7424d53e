"""The lost files of a table: its log or its evidence names them, and the store lacks them or has another size.

Ingestion lands uploaded offsets above the ledger, and every offset below it has a class. So a landed date can miss only
files, and a rebuild of the dates with missing files restores them.
"""

from __future__ import annotations

from collections.abc import Collection

from tidemark.concurrency import in_parallel
from tidemark.errors import NotFound
from tidemark.formats.table.ledger import Ledger
from tidemark.raw.topic import RawTopic
from tidemark.table.delta_table import TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence


def lost_files(table: TopicTable, dates: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The files of the table and of its quarantine that are missing or have the wrong size, by date (ISO).

    One listing for each date that has files, and a request for each file of quarantine.
    """
    standing = EffectiveEvidence.of(table)
    lost: dict[str, list[str]] = {}
    for dt in sorted({file.dt for file in standing.live.values()} & set(dates)):
        listed = {info.key: info.size for info in table.store.list(f"{table.keys.root}/dt={dt}/")}
        for file in standing.live.values():
            if file.dt == dt and listed.get(f"{table.keys.root}/{file.path}") != file.size:
                lost.setdefault(dt, []).append(file.path)
    aside = (row for row in standing.set_aside(dates) if row.offset_class == "quarantined")
    refused = {row.file: row.day for row in aside if row.file is not None}
    gone = in_parallel(lambda file: not _is_there(table, f"{table.keys.quarantine}/{file}"), list(refused))
    for (name, dt), is_gone in zip(refused.items(), gone, strict=True):
        if is_gone:
            lost.setdefault(dt, []).append(name)
    return {dt: tuple(sorted(files)) for dt, files in sorted(lost.items())}


def _is_there(table: TopicTable, key: str) -> bool:
    try:
        table.store.head(key)
    except NotFound:
        return False
    return True


def waiting_offsets(table: TopicTable, ledger: Ledger) -> int:
    """Number of offsets sealed or packed and not landed, from the brokers' indexes; ingestion will land them."""
    landed = {key: state.next_offset for key, state in ledger.by_partition.items()}
    ends = {key: entry.least_stored_end for key, entry in RawTopic(table).entries.items()}
    return sum(max(0, end - landed.get(key, 0)) for key, end in ends.items())
