"""Landing from packs: what no seal holds yet lands as it will from the seals, and each rule of the design is missed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.spark.audit.test_audit import audited
from tests.spark.convert.test_parsers import again
from tests.spark.world import World, in_process
from tests.support.live_end import Packer
from tests.support.raw_builder import EPOCH, UPLOADED_AT
from tests.tidemark.kafka_log.build import Record, batch, marker, reseal, simple, transactional
from tests.tidemark.remote.world import Counting
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.hashsum import combine
from tidemark.inspection.offset_lineage import derivation_of
from tidemark.kafka_log import OpenTransaction
from tidemark.planning import plan_compaction, plan_ingest, plan_rebuild, plan_repair, plan_replay, write_plan
from tidemark.store import LocalStore, Store, open_store
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark_spark.run.driver import run

DAY = 86_400_000
OPEN_AT_3 = OpenTransaction(producer_id=7, producer_epoch=0, first_offset=3)


@pytest.fixture
def packer(world: World) -> Packer:
    """Broker 1's."""
    return Packer(world.raw)


def branch(world: World, *lineage: tuple[int, int]) -> None:
    """A new leader, whose lineage this is, has claimed; what the former one packed stays listed."""
    known = world.raw.partition()
    known.lineage, known.leader_epoch, known.open_transactions = lineage, lineage[-1][0], ()


def epochs(world: World) -> list[int]:
    """The epoch of each row, by offset."""
    return [row["kafka_leader_epoch"] for row in world.rows()]


def test_what_is_packed_lands_behind_the_seals_and_lands_once(world: World, packer: Packer) -> None:
    world.raw.segment([simple(0)])
    packed = [packer.pack([simple(3), simple(6)]), packer.pack([simple(9)])]
    result = world.land()
    assert (result.rows, result.gaps, result.unread) == (12, (), ())
    assert {row["segment"] for row in world.evidence()} >= {one.key for one in packed}
    assert len({row["file"] for row in world.evidence()}) == 1, "one task, one file"
    assert plan_ingest(world.table).empty
    packer.pack([simple(12)])
    assert world.land().rows == 3
    world.raw.segment([simple(3), simple(6), simple(9), simple(12)], parts=[one.part for one in packed])
    packer.drop()
    world.raw.publish()
    assert plan_ingest(world.table).empty
    world.raw.segment([simple(15)])
    assert world.land().rows == 3
    assert world.offsets() == list(range(18))


def test_a_partition_that_was_never_sealed_lands(world: World, packer: Packer) -> None:
    packer.pack([simple(0)])
    assert world.land().rows == 3


def test_a_day_that_landed_from_packs_is_made_again_from_seals(world: World, packer: Packer) -> None:
    one = packer.pack([transactional(0, 7, 2), simple(2)])
    two = packer.pack([marker(5, 7, commit=False), simple(6)], aborted=[(7, 0, 5)])
    world.land()
    before = world.rows(), world.classes(), sums(world)
    assert world.classes() == {"aborted": 2, "landed": 6, "transaction_marker": 1}
    world.raw.segment(
        [transactional(0, 7, 2), simple(2), marker(5, 7, commit=False), simple(6)],
        aborted=[(7, 0, 5)],
        parts=[one.part, two.part],
    )
    packer.drop()
    for packed in (one, two):
        world.raw.store.delete(packed.key)
    world.raw.publish()
    plan = plan_rebuild(world.table, ["2026-02-02"])
    write_plan(world.table, plan)
    assert run(world.table, plan, in_process).status == "landed"
    world.check()
    assert (world.rows(), world.classes(), sums(world)) == before


# -- the rules of the design, each with its mutant ---------------------------------------------------------------------


