"""Faults between a reader and the store: the same records in the end, or the right error; never a wrong record."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from tests.support.proxy import Fault, FaultProxy, Request, Rule
from tests.support.s3 import S3Server
from tests.tidemark.kafka_log.build import simple
from tests.tidemark.remote.reader import TP, Log, Reader, records_of, shape, stored
from tests.tidemark.remote.world import RemoteStore
from tidemark.errors import AccessDenied, NotFound, OutOfRange, SegmentError, UnknownOutcome
from tidemark.formats.keys import TopicPartition
from tidemark.remote.reader import partition_reader, tier
from tidemark.storage import Storage
from tidemark.store import Body, Store, StoreOptions, retrying


def long(*faults: Fault) -> list[Any]:
    """Faults that only the long run injects."""
    return [pytest.param(fault, marks=pytest.mark.full) for fault in faults]


CUTS = [Fault.CUT_MID_BODY, Fault.UNAVAILABLE, *long(Fault.DELAY, Fault.LOSE_REPLY, Fault.ERROR, Fault.SLOW_DOWN)]
HANGS = [Fault.HANG_MID_BODY, *long(Fault.HANG_BEFORE_BODY, Fault.HANG_BEFORE_REPLY, Fault.TRICKLE)]


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch, quick_retries: None) -> None:
    """Small ranges, and short pauses."""
    monkeypatch.setattr(partition_reader, "_FIRST_BYTES", 900)
    monkeypatch.setattr(tier, "_LEAST_RANGE", 900)
    monkeypatch.setattr(tier, "RANGE_BYTES", 900)


@pytest.fixture
def proxy(s3_server: S3Server, rng: random.Random) -> Iterator[FaultProxy]:
    with FaultProxy(s3_server.endpoint, rng) as found:
        yield found


def behind(proxy: FaultProxy, store: RemoteStore, **options: object) -> Storage:
    """The remote tier as it is reached through the proxy."""
    changed = store.options.model_copy(update={"endpoint_url": proxy.endpoint, **options})
    return replace(store, options=StoreOptions.model_validate(changed.model_dump())).storage()


def once(where: Callable[[Request], bool]) -> Callable[[Request], bool]:
    """True for the first request for which ``where`` holds, so that there is a fault whatever chance has."""
    met: list[Request] = []

    def first(request: Request) -> bool:
        if met or not where(request):
            return False
        met.append(request)
        return True

    return first


def of_logs(request: Request) -> bool:
    return request.path.endswith(".log")


def passing(where: Callable[[Request], bool]) -> Callable[[Request], bool]:
    """False from the third request of an object on: damage that is still there then counts as the object's own."""
    met: Counter[str] = Counter()

    def early(request: Request) -> bool:
        met[request.path] += 1
        return met[request.path] <= 2 and where(request)

    return early


@pytest.mark.essential
@pytest.mark.parametrize("fault", [*CUTS, Fault.CORRUPT])
def test_faults_that_pass_leave_the_records_as_they_are(
    s3_store: RemoteStore, proxy: FaultProxy, rng: random.Random, fault: Fault
) -> None:
    log = Log(rng, transactions=True)
    stored(log, s3_store.raw(), 4)
    first: Callable[[Request], bool] = of_logs if fault is Fault.CORRUPT else lambda _request: True
    where = passing(of_logs) if fault is Fault.CORRUPT else first
    share = 0.05 if fault is Fault.CORRUPT else 0.1
    proxy.rules = [Rule(fault, 1.0, once(first)), Rule(fault, share, where)]
    with Reader(behind(proxy, s3_store)) as reader:
        assert shape(reader.read(0)) == log.committed
    assert proxy.counts()[fault]


@pytest.mark.parametrize("fault", HANGS)
def test_a_store_that_hangs_is_asked_again(
    s3_store: RemoteStore, proxy: FaultProxy, rng: random.Random, fault: Fault
) -> None:
    log = Log(rng)
    stored(log, s3_store.raw(), 2)
    proxy.rules = [Rule(fault, 0.1, of_logs)]
    with Reader(behind(proxy, s3_store, deadline=timedelta(seconds=1))) as reader:
        assert shape(reader.read(0)) == log.all


def test_what_does_not_pass_is_an_error_that_names_object_and_offset(
    s3_store: RemoteStore, proxy: FaultProxy, rng: random.Random
) -> None:
    raw = s3_store.raw()
    raw.segment([simple(3 * number) for number in range(30)])
    key = raw.segment([simple(90)])
    raw.publish()
    with Reader(behind(proxy, s3_store)) as reader:
        proxy.rules = [Rule(Fault.UNAVAILABLE, where=lambda request: request.path.endswith(key))]
        reader.tier.read(TP, 0)
        found = 0
        while found < 90:
            block = reader.next()
            assert block is not None
            found = block.next_offset
        with pytest.raises(UnknownOutcome, match=rf"{key}.*ServiceUnavailable.*orders-0, from offset 90 on"):
            reader.next()
        assert reader.tier.counters.retries >= retrying.ATTEMPTS - 1
        proxy.rules = []
        assert [one.offset for one in reader.read(90)] == [90, 91, 92]


