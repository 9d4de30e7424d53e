"""A run's plan, result and progress: the objects by which scheduler and job communicate.

A plan (``attempts/<attempt>.json``) is written before anything else of the run. It is a function of the raw
objects, the topic's settings and the committed ledger, so an equal state gives an equal plan, attempt apart. Spark
schedules its tasks; a task converts consecutive byte ranges of one partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import ClassVar, Final, Literal, Self

from pydantic import AwareDatetime, Field, ValidationInfo, field_serializer, field_validator

from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.manifest import AbortedTransactions, LineagePairs, OpenTransactions, Origin, Restores
from tidemark.formats.table.ledger import Closing, PartitionState
from tidemark.formats.table.parquet_layout import ParquetLayout

RunKind = Literal["ingest", "rebuild", "replay", "compact", "retain", "fold", "repair", "schema", "erase"]

RUN_LIMIT: Final = timedelta(days=2)
"""Age of a plan above which its run commits nothing any more, so that the files that it wrote may be cleaned up."""

MOST_UNKNOWN: Final = 200
"""Most names of unknown fields in a run's result."""


class Shipped(Model):
    """Offsets ``[first, next)`` that were in a pack before they were sealed, and the time when the pack was written."""

    first: int
    next: int
    at: AwareDatetime


class StoredRange(Model):
    """Offsets ``[from_offset, to_offset)`` that a task reads, and where they lie: rows of a file, or a SegmentRange.

    A file of the table is ``key``, and has ``end`` bytes. One of quarantine is ``quarantined``, below the quarantine's
    folder, and also has the upload time of the segment of its rows. A replay names as ``key`` the range of raw from
    which they came, and an erasure the file, too.
    """

    store: str
    key: str
    etag: str
    base_offset: int
    start: int = Field(ge=0)
    end: int = Field(ge=0)
    from_offset: int
    to_offset: int
    uploaded_at: AwareDatetime
    origin: Origin = "disk"
    compacted: bool = False
    referred: bool = False
    quarantined: str = ""
    shipped: tuple[Shipped, ...] = ()

    @property
    def label(self) -> str:
        """The range in words, as in evidence and in the file digest."""
        return f"{self.key}:{self.start}-{self.end}:{self.from_offset}-{self.to_offset}"


class SegmentRange(StoredRange):
    """Bytes ``[start, end)`` of a segment's ``.log``, both at the start of a batch or at the file's end; or of a pack.

    Of the batches in it, those with offsets in ``[from_offset, to_offset)`` count. ``etag`` is the ``.log``'s, sent
    as If-Match with every read; empty for a pack. ``store`` is the endpoint's URL. ``uploaded_at`` bounds the sane
    record times. Record times of offsets in ``shipped`` are bounded by the time when their pack was written, so that
    they do not depend on whether the pack or the seal is read.

    The log of a ``referred`` range is another system's object, which that system may delete.
    """

    @property
    def is_packed(self) -> bool:
        """True if the bytes lie in a pack, and will lie in a seal."""
        return not self.etag


class StoredTask(Model):
    """Ranges of one partition that one Spark task carries out; a subclass tells what they are of."""

    incarnation: int
    topic_id: str | None
    partition: int
    ranges: tuple[StoredRange, ...]

    @property
    def from_offset(self) -> int:
        """The first offset that the task accounts for."""
        return self.ranges[0].from_offset

    @property
    def to_offset(self) -> int:
        """The next offset after the last that the task accounts for."""
        return self.ranges[-1].to_offset

    @property
    def size(self) -> int:
        """Number of bytes of the ranges: what the task reads, unless it is of quarantine."""
        return sum(part.end - part.start for part in self.ranges)


class SegmentTask(StoredTask):
    """Consecutive ranges of one partition of raw, converted by one Spark task into one file per date."""

    ranges: tuple[SegmentRange, ...]


class QuarantineTask(StoredTask):
    """Rows of quarantine of one partition and one date, or of all without a date."""


