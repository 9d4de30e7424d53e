"""Numbers in messages are for people."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tidemark.words import duration, plural, printable, start_of, utc_time


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


def test_times_of_kafka() -> None:
    assert utc_time(1_795_860_732_120) == "2026-11-28 10:12:12.120 UTC"
    assert utc_time(-1) == "1969-12-31 23:59:59.999 UTC"
    assert utc_time(1 << 62) == "4611686018427387904 ms"


def test_a_foreign_text_is_one_printable_line() -> None:
    assert printable("a\tb\x1b[0mé\n") == r"a\tb\x1b[0mé\n"
    assert start_of("é\n".encode() * 3, 4) == r"é\né\n…"
    assert (start_of(b"ab\xff", 6), start_of(b"", 1), start_of(None, 1)) == (r"ab\xff", "", "null")