class Meanwhile:
    """Does something when ``offset.wm`` is first read after a head, as an agent would between two reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, key: str, act: Callable[[], None]) -> None:
        self.done = False
        real = LocalStore.get

        def get(store: LocalStore, asked: str, **of: Any) -> Any:
            found = real(store, asked, **of)
            if asked == key and not self.done:
                self.done = True
                act()
            return found

        monkeypatch.setattr(LocalStore, "get", get)


def test_manifests_are_read_after_heads(world: World, packer: Packer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between head and offset.wm, a seal and a shorter tail replace a longer one."""
    packer.pack([simple(0), simple(3)])
    packer.pack([simple(6)])
    world.raw.publish()

    def seal() -> None:
        world.raw.segment([simple(0), simple(3), simple(6)])
        for key in [one.key for one in world.raw.store.list("_tails/")]:
            world.raw.store.delete(key)
        packer.drop()
        world.raw.publish()

    Meanwhile(monkeypatch, ControlKeys("", "east").head(1), seal)
    plan = world.plan()
    assert [(part.end, part.gaps) for part in plan.partitions] == [(9, ())]
    assert run(world.table, plan, in_process).rows == 9


def test_the_heads_of_a_leader_that_claims_meanwhile_are_read(
    world: World, packer: Packer, monkeypatch: pytest.MonkeyPatch
) -> None:
    packer.pack([simple(0)])
    world.raw.publish()
    other = Packer(world.raw, 2)

    def claim() -> None:
        branch(world, (EPOCH, 0), (5, 3))
        other.pack([simple(3, leader_epoch=5)], first=3)
        world.raw.publish()

    Meanwhile(monkeypatch, ControlKeys("", "east").head(1), claim)
    assert [part.end for part in world.plan().partitions] == [6]


def test_no_hole_above_the_watermark_is_lost(world: World, packer: Packer) -> None:
    world.raw.segment([simple(0)])
    missing = packer.pack([simple(3)])
    packer.pack([simple(6)])
    body = world.raw.store.get(missing.key).body
    world.raw.store.delete(missing.key)
    result = world.land()
    assert (result.rows, result.gaps) == (3, ())
    assert world.ledger.by_partition[0, 0].gaps == ()
    world.raw.store.put(missing.key, body)
    assert world.land().rows == 6


def test_a_hole_below_the_watermark_is_lost_up_to_there(world: World, packer: Packer) -> None:
    world.raw.segment([simple(0)])
    key = world.raw.segment([simple(3)])
    packer.pack([simple(6)], first=6)
    world.raw.store.delete(key.replace(".log", ".manifest.json"))
    assert world.land().gaps == ((0, 0, 3, 6),)


def test_a_marker_above_what_has_landed_may_be_cut_off(world: World, packer: Packer) -> None:
    """The transaction at 3 was decided by a marker at 7, and that at 5 holds the partition."""
    packer.pack([simple(0), transactional(3, 7, 2), transactional(5, 8, 2)])
    packer.pack([marker(7, 7, commit=True), simple(8)])
    world.land()
    assert (world.next_offset(), world.offsets()) == (5, [0, 1, 2, 3, 4])
    branch(world, (EPOCH, 0), (5, 7))
    other = Packer(world.raw, 2)
    opened = [OPEN_AT_3, OpenTransaction(producer_id=8, producer_epoch=0, first_offset=5)]
    other.pack([simple(7, 2, leader_epoch=5)], first=7, opened=opened)
    world.land()
    assert (world.next_offset(), world.offsets()) == (3, [0, 1, 2]), "undecided again"


def test_markers_of_a_dead_branch_say_nothing(world: World, packer: Packer) -> None:
    packer.pack([transactional(0, 7, 2), simple(2)])
    packer.pack([marker(5, 7, commit=False), simple(6)], aborted=[(7, 0, 5)])
    branch(world, (EPOCH, 0), (5, 5))
    other = Packer(world.raw, 2)
    opened = [OpenTransaction(producer_id=7, producer_epoch=0, first_offset=0)]
    ending = reseal(marker(5, 7, commit=True), leader_epoch=5)
    other.pack([ending, simple(6, leader_epoch=5)], first=5, opened=opened)
    world.land()
    assert world.offsets() == [0, 1, 2, 3, 4, 6, 7, 8]
    assert epochs(world) == [EPOCH] * 5 + [5] * 3


