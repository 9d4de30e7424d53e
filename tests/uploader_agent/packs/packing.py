"""An agent that packs when it is told to, and what readers find of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.uploader_agent.fakes import OTHER_ID, FakePartition, T, World, records
from tests.uploader_agent.packs import reader
from tests.uploader_agent.tested_agent import TestedAgent
from tidemark.formats.keys import Endpoint, TopicPartition
from tidemark.formats.raw.head import Head, HeadEntry
from tidemark.formats.raw.pack import PackedRange
from tidemark.raw.packs import read_footer
from tidemark.raw.segments import Segment, SegmentPiece
from tidemark.storage import ClusterStore, PartitionStore
from uploader_agent.broker.admin import Led
from uploader_agent.partitions.led_partition import LedPartition

FRESHNESS = {".*": "3s"}


def tick(agent: TestedAgent) -> None:
    """What the loop and the packer do in a tick, in this thread."""
    agent.refresh()
    due: dict[Endpoint, list[LedPartition]] = {}
    fresh = [one for one in agent.leadership.partitions.values() if one.freshness is not None]
    for one in fresh:
        if (one.high_watermark or 0) > one.stored_end:
            due.setdefault(one.bucket, []).append(one)
    for bucket, members in due.items():
        packer = agent.components.packs.of(bucket).packer
        packer.backlog.add(members)
        packer.pack(members)


def pack_once(world: World, end: int | None = None) -> TestedAgent:
    """One tick of a new agent, as after a restart; ``end`` is the high watermark."""
    if end is not None:
        world.metadata.default_high = end
    with world.agent(freshness=FRESHNESS) as agent:
        tick(agent)
        return agent


def pack_and_create_again(world: World) -> None:
    """50 records of a topic are packed; then it is deleted, and 30 others are appended to one of the same name."""
    partition = world.disk.partition().segment(0, records(0, 50, value="old"))
    pack_once(world, 50)
    (partition.folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {OTHER_ID}\n")
    partition.segment(0, records(0, 30, value="new"))
    world.metadata.leads = {T: Led(3, OTHER_ID)}


def care(agent: TestedAgent, rounds: int = 1) -> None:
    """Look after the heads' entries, each time as if their pauses were over."""
    for _ in range(rounds):
        agent.components.poller.ask_leaders(
            agent.leadership.replicas.keys() | agent.components.packs.of_other_leaderships
        )
        for answer in agent.components.poller.answer_all():
            agent.leadership.learn(answer)  # type: ignore[arg-type]
        look_after_heads(agent)
        for one in agent.components.packs.all:
            one.head_maintenance.end_pauses()


def look_after_heads(agent: TestedAgent) -> None:
    """What the packers' threads do now and then."""
    agent.components.open_buckets()
    for one in agent.components.packs.all:
        one.head_maintenance.maintain()


def error(agent: TestedAgent, tp: TopicPartition = T) -> str | None:
    return agent.leadership.partitions[tp].packed.tail.error


def packs(world: World) -> list[PackedRange]:
    """All ranges of all packs, by where they begin."""
    found = [
        one for info in world.store.inner.list(world.control.tails) for one in read_footer(world.store.inner, info.key)
    ]
    return sorted(found, key=lambda one: (one.range.first, one.range.next, one.range.leader_epoch))


def spans(world: World) -> list[tuple[int, int]]:
    """The offsets of all ranges of all packs."""
    return [(one.range.first, one.range.next) for one in packs(world)]


def heads(world: World) -> list[Head]:
    """All brokers' heads."""
    return reader.heads(ClusterStore(world.store.inner, world.control))


def entries(world: World, broker: int = 1) -> list[HeadEntry]:
    """What a broker's head says."""
    return [entry for head in heads(world) if head.broker == broker for entry in head.entries]


def seals(world: World, tp: TopicPartition = T, place: str | None = None) -> list[Segment]:
    """The partition's segments."""
    return reader.seals(PartitionStore(world.store.inner, world.keys(tp, place)))


def pieces(world: World, tp: TopicPartition = T, place: str | None = None) -> list[SegmentPiece]:
    """What a reader plans of a partition."""
    return reader.pieces(PartitionStore(world.store.inner, world.keys(tp, place)))


def content(world: World, tp: TopicPartition = T, place: str | None = None) -> bytes:
    """The bytes that a reader reads, of pieces that are whole segments or ranges."""
    found = b""
    for segment, start, end in pieces(world, tp, place):
        assert (start, end) == (segment.base, segment.end), f"{start} to {end} is a part of {segment}"
        found += world.store.inner.get_range(segment.key, segment.position, segment.position + segment.size)
    return found


@contextmanager
def failing(world: World, wanted: Callable[[str, str], bool], failure: Exception) -> Iterator[None]:
    """The requests of which ``wanted`` says so, by operation and key, fail."""

    def before(operation: str, key: str) -> None:
        if wanted(operation, key):
            raise failure

    world.store.before = before
    yield
    world.store.before = lambda _operation, _key: None


def append(partition: FakePartition, base: int, data: bytes) -> None:
    """Append to the segment at ``base``."""
    path = partition.log(base)
    partition.segment(base, path.read_bytes() + data)
