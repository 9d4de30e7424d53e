"""What a consumer knows of a partition goes with the assignment: nothing of its catalogue stays in memory."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
from kafka import TopicPartition

from tests.consumer.test_tiers import stored
from tests.consumer.world import World, read_to, read_until
from tests.support.waiting import HUNG, wait_until
from tidemark import Mode, TieredConsumer
from tidemark.remote import RemoteTopics

COUNT = 100


def catalogues(consumer: TieredConsumer, tps: list[TopicPartition]) -> list[weakref.ref[Any]]:
    """What is known of partitions; dead once nothing holds it any more."""
    return [weakref.ref(consumer._fetcher._scouts.sight(tp).remote) for tp in tps]


def known(consumer: TieredConsumer) -> int:
    """Partitions whose catalogue is held."""
    return len(consumer._fetcher._remote._entries)


def gone(refs: list[weakref.ref[Any]]) -> bool:
    """Threads let go of what they hold at the end of their step."""
    gc.collect()
    return not any(ref() for ref in refs)


@pytest.mark.parametrize("mode", [Mode.REMOTE_ONLY, Mode.REMOTE_PREFERRED])
def test_what_is_not_assigned_any_more_is_forgotten(local_world: World, mode: Mode) -> None:
    tps = stored(local_world, f"forget-{mode.lower()}-{local_world.folder.name}", COUNT, 3)
    with local_world.consumer(mode) as consumer:
        ends = consumer.end_offsets(tps)
        consumer.assign(tps)
        read_to(consumer, ends)
        assert known(consumer) == 3
        refs = catalogues(consumer, tps)
        consumer.assign(tps[:1])
        consumer.poll()
        wait_until(lambda: gone(refs[1:]), what="two of three to be forgotten")
        assert known(consumer) == 1
        assert refs[0]() is not None
        consumer.unsubscribe()
        consumer.poll()
        wait_until(lambda: gone(refs), what="the third to be forgotten")
        assert known(consumer) == 0
        consumer.assign(tps)
        consumer.seek_to_beginning()
        assert {tp: len(found) for tp, found in read_to(consumer, ends).items()} == ends


def test_a_look_that_ends_after_the_assignment_leaves_nothing(
    local_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    [tp] = stored(local_world, f"late-{local_world.folder.name}", COUNT)
    asked, answers = threading.Event(), threading.Event()
    partition = RemoteTopics.partition

    def slow(*arguments: Any) -> Any:
        asked.set()
        answers.wait(HUNG)
        return partition(*arguments)

    monkeypatch.setattr(RemoteTopics, "partition", slow)
    with local_world.consumer(Mode.REMOTE_PREFERRED) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        consumer.poll()
        assert asked.wait(20)
        consumer.unsubscribe()
        consumer.poll()
        answers.set()
        wait_until(lambda: known(consumer) == 0, what="the late answer to be forgotten")
        consumer.assign([tp])
        consumer.seek(tp, 0)
        assert read_until(consumer, bool)


def test_a_partition_that_kafka_reads_has_no_remote_reader(local_world: World) -> None:
    """Else the tail would be read twice, and what is read ahead would stay in memory."""
    [tp] = stored(local_world, f"tail-{local_world.folder.name}", COUNT)
    with local_world.consumer(Mode.REMOTE_PREFERRED) as consumer:
        consumer.assign([tp])
        read_to(consumer, {tp: COUNT})
        consumer.poll()
        assert consumer.tier(tp) == "kafka"
        assert not consumer._fetcher._remote._lanes
