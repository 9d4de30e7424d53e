"""``tidemark acknowledge-gap`` for what no agent knows to be missing: runs have found it, and the ledger has it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.world import World, in_process
from tests.support.raw_builder import EPOCH
from tests.tidemark.cli.test_cli import call
from tests.tidemark.kafka_log.build import simple
from tidemark.formats.keys import SegmentName
from tidemark.planning.ingest import lost_gaps
from tidemark_spark.run.driver import run

WORD = ("--by", "ada", "--reason", "removed by hand", "-y")


def removed(world: World) -> None:
    """Of three segments the second goes, after the watermark has passed it."""
    for base in (0, 3, 6):
        world.raw.segment([simple(base)])
    for name in ("log", "manifest.json"):
        world.raw.store.delete(world.raw.keys().segment(SegmentName(3), name))


def damaged(world: World) -> None:
    """A bit of the second segment has flipped in the store."""
    for base in (0, 3, 6):
        key = world.raw.segment([simple(base)])
        if base == 3:
            body = bytearray(simple(base))
            body[-1] ^= 1
            world.raw.replace_log(key, bytes(body))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def asked(capsys: pytest.CaptureFixture[str], world: World, start: int, end: int) -> tuple[int, str, str]:
    return call(capsys, "acknowledge-gap", "orders", "0", str(start), str(end), *WORD, "--topics", world.topics_file)


@pytest.mark.parametrize("harm", [removed, damaged])
def test_the_next_run_goes_on_past_what_a_person_gives_up(
    world: World, harm: Callable[[World], None], capsys: pytest.CaptureFixture[str]
) -> None:
    harm(world)
    assert world.land().gaps == ((0, 0, 3, 6),)
    code, output, _ = asked(capsys, world, 3, 6)
    assert (code, "east/orders 0: 3 to 6 acknowledged" in output) == (0, True)
    assert world.land().gaps == ()
    assert world.offsets() == [0, 1, 2, 6, 7, 8]
    assert world.classes()["acknowledged"] == 3


def test_a_part_of_it_can_be_given_up_and_nothing_beside_it(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    removed(world)
    world.land()
    code, _, errors = asked(capsys, world, 2, 6)
    assert (code, "offsets 2 to 3 are in no open gap. Open gaps: 3 to 6 (unknown)" in errors) == (1, True)
    assert asked(capsys, world, 6, 7)[0] == 1
    assert asked(capsys, world, 3, 5)[0] == 0
    assert world.land().gaps == ((0, 0, 5, 6),)


def test_what_has_come_back_is_not_given_up(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Though the ledger still has the gap: no run has come since."""
    removed(world)
    world.land()
    assert [(gap.start, gap.end) for gap in lost_gaps(world.table, 0, 0)] == [(3, 6)]
    world.raw.segment([simple(3)], base=3)
    assert lost_gaps(world.table, 0, 0) == ()
    code, _, errors = asked(capsys, world, 3, 6)
    assert (code, "Open gaps: none" in errors) == (1, True)
    assert run(world.table, world.plan(), in_process).rows == 6


def test_landed_offsets_that_an_election_cut_off_are_not_given_up(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.raw.segment([simple(0), simple(3)])
    world.land()
    known = world.raw.partition()
    known.leader_epoch, known.next_offset = 5, 3
    known.lineage = ((EPOCH, 0), (5, 3))
    assert world.land().gaps == ((0, 0, 3, 6),)
    assert world.ledger.by_partition[0, 0].gaps[0].reason == "unclean_election"
    assert asked(capsys, world, 3, 6)[0] == 1


def test_a_new_table_has_what_was_given_up_as_acknowledged_from_its_first_run_on(world: World) -> None:
    removed(world)
    world.raw.acknowledge(3, 6)
    assert world.land().gaps == ()
    assert world.offsets() == [0, 1, 2, 6, 7, 8]
    assert world.classes()["acknowledged"] == 3