class TableFileTask(StoredTask):
    """Files of the table, of one date and partition, ordered by first offset, which become one; or spans of one."""


def _typed(task: StoredTask, kind: RunKind | None) -> StoredTask:
    """A stored task of a run of ``kind`` as the type that tells what it reads: the stored fields are the same."""
    if type(task) is not StoredTask:
        return task
    if kind == "replay" or (kind == "erase" and task.ranges and task.ranges[0].quarantined):
        return QuarantineTask.model_construct(task.model_fields_set, **dict(task))
    if kind in {"compact", "erase"}:
        return TableFileTask.model_construct(task.model_fields_set, **dict(task))
    ranges = tuple(SegmentRange.model_construct(part.model_fields_set, **dict(part)) for part in task.ranges)
    return SegmentTask.model_construct(task.model_fields_set, **{**dict(task), "ranges": ranges})


class StoredMasks(Model):
    """The keys of masks of erased offsets, and the URL of their store. Offsets of ``spared`` keep their class."""

    store: str
    keys: tuple[str, ...]
    spared: tuple[tuple[int, int], ...] = ()


class BranchCut(Model):
    """A partition leaves the branch that it had landed up to ``old_next``, at offset ``at``: the rest is truncated.

    The classes of its offsets from the plan's ``start`` on are void, and all of these are converted again: ``start`` is
    the last offset, at or below ``at`` and ``old_next``, that no file and no evidence lies across, and before which no
    verdict on a transaction depends on the truncated records. ``at`` may lie above ``old_next`` if the truncation
    removed a marker that decided landed records. ``removes`` and ``supersedes`` are the partition's part of the plan's.
    ``old_verdicts_end``, ``leader_epoch``, ``lineage`` and ``restores`` are the ledger's for the branch that is left.
    """

    at: int = Field(ge=0)
    old_next: int = Field(ge=0)
    old_verdicts_end: int = Field(ge=0)
    leader_epoch: int
    lineage: LineagePairs
    restores: Restores = ()
    removes: tuple[str, ...] = ()
    supersedes: dict[str, tuple[str, ...]] = Field(default_factory=dict)

    @property
    def landed_at(self) -> int:
        """The lower of ``at`` and ``old_next``: the landed offset at which the cut takes effect."""
        return min(self.at, self.old_next)


class PartitionPlan(Model):
    """One partition's part of a run: from the ledger's next offset to ``end``, held back before open transactions.

    In an ingest, ``verdicts_end`` is the ledger's next value. ``branch`` is the ledger's. With a ``cut`` the run starts
    below the ledger's next offset, or at it. ``expired`` offsets were removed from raw before the table's first run.
    ``foreign_epochs`` are the watermark's: under these the ledger may be ahead, and is no later than the plan.
    ``as_of`` is the time of the observation of the high watermark that the plan reaches, if it reaches one. ``masks``
    has the masks of its erased offsets. A rebuild and a repair leave out the rows of ``expired_rows``: by date, offsets
    at which retention removed the date's rows from the table, although the date has other rows since.
    """

    incarnation: int
    topic_id: str | None
    partition: int
    start: int
    end: int
    verdicts_end: int = 0
    leader_epoch: int
    lineage: LineagePairs
    restores: Restores = ()
    aborted: AbortedTransactions = ()
    held_by: OpenTransactions = ()
    gaps: tuple[Gap, ...] = ()
    acknowledged: tuple[tuple[int, int], ...] = ()
    deleted_before_upload: tuple[tuple[int, int], ...] = ()
    expired: tuple[tuple[int, int], ...] = ()
    branch: int = 0
    cut: BranchCut | None = None
    foreign_epochs: tuple[int, ...] = ()
    as_of: AwareDatetime | None = None
    masks: StoredMasks | None = None
    expired_rows: dict[str, tuple[tuple[int, int], ...]] = Field(default_factory=dict)

    @classmethod
    def of(cls, state: PartitionState, start: int, end: int, masks: StoredMasks | None = None) -> Self:
        """A plan over offsets ``[start, end)`` that have landed, by the lineage of the ledger's ``state``."""
        return cls(
            incarnation=state.incarnation,
            topic_id=state.topic_id,
            partition=state.partition,
            start=start,
            end=end,
            leader_epoch=state.leader_epoch,
            lineage=state.lineage,
            restores=state.restores,
            masks=masks,
        )

    @property
    def leadership(self) -> tuple[int, int]:
        """The number of restores and the leader epoch: the later pair is the later leadership."""
        return len(self.restores), self.leader_epoch

    @property
    def begins(self) -> int:
        """The first offset that the run gives a class to."""
        return min([self.start, *(start for start, _ in (*self.deleted_before_upload, *self.expired))])

    @property
    def landed_next(self) -> int:
        """The ledger's next offset at the time of planning; 0 for a partition that the ledger did not have."""
        return self.cut.old_next if self.cut else self.begins

    @property
    def key(self) -> tuple[int, int]:
        """(incarnation, partition)."""
        return self.incarnation, self.partition


