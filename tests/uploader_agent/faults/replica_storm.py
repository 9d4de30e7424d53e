"""Random faults around a copy of two topics on real brokers, and the comparison of its spool with the leaders' logs.

The copy is a process of its own, which reaches the brokers through a proxy, and is killed as they are.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from kafka import TopicPartition as KafkaPartition
from kafka.errors import KafkaError
from kafka.record import MemoryRecords

from tests.support.kafka import KafkaCluster
from tests.support.kafka_broker import Broker
from tests.support.paths import ROOT
from tests.support.process import ManagedProcess
from tests.support.socks import SocksProxy
from tests.support.waiting import wait_until
from tests.uploader_agent.faults.cluster import (
    await_leader,
    create,
    describe,
    epochs,
    folder,
    high_watermark,
    lead,
    leader_of,
    reassign,
)
from tests.uploader_agent.faults.load import Book, Load, send
from tests.uploader_agent.faults.test_own_replica import assert_replica, cleaned_equal, copied, small
from tests.uploader_agent.intake.scripted import batches_in, header_of
from tests.uploader_agent.intake.test_near_and_slow import set_quota

REPLICAS = [[1, 2], [2, 3, 1], [3]]
"""Of the plain topic: one that is elected uncleanly, one that others take over, and one that nobody else has."""

WEIGHTS = {"elect": 4, "delete_records": 4, "kill_copy": 4, "reset": 4, "throttle": 3, "rewrite": 3, "stop_broker": 2}
"""How often a kind of fault comes for each of the others."""

JUDGED_AFTER = 20


class Storm:
    """One run; everything that is random follows from ``rng``, as far as brokers let it."""

    def __init__(self, root: Path, cluster: KafkaCluster, proxy: SocksProxy, rng: random.Random) -> None:
        self.cluster, self.proxy, self.rng, self._root = cluster, proxy, rng, root
        self.plain, self.compacted = (f"storm-{kind}-{cluster.version}" for kind in ("plain", "compacted"))
        self.spool = root / "spool"
        self.done: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self._deleted = [0] * len(REPLICAS)
        """The log start that each partition has had: what another leader still has below it is not compared."""
        faults: list[Callable[[], None]] = [
            self.elect, self.elect_uncleanly, self.lose_power, self.delete_records, self.kill_copy, self.reset,
            self.throttle, self.rewrite, self.stop_broker, self.kill_broker,
        ]  # fmt: skip
        self._faults = {fault.__name__: fault for fault in faults}
        self._config, self._log = root / "client.yaml", root / "copy.log"
        self._config.write_text(yaml.safe_dump({"proxy_url": proxy.url}))
        self._copy = self._copier()

    def run(self, count: int) -> None:
        settings = small(self.cluster, min_insync_replicas="1", unclean_leader_election_enable="true")
        create(self.cluster, self.plain, [[nodes[0]] for nodes in REPLICAS], **settings)
        for partition, nodes in enumerate(REPLICAS):  # a topic is made with as many of each partition
            reassign(self.cluster, self.plain, partition, nodes)
        compacting = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01", "segment_ms": "2000"}
        create(self.cluster, self.compacted, [[1, 2, 3]], **small(self.cluster, **compacting))
        order, plain = self._order(), dict[str, Any]({"enable.idempotence": False})
        for begun in range(0, count, JUDGED_AFTER):
            load = Load(self.cluster, self.plain, Book(), partitions=3, rate=60, size=1500, **plain)
            load.start()
            self._copy.start()
            try:
                for _ in range(min(JUDGED_AFTER, count - begun)):
                    name = next(order)
                    self._faults[name]()
                    self.done[name] += 1
                    self._note_starts()
                    assert self._copy.running, f"the copy has ended after {name}: {self._copy.log_tail()}"
                self._copy.send(signal.SIGTERM)
                # It may have been told before it listened.
                assert self._copy.wait(60) in {0, 1, -signal.SIGTERM}, self._copy.log_tail()
            finally:
                self._copy.stop()
                load.stop()
            self.judge()
        leader = self._place(self.compacted)
        wait_until(
            lambda: cleaned_equal(leader, leader, self._root, self.cluster, self.compacted), what="an equal new copy"
        )

    def judge(self) -> None:
        """Compare the spool with the leaders' logs up to the high watermarks, after it was copied to them."""
        # It may wait for a leader, but must not have given up a partition.
        rows = [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]
        assert {row["state"] for row in rows} <= {"following", "proving", "waiting"}, rows
        for topic in (self.plain, self.compacted):
            await_in_sync_all(self.cluster, topic)
            rows = copied(self.cluster, topic, self.spool)
            assert {row.state for row in rows} == {"copied"}, rows
        for partition in range(len(REPLICAS)):
            since = self._deleted[partition]
            self.totals["batches"] += assert_replica(self.cluster, self.plain, self.spool, partition, since=since)
            self.totals["offsets"] += self._offsets(partition)
        mine, leaders = (
            records_in(place) for place in (self.spool / f"{self.compacted}-0", self._place(self.compacted))
        )
        assert leaders.items() <= mine.items(), "a record of the compacted log is not in the spool"
        self.totals["compacted records"] += len(leaders)

    def elect(self) -> None:
        topic, partition = self.rng.choice([(self.plain, 0), (self.plain, 1), (self.compacted, 0)])
        lead(self.cluster, topic, partition, self.rng.choice(describe(self.cluster, topic)[partition].replicas))

    def elect_uncleanly(self) -> None:
        """The follower misses records that are acknowledged, and leads afterwards."""
        leader = self.cluster.brokers[leader_of(self.cluster, self.plain) - 1]
        other = self.cluster.brokers[2 - leader.node_id]
        other.kill()
        wait_until(
            lambda: describe(self.cluster, self.plain)[0].isrs == [leader.node_id], what="the leader to be alone"
        )
        self._send(self.plain, 30)
        self._pause(1)
        leader.kill()
        other.start()
        await_leader(self.cluster, self.plain, other.node_id)
        self._send(self.plain, self.rng.choice((0, 10, 60)))
        self._pause(1)
        self._back(leader)

    def lose_power(self) -> None:
        """Unflushed pages of the only replica are gone, or full of zeros."""
        broker = self.cluster.brokers[2]
        place = folder(broker, self.plain, 2)
        broker.kill()
        log = max(place.glob("*.log"))
        size = log.stat().st_size
        kept = self.rng.randint(size // 2, size)
        os.truncate(log, kept)
        if self.rng.random() < 0.5:
            os.truncate(log, size)
        self._back(broker)

    def delete_records(self) -> None:
        partition = self.rng.randrange(len(REPLICAS))
        start, high = (
            epochs(self._place(self.plain, partition))[0][1],
            high_watermark(self.cluster, self.plain, partition),
        )
        below = self.rng.randint(start, high or start)
        with self.cluster.admin() as admin:
            try:
                admin.delete_records({KafkaPartition(self.plain, partition): below})
            except KafkaError:
                self.totals["DeleteRecords refused"] += 1
        self._deleted[partition] = max(self._deleted[partition], below)

    def kill_copy(self) -> None:
        """Another one goes on, with a near replica or none."""
        self._copy.kill()
        self._copy = self._copier(self.rng.choice(("", "rack-1", "rack-3")))
        self._copy.start()
        self.totals["copies"] += 1

    def reset(self) -> None:
        before = self.proxy.resets
        self.proxy.reset_after(self.rng.choice((0, 3, self.rng.randrange(100_000))))
        wait_until(lambda: self.proxy.resets > before, what="a connection to be reset")

    def throttle(self) -> None:
        set_quota(self.cluster, self.rng.choice((50_000.0, 200_000.0)))
        self._pause(2)
        set_quota(self.cluster, None)

    def rewrite(self) -> None:
        """Records for the cleaner, and batches of one codec."""
        self._send(self.compacted, 150, keys=20, size=1400)
        codec = self.rng.choice(("none", "gzip", "snappy", "lz4", "zstd"))
        self._send(self.plain, 40, partition=1, size=1400, **{"compression.type": codec})

    def stop_broker(self) -> None:
        broker = self.rng.choice(self.cluster.brokers)
        broker.stop()
        self._pause(1)
        self._back(broker)

    def kill_broker(self) -> None:
        broker = self.rng.choice(self.cluster.brokers)
        broker.kill()
        self._pause(1)
        self._back(broker)

    def _order(self) -> Iterator[str]:
        kinds = [name for name in sorted(self._faults) for _ in range(WEIGHTS.get(name, 1))]
        while True:
            yield from self.rng.sample(kinds, len(kinds))

    def _pause(self, most: float) -> None:
        time.sleep(self.rng.uniform(0, most))

    def _send(self, topic: str, count: int, **options: object) -> None:
        send(self.cluster, topic, Book(), count, **options)  # type: ignore[arg-type]

    def _back(self, broker: Broker) -> None:
        broker.start()
        for topic in (self.plain, self.compacted):
            await_in_sync_all(self.cluster, topic)

    def _place(self, topic: str, partition: int = 0) -> Path:
        return folder(self.cluster.brokers[leader_of(self.cluster, topic, partition) - 1], topic, partition)

    def _note_starts(self) -> None:
        """An election may have taken the log back below a start that it had."""
        for partition, deleted in enumerate(self._deleted):
            self._deleted[partition] = min(deleted, epochs(self._place(self.plain, partition))[-1][1])

    def _offsets(self, partition: int) -> int:
        """The offsets of a plain partition, from the log start to the end of the spool: none may be missing."""
        since = max(self._deleted[partition], epochs(self._place(self.plain, partition))[0][1])
        headers = [header_of(raw) for raw in batches_in(self.spool / f"{self.plain}-{partition}")]
        at = since
        for header in headers:
            if header.next_offset > since:
                assert header.base_offset <= at, f"offsets {at} to {header.base_offset} are missing"
                at = header.next_offset
        high = high_watermark(self.cluster, self.plain, partition)
        assert high == at or (high == since and at == since), (
            f"{self.plain}-{partition} ends at {at}, and not at {high}"
        )
        return at - since

    def _copier(self, rack: str = "") -> ManagedProcess:
        command = [sys.executable, "-m", "tests.uploader_agent.intake.topic_copy", "--follow"]
        options: list[str | Path] = ["--bootstrap", self.cluster.bootstrap, "--topic", self.plain, "--to", self.spool]
        more: list[str | Path] = ["--config", self._config, "--rack", rack]
        return ManagedProcess("copy", [*command, *options, *more], log=self._log, cwd=ROOT)


def await_in_sync_all(cluster: KafkaCluster, topic: str) -> None:
    """Wait until all replicas of each partition are in sync."""
    wait_until(
        lambda: all(set(part.isrs) == set(part.replicas) for part in describe(cluster, topic).values()),
        what=f"all replicas of {topic} in sync",
    )


def records_in(place: Path) -> dict[int, tuple[bytes | None, bytes | None]]:
    """Key and value by offset."""
    found: dict[int, tuple[bytes | None, bytes | None]] = {}
    for raw in batches_in(place):
        records = MemoryRecords(raw)
        while (batch := records.next_batch()) is not None:
            found |= {record.offset: (record.key, record.value) for record in batch}
    return found
