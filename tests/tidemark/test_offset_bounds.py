"""Bounds of ranges, as people write them."""

from __future__ import annotations

import pytest

from tidemark.errors import ConfigError
from tidemark.offset_bounds import BEGINNING, END, Bound, parse_bounds


class Edges:
    """Offsets 5 to 20, of which 12 is the first record at 1,000 ms or later."""

    def beginning(self) -> int:
        return 5

    def end(self) -> int:
        return 20

    def at_time(self, timestamp_ms: int) -> int | None:
        return 12 if timestamp_ms <= 1000 else None


@pytest.mark.parametrize(
    ("text", "bound", "offset"),
    [
        ("beginning", BEGINNING, 5),
        ("end", END, 20),
        ("7", Bound("offset", 7), 7),
        ("@1000", Bound("time", 1000), 12),
        ("@1001", Bound("time", 1001), 20),
        ("@-1", Bound("time", -1), 12),
        ("1970-01-01T00:00:01Z", Bound("time", 1000), 12),
        ("1970-01-01T02:00:00.9999+02:00", Bound("time", 999), 12),
        ("1969-12-31", Bound("time", -86_400_000), 12),
        ("1970-01-01T00:00:01.5", Bound("time", 1500), 20),
    ],
)
def test_each_way_to_say_it(text: str, bound: Bound, offset: int) -> None:
    found = parse_bounds([text], "--from", END).of(3)
    assert (found, found.resolve(Edges())) == (bound, offset)
    assert parse_bounds([str(found)], "--from", END).of(3) == bound


def test_a_partitions_own_bound_goes_before_that_of_all() -> None:
    found = parse_bounds(["3:100", "50", "0:7"], "--to", END)
    assert [found.of(one).value for one in (0, 1, 3)] == [7, 50, 100]
    found = parse_bounds(["3:100"], "--to", END)
    assert [found.of(3).value, found.of(0)] == [100, END]


@pytest.mark.parametrize(
    "texts", [["now"], ["-1"], ["1:2:3"], ["1:end"], ["2026-13-01"], [""], ["5", "6"], ["1:5", "1:6"], ["@1.5"]]
)
def test_what_is_none_or_stands_twice_is_refused(texts: list[str]) -> None:
    with pytest.raises(ConfigError, match="--from"):
        parse_bounds(texts, "--from", BEGINNING)
