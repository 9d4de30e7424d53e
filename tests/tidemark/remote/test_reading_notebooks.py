"""Records in one call, by offsets and by times."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from tests.tidemark.kafka_log.build import T0, Record, batch, simple
from tests.tidemark.remote.reader import Log, stored
from tests.tidemark.remote.world import RemoteStore
from tidemark.decode import SCHEMA, exact_milliseconds
from tidemark.errors import GapError, NotFound, OutOfRange
from tidemark.remote.reader.read_range import iter_range, iter_time, read_range, read_time


def test_a_range_is_a_table_of_its_records(remote_store: RemoteStore, rng: random.Random) -> None:
    log = Log(rng, transactions=True)
    stored(log, remote_store.raw(), 3)
    for _ in range(4):
        start = rng.randrange(log.end)
        end = rng.randint(start, log.end)
        for level, records in (("read_committed", log.committed), ("read_uncommitted", log.all)):
            found = read_range("orders", 0, start, end, storage=remote_store.storage(), isolation_level=level)  # type: ignore[arg-type]  # one of the two
            assert found.schema == SCHEMA
            expected = [one for one in records if start <= one.offset < end]
            assert found["kafka_offset"].to_pylist() == [one.offset for one in expected]
            assert found["kafka_value"].to_pylist() == [one.value for one in expected]
    everything = iter_range("orders", 0, storage=remote_store.storage())
    assert sum(map(len, everything)) == len(log.committed)


def test_an_empty_range_is_an_empty_table(local_store: RemoteStore) -> None:
    raw = local_store.raw()
    raw.segment([simple(0)])
    raw.publish()
    found = read_range("orders", 0, 2, 2, storage=local_store.storage())
    assert (len(found), found.schema) == (0, SCHEMA)


def test_what_is_not_there_is_an_error(local_store: RemoteStore) -> None:
    raw = local_store.raw()
    raw.partition().start_offset = 5
    raw.segment([simple(5)], base=5)
    raw.segment([simple(12)], base=12)
    raw.partition().next_offset = 8
    raw.partition().gaps.append(raw.gap(8, 12))
    raw.publish()
    storage = local_store.storage()
    for start, end in ((0, 6), (5, 100)):
        with pytest.raises(OutOfRange):
            read_range("orders", 0, start, end, storage=storage)
    with pytest.raises(NotFound, match=r"ordres-0: no agent .* has ever seen this topic; did you mean orders?"):
        read_range("ordres", 0, storage=storage)
    with pytest.raises(NotFound, match=r"no agent .* has ever seen this topic; there is orders"):
        read_time("unheard-of", 0, 1, storage=storage)
    with pytest.raises(ValueError, match="isolation_level"):
        read_range("orders", 0, storage=storage, isolation_level="commited")  # type: ignore[arg-type]  # the very fault
    with pytest.raises(ValueError, match="time zone"):
        read_time("orders", datetime(2026, 1, 1), 1, storage=storage)  # noqa: DTZ001  # the very fault


def test_times_pick_records_of_all_partitions(remote_store: RemoteStore, rng: random.Random) -> None:
    raw = remote_store.raw()
    times: dict[int, list[int]] = {}
    for partition in range(3):
        times[partition] = sorted(rng.randrange(1000) for _ in range(60))
        for part in (0, 30):
            raw.segment(
                [batch(part + at, [Record(0, T0 + times[partition][part + at])]) for at in range(30)], partition
            )
    raw.publish()
    storage = remote_store.storage()
    for start, end in ((0, 1000), (200, 700), (999, 1000), (700, 200), (5000, 6000)):
        found = read_time("orders", T0 + start, T0 + end, storage=storage)
        expected = [(p, at) for p, of in times.items() for at, time in enumerate(of) if start <= time < end]
        rows = list(zip(found["kafka_partition"].to_pylist(), found["kafka_offset"].to_pylist(), strict=True))
        assert rows == expected
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=T0 + 500)
    found = read_time("orders", moment, moment + timedelta(hours=1), storage=storage, partitions=[1])
    assert len(found) == sum(time >= 500 for time in times[1])


@pytest.mark.parametrize("disorder", [30, 5000])
def test_an_interval_has_all_of_its_records_whatever_their_order(
    disorder: int, local_store: RemoteStore, rng: random.Random
) -> None:
    log = Log(rng, transactions=True, disorder=disorder)
    stored(log, local_store.raw(), 4)
    storage = local_store.storage()
    everything = read_range("orders", 0, storage=storage)
    times = [int(time) for rows in everything.to_batches() for time in exact_milliseconds(rows)]
    for lateness in (None, timedelta(milliseconds=disorder)):
        for _ in range(15):
            start = rng.choice(times) + rng.randint(-1, 1)
            end = rng.choice([start - 1, start, start + 1, rng.choice(times), max(times) + 1])
            found = read_time("orders", start, end, storage=storage, lateness=lateness)
            wanted = everything.filter(pa.array([start <= time < end for time in times], pa.bool_()))
            assert found.equals(wanted), (start, end, lateness)


def test_lateness_says_where_reading_stops(local_store: RemoteStore) -> None:
    raw = local_store.raw()
    raw.segment([batch(0, [Record(at, T0 + time) for at, time in enumerate((0, 10, 3, 12, 20, 11, 25, 15))])])
    raw.segment([simple(10)], base=10)  # and nothing holds 8 and 9
    raw.publish()
    storage = local_store.storage()

    def offsets(lateness: timedelta | None) -> list[Any]:
        rows = iter_time("orders", T0 + 10, T0 + 20, storage=storage, lateness=lateness)
        return [offset for found in rows for offset in found["kafka_offset"].to_pylist()]

    assert offsets(timedelta(0)) == [1, 3], "up to the record of 20 ms"
    assert offsets(timedelta(milliseconds=5)) == [1, 3, 5], "up to that of 25 ms"
    assert offsets(timedelta(microseconds=4001)) == [1, 3, 5], "a part of a millisecond is a whole one"
    with pytest.raises(GapError, match="offsets 8 to 9 are missing"):
        offsets(None)
    with pytest.raises(ValueError, match="negative"):
        offsets(timedelta(seconds=-1))


def test_gaps_are_errors_or_skipped(local_store: RemoteStore) -> None:
    raw = local_store.raw()
    raw.segment([simple(0)])
    raw.segment([simple(6)], base=6)
    raw.publish()  # a watermark that vouches for offsets which no segment has
    storage = local_store.storage()
    with pytest.raises(GapError, match="offsets 3 to 5 are missing"):
        read_range("orders", 0, storage=storage)
    found = read_range("orders", 0, storage=storage, on_gap="skip")
    assert found["kafka_offset"].to_pylist() == [0, 1, 2, 6, 7, 8]
