"""Agents without a broker's disk: what brokers answer to the replica of a slot, and its spool.

The replica and its followers are real code, in virtual time as all else. A spool is in real files; what inotify would
tell of it is found by comparing, whenever its only writer asks a broker.
"""

from __future__ import annotations

import heapq
import shutil
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from inotify_simple import flags
from kafka.errors import KafkaError

from tests.uploader_agent.intake.scripted import not_continued
from tests.uploader_agent.simulation.broker import Cluster, Replica
from tests.uploader_agent.simulation.client import Client
from tests.uploader_agent.simulation.clock import Scheduler, Task
from tests.uploader_agent.simulation.disk import LogDir
from tests.uploader_agent.simulation.faults import Faults
from tests.uploader_agent.simulation.oracle import CLUSTER
from tests.uploader_agent.simulation.process import Surroundings
from tests.uploader_agent.simulation.schedule import Fetching
from tests.uploader_agent.simulation.store import SimulatedStore
from tests.uploader_agent.simulation.threads import SimulatedRuntime
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.cluster import FIRST_SLOT
from tidemark.formats.raw.incarnations import topic_id_text
from tidemark.storage import Storage
from uploader_agent.broker.admin import AdminMetadata, BrokerUnavailable, Leader, Led
from uploader_agent.broker.properties import Broker
from uploader_agent.disk.log_dirs import LogDirs
from uploader_agent.intake import fetching
from uploader_agent.intake.fetch_connection import REFUSALS
from uploader_agent.intake.fetching import (
    EpochAsked,
    EpochEnd,
    FetchAnswer,
    FetchedPart,
    PartitionRefused,
    Refusal,
    Result,
    Retention,
    TopicLeaders,
    Wanted,
)
from uploader_agent.intake.metadata import SlotMetadata
from uploader_agent.intake.replica import SlotReplica
from uploader_agent.observability.metrics import Metrics
from uploader_agent.settings import AgentSettings
from uploader_agent.stored.incarnations import Incarnations

Answer = TypeVar("Answer")

FETCH_KINDS = {
    "fetch_lost": 0.05,
    "fetch_throttled": 0.05,
    "fetch_twice": 0.05,
    "batch_cut": 0.1,
    "batch_damaged": 0.05,
    "near_replica": 0.5,
}
"""The faults of Fetch, as :data:`~.faults.KINDS`. A near replica is none, but it may lag, or not have truncated yet."""

_LONGEST_WAIT = 0.5
"""Seconds for which a broker keeps a request that it has no news for."""

_LOST = 10.0
"""Seconds after which a request without an answer has failed."""


