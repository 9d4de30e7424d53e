"""Raw segments read by Spark's format ``tidemark``: what is planned, what is read, what is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, IsNotNull, LessThan, Not
from pyspark.sql.types import IntegerType, StructField, StructType

from tests.spark.jobs.programs import Programs
from tests.spark.run.test_runs import DAY, spread
from tests.spark.world import World
from tests.support.erased import erase, index_key
from tests.support.live_end import Packer
from tests.support.raw_builder import EPOCH
from tests.tidemark.kafka_log.build import T0, Record, batch, marker, simple, transactional
from tidemark.decode import SCHEMA, decoder
from tidemark.errors import ConfigError, ContinuityError, FormatError, SegmentError
from tidemark.formats.keys import SegmentName
from tidemark.installation import VERSION
from tidemark_spark.datasource import PushingReader, SegmentReader, TidemarkSource

START = datetime.fromtimestamp(T0 / 1000, UTC)


def reader_of(world: World, columns: Sequence[str] | None = None, **options: Any) -> SegmentReader:
    """The reader that Spark would make of these options."""
    given = {"topics": str(world.topics_file), "topic": "orders", **{name: str(one) for name, one in options.items()}}
    found = TidemarkSource(given)
    schema = found.schema()
    chosen = StructType([schema[name] for name in columns]) if columns else schema
    reader = found.reader(chosen)
    assert isinstance(reader, SegmentReader)
    return reader


def rows_of(reader: SegmentReader) -> list[dict[str, Any]]:
    """All rows, read by copies as Spark's workers have them."""
    parts = pickle.loads(pickle.dumps(list(reader.partitions())))  # noqa: S301 - our own bytes
    worker: SegmentReader = pickle.loads(pickle.dumps(reader))  # noqa: S301 - as above
    return [row for part in parts for rows in worker.read(part) for row in rows.to_pylist()]


def offsets(world: World, *filters: Filter, partition: int = 0, **options: Any) -> list[int]:
    """The offsets of a partition that are read."""
    reader = reader_of(world, pushdown="true", **options)
    assert isinstance(reader, PushingReader)
    assert list(reader.pushFilters(list(filters))) == list(filters)  # Spark looks at each again
    return [row["kafka_offset"] for row in rows_of(reader) if row["kafka_partition"] == partition]


@pytest.fixture
def published(world: World) -> World:
    """Two partitions with three dates and an aborted transaction, none of it landed."""
    spread(world)
    world.raw.publish()
    return world


