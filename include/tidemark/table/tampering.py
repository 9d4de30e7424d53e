"""Whether another program changed a table since Tidemark's last commit. Needs ``tidemark-kafka[table]``.

The ledger has a digest of the live files: their paths, sizes and numbers of rows. If a version of the table has other
live files, another program made it (DELETE, UPDATE, OPTIMIZE, RESTORE, an overwrite), however many rows it has.
Commits that leave the live files as they are (properties, an OPTIMIZE that found nothing to do, the VACUUM of files
that are not live) change nothing for Tidemark. So the comparison costs no request: every writer has the live files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from typing import Final

from tidemark.errors import TableTampered
from tidemark.formats.ledger import Ledger
from tidemark.table.delta_table import LiveFile, TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence

WAY_OUT: Final = (
    "nothing is written until the table is right again: undo the change (RESTORE), or have the dates made again from "
    "raw: `repair.py`, or mode repair of the backfill; docs/tables.md has the details"
)
_MASK: Final = (1 << 128) - 1
_NAMED: Final = 3


def files_digest(live: Iterable[LiveFile]) -> str:
    """32 hexadecimal digits for a set of live files, whatever their order: the sum of the files' own digests."""
    total = 0
    for one in live:
        text = f"{one.path}\0{one.size}\0{one.rows}"
        total += int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "big")
    return f"{total & _MASK:032x}"


def is_untampered(ledger: Ledger, live: Collection[LiveFile]) -> bool:
    """Whether ``live`` are the files that the commit of ``ledger`` left."""
    return files_digest(live) == ledger.files


def check_untampered(table: TopicTable, ledger: Ledger, live: Collection[LiveFile]) -> None:
    """Raise :class:`TableTampered`, with the files and dates that differ, unless ``live`` is as ``ledger`` left it."""
    if is_untampered(ledger, live):
        return
    what = [*_unknown(EffectiveEvidence.at(table, ledger, live)), *_counts(ledger, live)]
    detail = "; ".join(what) or "files that were replaced are live again, or others are gone"
    raise TableTampered(f"{table.url}: something other than Tidemark changed the table: {detail}. {WAY_OUT}")


def unknown_files(standing: EffectiveEvidence) -> list[str]:
    """The live files, by path, whose number of rows no effective evidence confirms."""
    told = dict.fromkeys(standing.live, 0)
    for rows in standing.by_attempt():
        for row in rows:
            if row.offset_class == "landed" and row.file in told:
                told[row.file] += row.rows
    return sorted(path for path, rows in told.items() if rows != standing.live[path].rows)


def _unknown(standing: EffectiveEvidence) -> Iterable[str]:
    files = unknown_files(standing)
    if files:
        more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
        yield f"{len(files)} live files have no evidence: {', '.join(files[:_NAMED])}{more}"


def _counts(ledger: Ledger, live: Iterable[LiveFile]) -> Iterable[str]:
    """The dates for which live files and ledger have different numbers of rows."""
    rows: dict[str, int] = {}
    for one in live:
        rows[one.dt] = rows.get(one.dt, 0) + one.rows
    said = {dt: state.rows for dt, state in ledger.dates.items()}
    differ = sorted(dt for dt in {*rows, *said} if rows.get(dt, 0) != said.get(dt, 0))
    for dt in differ[:_NAMED]:
        yield f"dt={dt} has {rows.get(dt, 0)} rows, and ledger {ledger.n} says {said.get(dt, 0)}"
    if len(differ) > _NAMED:
        yield f"{len(differ) - _NAMED} more dates have other numbers of rows"
