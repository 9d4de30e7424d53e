"""``module:function``: a user's own parser over Arrow batches, checked against its declared columns.

``function(rows)`` gets a record batch with Kafka's columns (:data:`tidemark.decode.schema.SCHEMA`) and returns the
declared columns as a record batch with as many rows; or a ``ParserAnswer``, or a tuple like one. It must be a pure
function of the rows, for any division of them into batches.

If it raises a ValueError, TypeError, LookupError or ArithmeticError, the batch is halved until it does not; a row that
makes it raise on its own is refused. Any other error ends the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tidemark.errors import ParserError
from tidemark.parsers.base import Bits, Parsed, bisected, event_time_of, no_rows, shortened, valid_rows
from tidemark.parsers.row_parser import RefusedRecord
from tidemark.parsers.settings import FunctionParser
from tidemark.parsers.type_conversion import arrow_type

_OF_ROWS: Final = (ValueError, TypeError, LookupError, ArithmeticError)

_NONE: Final[Mapping[int, str]] = {}


class ParserAnswer(NamedTuple):
    """The result that a function may return: columns, reasons of refused rows, and a boolean array of rows kept."""

    columns: pa.RecordBatch
    refused: Mapping[int, str] = _NONE
    keep: pa.Array[Any] | None = None


class FunctionColumns:
    """The parser of kind ``function``."""

    def __init__(self, settings: FunctionParser) -> None:
        self._settings = settings
        self._function = settings.load()
        self.columns: pa.Schema = pa.schema(
            [pa.field(column.name, arrow_type(column.parsed_type)) for column in settings.columns]
        )
        self._required = [column.name for column in settings.columns if column.required]

    @property
    def version(self) -> str:
        """The function's name, and the version that its author gave it."""
        return f"function/{self._settings.function}/{self._settings.version}"

    def parse(self, rows: pa.RecordBatch) -> Parsed:
        """Call the function for all rows; if it raises, for parts of them, so that only single rows are refused."""
        refused: dict[int, str] = {}
        keep = np.ones(len(rows), np.bool_)

        def attempt(start: int, end: int) -> ParserAnswer:
            return self._call(rows.slice(start, end - start))

        def alone(row: int) -> ParserAnswer:
            try:
                return attempt(row, row + 1)
            except RefusedRecord as error:
                return ParserAnswer(no_rows(self.columns, 1), {0: str(error)})

        pieces = bisected(len(rows), attempt, alone)
        for start, end, answer in pieces:
            refused |= {start + row: shortened(reason) for row, reason in answer.refused.items()}
            if answer.keep is not None:
                keep[start:end] = answer.keep.to_numpy(zero_copy_only=False)
        table = pa.Table.from_batches([answer.columns for _, _, answer in pieces], self.columns).combine_chunks()
        [columns] = table.to_batches() or [no_rows(self.columns, 0)]
        self._check_required(rows, columns, keep, refused)
        filtered = None if keep.all() else ~keep
        return Parsed(columns, refused, filtered, event_time_of(columns, self._settings.event_time))

    def _call(self, rows: pa.RecordBatch) -> ParserAnswer:
        try:
            returned = self._function(rows)
        except _OF_ROWS as error:
            raise RefusedRecord(f"{self._settings.function} raised {type(error).__name__}: {error}") from error
        if isinstance(returned, ParserAnswer):
            answer = returned
        else:
            answer = ParserAnswer(*returned) if isinstance(returned, tuple) else ParserAnswer(returned)
        self._check(answer, len(rows))
        return answer

    def _check(self, answer: ParserAnswer, rows: int) -> None:
        name = self._settings.function
        columns: Any = answer.columns  # its type is only the function's claim
        is_batch = isinstance(columns, pa.RecordBatch)
        if not is_batch or not columns.schema.equals(self.columns):
            got = columns.schema.to_string() if is_batch else type(columns).__name__
            raise ParserError(f"{name}: must return the columns {self.columns.to_string()}; returned {got}")
        if len(columns) != rows:
            raise ParserError(f"{name}: was given {rows} rows and returned {len(columns)}")
        refused: dict[Any, Any] = dict(answer.refused)
        wrong = [row for row, why in refused.items() if not (0 <= row < rows and isinstance(why, str) and why)]
        if wrong:
            raise ParserError(f"{name}: refuses row {wrong[0]} of {rows}, or gives no reason")
        if answer.keep is not None and (
            not pa.types.is_boolean(answer.keep.type) or len(answer.keep) != rows or answer.keep.null_count
        ):
            raise ParserError(f"{name}: keep must be {rows} truth values, none of them null")

    def _check_required(
        self, rows: pa.RecordBatch, columns: pa.RecordBatch, keep: Bits, refused: dict[int, str]
    ) -> None:
        given = valid_rows(rows.column(f"kafka_{self._settings.columns_from}"))
        for name in self._required:
            missing = given & keep & ~valid_rows(columns.column(name))
            for row in np.flatnonzero(missing).tolist():
                refused.setdefault(row, f"{name}: is required, and null")
