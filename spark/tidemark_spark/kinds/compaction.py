"""A run that merges small files of a table; no row changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from typing_extensions import override

from tidemark.errors import ContinuityError
from tidemark.formats.raw.hashsum import combine
from tidemark.formats.table.ledger import Ledger
from tidemark.planning.maintenance.vacuum import digest_in, digest_of
from tidemark.table.delta_table import committed_ledger
from tidemark.table.evidence import to_bytes
from tidemark.table.evidence_reader import renamed
from tidemark_spark.convert.rewriting.compaction import compacted
from tidemark_spark.kinds.kind import RewritingKind, TableChange
from tidemark_spark.model import Executor, Outcome


class Compaction(RewritingKind):
    """Makes one file of several: no date changes."""

    work = staticmethod(compacted)

    @override
    def change(self, outcomes: Sequence[Outcome], executor: Executor) -> TableChange:
        return self.rewritten(outcomes)

    @override
    def stored_evidence(self, change: TableChange) -> bytes:
        """The evidence of the merged files, under the names of the new files.

        Raises:
            ContinuityError: a new file has other rows than the evidence counts in its sources.
        """
        table, plan = self.table, self.plan
        merged_rows = {digest_in(row.file or ""): row for row in change.evidence}
        names: dict[str, str] = {}
        for task in plan.tasks:
            file = merged_rows[digest_of(plan, task)].file or ""
            names |= {part.key.removeprefix(f"{table.keys.root}/"): file for part in task.ranges}
        evidence = renamed(table, committed_ledger(table).landed, names, plan.attempt)
        sums: dict[str, tuple[int, int]] = {}
        for row in evidence.select(["file", "rows", "hash128"]).to_pylist():
            rows, total = sums.get(row["file"], (0, 0))
            sums[row["file"]] = rows + row["rows"], combine(total, int.from_bytes(row["hash128"], "big"))
        for new in merged_rows.values():
            rows, total = sums.get(new.file or "", (0, 0))
            if new.rows != rows or new.hash128 not in {None, total}:
                raise ContinuityError(
                    f"{table.url}/{new.file}: has {new.rows} rows, but evidence counts {rows} in the files that it was "
                    f"merged from, or their hashes differ; the table was not changed: audit {new.dt}, and rebuild it"
                )
        return to_bytes(evidence)

    @override
    def touched(self, dates: Iterable[str], current: Ledger, rows: Mapping[str, int]) -> set[str]:
        return set()
