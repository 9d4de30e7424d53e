"""The effective evidence: that of landed attempts, without the parts that were replaced since.

Three rules decide. A row of class ``landed`` is effective while its file is live. A row of class ``quarantined`` or
``filtered`` is effective until a row of class ``superseded`` names its file. If a partition has left a branch of its
log, its attempt has a row of class ``superseded`` without a file: no row that landed before and lies at or above the
``first`` of that row is effective, even if a program makes its file live again.

Rows are chosen in Arrow, and only those that are asked for become Python objects: a table may have millions. Of large
objects only the blocks are read that may hold requested rows (:mod:`tidemark.table.evidence_index`), besides those with
rows of class ``superseded``. Memory grows with the superseded files and with the requested rows, but never with all
evidence; the reader's cache is bounded (:mod:`tidemark.table.evidence_reader`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidemark.errors import ContinuityError
from tidemark.formats.raw.hashsum import combine
from tidemark.formats.table.ledger import Ledger
from tidemark.intervals import Intervals
from tidemark.table.delta_table import LiveFile, LiveFiles, TopicTable, ledger_of, live_files, open_delta
from tidemark.table.evidence import PARSED, EvidenceRow, OffsetClass
from tidemark.table.evidence_index import Choice, Spans, folder_day
from tidemark.table.evidence_reader import EvidenceReader, rows_of

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = ["incarnation", "partition", "first", "next", "class", "rows", "dt", "file", "attempt"]

_EVER: Final = (0, 1 << 62)


class Reach(NamedTuple):
    """The evidence of a partition from ``start`` on: the table's files, and by date the files set aside."""

    start: int
    files: tuple[str, ...]
    set_aside: dict[str, tuple[str, ...]]


class Told(NamedTuple):
    """The content of some rows, by (incarnation, partition): offsets, number of records, and hash.

    The offsets are hulls: records of other rows may lie between. ``aside`` are the rows that have not landed.
    """

    offsets: dict[tuple[int, int], Intervals]
    sums: dict[tuple[int, int], tuple[int, int]]
    files: frozenset[str]
    aside: tuple[EvidenceRow, ...]


class _Only(NamedTuple):
    """A choice of rows by class, partition and offsets, by file and date.

    Dates are ISO, and empty for rows without a date. With ``files``, rows without a file are left out, and with
    ``days`` records without one of these dates.
    """

    classes: tuple[str, ...] = ()
    partition: tuple[int, int] | None = None
    offsets: tuple[int, int] | None = None
    files: Collection[str] | None = None
    days: Collection[str] | None = None
    near: Spans | None = None

    @property
    def choice(self) -> Choice:
        """The blocks that may hold chosen rows."""
        days = self.days if self.files is None else {folder_day(file) for file in self.files}
        spans = Spans({self.partition: [self.offsets or _EVER]}) if self.partition is not None else None
        return Choice(days, self.classes or None, self.near or spans)

    def of(self, evidence: pa.Table) -> pa.Table:
        """The chosen rows, in their order."""
        pc = _compute()
        masks = [_is_in(evidence["class"], self.classes)] if self.classes else []
        if self.partition is not None:
            for column, number in zip(("incarnation", "partition"), self.partition, strict=True):
                masks.append(pc.equal(evidence[column], number))
        if self.offsets is not None:
            start, end = self.offsets
            masks += [pc.less(evidence["first"], end), pc.greater(evidence["next"], start)]
        if self.near is not None:
            masks.append(_mask(self.near.touched_rows(evidence)))
        if self.files is not None:
            masks.append(_is_named(evidence["file"], self.files.__contains__))
        if self.days is not None:
            masks.append(is_of_days(evidence, self.days))
        return evidence.filter(reduce(pc.and_, masks)) if masks else evidence


