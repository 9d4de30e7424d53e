"""Raw segments as a Spark data source: rows straight from the uploaded segments, without a table.

    spark.dataSource.register(TidemarkSource)
    rows = spark.read.format("tidemark").options(topics="topics.yaml", topic="orders", fromOffset=1000).load()

The code of ingestion plans and decodes the segments: lineage, incarnations and transactions are resolved, and each
offset comes once. The columns are Kafka's, see :data:`tidemark.decode.SCHEMA`; a schema given with ``.schema()``
chooses some of them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tidemark import decode
from tidemark.decode import SCHEMA
from tidemark.errors import ConfigError, ContinuityError
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.plan import PartitionPlan, SegmentRange, SegmentTask
from tidemark.inspection.agent_reports import check_seen
from tidemark.installation import VERSION
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage
from tidemark.kafka_log.indexes import MAX_OFFSET
from tidemark.planning.read import RawPart, plan_reading
from tidemark.raw.partition import RawPartition
from tidemark.raw.segments import Segment
from tidemark.raw_topic import RawTopic
from tidemark.store import StoreOptions, open_store
from tidemark.table.delta_table import TopicTable, open_topic_table
from tidemark.topics import load_topics
from tidemark_spark.convert.classify import PartitionRules
from tidemark_spark.convert.date_partitioner import numbers, take
from tidemark_spark.convert.read_ahead import Ahead, read_ahead
from tidemark_spark.convert.segment_reader import judged
from tidemark_spark.model import check_driver

OPTIONS: Final = {
    "topics": "the topics file, which the driver reads",
    "topic": "the topic",
    "cluster": "needed where two clusters have the topic's name",
    "isolation": "read_committed (the default) or read_uncommitted",
    "incarnation": "one incarnation of a re-created topic (default: all)",
    "partitions": "their numbers, separated by commas (the default: all)",
    "fromOffset": "the first offset of each partition",
    "toOffset": "the offset before which to end",
    "fromTime": "the first record time, such as 2026-11-20T00:00:00+00:00",
    "toTime": "the record time before which to end",
    "failOnDataLoss": "true (the default): fail where raw has a hole between what it holds",
    "pushdown": "true: take filters from Spark too; needs spark.sql.python.filterPushdown.enabled",
}
"""The options; only the first two are required. Spark folds their case."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FOREVER: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class RowBounds:
    """Bounds of the wanted rows; ranges are half-open, times are microseconds since 1970."""

    incarnations: frozenset[int] | None = None
    partitions: frozenset[int] | None = None
    from_offset: int = 0
    to_offset: int = MAX_OFFSET
    from_time: int = -_FOREVER
    to_time: int = _FOREVER

    @property
    def any_time(self) -> bool:
        """True if all times are wanted."""
        return (self.from_time, self.to_time) == (-_FOREVER, _FOREVER)

    def wants(self, part: RawPartition) -> bool:
        """True if rows of the partition may be wanted."""
        return (self.incarnations is None or part.incarnation in self.incarnations) and (
            self.partitions is None or part.keys.partition in self.partitions
        )

    def wants_segment(self, segment: Segment) -> bool:
        """True if the segment may hold a wanted time. A segment states its latest time, not its earliest."""
        return segment.max_timestamp is None or segment.max_timestamp * 1000 >= self.from_time or self.any_time

    def narrowed(self, condition: Filter) -> RowBounds:
        """These bounds, narrowed by ``condition`` as far as bounds can express it."""
        [name, *nested] = getattr(condition, "attribute", ("",))
        if nested or not isinstance(
            condition, EqualTo | In | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
        ):
            return self
        values = condition.value if isinstance(condition, In) else (condition.value,)
        if name == "kafka_timestamp":
            values = tuple(_microseconds(value) for value in values if isinstance(value, datetime) and value.tzinfo)
        if not values or not all(isinstance(value, int) for value in values):
            return self
        low, high = -_FOREVER, _FOREVER
        if isinstance(condition, EqualTo | In):
            low, high = min(values), max(values) + 1
        elif isinstance(condition, GreaterThan | GreaterThanOrEqual):
            low = values[0] + isinstance(condition, GreaterThan)
        else:
            high = values[0] + isinstance(condition, LessThanOrEqual)
        if name == "kafka_offset":
            return replace(self, from_offset=max(self.from_offset, low), to_offset=min(self.to_offset, high))
        if name == "kafka_timestamp":
            return replace(self, from_time=max(self.from_time, low), to_time=min(self.to_time, high))
        if name in _NUMBERED and isinstance(condition, EqualTo | In):
            before = getattr(self, _NUMBERED[name])
            remaining = frozenset(values) if before is None else before & frozenset(values)
            changed: Mapping[str, Any] = {_NUMBERED[name]: remaining}
            return replace(self, **changed)
        return self


