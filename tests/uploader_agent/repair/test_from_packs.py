"""Segments that lack records get them from the packs, whatever dies on the way, and nothing is taken away."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.tidemark.kafka_log.build import empty, marker, transactional
from tests.uploader_agent.cli.test_commands import incarnations, outcomes
from tests.uploader_agent.fakes import T, World, records
from tests.uploader_agent.packs.packing import append, pack_once, packs
from tests.uploader_agent.test_agent import flipped, no_errors
from tests.uploader_agent.verify.lacking import hide_packs, lacking, partial_batch
from tests.uploader_agent.verify.test_packs import compared, spans
from tests.uploader_agent.verify.test_verify import examine
from tidemark.errors import FormatError, PreconditionFailed
from tidemark.formats.keys import PackName, SegmentName, TopicPartition
from tidemark.formats.raw.pack import Pack
from tidemark.kafka_log import OpenTransaction, parse_txn_index
from uploader_agent.repair.from_packs import Completion
from uploader_agent.repair.reupload import RepairRow
from uploader_agent.verify import Severity

LOG = SegmentName(0).file("log")


class _Killed(BaseException):
    """The process ends."""


def made_whole(world: World, start: int = 0, end: int = 1 << 40, *, dry_run: bool = False) -> list[RepairRow]:
    return list(Completion(incarnations(world), T).run(start, end, dry_run=dry_run))


@pytest.mark.parametrize(
    "left",
    [
        [],
        [records(0, 10)],
        [records(0, 10), records(30, 40)],
        [records(20, 50)],
        [records(0, 10), partial_batch(10, 3, 9), records(20, 50)],
        [records(0, 40), empty(40, 9)],
    ],
    ids=["nothing", "the start", "some", "the end", "a part of a batch", "a header"],
)
def test_a_segment_gets_what_it_lacks(world: World, left: Sequence[bytes]) -> None:
    lacking(world, *left)
    before = world.manifest(0)
    [row] = made_whole(world)
    size = len(records(0, 50)) - len(b"".join(left))
    assert row == RepairRow("orders-0", 0, 50, size, "brought", None)
    assert world.stored(0) == records(0, 50)
    after = world.manifest(0)
    assert [(one.first, one.next) for one in after.parts] == [(0, 30), (30, 50)], "so that the packs may go"
    assert (after.batch_count, after.last_batch_end, after.next_offset) == (5, 50, 50)
    assert (after.uploaded_at, after.cleanup_policy) == (before.uploaded_at, before.cleanup_policy)
    assert spans(world) == []
    assert examine(world, deep=True) == (Severity.OK, [])
    assert world.keys().watermark not in world.store.puts
    assert world.store.puts == [], "a second look finds nothing to do"
    assert made_whole(world) == []
    assert world.store.puts == []


def test_a_dry_run_only_names_segments(world: World) -> None:
    lacking(world, records(0, 30))
    [row] = made_whole(world, dry_run=True)
    assert (row.outcome, row.bytes) == ("would bring", len(records(30, 50)))
    assert world.store.puts == []


@pytest.mark.parametrize("written", [1, 2, 3])
@pytest.mark.parametrize("left", [[], [records(10, 20), partial_batch(20, 0)]], ids=["nothing", "some"])
def test_a_run_that_is_killed_is_finished_by_the_next(world: World, left: Sequence[bytes], written: int) -> None:
    """Until the manifest is there, a reader finds that the log is not the manifest's, and refuses it."""
    lacking(world, *left)

    def dies(_operation: str, _key: str) -> None:
        if len(world.store.puts) == written:
            raise _Killed

    world.store.after = dies
    with pytest.raises(_Killed):
        made_whole(world)
    world.store.after = lambda _operation, _key: None
    names = [key.rpartition("/")[2] for key in world.store.puts]
    order = [LOG, SegmentName(0).file("timeindex"), SegmentName(0).file("manifest.json")]
    assert names == order[:written], "the .index has no entry before and after"
    assert examine(world)[0] is (Severity.OK if written == len(order) else Severity.CORRUPT)
    assert outcomes(made_whole(world)) == ([] if written == len(order) else [(0, "brought")])
    assert world.stored(0) == records(0, 50)
    assert [(one.first, one.next) for one in world.manifest(0).parts] == [(0, 30), (30, 50)]
    assert examine(world, deep=True) == (Severity.OK, [])