def test_what_is_open_on_a_dead_branch_does_not_hold(world: World, packer: Packer) -> None:
    """The dead end of a range lists a transaction that begins above the cut, and none that ends there."""
    packer.pack([simple(0), transactional(3, 7, 2), marker(5, 7, commit=True), transactional(6, 8, 2)])
    branch(world, (EPOCH, 0), (5, 6))
    world.raw.publish()
    world.land()
    assert (world.next_offset(), world.offsets()) == (6, [0, 1, 2, 3, 4])


def test_what_is_open_where_a_range_is_cut_holds(world: World, packer: Packer) -> None:
    """The range ends with the commit marker; the cut takes that away."""
    packer.pack([simple(0), transactional(3, 7, 2), simple(5), marker(8, 7, commit=True)])
    branch(world, (EPOCH, 0), (5, 8))
    world.land()
    assert (world.next_offset(), world.offsets()) == (3, [0, 1, 2])
    [held] = world.ledger.by_partition[0, 0].held_by
    assert held == OPEN_AT_3


@pytest.mark.parametrize("packed", [False, True])
def test_a_dead_source_across_the_cut_lands_up_to_the_cut(world: World, packer: Packer, packed: bool) -> None:
    """Nothing newer is stored: the headers of the live part tell what is open there."""
    world.raw.segment([simple(0), transactional(3, 7, 2)])
    dead = [marker(5, 7, commit=False), transactional(6, 8, 1), transactional(7, 7, 2), simple(9)]
    if packed:
        packer.pack(dead, aborted=[(7, 3, 5)])
    else:
        world.raw.segment(dead, aborted=[(7, 3, 5)])
    branch(world, (EPOCH, 0), (5, 9))
    world.raw.partition().next_offset = 5 if packed else 9
    world.land()
    assert (world.next_offset(), world.offsets()) == (6, [0, 1, 2])
    assert world.classes() == {"landed": 3, "aborted": 2, "transaction_marker": 1}


def test_a_dead_range_does_not_land(world: World, packer: Packer) -> None:
    packer.pack([simple(0), simple(3)])
    packer.pack([simple(6)])
    branch(world, (EPOCH, 0), (5, 3))
    Packer(world.raw, 2).pack([simple(3, leader_epoch=5)], first=3)
    world.land()
    assert epochs(world) == [EPOCH] * 3 + [5] * 3


def test_a_range_that_landed_and_was_cut_off_is_taken_back(world: World, packer: Packer) -> None:
    packer.pack([simple(0), simple(3)])
    packer.pack([simple(6)])
    world.land()
    branch(world, (EPOCH, 0), (5, 6))
    world.raw.publish()
    assert world.land().gaps == ((0, 0, 6, 9),), "the new branch has nothing yet"
    Packer(world.raw, 2).pack([simple(6, 5, leader_epoch=5)], first=6)
    world.land()
    assert epochs(world) == [EPOCH] * 6 + [5] * 5
    assert world.ledger.by_partition[0, 0].branch == 1


def test_another_topic_of_the_name_has_no_part_in_it(world: World, packer: Packer) -> None:
    packer.pack([simple(0), simple(3)])
    world.land()
    world.raw.recreate("B" * 22)
    fresh = Packer(world.raw)
    fresh.entries[0, 99] = packer.entries[0, EPOCH]  # stays in the head until it is sealed
    fresh.packs = 9
    fresh.pack([simple(0, 1)])
    world.land()
    assert (world.offsets(), world.offsets(incarnation=1)) == (list(range(6)), [0])


# -- what is damaged or not there --------------------------------------------------------------------------------------


def test_a_damaged_head_is_told_and_what_is_sealed_lands(
    world: World, packer: Packer, caplog: pytest.LogCaptureFixture
) -> None:
    world.raw.segment([simple(0)])
    packer.pack([simple(3)])
    world.raw.store.put(packer.control.head(1), b"{}")
    with caplog.at_level(logging.ERROR):
        result = world.land()
    assert result.rows == 3
    assert [one.startswith("_heads/east/1.json: ") for one in result.unread] == [True]
    assert "_heads/east/1.json" in caplog.text
    packer.put_head()
    assert world.land().unread == ()
    assert world.offsets() == list(range(6))


