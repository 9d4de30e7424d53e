"""A cluster of three scripted brokers, which keep Kafka's rules of elections, truncation and Fetch, and misbehave."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Coroutine, Generator, Mapping, Sequence
from pathlib import Path
from types import coroutine
from typing import Any, Self

from typing_extensions import override

from tests.tidemark.kafka_log.build import simple
from tidemark.formats.keys import TopicPartition
from tidemark.kafka_log import BatchHeader, Lineage, parse_leader_epoch_checkpoint, scan_batches
from uploader_agent.broker.admin import BrokerUnavailable, Leader, Led
from uploader_agent.intake.fetch_connection import FetchSession, SessionRequest
from uploader_agent.intake.fetching import (
    Cluster,
    EpochAsked,
    EpochEnd,
    FetchAnswer,
    FetchedPart,
    PartitionRefused,
    Refusal,
    Result,
    Retention,
    TopicAnswer,
    TopicLeaders,
    Wanted,
)

ID = "AAAAAAAAAAAAAAAAAAAAAQ"
OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAg"
TOPIC = "orders"
T = TopicPartition(TOPIC, 0)
BROKERS = (1, 2, 3)


class Replica:
    """A log on a scripted broker: whole batches, and the lineage as the checkpoint has it."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.lineage = Lineage()
        self.start = 0
        self.end = 0
        self.high_watermark = 0

    def append(self, raw: bytes) -> None:
        self.batches.append(raw)
        self.end = header_of(raw).next_offset

    def assign(self, epoch: int) -> None:
        """Begin an epoch at the log end, as a broker that becomes leader; an epoch without a batch disappears."""
        self.lineage = Lineage((*self.lineage.truncated(self.end).entries, (epoch, self.end)))

    def truncate(self, end: int) -> None:
        self.batches = [raw for raw in self.batches if header_of(raw).next_offset <= end]
        if end < self.end:
            self.end = header_of(self.batches[-1]).next_offset if self.batches else min(end, self.start)
        self.start = min(self.start, self.end)
        self.lineage = self.lineage.truncated(self.end)
        self.high_watermark = min(self.high_watermark, self.end)

    def delete_below(self, start: int) -> None:
        """DeleteRecords: the first epoch begins at the new log start; a batch that has the start stays."""
        self.start = max(self.start, start)
        self.batches = [raw for raw in self.batches if header_of(raw).next_offset > self.start]
        kept = self.lineage.since(self.start).entries
        if kept:
            (epoch, begun), *rest = kept
            self.lineage = Lineage(((epoch, max(begun, self.start)), *rest))


class KeptSession:
    """A broker's side of a fetch session: it leaves out partitions without news, and lets them take turns.

    Source: Kafka's ``FetchSession.CachedPartition`` and ``IncrementalFetchContext``.
    """

    def __init__(self) -> None:
        self.number = 0
        self._parts: dict[tuple[str, int], tuple[Wanted, int]] = {}
        """What is wanted, and the high watermark that was answered last, -1 after an error."""

    def take(self, request: SessionRequest) -> None:
        if request.epoch == 0:
            self.number, self._parts = self.number + 1, {}
        else:
            assert request.number == self.number
        for wanted in request.wanted:
            key = (wanted.topic_id, wanted.tp.partition)
            self._parts[key] = (wanted, self._parts.get(key, (wanted, -1))[1])
        for wanted in request.forgotten:
            del self._parts[wanted.topic_id, wanted.tp.partition]

    def wanted(self) -> set[Wanted]:
        return {wanted for wanted, _ in self._parts.values()}

    def answered(self, part_of: Callable[..., FetchedPart], *, full: bool) -> list[FetchedPart]:
        answer: list[FetchedPart] = []
        for key, (wanted, high) in list(self._parts.items()):
            part = part_of(wanted, first=not any(other.records for other in answer))
            self._parts[key] = (wanted, -1 if part.refused else part.high_watermark)
            if part.records:
                self._parts[key] = self._parts.pop(key)
            news = part.records or part.refused or part.diverges or part.near_replica >= 0
            if full or news or part.high_watermark != high:
                answer.append(part)
        return answer


@coroutine
def _later() -> Generator[None]:
    """The time until the next turn."""
    yield


