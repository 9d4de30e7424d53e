"""The messages to the workers and back: summaries only, never rows."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Final, Literal, Protocol, TypeVar

from typing_extensions import override

from tidemark.errors import ConfigError
from tidemark.formats.keys import TableKeys
from tidemark.formats.table.parquet_layout import ParquetLayout
from tidemark.formats.table.plan import PartitionPlan, RunPlan
from tidemark.formats.table.steps import DataFile
from tidemark.installation import VERSION
from tidemark.store import StoreOptions
from tidemark.table.delta_table import TopicTable
from tidemark.table.evidence import EvidenceRow
from tidemark.topics import TopicSettings


def check_driver(driver: str) -> None:
    """Raise ConfigError unless this worker has the version of its driver."""
    if driver != VERSION:
        rule = f"this worker has version {VERSION}, and the driver {driver}: install the driver's in its environment"
        raise ConfigError(f"Tidemark on {socket.gethostname()}", [("", rule)])


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Limits of a step of converting; a batch or record that takes more goes to quarantine.

    ``batch`` bounds the bytes of a batch's records when decompressed, ``memory`` the bytes that decoding, parsing and
    writing take beyond what the process has when it begins. ``seconds``, plus the time of the bytes at hand at ``rate``
    bytes a second, bounds the processor time of decoding or parsing them; it may take six times as long while a process
    waits. No parser of use is that slow, and a record that hangs one is found soon.
    """

    batch: int
    memory: int
    seconds: float = 10.0
    rate: int = 256 << 10

    @classmethod
    def of(cls, batch: int) -> StepLimits:
        """The limits for a topic whose batches have up to ``batch`` bytes."""
        return cls(batch, max(_LEAST_MEMORY, _MEMORY_OF_BATCH * batch))


_MEMORY_OF_BATCH: Final = 16
"""Measured: 7 times without a parser, 12 times with one that makes text of the whole record."""

_LEAST_MEMORY: Final = 1 << 30
"""With small batches as well, a few bytes may become hundreds of MiB of nulls."""


@dataclass(frozen=True, slots=True)
class Job:
    """Settings that all tasks of a run share.

    A rebuild wants only rows of its ``dates``, if any, and none of the dates that it ``leaves``. The date None means
    refused and filtered rows without a date.
    """

    topic: TopicSettings
    limits: StepLimits
    lake_store: str
    options: StoreOptions
    keys: TableKeys
    attempt: int
    generation: int
    configuration: str
    code: str
    created_at: datetime
    dates: frozenset[date | None]
    leaves: frozenset[date | None]
    columns: tuple[str, ...]
    partitions: dict[tuple[int, int], PartitionPlan]
    layout: ParquetLayout
    field_ids: dict[str, int]

    @classmethod
    def of(cls, table: TopicTable, plan: RunPlan) -> Job:
        """The job of ``plan``."""
        return cls(
            topic=table.topic,
            limits=StepLimits.of(table.topic.limits.batch),
            lake_store=table.deployment.lake_store,
            options=table.deployment.store,
            keys=table.keys,
            attempt=plan.attempt,
            generation=plan.generation,
            configuration=plan.configuration,
            code=plan.code,
            created_at=plan.created_at,
            dates=frozenset(() if plan.whole else (date.fromisoformat(dt) if dt else None for dt in plan.dates)),
            leaves=frozenset(map(date.fromisoformat, plan.leaves)),
            columns=plan.columns,
            partitions={part.key: part for part in plan.partitions},
            layout=plan.layout,
            field_ids=plan.field_ids,
        )

    def wants(self, dt: date | None) -> bool:
        """True if the run wants rows of ``dt``."""
        return (not self.dates or dt in self.dates) and dt not in self.leaves


@dataclass(frozen=True, slots=True)
class Stop:
    """The offset at which a task ended before its last one, and the reason. Offsets up to ``end`` are unknown.

    ``lost``: no batch holds the offsets, or another system has deleted its log, to which a manifest referred.
    ``corrupt``: the batch is damaged. ``moved``: since the plan, the segment was removed or replaced by other bytes, so
    that a new plan is needed. ``unread``: a pack lacks promised ranges, or the store did not return it; its offsets
    wait until it does, or until they are sealed.
    """

    offset: int
    end: int
    kind: Literal["lost", "corrupt", "moved", "unread"]
    detail: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a task: ``evidence`` has each offset of the partition's ``[from_offset, next_offset)`` once.

    ``other_rows`` are rows that a rebuild leaves alone, by their date or since they expired. ``unknown`` sums
    :attr:`tidemark.parsers.base.Parsed.unknown` of all rows, ``other_rows`` included.
    """

    incarnation: int
    partition: int
    from_offset: int
    next_offset: int
    files: tuple[DataFile, ...]
    evidence: tuple[EvidenceRow, ...]
    stop: Stop | None
    bytes_read: int
    other_rows: int = 0
    unknown: Mapping[str, int] = field(default_factory=dict)


Common = TypeVar("Common")
Given = TypeVar("Given")
Made = TypeVar("Made")


class Executor(Protocol):
    """Runs tasks: Spark, or a test's own process."""

    def on_each(self, work: Callable[[Common, Given], Made], common: Common, tasks: Sequence[Given]) -> list[Made]:
        """Results of ``work`` for each task, in any order; a failed task is repeated as the deployment configures.

        Without tasks nothing is started.
        """

    def finished(self) -> int:
        """Number of completed tasks of the running ones; called from another thread."""


class CarriedOut(Executor):
    """Tasks that were carried out before, with what they have ``made``."""

    def __init__(self, made: Sequence[Any] = ()) -> None:
        self._made = made

    @override
    def on_each(self, work: Callable[[Common, Given], Made], common: Common, tasks: Sequence[Given]) -> list[Made]:
        return list(self._made)

    @override
    def finished(self) -> int:
        return len(self._made)
