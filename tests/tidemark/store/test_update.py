"""Compare-and-set: nothing that another one wrote is lost, and the outcome that is told is the true one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from tidemark.errors import NotFound, PreconditionFailed, UnknownOutcome
from tidemark.store import LocalStore, Store
from tidemark.store.update import TRIES, update

KEY = "counter.json"


class Counter(NamedTuple):
    """What is stored."""

    value: int

    def to_bytes(self) -> bytes:
        return str(self.value).encode()


def increment(store: Store, change: Callable[[Counter], Counter] = lambda one: Counter(one.value + 1)) -> int:
    def read() -> tuple[Counter, str | None]:
        try:
            found = store.get(KEY)
        except NotFound:
            return Counter(0), None
        return Counter(int(found.body)), found.etag

    return update(store, KEY, read, change, then="try later").value


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def test_no_change_of_several_is_lost(store: LocalStore) -> None:
    def patiently(_: int) -> None:
        while True:
            try:
                increment(store)
            except PreconditionFailed:
                continue
            return

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(patiently, range(40)))
    assert store.get(KEY).body == b"40"


def test_what_changes_nothing_is_not_written(store: LocalStore) -> None:
    increment(store)
    before = store.head(KEY)
    assert increment(store, lambda one: one) == 1
    assert store.head(KEY) == before


def test_a_store_that_did_not_say_is_read_again(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was written: the change must not be made twice where it bears repetition."""
    put, failures = store.put, iter([UnknownOutcome(KEY, "no answer")])

    def lose_the_answer(*arguments: object, **options: object) -> str:
        etag = put(*arguments, **options)  # type: ignore[arg-type]
        for failure in failures:
            raise failure
        return etag

    monkeypatch.setattr(store, "put", lose_the_answer)
    assert increment(store, lambda one: Counter(max(one.value, 7))) == 7
    assert store.get(KEY).body == b"7"


@pytest.mark.parametrize(
    ("failure", "raised", "said"),
    [
        (
            PreconditionFailed(KEY, "changed"),
            PreconditionFailed,
            f"changed by others {TRIES} times in a row; try later",
        ),
        (UnknownOutcome(KEY, "no answer"), UnknownOutcome, "no answer"),
    ],
)
def test_the_last_failure_is_the_one_that_is_told(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, failure: Exception, raised: type[Exception], said: str
) -> None:
    calls: list[object] = []

    def fail(*arguments: object, **_: object) -> str:
        calls.append(arguments)
        raise failure

    monkeypatch.setattr(store, "put", fail)
    with pytest.raises(raised, match=said):
        increment(store)
    assert len(calls) == TRIES
