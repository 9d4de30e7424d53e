"""The lease of a slot: a standby takes over from a process that is silent, which then writes nothing more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidemark.errors import ConfigError, Refused, UnknownOutcome
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.cluster import LeaseOfSlot
from tidemark.storage import ClusterStore
from tidemark.store import LocalStore
from uploader_agent.intake.lease import LeaseLost, SlotLease, check_count
from uploader_agent.settings import FetchSettings
from uploader_agent.stored.cluster_name import GuardedStore

CONTROL = ControlKeys("", "east")
KEY = CONTROL.slot_lease(3)
SETTINGS = FetchSettings.model_validate(
    {"bootstrap": "127.0.0.1:1", "spool": "/spool", "slot": 3, "slots": 4, "lease": "30s"}
)


class Clock:
    """The time of all processes. ``passing`` does something in each wait of a standby."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.passing: Callable[[], object] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.passing()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def process(store: LocalStore, clock: Clock) -> SlotLease:
    """The lease of another process."""
    return SlotLease(SETTINGS, ClusterStore(store, CONTROL), clock=lambda: clock.now, sleep=clock.sleep)


def test_a_standby_waits_while_the_holder_renews_and_takes_over_when_it_is_silent(
    store: LocalStore, clock: Clock
) -> None:
    first, second = process(store, clock), process(store, clock)
    first.take()
    renewals = iter(range(40))

    def renew() -> None:
        if next(renewals, None) is not None:
            first.renew()

    clock.passing = renew
    begun = clock.now
    second.take()
    assert next(renewals, None) is None, "the standby waits as long as the lease is renewed"
    assert clock.now - begun >= 40 * 3 + 30
    second.check()


def test_a_process_that_was_frozen_writes_nothing_more(store: LocalStore, clock: Clock) -> None:
    """Its threads go on in any order: one that writes may be before the one that renews."""
    first, second = process(store, clock), process(store, clock)
    first.take()
    leased = GuardedStore(store, first.check)
    etag = leased.put("orders/head", b"1")
    clock.now += 29
    leased.put("orders/head", b"2", if_match=etag)
    second.take()
    assert clock.now >= 1000 + 30
    with pytest.raises(Refused, match="slot 3: its lease has ended"):
        leased.put("orders/head", b"3")
    with pytest.raises(Refused, match="slot 3: its lease has ended"):
        leased.copy("orders/head", "orders/copy", source_etag=etag)
    assert leased.get("orders/head").body == b"2"
    with pytest.raises(LeaseLost):
        first.renew()
    GuardedStore(store, second.check).put("orders/head", b"4")


def test_no_moment_has_two_holders(store: LocalStore, clock: Clock) -> None:
    """A holder counts from before its PUT, which may take long; a standby from after it has seen it."""
    first, second = process(store, clock), process(store, clock)
    put = store.put

    def slowly(*args: object, **options: object) -> str:
        etag = put(*args, **options)  # type: ignore[arg-type]
        clock.now += 20
        return etag

    store.put = slowly  # type: ignore[method-assign]
    first.take()
    store.put = put  # type: ignore[method-assign]
    first.check()
    clock.now += 10
    with pytest.raises(LeaseLost):
        first.check()
    second.take()


def test_after_a_clean_end_a_standby_takes_over_at_once(store: LocalStore, clock: Clock) -> None:
    first, second = process(store, clock), process(store, clock)
    first.take()
    with first.renewed(lambda: None):
        pass
    begun = clock.now
    second.take()
    assert clock.now == begun
    assert LeaseOfSlot.load(store, KEY).holder


def test_a_lease_that_is_lost_ends_its_process(store: LocalStore, clock: Clock) -> None:
    first, lost = process(store, clock), threading.Event()
    first._seconds = 0.05  # the thread waits by the real clock
    first.take()

    def work() -> None:
        with first.renewed(lost.set):
            clock.now += 1
            assert lost.wait(60)

    with pytest.raises(LeaseLost):
        work()
    assert LeaseOfSlot.load(store, KEY).holder, "what another may hold by now is not released"


@contextmanager
def failing(store: LocalStore, *, arrives: bool) -> Iterator[None]:
    """PUTs without an answer; the request ``arrives`` or not."""
    put = store.put

    def unknown(key: str, body: bytes, **options: object) -> str:
        if arrives:
            put(key, body, **options)  # type: ignore[arg-type]
        raise UnknownOutcome(key, "no answer")

    store.put = unknown  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        store.put = put  # type: ignore[method-assign]


@pytest.mark.parametrize("arrives", [False, True])
def test_a_store_that_is_away_for_less_than_the_lease_costs_nothing(
    store: LocalStore, clock: Clock, *, arrives: bool
) -> None:
    first = process(store, clock)
    first.take()
    with failing(store, arrives=arrives):
        for _ in range(4):
            clock.now += 6
            first.renew()
    first.renew()
    clock.now += 29
    first.check()
    clock.now += 1
    with pytest.raises(LeaseLost):
        first.check()


def test_agents_with_another_number_of_slots_are_refused(store: LocalStore) -> None:
    check_count(ClusterStore(store, CONTROL), 4)
    check_count(ClusterStore(store, CONTROL), 4)
    with pytest.raises(ConfigError, match=r"slots.*is 5, and the agents of this cluster share its partitions among 4"):
        check_count(ClusterStore(store, CONTROL), 5)
    store.delete(CONTROL.slot_count)
    check_count(ClusterStore(store, CONTROL), 5)
