"""The rules of retention: the objects that it may remove. Pure, except for the plan of a table's dates and the reports.

**A date of the table** is past when its end, in the topic's time zone, lies longer ago than ``retention.table``. All
its rows are removed together, quarantined and filtered rows as well. If a part of a date stayed, a rebuild could not
prove that nothing was lost.

**A raw segment** may be removed if all of this holds:

1. it is whole: a damaged segment stays;
2. it lies below the ledger's and the watermark's next offset, so that all its offsets are landed and decided;
3. the effective evidence gives each of its offsets one class;
4. it ends at or below line 1 of ``offset.wm``, from which agents search the store;
5. it was uploaded, rolled, and last written to longer ago than ``retention.raw``; a record time that is not plausible
   does not count;
6. no run that may still commit reads it;
7. all its objects are those of its manifest: none was made again, and none is gone;
8. all earlier segments may be removed, too, and no segment that stays spans its end. So raw is removed only at its old
   end, and while a segment exists, so do the later segments that it needs (their markers decide its transactions).

A partition keeps all its segments while it has open gaps, since agents search all segments for them, and while it
leaves a branch of its log, since segments are converted again then.

A run reports, once for the table and once for raw, which objects retention will remove or has removed, and why others
stay. An object may only be removed if the newest report that is a day old names it, so that a person can see the coming
removal, and stop it.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final, Literal

from pydantic import AwareDatetime, Field

from tidemark.config import Duration
from tidemark.errors import FormatError
from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.formats.raw.watermark import Watermark
from tidemark.formats.table.ledger import PartitionState
from tidemark.formats.table.plan import RunPlan
from tidemark.intervals import Interval, Intervals
from tidemark.planning.common import following
from tidemark.planning.date_finality import end_of
from tidemark.planning.partition_plan import left_at
from tidemark.planning.rebuild import files_by_date
from tidemark.store import put_once
from tidemark.table.delta_table import LiveFile, TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.tampering import check_untampered
from tidemark.timestamps import stamp


def plan_retain(
    table: TopicTable, now: datetime, only: Collection[str] | None = None
) -> tuple[RunPlan, list[DateGoes]]:
    """The plan that removes from the table the dates which are past at ``now``, and a report on each date.

    With ``only``, other dates stay. The plan is empty if no date is past.
    """
    standing = EffectiveEvidence.of(table)
    check_untampered(table, standing.ledger, standing.files)
    ledger, live = standing.ledger, list(standing.live.values())
    window = table.topic.retention.table
    aside = standing.set_aside()
    past = sorted(
        dt
        for dt in {*(file.dt for file in live), *(row.day for row in aside)}
        if dt and window is not None and end_of(dt, table.topic.zone) <= now - window and (only is None or dt in only)
    )
    removes = [file for file in live if file.dt in past]
    supersedes = files_by_date(row for row in aside if row.day in past)
    plan = RunPlan(
        **following(table, ledger),
        kind="retain",
        dates=tuple(dt for dt in past if dt in ledger.dates),
        removes=tuple(file.path for file in removes),
        supersedes=supersedes,
    )
    return plan, [_goes(dt, removes, supersedes) for dt in past]


def _goes(dt: str, removes: Iterable[LiveFile], supersedes: Mapping[str, tuple[str, ...]]) -> DateGoes:
    files = [file for file in removes if file.dt == dt]
    rows, size = sum(file.rows for file in files), sum(file.size for file in files)
    return DateGoes(dt=dt, files=len(files), rows=rows, bytes=size, aside=len(supersedes.get(dt, ())))


class Classed:
    """The offsets of a partition that have exactly one class in the evidence; keeps three numbers of each row."""

    def __init__(self) -> None:
        self._first, self._next, self._rows = array("q"), array("q"), array("q")

    def add(self, first: bytes, after: bytes, rows: bytes) -> None:
        """Add valid rows, given each of the numbers as 64-bit integers of this machine."""
        self._first.frombytes(first)
        self._next.frombytes(after)
        self._rows.frombytes(rows)

    def offsets(self) -> Intervals:
        """The offsets of all runs of overlapping rows with counts that add up to the length of the run."""
        runs: list[Interval] = []
        start = end = count = 0
        for first, after, rows in sorted(zip(self._first, self._next, self._rows, strict=True)):
            if first >= end:
                if count == end - start:
                    runs.append(Interval(start, end))
                start, end, count = first, after, 0
            end, count = max(end, after), count + rows
        if count == end - start:
            runs.append(Interval(start, end))
        return Intervals(runs)


@dataclass(frozen=True, slots=True)
class Keeping:
    """The state that decides about a partition's segments; ``busy`` are the ``.log`` keys that runs may still read.

    ``line_1`` is that of ``offset.wm``. A segment must be done before the time ``before``. A record's time up to
    ``ahead`` after the upload is plausible.
    """

    state: PartitionState
    watermark: Watermark
    line_1: int
    classed: Intervals
    busy: Collection[str]
    before: datetime
    ahead: timedelta

    def partition_stays(self) -> str | None:
        """The reason that all segments of the partition stay, or None."""
        if self.watermark.gaps:
            return f"it has an open gap at offset {self.watermark.gaps[0].start}, which agents still search for"
        left = left_at(self.watermark, self.state)
        if left is not None:
            return f"it leaves a branch of its log at offset {left}"
        return None

    def segment_stays(self, manifest: SegmentManifest, etags: Mapping[str, str], key: str) -> str | None:
        """The reason that the segment stays, or None. ``etags`` are listed at its offset, ``key`` is its log's."""
        start, end = manifest.base_offset, manifest.next_offset
        if manifest.state != "whole":
            return f"it is {manifest.state}"
        if end > min(self.state.next_offset, self.watermark.next_offset):
            return f"it is not landed: the ledger continues at {self.state.next_offset}"
        if not self.classed.covers(start, end):
            return "the evidence does not give each of its offsets one class"
        if end > self.line_1:
            return f"agents continue from segment {self.line_1}"
        done = done_at(manifest, self.ahead)
        if done >= self.before:
            return f"its last record or upload is of {done:%Y-%m-%d %H:%M} UTC"
        if key in self.busy:
            return "a run that may still commit reads it"
        for name, described in manifest.objects.items():
            if etags.get(name) != described.etag:
                return f"{name} is not the version that its manifest describes, or is gone"
        return None


