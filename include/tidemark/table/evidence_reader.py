"""Reads the evidence of many attempts: several objects at a time, each one once, and of large ones only what is needed.

The evidence of an attempt never changes, so a reader keeps the bytes that it has read. A topic that lands every minute
has up to some hundred objects, most of them small. Of large ones, questions about a date or some offsets need a few
blocks (:mod:`tidemark.table.evidence_index`). Memory is bounded by the bytes kept and read ahead; one part at a time is
decoded.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from typing_extensions import override

from tidemark.concurrency import Lru, ahead
from tidemark.errors import NotFound
from tidemark.formats import object_sizes
from tidemark.table.delta_table import TopicTable
from tidemark.table.evidence import EvidenceRow, check_metadata, evidence_key, parse_evidence, schema, to_bytes
from tidemark.table.evidence_index import BLOCK, INDEX_KEY, Choice, EvidenceIndex, folder_day

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

KEPT_BYTES: Final = 64 << 20
"""The most bytes of the objects that were read last."""

AHEAD_BYTES: Final = 64 << 20
"""The most bytes of the objects that are read before their turn."""

WHOLE_BYTES: Final = 1 << 20
"""A smaller object is read by one request; of a larger one with an index, first the footer, and then chosen blocks."""

PART_ROWS: Final = BLOCK
"""The most rows that are decoded at a time, unless an object is small."""

_GATHERED_ROWS: Final = 4 * BLOCK
"""Rows that are divided by partition at a time."""

_TAIL_BYTES: Final = 128 << 10
"""The bytes that are read of a footer of unknown length."""


class Part(NamedTuple):
    """Some neighbouring rows of the evidence object of ``attempt``, the first of which has the number ``start``.

    ``rows`` is None if there is no object.
    """

    attempt: int
    start: int
    rows: pa.Table | None


class EvidenceReader:
    """A reader of evidence. Threads may share it."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        """Keep at most ``kept_bytes`` of the objects read, and as many of their footers."""
        self._bodies: Lru[tuple[str, str, int], bytes] = Lru(kept_bytes, len)
        self._footers: Lru[tuple[str, str, int], _Footer] = Lru(kept_bytes, lambda footer: footer.size)

    def read(self, table: TopicTable, attempts: Sequence[int], choices: Sequence[Choice] = ()) -> Iterator[Part]:
        """The evidence of each attempt, in the order of ``attempts``, in parts of at most :data:`PART_ROWS` rows.

        Given ``choices``, blocks that none of them takes are not read from objects that have an index.

        Raises:
            LaterFormat: a later version wrote an object.
            StoreError: the store failed.
        """
        sizes = self._sizes(table, attempts)
        choices = choices or [Choice()]

        def size(attempt: int) -> int:
            found = sizes.get(evidence_key(table, attempt), 0)
            return found if found < WHOLE_BYTES else 0

        with closing(ahead(lambda attempt: self._opened(table, attempt, sizes), attempts, size, AHEAD_BYTES)) as opened:
            for attempt, stored in zip(attempts, opened, strict=True):
                if stored is None:
                    yield Part(attempt, 0, None)
                elif isinstance(stored, bytes):
                    self._bodies.keep(self._name(table, attempt), stored)  # in their order, whatever came first
                    yield from _parts_of(stored, attempt, evidence_key(table, attempt), choices)
                else:
                    yield from self._blocks(table, attempt, stored, choices)

    def _opened(self, table: TopicTable, attempt: int, sizes: Mapping[str, int]) -> bytes | _Footer | None:
        """The object of ``attempt``, or the footer of a large one that has an index; None if there is no object."""
        name = self._name(table, attempt)
        if (kept := self._bodies.get(name)) is not None:
            return kept
        if (known := self._footers.get(name)) is not None:
            return known
        size = sizes.get(name[1], 0)
        try:
            if size >= WHOLE_BYTES and (footer := _Footer.of(table, name[1], size)) is not None:
                self._footers.keep(name, footer)
                return footer
            return table.store.get(name[1], limit=object_sizes.EVIDENCE).body
        except NotFound:
            return None

    def _blocks(self, table: TopicTable, attempt: int, footer: _Footer, choices: Sequence[Choice]) -> Iterator[Part]:
        """The chosen blocks of a large object."""
        url, key, _ = self._name(table, attempt)
        chosen = footer.index.blocks(choices)

        def fetched(block: int) -> bytes:
            kept = self._bodies.get((url, key, block))
            return kept if kept is not None else table.store.get_range(key, *footer.bounds(block))

        def size(block: int) -> int:
            start, end = footer.bounds(block)
            return end - start

        with closing(ahead(fetched, chosen, size, AHEAD_BYTES)) as bodies:
            for block, body in zip(chosen, bodies, strict=True):
                self._bodies.keep((url, key, block), body)
                yield Part(attempt, block * BLOCK, footer.rows(block, body))

    def _sizes(self, table: TopicTable, attempts: Sequence[int]) -> Mapping[str, int]:
        """The listed sizes of objects that are not kept; empty, without a request, if that is at most one object."""
        names = [self._name(table, attempt) for attempt in attempts]
        if sum(name not in self._bodies and name not in self._footers for name in names) < 2:
            return {}
        return {info.key: info.size for info in table.store.list(table.keys.evidence)}

    @staticmethod
    def _name(table: TopicTable, attempt: int) -> tuple[str, str, int]:
        """The name of a whole object; that of a block has its number."""
        return table.store.url, evidence_key(table, attempt), -1


class _Footer:
    """The footer of an object with an index: where its blocks lie, and what they may hold. ``size`` is in bytes."""

    def __init__(self, metadata: pq.FileMetaData, index: EvidenceIndex, size: int) -> None:
        self._metadata, self.index, self.size = metadata, index, size
        columns = (metadata.row_group(number).column(0) for number in range(metadata.num_row_groups))
        self._starts = [*(column.dictionary_page_offset or column.data_page_offset for column in columns), index.end]

    @classmethod
    def of(cls, table: TopicTable, key: str, size: int) -> _Footer | None:
        """The footer of the object ``key`` of ``size`` bytes; None if it has no index that counts.

        Raises:
            LaterFormat: a later version wrote it.
            NotFound: it is gone.
        """
        tail = table.store.get_range(key, max(0, size - _TAIL_BYTES), size)
        length = int.from_bytes(tail[-8:-4], "little") + 8
        if length > len(tail):
            tail = table.store.get_range(key, max(0, size - length), size - len(tail)) + tail
        return cls.parsed(tail, key, size)

    @classmethod
    def parsed(cls, tail: bytes, key: str, size: int) -> _Footer | None:
        """The footer at the end of ``tail``; None if it has no index that counts."""
        import pyarrow.parquet as pq

        metadata = pq.read_metadata(io.BytesIO(tail))
        check_metadata(metadata, key)
        stored = (metadata.metadata or {}).get(INDEX_KEY)
        if stored is None:
            return None
        index, length = EvidenceIndex.parse(stored), int.from_bytes(tail[-8:-4], "little") + 8
        if (len(index), index.end) != (metadata.num_row_groups, size - length):
            return None
        return cls(metadata, index, length)

    def bounds(self, block: int) -> tuple[int, int]:
        """The bytes ``[start, end)`` of ``block``."""
        return self._starts[block], self._starts[block + 1]

    def rows(self, block: int, body: bytes) -> pa.Table:
        """The rows of ``block``, given its bytes."""
        import pyarrow.parquet as pq

        file = pq.ParquetFile(_Window(body, *self.bounds(block)), metadata=self._metadata)
        return file.read_row_group(block, use_threads=False).replace_schema_metadata(None)


class _Window(io.BytesIO):
    """The bytes ``[start, end)`` of a file, at their positions in it."""

    def __init__(self, body: bytes, start: int, end: int) -> None:
        super().__init__(body)
        self._start, self._end = start, end

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: self._end}[whence]
        return super().seek(at - self._start) + self._start

    @override
    def tell(self) -> int:
        return super().tell() + self._start


def _parts_of(body: bytes, attempt: int, key: str, choices: Sequence[Choice]) -> Iterator[Part]:
    """The chosen rows of a whole object, in parts."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if len(body) < WHOLE_BYTES // 4:
        yield Part(attempt, 0, parse_evidence(body, key))
        return
    if (footer := _Footer.parsed(body, key, len(body))) is not None:
        for block in footer.index.blocks(choices):
            yield Part(attempt, block * BLOCK, footer.rows(block, body[slice(*footer.bounds(block))]))
        return
    start = 0
    for batch in pq.ParquetFile(io.BytesIO(body)).iter_batches(PART_ROWS, use_threads=False):
        yield Part(attempt, start, pa.Table.from_batches([batch]).replace_schema_metadata(None))
        start += len(batch)
    if not start:
        yield Part(attempt, 0, parse_evidence(body, key))


