"""Segments that lack what packs have, as they were sealed from logs that compaction had emptied."""

from __future__ import annotations

from tests.tidemark.kafka_log.build import Record, batch
from tests.uploader_agent.fakes import T, World, records
from tests.uploader_agent.packs.packing import append, pack_once
from tests.uploader_agent.test_agent import no_errors
from tidemark.formats.keys import TopicPartition


def partial_batch(base: int, *deltas: int) -> bytes:
    """What compaction has left of a batch of ten records: those of ``deltas``."""
    return batch(base, [Record(delta) for delta in deltas], last_offset_delta=9)


def lacking(world: World, *left: bytes, tp: TopicPartition = T, policy: str = "compact") -> dict[str, bytes]:
    """[0, 30) and [30, 50) are packed, and the segment of [0, 50) has only the batches ``left``; the packs by key.

    No head leads to the packs any more.
    """
    world.metadata.policy = policy
    partition = world.disk.partition(tp).segment(0, records(0, 30))
    pack_once(world, 30)
    append(partition, 0, records(30, 50))
    pack_once(world, 50)
    packs = hide_packs(world)
    partition.segment(0, b"".join(left)).roll(50)
    no_errors(world.once(freshness={".*": "3s"}))
    manifest = world.manifest(0, tp)
    assert (manifest.next_offset, manifest.parts) == (50, ())
    for key, body in packs.items():
        world.store.inner.put(key, body)
    world.store.puts.clear()
    return packs


def hide_packs(world: World) -> dict[str, bytes]:
    """Remove all packs and heads; the packs by key."""
    found = {info.key: world.store.inner.get(info.key).body for info in world.store.inner.list(world.control.tails)}
    for info in [*world.store.inner.list(world.control.heads), *world.store.inner.list(world.control.tails)]:
        world.store.inner.delete(info.key)
    return found