def not_continued(wanted: Wanted, start: int, end: int, lineage: Lineage, high_watermark: int) -> FetchedPart | None:
    """The answer of a log ``[start, end)`` that does not continue what the follower has (KIP-595); None if it does."""
    last = lineage.end_offset(wanted.last_epoch, end) if wanted.last_epoch >= 0 else (-1, end)
    if not start <= wanted.offset <= end or last is None:
        return FetchedPart(wanted, refused=PartitionRefused(wanted.tp, Refusal.RANGE, "OFFSET_OUT_OF_RANGE"))
    if last[0] < wanted.last_epoch or last[1] < wanted.offset:
        return FetchedPart(wanted, high_watermark=high_watermark, diverges=True)
    return None


def header_of(raw: bytes) -> BatchHeader:
    [header] = scan_batches([raw], "batch", int.from_bytes(raw[:8], "big"))
    return header


class ScriptedCluster(Cluster):
    """One topic on three brokers, whose ``partitions`` have one log.

    ``now`` is the time; it passes while nothing is answered. ``throttled_until`` is one client's.
    ``mischief`` has the probabilities of faults by name: cut, twice, lost, damaged, throttled, evicted, slow.
    """

    def __init__(self, seed: int = 0, partitions: int = 1) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.topic_id = ID
        self.exists = True
        self.replicas = {broker: Replica() for broker in BROKERS}
        self.leader, self.epoch = 1, 0
        self.leaders: dict[int, int] = {}
        """The leaders of partitions that another broker leads."""
        self.down: set[int] = set()
        self.mute: set[int] = set()
        """Brokers that accept requests, and never answer."""
        self.near: int | None = None
        """The replica that the leader names to a request with a rack."""
        self.mischief: dict[str, float] = {}
        self.answer_bytes = 400
        self.partitions = partitions
        self.kept = Retention(1000.0, None)
        self.cleanup_policy = "delete"
        self.asked: list[Wanted] = []
        self.questions: list[int] = []
        """The partitions of each request about log starts and epochs."""
        self.asked_first: list[Wanted] = []
        self.throttled_until: dict[int, float] = {}
        self.highest_start = 0
        """The highest log start of any leader. An unclean election may bring back a lower one; the spool does not."""
        self._due: list[tuple[float, FetchAnswer]] = []
        self._work: list[Coroutine[Any, Any, None]] = []
        self._sessions = {broker: FetchSession() for broker in BROKERS}
        self._kept = {broker: KeptSession() for broker in BROKERS}
        self.replicas[1].assign(0)

    @property
    def log(self) -> Replica:
        """The leader's."""
        return self.replicas[self.leader]

    def produce(self, count: int = 1, *, commit: bool = True) -> Self:
        for _ in range(count):
            self.log.append(simple(self.log.end, self.rng.randint(1, 4), leader_epoch=self.epoch))
        if commit:
            self.commit()
        return self

    def commit(self, *followers: int) -> None:
        """Let followers, or all, copy the leader's log, and raise the high watermark."""
        for broker in followers or BROKERS:
            self.sync(broker)
        self.log.high_watermark = self.log.end
        for broker in followers or BROKERS:
            self.replicas[broker].high_watermark = self.log.end

    def sync(self, broker: int) -> None:
        """Let a follower truncate, and copy the leader's log, by the rules that are tested."""
        replica = self.replicas[broker]
        if replica is self.log:
            return
        cut = replica.lineage.divergence(self.log.lineage, min(replica.end, self.log.end))
        replica.truncate(min(replica.end, self.log.end) if cut is None else cut)
        if replica.end < self.log.start:
            replica.batches, replica.end = [], self.log.start
        replica.start = max(replica.start, self.log.start)
        for raw in self.log.batches:
            if header_of(raw).next_offset > replica.end:
                replica.append(raw)
        replica.end = self.log.end
        replica.lineage = self.log.lineage
        replica.delete_below(replica.start)

    def delete_below(self, start: int) -> None:
        """DeleteRecords, of which the followers that have the offset learn."""
        for replica in self.replicas.values():
            if replica.end >= start:
                replica.delete_below(start)
        self.highest_start = max(self.highest_start, self.log.start)

    def elect(self, broker: int) -> None:
        """Make ``broker`` the leader, with the log that it has."""
        self.leader, self.epoch = broker, self.epoch + 1
        self.log.assign(self.epoch)

    def begin_client(self) -> None:
        """Begin with a new client: what was sent to the one before is lost."""
        self._due.clear()
        self._work.clear()
        self.throttled_until.clear()

    def make_again(self) -> None:
        """Delete the topic, and make it again: the same name, another id, epoch 0."""
        self.topic_id, self.epoch, self.leader = OTHER_ID, 0, 1
        self.replicas = {broker: Replica() for broker in BROKERS}
        self.log.assign(0)

    def topic(self, name: str) -> TopicLeaders | None:
        self._answerable(next(iter(set(BROKERS) - self.down), 1))
        if not self.exists or name != TOPIC:
            return None
        led = Led(self.epoch, self.topic_id)
        numbers = range(self.partitions)
        return TopicLeaders(self.topic_id, {number: Leader(self._leader(number), led, BROKERS) for number in numbers})

    def _leader(self, partition: int) -> int:
        return self.leaders.get(partition, self.leader)

    @override
    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        while True:
            try:
                work.send(None)
            except StopIteration as end:
                result: Result = end.value
                return result
            self.now += 0.1

    @override
    def start(self, work: Coroutine[Any, Any, None]) -> None:
        self._work.append(work)
        self._go_on(work)

    def _go_on(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            work.send(None)
        except StopIteration:
            self._work.remove(work)
        except BaseException:
            self._work.remove(work)
            raise

    async def _asked(self, broker: int) -> None:
        """A question on its way to ``broker``."""
        given_up = self.now + 10
        while broker in self.mute or self._strikes("slow"):
            if self.now >= given_up:
                raise BrokerUnavailable(f"broker {broker} does not answer")
            await _later()

    @override
    async def topics(self, names: Collection[str] | None) -> Mapping[str, TopicAnswer]:
        await self._asked(-1)
        found = self.topic(TOPIC) if names is None or TOPIC in names else None
        return {TOPIC: found} if found is not None else {}

    @override
    async def retention(self, names: Collection[str]) -> dict[str, Retention]:
        return dict.fromkeys(names, self.kept)

    @override
    async def epoch_ends(
        self, broker: int, asked: Mapping[TopicPartition, EpochAsked]
    ) -> dict[TopicPartition, EpochEnd | PartitionRefused]:
        await self._asked(broker)
        self.questions.append(len(asked))
        found: dict[TopicPartition, EpochEnd | PartitionRefused] = {}
        for tp, (leader_epoch, epoch) in asked.items():
            end = EpochEnd(*(self.log.lineage.end_offset(epoch, self.log.end) or (-1, -1)))
            found[tp] = self._refusal(tp, broker, leader_epoch) or end
        return found

    @override
    async def log_starts(
        self, broker: int, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | PartitionRefused]:
        await self._asked(broker)
        self.questions.append(len(epochs))
        return {tp: self._refusal(tp, broker, epoch) or self.log.start for tp, epoch in epochs.items()}

    @override
    def send(self, broker: int, wanted: Sequence[Wanted]) -> None:
        if broker in self.mute | self.down:
            due = self.now + (30 if broker in self.mute else 0)
            self._due.append((due, FetchAnswer(broker, error=BrokerUnavailable(f"broker {broker} does not answer"))))
            return
        assert broker not in {answer.broker for _, answer in self._due}, "two requests to one broker"
        assert self.now >= self.throttled_until.get(broker, 0.0), "a broker that throttles was not left alone"
        self.asked += wanted
        self.asked_first.append(wanted[0])
        session, kept = self._sessions[broker], self._kept[broker]
        request = session.ask(wanted)
        if self._strikes("lost"):
            session.lose()
            self._due.append((0.0, FetchAnswer(broker, error=BrokerUnavailable("lost on the way"))))
            return
        if request.epoch and self._strikes("evicted"):
            assert session.lose()
            self._due.append((0.0, FetchAnswer(broker)))
            return
        kept.take(request)
        assert kept.wanted() == set(wanted), "the broker keeps what is not wanted, or lacks what is"
        if self._strikes("throttled"):
            session.take(kept.number if request.epoch else 0, [], throttled=True)
            answer = FetchAnswer(broker, throttled=self.rng.random())
            self.throttled_until[broker] = self.now + answer.throttled
        else:
            mine = {part: part for part in wanted}
            parts = kept.answered(self._part, full=not request.epoch)
            answer = FetchAnswer(
                broker, session.take(kept.number, [part._replace(wanted=mine[part.wanted]) for part in parts])
            )
        self._due.append((0.0, answer))
        if self._strikes("twice"):
            self._due.append((0.0, answer))

    @override
    def answers(self, seconds: float) -> list[FetchAnswer]:
        for work in list(self._work):
            self._go_on(work)
        due = [answer for at, answer in self._due if at <= self.now]
        self._due = [(at, answer) for at, answer in self._due if at > self.now]
        # A broker keeps a request that it has no batch for.
        self.now += seconds if not any(part.records for answer in due for part in answer.parts) else seconds / 100
        return due

    def _part(self, wanted: Wanted, *, first: bool) -> FetchedPart:
        replica = self.replicas[wanted.broker]
        if not self.exists or wanted.topic_id != self.topic_id:
            return FetchedPart(wanted, refused=PartitionRefused(wanted.tp, Refusal.TOPIC, "UNKNOWN_TOPIC_ID"))
        refused = self._refusal(wanted.tp, wanted.broker, wanted.leader_epoch, any_replica=True)
        if refused is not None:
            return FetchedPart(wanted, refused=refused)
        high_watermark = replica.high_watermark
        elsewhere = not_continued(wanted, replica.start, replica.end, replica.lineage, high_watermark)
        if elsewhere is not None:
            return elsewhere
        if wanted.near and wanted.broker == self.leader and self.near not in {None, self.leader}:
            assert self.near is not None
            return FetchedPart(wanted, high_watermark=high_watermark, near_replica=self.near, first=first)
        records = self._records(replica, wanted.offset, first=first)
        return FetchedPart(wanted, memoryview(records), high_watermark, first=first)

    def _records(self, replica: Replica, offset: int, *, first: bool) -> bytes:
        found = [
            raw
            for raw in replica.batches
            if header_of(raw).next_offset > offset and header_of(raw).next_offset <= replica.high_watermark
        ]
        if not found:
            return b""
        records = b"".join(found)[: max(self.answer_bytes, len(found[0]) if first else 0)]
        if self._strikes("cut") and len(records) > len(found[0]):
            records = records[: self.rng.randint(len(found[0]), len(records))]
        if self._strikes("damaged"):
            at = self.rng.randrange(61, len(found[0]))
            records = records[:at] + bytes([records[at] ^ 1]) + records[at + 1 :]
        return records

    def _refusal(
        self, tp: TopicPartition, broker: int, epoch: int, *, any_replica: bool = False
    ) -> PartitionRefused | None:
        self._answerable(broker)
        if not self.exists:
            return PartitionRefused(tp, Refusal.TOPIC, "UNKNOWN_TOPIC_OR_PARTITION")
        if epoch > self.epoch:
            return PartitionRefused(tp, Refusal.LATER, "UNKNOWN_LEADER_EPOCH")
        if epoch < self.epoch or (broker != self._leader(tp.partition) and not any_replica):
            return PartitionRefused(tp, Refusal.LEADER, "FENCED_LEADER_EPOCH")
        return None

    def _answerable(self, broker: int) -> None:
        if broker in self.down:
            raise BrokerUnavailable(f"broker {broker} is down")

    def _strikes(self, fault: str) -> bool:
        return self.rng.random() < self.mischief.get(fault, 0.0)


def batches_in(folder: Path) -> list[bytes]:
    """The batches of all segments of a directory, which must be whole."""
    found: list[bytes] = []
    for path in sorted(folder.glob("*.log")):
        data = path.read_bytes()
        headers = scan_batches([data], str(path), int(path.stem))
        found += [data[header.position : header.end] for header in headers]
    return found


def lineage_in(folder: Path) -> Lineage:
    path = folder / "leader-epoch-checkpoint"
    return parse_leader_epoch_checkpoint(path.read_text(), str(path))


def assert_follows(folder: Path, cluster: ScriptedCluster) -> None:
    """From the log start on, the spool has the leader's batches up to the high watermark, and its lineage."""
    log, since = cluster.log, max(cluster.log.start, cluster.highest_start)
    mine = batches_in(folder)
    assert [raw for raw in mine if header_of(raw).next_offset > since] == [
        raw for raw in log.batches if since < header_of(raw).next_offset <= log.high_watermark
    ]
    above = [raw for raw in mine if header_of(raw).next_offset > log.start]
    assert not set(above) - set(log.batches), "a batch is of a dead branch"
    known = lineage_in(folder).since(log.start).entries
    assert [(epoch, max(start, log.start)) for epoch, start in known] == [*log.lineage.entries]
