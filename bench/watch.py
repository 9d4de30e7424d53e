"""A look of the watch at 1,000 topics of 16 partitions on 12 brokers: seconds and requests, on a directory and on S3.

The tables are real, with one commit each, and empty: a look reads ledgers and logs, never rows. Requests are those of
our own client; opening a table takes delta-rs some more.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from bench.data import HOME
from bench.measure import Row
from tests.plugins.world import CLUSTER, commit, entry, state
from tests.support.s3 import S3Server
from tidemark.concurrency import in_parallel
from tidemark.endpoints import resolver_of
from tidemark.formats.keys import ControlKeys
from tidemark.formats.ledger import Ledger
from tidemark.formats.watermark_index import WatermarkIndex
from tidemark.monitoring.incident_store import watch
from tidemark.store import Store, open_store
from tidemark.store.local import LocalStore
from tidemark.store.s3 import S3Store
from tidemark.table.delta_table import TopicTable, committed_ledger, open_topic_table
from tidemark.table.evidence import EvidenceRow, evidence_key, to_parquet
from tidemark.timestamps import utc_now
from tidemark.topics import Deployment

TOPICS = 1000
PARTITIONS = 16
BROKERS = 12
_MINUTE = timedelta(minutes=1)
_ATTEMPT = 7


def measure(s3: S3Server) -> list[Row]:
    """Both stores; ``s3`` is the one that the environment leads to."""
    store = {"endpoint_url": s3.endpoint, "region": "us-east-1", "path_style": True}
    local = _deployment(raw={"url": f"file://{HOME}/watched"}, lake=f"file://{HOME}/watched")
    remote = _deployment(raw={"url": "s3://raw/watched"}, lake="s3://lake/watched", store=store)
    return [*_rows("watch", local, local), *_rows("watch on S3", remote, local)]


def _deployment(**fields: Any) -> Deployment:
    names = [f"topic-{number:04}" for number in range(TOPICS)]
    topics = [{"topic": name, "cluster": CLUSTER, "table": name} for name in names]
    return Deployment.model_validate({"watch": {"agent_gone": "1d"}, "topics": topics, **fields})


def _rows(where: str, deployment: Deployment, local: Deployment) -> list[Row]:
    """``local`` is where the first table is made that the others are copies of."""
    world = _World(deployment)
    world.fill(open_topic_table(local, local.topics[0]))
    now = utc_now()
    found: list[Row] = []

    def look(what: str, minute: int) -> None:
        with _counted() as counts:
            started, cpu = time.perf_counter(), time.process_time()
            watch(deployment, CLUSTER, now + minute * _MINUTE)
            seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        told = f"{cpu:.1f} CPU-s; " + ", ".join(f"{counts[name]} {name.upper()}" for name in ("list", "get", "put"))
        found.append(Row(where, f"look at {TOPICS} topics, {what}", "s", (seconds,), told))

    look("the first, by the tables' own logs", 0)
    look("all idle", 1)
    world.land(100)
    look("all with a new commit", 2)
    world.upload(300)
    look("all with something waiting", 3)
    look("all late, by the tables' own logs", 30)
    return found


class _World:
    """The topics' objects."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._tables = [open_topic_table(deployment, one) for one in deployment.topics]

    def fill(self, first: TopicTable) -> None:
        """One commit each: that of ``first``, copied."""
        self.upload(0)
        ledger = committed_ledger(first)
        if not ledger.n:
            ledger = commit(first, *(state(number, 0) for number in range(PARTITIONS)), attempt=_ATTEMPT)
        log = f"{first.keys.root}/_delta_log/"
        objects = {info.key: first.store.get(info.key).body for info in first.store.list(log)}

        def copy(table: TopicTable) -> None:
            for key, body in objects.items():
                table.store.put(key.replace(first.keys.root, table.keys.root, 1), body)
            self._leave(table, _of(ledger, table))

        in_parallel(copy, self._tables)

    def land(self, end: int) -> None:
        """Runs that land up to ``end``, without their commits in the tables' logs."""

        def one(table: TopicTable) -> None:
            key = table.keys.deployment.committed_ledger(table.topic.topic)
            before = Ledger.from_bytes(table.store.get(key).body, key)
            states = tuple(state(number, end) for number in range(PARTITIONS))
            after = before.model_copy(
                update={
                    "n": 2,
                    "attempt": 8,
                    "partitions": states,
                    "parent": before.as_parent(),
                    "committed_at": utc_now(),
                }
            )
            rows = [EvidenceRow(0, number, 0, end, "landed", end, file="file") for number in range(PARTITIONS)]
            body = to_parquet(rows, configuration="c", code="c", attempt=8)
            table.store.put(evidence_key(table, 8), body)
            self._leave(table, after)

        self.upload(end)
        in_parallel(one, self._tables)

    def upload(self, end: int) -> None:
        """What agents say."""
        default = resolver_of(self._deployment.raw).default()
        store = open_store(default.store, self._deployment.store)
        topics = [one.topic.topic for one in self._tables]
        for broker in range(BROKERS):
            led = [(topic, part) for topic in topics for part in range(PARTITIONS) if part % BROKERS == broker]
            index = WatermarkIndex(
                cluster=CLUSTER,
                broker=broker,
                agent_version="bench",
                written_at=utc_now(),
                entries=tuple(entry(topic, part, end) for topic, part in led),
            )
            store.put(ControlKeys(default.prefix, CLUSTER).index(broker), index.to_bytes())

    @staticmethod
    def _leave(table: TopicTable, ledger: Ledger) -> None:
        table.store.put(table.keys.ledger(ledger.n, ledger.attempt), ledger.to_bytes())
        table.store.put(table.keys.deployment.committed_ledger(table.topic.topic), ledger.to_bytes())


def _of(ledger: Ledger, table: TopicTable) -> Ledger:
    return ledger.model_copy(update={"topic": table.topic.topic, "table": table.topic.table})


@contextmanager
def _counted() -> Iterator[Counter[str]]:
    """Requests by kind while the context lasts."""
    counts: Counter[str] = Counter()
    patches = [_counting(cls, name, counts) for cls in (LocalStore, S3Store) for name in ("get", "list", "put")]
    for one in patches:
        one.start()
    try:
        yield counts
    finally:
        for one in patches:
            one.stop()


def _counting(cls: type, name: str, counts: Counter[str]) -> Any:
    plain = getattr(cls, name)

    def method(self: Store, *arguments: Any, **options: Any) -> Any:
        counts[name] += 1
        return plain(self, *arguments, **options)

    return patch.object(cls, name, method)
