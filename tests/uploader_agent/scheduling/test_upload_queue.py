from __future__ import annotations

import threading
from typing import Any

from typing_extensions import override

from tests.support.waiting import HUNG
from uploader_agent.runtime import Runtime
from uploader_agent.scheduling.workers import UploadQueue


class Clock(Runtime):
    """Stands still until told; ``readings`` come first."""

    def __init__(self) -> None:
        self.now = 0.0
        self.readings: list[float] = []

    def monotonic(self) -> float:
        return self.readings.pop(0) if self.readings else self.now


def drain(queue: UploadQueue[str, int], count: int) -> list[tuple[str, int]]:
    taken = [queue.take() for _ in range(count)]
    return [one for one in taken if one is not None]


def test_heads_first_and_partitions_in_turn() -> None:
    queue: UploadQueue[str, int] = UploadQueue(8)
    queue.replace("large", [1, 2, 3, 4])
    queue.replace("small", [5])
    queue.replace("other", [6, 7])
    assert drain(queue, 7) == [
        ("large", 1),
        ("small", 5),
        ("other", 6),
        ("large", 2),
        ("other", 7),
        ("large", 3),
        ("large", 4),
    ]


class Counted(dict[str, Any]):
    """Counts the lanes that are looked at."""

    looks = 0

    @override
    def items(self) -> Any:
        for item in super().items():
            self.looks += 1
            yield item


def test_a_job_of_thousands_of_partitions_is_found_at_once() -> None:
    """After a start each partition has one: a look at all of them, for each, took a minute of CPU."""
    queue: UploadQueue[str, int] = UploadQueue(8)
    lanes = queue._lanes = Counted()
    for number in range(1000):
        queue.replace(f"partition-{number}", [number])
    for number in range(1000):
        assert queue.take() == (f"partition-{number}", number)
        queue.done(f"partition-{number}", number)
    assert lanes.looks <= 8 * 1000


def test_one_partition_never_takes_all_workers() -> None:
    queue: UploadQueue[str, int] = UploadQueue(3)
    queue.replace("large", [1, 2, 3, 4])
    assert drain(queue, 2) == [("large", 1), ("large", 2)]
    queue.replace("small", [9])
    assert queue.take() == ("small", 9), "the third worker is free for somebody else"
    queue.done("large", 1)
    assert queue.take() == ("large", 3)


def test_two_jobs_that_write_the_same_never_run_at_once() -> None:
    queue: UploadQueue[str, tuple[int, int]] = UploadQueue(8, target=lambda job: job[0])
    queue.replace("a", [(0, 71), (100, 5)])
    assert queue.take() == ("a", (0, 71))
    queue.replace("a", [(0, 77), (100, 5)])
    assert queue.take() == ("a", (100, 5)), "the tail grew while it was uploaded: its next upload waits"
    queue.replace("b", [(0, 1)])
    assert queue.take() == ("b", (0, 1)), "another partition's segment of the same base is another"
    queue.done("a", (0, 71))
    assert queue.take() == ("a", (0, 77))


def test_what_runs_is_not_queued_again() -> None:
    queue: UploadQueue[str, int] = UploadQueue(8)
    queue.replace("a", [1, 2])
    assert queue.take() == ("a", 1)
    queue.replace("a", [1, 2, 3])
    assert drain(queue, 2) == [("a", 2), ("a", 3)]


def test_a_failed_partition_waits_and_others_do_not() -> None:
    clock = Clock()
    queue: UploadQueue[str, int] = UploadQueue(8, clock)
    queue.replace("sick", [1])
    assert queue.take() == ("sick", 1)
    queue.done("sick", 1, retry_after=5.0)
    queue.replace("sick", [1])
    queue.replace("well", [2])
    assert queue.take() == ("well", 2)
    clock.now = 5.0
    assert queue.take() == ("sick", 1)


def test_a_back_off_that_ends_between_two_readings_of_the_clock_is_not_missed() -> None:
    """Nobody would wake the only worker again."""
    clock = Clock()
    queue: UploadQueue[str, int] = UploadQueue(1, clock)
    queue.replace("sick", [1])
    assert queue.take() == ("sick", 1)
    queue.done("sick", 1, retry_after=1.0)
    queue.replace("sick", [1])
    clock.readings += [0.99, *[1.01] * 1000]
    taken: list[tuple[str, int] | None] = []
    worker = threading.Thread(target=lambda: taken.append(queue.take()), daemon=True)
    worker.start()
    worker.join(HUNG)
    assert taken == [("sick", 1)]


def test_drop_and_close() -> None:
    queue: UploadQueue[str, int] = UploadQueue(8)
    queue.replace("a", [1, 2])
    assert queue.take() == ("a", 1)
    queue.drop("a")
    assert queue.waiting() == 0
    assert not queue.wait_idle(0.0, running_only=True)
    taker: list[object] = []
    thread = threading.Thread(target=lambda: taker.append(queue.take()))
    thread.start()
    queue.close()
    thread.join(HUNG)
    assert taker == [None]
    queue.done("a", 1)
    assert queue.wait_idle(0.0)
