"""Load, random faults, and the comparison at the end, for any length.

``make soak MINUTES=5 [SEED=n] [KAFKA=3.9.2] [VALUE_BYTES=12000] [SLOTS=2]``; the exit code is 1 if anything is wrong.
Several topics with codecs and transactions on three brokers with an agent each, or with slots that fetch; the store is
reached through a proxy; every fault is repaired before the next, so that what was acknowledged keeps two replicas. An
hour writes some 43 GB below the temporary directory, less with smaller values; they are removed if nothing is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.fixtures import SEED
from tests.support.kafka import KafkaCluster
from tests.support.kafka_broker import KafkaVersion
from tests.support.proxy import Fault, FaultProxy, Rule
from tests.support.s3 import S3Server
from tests.support.waiting import wait_until
from tests.uploader_agent.faults.cluster import (
    await_in_sync,
    await_led,
    create,
    delete,
    describe,
    lagging,
    lead,
    move_log_dir,
    three_brokers,
    topic_id,
)
from tests.uploader_agent.faults.fleet import Fleet, FleetAgent
from tests.uploader_agent.faults.load import Book, Load, make_value, open_transaction, producer
from tests.uploader_agent.faults.oracle import Expected, Verdict, total
from tidemark.store import StoreOptions, open_store

PARTITIONS = 2
SIZE = 12_000
"""Bytes of a value, unless another size is asked for."""

SEGMENT_BYTES = str(1 << 20)
"""A broker has each segment's file open, and may open some 20,000: in an hour, it gets 7,000 of this size."""

FRESHNESS = {"decided": "3s", "packed|again": "9s"}
"""What of the topics is packed: of two, nothing is."""

FETCHES = 120.0
"""Seconds after which a follower that is not in sync does not fetch any more."""

LONG_TRANSACTION = 240.0
"""Seconds that a transaction stays open. The coordinator aborts it after ten minutes."""

TOPICS: dict[str, dict[str, object]] = {
    "plain": {"rate": 100},
    "zipped": {"rate": 60, "compression.type": "zstd"},
    "packed": {"rate": 60, "compression.type": "lz4"},
    "decided": {"rate": 60, "transactional": "soak"},
}
AGAIN = "again"
"""The topic that is deleted and made again."""


