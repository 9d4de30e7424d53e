"""A lake that is lost and made again from raw: what comes back as it was, and what does not."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

from tests.spark.audit.test_audit import audited
from tests.spark.compaction.test_compaction import merge
from tests.spark.erasing.masked import erase, take_out
from tests.spark.retention import test_raw, test_table
from tests.spark.retention.test_table import PAST
from tests.spark.run.test_runs import rebuild, spread
from tests.spark.world import World
from tests.support.live_end import Packer
from tests.tidemark.kafka_log.build import simple
from tidemark.table.delta_table import open_topic_table
from tidemark.topics import load_topics


def again(world: World, root: Path) -> World:
    """The same topic and raw with an empty lake, landed until nothing is left."""
    root.mkdir()
    file = root / "topics.yaml"
    file.write_text(world.topics_file.read_text().replace(f"{world.topics_file.parent}/lake", f"{root}/lake"))
    deployment = load_topics(file)
    found = copy(world)
    found.table = open_topic_table(deployment, deployment.topics[0])
    while found.land().status == "landed":
        pass
    return found


def content(world: World) -> dict[str, Any]:
    """What a reader and an auditor see of a table, apart from what names a run or its files."""
    ledger = world.ledger
    return {
        "rows": world.rows(),
        "quarantine": [{**row, "attempt": None} for row in world.quarantine()],
        "classes": {state.key: world.classes(*reversed(state.key)) for state in ledger.partitions},
        "next": {state.key: (state.next_offset, state.gaps) for state in ledger.partitions},
        "dates": {dt: date.rows for dt, date in ledger.dates.items()},
    }


def test_all_that_raw_decides_comes_back(tmp_path: Path) -> None:
    """Of a table that landed in several runs, with a date made again, files merged, records erased, a gap given up."""
    world = World(tmp_path)
    spread(world)
    world.land()
    world.raw.segment(simple(30), base=30)
    world.raw.partition().gaps.append(world.raw.gap(22, 30))
    world.raw.acknowledge(22, 30)
    world.land()
    rebuild(world, "2026-02-03")
    merge(world, files=2)
    Packer(world.raw).pack([simple(22)], 1)
    world.land()
    erase(world, [1, 14])
    take_out(world)
    second = again(world, tmp_path / "second")
    assert content(second) == content(world)
    assert second.classes()["erased"] == 2
    assert audited(second).findings == ()


def test_rows_whose_raw_is_removed_do_not_come_back(tmp_path: Path) -> None:
    world = test_raw.five(tmp_path)
    assert test_raw.remove(world).removed_to == 12
    second = again(world, tmp_path / "second")
    assert (world.offsets(), second.offsets()) == ([*range(15)], [12, 13, 14])
    assert second.classes() == {"expired": 12, "landed": 3}
    assert audited(second).findings == ()


def test_dates_that_retention_removed_come_back_until_it_runs_again(tmp_path: Path) -> None:
    world = test_table.made(tmp_path)
    test_table.drop(world)
    assert PAST not in {row["dt"] for row in world.rows()}
    second = again(world, tmp_path / "second")
    assert second.ledger.dates[PAST].rows == 4
    test_table.drop(second)
    assert content(second) == content(world)