def test_a_damaged_chain_is_told_and_what_is_sealed_lands(world: World, packer: Packer) -> None:
    world.raw.segment([simple(0)])
    packed = packer.pack([simple(3)])
    body = world.raw.store.get(packed.key).body
    world.raw.store.put(packed.key, body.replace(b'"partition":0', b'"partition":9'))
    result = world.land()
    assert result.rows == 3
    assert [one.startswith(f"{packed.key}: ") for one in result.unread] == [True]


@pytest.mark.parametrize("sealed", [False, True])
def test_a_damaged_batch_of_a_pack_is_no_gap(world: World, packer: Packer, sealed: bool) -> None:
    """The seal has it, or will have it; no person is asked to give it up."""
    if sealed:
        world.raw.segment([simple(0)])
    first = 3 if sealed else 0
    packed = packer.pack([simple(first), simple(first + 3)])
    body = bytearray(world.raw.store.get(packed.key).body)
    body[len(simple(first)) + 70] ^= 1
    world.raw.store.put(packed.key, bytes(body))
    result = world.land()
    assert (result.status, result.gaps) == ("landed", ())
    assert ["checksum" in one for one in result.unread] == [True]
    assert world.next_offset() == first + 3
    again = run(world.table, world.plan(), in_process)
    assert (again.status, len(again.unread)) == ("stale", 1)
    world.raw.segment([simple(first), simple(first + 3)], parts=[packed.part])
    packer.drop()
    assert world.land().rows == 3


def test_a_pack_that_is_gone_before_the_task_reads_it_is_planned_anew(world: World, packer: Packer) -> None:
    packed = packer.pack([simple(0)])
    world.raw.publish()
    plan = world.plan()
    world.raw.segment([simple(0)], parts=[packed.part])
    world.raw.store.delete(packed.key)
    packer.drop()
    assert run(world.table, plan, in_process).status == "stale"
    assert world.land().rows == 3


# -- what it costs -----------------------------------------------------------------------------------------------------


def counted(world: World, monkeypatch: pytest.MonkeyPatch) -> Counting:
    """A store of raw that counts, and that plans read by."""
    counting = Counting(world.raw.store)
    monkeypatch.setattr(counting, "now", world.raw.store.now, raising=False)  # which is of no key

    def open_counted(url: str, *of: Any) -> Store:
        return counting if url == counting.url else open_store(url, *of)

    monkeypatch.setattr("tidemark.storage.open_store", open_counted)
    return counting


def test_a_topic_without_tails_makes_no_request_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for partition in range(3):
        world.raw.segment([simple(0)], partition)
    world.raw.publish()
    counting = counted(world, monkeypatch)
    world.plan()
    assert not [key for key in counting.keys if "_heads" in key or "_tails" in key]
    assert sum(key.endswith("offset.wm") for key in counting.keys) == 3


def test_a_head_is_read_once_for_all_partitions(world: World, packer: Packer, monkeypatch: pytest.MonkeyPatch) -> None:
    for partition in range(12):
        packer.pack([simple(0)], partition)
    world.raw.publish()
    counting = counted(world, monkeypatch)
    assert len(world.plan().partitions) == 12
    assert sum("_heads" in key for key in counting.keys) == 1
    assert sum("_tails" in key for key in counting.keys) == 12, "a range each"


