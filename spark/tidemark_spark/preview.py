"""What a rebuild would read and replace: its dry run, for a person and as JSON."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from tidemark.runs import PartitionPlan, RunPlan, SegmentRange
from tidemark.standing import Standing
from tidemark.stored import Part, StoredObject
from tidemark.table import Lake, open_table
from tidemark_spark.audit_sides import holding
from tidemark_spark.delta import check_columns, schema_change
from tidemark_spark.moves import Moves


class DatePreview(Part):
    """A date (ISO, empty for rows without one) as it is. ``other_settings`` of its records landed by other settings.

    ``then`` are the records that it would have, if that was found out.
    """

    dt: str
    state: str
    rows: int
    quarantined: int
    filtered: int
    files: int
    bytes: int
    other_settings: int
    then: int | None = None

    def text(self) -> str:
        """One line for a person."""
        line = f"dt={self.dt or 'none'} ({self.state}): {self.rows} rows, {self.quarantined} quarantined, "
        line += f"{self.filtered} filtered, in {self.files} files of {self.bytes} bytes"
        line += f"; {self.other_settings} landed with other settings" if self.other_settings else ""
        return line if self.then is None else f"{line}; then {self.then} records"


class PartitionPreview(Part):
    """What is read of a partition: offsets ``[start, end)``, of so many segments from ``first`` to ``last``."""

    incarnation: int
    partition: int
    start: int
    end: int
    segments: int
    first: str
    last: str
    bytes: int

    def text(self) -> str:
        """One line for a person."""
        where = f"incarnation {self.incarnation} partition {self.partition}: offsets {self.start} to {self.end - 1}"
        return f"{where}, {self.bytes} bytes of {self.segments} segments, {self.first} to {self.last}"


class Preview(StoredObject):
    """The dry run of a rebuild. ``added`` are dates that were not asked for, and exchange rows with those that were."""

    cluster: str
    topic: str
    table: str
    ledger_n: int
    whole: bool
    dates: tuple[DatePreview, ...]
    added: tuple[str, ...]
    partitions: tuple[PartitionPreview, ...]
    tasks: int
    segments: int
    bytes: int
    removes: tuple[str, ...]
    columns: tuple[str, ...]

    def text(self) -> str:
        """The dry run for a person, a line each."""
        lines = [f"{self.cluster}/{self.topic}: table {self.table} at ledger {self.ledger_n}: a rebuild would replace"]
        lines += [f"  {one.text()}{', added' if one.dt in self.added else ''}" for one in self.dates]
        lines += [f"  column {one}" for one in self.columns]
        lines += ["and read", *(f"  {one.text()}" for one in self.partitions)]
        lines.append(
            f"in all {len(self.dates)} dates, {len(self.removes)} files; {self.bytes} bytes of {self.segments} "
            f"segments in {self.tasks} tasks. Nothing was written; --compare tells which rows would change."
        )
        return "\n".join(lines)


def preview(lake: Lake, plan: RunPlan, moves: Moves | None) -> Preview:
    """What ``plan`` would do, for which ``moves`` were found out.

    Raises:
        ConfigError: the topic's columns are not those of the table, and cannot become them.
    """
    table = open_table(lake)
    columns: tuple[str, ...] = ()
    if table is not None:
        check_columns(lake, table, whole=plan.whole)
        columns = tuple(schema_change(lake, table))
    partitions = tuple(_partition(plan, one) for one in plan.partitions)
    return Preview(
        cluster=plan.cluster,
        topic=plan.topic,
        table=plan.table,
        ledger_n=plan.ledger_n,
        whole=plan.whole,
        dates=tuple(_dates(lake, plan, moves)),
        added=tuple(one for one in plan.dates if moves and one not in moves.asked),
        partitions=partitions,
        tasks=len(plan.tasks),
        segments=sum(one.segments for one in partitions),
        bytes=sum(one.size for one in plan.tasks),
        removes=plan.removes,
        columns=columns,
    )


class _Counted(NamedTuple):
    """Records by date."""

    landed: Counter[str]
    quarantined: Counter[str]
    filtered: Counter[str]
    others: Counter[str]


def _dates(lake: Lake, plan: RunPlan, moves: Moves | None) -> list[DatePreview]:
    standing = Standing.of(lake)
    replaced = frozenset(plan.replaced)
    counted = _Counted(Counter(), Counter(), Counter(), Counter())
    for row, configuration in holding(standing):
        if row.file not in replaced:
            continue
        dt = row.dt.isoformat() if row.dt else ""
        by_class = {"landed": counted.landed, "quarantined": counted.quarantined, "filtered": counted.filtered}
        by_class[row.offset_class][dt] += row.rows
        counted.others[dt] += row.rows if configuration != plan.configuration else 0
    files = {dt: [one for one in standing.live.values() if one.dt == dt] for dt in plan.dates}
    states = standing.ledger.dates
    then = moves.then if moves else {}
    counts = (counted.landed, counted.quarantined, counted.filtered, then)
    return [
        DatePreview(
            dt=dt,
            state=states[dt].state if dt in states else "new",
            rows=counted.landed[dt],
            quarantined=counted.quarantined[dt],
            filtered=counted.filtered[dt],
            files=len(files[dt]),
            bytes=sum(one.size for one in files[dt]),
            other_settings=counted.others[dt],
            then=then.get(dt, 0) if moves else None,
        )
        for dt in plan.dates
        if any(one.get(dt) for one in counts)
    ]


def _partition(plan: RunPlan, part: PartitionPlan) -> PartitionPreview:
    tasks = [one for one in plan.tasks if (one.incarnation, one.partition) == part.key]
    ranges: list[SegmentRange] = [part for one in tasks for part in one.ranges]
    keys = list(dict.fromkeys(one.key for one in ranges))
    return PartitionPreview(
        incarnation=part.incarnation,
        partition=part.partition,
        start=part.start,
        end=part.end,
        segments=len(keys),
        first=keys[0],
        last=keys[-1],
        bytes=sum(one.size for one in tasks),
    )
