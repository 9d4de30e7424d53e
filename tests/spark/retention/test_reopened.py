"""A date that retention took, and that has rows again: rebuilds and repairs make these, and none that expired."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.audit.test_audit import audited
from tests.spark.compaction.test_compaction import merge
from tests.spark.convert.test_parsers import again, function_parser, json_parser
from tests.spark.rebuild.rebuilds import changed, compared
from tests.spark.retention.test_table import ALSO, DAY, KEPT, OPTED_IN, PAST, drop, made, records, states
from tests.spark.run.test_repair import optimize, repair, table_of
from tests.spark.world import World
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark.planning import plan_rebuild, plan_replay

REFUSING = function_parser("sizes")
EVENT = ", event_time: {field: at}"
AT, ID = "{name: at, type: timestamp(ms)}", "{name: id, type: int64}"
OTHER_ID = "{name: id, type: int64, path: other}"


def reopened(world: World) -> World:
    """Two dates share the offsets of both segments; in each, rows of ``PAST`` were refused and filtered, too."""
    drop(world)
    world.raw.segment([batch(6, records(0, 40, 0, 40, 0, 0, values={4: b"bad", 5: b""}))])
    world.land()
    assert states(world)[PAST] == "reopened"
    return world


@pytest.fixture
def world(tmp_path: Path) -> World:
    return reopened(made(tmp_path, OPTED_IN, REFUSING))


def check_rebuilds(world: World) -> None:
    """Rebuilds of any dates, one after the other, leave all as it is."""
    rows, classes, refused = world.rows(), world.classes(), [row["kafka_offset"] for row in world.quarantine()]
    for dates in ([PAST], [KEPT], [KEPT, PAST], None):
        assert compared(world, *(dates or ())).differences == ()
        assert again(world, plan_rebuild(world.table, dates)).status == "landed"
        assert (world.rows(), world.classes()) == (rows, classes)
        assert [row["kafka_offset"] for row in world.quarantine()] == refused
    report = audited(world)
    assert report.passed, report.text()


def test_a_rebuild_makes_the_rows_that_are_there(world: World) -> None:
    assert world.classes() == {"landed": 6, "expired": 4, "quarantined": 1, "filtered": 1}
    check_rebuilds(world)


def test_so_it_does_of_compacted_files(world: World) -> None:
    world.raw.segment([batch(12, records(0, 40, 0))])
    world.land()
    assert merge(world, files=2).status == "landed"
    check_rebuilds(world)


def test_all_dates_are_made_again_if_only_refused_rows_of_an_expired_date_came_since(tmp_path: Path) -> None:
    world = made(tmp_path, OPTED_IN, REFUSING)
    drop(world)
    world.raw.segment([batch(6, records(0, 0, values={0: b"bad", 1: b""}))])
    world.land()
    rows, classes = world.rows(), world.classes()
    assert (states(world)[PAST], classes["quarantined"], classes["filtered"]) == ("expired", 1, 1)
    for dates in (None, [PAST]):
        assert again(world, plan_rebuild(world.table, dates)).status == "landed"
        assert (world.rows(), world.classes(), states(world)[PAST]) == (rows, classes, "expired")


REFUSED: dict[str, object] = {"at": T0, "id": "no number"}


@pytest.mark.parametrize(
    ("values", "offsets"),
    [
        pytest.param([{"at": T0}, REFUSED, {"at": T0}], [1, 3], id="between them"),
        pytest.param([REFUSED, {"at": T0}, REFUSED], [0, 2, 3], id="around them"),
        pytest.param([{"at": T0}, *2 * [REFUSED, {"at": T0}]], [1, 3, 5], id="between and around them"),
    ],
)
def test_so_it_does_of_rows_that_a_replay_brought_among_those_that_expired(
    tmp_path: Path, values: list[dict[str, object]], offsets: list[int]
) -> None:
    """Their timestamps are of another date, and so is that of their refusal, which retention left."""
    world = World(tmp_path, OPTED_IN, json_parser(AT, ID, more=EVENT))
    bodies = [json.dumps(value).encode() for value in (*values, {"at": T0 + 40 * DAY})]
    world.raw.segment([batch(0, [Record(i, T0 + 40 * DAY, b"k", body) for i, body in enumerate(bodies)])])
    world.land()
    drop(world)
    world = changed(world, OPTED_IN, json_parser(AT, OTHER_ID, more=EVENT))
    again(world, plan_replay(world.table))
    assert (world.offsets(), states(world)[PAST]) == (offsets, "reopened")
    check_rebuilds(world)


def test_a_plan_names_only_offsets_that_it_reads_of_dates_that_are_there(tmp_path: Path) -> None:
    world = made(tmp_path, OPTED_IN, REFUSING)
    drop(world)
    assert left_out(world) == {(0, 0): {}, (0, 1): {}}, "all rows of the date are"
    reopened(world)
    assert left_out(world, PAST) == {(0, 0): {}}, "the late rows lie in another segment"
    assert left_out(world, KEPT) == {(0, 0): {PAST: ((2, 6),)}, (0, 1): {}}


def left_out(world: World, *dates: str) -> dict[tuple[int, int], dict[str, tuple[tuple[int, int], ...]]]:
    """The expired rows in the plan of a rebuild of ``dates``, or of all, by partition."""
    return {part.key: part.expired_rows for part in plan_rebuild(world.table, dates or None).partitions}


def delete(world: World) -> None:
    table_of(world).delete(f"dt = '{PAST}'")


def delete_all(world: World) -> None:
    table_of(world).delete()


@pytest.mark.parametrize("change", [delete, delete_all, optimize])
def test_a_repair_makes_the_rows_that_were_there(world: World, change: Callable[[World], None]) -> None:
    world.raw.segment([batch(12, records(0, 40))])
    world.land()
    rows, classes = world.rows(), world.classes()
    change(world)
    repair(world)
    assert (world.rows(), world.classes()) == (rows, classes)
    assert audited(world).passed


def test_restore_to_before_retention_brings_no_expired_row_back(tmp_path: Path) -> None:
    """Their own file is back, and a row is lost in a span of offsets that they share."""
    world = World(tmp_path, OPTED_IN)
    world.raw.segment([batch(0, records(40, 0, 0, 3, 40))])
    world.land()
    version = table_of(world).version()
    drop(world)
    world.raw.segment([batch(5, records(0, 40))])
    world.land()
    rows, classes = world.rows(), world.classes()
    table_of(world).restore(version)
    table_of(world).delete(f"dt = '{ALSO}'")
    repair(world)
    assert (world.rows(), world.classes()) == (rows, classes)
    check_rebuilds(world)
