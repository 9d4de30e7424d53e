"""Restored brokers: the table follows a history that Kafka's epochs do not tell from the one that has landed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.spark.world import World, in_process, outcomes_of
from tests.support.raw_builder import EPOCH
from tests.tidemark.kafka_log.build import T0, Record, batch, marker, transactional
from tests.uploader_agent.fakes import ID
from tests.uploader_agent.fakes import World as AgentWorld
from tidemark.decode.offset_mask import OffsetMask
from tidemark.errors import ContinuityError
from tidemark.formats.keys import ControlKeys, Endpoint, PartitionKeys, TopicPartition
from tidemark.formats.raw.masks import Mask, MaskIndex
from tidemark.kafka_log import OpenTransaction
from tidemark.planning import plan_ingest, plan_rebuild
from tidemark.raw_topic import RawTopic
from tidemark.storage import PartitionStore
from tidemark.table.delta_table import live_files
from tidemark_spark.kinds.ingest import Ingest
from tidemark_spark.kinds.registry import kind_of
from tidemark_spark.run.commit import rebased
from tidemark_spark.run.driver import run
from uploader_agent.broker.admin import Led
from uploader_agent.repair.branching import Branching, Statement

DAY = 86_400_000


def written(base: int, count: int, value: bytes = b"before", day: int = 0, epoch: int = EPOCH) -> bytes:
    """A batch whose records tell by their value which history they are of."""
    return batch(base, [Record(i, T0 + day * DAY, b"k", value) for i in range(count)], leader_epoch=epoch)


def branch(world: World, *restores: int, end: int | None = None) -> None:
    """A person went on with restored logs, whose epochs are those of before."""
    known = world.raw.partition()
    known.restores, known.open_transactions = restores, ()
    known.end = known.line1 = restores[-1]
    known.next_offset = end


def values(world: World) -> list[bytes]:
    """The value of each row, by offset."""
    return [row["kafka_value"] for row in world.rows()]


def ten(world: World) -> None:
    """Ten offsets in two files."""
    world.raw.segment([written(0, 3), written(3, 3)])
    world.land()
    world.raw.segment([written(6, 2), written(8, 2)])
    world.land()


def test_a_restore_is_followed_as_an_unclean_election_is(world: World) -> None:
    ten(world)
    below = {one.path for one in live_files(DeltaTable(world.table.url)) if "_0_5_" in one.path}
    branch(world, 6)
    key = world.raw.segment([written(6, 5, b"after"), written(11, 3, b"after")])
    assert key.endswith("00000000000000000006.log-r1"), "the former history stays under its own names"
    result = world.land()
    assert (result.status, result.rows, result.gaps) == ("landed", 8, ())
    assert values(world) == [b"before"] * 6 + [b"after"] * 8
    assert below < {one.path for one in live_files(DeltaTable(world.table.url))}
    [truncated] = [row for row in world.evidence() if row["class"] == "truncated"]
    assert (truncated["first"], truncated["next"], truncated["rows"]) == (6, 10, 4)
    state = world.ledger.by_partition[0, 0]
    assert (state.branch, state.restores, state.lineage, state.gaps) == (1, (6,), ((EPOCH, 0),), ())
    assert plan_ingest(world.table).empty
    assert plan_rebuild(world.table, ["2026-02-02"]).partitions[0].restores == (6,)


def test_the_table_keeps_what_has_landed_until_the_restored_log_has_something_there(world: World) -> None:
    ten(world)
    branch(world, 6, end=6)
    assert world.land().gaps == ((0, 0, 6, 10),)
    assert values(world) == [b"before"] * 10
    assert plan_ingest(world.table).empty
    world.raw.partition().next_offset = None
    world.raw.segment([written(6, 2, b"after")])
    assert world.land().gaps == ()
    assert values(world) == [b"before"] * 6 + [b"after"] * 2


def test_a_restored_log_with_the_same_end_wakes_the_next_run(world: World) -> None:
    ten(world)
    branch(world, 6)
    world.raw.segment([written(6, 4, b"after")])
    assert world.land().rows == 4
    assert values(world) == [b"before"] * 6 + [b"after"] * 4


@pytest.mark.parametrize(("second", "kept"), [(8, 2), (6, 0), (3, 0)])
@pytest.mark.parametrize("land_between", [True, False])
def test_two_restores(world: World, second: int, kept: int, land_between: bool) -> None:
    ten(world)
    branch(world, 6)
    world.raw.segment([written(6, 2, b"one"), written(8, 2, b"one")])
    if land_between:
        world.land()
    branch(world, 6, second)
    world.raw.segment([written(second, 4, b"two")])
    world.land()
    assert values(world) == [b"before"] * min(6, second) + [b"one"] * kept + [b"two"] * 4
    state = world.ledger.by_partition[0, 0]
    assert (state.restores, state.branch) == ((6, second), 1 + land_between)


@pytest.mark.parametrize("restored_first", [True, False])
def test_a_restore_and_an_unclean_election(world: World, restored_first: bool) -> None:
    """The election cuts off what was written after the restore, or the restore what was written after the election."""
    ten(world)
    known = world.raw.partition()
    if restored_first:
        branch(world, 6)
        world.raw.segment([written(6, 4, b"after")])
        known.lineage, known.leader_epoch, known.end = ((EPOCH, 0), (5, 8)), 5, 8
    else:
        known.lineage, known.leader_epoch, known.end = ((EPOCH, 0), (5, 8)), 5, 8
        world.raw.segment([written(8, 2, b"elected", epoch=5)])
        world.land()
        known.lineage, known.leader_epoch = ((EPOCH, 0),), EPOCH  # of the backup
        branch(world, 6)
        world.raw.segment([written(6, 2, b"after")])
        known.lineage, known.leader_epoch, known.end = ((EPOCH, 0), (5, 8)), 5, 8
    world.raw.segment([written(8, 3, b"last", epoch=5)])
    world.land()
    assert values(world) == [b"before"] * 6 + [b"after"] * 2 + [b"last"] * 3


def test_a_lower_epoch_after_a_restore_is_no_older_plan(world: World) -> None:
    """Restored metadata gives lower epochs than the ledger has seen."""
    known = world.raw.partition()
    known.lineage, known.leader_epoch = ((EPOCH, 0), (9, 3)), 9
    world.raw.segment([written(0, 3), written(3, 7, epoch=9)])
    world.land()
    late = world.plan()
    known.lineage, known.leader_epoch = ((EPOCH, 0), (4, 3)), 4
    branch(world, 3)
    world.raw.segment([written(3, 2, b"after", epoch=4)])
    assert world.land().status == "landed"
    assert values(world) == [b"before"] * 3 + [b"after"] * 2
    assert run(world.table, late, in_process).status in {"stale", "empty"}


def test_dates_that_a_restore_takes_rows_from_are_reopened(world: World) -> None:
    world.raw.segment([written(0, 2)])
    world.raw.segment([written(2, 2, day=1)])
    world.land()
    ledger = world.ledger
    final = {dt: one.model_copy(update={"state": "final"}) for dt, one in ledger.dates.items()}
    ledger = ledger.model_copy(update={"dates": final})
    branch(world, 2)
    world.raw.segment([written(2, 1, b"after", day=2)])
    world.raw.publish()
    plan = world.plan()
    change = Ingest(world.table, plan).account(outcomes_of(world.table, plan))
    dates = rebased(kind_of(world.table, plan), ledger, change, live_files(DeltaTable(world.table.url))).dates
    assert {dt: (one.state, one.rows) for dt, one in dates.items()} == {
        "2026-02-02": ("final", 2),
        "2026-02-03": ("reopened", 0),
        "2026-02-04": ("open", 1),
    }


def test_a_marker_of_the_former_history_decides_nothing_any_more(world: World) -> None:
    world.raw.segment([written(0, 3), transactional(3, 7, 2)])
    world.raw.segment([marker(5, 7, commit=True), written(6, 2)])
    world.land()
    assert world.offsets() == [0, 1, 2, 3, 4, 6, 7]
    branch(world, 5)
    opened = OpenTransaction(producer_id=7, producer_epoch=0, first_offset=3)
    world.raw.partition().open_transactions = (opened,)
    world.raw.segment([marker(5, 7, commit=False), written(6, 1, b"after")], aborted=[(7, 3, 5)])
    world.land()
    assert world.offsets() == [0, 1, 2, 6]
    assert values(world)[-1] == b"after"


def test_a_rebuild_before_the_table_has_followed_makes_nothing_of_both_histories(world: World) -> None:
    ten(world)
    branch(world, 6)
    world.raw.segment([written(6, 2, b"after")])
    world.raw.publish()
    with pytest.raises(ContinuityError, match="raw holds no offsets 8 to 10"):
        plan_rebuild(world.table, ["2026-02-02"])
    assert values(world) == [b"before"] * 10


def test_an_observation_from_before_the_restore_closes_no_date(world: World) -> None:
    ten(world)
    key = ControlKeys("", "east").index(1)
    index = world.raw.store.get(key)
    branch(world, 6)
    world.raw.segment([written(6, 2, b"after")])
    world.land()
    world.raw.store.put(key, index.body)
    [entry] = RawTopic(world.table).vouched(world.ledger).values()
    assert (entry.restored, entry.observed_at) == (0, datetime.fromtimestamp(0, UTC))


def test_a_mask_is_of_one_history(world: World) -> None:
    """The record of a person has an offset and an epoch that another record has after the restore."""
    ten(world)
    branch(world, 6)
    world.raw.segment([written(6, 5, b"after")])
    of_before = Mask.of("east", "orders", 0, {EPOCH: [2, 7]}, ["a" * 64])
    of_now = Mask.of("east", "orders", 0, {EPOCH: [3, 8]}, ["b" * 64], (6,))
    control = ControlKeys("", "east")
    for mask in (of_before, of_now):
        world.raw.store.put(mask.key(control), mask.to_bytes())
    index = MaskIndex(cluster="east", place="orders").also([of_before, of_now])
    world.raw.store.put(control.mask_index("orders"), index.to_bytes())
    world.land()
    assert 7 in world.offsets()
    assert 8 not in world.offsets()
    assert world.classes()["erased"] == 1
    assert OffsetMask([of_before, of_now], restores=(6,)).of_epoch(EPOCH, 0, 10).tolist() == [2, 3, 8]
    assert OffsetMask([of_before, of_now], restores=()).of_epoch(EPOCH, 0, 10).tolist() == [2, 3, 7]


def test_runs_before_and_after_the_command_leave_the_disks_log(tmp_path: Path) -> None:
    """With a real agent over a disk that is restored, and both histories in the store at the end."""
    agent = AgentWorld(tmp_path / "agent")
    world = World(tmp_path / "lake", raw=agent.store.url)
    keys = PartitionKeys(Endpoint(agent.store.url), "east", "orders", 0)
    partition = agent.disk.partition()

    def roll(base: int, end: int, value: bytes) -> None:
        partition.segment(base, b"".join(written(at, 10, value) for at in range(base, end, 10))).roll(end)

    def land() -> list[tuple[int, bytes]]:
        run(world.table, world.plan(), in_process)
        world.check()
        return [(row["kafka_offset"], row["kafka_value"]) for row in world.rows()]

    before = [(offset, b"before") for offset in range(200)]
    roll(0, 100, b"before")
    roll(100, 200, b"before")
    agent.once(cluster="east")
    assert land() == before
    roll(100, 150, b"before")
    roll(150, 230, b"after")
    partition.log(200).unlink()
    agent.once(cluster="east")
    assert land() == before, "the agent has stopped the partition"
    folder = agent.disk.log_dirs[0] / "orders-0"
    branching = Branching(TopicPartition("orders", 0), Led(3, ID), folder, PartitionStore(agent.store, keys), 1, ())
    assert branching.go_on(Statement("ada", "ada@host", "a backup"), lambda: True).at == 150
    assert land() == before, "of the present history nothing is stored yet"
    agent.once(cluster="east")
    assert land() == before[:150] + [(offset, b"after") for offset in range(150, 230)]
    state = world.ledger.by_partition[0, 0]
    assert (state.next_offset, state.restores, state.branch, state.gaps) == (230, (150,), 1, ())
    [cut] = [row for row in world.evidence() if row["class"] == "truncated"]
    assert (cut["first"], cut["next"]) == (150, 200)
    logs = [info.key.rpartition("/")[2] for info in agent.store.list(keys.folder) if ".log" in info.key]
    assert logs == [f"{0:020d}.log", f"{100:020d}.log", f"{150:020d}.log-r1"]
    assert plan_ingest(world.table, close_dates=False).empty
