"""Work for one caller, some of it ahead: side by side, in order, within bounds; and values that threads share."""

from __future__ import annotations

import random
import threading
from contextlib import closing

import pytest

from tests.support.waiting import HUNG
from tidemark.concurrency import THREADS, Lru, OnePerKey, ahead, in_parallel


class Work:
    """Counts what has begun, and answers once ``together`` calls are under way."""

    def __init__(self, together: int = 1, broken: frozenset[int] = frozenset()) -> None:
        self._barrier, self._broken = threading.Barrier(together), broken
        self.begun: list[int] = []

    def __call__(self, number: int) -> int:
        self.begun.append(number)
        self._barrier.wait(HUNG)
        if number in self._broken:
            raise ValueError(number)
        return number


def test_as_many_as_there_are_threads_run_at_a_time_and_results_come_in_order() -> None:
    numbers = range(4 * THREADS)
    assert list(ahead(Work(together=THREADS), numbers, lambda _: 0, 0)) == list(numbers)


def test_no_more_bytes_are_ahead_than_may_be_and_a_larger_item_is_alone() -> None:
    work, sizes = Work(), [3, 3, 3, 100, 1, 1]
    with closing(ahead(work, range(6), lambda number: sizes[number], 7)) as found:
        for number in found:
            # of the numbers that have begun, those from this one on are not used yet
            waiting = [sizes[one] for one in work.begun if one > number]
            assert sum(waiting) <= 7 or len(waiting) == 1
            assert not (3 in work.begun and number < 2), "the large one begins when those before it are used"
    assert work.begun == [0, 1, 2, 3, 4, 5]


def test_nothing_begins_once_it_is_closed() -> None:
    work = Work()
    with closing(ahead(work, range(100), lambda _: 0, 0)) as found:
        assert next(found) == 0
    assert len(work.begun) <= 1 + THREADS


def test_an_error_comes_at_its_turn() -> None:
    found = ahead(Work(broken=frozenset({2})), range(5), lambda _: 0, 0)
    assert [next(found), next(found)] == [0, 1]
    with pytest.raises(ValueError, match="2"):
        next(found)


def test_a_single_item_takes_no_thread() -> None:
    assert list(ahead(lambda _: threading.current_thread(), [1], lambda _: 0, 0)) == [threading.current_thread()]


def test_threads_share_one_object_for_each_key() -> None:
    made: list[str] = []

    def make(key: str) -> list[str]:
        made.append(key)
        return [key]

    shared = OnePerKey[str, list[str]](make)
    found = in_parallel(lambda number: shared.of(f"{number % 2}"), range(40))
    assert sorted(made) == ["0", "1"]
    assert found[2] is found[0]
    assert found[3] is found[1]


def test_what_was_used_longest_ago_is_dropped() -> None:
    kept: Lru[str, int] = Lru(2)
    kept.keep("a", 1)
    kept.keep("b", 2)
    assert kept.get("a") == 1
    kept.keep("c", 3)
    assert (kept.get("a"), kept.get("b"), kept.get("c")) == (1, None, 3)
    assert "a" in kept
    kept.forget("a")
    kept.forget("a")
    assert "a" not in kept


def test_a_value_that_is_too_heavy_is_not_kept_and_drops_nothing_but_its_former_self() -> None:
    kept: Lru[str, bytes] = Lru(10, len)
    kept.keep("a", b"1234")
    kept.keep("b", b"1234")
    kept.keep("b", bytes(11))
    assert (kept.get("a"), kept.get("b")) == (b"1234", None)
    assert Lru[str, bytes](0, len).get("a") is None


def test_one_that_must_be_kept_is_kept_alone() -> None:
    kept: Lru[str, bytes] = Lru(10, len, at_least=1)
    kept.keep("a", b"1")
    kept.keep("b", bytes(11))
    assert (kept.get("a"), kept.get("b")) == (None, bytes(11))
    kept.keep("c", b"1")
    assert (kept.get("b"), kept.get("c")) == (None, b"1")


def test_it_is_what_a_list_in_the_order_of_use_gives(rng: random.Random) -> None:
    limit, at_least = rng.randint(0, 20), rng.choice([0, 1])
    kept: Lru[int, bytes] = Lru(limit, len, at_least=at_least)
    known: list[tuple[int, bytes]] = []  # the last one was used last
    for _ in range(2000):
        key = rng.randint(0, 8)
        before = next((value for one, value in known if one == key), None)
        if rng.random() < 0.5:
            assert kept.get(key) == before
            if before is not None:
                known = [*(entry for entry in known if entry[0] != key), (key, before)]
            continue
        value = bytes(rng.randint(0, 25))
        kept.keep(key, value)
        known = [entry for entry in known if entry[0] != key]
        if len(value) > limit and not at_least:
            continue
        known.append((key, value))
        while sum(len(one) for _, one in known) > limit and len(known) > at_least:
            known.pop(0)
    assert [key for key in range(9) if key in kept] == sorted(key for key, _ in known)
