"""The layout of a table's Parquet files: compression, row groups, Bloom filters, order within row groups.

None of it changes a row. A plan has the layout of its run, so that a retry writes the same bytes even if the topics
file has changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from tidemark.config import Settings, Size

_ZSTD_LEVEL: Final = 1
_NO_BLOOM: Final = {
    **dict.fromkeys(("bool", "boolean"), "Parquet has none for two values"),
    **dict.fromkeys(("float", "double"), "0.0 and -0.0 are equal and hashed differently, so readers would miss rows"),
}
"""Types without a Bloom filter, by their names in Arrow and in topics files, and the reason."""


class ParquetSettings(Settings):
    """``parquet:`` of a topic.

    ``bloom`` names columns with a Bloom filter in each row group. The rows of a row group are sorted by the columns in
    ``sort``; row groups follow each other by offset. A binary column with a Bloom filter has no statistics.
    """

    removed: ClassVar = {
        "level": "zstd has level 1",
        "row_group": "a row group has up to 32 MiB in memory",
        "statistics": "partition, offset, timestamp and the parser's columns have minimum and maximum",
    }
    of_columns: ClassVar[tuple[str, ...]] = ("bloom", "sort")

    compression: Literal["zstd", "lz4", "snappy", "none"] = "zstd"
    bloom: tuple[str, ...] = ()
    sort: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        for name in self.of_columns:
            columns = getattr(self, name)
            if len({*columns}) < len(columns):
                raise ValueError(f"{name}: each column may be named once")
        return self

    @property
    def layout(self) -> ParquetLayout:
        """The layout of a run with these settings."""
        return ParquetLayout(compression=self.compression, bloom=self.bloom, sort=self.sort)

    def unsuited(self, types: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """(setting, problem) of each named column whose type, by column, cannot have what the setting asks for."""
        for name in self.bloom:
            kind = types.get(name, "")
            if kind in _NO_BLOOM:
                yield "bloom", f"{name} is a {kind}: {_NO_BLOOM[kind]}; leave it out"

    def unknown(self, columns: Collection[str]) -> Iterator[tuple[str, str]]:
        """(setting, column) of each named column that is not in ``columns``, the columns with one value a row."""
        for name in self.of_columns:
            yield from ((name, column) for column in getattr(self, name) if column not in columns)


class ParquetLayout(ParquetSettings):
    """The layout in a plan: the topic's settings, and what no topic sets.

    ``row_group`` is in bytes of rows in memory: a task takes up to twice as much, and at least 64 MiB. ``statistics``
    names columns beside those that always have statistics.
    """

    removed: ClassVar = {}
    of_columns: ClassVar[tuple[str, ...]] = (*ParquetSettings.of_columns, "statistics")

    level: int | None = Field(default=None, ge=1, le=22)
    row_group: Size = Field(default=32 << 20, ge=1 << 20, le=128 << 20)
    statistics: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_level(self) -> Self:
        if self.level is not None and self.compression != "zstd":
            raise ValueError(f"level: {self.compression} has none; only zstd has levels")
        return self

    @property
    def compression_level(self) -> int | None:
        """The compression level for the writer."""
        return (self.level or _ZSTD_LEVEL) if self.compression == "zstd" else None

    def of(self, columns: Collection[str]) -> ParquetLayout:
        """This layout, reduced to ``columns``."""
        return self.model_copy(
            update={
                name: tuple(column for column in getattr(self, name) if column in columns) for name in self.of_columns
            }
        )
