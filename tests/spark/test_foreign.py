"""Leader epochs that nobody gave, in ``offset.wm`` and in a watermark index: they hold up, hide and close nothing."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.spark.world import World
from tests.tidemark.kafka_log.build import simple
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.watermark_index import IndexEntry, WatermarkIndex
from tidemark.planning.ingest import dates_to_close
from tidemark.raw_topic import RawTopic
from tidemark.timestamps import utc_now

FORGED = 1 << 30


def forge(world: World, broker: int = 7, name: int = 7, **changes: object) -> None:
    """Write an index of ``broker`` under the name of ``name``, whose one entry is the leader's with ``changes``."""
    control = ControlKeys("", "east")
    own = WatermarkIndex.from_bytes(world.raw.store.get(control.index(1)).body, "own")
    entry = own.entries[0].model_copy(update={"leader_epoch": FORGED, **changes})
    index = own.model_copy(update={"broker": broker, "entries": (entry,)})
    world.raw.store.put(control.index(name), index.to_bytes())


def entry_of(world: World) -> IndexEntry:
    return RawTopic(world.table).vouched(world.ledger)[0, 0]


def test_what_landed_under_a_foreign_epoch_holds_up_nothing(tmp_path: Path) -> None:
    """The agent has overcome it; without its word the ledger, which is later, stays as it is."""
    world = World(tmp_path)
    world.raw.segment(simple(0))
    world.raw.partition().leader_epoch = FORGED
    world.land()
    world.raw.segment(simple(3))
    world.raw.partition().leader_epoch = 3
    world.raw.publish()
    assert world.land().status == "stale"
    world.raw.partition().foreign_epochs = (FORGED,)
    world.land()
    assert (world.next_offset(), world.ledger.partitions[0].leader_epoch) == (6, 3)


def test_a_truncation_after_a_foreign_epoch_is_seen(tmp_path: Path) -> None:
    world = World(tmp_path)
    raw, known = world.raw, world.raw.partition()
    for base in (0, 3, 6):
        raw.segment(simple(base))
    known.leader_epoch = FORGED
    world.land()
    known.lineage, known.end, known.leader_epoch, known.foreign_epochs = ((3, 0), (4, 3)), 3, 4, (FORGED,)
    raw.segment(simple(3, leader_epoch=4), base=3)
    world.land()
    assert world.offsets() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("next_offset", [0, 3, 10**12])
def test_a_forged_entry_hides_nothing(tmp_path: Path, next_offset: int) -> None:
    world = World(tmp_path)
    world.raw.segment(simple(0))
    world.land()
    world.raw.segment(simple(3))
    world.raw.publish()
    forge(world, next_offset=next_offset)
    assert RawTopic(world.table).entries[0, 0].leader_epoch == FORGED
    assert entry_of(world).leader_epoch == 3
    world.land()
    assert world.next_offset() == 6


def test_entries_of_no_life_and_under_another_name_are_nobodys(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.raw.segment(simple(0))
    world.raw.publish()
    cases: list[tuple[int, int, dict[str, Any]]] = [
        (7, 7, {"incarnation": 9}),
        (8, 8, {"topic_id": "B" * 22}),
        (1, 9, {"next_offset": 9}),
        (2, 10, {"next_offset": 9}),
    ]
    for broker, name, changes in cases:
        forge(world, broker, name, **changes)
    assert RawTopic(world.table).entries[0, 0].leader_epoch == 3
    world.land()
    assert world.next_offset() == 3


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No date is overdue."""
    monkeypatch.setattr("tidemark.topics._OVERDUE", timedelta(days=36_500))


@pytest.mark.usefixtures("patient")
def test_a_leader_that_has_not_claimed_yet_holds_up_dates(tmp_path: Path) -> None:
    """Its claim may cut off what has landed. If the leader of ``offset.wm`` is seen after it, nobody had its epoch."""
    world = World(tmp_path, "sane_timestamps: {ahead: 36500d}")
    world.raw.segment(simple(0))
    world.land()
    closing: list[int] = []
    for observe in (world.raw.publish, lambda: forge(world, observed_at=utc_now()), world.raw.publish):
        world.raw.observed_at = utc_now()
        observe()
        closing.append(len(dates_to_close(world.table, world.ledger)))
    assert closing == [1, 0, 1]


@pytest.mark.usefixtures("patient")
def test_a_forged_entry_closes_no_date(tmp_path: Path) -> None:
    """It says that nothing is left to land; the leader's, which counts, was observed before the date was over."""
    world = World(tmp_path, "sane_timestamps: {ahead: 36500d}")
    world.raw.segment(simple(0))
    world.land()
    assert (dates_to_close(world.table, world.ledger), next(iter(world.ledger.dates.values())).state) == ([], "open")
    forge(world, observed_at=utc_now() + timedelta(days=1), high_watermark=0)
    assert dates_to_close(world.table, world.ledger) == []
    world.raw.observed_at = utc_now()
    world.raw.publish()
    assert [datetime.fromisoformat(dt) for dt in dates_to_close(world.table, world.ledger)]