def test_another_writer_is_noticed(world: World) -> None:
    lacking(world)
    key = world.keys().file(LOG)

    def other(operation: str, there: str) -> None:
        if (operation, there) == ("put", key):
            world.store.before = lambda _operation, _key: None
            world.store.inner.put(key, b"")

    world.store.before = other
    with pytest.raises(PreconditionFailed):
        made_whole(world)
    assert world.stored(0) == b""


def test_a_log_that_somebody_else_has_put_is_left(world: World) -> None:
    lacking(world, records(0, 10))
    world.store.inner.put(world.keys().file(LOG), records(0, 20))
    [row] = made_whole(world)
    assert (row.outcome, "is not what its manifest describes" in (row.detail or "")) == ("left", True)
    assert world.stored(0) == records(0, 20)


def test_a_log_that_somebody_else_has_put_is_not_taken_for_ours(world: World) -> None:
    """It has all that the packs have, and less than the manifest says."""
    lacking(world, records(0, 50))
    world.store.inner.delete(packs(world)[0].key)
    world.store.inner.put(world.keys().file(LOG), records(30, 50))
    [row] = made_whole(world)
    assert (row.outcome, "has 2 batches, and its manifest says 5" in (row.detail or "")) == ("left", True)


def test_damage_is_left_and_named(world: World) -> None:
    lacking(world)
    first = packs(world)[0]
    body = world.store.inner.get(first.key).body
    world.store.inner.put(first.key, flipped(body[: first.range.size]) + body[first.range.size :])
    [row] = made_whole(world)
    assert (row.outcome, (row.detail or "").startswith(first.key)) == ("left", True)
    world.store.inner.put(first.key, body[:-1])
    assert outcomes(made_whole(world)) == [(0, "brought")], "a pack without a footer is of no partition"
    assert world.stored(0) == records(30, 50)


def test_only_segments_of_the_range_are_made_whole(world: World) -> None:
    lacking(world)
    assert made_whole(world, 50) == []
    assert made_whole(world, 49, 50)[0].outcome == "brought"
    assert world.stored(0) == records(0, 50), "each as a whole"


def test_a_topic_that_nobody_knows(world: World) -> None:
    with pytest.raises(FormatError, match="no agent has seen the topic nothing"):
        Completion(incarnations(world), TopicPartition("nothing", 0))


def test_the_lineage_has_the_start_of_an_epoch_that_was_empty(world: World) -> None:
    """A replica notes an epoch at the first batch that compaction has left of it."""
    lacking(world, records(40, 50))
    key = world.keys().manifest(SegmentName(0))
    world.store.inner.put(key, world.manifest(0).model_copy(update={"lineage": ((3, 40),)}).to_bytes())
    assert outcomes(made_whole(world)) == [(0, "brought")]
    assert world.manifest(0).lineage == ((3, 0),)
    assert examine(world, deep=True) == (Severity.OK, [])


def test_a_pack_with_less_takes_nothing_away(world: World) -> None:
    """Compaction had removed records before they were packed."""
    less = records(0, 10) + partial_batch(10, 3, 9) + records(20, 30)
    sealed(world, [less, records(30, 50)], [(0, records(0, 30))], 50)
    assert outcomes(made_whole(world)) == [(0, "brought")]
    assert world.stored(0) == records(0, 50)


def test_of_several_copies_the_fullest_counts(world: World) -> None:
    lacking(world, records(30, 50))
    [packed] = [one for one in packs(world) if one.range.first == 0]
    pack = Pack(PackName(2, f"{0:032x}"))
    assert pack.add(packed.range, records(0, 10) + partial_batch(10, 3, 9))
    world.store.inner.put(world.control.pack(PackName(2, f"{0:032x}")), pack.body)
    assert outcomes(made_whole(world)) == [(0, "brought")]
    assert world.stored(0) == records(0, 50)


