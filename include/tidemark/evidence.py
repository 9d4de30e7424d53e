"""Evidence: for each run of offsets, what became of them, from which bytes, in which file. Needs ``tidemark[table]``.

One Parquet object per attempt, ``evidence/<attempt>.parquet``, written before its commit. It counts if the committed
ledger lists the attempt as landed; of class ``landed``, a row holds for as long as its ``file`` is live in the table.

A row covers offsets in ``[first, next)`` of one class. Of classes other than ``landed`` it is a run of adjacent
offsets, unless a range of bytes has more than :data:`MAX_RUNS` runs of one class: then it is one row for all of them.
``rows`` says how many offsets it covers, which is less than ``next - first`` where other classes lie between. So the
sum of ``rows`` over all rows of an attempt is what the attempt moved its partitions on by.

``hash128`` is :func:`tidemark.decode.rowhash.row_hash_sum` of the rows, 16 bytes, big-endian; null but for landed and
quarantined rows. ``segment`` with its bytes is null where no segment holds the offsets.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from datetime import date
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from tidemark.hashsum import combine
from tidemark.intervals import Intervals
from tidemark.table import Lake

if TYPE_CHECKING:
    import pyarrow as pa

OffsetClass = Literal[
    "landed",
    "quarantined",
    "transaction_marker",
    "aborted",
    "compacted",
    "acknowledged",
    "deleted_before_upload",
]
"""What can become of an offset below ``next_offset``; held, corrupt and LOST offsets stay at or above it."""

MAX_RUNS: Final = 256


class EvidenceRow(NamedTuple):
    """One row, without what is the same for the whole attempt."""

    incarnation: int
    partition: int
    first: int
    next: int
    offset_class: OffsetClass
    rows: int
    dt: date | None = None
    segment: str | None = None
    byte_start: int | None = None
    byte_end: int | None = None
    hash128: int | None = None
    file: str | None = None


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


def evidence_key(lake: Lake, attempt: int) -> str:
    """Where the evidence of ``attempt`` lies."""
    return f"{lake.keys.evidence}{attempt}.parquet"


def to_parquet(rows: Iterable[EvidenceRow], *, configuration: str, code: str, attempt: int) -> bytes:
    """The evidence object of an attempt; the same rows give the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    items = [
        {
            **{("class" if name == "offset_class" else name): value for name, value in row._asdict().items()},
            "hash128": None if row.hash128 is None else row.hash128.to_bytes(16, "big"),
            "configuration": configuration,
            "code": code,
            "attempt": attempt,
        }
        for row in rows
    ]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(items, schema=schema()), sink, compression="zstd", compression_level=1)
    return sink.getvalue()


def read_evidence(lake: Lake, attempt: int) -> pa.Table:
    """The evidence of one attempt, whether it counts or not. Raises NotFound if it wrote none."""
    return _read(lake, evidence_key(lake, attempt))


def all_evidence(lake: Lake) -> Iterator[pa.Table]:
    """The evidence of every attempt that wrote any, whether it counts or not, one table each."""
    for found in lake.store.list(lake.keys.evidence):
        yield _read(lake, found.key)


class Landed(NamedTuple):
    """What evidence says of a set of data files: the offsets they hold by (incarnation, partition), and their sum."""

    offsets: dict[tuple[int, int], Intervals]
    rows: int
    hash128: int
    files: frozenset[str]


def landed_in(lake: Lake, files: Iterable[str]) -> Landed:
    """What the evidence says of the data files with these paths, relative to the table.

    ``files`` of the result are those that evidence was found for. The offsets are hulls: rows of other files may lie
    between.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pa.array(sorted(files), pa.string())
    offsets: dict[tuple[int, int], Intervals] = {}
    found: set[str] = set()
    rows = total = 0
    for table in all_evidence(lake):
        chosen = table.filter(pc.and_(pc.equal(table["class"], pa.scalar("landed")), pc.is_in(table["file"], wanted)))
        for row in chosen.to_pylist():
            key = row["incarnation"], row["partition"]
            offsets[key] = offsets.get(key, Intervals()) | Intervals([(row["first"], row["next"])])
            rows += row["rows"]
            total = combine(total, int.from_bytes(row["hash128"], "big"))
            found.add(row["file"])
    return Landed(offsets, rows, total, frozenset(found))


def _read(lake: Lake, key: str) -> pa.Table:
    import pyarrow.parquet as pq

    return pq.ParquetFile(io.BytesIO(lake.store.get(key).body)).read()