class RunPlan(StoredObject):
    """``attempts/<attempt>.json``. In a rebuild, ``dates`` are replaced, and the files ``removes`` are removed.

    An empty entry of ``dates`` means the quarantined and filtered rows without a date. A rebuild of the ``whole`` table
    takes all rows, whatever their new dates are, except those of the dates that retention removed, which it ``leaves``.
    Only such a rebuild may widen a column.

    ``supersedes`` are the files of quarantined and filtered rows that a rebuild or a replay replaces, by their date
    (empty for rows without one): always all effective files of a date. An ingest has ``removes`` and ``supersedes`` for
    its partitions that leave a branch, see :class:`BranchCut`. ``closes`` are dates that the ledger and the watermark
    indexes show to be complete, or overdue; each closes unless its rows have changed since.

    A run of retention (``retain``) only removes: ``removes`` and ``supersedes`` are all files of the ``dates``, with
    their quarantined rows.

    A fold replaces the landed attempts that it ``folds``: its evidence is theirs, row for row. One that ``forgets``
    leaves out what tells of erased records (:mod:`tidemark.planning.maintenance.erasure`).

    A repair restores from raw the rows that another program removed from the table or changed. It removes the files
    that no evidence names, and converts all rows of ``tasks``' offsets, whatever their dates, except for the dates that
    it ``leaves``. ``found`` is the digest of the live files at the time of planning. A partition with a ``BranchCut``
    returns to its ``end``, at or below the cut.

    A compaction replaces the files of each task by one file with the table's ``columns``; ``dates`` are the files'.

    An erasure (``erase``) makes the files of its tasks again, without their erased rows. ``masks`` is the number of the
    last mask that the plan knows, for each place of an incarnation that has masks.

    A run of the kind ``schema`` only adds ``columns``. A rebuild that ``accepts`` a version of a registry's schema
    makes the rows with the proposed columns of that version.

    ``created_at`` is the time of planning, or that at which a rebuild in steps renewed its plan.

    ``unread`` names damaged parts of the live end, which land when they are sealed, and ``.txnindex`` objects, for
    which their partitions wait. Nothing else waits for them.

    New files have the ``layout``, and their columns the ledger's ``field_ids``; new columns get the next ids. The
    object has of ``layout`` what differs from the defaults: only a plan that uses a later version's setting is refused.
    """

    most_bytes: ClassVar[int] = object_sizes.PLAN

    attempt: int
    kind: RunKind
    cluster: str
    topic: str
    table: str
    generation: int = 0
    ledger_n: int
    ledger_attempt: int
    configuration: str
    code: str
    created_at: AwareDatetime
    partitions: tuple[PartitionPlan, ...] = ()
    tasks: tuple[StoredTask, ...] = ()
    dates: tuple[str, ...] = ()
    whole: bool = False
    leaves: tuple[str, ...] = ()
    removes: tuple[str, ...] = ()
    supersedes: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    closes: dict[str, Closing] = Field(default_factory=dict)
    folds: tuple[int, ...] = ()
    forgets: bool = False
    columns: tuple[str, ...] = ()
    found: str = ""
    unread: tuple[str, ...] = ()
    layout: ParquetLayout = ParquetLayout()
    field_ids: dict[str, int] = Field(default_factory=dict)
    accepts: int | None = None
    masks: dict[str, int] = Field(default_factory=dict)

    @field_validator("tasks")
    @classmethod
    def _typed(cls, tasks: tuple[StoredTask, ...], plan: ValidationInfo) -> tuple[StoredTask, ...]:
        return tuple(_typed(task, plan.data.get("kind")) for task in tasks)

    @field_serializer("layout", when_used="json")
    def _without_defaults(self, layout: ParquetLayout) -> dict[str, object]:
        return layout.model_dump(mode="json", exclude_defaults=True)

    @property
    def replaced(self) -> tuple[str, ...]:
        """All files of the table, of its quarantine and of filtered rows that the run replaces."""
        return (*self.removes, *(file for files in self.supersedes.values() for file in files))

    @property
    def empty(self) -> bool:
        """True if there is nothing to commit: no range, and no new state of a partition, a date or the table."""
        state = self.partitions or self.replaced or self.closes or self.folds or self.found
        return not state and self.kind not in {"schema", "erase"}