class EffectiveEvidence:
    """The evidence of one committed ledger."""

    def __init__(
        self, table: TopicTable, ledger: Ledger, files: LiveFiles, reader: EvidenceReader | None = None
    ) -> None:
        """Read the superseded rows. ``files`` are the live files of the version of the table that names ``ledger``.

        ``reader`` may have read some of the evidence before.
        """
        self.ledger = ledger
        self._reader = reader or EvidenceReader()
        self.table, self.files = table, files
        self._superseded: set[str] = set()
        self._left: dict[tuple[int, int], list[tuple[tuple[int, int], int]]] = {}
        self.truncated: dict[tuple[int, int], int] = {}
        self.missing: list[int] = []
        self._order: dict[int, tuple[int, int]] = {}
        """The order of landing. Neighbours in an object with an index are those of the same attempt."""
        self._places = {attempt: place for place, attempt in enumerate(ledger.landed)}
        ending = self._evidence(_Only(classes=("superseded", "truncated")))
        for row in (row for rows in ending for row in rows_of(rows.select(_COLUMNS))):
            key = row["incarnation"], row["partition"]
            if row["class"] == "truncated":
                self.truncated[key] = self.truncated.get(key, 0) + row["rows"]
            elif row["file"] is None:
                self._left.setdefault(key, []).append((self._order[row["attempt"]], row["first"]))
            else:
                self._superseded.add(row["file"])

    @classmethod
    def of(cls, table: TopicTable, reader: EvidenceReader | None = None) -> EffectiveEvidence:
        """The evidence that is effective for the ledger and the live files of one version of the table."""
        delta = open_delta(table)
        return cls(table, ledger_of(table, delta), live_files(delta), reader)

    @cached_property
    def live(self) -> dict[str, LiveFile]:
        """The live files by path, as objects: made once somebody asks for them, since a table may have a million."""
        return {file.path: file for file in self.files}

    def rows(self) -> Iterator[EvidenceRow]:
        """The effective rows in the order in which they landed; without segments and hashes."""
        return self._effective(_Only())

    def parts(self, *choices: Choice) -> Iterator[pa.Table]:
        """The effective rows of the blocks that one of ``choices`` takes, and of all objects without an index.

        They come in the order of landing.
        """
        return map(self._held, self._evidence(_Only(), choices))

    def landed_in(self, files: Collection[str]) -> Iterator[EvidenceRow]:
        """The effective rows of ``files`` of the table; without segments and hashes."""
        return self._effective(_Only(classes=("landed",), files=files))

    def of_files(self, files: Collection[str]) -> Iterator[EvidenceRow]:
        """The effective rows of ``files`` of the table and of what was set aside, with all columns."""
        return self._effective(_Only(classes=PARSED, files=files), columns=None)

    def of_dates(self, dates: Collection[str]) -> Iterator[EvidenceRow]:
        """The effective records of ``dates``, with all columns; dates are ISO, and empty for records without one."""
        return self._effective(_Only(classes=(*PARSED, "expired"), days=dates), columns=None)

    def near(
        self, offsets: Mapping[tuple[int, int], Iterable[tuple[int, int]]], classes: tuple[OffsetClass, ...] = PARSED
    ) -> Iterator[EvidenceRow]:
        """The effective rows of ``classes``, or of all, that overlap or adjoin ``offsets``, with all columns.

        ``offsets`` are disjoint and ascending spans by (incarnation, partition).
        """
        return self._effective(_Only(classes, near=Spans(offsets)), columns=None)

    def configurations(self, dates: Collection[str]) -> set[str]:
        """The digests of the settings with which the effective records of ``dates`` landed."""
        chosen = map(self._held, self._evidence(_Only(classes=(*PARSED, "expired"), days=dates)))
        return {str(digest) for rows in chosen for digest in rows["configuration"].unique().to_pylist()}

    def touching(self, key: tuple[int, int], start: int, end: int) -> Iterator[EvidenceRow]:
        """The effective rows of a partition's offsets ``[start, end)``, with all columns, in the order of landing."""
        return self._effective(_Only(partition=key, offsets=(start, end)), columns=None)

    def rows_by_date(self, offset_class: OffsetClass) -> dict[str, int]:
        """The number of effective rows of a class by ISO date; rows without a date count under the empty string."""
        counts: dict[str, int] = {}
        for row in self._effective(_Only(classes=(offset_class,))):
            counts[row.day] = counts.get(row.day, 0) + row.rows
        return counts

    def of_class(self, offset_class: OffsetClass) -> Iterator[EvidenceRow]:
        """The effective rows of a class, with all columns."""
        return self._effective(_Only(classes=(offset_class,)), columns=None)

    def told(self, *, dates: Collection[str] | None = None, files: Collection[str] | None = None) -> Told:
        """The content of the landed, quarantined and filtered rows of ``dates`` or ``files``, or of all files.

        Dates are ISO, and empty for rows without a date.
        """
        spans: dict[tuple[int, int], list[tuple[int, int]]] = {}
        named: set[str] = set()
        aside: list[EvidenceRow] = []
        sums: dict[tuple[int, int], tuple[int, int]] = {}
        for row in self._effective(_Only(PARSED, days=dates, files=files), columns=None):
            if row.file is None:
                continue
            if row.offset_class != "landed":
                aside.append(row)
            spans.setdefault(row.key, []).append((row.first, row.next))
            named.add(row.file)
            rows, total = sums.get(row.key, (0, 0))
            sums[row.key] = rows + row.rows, combine(total, row.hash128 or 0)
        offsets = {key: Intervals(parts) for key, parts in spans.items()}
        aside.sort(key=_by_place)
        return Told(offsets, sums, frozenset(named), tuple(aside))

    def set_aside(self, dates: Collection[str] | None = None) -> tuple[EvidenceRow, ...]:
        """The quarantined and filtered rows of ``dates``, or of all; by partition, date and offset."""
        rows = self._effective(_Only(("quarantined", "filtered"), days=dates), columns=None)
        return tuple(sorted(rows, key=_by_place))

    def from_offset(self, key: tuple[int, int], offset: int) -> Reach:
        """The files and rows from the last offset, at or below ``offset``, that none of them spans.

        Raises:
            ContinuityError: a file there has rows that the evidence does not give to the partition ``key``.
        """
        rows = [row for row in self._effective(_Only(partition=key)) if row.key == key]
        of_files = _by_file(rows)
        hulls = [(row.first, row.next) for row in rows if not row.file]
        hulls += [(min(row.first for row in spans), max(row.next for row in spans)) for spans in of_files.values()]
        start = _start(hulls, offset)
        while start < offset:
            start, offset = _start(hulls, start), start
        files: list[str] = []
        set_aside: dict[str, list[str]] = {}
        for file, spans in of_files.items():
            if min(row.first for row in spans) < start:
                continue
            if spans[0].offset_class == "landed":
                self._check_whole(file, spans)
                files.append(file)
            else:
                set_aside.setdefault(spans[0].day, []).append(file)
        aside = {dt: tuple(sorted(names)) for dt, names in sorted(set_aside.items())}
        return Reach(start, tuple(sorted(files)), aside)

    def _check_whole(self, file: str, spans: list[EvidenceRow]) -> None:
        rows = sum(row.rows for row in spans)
        if rows != self.live[file].rows:
            raise ContinuityError(
                f"{self.table.url}/{file}: has {self.live[file].rows} rows, of which evidence gives {rows} to "
                f"partition {spans[0].partition} of incarnation {spans[0].incarnation}; rebuild its date first"
            )

    def holds(self, evidence: pa.Table) -> Any:
        """A mask of the rows of ``evidence`` that are effective, found without a Python object for each."""
        pc = _compute()
        if self._left and not self._order.keys() >= {*evidence["attempt"].unique().to_pylist()}:
            deque(self._evidence(_Only()), maxlen=0)  # some of its blocks have not been read yet
        kind, file = evidence["class"], evidence["file"]
        aside = _is_in(kind, ("quarantined", "filtered"))
        ended = _is_in(kind, ("superseded", "truncated"))
        gone = pc.and_(pc.equal(kind, "landed"), pc.invert(_is_named(file, self.files.paths.__contains__)))
        rests = pc.invert(pc.or_(gone, self._is_left(evidence)))
        stands = pc.invert(_is_named(file, self._superseded.__contains__))
        return pc.and_(pc.invert(ended), pc.if_else(aside, stands, rests))

    def _held(self, evidence: pa.Table) -> pa.Table:
        return evidence.filter(self.holds(evidence))

    def _is_left(self, evidence: pa.Table) -> Any:
        """A mask of the rows of branches that their partition has left since."""
        pc = _compute()
        left = _is_in(evidence["attempt"], ())
        attempts = [int(one or 0) for one in evidence["attempt"].unique().to_pylist()] if self._left else []
        for (incarnation, partition), parts in self._left.items():
            its = pc.and_(pc.equal(evidence["incarnation"], incarnation), pc.equal(evidence["partition"], partition))
            for later, first in parts:
                before = _is_in(evidence["attempt"], [one for one in attempts if self._order[one] < later])
                left = pc.or_(left, pc.and_(pc.and_(its, before), pc.greater_equal(evidence["first"], first)))
        return left

    def _effective(self, only: _Only, columns: list[str] | None = _COLUMNS) -> Iterator[EvidenceRow]:
        for rows in self._evidence(only):
            held = self._held(rows)
            yield from EvidenceRow.of(held.select(columns) if columns else held)

    def _evidence(self, only: _Only, choices: Sequence[Choice] = ()) -> Iterator[pa.Table]:
        """The chosen rows of all attempts in order, as far as their evidence is there."""
        for attempt, start, rows in self._reader.read(self.table, self.ledger.landed, choices or [only.choice]):
            if rows is None:
                if attempt not in self.missing:
                    self.missing.append(attempt)
                continue
            for number, landed_by in enumerate(rows["attempt"].unique().to_pylist()):
                self._order.setdefault(int(landed_by or 0), (self._places[attempt], start + number))
            yield only.of(rows)


