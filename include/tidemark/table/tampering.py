"""Checks if another program changed a table since Tidemark's last commit. Needs ``tidemark-kafka[table]``.

The ledger has a digest of the live files: their paths, sizes and numbers of rows. If a version of the table has other
live files, another program made it (DELETE, UPDATE, OPTIMIZE, RESTORE, an overwrite), even with an equal number of
rows. Commits that leave the live files unchanged (properties, an OPTIMIZE without work, the VACUUM of other files)
change nothing for Tidemark. So the comparison costs no request: every writer has the live files.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidemark.errors import TableTampered
from tidemark.formats.table.ledger import Ledger
from tidemark.table.delta_table import LiveFiles, TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence

WAY_OUT: Final = (
    "nothing is written until the table is right again: undo the change (RESTORE), or have the dates made again from "
    "raw: `repair.py`, or mode repair of the backfill; docs/tables.md has the details"
)
_NAMED: Final = 3


def is_untampered(ledger: Ledger, live: LiveFiles) -> bool:
    """True if ``live`` are the files that the commit of ``ledger`` left."""
    return live.digest == ledger.files


def check_untampered(table: TopicTable, ledger: Ledger, live: LiveFiles) -> None:
    """Raise :class:`TableTampered`, with the differing files and dates, unless ``live`` is as ``ledger`` left it."""
    if is_untampered(ledger, live):
        return
    differences = [*_unknown(EffectiveEvidence(table, ledger, live)), *_counts(ledger, live)]
    detail = "; ".join(differences) or "files that were replaced are live again, or others are gone"
    raise TableTampered(f"{table.url}: something other than Tidemark changed the table: {detail}. {WAY_OUT}")


def unknown_files(standing: EffectiveEvidence) -> list[str]:
    """The paths of live files with a number of rows that no effective evidence confirms."""
    confirmed = dict.fromkeys(standing.files.paths, 0)
    for row in standing.landed_in(confirmed):
        assert row.file is not None
        confirmed[row.file] += row.rows
    return [file.path for file in standing.files if confirmed[file.path] != file.rows]


def _unknown(standing: EffectiveEvidence) -> Iterable[str]:
    files = unknown_files(standing)
    if files:
        more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
        yield f"{len(files)} live files have no evidence: {', '.join(files[:_NAMED])}{more}"


def _counts(ledger: Ledger, live: LiveFiles) -> Iterable[str]:
    """The dates for which live files and ledger have different numbers of rows."""
    rows = live.rows_by_date()
    expected = {dt: state.rows for dt, state in ledger.dates.items()}
    differ = sorted(dt for dt in {*rows, *expected} if rows.get(dt, 0) != expected.get(dt, 0))
    for dt in differ[:_NAMED]:
        yield f"dt={dt} has {rows.get(dt, 0)} rows, and ledger {ledger.n} says {expected.get(dt, 0)}"
    if len(differ) > _NAMED:
        yield f"{len(differ) - _NAMED} more dates have other numbers of rows"
