"""Times at the ends of their range, in the log, in the mirror's reading of it, and in dates of time zones."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from tests.spark.world import World
from tests.tidemark.kafka_log.build import Record, batch
from tidemark_spark.convert.date_partitioner import LocalDates
from tidemark_spark.mirror.delta_versions import versions_from
from tidemark_spark.run.delta_log import in_statistics

YEAR_1 = round((datetime(1, 1, 1, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1))
YEAR_10000 = 253_402_300_800_000


def test_times_in_statistics_are_those_that_are_read_back(rng: random.Random) -> None:
    edges = (YEAR_1, YEAR_1 + 1, -1, 0, 1, YEAR_10000 - 1)
    for milliseconds in (*edges, *(rng.randrange(YEAR_1, YEAR_10000) for _ in range(2000))):
        text = in_statistics(milliseconds * 1000)
        back = datetime.fromisoformat(text)
        assert (back - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1) == milliseconds
        arrow = pc.strptime(pa.array([text[:19]]), "%Y-%m-%dT%H:%M:%S", "s").cast(pa.int64())[0].as_py()
        assert arrow == milliseconds // 1000, "as other readers have it"
        assert len(text) == len("0001-01-01T00:00:00.000Z")


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
def test_records_of_the_year_1_land_in_their_date(tmp_path: Path, zone: str) -> None:
    """As a program writes that has never set its time. The mirror reads the log, and readers find the rows."""
    early = "sane_timestamps: {earliest: 0001-01-01, ahead: 36500d}"
    world = World(tmp_path, early, f"time_zone: {zone}", "partition_by: [dt, hour]")
    times = [YEAR_1, YEAR_1 + 86_400_000, YEAR_1 + 100 * 31_556_952_000]
    world.raw.segment([batch(0, [Record(delta, time, b"k", b"v") for delta, time in enumerate(times)])])
    world.land()
    refused = 1 if zone == "America/New_York" else 0  # there it is still the year 0
    assert world.classes() == {"landed": 3 - refused} | ({"quarantined": 1} if refused else {})
    rows = world.rows()
    for row in rows:
        utc = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=times[row["kafka_offset"]])
        assert row["kafka_timestamp"] == utc
        assert abs(date.fromisoformat(row["dt"]) - utc.date()) <= timedelta(days=1)
    found = DeltaTable(world.table.url).to_pyarrow_table(
        filters=[("kafka_timestamp", "<", datetime(50, 1, 1, tzinfo=UTC))]
    )
    assert len(found) == 2 - refused
    versions = versions_from(world.table, 0, DeltaTable(world.table.url).version())
    assert versions is not None
    bounds = {bound for version in versions for file in version.added for bound in file.bounds}
    expected = {("kafka_timestamp", time * 1000, time * 1000) for time in times[refused:]}
    assert {bound for bound in bounds if bound[0] == "kafka_timestamp"} == expected


def test_the_mirror_reads_years_as_version_1_0_0_wrote_them(tmp_path: Path) -> None:
    world = World(tmp_path, "sane_timestamps: {earliest: 0001-01-01}")
    world.raw.segment([batch(0, [Record(0, YEAR_1, b"k", b"v")])])
    world.land()
    version = DeltaTable(world.table.url).version()
    key = f"{world.table.keys.root}/_delta_log/{version:020d}.json"
    lines = world.table.store.get(key).body.splitlines()
    assert any(b"0001-01-01T" in line for line in lines)
    world.table.store.put(key, b"\n".join(line.replace(b"0001-01-01T", b"1-01-01T") for line in lines))
    [read] = versions_from(world.table, version, version) or []
    assert read.added[0].bounds[-1] == ("kafka_timestamp", YEAR_1 * 1000, YEAR_1 * 1000)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo", "Pacific/Kiritimati", "Europe/Vienna"])
def test_local_times_at_the_ends_of_the_calendar(zone: str) -> None:
    dates = LocalDates(ZoneInfo(zone))
    inner = [YEAR_1 + 86_400_000, YEAR_10000 - 1 - 86_400_000]
    found = dates.times(np.array([YEAR_1, *inner, YEAR_10000 - 1], np.int64)).tolist()
    for time, local in zip(inner, found[1:3], strict=True):
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time)
        assert local - time == (at.astimezone(ZoneInfo(zone)).utcoffset() or timedelta()) // timedelta(milliseconds=1)
    assert found[0] - YEAR_1 == found[1] - inner[0]
    assert found[3] - (YEAR_10000 - 1) == found[2] - inner[1]
