"""``verify --deep`` finds segments that lack what packs have, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.tidemark.kafka_log.build import empty
from tests.uploader_agent.fakes import ID, OTHER_ID, T, World, records
from tests.uploader_agent.packs.packing import append, pack_and_create_again, pack_once, packs
from tests.uploader_agent.test_agent import flipped
from tests.uploader_agent.verify.lacking import hide_packs, lacking, partial_batch
from tests.uploader_agent.verify.test_verify import verified
from tidemark.formats.keys import SegmentName, TopicPartition
from uploader_agent.broker.admin import Led
from uploader_agent.verify import Severity, VerifyFinding, compare_packs
from uploader_agent.verify import packs as verify_packs


def compared(world: World) -> tuple[dict[TopicPartition, list[VerifyFinding]], list[VerifyFinding]]:
    """What lacks, by partition, and what is wrong with packs."""
    damaged: list[VerifyFinding] = []
    world.store.puts.clear()
    with world.agent(read_only=True) as agent, ThreadPoolExecutor(3) as pool:
        agent.survey()
        known = agent.leadership.partitions.values()
        found = compare_packs(known, world.broker.node_id, pool, damaged.append, lambda _done: None)
    assert world.store.puts == [], "it only looks"
    return found, damaged


def spans(world: World) -> list[tuple[int, int]]:
    """The offsets of what lacks, of the only partition."""
    found, damaged = compared(world)
    assert damaged == []
    assert all(one.word is Severity.LACKING and one.wrong for one in found.get(T, []))
    return [(one.offset, one.end) for one in found.get(T, [])]


@pytest.mark.parametrize(
    ("left", "lacks"),
    [
        ([], (0, 50)),
        ([records(0, 10)], (10, 50)),
        ([records(0, 10), records(30, 40)], (10, 50)),
        ([records(10, 50)], (0, 10)),
        ([records(0, 10), partial_batch(10, 3, 9), records(20, 50)], (10, 20)),
        ([records(0, 40), empty(40, 9)], (40, 50)),
    ],
    ids=["nothing", "the start", "some", "all but the start", "a part of a batch", "a header"],
)
def test_what_compaction_had_removed_before_it_was_sealed(
    world: World, left: Sequence[bytes], lacks: tuple[int, int]
) -> None:
    keys = [*lacking(world, *left)]
    assert spans(world) == [lacks]
    found, _ = compared(world)
    [finding] = found[T]
    assert finding.object == world.keys().segment(SegmentName(0), "log")
    assert "`tidemark-agent reupload orders 0 --from-packs` adds them" in finding.detail
    assert any(key in finding.detail for key in keys)
    verdict, findings = verified(world, deep=True, lacking=found[T])
    assert (verdict.word, findings[0], verdict.wrong) == (Severity.LACKING, finding, 1)


def test_a_segment_with_all_that_packs_have_lacks_nothing(world: World) -> None:
    lacking(world, records(0, 50))
    assert world.manifest(0).parts == (), "no part proves it"
    assert spans(world) == []


def test_what_a_later_segment_holds_does_not_lack(world: World) -> None:
    """What is not sealed yet is claimed by no segment."""
    world.metadata.policy = "compact"
    partition = world.disk.partition().segment(0, records(0, 50))
    pack_once(world, 50)
    assert spans(world) == []
    partition.roll(50)
    world.once()
    assert spans(world) == []
    append(partition, 50, records(50, 70))
    pack_once(world, 70)
    assert spans(world) == []


def test_batches_of_another_branch_are_not_claimed(world: World) -> None:
    """An unclean election has cut off what broker 1 has packed from 20 on. The segment is of the other branch."""
    world.disk.partition().segment(0, records(0, 50))
    pack_once(world, 50)
    second = world.another(2, leads={T: Led(4, ID)}, default_high=40, replicas=(1, 2))
    partition = second.disk.partition().lineage([(3, 0), (4, 20)])
    partition.segment(0, records(0, 20) + records(20, 40, epoch=4, value="other")).roll(40)
    second.once()
    assert spans(second) == []


def test_a_segment_whose_lineage_is_empty_claims_by_that_of_offset_wm(world: World) -> None:
    """A replica that copied a compacted log knows no epoch of what is gone."""
    lacking(world)
    key = world.keys().manifest(SegmentName(0))
    world.store.inner.put(key, world.manifest(0).model_copy(update={"lineage": ()}).to_bytes())
    assert spans(world) == [(0, 50)]


def test_packs_of_the_brokers_that_have_replicas_are_compared(world: World) -> None:
    lacking(world, records(0, 30))
    second = world.another(2, leads={T: Led(4, ID)}, default_high=50)
    second.disk.partition().lineage([(3, 0), (4, 50)]).segment(0, records(0, 30)).roll(50)
    assert spans(second) == []
    second.metadata.replicas = (1, 2)
    assert spans(second) == [(30, 50)]


def test_packs_of_another_topic_id_are_not_compared(world: World) -> None:
    world.metadata.policy = "compact"
    pack_and_create_again(world)
    hidden = hide_packs(world)
    world.metadata.default_high = 30
    world.disk.partition(topic_id=OTHER_ID).roll(30)
    world.once()
    for key, body in hidden.items():
        world.store.inner.put(key, body)
    assert spans(world) == []


def test_a_damaged_pack_is_named_and_hides_no_other(world: World) -> None:
    """By its footer it is of no partition; by a range's bytes it is of one."""
    lacking(world, records(0, 10))
    first, second = packs(world)
    body = world.store.inner.get(first.key).body
    world.store.inner.put(first.key, body[:-1])
    found, damaged = compared(world)
    assert [(one.object, one.wrong) for one in damaged] == [(first.key, True)]
    assert [(one.offset, one.end) for one in found[T]] == [(30, 50)]
    world.store.inner.put(first.key, flipped(body[: first.range.size]) + body[first.range.size :])
    found, damaged = compared(world)
    assert damaged == []
    assert [(one.word, one.object) for one in found[T]] == [
        (Severity.CORRUPT, first.key),
        (Severity.LACKING, world.keys().segment(SegmentName(0), "log")),
    ]
    assert second.key in found[T][1].detail


def test_many_packs_are_compared_some_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking(world)
    monkeypatch.setattr(verify_packs, "_AT_A_TIME", 1)
    monkeypatch.setattr(verify_packs, "_MOST_RANGES", 1)
    assert sorted(spans(world)) == [(0, 30), (30, 50)]
