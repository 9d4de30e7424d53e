"""Evidence: for each run of offsets, its class, the bytes it came from and its file. Needs ``tidemark-kafka[table]``.

There is one Parquet object per attempt, ``evidence/<attempt>.parquet``, written before the attempt's commit. All its
rows count if the committed ledger lists the attempt as landed. The object of a fold holds the rows of the attempts that
it folded, each with its own ``attempt``, and replaces them in that list; what told of erased records may be missing. A
row is effective by these rules:

* A row of class ``landed`` is effective while its ``file`` is live in the table. A compaction's attempt repeats the
  rows of the files that it merged, under the new names.
* A row of class ``quarantined`` or ``filtered`` is effective until a row of class ``superseded`` with the same ``file``
  counts. A rebuild or a replay writes that row, and its other rows give those offsets their new classes.
* If a partition leaves a branch of its log that was cut off, its attempt has a row of class ``truncated`` for the
  landed offsets of that branch from the cut on (none if the cut lies above them, and removed only a marker that
  decided them), and a row of class ``superseded`` without a file. No row of the partition that landed before and lies
  at or above the ``first`` of the latter is effective.

So each offset below a partition's ``next_offset`` has one class in the effective rows. Truncated offsets come in
addition, since the new branch has other records under the same numbers.
:class:`tidemark.table.effective_evidence.EffectiveEvidence` implements these rules.

A row covers offsets in ``[first, next)`` of one class. In classes other than ``landed`` it is a run of adjacent
offsets, unless a byte range has more than :data:`MAX_RUNS` runs of one class: then one row covers all of them. Runs of
class ``erased`` stay apart, so that each can be compared with the masks. ``rows``
is the number of offsets that the row covers, which is less than ``next - first`` if other classes lie between. An
ingest advances its partitions by the sum of ``rows`` over its rows, less those of class ``superseded`` without a file,
and without ``truncated`` ones.

Retention writes a row of class ``expired`` for each row of a date that it removes from the table, with all of its
values except the file. Its hash is null once a record around it was erased.

The object states its format in the metadata of its schema, under :data:`FORMAT_KEY`. One with many rows has an index
(:mod:`tidemark.table.evidence_index`), which readers may ignore.

``hash128`` is :func:`tidemark.decode.rowhash.row_hash_sum` of the rows, 16 bytes, big-endian; it is 0 for batches that
cannot be decoded, and null for rows that are not landed, quarantined, filtered or expired. ``segment`` with its bytes
is null if no segment holds the offsets. ``dt`` of quarantined and filtered rows is the date of the record's
timestamp, and null if that timestamp is not plausible. ``file`` of quarantined rows is a path below the quarantine's
folder; ``file`` of filtered rows is only a name.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from datetime import date
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from tidemark.formats import object_sizes
from tidemark.formats.base import check_format
from tidemark.intervals import Intervals
from tidemark.table.delta_table import TopicTable
from tidemark.table.evidence_index import BLOCK, INDEX_KEY, index_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

OffsetClass = Literal[
    "landed",
    "quarantined",
    "filtered",
    "transaction_marker",
    "aborted",
    "compacted",
    "acknowledged",
    "deleted_before_upload",
    "expired",
    "erased",
]
"""The classes of an offset below ``next_offset``; held, corrupt and LOST offsets stay at or above it.

``expired`` offsets were removed by retention: from the table with their date, or from raw before the table began.
``erased`` offsets had records that a person's request removed: a mask names each of them (:mod:`~.formats.raw.masks`).
"""

EvidenceClass = OffsetClass | Literal["superseded", "truncated"]
"""A class of offsets, or of a row that ends the effect of earlier rows, or of a branch's offsets that were cut off."""

Kept = Literal["landed", "quarantined", "filtered"]
PARSED: Final[tuple[Kept, ...]] = ("landed", "quarantined", "filtered")
"""The classes of records; another parser may change a record's class to another of these."""

MAX_RUNS: Final = 256

_MADE_AT_ONCE: Final = 8192
"""Rows that are Python objects of a column's name and value while they become Arrow: 1.5 KB each."""

FORMAT: Final = 1
"""The last format of evidence that this version reads. A new class of offsets is a new format, too."""

FORMAT_KEY: Final = b"tidemark.format"
"""The name of the format in the metadata of the schema. An object without it has the first format."""


