"""Who is told of a failure, how often, and that it is over."""

from __future__ import annotations

from datetime import timedelta

import pytest
import structlog
from structlog.testing import capture_logs
from structlog.typing import EventDict

from tests.uploader_agent.fakes import T
from tidemark.backoff import Backoff
from tidemark.errors import AccessDenied, BucketMissing, FormatError, PreconditionFailed, UnknownOutcome
from tidemark.formats.keys import TopicPartition
from uploader_agent.observability.log_config import ErrorDeduplicator
from uploader_agent.observability.metrics import Metrics
from uploader_agent.scheduling.retry import Failures

OTHER = TopicPartition("orders", 7)
LOST = UnknownOutcome("s3://raw/k", "no answer: no byte moved for 30 s")
DENIED = AccessDenied("s3://raw/k", "AccessDenied; check the credentials")


class Situation:
    """Failures, and what they make of metrics and log."""

    def __init__(self) -> None:
        self.now = 0.0
        self.metrics = Metrics()
        self.repeats = ErrorDeduplicator(structlog.get_logger(), timedelta(minutes=5), lambda: self.now)
        self.failures = Failures(Backoff(1, 30), self.metrics, self.repeats, lambda _low, high: high)

    def refused(self) -> float | None:
        return self.metrics.registry.get_sample_value("tidemark_agent_store_refused")

    def failed(self, kind: str) -> float | None:
        return self.metrics.registry.get_sample_value("tidemark_agent_failures_total", {"kind": kind})


@pytest.fixture
def situation() -> Situation:
    return Situation()


def told(entries: list[EventDict]) -> list[tuple[object, ...]]:
    """Event, partition and count of each line above debug."""
    return [(one["event"], one.get("partition"), one.get("times")) for one in entries if one["log_level"] != "debug"]


def test_pauses_grow_per_partition(situation: Situation) -> None:
    failures = situation.failures
    assert [failures.failed(T, LOST)[0] for _ in range(3)] == [1, 2, 4]
    assert failures.failed(OTHER, LOST)[0] == 1
    failures.succeeded(T, wrote=True)
    assert failures.failed(T, LOST)[0] == 1
    assert [failures.failed(T, LOST)[0] for _ in range(100)][-1] == 30, "without end, but capped"


def test_pauses_are_spread_down_to_their_halves(situation: Situation) -> None:
    failures = Failures(Backoff(1, 30), situation.metrics, situation.repeats, lambda low, _high: low)
    assert [failures.failed(T, LOST)[0] for _ in range(3)] == [0.5, 1, 2]


def test_an_error_is_told_once_then_counted_then_over(situation: Situation) -> None:
    with capture_logs() as entries:
        for _ in range(50):
            situation.failures.failed(T, LOST)
        situation.failures.failed(T, FormatError("f", "rule"))
        situation.failures.failed(OTHER, LOST)
        situation.now = 300
        situation.failures.failed(T, LOST)
        situation.failures.succeeded(T, wrote=True)
        situation.failures.succeeded(T, wrote=True)
    assert told(entries) == [
        ("job_failed", "orders-0", None),
        ("job_failed", "orders-0", None),  # another kind
        ("job_failed", "orders-7", None),  # somebody else's
        ("job_failed", "orders-0", 51),
        ("job_works_again", "orders-0", 51),
        ("job_works_again", "orders-0", 1),
    ]
    assert [one["log_level"] for one in entries if one["event"] == "job_failed"] == ["warning", "error"] + 2 * [
        "warning"
    ]
    assert situation.failed("UnknownOutcome") == 52
    assert situation.failed("FormatError") == 1


def test_a_world_that_moved_on_is_no_news(situation: Situation) -> None:
    with capture_logs() as entries:
        assert situation.failures.failed(T, PreconditionFailed("k", "412")) == (1, None)
    assert told(entries) == []
    assert situation.failed("PreconditionFailed") == 1


@pytest.mark.parametrize("error", [DENIED, BucketMissing("s3://raw/k")])
def test_a_refusal_is_loud_once_for_all_partitions(situation: Situation, error: Exception) -> None:
    partitions = [TopicPartition("orders", number) for number in range(100)]
    with capture_logs() as entries:
        assert situation.refused() == 0
        for at in partitions:
            assert situation.failures.failed(at, error)[1] == f"{type(error).__name__}: {error}"
        assert situation.refused() == 1
        situation.failures.succeeded(partitions[0], wrote=False)
        assert situation.refused() == 1, "reading is allowed, writing is not"
        situation.failures.succeeded(partitions[1], wrote=True)
        assert situation.refused() == 0
    assert [(event, times) for event, _, times in told(entries)] == [
        ("store_refuses", None),
        ("store_accepts_again", 100),
    ]
    assert entries[0]["log_level"] == "error"


def test_a_partition_that_leaves_takes_its_failures_along(situation: Situation) -> None:
    with capture_logs() as entries:
        situation.failures.failed(T, DENIED)
        situation.failures.failed(OTHER, LOST)
        situation.failures.forget(T)
        situation.failures.forget(OTHER)
    assert situation.refused() == 0
    assert situation.failures.failed(T, LOST)[0] == 1, "counted anew"
    assert [event for event, _, _ in told(entries)] == [
        "store_refuses",
        "job_failed",
        "store_accepts_again",
        "partition_left",
    ]