def _compute() -> Any:
    """Arrow's functions. Masks by them keep the order of rows, and pyarrow's types know no arrays of truths."""
    import pyarrow.compute as pc

    return pc


def _is_in(column: Any, values: Collection[Any]) -> Any:
    """A mask of the rows with one of ``values``."""
    import pyarrow as pa

    return _compute().is_in(column, pa.array(values, column.type))


def _mask(truths: Any) -> Any:
    """``truths`` of numpy as a mask."""
    import pyarrow as pa

    return pa.array(truths)


def _is_named(names: Any, chosen: Callable[[str], bool]) -> Any:
    """A mask of the ``names`` that are ``chosen``, which is asked once for each; false without a name."""
    return _is_in(names, [name for name in names.unique().to_pylist() if name is not None and chosen(name)])


def is_of_days(evidence: pa.Table, days: Collection[str]) -> Any:
    """A mask of the rows of ``days``, which are ISO dates, and empty for rows without a date."""
    import pyarrow as pa

    dated = _compute().fill_null(evidence["dt"].cast(pa.string()), "")
    return _is_in(dated, days)


def _start(hulls: Iterable[tuple[int, int]], offset: int) -> int:
    """The lowest offset of the ``hulls`` that span ``offset``; ``offset`` if none does."""
    return min([offset, *(first for first, after in hulls if first < offset < after)])


def _by_place(row: EvidenceRow) -> tuple[int, int, str, int]:
    return *row.key, row.day, row.first


def _by_file(rows: Iterable[EvidenceRow]) -> dict[str, list[EvidenceRow]]:
    files: dict[str, list[EvidenceRow]] = {}
    for row in rows:
        if row.file:
            files.setdefault(row.file, []).append(row)
    return files
