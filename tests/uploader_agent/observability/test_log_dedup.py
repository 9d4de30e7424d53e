from __future__ import annotations

import threading
from datetime import timedelta

import structlog
from structlog.testing import capture_logs

from uploader_agent.observability.log_config import ErrorDeduplicator


class Clock:
    """Stands still until it is moved."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_once_then_with_its_count_then_its_end() -> None:
    clock = Clock()
    repeats = ErrorDeduplicator(structlog.get_logger(), timedelta(minutes=5), clock)
    with capture_logs() as lines:
        for number in range(10):
            repeats.failed("index", "index_not_written", error=f"no. {number}")
            clock.now += 60
        assert repeats.failing() == {"index"}
        repeats.cleared("index", "index_written_again", key="a")
        repeats.cleared("index", "index_written_again", key="a")
    assert lines == [
        {"event": "index_not_written", "error": "no. 0", "log_level": "warning"},
        {"event": "index_not_written", "error": "no. 5", "times": 6, "log_level": "warning"},
        {"event": "index_written_again", "key": "a", "times": 10, "seconds": 600.0, "log_level": "info"},
    ]
    assert repeats.failing() == set()


def test_what_comes_back_is_new_and_keys_are_apart() -> None:
    repeats = ErrorDeduplicator(structlog.get_logger(), timedelta(minutes=5), Clock())
    with capture_logs() as lines:
        repeats.failed(("job", 1), "job_failed", "error")
        repeats.failed(("job", 2), "job_failed", "error")
        repeats.cleared(("job", 1), "job_recovered")
        repeats.failed(("job", 1), "job_failed", "error")
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("job_failed", "error"),
        ("job_failed", "error"),
        ("job_recovered", "info"),
        ("job_failed", "error"),
    ]


def test_threads_lose_no_count() -> None:
    repeats = ErrorDeduplicator(structlog.get_logger(), timedelta(hours=1))

    def fail() -> None:
        for _ in range(500):
            repeats.failed("store", "job_failed")

    with capture_logs() as lines:
        threads = [threading.Thread(target=fail) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        repeats.cleared("store", "store_answers")
    assert [line.get("times") for line in lines] == [None, 2000]