class Soak:
    """One run; everything that is random follows from the seed, as far as the machine lets it."""

    def __init__(self, root: Path, cluster: KafkaCluster, s3: S3Server, seed: int, size: int, slots: int) -> None:
        self.cluster, self.s3, self.size = cluster, s3, size
        self.rng = random.Random(seed)
        raw = open_store("s3://raw", StoreOptions(endpoint_url=s3.endpoint, path_style=True))
        self.proxy = FaultProxy(s3.endpoint, random.Random(seed))
        self.fleet = Fleet(
            root / "fleet",
            cluster,
            s3,
            raw,
            "soak",
            [*TOPICS, AGAIN],
            endpoint=self.proxy.endpoint,
            freshness=FRESHNESS,
            slots=slots,
        )
        self.books = {topic: Book() for topic in TOPICS}
        self.lives: list[tuple[str | None, Book]] = []
        self.done: Counter[str] = Counter()
        self.known = 0
        """What of an agent's log was there before the fault that it is to tell of."""
        self.faults: dict[str, Callable[[], None]] = {
            "agent killed": self.kill_agent,
            "agent killed at a PUT": self.kill_agent_at_put,
            "agent frozen": self.freeze_agent,
            "broker killed": self.kill_broker,
            "broker stopped": self.stop_broker,
            "broker and agent killed": self.kill_both,
            "store killed": self.kill_store,
            "storm between agents and store": self.storm,
            "leader moved": self.move_leader,
            "replica moved to another disk": self.move_disk,
            "topic made again": self.make_again,
        }
        if slots:
            self.faults |= {"spool lost": self.lose_spool, "slot doubled": self.double_slot}
        else:
            self.faults |= {"disk unreadable for the agent": self.fail_disk, "disk away": self.lose_disk}

    def run(self, seconds: float) -> list[Verdict]:
        """Faults until the time is over, and one at least; then the comparison."""
        replicas = [[1, 2, 3], [2, 3, 1]]
        for topic in TOPICS:
            create(self.cluster, topic, replicas, segment_bytes=SEGMENT_BYTES)
        self.new_life()
        loads = [
            Load(self.cluster, topic, self.books[topic], partitions=PARTITIONS, size=self.size, **options)  # type: ignore[arg-type]
            for topic, options in TOPICS.items()
        ]
        end = time.monotonic() + seconds
        with self.proxy, self.fleet.running():
            with contextlib.ExitStack() as stack:
                for load in loads:
                    load.start()
                    stack.callback(load.stop)
                wait_until(lambda: bool(self.fleet.packs()), what="something to be packed, before the first fault")
                order = self.order()
                while not self.done or time.monotonic() < end:
                    with open_transaction(self.cluster, "plain", self.books["plain"], partitions=PARTITIONS):
                        self.harm(order, min(end, time.monotonic() + LONG_TRANSACTION))
            if not self.fleet.slots:  # a spool's segments are not the broker's
                for topic in TOPICS:
                    self.fleet.await_rotated(topic, PARTITIONS)
                self.fleet.await_rotated(AGAIN)
            self.fleet.settle()
        return self.verdicts()

    def harm(self, order: Iterator[str], end: float) -> None:
        """One fault after another until ``end``, by the monotonic clock; one at least."""
        for name in order:
            self.faults[name]()
            self.done[name] += 1
            self.quiet()
            if time.monotonic() > end:
                return

    def order(self) -> Iterator[str]:
        """Each kind once before any comes again."""
        while True:
            yield from self.rng.sample(sorted(self.faults), len(self.faults))

    def verdicts(self) -> list[Verdict]:
        """On all topics, and all lives of the one that was made again."""
        found = [one for topic in TOPICS for one in self.fleet.judge(topic, self.books[topic], PARTITIONS)]
        for identity, book in self.lives[:-1]:
            due = Expected(high=book.truth(0).end)
            with contextlib.suppress(AssertionError):  # no agent had seen that life before it ended
                found += self.fleet.judge(AGAIN, book, expected=due, identity=identity)
        return [*found, *self.fleet.judge(AGAIN, self.lives[-1][1])]

    def quiet(self) -> None:
        """Let everything come back, so that each acknowledged record keeps two replicas."""
        for topic in (*TOPICS, AGAIN):
            try:
                await_in_sync(self.cluster, topic, 3, timeout=FETCHES)
            except TimeoutError:
                self.restart_lagging(topic)
                await_in_sync(self.cluster, topic, 3)
        time.sleep(self.rng.uniform(0.2, 2.0))

    def restart_lagging(self, topic: str) -> None:
        """A follower of 3.9.2 that meets an index which a move between disks has closed gives its replica up."""
        for node in sorted(lagging(self.cluster, topic)):
            self.done["broker restarted that had given up"] += 1
            self.cluster.brokers[node - 1].stop()
            self.cluster.brokers[node - 1].start()

    def agent(self) -> FleetAgent:
        return self.rng.choice(list(self.fleet.agents.values()))

    def kill_agent(self) -> None:
        agent = self.agent()
        agent.kill()
        time.sleep(self.rng.uniform(0, 2))
        agent.start()

    def kill_agent_at_put(self) -> None:
        agent = self.agent()
        agent.kill()
        when, suffix = self.rng.choice(["before", "after"]), self.rng.choice([".log", ".manifest.json", "offset.wm"])
        agent.start(plan=agent.plan(when=when, suffix=suffix, n=self.rng.randint(1, 3)))
        agent.await_end(10)
        agent.kill()
        agent.start()

    def freeze_agent(self) -> None:
        """Leaders change meanwhile."""
        agent = self.agent()
        agent.send(signal.SIGSTOP)
        self.move_leader()
        time.sleep(self.rng.uniform(0, 3))
        agent.send(signal.SIGCONT)

    def lose_spool(self) -> None:
        agent = self.agent()
        agent.kill()
        agent.lose_spool()
        agent.start()

    def fail_disk(self) -> None:
        """An agent cannot read a disk of its broker, which has read ``meta.properties`` at its start."""
        agent = self.agent()
        meta = self.rng.choice(agent.broker.log_dirs) / "meta.properties"
        away = meta.parent.with_name(f"{meta.parent.name}-{meta.name}")
        with self.told(agent):
            meta.rename(away)
            self.await_told(agent, "log_dir_unreadable")
            time.sleep(self.rng.uniform(0, 10))
            away.rename(meta)

    def lose_disk(self) -> None:
        """A broker's second disk is away, also for its agent; a broker gets it back by a restart."""
        agent = self.agent()
        disk = agent.broker.log_dirs[1]
        away = disk.with_name(f"{disk.name}-away")
        with self.told(agent):
            disk.rename(away)
            left = self.rng.choice(["nothing", "a file", "a directory"])
            if left == "a file":
                disk.touch()
            elif left == "a directory":
                disk.mkdir()
            self.await_told(agent, "log_dir_unreadable")
            time.sleep(self.rng.uniform(0, 10))
            agent.broker.kill()
            if disk.is_dir():
                shutil.rmtree(disk)
            disk.unlink(missing_ok=True)
            away.rename(disk)
            agent.broker.start()

    @contextlib.contextmanager
    def told(self, agent: FleetAgent) -> Iterator[None]:
        """A block after which the agent reads its disks again."""
        self.known = len(agent.text())
        yield
        self.await_told(agent, "trouble_over")

    def await_told(self, agent: FleetAgent, event: str) -> None:
        wait_until(lambda: event in agent.text()[self.known :], what=f"{event} of the agent {agent.broker.node_id}")

    def double_slot(self) -> None:
        """Two agents of one slot, as after a network that was cut; leaders change meanwhile."""
        double = self.agent().double()
        double.start()
        try:
            double.await_started()
            self.move_leader()
            time.sleep(self.rng.uniform(1, 8))
        finally:
            self.rng.choice([double.stop, double.kill])()

    def kill_broker(self) -> None:
        broker = self.agent().broker
        broker.kill()
        time.sleep(self.rng.uniform(0, 3))
        broker.start()

    def stop_broker(self) -> None:
        broker = self.agent().broker
        broker.stop()
        time.sleep(self.rng.uniform(0, 2))
        broker.start()

    def kill_both(self) -> None:
        agent = self.agent()
        agent.broker.kill()
        agent.kill()
        agent.broker.start()
        agent.start()

    def kill_store(self) -> None:
        self.s3.kill()
        time.sleep(self.rng.uniform(0, 3))
        self.s3.start()

    def storm(self) -> None:
        """Some kinds of what a proxy can do to requests, often."""
        kinds = self.rng.sample(sorted(Fault), 4)
        self.proxy.rules = [Rule(kind, self.rng.uniform(0.02, 0.2)) for kind in kinds]
        time.sleep(self.rng.uniform(1, 5))
        self.proxy.rules = ()

    def move_leader(self) -> None:
        topic, partition = self.rng.choice(list(TOPICS)), self.rng.randrange(PARTITIONS)
        lead(self.cluster, topic, partition, self.rng.choice(describe(self.cluster, topic)[partition].replicas))

    def move_disk(self) -> None:
        move_log_dir(self.cluster, self.rng.choice(list(TOPICS)), self.rng.randrange(PARTITIONS), self.agent().broker)

    def make_again(self) -> None:
        delete(self.cluster, AGAIN)
        self.new_life()

    def new_life(self) -> None:
        """The topic that is made again, with as much as rolls a few segments."""
        create(self.cluster, AGAIN, [[3, 1, 2]], segment_bytes=SEGMENT_BYTES)
        book, client = Book(), producer(self.cluster)
        for _ in range(300 * SIZE // self.size):
            value = make_value(self.size)
            client.produce(AGAIN, value, partition=0, on_delivery=book.note(0, None, value))
            client.poll(0)
        client.flush(60)
        await_led(self.cluster, AGAIN, 1)
        self.lives.append((topic_id(self.fleet.log(AGAIN)), book))

    def summary(self) -> str:
        books = [*self.books.values(), *(book for _, book in self.lives)]
        acknowledged, refused = sum(book.acknowledged for book in books), sum(book.refused for book in books)
        faults = ", ".join(f"{number} x {what}" for what, number in sorted(self.done.items()))
        requests = ", ".join(f"{number} x {what}" for what, number in sorted(self.proxy.counts().items()))
        tried = f"{sum(self.done.values())} faults ({faults})\nrequests hit: {requests or 'none'}"
        return f"{tried}\nrecords: {acknowledged} acknowledged, {refused} refused"


def soak(
    root: Path, cluster: KafkaCluster, s3: S3Server, seconds: float, seed: int, size: int = SIZE, slots: int = 0
) -> list[str]:
    """Run, print, and return what is wrong."""
    os.environ.update(s3.env())  # for this process's own client
    run = Soak(root, cluster, s3, seed, size, slots)
    agents = f"{slots} slots" if slots else "an agent beside each broker"
    say(f"soak: seed {seed}, {seconds:g} s, Kafka {cluster.version}, {agents}")
    verdicts = run.run(seconds)
    problems = [problem for verdict in verdicts for problem in verdict.problems]
    packs = run.fleet.packs()
    problems += [f"{key} was written twice" for key, count in packs.items() if count > 1]
    say(f"tried: {run.summary()}\njudged: {total(verdicts)}, {len(packs)} packs\nwrong: {len(problems)}")
    return problems


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--value-bytes", type=int, default=SIZE)
    parser.add_argument("--version", choices=("4.3.1", "3.9.2"), default="4.3.1")
    parser.add_argument("--slots", type=int, default=0, help="fetch, with so many agents")
    chosen = parser.parse_args()
    version: KafkaVersion = chosen.version
    with contextlib.ExitStack() as stack:
        root = Path(tempfile.mkdtemp(prefix="tidemark-soak-"))
        try:
            s3 = stack.enter_context(S3Server(root / "s3"))
            cluster = stack.enter_context(three_brokers(root / "kafka", version))
            problems = soak(root, cluster, s3, 60 * chosen.minutes, chosen.seed, chosen.value_bytes, chosen.slots)
        except Exception:  # noqa: BLE001 - whatever it is, it is shown with the seed
            say(f"{traceback.format_exc()}\nit ended before its time; logs and data are in {root}; seed {chosen.seed}")
            return 1
    if problems:
        say("\n".join([*problems[:50], f"logs and data are in {root}; repeat with SEED={chosen.seed}"]))
        return 1
    shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