def evidence_that_counts(
    table: TopicTable, landed: Iterable[int], choices: Sequence[Choice] = ()
) -> Iterator[tuple[int, pa.Table]]:
    """The evidence of the attempts that the committed ledger lists as ``landed``, as far as it is there, in parts."""
    for part in EvidenceReader(kept_bytes=0).read(table, tuple(landed), choices):
        if part.rows is not None:
            yield part.attempt, part.rows


def rows_of(evidence: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows of ``evidence`` by column, made a few at a time."""
    return (row for batch in evidence.to_batches(max_chunksize=8192) for row in batch.to_pylist())


def by_partition(rows: pa.Table) -> tuple[pa.Table, list[tuple[tuple[int, int], int, int]]]:
    """``rows`` in the order of their partitions, and for each (incarnation, partition) its first and last place."""
    import numpy as np

    ordered = rows.sort_by([("incarnation", "ascending"), ("partition", "ascending")])
    keys = np.stack([ordered["incarnation"].to_numpy(), ordered["partition"].to_numpy()], axis=1)
    edges = [0, *(np.flatnonzero(np.any(keys[1:] != keys[:-1], axis=1)) + 1).tolist(), len(keys)]
    starts = [(start, end) for start, end in pairwise(edges) if start < end]
    return ordered, [((int(keys[start][0]), int(keys[start][1])), start, end) for start, end in starts]


class RowsByPartition(Mapping[tuple[int, int], list[EvidenceRow]]):
    """Rows in Arrow, by (incarnation, partition) and in their order; those of a partition are made when asked for."""

    def __init__(self, parts: Iterable[pa.Table]) -> None:
        self._parts: list[pa.Table] = []
        self._places: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for part in _gathered(parts):
            ordered, places = by_partition(part)
            for key, start, end in places:
                self._places.setdefault(key, []).append((len(self._parts), start, end))
            for at, field in enumerate(ordered.schema):
                if field.type == "string":  # which many rows share
                    ordered = ordered.set_column(at, field.name, ordered[field.name].dictionary_encode())
            self._parts.append(ordered)

    @override
    def __getitem__(self, key: tuple[int, int]) -> list[EvidenceRow]:
        import pyarrow as pa

        slices = (self._parts[number].slice(start, end - start) for number, start, end in self._places[key])
        return list(EvidenceRow.of(pa.concat_tables(rows.cast(schema()) for rows in slices).combine_chunks()))

    @override
    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._places)

    @override
    def __len__(self) -> int:
        return len(self._places)

    def landed_files(self) -> set[str]:
        """The files of the table that the rows name."""
        import pyarrow as pa
        import pyarrow.compute as pc

        landed = (rows.filter(pc.equal(rows["class"], pa.scalar("landed")))["file"] for rows in self._parts)
        return {str(file) for files in landed for file in files.unique().to_pylist() if file is not None}


def _gathered(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The rows of ``parts`` in fewer ones: of many small objects each would have few rows of a partition."""
    import pyarrow as pa

    waiting: list[pa.Table] = []
    for part in parts:
        waiting.append(part)
        if sum(map(len, waiting)) >= _GATHERED_ROWS:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def folded(
    table: TopicTable,
    attempts: Sequence[int],
    replaced: Callable[[pa.Table], pa.Table] | None = None,
) -> bytes:
    """One evidence object with all rows of ``attempts``; equal attempts and rows give equal bytes.

    Rows are unchanged, unless ``replaced`` says what takes the place of some rows.

    Raises:
        NotFound: an attempt has no evidence.
    """
    import pyarrow as pa

    parts: list[pa.Table] = []
    for attempt, _, rows in EvidenceReader(kept_bytes=0).read(table, attempts):
        if rows is None:
            raise NotFound(evidence_key(table, attempt), "is gone, and with it the evidence of a landed attempt")
        parts.append(rows if replaced is None else replaced(rows))
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
    choice = Choice(days={folder_day(name) for name in names}, classes=("landed",))
    for _, rows in evidence_that_counts(table, landed, [choice]):
        chosen = rows.filter(pc.and_(pc.equal(rows["class"], pa.scalar("landed")), pc.is_in(rows["file"], old)))
        files = new.take(pc.index_in(chosen["file"], old))
        chosen = chosen.set_column(chosen.schema.get_field_index("file"), "file", files)
        attempts = pa.repeat(pa.scalar(attempt, pa.int64()), len(chosen))
        parts.append(chosen.set_column(chosen.schema.get_field_index("attempt"), "attempt", attempts).cast(schema()))
    return pa.concat_tables(parts).sort_by(
        [("incarnation", "ascending"), ("partition", "ascending"), ("first", "ascending")]
    )