@pytest.mark.essential
@pytest.mark.parametrize("forbidden", ["s3:ListBucket", "s3:GetObject"])
def test_what_the_policy_does_not_allow_is_said_at_once(
    s3_server: S3Server, s3_store: RemoteStore, monkeypatch: pytest.MonkeyPatch, proxy: FaultProxy, forbidden: str
) -> None:
    raw = s3_store.raw()
    raw.segment([simple(0)])
    raw.publish()
    listing = forbidden == "s3:ListBucket"
    proxy.rules = [
        Rule(Fault.FORBIDDEN, where=lambda request: ("list-type" in request.query) if listing else of_logs(request))
    ]
    with Reader(behind(proxy, s3_store)) as reader:
        reader.tier.read(TP, 0)
        with pytest.raises(AccessDenied, match="policy"):
            reader.next()
        assert not reader.tier.counters.retries


def test_damage_that_stays_is_an_error_after_the_records_before_it(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    batches = [simple(3 * number) for number in range(40)]
    key = raw.segment(batches)
    raw.publish()
    spoilt = bytearray(b"".join(batches))
    position = sum(map(len, batches[:20]))
    spoilt[position + 70] ^= 1
    raw.replace_log(key, bytes(spoilt))
    with Reader(remote_store.storage()) as reader:
        reader.tier.read(TP, 0)
        seen: list[int] = []
        while len(seen) < 60:
            block = reader.next()
            assert block is not None
            seen += [one.offset for one in records_of(block)]
        assert seen == list(range(60))
        with pytest.raises(SegmentError, match=rf"{key}: at byte {position}, offset 60: the checksum"):
            reader.next()
        assert [one.offset for one in reader.read(63)] == list(range(63, 120))


@pytest.mark.parametrize("field", [("base_offset", 7), ("leader_epoch", 15)])
def test_what_is_under_no_checksum_is_checked_too(local_store: RemoteStore, field: tuple[str, int]) -> None:
    raw = local_store.raw()
    batches = [simple(0), simple(3), simple(6)]
    key = raw.segment(batches)
    raw.publish()
    spoilt = bytearray(b"".join(batches))
    spoilt[len(batches[0]) + field[1]] ^= 4
    raw.replace_log(key, bytes(spoilt))
    with Reader(local_store.storage()) as reader, pytest.raises(SegmentError):
        reader.read(0)


class Interfering:
    """A store in front of another, where ``before`` is called once, before the ``at``-th range of a log is read."""

    def __init__(self, inner: Store, at: int, before: Callable[[], object]) -> None:
        self._inner = inner
        self._left = at
        self._before = before
        self.url = inner.url

    def stream(
        self, key: str, start: int = 0, end: int | None = None, *, if_match: str | None = None
    ) -> AbstractContextManager[Body]:
        self._left -= 1
        if self._left == 0:
            self._before()
        return self._inner.stream(key, start, end, if_match=if_match)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def interfered(store: RemoteStore, at: int, before: Callable[[], object]) -> Storage:
    return store.storage().through(lambda inner: cast("Store", Interfering(inner, at, before)))


def test_what_retention_takes_between_list_and_get_is_out_of_range(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    key = raw.segment([simple(0), simple(3)])
    raw.segment([simple(6)])
    raw.publish()

    def expire() -> None:
        for name in ("log", "index", "manifest.json"):
            raw.store.delete(f"{key.removesuffix('log')}{name}")
        raw.partition().start_offset = 6
        raw.publish()

    with Reader(interfered(remote_store, 1, expire)) as reader:
        reader.tier.read(TP, 0)
        with pytest.raises(OutOfRange):
            reader.next()
        assert [one.offset for one in reader.read(6)] == [6, 7, 8]


def test_a_log_that_is_gone_for_no_reason_is_said_to_be(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    key = raw.segment([simple(0)])
    raw.publish()
    with Reader(interfered(remote_store, 1, lambda: raw.store.delete(key))) as reader:
        reader.tier.read(TP, 0)
        with pytest.raises(NotFound, match="orders-0 at offset 0"):
            reader.next()


def test_closing_does_not_wait_for_a_store_that_hangs(s3_store: RemoteStore, proxy: FaultProxy) -> None:
    raw = s3_store.raw()
    raw.segment([simple(0)])
    raw.publish()
    hung = threading.Event()

    def hang(request: Request) -> Fault | None:
        if not of_logs(request):
            return None
        hung.set()
        return Fault.HANG_BEFORE_REPLY

    proxy.rules = hang
    with Reader(behind(proxy, s3_store)) as reader:
        reader.tier.read(TP, 0)
        assert hung.wait(30)
        started = time.monotonic()
    assert time.monotonic() - started < 20  # of the 30 s that the store's options would wait


def test_one_partition_that_hangs_does_not_hold_up_the_others(s3_store: RemoteStore, proxy: FaultProxy) -> None:
    raw = s3_store.raw()
    for number in range(3):
        raw.segment([simple(3 * at) for at in range(40)], number)
    raw.publish()
    proxy.rules = [Rule(Fault.HANG_BEFORE_BODY, where=lambda request: of_logs(request) and "orders-0" in request.path)]
    with Reader(behind(proxy, s3_store), threads=5) as reader:
        reader.tier.read(TP, 0)
        for number in (1, 2):
            tp = TopicPartition("orders", number)
            assert len(reader.read(0, tp)) == 120


def test_no_thread_is_left(local_store: RemoteStore) -> None:
    raw = local_store.raw()
    raw.segment([simple(0)])
    raw.publish()
    before = set(threading.enumerate())
    with Reader(local_store.storage()) as reader:
        reader.read(0)
        assert set(threading.enumerate()) - before
    assert not set(threading.enumerate()) - before