_NUMBERED: Final = {"kafka_partition": "partitions", "kafka_incarnation": "incarnations"}


class SegmentPartition(InputPartition):
    """Input of one Spark task."""

    def __init__(self, task: SegmentTask, plan: PartitionPlan, options: StoreOptions) -> None:
        super().__init__(None)
        self.task, self.plan, self.options = task, plan, options


class TidemarkSource(DataSource):
    """The format ``tidemark``; see :data:`OPTIONS`."""

    @classmethod
    def name(cls) -> str:
        """Name of the format in ``spark.read.format``."""
        return "tidemark"

    def schema(self) -> StructType:
        """Kafka's columns; all are nullable in Spark."""
        return from_arrow_schema(pa.schema([field.with_nullable(True) for field in SCHEMA]))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of the columns in ``schema``.

        Raises:
            ConfigError: an option is missing, unknown or wrong, or a column does not exist.
        """
        problems = [("schema", f"there is no column {name}") for name in schema.names if name not in SCHEMA.names]
        known = {name.lower() for name in OPTIONS}
        problems += [(name, "is not an option of this format") for name in self.options if name.lower() not in known]
        problems += [(name, f"is needed: {OPTIONS[name]}") for name in ("topics", "topic") if not self._option(name)]
        if problems:
            raise ConfigError("format tidemark", problems)
        deployment = load_topics(Path(self._option("topics")))
        kind = PushingReader if self._one_of("pushdown", {"false": False, "true": True}) else SegmentReader
        return kind(
            open_topic_table(deployment, deployment.topic(self._option("topic"), self._option("cluster") or None)),
            to_arrow_schema(schema, timezone="UTC"),
            self._bounds(),
            committed=self._one_of("isolation", {"read_committed": True, "read_uncommitted": False}),
            fail_on_loss=self._one_of("failOnDataLoss", {"true": True, "false": False}),
        )

    def _bounds(self) -> RowBounds:
        whole = RowBounds()
        return RowBounds(
            incarnations=self._checked("incarnation", _numbers, ""),
            partitions=self._checked("partitions", _numbers, ""),
            from_offset=self._checked("fromOffset", int, str(whole.from_offset)),
            to_offset=self._checked("toOffset", int, str(whole.to_offset)),
            from_time=self._checked("fromTime", _instant, "") or whole.from_time,
            to_time=self._checked("toTime", _instant, "") or whole.to_time,
        )

    def _option(self, name: str, default: str = "") -> str:
        return next((str(value) for key, value in self.options.items() if key.lower() == name.lower()), default)

    def _one_of(self, name: str, meanings: Mapping[str, bool]) -> bool:
        """The meaning of an option's text; the first one is the default."""
        value: bool = self._checked(name, meanings.__getitem__, next(iter(meanings)))
        return value

    def _checked(self, name: str, parse: Callable[[str], Any], default: str) -> Any:
        text = self._option(name, default)
        try:
            return parse(text)
        except (ValueError, KeyError) as error:
            raise ConfigError("format tidemark", [(name, f"{text!r} is wrong: {OPTIONS[name]}")]) from error


