"""Hosts whose clocks are wrong: an hour or a day ahead, 25 hours behind. The store's counts; nothing closes early."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.plugins.world import CLUSTER, World, entry
from tests.spark import world as spark_world
from tests.support.proxy import FaultProxy
from tests.support.s3 import S3Server
from tests.tidemark.kafka_log.build import T0, Record, batch
from tests.uploader_agent import fakes
from tidemark import timestamps
from tidemark.errors import AccessDenied, Refused, UnknownOutcome
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.watermark_index import WatermarkIndex, as_stored, parse_index
from tidemark.formats.table.object_cache import ObjectCache
from tidemark.monitoring.incident_store import watch
from tidemark.planning import plan_ingest
from tidemark.raw_topic import RawTopic
from tidemark.store import Store, StoreOptions, open_store
from tidemark.store import clock as clocks
from tidemark.store.retrying import RepeatingStore
from tidemark.store.s3.store import S3Store, translated
from uploader_agent import clock
from uploader_agent.runtime import Runtime

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
WRONG = [HOUR, DAY, -25 * HOUR]
LATE = timedelta(seconds=2.5)


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, s3: S3Server, tmp_path: Path) -> Store:
    """A place that nobody else uses, in a directory and on a server."""
    if request.param == "local":
        return open_store(f"file://{tmp_path}/raw")
    bucket = f"clocks-{os.urandom(6).hex()}"
    s3.client().create_bucket(Bucket=bucket)
    return open_store(f"s3://{bucket}", StoreOptions(endpoint_url=s3.endpoint, region="us-east-1", path_style=True))


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> list[timedelta]:
    """How far this host's clock is ahead: change it at will. The store's is right."""
    skew = [timedelta()]
    right = timestamps.utc_now

    def now() -> datetime:
        return right() + skew[0]

    real = Runtime.time
    monkeypatch.setattr(Runtime, "time", lambda runtime: real(runtime) + skew[0].total_seconds())
    monkeypatch.setattr(timestamps, "utc_now", now)
    monkeypatch.setattr(clocks, "utc_now", now)
    monkeypatch.setattr(clock, "_skew", timedelta())  # what an agent of a test measures is not for other tests
    return skew


@pytest.mark.essential
@pytest.mark.parametrize("store", [pytest.param("s3", marks=pytest.mark.s3)], indirect=True)
@pytest.mark.parametrize(("status", "raised"), [(503, UnknownOutcome), (403, AccessDenied)])
def test_a_refusal_that_tells_no_time_is_what_any_refusal_is(
    store: Store, monkeypatch: pytest.MonkeyPatch, status: int, raised: type[Exception]
) -> None:
    """Such as a load balancer's: it may pass, and then the store is asked again."""
    inner = store.inner if isinstance(store, RepeatingStore) else store
    assert isinstance(inner, S3Store)

    def refuse(**_: object) -> None:
        answer: Any = {
            "Error": {"Code": str(status)},
            "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {}},
        }
        raise ClientError(answer, "HeadBucket")

    monkeypatch.setattr(inner._clients.read, "head_bucket", refuse)
    with pytest.raises(raised):
        inner.now()


def is_now(at: datetime) -> bool:
    return abs(at - datetime.now(UTC)) < timedelta(seconds=30)


@pytest.mark.parametrize("skew", [*WRONG, timedelta(seconds=90)])
def test_a_hosts_clock_is_compared_with_the_stores(store: Store, host: list[timedelta], skew: timedelta) -> None:
    assert is_now(store.now())
    right = clocks.read(store)
    assert right is not None
    assert (right.skew, is_now(right.now)) == (timedelta(), True)
    host[0] = skew
    reading = clocks.read(store)
    assert reading is not None
    assert abs(reading.skew - skew) < timedelta(seconds=5)
    assert is_now(reading.now)
    assert clock.measure(store) == clock.skew()
    assert is_now(clock.utc_now())
    host[0] = timedelta()
    assert clock.measure(store) == timedelta()


