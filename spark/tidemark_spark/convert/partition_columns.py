"""The partitions of a date, computed for the rows of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidemark.decode.schema import array
from tidemark.formats.table.partitioning import HOUR, DateFolder, PartitionColumn, folder_name
from tidemark.parsers.base import Indices, Parser
from tidemark.parsers.partition_columns import partitioned_parser, places_of, value_sets
from tidemark.topics import TopicSettings

_MILLISECONDS: Final = 3_600_000
_HOURS: Final = 24


def topic_parser(topic: TopicSettings) -> Parser:
    """The parser of ``topic``, see :func:`partitioned_parser`."""
    return partitioned_parser(topic.parser, topic.partition_by, f"{topic.cluster}/{topic.topic}")


class RowPartitions:
    """Sorts rows into the partitions of a date, by ``columns`` without ``dt``."""

    def __init__(self, columns: Sequence[PartitionColumn], parsed: pa.Schema) -> None:
        self._columns = columns
        self._values = value_sets(columns, parsed)
        self._paths: dict[int, str] = {}

    @property
    def has_hour(self) -> bool:
        """True if the table has the column ``hour``."""
        return any(partition.column == HOUR for partition in self._columns)

    def sorted(
        self, by_date: Iterable[tuple[DateFolder, Indices]], hours: Indices, parsed: pa.RecordBatch
    ) -> list[tuple[DateFolder, Indices]]:
        """Rows ``by_date`` split into partitions; ``hours`` and ``parsed`` have the values of all rows."""
        numbers, folders = self._numbers(hours, parsed), []
        for folder, rows in by_date:
            order = np.argsort(numbers[rows], kind="stable")
            ordered, chosen = numbers[rows][order], rows[order]
            cuts = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(rows)]
            for start, end in pairwise(cuts):
                folders.append((folder._replace(below=self._path(int(ordered[start]))), chosen[start:end]))
        return folders

    def _numbers(self, hours: Indices, parsed: pa.RecordBatch) -> Indices:
        """Number of each row's partition."""
        numbers = np.zeros(len(hours), np.int64)
        for partition in self._columns:
            known = len(partition.texts)
            indices = hours if partition.column == HOUR else places_of(parsed, partition.column, self._values)
            numbers = numbers * (known + 1) + np.where(indices < 0, known, indices)
        return numbers

    def _path(self, number: int) -> str:
        """Folders of a partition below the folder of its date."""
        if number not in self._paths:
            names, left = [], number
            for partition in reversed(self._columns):
                left, place = divmod(left, len(partition.texts) + 1)
                names.append(
                    folder_name(partition.column, partition.texts[place] if place < len(partition.texts) else None)
                )
            self._paths[number] = "/".join(reversed(names))
        return self._paths[number]


def hours_of(local: Indices) -> Indices:
    """Hour of each local time, which is in milliseconds since 1970."""
    return local // _MILLISECONDS % _HOURS


def hour_column(hours: Indices) -> pa.Array[Any]:
    """The column ``hour``."""
    return array(pa.int32(), hours.astype(np.int32))