class SegmentReader(DataSourceReader):
    """A reader that plans in the driver and reads in the workers."""

    def __init__(
        self, table: TopicTable, schema: pa.Schema, bounds: RowBounds, *, committed: bool, fail_on_loss: bool
    ) -> None:
        self._deployment, self._topic = table.deployment, table.topic
        self._schema, self.bounds = schema, bounds
        self._committed, self._fail_on_loss = committed, fail_on_loss

    def __reduce__(self) -> tuple[Callable[..., SegmentReader], tuple[str, type[SegmentReader], bytes]]:
        """The reader on its way to workers: with the driver's version, and the rest pickled for itself."""
        return from_driver, (VERSION, type(self), pickle.dumps(self.__dict__))

    def partitions(self) -> Sequence[SegmentPartition]:
        """Spark tasks, each for 64 MiB of segments that may hold wanted rows.

        Raises:
            ContinuityError: raw has a hole.
            NeverSeen: raw is empty, and no agent was ever seen that could upload to it.
        """
        table = open_topic_table(self._deployment, self._topic)
        raw = RawTopic(table)
        empty = Ledger.genesis(self._topic.cluster, self._topic.topic, self._topic.table)
        parts = [part for part in raw.partitions(empty) if self.bounds.wants(part)]
        if not parts:
            check_seen(self._deployment, self._topic)
        return [planned for part in parts for planned in self._planned(raw, part)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, by offset.

        Raises:
            SegmentError: a batch is damaged, or cannot be decoded.
            ContinuityError: an offset is missing, or a segment was replaced since the plan; read again.
        """
        if type(partition) is InputPartition:
            return  # Spark's own, since nothing was planned
        if not isinstance(partition, SegmentPartition):
            raise TypeError(f"{partition!r} was not planned by this reader")
        rules = PartitionRules.of(partition.plan, partition.options)
        with closing(read_ahead(partition.task.ranges, partition.options)) as ranges:
            for part, ahead in ranges:
                for rows in segment_rows(
                    partition.task,
                    part,
                    rules,
                    partition.options,
                    ahead=ahead,
                    from_time=self.bounds.from_time,
                    batch_bytes=self._topic.limits.batch,
                ):
                    chosen = self._in_time(rows)
                    columns = [chosen.column(field.name).cast(field.type) for field in self._schema]
                    if len(chosen):
                        yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _planned(self, raw: RawTopic, part: RawPartition) -> list[SegmentPartition]:
        view = raw.view(part)
        if view is None:
            return []
        given_up = Intervals.of(view.watermark.acknowledged_gaps) | raw.acknowledged(part)
        start, end = max(0, self.bounds.from_offset), min(view.end, self.bounds.to_offset)
        wanted = Intervals([(start, max(start, end))]) - given_up
        reading, sealed = self._reading(raw, part, wanted), view.watermark.next_offset
        if above := reading.gone.clip(max(start, sealed), end):  # packs are missing for now: end before them
            wanted = wanted.clip(start, above.parts[0].start)
            reading = self._reading(raw, part, wanted)
        held = (wanted - reading.gone).parts
        lost = reading.gone.clip(held[0].start, held[-1].end) if held else Intervals()
        if lost and self._fail_on_loss:
            spans = ", ".join(f"{first} to {after - 1}" for first, after in lost)
            raise ContinuityError(
                f"{part.keys.folder}: raw has no offsets {spans}; set failOnDataLoss=false to continue"
            )
        return [SegmentPartition(task, reading.plan, self._deployment.store) for task in reading.tasks]

    def _reading(self, raw: RawTopic, part: RawPartition, wanted: Intervals) -> RawPart:
        return plan_reading(raw, part, Lineage(), wanted, committed=self._committed, keep=self.bounds.wants_segment)

    def _in_time(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self.bounds.any_time:
            return rows
        column = rows.column("kafka_timestamp")
        times = numbers(column)
        wanted: NDArray[np.bool_] = (times >= self.bounds.from_time) & (times < self.bounds.to_time)
        if column.null_count:
            wanted &= column.is_valid().to_numpy(zero_copy_only=False)
        return rows if wanted.all() else take(rows, np.flatnonzero(wanted))


class PushingReader(SegmentReader):
    """A reader that also uses Spark's filters to read less. Spark evaluates all of them again."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
        """Narrow the bounds with ``filters``, and return all of them."""
        for condition in filters:
            self.bounds = self.bounds.narrowed(condition)
        yield from filters


def from_driver(driver: str, kind: type[SegmentReader], state: bytes) -> SegmentReader:
    """The reader that a driver has pickled.

    A worker gets it before any task. Its name and parameters stay as they are in all versions, so that workers of other
    versions can refuse.

    Raises:
        ConfigError: this worker has another version than the driver.
    """
    check_driver(driver)
    reader = object.__new__(kind)
    reader.__dict__.update(pickle.loads(state))  # noqa: S301 # the driver's, of this version
    return reader


def segment_rows(
    task: SegmentTask,
    part: SegmentRange,
    rules: PartitionRules,
    options: StoreOptions,
    *,
    batch_bytes: int,
    ahead: Ahead | None = None,
    from_time: int = -_FOREVER,
) -> Iterator[pa.RecordBatch]:
    """The decoded records of a range, without erased ones.

    Batches that end before ``from_time`` (microseconds) are not decoded. ``batch_bytes`` bounds the decompressed size
    of a batch. The range's bytes may have been read ``ahead``.

    Raises:
        SegmentError: a batch is damaged, or cannot be decoded.
        ContinuityError: an offset is missing.
        PreconditionFailed: a repair has made the segment again since the plan.
    """
    for window, verdict, expected in judged(open_store(part.store, options), part, rules, ahead):
        decoded = decode.decode_batches(
            window.data,
            verdict.data[verdict.data["max_timestamp"] >= from_time // 1000],
            name=part.key,
            partition=task.partition,
            incarnation=task.incarnation,
            from_offset=max(part.from_offset, expected),
            to_offset=part.to_offset,
            position=window.position,
            limits=decode.DEFAULT_LIMITS._replace(records_bytes=batch_bytes),
        )
        yield from map(rules.mask.without, decoded)


def _numbers(text: str) -> frozenset[int] | None:
    return frozenset(int(number) for number in text.split(",")) if text else None


def _instant(text: str) -> int | None:
    if not text:
        return None
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError("has no time zone")
    return _microseconds(instant)


def _microseconds(instant: datetime) -> int:
    return (instant - _EPOCH) // _MICROSECOND
