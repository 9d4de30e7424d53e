"""The index of an evidence object: what each block of its rows may hold, so that a question about a date reads few.

An object with more than :data:`BLOCK` rows has a row group of Parquet for each :data:`BLOCK` rows, a *block*, and an
index in the metadata of its footer, under :data:`INDEX_KEY`: an Arrow stream in base64, with one row for each block.

* ``days`` are the dates of its records, empty for records without one, and those of the folders of its files.
* ``classes`` are the classes of its rows.
* ``incarnation``, ``partition``, ``first`` and ``next`` are lists of equal length: for each partition, the hull of the
  offsets of its rows in the block, and of all rows in the object that came from the same range of bytes as one of them.

The stream's metadata has, as ``end``, the position at which the last block ends. If the file has other blocks, or they
end elsewhere, another program wrote the rows again and kept the index, which then does not count.

An object without an index is read whole: it is small, an earlier version wrote it, or the rows of an attempt are not
neighbours in it.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Numbers = npt.NDArray[np.int64]
    Truths = npt.NDArray[np.bool_]

BLOCK: Final = 16384
"""Rows of a block; the last one of an object may have fewer."""

INDEX_KEY: Final = b"tidemark.blocks"

_RECORDS: Final = ("landed", "quarantined", "filtered", "expired")
_RANGE: Final = ["incarnation", "partition", "segment", "byte_start", "byte_end"]
_END: Final = b"end"
_HULL: Final = ("incarnation", "partition", "first", "next")


class Spans:
    """Spans of offsets of partitions, for comparison with many rows at once."""

    def __init__(self, spans: Mapping[tuple[int, int], Iterable[tuple[int, int]]]) -> None:
        """``spans`` are disjoint and ascending, by (incarnation, partition)."""
        import numpy as np

        keys = sorted(key for key in spans)
        flat = [(number, start, end) for number, key in enumerate(keys) for start, end in spans[key]]
        parts, starts, ends = np.array(flat, np.int64).reshape(-1, 3).T
        self._keys = _joint(*np.array(keys, np.int64).reshape(-1, 2).T)
        self._parts, self._ends = parts, ends
        self._starts = np.unique(starts)
        self._order = parts * (len(self._starts) + 1) + np.searchsorted(self._starts, starts, "right")

    def touched(self, incarnation: Numbers, partition: Numbers, first: Numbers, after: Numbers) -> Truths:
        """A mask of the rows of offsets ``[first, after)`` that overlap a span of their partition, or adjoin one."""
        import numpy as np

        if not len(self._order):
            return np.zeros(len(first), np.bool_)
        wanted = _joint(incarnation, partition)
        parts = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        place = parts * (len(self._starts) + 1) + np.searchsorted(self._starts, after, "right")
        at = np.searchsorted(self._order, place, "right") - 1  # the last span that begins at or before the row's end
        found = np.maximum(at, 0)
        same = (at >= 0) & (self._keys[parts] == wanted) & (self._parts[found] == parts)
        touched: Truths = same & (self._ends[found] >= first)
        return touched

    def touched_rows(self, rows: pa.Table) -> Truths:
        """The same of ``rows`` that have these columns."""
        return self.touched(*(rows[name].to_numpy() for name in _HULL))


class Choice(NamedTuple):
    """The blocks to read: those that may hold rows which meet each given condition. Without conditions, all.

    ``days`` are ISO dates of records or of files' folders, empty for records without a date.
    """

    days: Collection[str] | None = None
    classes: Collection[str] | None = None
    spans: Spans | None = None


class EvidenceIndex:
    """The index of one object. Its last block ends at the position ``end`` of the object."""

    def __init__(self, rows: pa.Table) -> None:
        """Take over the ``rows`` of the stream."""
        import numpy as np

        self.end = int((rows.schema.metadata or {})[_END])
        self._days = [frozenset(days or ()) for days in rows["days"].to_pylist()]
        self._classes = [frozenset(classes or ()) for classes in rows["classes"].to_pylist()]
        lists: dict[str, Any] = {name: rows[name].combine_chunks() for name in _HULL}
        self._hulls = [column.flatten().to_numpy().astype(np.int64) for column in lists.values()]
        self._blocks = np.repeat(np.arange(len(rows)), lists["partition"].value_lengths().to_numpy())

    def __len__(self) -> int:
        """The number of blocks."""
        return len(self._days)

    @classmethod
    def parse(cls, stored: bytes) -> EvidenceIndex:
        """The index that ``stored`` is."""
        import pyarrow as pa

        return cls(pa.ipc.open_stream(base64.b64decode(stored)).read_all())

    def blocks(self, choices: Iterable[Choice]) -> list[int]:
        """The numbers of the blocks that one of ``choices`` takes, ascending."""
        import numpy as np

        taken = np.zeros(len(self._days), np.bool_)
        for choice in choices:
            chosen = np.ones(len(self._days), np.bool_)
            if choice.spans is not None:
                chosen[:] = False
                chosen[self._blocks[choice.spans.touched(*self._hulls)]] = True
            for wanted, held in ((choice.days, self._days), (choice.classes, self._classes)):
                if wanted is not None:
                    chosen &= [not one.isdisjoint(wanted) for one in held]
            taken |= chosen
        return [int(number) for number in np.flatnonzero(taken)]


def index_of(evidence: pa.Table, end: int) -> bytes | None:
    """The index of an object with the rows ``evidence`` as it is stored; None if it gets none.

    ``end`` is the position behind its last block.
    """
    import numpy as np
    import pyarrow as pa

    if len(evidence) <= BLOCK:
        return None
    attempts = evidence["attempt"].to_numpy()
    if 1 + np.count_nonzero(np.diff(attempts)) != len(np.unique(attempts)):
        return None
    hulls = _hulls(evidence)
    blocks = [evidence.slice(start, BLOCK) for start in range(0, len(evidence), BLOCK)]
    bounds = np.searchsorted(hulls["block"].to_numpy(), np.arange(len(blocks) + 1))
    columns = {name: hulls[name].to_numpy() for name in _HULL}
    lists = {name: [column[start:end] for start, end in pairwise(bounds)] for name, column in columns.items()}
    types = {name: pa.list_(pa.int32() if name in _RANGE else pa.int64()) for name in lists}
    classes = [sorted(str(name) for name in block["class"].unique().to_pylist()) for block in blocks]
    rows = pa.table(
        {
            "days": pa.array([sorted(_days(block)) for block in blocks], pa.list_(pa.string())),
            "classes": pa.array(classes, pa.list_(pa.string())),
            **{name: pa.array(values, types[name]) for name, values in lists.items()},
        }
    )
    sink = pa.BufferOutputStream()
    rows = rows.replace_schema_metadata({_END: str(end)})
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(rows)
    return base64.b64encode(sink.getvalue().to_pybytes())


def folder_day(file: str) -> str:
    """The date in the folder of a ``file``, as :class:`EvidenceIndex` has it; empty without a folder."""
    folder, below, _ = file.partition("/")
    return folder.removeprefix("dt=") if below else ""


def _days(block: pa.Table) -> set[str]:
    """The dates of a block's records, and those of the folders of its files."""
    import pyarrow as pa
    import pyarrow.compute as pc

    compute: Any = pc
    dated = block["dt"].cast(pa.string())
    records = compute.is_in(block["class"], pa.array(_RECORDS))
    undated = compute.any(compute.and_(records, compute.is_null(dated))).as_py()
    days = {str(day) for day in dated.unique().to_pylist() if day is not None}
    files = block["file"].drop_null()
    heads = first_characters(files)
    known = pa.array([f"dt={day}/".encode() for day in days], pa.binary())
    others = files.filter(compute.invert(compute.is_in(heads, known)))  # few, if any
    return days | {folder_day(str(file)) for file in others.to_pylist()} | ({""} if undated else set())