def test_a_trickle_is_planned_with_few_requests(world: World, packer: Packer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has landed is not asked for again, however long the tail and the seals behind it are."""
    for number in range(8):
        world.raw.segment([simple(3 * number)])
    for number in range(8, 20):
        packer.pack([simple(3 * number)])
    world.land()
    packer.pack([simple(60)])
    world.raw.publish()
    counting = counted(world, monkeypatch)
    plan = world.plan()
    assert [part.end for part in plan.partitions] == [63]
    asked = [key for key in counting.keys if not key.startswith(("_watermarks", "_topics"))]
    assert sum("_tails" in key for key in asked) == 1
    assert len(asked) == 5, asked  # offset.wm, the head, offset.wm again, the range; no masks


def test_many_small_ranges_are_one_task_and_are_read_side_by_side(
    world: World, packer: Packer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(200):
        packer.pack([simple(3 * number)], head=number == 199)
    result = world.land()
    assert result.rows == 600
    assert len(world.evidence()) == 200
    assert len({row["file"] for row in world.evidence()}) == 1


# -- times -------------------------------------------------------------------------------------------------------------


def dated(base: int, *days: int) -> bytes:
    """A batch whose records lie that many days after the first upload."""
    at = round(UPLOADED_AT.timestamp() * 1000)
    return batch(base, [Record(number, at + DAY * one) for number, one in enumerate(days)])


def sums(world: World) -> dict[tuple[str, Any], tuple[int, int]]:
    """What holds, by class and date: how many offsets, and the sum of the rows' hashes."""
    found: dict[tuple[str, Any], tuple[int, int]] = {}
    for row in world.holding():
        rows, total = found.get(at := (row["class"], row["dt"]), (0, 0))
        found[at] = rows + row["rows"], combine(total, int.from_bytes(row["hash128"] or b"", "big"))
    return found


@pytest.mark.parametrize("packed", [False, True])
def test_a_record_is_judged_by_when_it_was_shipped(world: World, packer: Packer, packed: bool) -> None:
    """A day ahead is sane. The pack is shipped at once, its seal two days later."""
    batches = [dated(0, 0, 2), dated(2, 2, 3), dated(4, 3, 4)]
    shipped = [packer.pack([one], shipped_at=UPLOADED_AT + timedelta(days=day)) for day, one in enumerate(batches[:2])]
    world.raw.now = UPLOADED_AT + timedelta(days=2)
    if packed:
        world.land()
    world.raw.segment(batches, parts=[one.part for one in shipped])
    packer.drop()
    world.land()
    assert [row["kafka_offset"] for row in world.quarantine()] == [1, 3, 5]
    assert world.offsets() == [0, 2, 4]


def test_a_day_is_the_same_from_packs_and_from_seals(world: World, packer: Packer) -> None:
    batches = [dated(0, 0, 2), dated(2, 2, 3)]
    shipped = [packer.pack([one], shipped_at=UPLOADED_AT + timedelta(days=day)) for day, one in enumerate(batches)]
    world.land()
    before = sums(world)
    world.raw.now = UPLOADED_AT + timedelta(days=2)
    world.raw.segment(batches, parts=[one.part for one in shipped])
    for one in shipped:
        world.raw.store.delete(one.key)
    packer.drop()
    world.raw.publish()
    for made in (partial(plan_rebuild, world.table, None), partial(plan_replay, world.table)):
        plan = made()
        write_plan(world.table, plan)
        assert run(world.table, plan, in_process).status in {"landed", "empty"}
        world.check()
        assert sums(world) == before
    assert not audited(world).findings


def test_parts_that_cannot_matter_are_not_planned_with(world: World, packer: Packer) -> None:
    batches = [dated(0, 0, 1), dated(2, 1, 1)]
    shipped = [packer.pack([one], shipped_at=UPLOADED_AT) for one in batches]
    key = world.raw.segment(batches, parts=[one.part for one in shipped])
    packer.drop()
    world.raw.publish()
    [task] = world.plan().tasks
    assert [(one.key, one.shipped) for one in task.ranges] == [(key, ())]


def test_the_ledger_knows_as_of_when_it_is_complete(world: World, packer: Packer) -> None:
    noon = UPLOADED_AT + timedelta(hours=1)
    packer.pack([simple(0)], observed_at=noon)
    world.land()
    assert world.ledger.by_partition[0, 0].as_of == noon
    packer.pack([simple(3)], high_watermark=9, observed_at=noon + timedelta(hours=1))
    world.land()
    assert world.ledger.by_partition[0, 0].as_of == noon, "there is more on the broker"
    packer.pack([simple(6), transactional(9, 7, 1)], observed_at=noon + timedelta(hours=2))
    world.land()
    assert world.ledger.by_partition[0, 0].as_of == noon, "a transaction holds it"
    packer.pack([marker(10, 7, commit=True)], observed_at=noon + timedelta(hours=3))
    world.land()
    assert world.ledger.by_partition[0, 0].as_of == noon + timedelta(hours=3)
    branch(world, (EPOCH, 0), (5, 3))
    Packer(world.raw, 2).pack([simple(3, leader_epoch=5)], first=3, high_watermark=9, observed_at=noon)
    world.land()
    assert world.ledger.by_partition[0, 0].as_of is None, "nothing is complete on the new branch"


def test_what_a_former_leader_observed_is_not_the_whole(world: World, packer: Packer) -> None:
    packer.pack([simple(0)], observed_at=UPLOADED_AT)
    branch(world, (EPOCH, 0), (5, 3))
    world.land()
    assert (world.next_offset(), world.ledger.by_partition[0, 0].as_of) == (3, None)


# -- what comes after landing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sealed", [False, True])
def test_a_table_that_was_changed_is_made_right_again(world: World, packer: Packer, sealed: bool) -> None:
    """Also with only half of what landed from packs in seals, and what landed at once in two of them."""
    batches = [simple(0), transactional(3, 7, 2), simple(5), marker(8, 7, commit=False), simple(9)]
    one = packer.pack(batches[:3])
    two = packer.pack(batches[3:], aborted=[(7, 3, 8)])
    world.land()
    before = world.rows(), world.classes(), sums(world)
    if sealed:
        world.raw.segment(batches[:2])
        world.raw.segment(batches[2:], aborted=[(7, 3, 8)])
        for packed in (one, two):
            world.raw.store.delete(packed.key)
        packer.drop()
        world.raw.publish()
    DeltaTable(world.table.url).delete("kafka_offset = 1")
    assert again(world, plan_repair(world.table)).status == "landed"
    assert (world.rows(), world.classes(), sums(world)) == before
    assert audited(world).passed
    assert not audited(world).partitions[0].by_evidence, "raw proves all"


def test_files_of_many_landings_are_merged_once_their_date_is_complete(world: World, packer: Packer) -> None:
    for number in range(6):
        packer.pack([simple(3 * number)], observed_at=UPLOADED_AT if number == 5 else None)
        world.land()
    before = world.rows(), sums(world)
    assert len({row["file"] for row in world.holding()}) == 6
    states = [world.ledger.dates["2026-02-02"].state]
    world.land()
    assert [*states, world.ledger.dates["2026-02-02"].state] == ["open", "final"]
    assert again(world, plan_compaction(world.table)).status == "landed"
    assert (world.rows(), sums(world)) == before
    assert len({row["file"] for row in world.holding()}) == 1


def test_where_offsets_come_from_names_packs_and_the_seals_that_follow(world: World, packer: Packer) -> None:
    packed = packer.pack([simple(0)])
    world.land()
    behind = packer.pack([simple(3)])
    world.raw.publish()
    standing = EffectiveEvidence.of(world.table)
    found = derivation_of(world.table, standing, (0, 0), 0, 9)
    assert [(one.key, one.present, one.packed) for one in found.segments] == [
        (packed.key, True, True),
        (behind.key, True, True),
    ]
    key = world.raw.segment([simple(0), simple(3)])
    world.raw.store.delete(packed.key)
    world.raw.store.delete(behind.key)
    packer.drop()
    world.raw.publish()
    found = derivation_of(world.table, standing, (0, 0), 0, 9)
    assert [(one.key, one.present, one.packed) for one in found.segments] == [
        (packed.key, False, True),
        (key, True, False),
    ]