def merged(by_date: Iterable[Mapping[str, Iterable[str]]]) -> dict[str, tuple[str, ...]]:
    """Files by date, merged."""
    merged_files: dict[str, list[str]] = {}
    for files_of_dates in by_date:
        for dt, files in files_of_dates.items():
            merged_files.setdefault(dt, []).extend(files)
    return {dt: tuple(sorted(files)) for dt, files in sorted(merged_files.items())}


class RunResult(StoredObject):
    """``results/<attempt>.json``: the scheduler reads it after the job.

    ``landed``: this attempt's commit counts (made now or before). ``stale``: the table has moved on since the plan,
    nothing was committed and nothing is lost. ``empty``: there was nothing to do. ``unread`` names damaged heads and
    packs: their content waits until it is sealed, so that the topic may be late.

    ``unknown`` counts the rows with a field that the table has no column for, by the field's path, over the rows that
    the run parsed and the parser did not refuse, also of dates that a rebuild leaves alone. Of more than MOST_UNKNOWN
    names, those of most rows are kept, and the sum of the others' rows under ``…``. None if it is not known: nothing
    was committed, or the result was lost and is made from evidence again. If a vacuum has removed the ledger, too, such
    a result has no ``dates`` and no ``gaps``, and ``ledger_n`` is the plan's. ``bytes_written``, the size of the files
    that the run added to the table, is also not known then.
    """

    most_bytes: ClassVar[int] = object_sizes.REPORT

    attempt: int
    status: Literal["landed", "stale", "empty"]
    cluster: str
    topic: str
    table: str
    ledger_n: int
    rows: int = 0
    files: int = 0
    bytes_read: int = 0
    bytes_written: int | None = None
    quarantined: int = 0
    erased: int = 0
    truncated: int = 0
    dates: tuple[str, ...] = ()
    gaps: tuple[tuple[int, int, int, int], ...] = ()
    seconds: dict[str, float] = Field(default_factory=dict)
    unread: tuple[str, ...] = ()
    unknown: dict[str, int] | None = None


class RunProgress(StoredObject):
    """``progress/<attempt>.json``: ``done`` of ``total`` tasks are finished. The job replaces it during the run."""

    attempt: int
    done: int = Field(ge=0)
    total: int = Field(ge=0)
    started_at: AwareDatetime
    at: AwareDatetime