class Brokers(fetching.Cluster):
    """The cluster as one process of a slot asks it. ``changed`` is called before anything waits."""

    def __init__(
        self, cluster: Cluster, scheduler: Scheduler, faults: Faults, answer: int, changed: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._scheduler = scheduler
        self._faults = faults
        self._answer_bytes = answer
        self._changed = changed
        self._client = Client(cluster, scheduler, faults)
        self._due: list[FetchAnswer] = []
        self._work: list[tuple[float, int, Coroutine[Any, Any, None]]] = []
        """Work that goes on at a moment."""
        self._count = count()
        self._waiting: Task | None = None

    async def topics(self, names: Collection[str] | None) -> dict[str, TopicLeaders]:
        def told() -> dict[str, TopicLeaders]:
            found: dict[str, TopicLeaders] = {}
            for at, one in self._client.view(what).items():
                if names is None or at.topic in names:
                    topic_id = str(topic_id_text(one.topic_id))
                    topic = found.setdefault(at.topic, TopicLeaders(topic_id, {}))
                    leader = Leader(one.leader, Led(one.leader_epoch, topic_id), one.replicas)
                    found[at.topic] = topic._replace(leaders={**topic.leaders, at.partition: leader})
            return found

        what = f"topics {sorted(names) if names is not None else 'all'}"
        return await self._ask(what, told)

    async def retention(self, names: Collection[str]) -> dict[str, Retention]:
        return await self._ask("retention", lambda: dict.fromkeys(names, Retention(100.0, None)))

    async def epoch_ends(
        self, broker: int, asked: Mapping[TopicPartition, EpochAsked]
    ) -> dict[TopicPartition, EpochEnd | PartitionRefused]:
        def told(at: TopicPartition, question: EpochAsked) -> EpochEnd | PartitionRefused:
            replica = self._leading(at, broker, question.leader_epoch, "epoch end")
            if isinstance(replica, PartitionRefused):
                return replica
            return EpochEnd(*(replica.kept_epochs.end_offset(question.epoch, replica.end) or (-1, -1)))

        what = f"epoch_ends {broker} { {str(at): tuple(one) for at, one in asked.items()} }"
        return await self._ask(what, lambda: {at: told(at, question) for at, question in asked.items()})

    async def log_starts(
        self, broker: int, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | PartitionRefused]:
        def told(at: TopicPartition, epoch: int) -> int | PartitionRefused:
            replica = self._leading(at, broker, epoch, "log start")
            return replica if isinstance(replica, PartitionRefused) else replica.log_start

        what = f"log_starts {broker} { {str(at): epoch for at, epoch in epochs.items()} }"
        return await self._ask(what, lambda: {at: told(at, epoch) for at, epoch in epochs.items()})

    def send(self, broker: int, wanted: Sequence[Wanted]) -> None:
        self._changed()
        faults = self._faults
        what = f"fetch {broker} {[(str(one.tp), one.offset, one.leader_epoch, one.last_epoch) for one in wanted]}"
        if faults.strike("fetch_lost", what):
            lost = FetchAnswer(broker, error=BrokerUnavailable("lost on the way"))
            self._scheduler.call_later(faults.felt(_LOST), lambda: self._deliver([lost]))
        else:
            there = faults.latency("broker_slow", what)
            self._scheduler.call_later(there, lambda: self._answer(broker, wanted, what, waits=True))

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        while True:
            try:
                self._scheduler.sleep(work.send(None))
            except StopIteration as end:
                result: Result = end.value
                return result

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        with suppress(StopIteration):
            moment = self._scheduler.now + work.send(None)
            heapq.heappush(self._work, (moment, next(self._count), work))

    def answers(self, seconds: float) -> list[FetchAnswer]:
        self._changed()
        until = self._scheduler.now + seconds
        if not self._due:
            first = min([until, *(moment for moment, _, _ in self._work[:1])])
            self._waiting = self._scheduler.current
            self._scheduler.park(first - self._scheduler.now)
            self._waiting = None
        while self._work and self._work[0][0] <= self._scheduler.now:
            self.start(heapq.heappop(self._work)[2])
            self._changed()
        due, self._due = self._due, []
        return due

    def _answer(self, broker: int, wanted: Sequence[Wanted], what: str, *, waits: bool) -> None:
        faults, parts = self._faults, list[FetchedPart]()
        for one in wanted:
            parts.append(self._part(one, first=not any(part.records for part in parts)))
        if waits and not any(part.records or part.refused or part.diverges for part in parts):
            self._scheduler.call_later(_LONGEST_WAIT, lambda: self._answer(broker, wanted, what, waits=False))
            return
        answer = FetchAnswer(broker, parts)
        if faults.strike("fetch_throttled", what):
            answer = FetchAnswer(broker, throttled=faults.felt(faults.within(0.1, 3.0)))
        answers = [answer, answer] if faults.strike("fetch_twice", what) else [answer]
        self._scheduler.call_later(faults.latency("broker_slow", what), lambda: self._deliver(answers))

    def _deliver(self, answers: Sequence[FetchAnswer]) -> None:
        self._due += answers
        if self._waiting is not None:
            self._scheduler.wake(self._waiting)

    def _part(self, wanted: Wanted, *, first: bool) -> FetchedPart:
        """As ``ReplicaManager.readFromLog`` reads for a consumer that names the topic by its id."""

        def refused(refusal: Refusal, code: str) -> FetchedPart:
            return FetchedPart(wanted, refused=PartitionRefused(wanted.tp, refusal, code))

        partition = self._cluster.partitions.get(wanted.tp)
        if partition is None or not self._is_of(wanted, partition.kafka_id):
            return refused(Refusal.TOPIC, "UNKNOWN_TOPIC_ID")
        replica = partition.replicas.get(wanted.broker)
        if replica is None or self._faults.strike("partition_error", f"fetch of {wanted.tp}"):
            return refused(Refusal.LEADER, "NOT_LEADER_OR_FOLLOWER")
        if wanted.leader_epoch != replica.leader_epoch:
            newer = wanted.leader_epoch > replica.leader_epoch
            return refused(*((Refusal.LATER, "UNKNOWN_") if newer else (Refusal.LEADER, "FENCED_")))
        start, end, high_watermark = replica.log_start, replica.end, replica.high_watermark
        elsewhere = not_continued(wanted, start, end, replica.kept_epochs, high_watermark)
        if elsewhere is not None:
            return elsewhere
        others = [one for one in partition.replicas.values() if one is not replica]
        near = [one.broker for one in others if one.log_start <= wanted.offset <= one.end]
        if wanted.near and replica.leads and near and self._faults.strike("near_replica", str(wanted.tp)):
            return FetchedPart(wanted, high_watermark=high_watermark, near_replica=near[0], first=first)
        records = self._records(replica, wanted, first=first)
        return FetchedPart(wanted, memoryview(records), high_watermark, first=first)

    def _is_of(self, wanted: Wanted, topic_id: str) -> bool:
        return wanted.topic_id == topic_id

    def _records(self, replica: Replica, wanted: Wanted, *, first: bool) -> bytes:
        faults = self._faults
        found = [
            replica.left.get(batch.base, batch.content)
            for batch in replica.batches
            if batch.end > max(wanted.offset, replica.log_start) and batch.end <= replica.high_watermark
        ]
        found = [content for content in found if content]
        if not found:
            return b""
        records = b"".join(found)[: max(self._answer_bytes, len(found[0]) if first else 0)]
        if faults.strike("batch_cut", str(wanted.tp)) and len(records) > len(found[0]):
            records = records[: int(faults.within(len(found[0]), len(records)))]
        if faults.strike("batch_damaged", str(wanted.tp)):
            at = int(faults.within(61, len(found[0])))
            records = records[:at] + bytes(byte ^ 1 for byte in records[at : at + 1]) + records[at + 1 :]
        return records

    def _leading(self, at: TopicPartition, broker: int, epoch: int, what: str) -> Replica | PartitionRefused:
        replica = self._client.leading(at, broker, epoch, what)
        if isinstance(replica, Replica):
            return replica
        return PartitionRefused(at, REFUSALS[replica], str(replica))

    async def _ask(self, what: str, answer: Callable[[], Answer]) -> Answer:
        self._changed()
        try:
            return await self._client.exchange(what, answer)
        except KafkaError as error:
            raise BrokerUnavailable(f"{what}: {error}") from error


class SpoolDir(LogDir):
    """The spool of one process, and who watches it."""

    def __init__(self, path: Path, scheduler: Scheduler, faults: Faults) -> None:
        super().__init__(path, scheduler, faults)
        self._seen: dict[Path, dict[str, tuple[int, int, int]]] = {path: {}}
        """What each directory's files were: inode, size and time."""

    def changed(self) -> None:
        """Set the times of what was written since the last call, and tell of what was made, renamed and removed."""
        here = {path for path in self.path.iterdir() if path.is_dir()}
        for gone in sorted(self._seen.keys() - here - {self.path}):
            del self._seen[gone]
            self.gone(gone)
            self.touch(self.path)
        for made in sorted(here - self._seen.keys()):
            self._seen[made] = {}
            self.made(made)
            self.tell(self.path, flags.CREATE | flags.ISDIR, made.name)
            self.touch(self.path)
        for folder in sorted(here):
            before, after = self._seen[folder], _files(folder)
            if before == after:
                continue
            self.touch(*(folder / name for name, state in after.items() if before.get(name) != state))
            if before.keys() != after.keys() or any(before[name][0] != after[name][0] for name in before):
                self.touch(folder)
            for name in after:
                if name not in before or before[name][0] != after[name][0]:
                    self.tell(folder, flags.MOVED_TO, name)
            self._seen[folder] = _files(folder)

    def lose(self) -> None:
        """Lose all that is there."""
        for folder in self._seen.keys() - {self.path}:
            shutil.rmtree(folder)
        self.changed()


def _files(folder: Path) -> dict[str, tuple[int, int, int]]:
    stats = {path.name: path.stat() for path in sorted(folder.iterdir())}
    return {name: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


def fetch_settings(fetched: Fetching, slot: int, spool: Path) -> dict[str, Any]:
    """The settings of a slot's agent in place of those of a broker's."""
    fetch = {"bootstrap": "127.0.0.1:1", "spool": str(spool), "slot": slot, "slots": fetched.slots}
    return {"fetch": fetch, "cluster": CLUSTER}


def of_slot(
    fetched: Fetching,
    settings: Callable[[], AgentSettings],
    spool: SpoolDir,
    store: SimulatedStore,
    cluster: Cluster,
    scheduler: Scheduler,
    faults: Faults,
    runtime: SimulatedRuntime,
) -> Surroundings:
    """An agent's that fetches into ``spool``."""
    agent, fetch = settings(), settings().fetch
    assert fetch is not None
    number = FIRST_SLOT + fetch.slot
    small = fetch.model_copy(update={"spool_max": fetched.spool_max})
    resolve = Incarnations(Storage(CLUSTER, agent.raw, opener=lambda _url: store), record=False).resolve
    brokers = Brokers(cluster, scheduler, faults, fetched.answer, spool.changed)
    replica = SlotReplica(small, brokers, resolve, Metrics(), runtime, fetched.segment)
    admin = AdminMetadata(-1, lambda: Client(cluster, scheduler, faults))
    metadata = SlotMetadata(fetch, number, admin, lambda: replica.over)
    there = Broker(number, CLUSTER, (spool.path,), "127.0.0.1:1", "PLAINTEXT", "fetch")
    return Surroundings(there, metadata, replica, LogDirs(there.log_dirs))