# -- transactions ------------------------------------------------------------------------------------------------------


def sealed(world: World, packed: Sequence[bytes], left: Sequence[tuple[int, bytes]], end: int) -> None:
    """Each of ``packed`` is a range; the segments are sealed as ``left``, by base offset, without the packs."""
    world.metadata.policy = "compact"
    partition = world.disk.partition().segment(0, b"")
    for data in packed:
        append(partition, 0, data)
        pack_once(world)
    hidden = hide_packs(world)
    for base, data in left:
        partition.segment(base, data)
    partition.roll(end)
    world.metadata.default_high = end
    no_errors(world.once(freshness={".*": "3s"}, upload={"concurrency": 1}))
    for key, body in hidden.items():
        world.store.inner.put(key, body)
    world.store.puts.clear()


def aborted(world: World, base: int) -> list[tuple[int, int, int]]:
    name = SegmentName(base).file("txnindex")
    found = parse_txn_index(world.stored(base, "txnindex"), name) if name in world.names() else []
    return [(one.producer_id, one.first_offset, one.last_offset) for one in found]


def test_an_aborted_transaction_that_compaction_had_removed_is_listed(world: World) -> None:
    packed = [transactional(0, 7, 10), marker(10, 7, commit=False) + records(11, 21)]
    sealed(world, packed, [(0, marker(10, 7, commit=False) + records(11, 21))], 21)
    assert aborted(world, 0) == []
    assert outcomes(made_whole(world)) == [(0, "brought")]
    assert world.stored(0) == b"".join(packed)
    assert aborted(world, 0) == [(7, 0, 10)]
    assert world.manifest(0).open_transactions == ()


def test_a_later_segment_knows_that_a_transaction_was_aborted_before_its_data_is_there(world: World) -> None:
    """Otherwise its records would count as committed."""
    end = marker(20, 7, commit=False) + records(21, 31)
    sealed(world, [records(0, 10) + transactional(10, 7, 10)], [(0, records(0, 10)), (20, end)], 31)
    assert (aborted(world, 20), world.manifest(0).open_transactions) == ([], ())
    assert outcomes(made_whole(world)) == [(0, "brought")]
    assert aborted(world, 20) == [(7, 10, 20)]
    opened = OpenTransaction(producer_id=7, producer_epoch=0, first_offset=10)
    assert world.manifest(0).open_transactions == (opened,)
    order = [key.rpartition("/")[2] for key in world.store.puts]
    assert order.index(SegmentName(20).file("manifest.json")) < order.index(LOG)
    assert examine(world, deep=True) == (Severity.OK, [])


def test_a_transaction_that_no_segment_decides_is_left(world: World) -> None:
    sealed(world, [records(0, 10) + transactional(10, 7, 10)], [(0, records(0, 10)), (20, records(20, 30))], 30)
    [row] = made_whole(world)
    assert (row.outcome, "no later segment decides the transaction of producer 7" in (row.detail or "")) == (
        "left",
        True,
    )
    assert world.store.puts == []


def test_what_is_open_where_the_segment_begins_is_known_by_the_one_before(world: World) -> None:
    first, second = records(0, 10) + transactional(10, 7, 10), transactional(20, 7, 10) + marker(30, 7, commit=False)
    sealed(world, [first, second], [(0, first), (20, marker(30, 7, commit=False))], 31)
    key = world.keys().manifest(SegmentName(20))
    assert outcomes(made_whole(world)) == [(20, "brought")]
    assert aborted(world, 20) == [(7, 10, 30)]
    for name in [name for name in world.names() if name.startswith(f"{0:020d}")]:
        world.store.inner.delete(world.keys().file(name))
    world.store.inner.put(world.keys().segment(SegmentName(20), "log"), b"")
    etag = world.store.inner.head(world.keys().segment(SegmentName(20), "log")).etag
    lost = world.manifest(20)
    log = lost.objects[SegmentName(20).file("log")].model_copy(update={"etag": etag, "size": 0})
    world.store.inner.put(
        key, lost.model_copy(update={"objects": lost.objects | {SegmentName(20).file("log"): log}}).to_bytes()
    )
    assert outcomes(made_whole(world)) == [(20, "brought")], "by the range that ends there"
    assert aborted(world, 20) == [(7, 10, 30)]


