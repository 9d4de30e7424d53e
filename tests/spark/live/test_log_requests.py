"""What a landing asks of a table's Delta log, as the S3 server sees it."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.spark.inline import Inline
from tests.spark.live.live_world import LiveWorld
from tests.support.faulty_s3 import proxy
from tests.support.proxy import FaultProxy, Request
from tests.tidemark.kafka_log.build import simple
from tidemark_spark.jobs.running import run_job

__all__ = ["proxy"]

CHECKPOINTS = 5
"""Versions from one to the next in the log of a live topic."""


class LogRequests:
    """Counts the requests of Delta logs that pass the proxy, by their kind."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.counts = Counter[str]()
        proxy.rules = self._note

    def _note(self, request: Request) -> None:
        listing = request.method == "GET" and "list-type=" in request.query
        if "_delta_log" in (request.query if listing else request.path):
            self.counts["LIST" if listing else request.method] += 1


@pytest.fixture
def live(proxy: FaultProxy, tmp_path: Path) -> Iterator[LiveWorld]:
    world = LiveWorld(tmp_path, "orders", "clicks", lake=f"s3://lake/{uuid.uuid4().hex}")
    land(world)
    yield world
    for topic in world.topics.values():
        topic.check()


def land(live: LiveWorld) -> None:
    """One more segment of each topic."""
    for topic in live.topics.values():
        topic.raw.segment([simple(topic.raw.partition().end)])
    live.due()
    assert run_job("land_live", ["--topics", str(live.topics_file), "--cluster", "east"], Inline()) == 0
    assert set(live.statuses().values()) == {"landed"}


def test_a_landing_asks_for_each_object_of_a_log_once(live: LiveWorld, proxy: FaultProxy) -> None:
    """To plan, those that no landing of this machine has read; to commit, a look whether there is more."""
    versions = 2  # the table's creation, and the first commit
    requests, topics = LogRequests(proxy), len(live.topics)
    unread = versions
    for _ in range(2 * CHECKPOINTS):
        requests.counts.clear()
        land(live)
        made = versions % CHECKPOINTS == CHECKPOINTS - 1
        versions += 1
        pointer = 1  # to the last checkpoint: it is replaced, and so never kept
        assert requests.counts["LIST"] == 2 * topics
        assert requests.counts["GET"] == topics * (pointer + unread)
        assert requests.counts["PUT"] == topics * (3 if made else 1)
        unread = 2 if made else 1  # the landing's own version, and its checkpoint
    url, options = live.topics["orders"].table.url, live.topics["orders"].table.delta_options
    assert DeltaTable(url, storage_options=options).version() == versions - 1