def done_at(manifest: SegmentManifest, ahead: timedelta) -> datetime:
    """The time of the latest event of a segment: its roll, its upload, or its last record with a plausible time."""
    times = [manifest.uploaded_at, manifest.rotated_at or manifest.uploaded_at]
    if manifest.max_timestamp is not None:
        latest = manifest.uploaded_at + ahead
        sane = max(0, min(manifest.max_timestamp, round(latest.timestamp() * 1000)))
        times.append(datetime.fromtimestamp(sane / 1000, UTC))
    return max(times)


REVIEW: Final = timedelta(days=1)
"""Time for which a report must have named an object before retention removes it."""

Subject = Literal["table", "raw"]


class DateGoes(Model):
    """A date of the table that is past: its live files, and its files of quarantined and filtered rows (``aside``)."""

    dt: str
    files: int = Field(ge=0)
    rows: int = Field(ge=0)
    bytes: int = Field(ge=0)
    aside: int = Field(default=0, ge=0)
    removed: bool = False


class PartitionGoes(Model):
    """The segments of ``[start, end)`` that may be removed, and the reason that the next one ``stays``.

    ``removed_to`` is the end of the removed segments. ``leftover`` objects should have been deleted by an earlier run
    that was killed. Of these segments, ``others_logs`` logs of ``others_bytes`` are another system's: they stay.
    """

    incarnation: int = Field(ge=0)
    partition: int = Field(ge=0)
    start: int = Field(default=0, ge=0)
    end: int = Field(default=0, ge=0)
    segments: int = Field(default=0, ge=0)
    bytes: int = Field(default=0, ge=0)
    removed_to: int = Field(default=0, ge=0)
    leftover: int = Field(default=0, ge=0)
    others_logs: int = Field(default=0, ge=0)
    others_bytes: int = Field(default=0, ge=0)
    stays: str = ""


class RetentionReport(StoredObject):
    """``retention/<subject>/<time>-<n>.json``. ``reviewed`` is the key of the report that allowed the removal."""

    most_bytes: ClassVar[int] = object_sizes.REPORT

    cluster: str
    topic: str
    table: str
    subject: Subject
    at: AwareDatetime
    by: str
    window: Duration | None
    dry_run: bool
    ledger_n: int
    reviewed: str = ""
    dates: tuple[DateGoes, ...] = ()
    partitions: tuple[PartitionGoes, ...] = ()

    def text(self) -> str:
        """The report for a person, with a line for each date and partition."""
        kept = "for ever" if self.window is None else f"for {self.window / timedelta(days=1):g} days"
        mode = "dry run, nothing was removed" if self.dry_run else f"reviewed in {self.reviewed or 'no report yet'}"
        lines = [f"{self.cluster}/{self.topic}: {self.subject} is kept {kept}; {mode}"]
        for day in self.dates:
            went = "removed" if day.removed else "past"
            size = f"{day.rows} rows in {day.files} files, {day.bytes} bytes"
            lines.append(f"  dt={day.dt}: {went}: {size}; {day.aside} files of refused or filtered rows")
        for partition in self.partitions:
            line = f"  incarnation {partition.incarnation} partition {partition.partition}: "
            if partition.segments:
                offsets = f"offsets {partition.start} to {partition.end - 1}"
                line += f"{partition.segments} segments past, {offsets}, {partition.bytes} bytes"
                line += f", removed up to {partition.removed_to - 1}; " if partition.removed_to else "; "
            line += f"{partition.leftover} objects that an earlier run left; " if partition.leftover else ""
            if partition.others_logs:
                line += (
                    f"{partition.others_logs} of their logs ({partition.others_bytes} bytes) belong to Kafka's remote"
                )
                line += " tier, which alone deletes them; "
            lines.append(line + partition.stays)
        return "\n".join(lines)


def write_report(table: TopicTable, report: RetentionReport) -> str:
    """Write ``report`` and return its key."""
    key = f"{table.keys.retention(report.subject)}{stamp(report.at)}-{report.ledger_n}.json"
    put_once(table.store, key, report.to_bytes())
    return key


def reviewed(table: TopicTable, subject: Subject, now: datetime) -> tuple[str, RetentionReport] | None:
    """(key, report) of the newest report on ``subject`` that is a day old, or None.

    Raises:
        FormatError: it does not parse, or is another topic's.
    """
    folder, limit = table.keys.retention(subject), stamp(now - REVIEW)
    keys = [info.key for info in table.store.list(folder) if info.key.removeprefix(folder).partition("-")[0] <= limit]
    if not keys:
        return None
    report = RetentionReport.load(table.store, keys[-1])
    if (report.subject, report.cluster, report.topic) != (subject, table.topic.cluster, table.topic.topic):
        raise FormatError(keys[-1], f"is a report on {report.subject} of {report.cluster}/{report.topic}")
    return keys[-1], report