def test_a_worker_of_another_version_refuses_the_reader_unread(
    published: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark_spark.datasource.VERSION", "0.0.1")
    reader = reader_of(published)
    monkeypatch.setattr(reader, "_topic", NotRead())
    sent = pickle.dumps(reader)
    with pytest.raises(ConfigError, match=rf"this worker has version {VERSION}, and the driver 0\.0\.1"):
        pickle.loads(sent)  # noqa: S301 - our own bytes


class NotRead:
    """A part of a reader that another version reads wrongly."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("was unpickled",)


def test_the_rows_are_those_of_the_table_and_quarantine(published: World) -> None:
    rows = rows_of(reader_of(published))
    assert list(rows[0]) == SCHEMA.names
    published.land()
    landed = [{name: row[name] for name in SCHEMA.names} for row in published.rows()]
    assert [row for row in rows if row["kafka_offset"] != 13] == landed
    assert sorted(row["kafka_partition"] for row in rows if row["kafka_offset"] == 13) == [0, 1]


def test_read_uncommitted_shows_aborted_and_undecided_rows(world: World) -> None:
    world.raw.segment([simple(0), transactional(3, 7, 3), marker(6, 7, commit=False)], aborted=[(7, 3, 6)])
    world.raw.segment([transactional(7, 8, 2), simple(9)])
    world.raw.publish()
    assert offsets(world) == [0, 1, 2]
    assert offsets(world, isolation="read_uncommitted") == [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11]


def test_ranges_are_options(published: World) -> None:
    assert offsets(published, fromOffset=3, toOffset=15) == [3, 4, 5, 6, 7, 8, 13, 14]
    assert offsets(published, partitions="1") == []
    assert len(offsets(published, partitions="1,5", partition=1)) == 18
    later = (START + timedelta(days=1)).isoformat()
    assert offsets(published, fromTime=START.isoformat(), toTime=later) == [0, 3, 6, 16, 19]
    assert offsets(published, incarnation=1) == []


NOTHING: tuple[tuple[dict[str, str], str], ...] = (
    ({"fromOffset": "1000"}, "true"),
    ({"fromOffset": "5", "toOffset": "5"}, "true"),
    ({"fromTime": "2126-01-01T00:00:00+00:00"}, "true"),
    ({"partitions": "9"}, "true"),
    ({"pushdown": "true"}, "kafka_partition = 0 and kafka_partition = 1"),
    ({"pushdown": "true"}, "kafka_timestamp > '2126-01-01T00:00:00Z'"),
)
"""Options and conditions that no record fulfils."""


@pytest.mark.essential
def test_spark_reads_no_row_where_nothing_matches(published: World, on_spark: Programs) -> None:
    all_of_it: tuple[dict[str, str], str] = ({"partitions": "0"}, "true")
    done = on_spark.run("tests.spark.count_segments", str(published.topics_file), [*NOTHING, all_of_it])
    assert done.code == 0, done.errors[-3000:]
    *nothing, whole, count = json.loads(done.output.splitlines()[-1])
    assert nothing == [[]] * len(NOTHING)
    assert whole == offsets(published)
    assert count == len(whole)


def test_a_topic_without_records_has_no_rows_in_spark(world: World, on_spark: Programs) -> None:
    world.raw.publish()
    done = on_spark.run("tests.spark.count_segments", str(world.topics_file), [({}, "true")])
    assert done.code == 0, done.errors[-3000:]
    assert json.loads(done.output.splitlines()[-1]) == [[], 0]


def test_filters_narrow_what_is_planned_and_read(published: World) -> None:
    whole = reader_of(published).partitions()

    def planned(*filters: Filter) -> int:
        reader = reader_of(published, pushdown="true")
        assert isinstance(reader, PushingReader)
        list(reader.pushFilters(list(filters)))
        return sum(part.task.size for part in reader.partitions())

    size = sum(part.task.size for part in whole)
    offset, time = ("kafka_offset",), ("kafka_timestamp",)
    assert planned(EqualTo(("kafka_partition",), 1)) == size / 2
    assert planned(In(("kafka_partition",), (1, 2)), EqualTo(("kafka_incarnation",), 0)) == size / 2
    assert planned(EqualTo(("kafka_partition",), 1), EqualTo(("kafka_partition",), 0)) == 0
    assert 0 < planned(LessThan(offset, 9)) < size
    assert planned(GreaterThan(offset, 21)) == 0
    assert planned(GreaterThan(time, START + timedelta(days=9))) == 0
    assert planned(Not(EqualTo(offset, 5)), IsNotNull(offset), EqualTo(("kafka_key",), b"k")) == size
    assert offsets(published, GreaterThanOrEqual(offset, 4), LessThan(offset, 7)) == [4, 5, 6]
    assert offsets(published, EqualTo(time, START + timedelta(days=1))) == [1, 4, 7, 14, 17, 20]


def test_segments_and_batches_that_end_too_early_are_not_decoded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for day in range(3):
        world.raw.segment([batch(3 * day, [Record(i, T0 + day * DAY) for i in range(3)])])
    world.raw.segment([batch(9 + i, [Record(0, T0 + i * DAY)]) for i in range(4)])
    world.raw.publish()
    decoded: list[int] = []
    decode = decoder.decode_batches

    def counted(data: Any, headers: Any, **more: Any) -> Any:
        decoded.append(len(headers))
        return decode(data, headers, **more)

    monkeypatch.setattr("tidemark.decode.decode_batches", counted)
    assert offsets(world, fromTime=(START + timedelta(days=2)).isoformat()) == [6, 7, 8, 11, 12]
    assert decoded == [1, 2]


def test_a_schema_chooses_columns(published: World) -> None:
    rows = rows_of(reader_of(published, ["kafka_value", "kafka_offset"]))
    assert list(rows[0]) == ["kafka_value", "kafka_offset"]
    with pytest.raises(ConfigError, match="there is no column size"):
        TidemarkSource({}).reader(StructType([StructField("size", IntegerType())]))


def test_wrong_options_are_named(published: World) -> None:
    for name, value in (("partitions", "one"), ("isolation", "none"), ("fromTime", "2026-11-20"), ("pushdown", "x")):
        with pytest.raises(ConfigError, match=name):
            reader_of(published, **{name: value})
    with pytest.raises(ConfigError, match="offset: is not an option"):
        reader_of(published, offset=1)
    with pytest.raises(ConfigError, match="topic: is needed"):
        TidemarkSource({"topics": "x"}).reader(TidemarkSource({}).schema())


def test_a_hole_fails_unless_it_may_be(world: World) -> None:
    for base in (0, 3, 6):
        world.raw.segment([simple(base)])
    world.raw.publish()
    world.raw.store.delete(world.raw.keys().segment(SegmentName(3), "manifest.json"))
    with pytest.raises(ContinuityError, match="no offsets 3 to 5"):
        offsets(world)
    assert offsets(world, failOnDataLoss="false") == [0, 1, 2, 6, 7, 8]
    world.raw.store.delete(world.raw.keys().segment(SegmentName(0), "manifest.json"))
    assert offsets(world) == [6, 7, 8]  # what retention took is no hole
    damaged = bytearray(simple(6))
    damaged[-1] ^= 1
    world.raw.replace_log(world.raw.keys().segment(SegmentName(6), "log"), bytes(damaged))
    with pytest.raises(SegmentError):
        offsets(world)


def test_what_is_packed_is_read_behind_the_seals(world: World) -> None:
    world.raw.segment([simple(0), transactional(3, 7, 2)])
    packer = Packer(world.raw)
    packer.pack([simple(5), marker(8, 7, commit=False)], aborted=[(7, 3, 8)])
    packer.pack([simple(9)])
    world.raw.publish()
    assert offsets(world) == [0, 1, 2, 5, 6, 7, 9, 10, 11]
    assert offsets(world, isolation="read_uncommitted") == [0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11]
    assert offsets(world, fromOffset=7, toOffset=10) == [7, 9]


def test_a_hole_behind_the_seals_is_the_end_for_now(world: World) -> None:
    world.raw.segment([simple(0)])
    missing = Packer(world.raw).pack([simple(3)])
    branch = world.raw.partition()
    branch.lineage, branch.leader_epoch = ((EPOCH, 0), (5, 6)), 5
    Packer(world.raw, 2).pack([simple(6, leader_epoch=5)], first=6)
    world.raw.publish()
    assert offsets(world) == list(range(9))
    world.raw.store.delete(missing.key)
    assert offsets(world) == [0, 1, 2]


def test_erased_rows_are_not_read(world: World) -> None:
    raw, later = world.raw, 1 << 62
    raw.partition().lineage, raw.partition().leader_epoch = ((EPOCH, 0), (EPOCH + 1, 9)), EPOCH + 1
    raw.segment([simple(0), transactional(3, 7, 3, codec="zstd"), marker(6, 7, commit=False)], aborted=[(7, 3, 6)])
    raw.segment([batch(7, [Record(0), Record(1, later)])])
    raw.segment([simple(9, leader_epoch=EPOCH + 1)], next_offset=14, compacted=True)
    agent = Packer(raw)
    agent.pack(simple(14, leader_epoch=EPOCH + 1))
    raw.publish()
    erase(raw, [0, 2, 4, 6, 7, 9, 13])  # there 9 and 13 are of another leader
    erase(raw, [8, 10, 13, 15], epoch=EPOCH + 1)  # and here 8 is
    left = [1, 8, 9, 11, 14, 16]
    assert offsets(world) == left
    assert offsets(world, isolation="read_uncommitted") == sorted([*left, 3, 5])
    assert offsets(world, fromOffset=2, toOffset=12) == [8, 9, 11]
    erase(raw, range(9))
    assert offsets(world, toOffset=9) == []


@pytest.mark.parametrize("part", ["index", "mask"])
def test_without_its_masks_no_row_is_read(world: World, part: str) -> None:
    world.raw.segment([simple(0)])
    world.raw.publish()
    key = erase(world.raw, [1])
    world.raw.store.put(index_key(world.raw) if part == "index" else key, b"{")
    with pytest.raises(FormatError, match="_erased"):
        offsets(world)
