"""The demo tells a right count from a wrong one: it must fail when a record is missing, there twice, or not its own."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from demo.accounts import TopicAccount, align
from demo.streams import DAYS, STREAMS, RecordClock


def account() -> TopicAccount:
    """Ten records, all landed."""
    return TopicAccount("orders", produced=10, aborted=2, landed=10)


def test_every_record_landed_is_exact() -> None:
    assert account().exact


@pytest.mark.parametrize(("field", "value"), [("missing", 1), ("duplicate", 1), ("foreign", 1), ("landed", 9)])
def test_any_difference_is_not_exact(field: str, value: int) -> None:
    wrong = account()
    setattr(wrong, field, value)
    assert not wrong.exact


def test_the_longest_waits_are_told_beside_the_usual_one() -> None:
    one = account()
    assert one.waits_text == "-"
    one.waits = [float(number) for number in range(1, 201)]
    assert one.waits_text == "100 s / 198 s / 200 s"


def test_the_streams_are_as_large_and_as_wide_as_promised() -> None:
    assert sum(stream.records for stream in STREAMS) >= 200_000
    now = datetime(2026, 11, 20, 15, tzinfo=UTC)
    clock = RecordClock(random.Random(1), now)
    times = [clock.at(number / 1000) for number in range(1000)]
    dates = {datetime.fromtimestamp(time / 1000, UTC).date() for time in times}
    assert len(dates) == DAYS
    assert max(times) <= now.timestamp() * 1000


def test_columns_are_aligned() -> None:
    assert align([("a", "bb"), ("ccc", "d")]) == "a    bb\n---  --\nccc   d\n"
