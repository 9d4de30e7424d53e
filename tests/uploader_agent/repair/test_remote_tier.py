"""Offsets that left the broker's disk for Kafka's own remote tier: what they are called, and when that changes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from tests.support.waiting import wait_until
from tests.uploader_agent.fakes import T, World
from tests.uploader_agent.repair.test_gaps import gap_reasons, with_hole
from tests.uploader_agent.test_agent import no_errors
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.watermark_index import IndexEntry, WatermarkIndex
from tidemark.intervals import Intervals
from uploader_agent.broker.admin import BrokerUnavailable, KafkaTier, Led, Offsets
from uploader_agent.disk.watcher import Watcher
from uploader_agent.repair.gaps import Evidence, find_gaps

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TIER = "remote_tier"


def gap(start: int, end: int, reason: str) -> Gap:
    return Gap.model_validate({"from": start, "to": end, "reason": reason, "detected_at": NOW})


def reasons(evidence: Evidence, *known: Gap, damaged: tuple[int, int] = (0, 0)) -> list[tuple[int, int, str]]:
    """What the hole [100, 300) is called."""
    found = find_gaps(Intervals([(100, 300)]) - Intervals([damaged]), Intervals([damaged]), evidence, known, NOW)
    return [(gap.start, gap.end, gap.reason) for gap in found]


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        pytest.param(Evidence(log_start=0, disk_start=300, tier=KafkaTier(300, 400)), [(100, 300, TIER)], id="all"),
        pytest.param(
            Evidence(log_start=0, disk_start=300, tier=KafkaTier(300, None)), [(100, 300, TIER)], id="before 3.9"
        ),
        pytest.param(
            Evidence(log_start=150, disk_start=300, tier=KafkaTier(300, 400)),
            [(100, 150, "deleted_before_upload"), (150, 300, TIER)],
            id="retention took a part of the tier as well",
        ),
        pytest.param(
            Evidence(log_start=0, disk_start=300, tier=KafkaTier(300, 200)),
            [(100, 200, TIER), (200, 300, "failed_disk")],
            id="a disk was lost before the rest had gone there",
        ),
        pytest.param(
            Evidence(log_start=0, disk_start=300, tier=KafkaTier(300, 0)),
            [(100, 300, "unknown")],
            id="the broker has just started, and does not know yet",
        ),
        pytest.param(
            Evidence(log_start=0, disk_start=300, tier=KafkaTier(0, 0)),
            [(100, 300, "failed_disk")],
            id="no remote tier, and the broker says so",
        ),
        pytest.param(
            Evidence(log_start=0, disk_start=300, tier=KafkaTier(200, 400)),
            [(100, 200, TIER), (200, 300, "failed_disk")],
            id="not moved, and not there",
        ),
        pytest.param(
            Evidence(Intervals([(100, 200)]), log_start=0, disk_start=300, tier=KafkaTier(300, 400)),
            [(100, 300, TIER)],
            id="given up by the hold, and not lost",
        ),
        pytest.param(Evidence(log_start=0, disk_start=300), [(100, 300, "failed_disk")], id="an older broker"),
        pytest.param(Evidence(tier=None), [(100, 300, "unknown")], id="nobody answers"),
    ],
)
def test_a_new_hole(evidence: Evidence, expected: list[tuple[int, int, str]]) -> None:
    assert reasons(evidence) == expected


ALL = Evidence(log_start=0, disk_start=300, tier=KafkaTier(300, 400))


@pytest.mark.parametrize("before", ["unknown", "failed_disk", "staging_full", "unclean_election"])
def test_what_an_earlier_version_called_lost_is_corrected_and_keeps_its_time(before: str) -> None:
    known = gap(100, 300, before)
    assert find_gaps(Intervals([(100, 300)]), Intervals(), ALL, [known], datetime.now(UTC)) == (gap(100, 300, TIER),)


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        pytest.param(Evidence(), [(100, 300, TIER)], id="nobody answers"),
        pytest.param(
            Evidence(log_start=0, disk_start=300, tier=KafkaTier(300, 0)), [(100, 300, TIER)], id="a new leader"
        ),
        pytest.param(
            Evidence(log_start=250, disk_start=300, tier=KafkaTier(300, 400)),
            [(100, 250, "deleted_before_upload"), (250, 300, TIER)],
            id="retention",
        ),
        pytest.param(
            Evidence(log_start=300, disk_start=300), [(100, 300, "deleted_before_upload")], id="the tier switched off"
        ),
    ],
)
def test_what_is_there_stays_there_until_the_log_start_has_passed_it(
    evidence: Evidence, expected: list[tuple[int, int, str]]
) -> None:
    assert reasons(evidence, gap(100, 300, TIER)) == expected


def test_damage_stays_damage() -> None:
    assert reasons(ALL, gap(100, 150, "corrupt"), damaged=(100, 150)) == [(100, 150, "corrupt"), (150, 300, TIER)]


def silent(_led: object) -> dict[TopicPartition, Offsets]:
    raise BrokerUnavailable("told so")


def indexed(world: World) -> IndexEntry:
    key = world.control.index(1)
    [entry] = WatermarkIndex.from_bytes(world.store.get(key).body, key).entries
    return entry


def test_a_hole_of_a_running_agent_follows_the_broker(world: World) -> None:
    with_hole(world, log_start=0)
    world.metadata.tier = KafkaTier(200, 0)
    no_errors(world.once())
    assert gap_reasons(world) == [(100, 200, "unknown")]
    world.metadata.tier = KafkaTier(200, 260)
    no_errors(world.once())
    assert gap_reasons(world) == [(100, 200, TIER)]
    assert world.watermark()[1].next_offset == 100, "the partition waits there"
    assert [gap.reason for gap in indexed(world).gaps] == [TIER]
    world.metadata.log_start = 150
    no_errors(world.once())
    assert gap_reasons(world) == [(100, 150, "deleted_before_upload"), (150, 200, TIER)]
    assert world.watermark()[1].remote_tier == (), "the partition begins at 0"


def test_retention_in_the_remote_tier_shows_in_no_file_and_is_noticed(world: World) -> None:
    with_hole(world, log_start=0)
    world.metadata.tier = KafkaTier(200, 260)
    with world.agent(Watcher(), scan_interval="1s") as agent, agent.running():
        wait_until(lambda: gap_reasons(world) == [(100, 200, TIER)], what="the gap")
        world.metadata.log_start = 150
        changed = [(100, 150, "deleted_before_upload"), (150, 200, TIER)]
        wait_until(lambda: gap_reasons(world) == changed, what="the log's new start to be told")


def test_a_partition_that_begins_above_the_log_says_what_only_the_remote_tier_has(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.disk.partition().fill(180, end=300)
    world.metadata.tier = KafkaTier(180, 200)
    no_errors(world.once())
    watermark = world.watermark()[1]
    assert (watermark.start_offset, watermark.next_offset, watermark.gaps) == (180, 300, ())
    assert (watermark.remote_tier, indexed(world).remote_tier) == (((0, 180),), ((0, 180),))
    world.metadata.log_start = 50
    no_errors(world.once())
    assert (world.watermark()[1].remote_tier, indexed(world).remote_tier) == (((50, 180),), ((50, 180),))
    with monkeypatch.context() as patch:
        patch.setattr(world.metadata, "offsets", silent)
        world.once()
    assert world.watermark()[1].remote_tier == ((50, 180),), "as long as nobody answers"
    world.metadata.log_start, world.metadata.tier = 180, None
    no_errors(world.once())
    assert (world.watermark()[1].remote_tier, indexed(world).remote_tier) == ((), ())


def test_an_earlier_version_s_partition_says_so_too(world: World) -> None:
    """Its index is trusted at the start, and nothing is uploaded."""
    world.disk.partition().fill(180, end=300)
    world.metadata.log_start = 180
    no_errors(world.once())
    assert world.watermark()[1].remote_tier == ()
    world.metadata.log_start, world.metadata.tier = 0, KafkaTier(180, 300)
    no_errors(world.once())
    assert world.watermark()[1].remote_tier == ((0, 180),)


def test_only_logs_that_begin_above_their_start_are_asked_about(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[TopicPartition] = set()

    def answer(led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, KafkaTier | None]:
        asked.update(led)
        return dict.fromkeys(led, KafkaTier(200, 300))

    monkeypatch.setattr(world.metadata, "remote_tier", answer)
    world.disk.partition().fill(0, end=100)
    no_errors(world.once())
    assert not asked
    with_hole(world)
    no_errors(world.once())
    assert not asked, "retention took what is missing"
    world.metadata.log_start = 0
    no_errors(world.once())
    assert asked == {T}
