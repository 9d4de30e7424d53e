"""Ranges of packs that nothing will ever seal are given up by a person's word, and nothing else is."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.spark.retention.test_packs import HOUR, OLD, WEEK, age, left, reported
from tests.spark.world import World
from tests.support.live_end import Packed, Packer
from tests.tidemark.kafka_log.build import simple
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.tombstones import PackTombstone
from tidemark.planning.maintenance.pack_proof import SETTLED
from tidemark_spark.jobs.running import run_job
from tidemark_spark.retention.forgetting import ForgetReport, StillPacked, forget

ID = "A" * 22
CONTROL = ControlKeys("", "east")


@pytest.fixture
def packed(world: World) -> list[Packed]:
    """A pack with ranges of partitions 0 and 1, of which 1 is sealed; it is old, and partition 0's prefix is gone."""
    packer = Packer(world.raw)
    ranges = [([simple(0)], number, None, (), False, None, None) for number in range(2)]
    found = packer.pack_all(ranges)
    world.raw.segment([simple(0)], 1, parts=[found[1].part])
    world.raw.publish()
    remove_prefix(world, 0)
    age(world, WEEK)
    return found


def remove_prefix(world: World, partition: int) -> None:
    for info in [*world.raw.store.list(world.raw.keys(partition).folder)]:
        world.raw.store.delete(info.key)


def forgotten(world: World, *word: str) -> ForgetReport:
    [report] = forget(world.table.deployment, "east", ID, *word)
    return report


def records(world: World) -> list[str]:
    return [info.key for info in world.raw.store.list(CONTROL.pack_tombstones)]


def age_records(world: World, by: timedelta = OLD) -> None:
    """The words were given that much earlier."""
    for key in records(world):
        stone = PackTombstone.load(world.raw.store, key)
        world.raw.store.delete(key)
        stone = stone.model_copy(update={"at": stone.at - by})
        world.raw.store.put(stone.key(CONTROL), stone.to_bytes())


def test_a_removed_prefix_holds_packs_until_it_is_given_up(world: World, packed: list[Packed]) -> None:
    assert (reported(world).removed, left(world)) == (0, {packed[0].key})
    dry = forgotten(world)
    assert (dry.topic, dry.packs, dry.record) == ("orders", 1, None)
    assert dry.stays == ("partition 1: offsets 0 to 2: offset.wm leads to them, and they go once they are sealed",)
    [part] = dry.partitions
    assert (part.partition, part.spans, part.ranges, part.size) == (0, ((0, 3),), 1, len(simple(0)))
    assert records(world) == [], "a dry run writes nothing"
    assert "partition 0: offsets 0 to 2; 1 ranges, " in dry.text()
    assert "these would be given up" in dry.text()
    report = forgotten(world, "ada", "prefix removed, INC-512")
    assert records(world) == [report.record]
    stone = PackTombstone.load(world.raw.store, records(world)[0])
    assert (stone.by, stone.reason, stone.topic_id) == ("ada", "prefix removed, INC-512", ID)
    assert stone.partitions == dry.partitions
    assert stone.written_as
    assert reported(world).removed == 0, "a run that was planned with the pack may still read it"
    age_records(world)
    age(world, OLD)
    assert (reported(world).removed, left(world)) == (1, set())


def test_metadata_that_was_removed_is_given_up(world: World) -> None:
    packed = Packer(world.raw).pack([simple(0)])
    age(world, WEEK)
    assert reported(world).examples[0].why.endswith(f"no agent knows the topic id {ID}; --forget gives it up")
    forgotten(world, "ada", "gone")
    age(world, OLD, packed.key)
    age_records(world)
    assert reported(world).removed == 1


def test_what_offset_wm_leads_to_is_not_given_up(world: World) -> None:
    """The topic goes on after its prefix was removed: from 6 on, as its log began there."""
    packer = Packer(world.raw)
    old = packer.pack([simple(0), simple(3)])
    tail = packer.pack([simple(6)])
    known = world.raw.partition()
    known.start_offset, known.next_offset, known.end = 6, 6, 6
    world.raw.publish()
    age(world, WEEK)
    report = forgotten(world, "ada", "prefix removed")
    assert [one.spans for one in report.partitions] == [((0, 6),)]
    assert report.stays == ("partition 0: offsets 6 to 8: offset.wm leads to them, and they go once they are sealed",)
    age_records(world)
    age(world, OLD)
    assert reported(world).removed == 1
    assert left(world) == {tail.key}
    assert old.key not in left(world)


def test_what_is_still_packed_is_not_given_up(world: World) -> None:
    packed = Packer(world.raw).pack([simple(0)])
    age(world, SETTLED - HOUR, packed.key)
    with pytest.raises(StillPacked, match="give it up once nothing of it was packed for 2 days"):
        forgotten(world, "ada", "gone")
    assert records(world) == []


def test_what_is_packed_later_is_not_given_up(world: World) -> None:
    """Also at the same offsets: a log that begins again."""
    first = Packer(world.raw).pack([simple(0)])
    age(world, 2 * WEEK)
    forgotten(world, "ada", "gone")
    age_records(world, WEEK)
    later = Packer(world.raw, 2).pack([simple(0)])
    age(world, OLD, later.key)
    reported(world)
    assert left(world) == {later.key}
    assert first.key not in left(world)


@pytest.mark.parametrize("change", [{"topic_id": "B" * 22}, {"cluster": "west"}, None])
def test_a_record_that_is_not_its_key_s_gives_nothing_up(world: World, change: dict[str, object] | None) -> None:
    packed = Packer(world.raw).pack([simple(0)])
    age(world, WEEK)
    forgotten(world, "ada", "gone")
    age_records(world)
    [key] = records(world)
    stone = PackTombstone.load(world.raw.store, key)
    world.raw.store.put(key, stone.model_copy(update=change).to_bytes() if change else b"{}")
    report = reported(world)
    assert left(world) == {packed.key}
    assert report.examples[0].key == key


def test_the_job_gives_up_by_name_and_reason_alone(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    Packer(world.raw).pack([simple(0)])
    age(world, WEEK)
    topics = ["--topics", str(world.topics_file)]
    assert run_job("retain_packs", [*topics, "--forget", "B" * 22]) == 2
    assert "no pack has a range of the topic id" in capsys.readouterr().err
    assert run_job("retain_packs", [*topics, "--forget", ID]) == 0
    assert "these would be given up" in capsys.readouterr().out
    assert run_job("retain_packs", [*topics, "--forget", ID, "--apply", "--by", "ada"]) == 2
    assert "needs --by and --reason" in capsys.readouterr().err
    assert records(world) == []
    assert run_job("retain_packs", [*topics, "--forget", ID, "--apply", "--by", "ada", "--reason", "gone"]) == 0
    out = capsys.readouterr().out
    [key] = records(world)
    assert f"the record is {key}" in out
    assert run_job("retain_packs", [*topics, "--forget", ID, "--json"]) == 0
    assert ForgetReport.from_bytes(capsys.readouterr().out.encode(), "report").topic == "orders"
