"""Work for one caller, some of it ahead: side by side, in order, within bounds."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from tests.support.waiting import HUNG
from tidemark.concurrency import THREADS, OnePerKey, ahead, in_parallel


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
