"""The sorting of a table's files into folders: by ``dt``, and by the other columns of the topic's ``partition_by``.

The folder of a file states the values of its rows: ``dt=2026-11-20/hour=7/country=AT``. So the path alone gives the
values of the Delta log and of Iceberg's metadata. A value's text is Delta's; null is Hive's name for it. Of ASCII, all
but letters, digits and ``_.-~`` is written ``%XX``, which all readers of Hive's folders decode; other letters stay as
they are, because Hive decodes no UTF-8. Of the text ``null``, in any case, the first letter is escaped too: DuckDB
before 2.0 takes the plain folder for null.

A column's values are listed in the settings. The partition of a row is then a function of the row and the settings
alone, and the settings limit the number of a table's partitions, whatever producers send. A limit that counts values as
they come would depend on the order of the runs, and a rebuild would sort rows differently.

Source: https://github.com/delta-io/delta, PROTOCOL.md, Partition Value Serialization.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from math import prod
from typing import Annotated, Final, NamedTuple, Self
from urllib.parse import unquote

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tidemark.config import Settings
from tidemark.formats.table.base_columns import PREFIX

DT: Final = "dt"
HOUR: Final = "hour"
"""The hour, 0 to 23, of the time that gives a row's ``dt``, in the topic's time zone."""

NULL: Final = "__HIVE_DEFAULT_PARTITION__"
"""The name of null in a folder."""

MOST_PARTITIONS: Final = 1000
"""Most partitions of a date."""

_ESCAPED: Final = re.compile(r"(?![A-Za-z0-9_.~-])[\x00-\x7f]")
_HOURS: Final = 24
_BOOLEANS: Final = ("false", "true")


def _text(value: object) -> object:
    """A listed value as Delta writes it."""
    if isinstance(value, bool):
        raise ValueError(f"{value}: write text in quotes, such as 'NO'; a boolean column needs no values")  # noqa: TRY004
    if isinstance(value, int):
        return str(value)
    return value.isoformat() if type(value) is date else value


def _check_text(text: str) -> str:
    if not text or text == NULL:
        raise ValueError(f"{text!r} cannot be the name of a partition: Delta and Hive read it as null")
    if len(text) > 100 or not text.isprintable():
        raise ValueError(f"{text!r}: must be 1 to 100 printable characters")
    return text


ListedValue = Annotated[str, BeforeValidator(_text), AfterValidator(_check_text)]


class PartitionColumn(Settings):
    """A column of ``partition_by``. ``values`` are all its possible values; a boolean needs none."""

    column: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    values: tuple[ListedValue, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.column.startswith(PREFIX):
            raise ValueError(f"{self.column}: must be dt, hour or a column of the parser")
        if self.values and self.column in {DT, HOUR}:
            raise ValueError(f"{self.column} takes no values: they come from the record's time")
        if len({*self.values}) < len(self.values):
            raise ValueError(f"{self.column}: each value may be listed once")
        return self

    @property
    def texts(self) -> tuple[str, ...]:
        """All possible values of the column, except null."""
        if self.column == HOUR:
            return tuple(map(str, range(_HOURS)))
        return self.values or _BOOLEANS


def _named(value: object) -> object:
    return {"column": value} if isinstance(value, str) else value


def _check_all(columns: tuple[PartitionColumn, ...]) -> tuple[PartitionColumn, ...]:
    names = [column.column for column in columns]
    if names[:1] != [DT] or DT in names[1:]:
        raise ValueError("must begin with dt: dates close, expire and are rebuilt each by itself")
    if len({name.casefold() for name in names}) < len(names):
        raise ValueError("each column may be named once")
    most = prod(len(column.texts) + (column.column != HOUR) for column in columns[1:])
    if most > MOST_PARTITIONS:
        rule = f"a date may have at most {MOST_PARTITIONS}, since each has files of its own"
        raise ValueError(f"a date would have up to {most} partitions; {rule}: list fewer values")
    return columns


PartitionBy = Annotated[tuple[Annotated[PartitionColumn, BeforeValidator(_named)], ...], AfterValidator(_check_all)]
"""``partition_by`` of a topic: ``dt``, and the columns that partition a date."""

BY_DATE: Final = (PartitionColumn(column=DT),)


class DateFolder(NamedTuple):
    """The folder of a file, by its date, and below that by its other columns: ``hour=7/country=AT``.

    Only refused rows have no date.
    """

    dt: date | None
    below: str = ""

    @property
    def path(self) -> str:
        """The path relative to the table."""
        day = f"{DT}={self.dt.isoformat() if self.dt else NULL}"
        return f"{day}/{self.below}" if self.below else day

    @property
    def order(self) -> tuple[bool, date, str]:
        """The sort key of folders; a folder without a date comes last."""
        return self.dt is None, self.dt or date.min, self.below

    @classmethod
    def of(cls, path: str) -> DateFolder:
        """The folder of a file; ``path`` is relative to the table."""
        first, _, below = path.rpartition("/")[0].partition("/")
        text = first.removeprefix(f"{DT}=")
        return cls(None if text == NULL else date.fromisoformat(text), below)


def folder_name(column: str, text: str | None) -> str:
    """The name of the folder of one column's value."""
    if text is None:
        return f"{column}={NULL}"
    if text.casefold() == "null":
        return f"{column}=%{ord(text[0]):02X}{text[1:]}"
    return f"{column}={_ESCAPED.sub(lambda character: f'%{ord(character[0]):02X}', text)}"


def partition_values(path: str) -> dict[str, str | None]:
    """The values of all partition columns of a file, by its path below the table, as texts."""
    pairs = (name.partition("=") for name in path.split("/")[:-1])
    return {column: None if text == NULL else unquote(text) for column, _, text in pairs}


def names_of(columns: Sequence[PartitionColumn]) -> list[str]:
    """The names of the columns, in order."""
    return [column.column for column in columns]
