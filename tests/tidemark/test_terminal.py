"""Tables and progress as both programs print them."""

from __future__ import annotations

import pytest

from tests.support.examples import failures_of
from tidemark.terminal import Counting, Progress, columns


def test_the_example_says_what_happens() -> None:
    count, failed = failures_of("tidemark.terminal", {})
    assert count
    assert not failed, failed


def test_numbers_may_stand_to_the_right() -> None:
    assert columns([("name", "rows"), ("a", 12)], right=True) == "name  rows\n   a    12"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which only the test moves."""
    now = [100.0]
    monkeypatch.setattr("tidemark.terminal.time.monotonic", lambda: now[0])
    return now


def test_a_short_command_says_nothing(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress:
        clock[0] += 2.9
        progress.say("half")
    assert capsys.readouterr().err == ""


def test_a_long_one_says_where_it_is_and_where_it_ends(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Counting("records") as progress:
        for _ in range(8):
            clock[0] += 1
            progress.add(1000, 2_000_000)
    assert capsys.readouterr().err.splitlines() == [
        "3,000 records, 6.0 MB in 3 s, 1,000 a second",
        "8,000 records, 16.0 MB in 8 s, 1,000 a second",
    ]


def test_the_same_is_not_said_twice(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress:
        clock[0] += 3
        progress.say("500 values look like binary")
        clock[0] += 5
        progress.say("500 values look like binary")
    assert capsys.readouterr().err == "500 values look like binary\n"
