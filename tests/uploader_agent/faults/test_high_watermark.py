"""A high watermark that stays below the log end until followers fetch: what lies between waits, and then goes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

import pytest

from tests.support.kafka import KafkaCluster
from tests.support.ports import HOST, free_port
from tests.support.waiting import HUNG, wait_until
from tests.uploader_agent.faults.cluster import await_in_sync, create
from tests.uploader_agent.faults.conftest import MakeFleet
from tests.uploader_agent.faults.fleet import assert_exact
from tests.uploader_agent.faults.load import Book, send


@contextmanager
def frozen_followers(cluster: KafkaCluster) -> Iterator[None]:
    """Broker 2 fetches nothing, and stays in sync: the controller, which would end that, is stopped first."""
    assert cluster.coordinator is not None
    stopped = [cluster.coordinator, cluster.brokers[1].process]
    for process in stopped:
        process.send(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in reversed(stopped):
            process.send(signal.SIGCONT)


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.full)])
def test_a_tail_that_followers_have_not_fetched(kraft3: KafkaCluster, make_fleet: MakeFleet, rounds: int) -> None:
    """It is looked at while nothing of it may be stored, and nothing is appended after that look."""
    name, book, port = f"unfetched-{rounds}", Book(), free_port()
    create(kraft3, name, [[1, 2]], min_insync_replicas="1")
    fleet = make_fleet(kraft3, name, [name], nodes=[1], tail_after="500ms", http={"port": port})

    def reasons() -> list[str]:
        with urlopen(f"http://{HOST}:{port}/waiting", timeout=HUNG) as answer:
            return [one["reason"] for one in json.load(answer)["partitions"]]

    with fleet.running():
        fleet.agents[1].await_started()
        for sent in range(5, 5 * rounds + 1, 5):
            with frozen_followers(kraft3):
                send(kraft3, name, book, 5, acks="1", **{"enable.idempotence": False})
                wait_until(lambda: any("followers have not" in one for one in reasons()), what="the agent to see it")
                assert fleet.next_offset(name, replica=1) < sent
            wait_until(lambda end=sent: fleet.stored_end(name) == end, what="the tail to be stored")  # type: ignore[misc]
        wait_until(lambda: not reasons(), what="nothing to wait")
        await_in_sync(kraft3, name, 2)
        fleet.settle()
    assert_exact(fleet.judge(name, book), f"{rounds} tails below which the high watermark stood")