class EvidenceRow(NamedTuple):
    """One row of evidence.

    ``configuration``, ``code`` and ``attempt`` are those that it landed with; a run's own rows get them when they are
    written.
    """

    incarnation: int
    partition: int
    first: int
    next: int
    offset_class: EvidenceClass
    rows: int
    dt: date | None = None
    segment: str | None = None
    byte_start: int | None = None
    byte_end: int | None = None
    hash128: int | None = None
    file: str | None = None
    configuration: str = ""
    code: str = ""
    attempt: int = 0

    @classmethod
    def of(cls, evidence: pa.Table) -> Iterator[EvidenceRow]:
        """The rows of an evidence object, made a few at a time; columns with a default may be missing."""
        for batch in evidence.to_batches(max_chunksize=_MADE_AT_ONCE):
            columns: list[Iterable[Any]] = []
            for name in cls._fields:
                column = "class" if name == "offset_class" else name
                if column not in batch.schema.names:
                    columns.append(repeat(cls._field_defaults[name], len(batch)))
                elif name == "hash128":
                    hashes: list[bytes | None] = batch.column(column).to_pylist()
                    columns.append(None if hash128 is None else int.from_bytes(hash128, "big") for hash128 in hashes)
                else:
                    columns.append(batch.column(column).to_pylist())
            yield from map(cls._make, zip(*columns, strict=True))

    @property
    def key(self) -> tuple[int, int]:
        """(incarnation, partition)."""
        return self.incarnation, self.partition

    @property
    def day(self) -> str:
        """``dt`` as ISO, empty if there is none."""
        return self.dt.isoformat() if self.dt else ""


def offsets_of(rows: Iterable[EvidenceRow]) -> dict[tuple[int, int], Intervals]:
    """The offsets of ``rows`` by (incarnation, partition); those between their first and last may be of other rows."""
    spans: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row in rows:
        spans.setdefault(row.key, []).append((row.first, row.next))
    return {key: Intervals(parts) for key, parts in spans.items()}


def schema() -> pa.Schema:
    """The columns of an evidence object."""
    import pyarrow as pa

    fields: list[pa.Field[Any]] = [
        pa.field("incarnation", pa.int32(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("first", pa.int64(), nullable=False),
        pa.field("next", pa.int64(), nullable=False),
        pa.field("class", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("dt", pa.date32()),
        pa.field("segment", pa.string()),
        pa.field("byte_start", pa.int64()),
        pa.field("byte_end", pa.int64()),
        pa.field("hash128", pa.binary(16)),
        pa.field("file", pa.string()),
        pa.field("configuration", pa.string(), nullable=False),
        pa.field("code", pa.string(), nullable=False),
        pa.field("attempt", pa.int64(), nullable=False),
    ]
    return pa.schema(fields)


def evidence_key(table: TopicTable, attempt: int) -> str:
    """The key of the evidence of ``attempt``."""
    return f"{table.keys.evidence}{attempt}.parquet"


def to_parquet(
    rows: Iterable[EvidenceRow], *, configuration: str, code: str, attempt: int, kept: bool = False
) -> bytes:
    """The evidence object of an attempt; equal rows give equal bytes.

    Rows that are ``kept`` keep the configuration and the code that they landed with.
    """
    import pyarrow as pa

    items = (
        {
            **{("class" if name == "offset_class" else name): value for name, value in row._asdict().items()},
            "hash128": None if row.hash128 is None else row.hash128.to_bytes(16, "big"),
            "configuration": (row.configuration if kept else "") or configuration,
            "code": (row.code if kept else "") or code,
            "attempt": attempt,
        }
        for row in rows
    )
    columns, some = schema(), []
    while chosen := list(islice(items, _MADE_AT_ONCE)):
        some.append(pa.RecordBatch.from_pylist(chosen, columns))
    return to_bytes(pa.Table.from_batches(some, columns).combine_chunks())


def read_evidence(table: TopicTable, attempt: int) -> pa.Table:
    """The evidence of one attempt, even if it does not count.

    Raises:
        NotFound: it wrote none.
        LaterFormat: a later version wrote it.
    """
    key = evidence_key(table, attempt)
    return parse_evidence(table.store.get(key, limit=object_sizes.EVIDENCE).body, key)


def to_bytes(table: pa.Table) -> bytes:
    """``table`` as an evidence object; equal tables give equal bytes."""
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    stated = table.replace_schema_metadata({FORMAT_KEY: str(FORMAT)})
    with pq.ParquetWriter(sink, stated.schema, compression="zstd", compression_level=1) as file:
        file.write_table(stated, BLOCK)
        if (index := index_of(table, sink.tell())) is not None:
            file.add_key_value_metadata({INDEX_KEY.decode(): index.decode()})
    return sink.getvalue()


def parse_evidence(body: bytes, key: str) -> pa.Table:
    """The rows of the evidence object ``key``. Raises LaterFormat."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(io.BytesIO(body))
    check_metadata(file.metadata, key)
    return file.read().replace_schema_metadata(None)


def check_metadata(metadata: pq.FileMetaData, key: str) -> None:
    """Check the format that the evidence object ``key`` states in its ``metadata``. Raises LaterFormat."""
    stated = (metadata.schema.to_arrow_schema().metadata or {}).get(FORMAT_KEY, b"1")
    check_format(key, "evidence", int(stated), FORMAT)
