"""Interval arithmetic against plain sets of integers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.intervals import Interval, Intervals

offsets = st.integers(min_value=0, max_value=60)
pairs = st.tuples(offsets, offsets).map(lambda pair: (min(pair), max(pair)))
interval_sets = st.lists(pairs, max_size=8).map(Intervals)


def as_set(intervals: Intervals) -> set[int]:
    return {offset for start, end in intervals for offset in range(start, end)}


@given(st.lists(pairs, max_size=8))
def test_normal_form_holds_the_same_offsets(parts: list[tuple[int, int]]) -> None:
    found = Intervals(parts)
    assert as_set(found) == {offset for start, end in parts for offset in range(start, end)}
    assert all(left.end < right.start for left, right in zip(found.parts, found.parts[1:], strict=False))
    assert all(part.size > 0 for part in found)
    assert found.size == len(as_set(found))


@given(interval_sets, interval_sets)
def test_set_operations(left: Intervals, right: Intervals) -> None:
    assert as_set(left | right) == as_set(left) | as_set(right)
    assert as_set(left & right) == as_set(left) & as_set(right)
    assert as_set(left - right) == as_set(left) - as_set(right)


@given(interval_sets, interval_sets)
def test_equal_sets_have_equal_forms(left: Intervals, right: Intervals) -> None:
    assert (left == right) == (as_set(left) == as_set(right))
    assert (left - right) | (left & right) == left


@given(interval_sets, pairs)
def test_clip_and_missing_partition_the_window(intervals: Intervals, window: tuple[int, int]) -> None:
    inside, outside = intervals.clip(*window), intervals.missing(*window)
    assert as_set(inside) | as_set(outside) == set(range(*window))
    assert not inside & outside


@given(interval_sets, offsets)
def test_contiguous_from(intervals: Intervals, offset: int) -> None:
    end = intervals.contiguous_from(offset)
    assert set(range(offset, end)) <= as_set(intervals)
    assert end not in as_set(intervals)
    assert end not in intervals


def test_an_interval_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[5, 3\) ends before it starts"):
        Intervals([(5, 3)])


def test_json() -> None:
    assert Intervals([(3, 5), (0, 1), (1, 2)]).to_json() == [[0, 2], [3, 5]]
    assert Interval(3, 5).size == 2