def first_characters(files: Any) -> Any:
    """The first 14 bytes of the names of ``files``: in a folder of a date, ``dt=2026-11-20/``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    compute: Any = pc
    return compute.binary_slice(files.cast(pa.binary()), 0, 14)


def _hulls(evidence: pa.Table) -> pa.Table:
    """The hull of each partition in each block, by block and partition."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    compute: Any = pc
    rows = evidence.select([*_RANGE[:3], "first", "next"])
    for name in ("byte_start", "byte_end"):
        rows = rows.append_column(name, compute.fill_null(evidence[name], 0))
    rows = rows.append_column("block", pa.array(np.arange(len(rows)) // BLOCK))
    ranges = rows.group_by(_RANGE).aggregate([("first", "min"), ("next", "max")])
    rows = rows.join(ranges, _RANGE)  # rows without a segment find no range
    at = {
        "block": rows["block"],
        "incarnation": rows["incarnation"],
        "partition": rows["partition"],
        "first": compute.coalesce(rows["first_min"], rows["first"]),
        "next": compute.coalesce(rows["next_max"], rows["next"]),
    }
    hulls = pa.table(at).group_by(["block", "incarnation", "partition"]).aggregate([("first", "min"), ("next", "max")])
    hulls = hulls.rename_columns({"first_min": "first", "next_max": "next"})
    return hulls.sort_by([(name, "ascending") for name in ("block", "incarnation", "partition")])


def _joint(incarnation: Numbers, partition: Numbers) -> Numbers:
    """One number for each partition of each incarnation."""
    import numpy as np

    return (incarnation.astype(np.int64) << 32) | partition.astype(np.int64)
