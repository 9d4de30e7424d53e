"""What bounds the bytes and the uploads in flight."""

from __future__ import annotations

import random
import threading

from tests.support.waiting import HUNG
from uploader_agent.observability.metrics import Metrics
from uploader_agent.scheduling.throttle import Bandwidth, StoreTraffic
from uploader_agent.scheduling.workers import UploadQueue

MIB = 1 << 20


class Clock:
    """Stands still until told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def simulate(bandwidth: Bandwidth, clock: Clock, uploads: dict[str, int]) -> dict[str, float]:
    """When each of ``uploads`` (their sizes by name) is through, if all start at once and send as they are let."""
    left, wakes, ends = dict(uploads), dict.fromkeys(uploads, 0.0), dict[str, float]()
    while left:
        name = min(left, key=lambda one: wakes[one])
        clock.now = wakes[name]
        if not left[name]:
            ends[name] = clock.now
            del left[name]
            continue
        size, wait = bandwidth.take(left[name])
        left[name] -= size
        wakes[name] = clock.now + wait
    return ends


def test_the_cap_holds_over_all_uploads(rng: random.Random) -> None:
    clock = Clock()
    uploads = {str(number): rng.randrange(1, 4 * MIB) for number in range(20)}
    ends = simulate(Bandwidth(MIB, clock), clock, uploads)
    assert max(ends.values()) >= (sum(uploads.values()) - 256 * 1024) / MIB
    assert max(ends.values()) <= sum(uploads.values()) / MIB


def test_uploads_share_and_a_small_one_does_not_wait_for_a_large_one() -> None:
    clock = Clock()
    ends = simulate(Bandwidth(MIB, clock), clock, {"1 GiB": 1 << 30, "small": MIB, "same": MIB})
    assert ends["small"] <= 3.2, "three share a MiB a second"
    assert abs(ends["small"] - ends["same"]) < 0.2
    assert ends["1 GiB"] > 1000, "seed: it has gone on all the time"


def test_small_requests_never_wait_and_are_paid_for() -> None:
    bandwidth = Bandwidth(MIB, Clock())
    for _ in range(100):
        bandwidth.charge(50_000)
    size, wait = bandwidth.take(MIB)
    assert (size, wait) == (int(MIB * 0.05), 5_000_000 / MIB)


def test_what_goes_first_does_not_wait_for_segments_and_is_paid_for() -> None:
    """Packs go before a backlog of seals; only what the thread sends that said so."""
    traffic = StoreTraffic(Metrics(), MIB)
    traffic.admit(8 * MIB, 8 * MIB)
    with traffic.first():
        assert traffic.admit(8 * MIB, 8 * MIB) == 8 * MIB, "at once, and all of it"
        waited: list[int] = []
        other = threading.Thread(target=lambda: waited.append(traffic.admit(8 * MIB, 8 * MIB)), daemon=True)
        other.start()
        other.join(0.05)
        assert waited == [], "a segment waits for what has gone first"
        traffic.close()
        other.join(HUNG)
    assert waited[0] < 8 * MIB


def test_nobody_hangs_in_the_cap_when_the_agent_ends() -> None:
    traffic = StoreTraffic(Metrics(), 1 << 16)
    started = threading.Event()

    def send() -> None:
        for _ in range(1000):
            traffic.admit(1 << 20, 1 << 30)
            started.set()

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    assert started.wait(HUNG)
    assert thread.is_alive(), "seed: a thousand grains of 4 KiB take a minute"
    traffic.close()
    thread.join(HUNG)
    assert not thread.is_alive()


def started(queue: UploadQueue[str, int], count: int) -> list[tuple[str, int]]:
    found = [queue.take() for _ in range(count)]
    return [one for one in found if one is not None]


def filled(partitions: int) -> UploadQueue[str, int]:
    queue: UploadQueue[str, int] = UploadQueue(8)
    for number in range(partitions):
        queue.replace(str(number), [number])
    return queue


def test_slow_down_halves_once_for_all_that_were_under_way() -> None:
    queue = filled(200)
    jobs = started(queue, 8)
    assert queue.limit == 8
    for at, job in jobs[:4]:
        queue.done(at, job, 1.0, slow_down=True)
    assert queue.limit == 4, "they went off together, and say one thing"
    for at, job in jobs[4:]:
        queue.done(at, job)
    assert queue.limit == 4, "what started before says nothing of the new limit"


def test_the_limit_holds_and_goes_down_to_one_and_back_up() -> None:
    queue = filled(200)
    while queue.limit > 1:
        [(at, job)] = started(queue, 1)
        queue.done(at, job, 1.0, slow_down=True)
    [(at, job)] = started(queue, 1)
    blocked: list[object] = []
    thread = threading.Thread(target=lambda: blocked.append(queue.take()))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive(), "one at a time"
    queue.done(at, job)
    thread.join(HUNG)
    assert queue.limit == 2, "a round of one"
    [(at, job)] = [one for one in blocked if isinstance(one, tuple)]
    queue.done(at, job)
    for limit in range(2, 8):
        assert queue.limit == limit
        rounds = limit if limit > 2 else 1  # one of the second round is done already
        for at, job in started(queue, rounds):
            queue.done(at, job)
    assert queue.limit == 8
    for at, job in started(queue, 8):
        queue.done(at, job)
    assert queue.limit == 8, "never above what is configured"


def test_a_failure_of_another_kind_changes_nothing() -> None:
    queue = filled(20)
    for at, job in started(queue, 8):
        queue.done(at, job, 1.0)
    assert queue.limit == 8


def test_another_limit_while_running() -> None:
    queue = filled(200)
    queue.resize(4)
    assert queue.limit == 4
    [(at, job)] = started(queue, 1)
    queue.done(at, job, 1.0, slow_down=True)
    queue.resize(16)
    assert queue.limit == 2, "the store's word stands"
