"""Rows of masked offsets leave the table, all others stay, and every offset keeps one class."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.audit.test_audit import audited
from tests.spark.erasing.masked import erase, take_out
from tests.spark.world import World, in_process
from tests.support import erased
from tests.tidemark.kafka_log.build import T0, Record, batch, marker, transactional
from tidemark.errors import FormatError
from tidemark.formats.table.plan import RunPlan
from tidemark.planning import plan_compaction, plan_rebuild, write_plan
from tidemark.planning.maintenance.erasure import plan_erasure
from tidemark_spark.run.driver import run

DAY = 86_400_000
KEEPS = "keep: [key, timestamp]"


class FewColumns(World):
    """A table without all columns of a record, whose files alone cannot tell the hash of their rows."""

    def check(self) -> None:
        """The audit checks what it can."""


def landed(world: World, runs: int = 3) -> None:
    """Two dates in two partitions, landed in ``runs`` runs of six offsets each, with one transaction."""
    for number in range(runs):
        at = 6 * number
        rows = [
            Record(0, T0, b"a%d" % number, b"v"),
            Record(1, T0 + DAY, b"b%d" % number, None),
            Record(2, T0, None, b"w"),
        ]
        world.raw.segment([batch(at, rows, "gzip"), transactional(at + 3, 7, 2), marker(at + 5, 7, commit=True)])
        world.raw.segment([batch(at, rows), batch(at + 3, rows, "zstd")], 1)
        world.land()


@pytest.mark.parametrize("settings", [(), (KEEPS,)], ids=["whole", "few columns"])
def test_erased_rows_leave_the_table_and_the_others_stay(tmp_path: Path, settings: tuple[str, ...]) -> None:
    world = (FewColumns if settings else World)(tmp_path, *settings)
    landed(world)
    before = world.rows()
    erase(world, [0, 1, 7, 15])
    erase(world, [2], 1)
    result = take_out(world)
    erased = {(0, 0), (0, 1), (0, 7), (0, 15), (1, 2)}
    assert (result.status, result.erased) == ("landed", len(erased))
    assert world.rows() == [row for row in before if (row["kafka_partition"], row["kafka_offset"]) not in erased]
    assert (world.classes()["erased"], world.classes(1)["erased"]) == (4, 1)
    assert [row["hash128"] for row in world.holding() if row["class"] == "erased"] == [None] * len(erased)
    assert audited(world).findings == ()
    assert plan_erasure(world.table) is None, "the table follows all masks"


def test_files_whose_rows_are_all_erased_vanish(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.raw.segment([batch(0, [Record(0, T0, b"a", b"v"), Record(1, T0, b"b", b"v")])])
    world.land()
    erase(world, [0, 1])
    assert take_out(world).files == 0
    assert world.rows() == []
    assert audited(world).findings == ()


def test_masks_hold_for_a_rebuild_a_compaction_and_a_table_that_begins_later(tmp_path: Path) -> None:
    world = World(tmp_path)
    landed(world)
    erase(world, [1, 3, 12])
    take_out(world)
    rows, classes = world.rows(), world.classes()
    plans: list[Callable[[], RunPlan]] = [
        lambda: plan_compaction(world.table, files=3),
        lambda: plan_rebuild(world.table, None),
    ]
    for planned in plans:
        write_plan(world.table, plan := planned())
        assert run(world.table, plan, in_process).status == "landed"
        world.check()
        assert (world.rows(), world.classes()) == (rows, classes)
    (tmp_path / "second").mkdir()
    second = World(tmp_path / "second", raw=f"file://{tmp_path}/raw")
    second.raw = world.raw
    second.land()
    assert (second.rows(), second.classes()) == (rows, classes)
    assert audited(second).findings == ()
    assert plan_erasure(second.table) is None


def test_a_rebuild_before_the_pass_changes_nothing_and_the_pass_still_finds_the_rows(tmp_path: Path) -> None:
    world = World(tmp_path)
    landed(world)
    rows = world.rows()
    erase(world, [1, 3, 12])
    write_plan(world.table, plan := plan_rebuild(world.table, None))
    assert run(world.table, plan, in_process).status == "landed"
    assert world.rows() == rows
    assert audited(world).findings == ()
    assert take_out(world).erased == 3


@pytest.mark.parametrize("kind", ["rebuild", "compact", "erase"])
def test_a_run_planned_before_the_pass_is_stale_after_it(tmp_path: Path, kind: str) -> None:
    world = World(tmp_path)
    landed(world)
    erase(world, [1])
    plans = {
        "rebuild": lambda: plan_rebuild(world.table, None),
        "compact": lambda: plan_compaction(world.table, files=3),
    }
    plan = plans.get(kind, lambda: plan_erasure(world.table))()
    assert plan is not None
    write_plan(world.table, plan)
    take_out(world)
    rows = world.rows()
    assert run(world.table, plan, in_process).status == "stale"
    assert world.rows() == rows


def test_a_record_of_another_branch_stays(tmp_path: Path) -> None:
    world = World(tmp_path)
    landed(world)
    rows = world.rows()
    erase(world, [1], epoch=2)
    assert take_out(world).erased == 0
    assert world.rows() == rows
    assert audited(world).findings == ()


@pytest.mark.parametrize("damage", ["index", "mask", "gone"])
def test_what_cannot_be_read_stops_all_runs(tmp_path: Path, damage: str) -> None:
    world = World(tmp_path)
    landed(world, 1)
    erase(world, [1])
    folder = tmp_path / "raw" / "_erased" / "east"
    [mask] = folder.glob("orders/0/*.json")
    if damage == "index":
        (folder / "orders.json").write_bytes(b"{}")
    elif damage == "mask":
        mask.write_bytes(mask.read_bytes().replace(b'"deltas":[1]', b'"deltas":[2]'))
    else:
        mask.unlink()
    with pytest.raises(Exception, match="orders"):
        take_out(world)
    if damage != "gone":
        with pytest.raises(FormatError):
            plan_rebuild(world.table, None) if damage == "index" else take_out(world)


def test_nobody_can_call_a_loss_an_erasure(tmp_path: Path) -> None:
    world = World(tmp_path)
    landed(world)
    erased.erase(world.raw, [1, 2, 7])  # by an approval that there is not
    take_out(world)
    [finding] = audited(world).findings
    assert (finding.kind, finding.partition, finding.offsets) == ("erased_unapproved", 0, ((1, 3), (7, 8)))


def test_a_landing_planned_before_a_mask_that_the_table_follows_is_stale(tmp_path: Path) -> None:
    world = World(tmp_path)
    landed(world)
    (tmp_path / "second").mkdir()
    second = World(tmp_path / "second", raw=f"file://{tmp_path}/raw")
    plan = second.plan()
    erase(world, [1])
    take_out(second)
    assert run(second.table, plan, in_process).status == "stale"
    second.raw = world.raw
    second.land()
    assert 1 not in second.offsets()