def test_batches_that_belong_to_no_transaction_change_nothing_about_transactions(world: World) -> None:
    """Not even if nobody knows what is open where the segment begins."""
    begun, rest = transactional(0, 7, 10) + marker(10, 7, commit=False), records(11, 21)
    sealed(world, [begun, rest], [(0, begun)], 21)
    world.store.inner.delete(packs(world)[0].key)
    before = world.manifest(0)
    assert outcomes(made_whole(world)) == [(0, "brought")]
    after = world.manifest(0)
    name = SegmentName(0).file("txnindex")
    assert (aborted(world, 0), after.objects[name]) == ([(7, 0, 10)], before.objects[name])
    assert after.open_transactions == before.open_transactions
    assert world.stored(0) == begun + rest


def test_batches_of_no_transaction_leave_the_index_where_nobody_knows_what_was_open(world: World) -> None:
    first = transactional(0, 7, 10) + transactional(10, 8, 10)
    begun = transactional(20, 7, 10) + marker(30, 7, commit=False) + transactional(31, 8, 9)
    sealed(world, [first + begun, records(40, 50)], [(0, first), (20, begun)], 50)
    world.store.inner.delete(packs(world)[0].key)
    for name in [name for name in world.names() if name.startswith(f"{0:020d}")]:
        world.store.inner.delete(world.keys().file(name))
    before = world.manifest(20)
    assert outcomes(made_whole(world)) == [(20, "brought")]
    assert world.stored(20) == begun + records(40, 50)
    assert aborted(world, 20) == [(7, 0, 30)]
    [still_open] = world.manifest(20).open_transactions
    assert (still_open.producer_id, still_open.first_offset) == (8, 10)
    assert world.manifest(20).open_transactions == before.open_transactions


def test_segments_that_lack_a_transaction_and_its_marker(world: World) -> None:
    """The last one is made whole first, so that it decides what the first one gets."""
    first, second = records(0, 10) + transactional(10, 7, 10), marker(20, 7, commit=False) + records(21, 31)
    sealed(world, [first, second], [(0, records(0, 10)), (20, records(21, 31))], 31)
    assert outcomes(made_whole(world)) == [(20, "brought"), (0, "brought")]
    assert (world.stored(0), world.stored(20)) == (first, second)
    assert aborted(world, 20) == [(7, 10, 20)]
    assert examine(world, deep=True) == (Severity.OK, [])


@pytest.mark.parametrize(
    "sealed",
    [records(0, 50, value="other"), records(0, 20) + records(20, 50, value="other"), records(0, 35, value="other")],
    ids=["all", "from 20 on", "with other ends"],
)
def test_a_segment_of_another_history_gets_nothing(world: World, sealed: bytes) -> None:
    """Whatever ``cleanup.policy`` is: the packs are of a history that a restored broker does not have."""
    lacking(world, sealed)
    before = {name: world.store.inner.get(world.keys().file(name)).body for name in world.names()}
    found = [finding for findings in compared(world)[0].values() for finding in findings]
    assert {finding.word for finding in found} == {Severity.PARTED}
    assert not any("--from-packs" in finding.detail for finding in found)
    [row] = made_whole(world)
    assert row.outcome == "left"
    assert "another history" in (row.detail or "")
    assert {name: world.store.inner.get(world.keys().file(name)).body for name in world.names()} == before


def test_a_segment_of_a_topic_that_was_never_compacted_is_left_to_a_person(world: World) -> None:
    lacking(world, records(0, 10), records(30, 50), policy="delete")
    [found] = [finding for findings in compared(world)[0].values() for finding in findings]
    assert (found.word, "--from-packs" in found.detail) == (Severity.LACKING, False)
    [row] = made_whole(world)
    assert (row.outcome, "was not compacted" in (row.detail or "")) == ("left", True)
