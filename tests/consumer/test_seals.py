"""A consumer reads many small sealed segments as it reads the large ones, and as the broker's own consumer does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.consumer.kinds import transactions
from tests.consumer.world import Place, World, origins, partitions, read_to
from tests.support.raw_builder import RawBuilder
from tidemark import Mode
from tidemark.formats.keys import ControlKeys
from tidemark.kafka_log import scan_batches
from tidemark.raw.objects import aborts_of, read_segment, read_watermark
from tidemark.raw.segments import Segment
from tidemark.storage import ClusterStore, PartitionStore
from tidemark.store import Store, open_store


def resealed(world: World, folder: Path, topic: str, parts: int, rng: random.Random) -> World:
    """The same broker with another store, which has the stored batches of ``topic`` in seals of one to three."""
    place = Place(f"file://{folder}/seals")
    source, target = open_store(world.place.url), open_store(place.url)
    raw = RawBuilder(target, cluster=world.cluster, topic=topic)
    raw.lives = ClusterStore(source, ControlKeys("", world.cluster)).incarnations(topic)
    raw.times = True
    for partition in range(parts):
        known, keys = raw.partition(partition), raw.keys(partition)
        found = read_watermark(PartitionStore(source, keys), raw.lives.incarnations[0].topic_id)
        assert found is not None
        watermark = found.watermark
        known.lineage, known.leader_epoch = watermark.lineage, watermark.leader_epoch
        segments = stored(PartitionStore(source, keys))
        batches = [one for segment in segments for one in batches_of(source, segment)]
        aborted = [one for segment in segments if segment.aborts for one in aborts_of(source, segment)]
        cuts = [0]
        while cuts[-1] < len(batches):
            cuts.append(cuts[-1] + rng.randint(1, 3))
        ended = [(one.producer_id, one.first_offset, one.last_offset) for one in aborted]
        raw.seals(batches, cuts[1:-1], partition, aborted=ended)
        assert known.end == watermark.next_offset
    raw.publish()
    return World(folder, world.kafka, place)


def stored(partition: PartitionStore) -> list[Segment]:
    """All segments, of which each begins where the one before ended."""
    found = [read_segment(partition, entry.name) for entry in partition.manifests()]
    segments = [one for one in found if one is not None]
    assert [one.base for one in segments] == [0, *(one.end for one in segments[:-1])]
    return segments


def batches_of(store: Store, segment: Segment) -> list[bytes]:
    body = store.get(segment.key).body
    return [body[one.position : one.end] for one in scan_batches([body], segment.key, segment.base)]


@pytest.mark.essential
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_seals_are_read_as_segments(local_world: World, rng: random.Random, tmp_path: Path, isolation: str) -> None:
    topic = f"seals-{isolation}-{tmp_path.name}"
    transactions(local_world, topic, local_world.kafka.version)
    local_world.upload(topic)
    small = resealed(local_world, tmp_path / "small", topic, 2, rng)
    tps = partitions(topic, 2)
    with local_world.plain(isolation_level=isolation) as consumer:
        consumer.assign(tps)
        ends = consumer.end_offsets(tps)
        expected = read_to(consumer, ends)
    with local_world.consumer(Mode.REMOTE_ONLY, isolation_level=isolation) as consumer:
        remote_ends = consumer.end_offsets(tps)
    assert all(remote_ends.values()), "nothing was uploaded"
    for world in (local_world, small):
        with world.consumer(Mode.REMOTE_ONLY, isolation_level=isolation) as consumer:
            assert consumer.end_offsets(tps) == remote_ends
            consumer.assign(tps)
            found = read_to(consumer, remote_ends)
            assert found == {tp: [one for one in expected[tp] if one.offset < remote_ends[tp]] for tp in tps}
    with small.consumer(Mode.REMOTE_PREFERRED, isolation_level=isolation) as consumer:
        consumer.assign(tps)
        assert read_to(consumer, ends) == expected
        for tp in tps:
            assert origins(consumer, tp)["remote"] == sum(one.offset < remote_ends[tp] for one in expected[tp])
