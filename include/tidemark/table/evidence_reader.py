"""Reads the evidence of many attempts: several objects at a time, and each one once.

The evidence of an attempt never changes, so a reader keeps the bytes that it has read. A topic that lands every minute
has up to some hundred objects, and most questions about it need all of them, some twice. Memory is bounded by the bytes
kept and read ahead; one object at a time is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from tidemark.concurrency import ahead
from tidemark.errors import NotFound
from tidemark.formats import object_sizes
from tidemark.lru import Lru
from tidemark.table.delta_table import TopicTable
from tidemark.table.evidence import evidence_key, parse_evidence, schema, to_bytes

if TYPE_CHECKING:
    import pyarrow as pa

KEPT_BYTES: Final = 64 << 20
"""The most bytes of the objects that were read last."""

AHEAD_BYTES: Final = 64 << 20
"""The most bytes of the objects that are read before their turn."""


class EvidenceReader:
    """A reader of evidence. Threads may share it."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        """Keep at most ``kept_bytes`` of the objects read."""
        self._bodies: Lru[tuple[str, str], bytes] = Lru(kept_bytes, len)

    def read(self, table: TopicTable, attempts: Sequence[int]) -> Iterator[tuple[int, pa.Table | None]]:
        """Each attempt with its evidence, in the order of ``attempts``; None if it has no object.

        Raises:
            StoreError: the store failed.
        """
        sizes = self._sizes(table, attempts)
        with closing(
            ahead(
                lambda attempt: self._body(table, attempt),
                attempts,
                lambda attempt: sizes.get(evidence_key(table, attempt), 0),
                AHEAD_BYTES,
            )
        ) as bodies:
            for attempt, body in zip(attempts, bodies, strict=True):
                if body is None:
                    yield attempt, None
                    continue
                self._bodies.keep(self._name(table, attempt), body)  # in their order, whatever came first
                yield attempt, parse_evidence(body, evidence_key(table, attempt))

    def _sizes(self, table: TopicTable, attempts: Sequence[int]) -> Mapping[str, int]:
        """The listed sizes of objects that are not kept; empty, without a request, if that is at most one object."""
        unread = [attempt for attempt in attempts if self._name(table, attempt) not in self._bodies]
        if len(unread) < 2:
            return {}
        return {info.key: info.size for info in table.store.list(table.keys.evidence)}

    def _body(self, table: TopicTable, attempt: int) -> bytes | None:
        name = self._name(table, attempt)
        if (kept := self._bodies.get(name)) is not None:
            return kept
        try:
            return table.store.get(name[1], limit=object_sizes.EVIDENCE).body
        except NotFound:
            return None

    @staticmethod
    def _name(table: TopicTable, attempt: int) -> tuple[str, str]:
        return table.store.url, evidence_key(table, attempt)


def evidence_that_counts(table: TopicTable, landed: Iterable[int]) -> Iterator[tuple[int, pa.Table]]:
    """The evidence of the attempts that the committed ledger lists as ``landed``, as far as it is there."""
    for attempt, rows in EvidenceReader(kept_bytes=0).read(table, tuple(landed)):
        if rows is not None:
            yield attempt, rows


def rows_of(evidence: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows of ``evidence`` by column, made a few at a time."""
    return (row for batch in evidence.to_batches(max_chunksize=8192) for row in batch.to_pylist())


def folded(
    table: TopicTable,
    attempts: Sequence[int],
    replaced: Callable[[dict[str, Any]], list[dict[str, Any]]] | None = None,
) -> bytes:
    """One evidence object with all rows of ``attempts``; equal attempts and rows give equal bytes.

    Rows are unchanged, unless ``replaced`` says what takes the place of a row, by column.

    Raises:
        NotFound: an attempt has no evidence.
    """
    import pyarrow as pa

    parts: list[pa.Table] = []
    for attempt, rows in EvidenceReader(kept_bytes=0).read(table, attempts):
        if rows is None:
            raise NotFound(evidence_key(table, attempt), "is gone, and with it the evidence of a landed attempt")
        if replaced is None:
            parts.append(rows)
        else:
            parts.append(pa.Table.from_pylist([new for row in rows_of(rows) for new in replaced(row)], rows.schema))
    return to_bytes(pa.concat_tables(parts))


def renamed(table: TopicTable, landed: Collection[int], names: Mapping[str, str], attempt: int) -> pa.Table:
    """The rows of the live files in ``names`` as rows of ``attempt``, under each file's new name.

    The other columns of a row stay, including the configuration and the code that it landed with. ``landed`` are the
    attempts that the committed ledger lists. Equal files give an equal table, by incarnation, partition and offset.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    old = pa.array(sorted(names), pa.string())
    new = pa.array([names[name] for name in sorted(names)], pa.string())
    parts = [schema().empty_table()]
    for _, rows in evidence_that_counts(table, landed):
        chosen = rows.filter(pc.and_(pc.equal(rows["class"], pa.scalar("landed")), pc.is_in(rows["file"], old)))
        files = new.take(pc.index_in(chosen["file"], old))
        chosen = chosen.set_column(chosen.schema.get_field_index("file"), "file", files)
        attempts = pa.repeat(pa.scalar(attempt, pa.int64()), len(chosen))
        parts.append(chosen.set_column(chosen.schema.get_field_index("attempt"), "attempt", attempts).cast(schema()))
    return pa.concat_tables(parts).sort_by(
        [("incarnation", "ascending"), ("partition", "ascending"), ("first", "ascending")]
    )
