"""Groups: members that come and go, and members that are killed. Together they get every record."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kafka import ConsumerRebalanceListener, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import CommitFailedError, KafkaTimeoutError, RebalanceInProgressError

from tests.consumer.conftest import VERSIONS
from tests.consumer.world import World, partitions, produce
from tests.support.paths import ROOT
from tests.support.process import ManagedProcess
from tests.support.waiting import HUNG, wait_until
from tidemark import Mode

PARTS = 6
pytestmark = pytest.mark.parametrize("local_world", VERSIONS, indirect=True)


def stored(world: World, topic: str, count: int) -> list[TopicPartition]:
    """A topic with ``count`` records in each partition, of which Kafka has the last third only."""
    world.kafka.create_topic(topic, partitions=PARTS, config=world.small)
    numbers = range(count)
    produce(
        world.kafka.bootstrap, topic, [(part, None, b"%d" % n + bytes(150)) for n in numbers for part in range(PARTS)]
    )
    world.upload(topic)
    with world.consumer(Mode.REMOTE_ONLY) as consumer:
        ends = consumer.end_offsets(partitions(topic, PARTS))
    world.delete_before(topic, {tp.partition: end * 2 // 3 for tp, end in ends.items()})
    return partitions(topic, PARTS)


class Member(threading.Thread):
    """A member of a group, that commits what it has taken note of."""

    def __init__(self, world: World, mode: Mode, topic: str, group: str, assignor: type, seed: int) -> None:
        super().__init__(name=f"member-{seed}")
        self.make: Callable[[], Any] = lambda: world.consumer(
            mode,
            group_id=group,
            partition_assignment_strategy=[assignor],
            enable_auto_commit=False,
            max_poll_records=20,
            heartbeat_interval_ms=200,
            session_timeout_ms=10_000,
        )
        self.topic = topic
        self.chance = random.Random(seed)
        self.taken: dict[TopicPartition, list[int]] = defaultdict(list)
        self.breaks: list[str] = []
        self.stopped = threading.Event()
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopped.is_set():
                self.live(self.chance.uniform(1.0, 3.0))
        except BaseException as error:  # noqa: BLE001  # told to the test, which runs in another thread
            self.failed = error

    def live(self, seconds: float) -> None:
        """Join, read and commit for a while, and leave."""
        last: dict[TopicPartition, int] = {}

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
            def on_partitions_revoked(self, revoked: Any) -> None:
                for tp in revoked:
                    last.pop(tp, None)

            def on_partitions_assigned(self, assigned: Any) -> None:
                for tp in assigned:
                    last.pop(tp, None)

        with self.make() as consumer:
            consumer.subscribe([self.topic], listener=Listener())
            until = time.monotonic() + seconds
            while time.monotonic() < until and not self.stopped.is_set():
                for tp, records in consumer.poll(timeout_ms=50).items():
                    offsets = [record.offset for record in records]
                    if offsets != list(range(last.get(tp, offsets[0]), last.get(tp, offsets[0]) + len(offsets))):
                        self.breaks.append(f"{tp}: {offsets} after {last.get(tp)}")
                    last[tp] = offsets[-1] + 1
                    self.taken[tp] += offsets
                # A commit that falls into a rebalance fails, as with Kafka: the records come again.
                with suppress(CommitFailedError, RebalanceInProgressError, KafkaTimeoutError):
                    consumer.commit(timeout_ms=2000)


@pytest.mark.essential
@pytest.mark.parametrize(
    ("mode", "assignor"),
    [(Mode.REMOTE_PREFERRED, CooperativeStickyAssignor), (Mode.KAFKA_PREFERRED, RangePartitionAssignor)],
    ids=["cooperative", "eager"],
)
def test_members_come_and_go(local_world: World, mode: Mode, assignor: type, rng: random.Random, full: bool) -> None:
    """Three members join and leave at random: within an assignment offsets follow one another, and none is left out."""
    topic = f"group-{mode.lower()}-{local_world.folder.name}"
    count = 4000 if full else 500
    tps = stored(local_world, topic, count)
    members = [Member(local_world, mode, topic, f"g-{topic}", assignor, rng.randrange(10**6)) for _ in range(3)]
    for member in members:
        member.start()

    def complete() -> bool:
        for member in members:
            if member.failed is not None:
                raise member.failed
        return all(set().union(*(set(member.taken[tp]) for member in members)) == set(range(count)) for tp in tps)

    try:
        wait_until(complete, what="every record to come to a member", interval=0.2)
    finally:
        for member in members:
            member.stopped.set()
        for member in members:
            member.join(HUNG)
    assert [line for member in members for line in member.breaks] == []


@pytest.mark.parametrize("mode", [pytest.param(Mode.REMOTE_ONLY, marks=pytest.mark.full), Mode.KAFKA_PREFERRED])
def test_a_killed_member_loses_nothing(local_world: World, mode: Mode, rng: random.Random, full: bool) -> None:
    """Kill -9, over and over: the next process goes on from the last commit, which never covers what was not taken."""
    topic = f"kill-{mode.lower()}-{local_world.folder.name}"
    count = 3000 if full else 300
    tps = stored(local_world, topic, count)
    with local_world.consumer(Mode.REMOTE_ONLY) as consumer:
        ends = consumer.end_offsets(tps) if mode is Mode.REMOTE_ONLY else dict.fromkeys(tps, count)
    out = local_world.folder / "taken"
    arguments = [
        local_world.kafka.bootstrap,
        local_world.place.url,
        local_world.cluster,
        topic,
        f"g-{topic}",
        mode,
        str(out),
    ]
    for life in range(12 if full else 2):
        member = ManagedProcess(
            "member",
            [sys.executable, "-m", "tests.consumer.member", *arguments],
            log=local_world.folder / f"member-{life}.log",
            cwd=ROOT,
        )
        before = len(taken(out))
        member.start()
        try:
            wanted = before + rng.randrange(20, 200)
            total = sum(ends.values())
            member.wait_until(lambda wanted=wanted, total=total: len(taken(out)) >= min(wanted, total))  # type: ignore[misc]
        finally:
            member.kill()
    with local_world.consumer(mode, topic, group_id=f"g-{topic}", session_timeout_ms=6000) as consumer:
        committed = {tp: consumer.committed(tp) or 0 for tp in tps}
        for tp, offset in committed.items():
            got = {at for partition, at, _ in taken(out) if partition == tp.partition}
            assert set(range(offset)) <= got, f"{tp}: committed {offset} covers what nobody took"
        rest: dict[TopicPartition, list[int]] = defaultdict(list)
        until = time.monotonic() + 60
        while any(committed[tp] + len(rest[tp]) < end for tp, end in ends.items()) and time.monotonic() < until:
            for tp, records in consumer.poll(timeout_ms=200).items():
                rest[tp] += [record.offset for record in records]
    for tp, end in ends.items():
        assert rest[tp] == list(range(committed[tp], end)), tp
    assert all(offset == number for _, offset, number in taken(out))


def taken(out: Path) -> list[tuple[int, int, int]]:
    """(partition, offset, number in the value) of each whole line."""
    if not out.exists():
        return []
    lines = out.read_text(encoding="utf-8").split("\n")[:-1]
    found = []
    for line in lines:
        partition, offset, number = map(int, line.split())
        found.append((partition, offset, number))
    return found
