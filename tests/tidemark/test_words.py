"""Numbers in messages are for people."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tidemark.words import duration, plural


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (0, "0 s"),
        (20 / 3, "6.7 s"),
        (20, "20 s"),
        (119, "119 s"),
        (150, "2.5 min"),
        (timedelta(minutes=15), "15 min"),
        (timedelta(hours=36), "36 h"),
        (timedelta(days=31), "31 days"),
    ],
)
def test_a_length_of_time(length: timedelta | float, words: str) -> None:
    assert duration(length) == words


def test_counts() -> None:
    assert [plural(number, "offset") for number in (0, 1, 2, 5348)] == [
        "0 offsets",
        "1 offset",
        "2 offsets",
        "5,348 offsets",
    ]