@pytest.fixture(params=["a late request", "a late answer"])
def slow(request: pytest.FixtureRequest, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A bucket behind a proxy that keeps back requests, or whose answers are read late, by LATE."""
    bucket = f"clocks-{os.urandom(6).hex()}"
    s3.client().create_bucket(Bucket=bucket)

    def late(_request: object) -> None:
        threading.Event().wait(LATE.total_seconds())

    with FaultProxy(s3.endpoint, random.Random(0), late if "request" in request.param else ()) as proxy:
        options = StoreOptions(endpoint_url=proxy.endpoint, region="us-east-1", path_style=True)
        store = open_store(f"s3://{bucket}", options)
        if "answer" in request.param:
            now = store.now

            def read_late() -> datetime:
                found = now()
                late(None)
                return found

            monkeypatch.setattr(store, "now", read_late)
        yield store


@pytest.mark.sampled(3)
@pytest.mark.parametrize("skew", [timedelta(), timedelta(seconds=30), *WRONG])
def test_a_late_answer_is_no_skew_and_hides_none(
    slow: Store, host: list[timedelta], skew: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    host[0] = skew
    reading = clocks.read(slow)
    if abs(skew) < clocks.MOST:
        assert reading is None, "within what the answer took, or nothing that people need to know"
        monkeypatch.setattr(clock, "_skew", timedelta(seconds=30))
        assert clock.measure(slow) == timedelta(seconds=30), "what was known before counts on"
        return
    assert reading is not None
    assert not reading.exact
    assert is_now(reading.now)
    assert timedelta() <= abs(skew) - abs(reading.skew) < timedelta(seconds=30), "no more than the answer proves"
    monkeypatch.setattr(clock, "_skew", skew)
    assert clock.measure(slow) == skew, "which is known better than a late answer tells"
    monkeypatch.setattr(clock, "_skew", timedelta())
    assert is_now(timestamps.utc_now() - clock.measure(slow))


@pytest.mark.parametrize("skew", [timedelta(), *WRONG])
def test_an_agent_states_the_stores_time_whatever_its_host_says(
    tmp_path: Path, host: list[timedelta], skew: timedelta
) -> None:
    world = fakes.World(tmp_path)
    partition = world.disk.partition()
    partition.fill(0, 100, end=200)
    host[0] = skew
    world.once()
    for base in (0, 100, 200):
        partition.log(base).unlink(missing_ok=True)
    partition.fill(300, 400, end=500)
    world.metadata.log_start = 300  # so there is a gap
    agent = world.once()
    index = WatermarkIndex.load(world.store, world.control.index(1))
    gaps = [gap.detected_at for one in index.entries for gap in one.gaps]
    assert gaps
    stated = [
        index.written_at,
        *(one.observed_at for one in index.entries),
        *gaps,
        world.manifest(0).uploaded_at,  # by which dates' sanity goes: 25 h behind, all records would be refused
        world.watermark()[1].written_at,
    ]
    assert all(map(is_now, stated)), stated
    assert abs(timedelta(seconds=index.clock_skew) - skew) < timedelta(seconds=5)
    assert agent.metrics.clock_skew._value.get() == index.clock_skew


@pytest.mark.parametrize("ahead", [HOUR, DAY])
def test_no_statement_is_later_than_the_object_that_carries_it(store: Store, ahead: timedelta) -> None:
    """As of an agent that could not ask the store."""
    now = datetime.now(UTC)
    statement = entry("orders", 0, 5, observed_at=now + ahead - timedelta(seconds=40))
    ahead_of = WatermarkIndex(cluster="c", broker=1, agent_version="1", written_at=now + ahead, entries=(statement,))
    store.put("i/1.json", ahead_of.to_bytes())
    indexes = ObjectCache(store, "i/", parse_index)
    indexes.look()
    [index] = indexes.kept.values()
    assert is_now(index.written_at)
    assert index.written_at - index.entries[0].observed_at == timedelta(seconds=40), "as old as by its own clock"
    assert abs(timedelta(seconds=index.clock_skew) - ahead) < timedelta(seconds=30)


def said(written_at: datetime, observed_at: datetime) -> WatermarkIndex:
    statement = entry("a", 0, 5, observed_at=observed_at)
    return WatermarkIndex(cluster="c", broker=1, agent_version="1", written_at=written_at, entries=(statement,))


def test_what_seems_to_be_behind_is_left_alone_and_what_is_in_time_is_the_same() -> None:
    now = datetime.now(UTC)
    for written_at in (now, now + timedelta(seconds=1), now - 25 * HOUR, now - timedelta(days=400)):
        index = said(written_at, written_at)
        assert as_stored(index, now) is index
    # A former agent's statement, taken over by one whose clock is right.
    assert as_stored(said(now, now + DAY), now).entries[0].observed_at == now


def dated(root: Path, ahead: timedelta, *, modified: datetime) -> spark_world.World:
    """A landed date, and a last word of an agent, ahead of the store's clock, that the store got at ``modified``."""
    world = spark_world.World(root, "lateness: 1h")
    world.raw.segment([batch(0, [Record(0)])])
    world.land()
    world.raw.now = world.raw.observed_at = modified + ahead
    world.raw.publish()
    path = root / "raw" / ControlKeys("", "east").index(1)
    os.utime(path, (modified.timestamp(), modified.timestamp()))
    return world


@pytest.mark.parametrize("ahead", [timedelta(), HOUR, DAY])
def test_a_date_does_not_close_by_an_agent_that_was_ahead_and_is_dead(tmp_path: Path, ahead: timedelta) -> None:
    """It was seen for the last time half an hour before the date could close: more records may be on the broker."""
    closes = datetime.fromtimestamp(T0 / 1000, UTC).replace(hour=0, minute=0, second=0, microsecond=0) + DAY + HOUR
    world = dated(tmp_path, ahead, modified=closes - timedelta(minutes=30))
    found = plan_ingest(world.table).closes
    assert all(one.after.state == "final_incomplete" for one in found.values()), "by its age alone, and said to be"
    assert all(one.observed_at < closes for one in RawTopic(world.table).entries.values())
    later = dated(tmp_path / "later", ahead, modified=closes + timedelta(minutes=30))
    assert [one.after.state for one in plan_ingest(later.table).closes.values()] == ["final"]


def test_a_date_does_not_close_by_the_planners_clock(tmp_path: Path, host: list[timedelta]) -> None:
    today = datetime.now(UTC)
    world = spark_world.World(tmp_path)
    world.raw.now = world.raw.observed_at = today
    world.raw.segment([batch(0, [Record(0, round(today.timestamp() * 1000))])])
    world.land()
    assert [one.state for one in world.ledger.dates.values()] == ["open"]
    host[0] = timedelta(days=30)
    world.raw.publish()
    plan = plan_ingest(world.table)
    assert (plan.closes, is_now(plan.created_at)) == ({}, True)


def test_an_agent_that_was_a_day_ahead_and_died_is_told_of_in_time(tmp_path: Path) -> None:
    world = World(tmp_path / "world", "orders")
    now = timestamps.utc_now()
    index = WatermarkIndex(
        cluster=CLUSTER, broker=1, agent_version="test", written_at=now + DAY, entries=(entry("orders", 0, 5),)
    )
    world.raw.put(world.control.index(1), index.to_bytes())

    def keys(minutes: int) -> list[str]:
        found = watch(world.deployment, CLUSTER, now + timedelta(minutes=minutes))
        return [one.key for one in found.incidents if one.open]

    assert keys(0) == []
    assert keys(5) == [f"agent_gone/{CLUSTER}/1", f"clock/{CLUSTER}/1"]
    world.put_index(entry("orders", 0, 5), broker=1)
    assert keys(6) == [f"agent_gone/{CLUSTER}/1"], "its clock is right now; it is silent as the look sees it"


def test_a_store_that_refuses_a_skew_is_not_taken_for_wrong_credentials() -> None:
    answer = {
        "Error": {"Code": "RequestTimeTooSkewed", "Message": "The difference is too large."},
        "ResponseMetadata": {"HTTPStatusCode": 403},
    }
    found = translated("s3://raw/k", ClientError(answer, "GetObject"))  # type: ignore[arg-type]
    assert isinstance(found, Refused)
    assert not isinstance(found, AccessDenied)
    assert "clock" in str(found)
    assert "the credentials are not the reason" in str(found)


@pytest.mark.parametrize("skew", WRONG)
def test_config_check_tells_of_it(tmp_path: Path, host: list[timedelta], skew: timedelta) -> None:
    url = f"file://{tmp_path}"
    assert clocks.problem(url, StoreOptions()) == ""
    host[0] = skew
    way = "ahead of" if skew > timedelta() else "behind"
    assert f"s {way} the store's clock: set it" in clocks.problem(url, StoreOptions())
    assert "cannot be compared" in clocks.problem("file:///proc", StoreOptions())
    assert clocks.problem(f"{url}/none", StoreOptions()) == ""
    assert not (tmp_path / "none").exists()
