"""How a table's Parquet files are laid out: compression, row groups, Bloom filters, order within row groups.

None of it changes a row. A plan has the layout of its run, so that a retry writes the same bytes, whatever the topics
file says by then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from tidemark.config import Settings, Size

_ZSTD_LEVEL: Final = 1
_OF_COLUMNS: Final = ("bloom", "sort", "statistics")


class ParquetLayout(Settings):
    """``parquet:`` of a topic.

    ``row_group`` are bytes of rows in memory. ``bloom`` names columns with a Bloom filter in each row group. ``sort``
    names those by which the rows of a row group are sorted; row groups follow each other by offset. ``statistics``
    names columns beside those that have statistics in any case.
    """

    compression: Literal["zstd", "lz4", "snappy", "none"] = "zstd"
    level: int | None = Field(default=None, ge=1, le=22)
    row_group: Size = Field(default=32 << 20, ge=1 << 20, le=128 << 20)
    bloom: tuple[str, ...] = ()
    sort: tuple[str, ...] = ()
    statistics: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.level is not None and self.compression != "zstd":
            raise ValueError(f"level: {self.compression} has none; only zstd has levels")
        for name in _OF_COLUMNS:
            columns = getattr(self, name)
            if len({*columns}) < len(columns):
                raise ValueError(f"{name}: each column may be named once")
        return self

    @property
    def compression_level(self) -> int | None:
        """The level that the writer is given."""
        return (self.level or _ZSTD_LEVEL) if self.compression == "zstd" else None

    def of(self, columns: Collection[str]) -> ParquetLayout:
        """The same for files that have these ``columns`` only."""
        return self.model_copy(
            update={name: tuple(one for one in getattr(self, name) if one in columns) for name in _OF_COLUMNS}
        )

    def unknown(self, columns: Collection[str]) -> Iterator[tuple[str, str]]:
        """(setting, column) of each that names none of ``columns``, those that hold one value in a row."""
        for name in _OF_COLUMNS:
            yield from ((name, one) for one in getattr(self, name) if one not in columns)
