"""``plan``, ``status``, ``leaders`` and ``reupload``: what they say is what then happens."""

from __future__ import annotations

import json

import pytest

from tests.uploader_agent.fakes import ID, OTHER_ID, FakePartition, T, World, records
from tests.uploader_agent.test_agent import flipped, remove
from tests.uploader_agent.test_gaps import with_hole
from tests.uploader_agent.test_verify import delete, examine, put
from tidemark.endpoints import resolver_of
from tidemark.errors import FormatError
from tidemark.formats.keys import TopicPartition
from tidemark.store import Store
from uploader_agent.broker.admin import Led
from uploader_agent.cli import status_table, upload_plan
from uploader_agent.cli.upload_plan import PlanLine
from uploader_agent.remote.destinations import Destinations
from uploader_agent.repair.reupload import Reupload, ReuploadRow
from uploader_agent.verify import Severity


def planned(world: World, quiet_before: float = 0.0) -> list[PlanLine]:
    with world.agent(read_only=True) as agent:
        agent.survey()
        return list(upload_plan.plan_of(agent.leadership.partitions.values(), quiet_before))


def test_a_plan_is_what_is_then_put(world: World) -> None:
    """Bytes and requests by count, over two partitions; nothing is put by planning."""
    other = TopicPartition("orders", 1)
    world.metadata.leads[other] = Led(3, ID)
    world.disk.partition().fill(0, 100, end=200)
    world.disk.partition(other).fill(0, end=50)
    lines = planned(world)
    assert world.store.puts == []
    assert [(line.partition, line.segments, line.provisional, line.error) for line in lines] == [
        ("orders-0", 2, 0, None),
        ("orders-1", 1, 0, None),
    ]
    gets: list[str] = []
    world.store.before = lambda operation, key: gets.append(key) if operation == "get" and key in fences else None
    fences = {world.keys(at).watermark for at in (T, other)}
    total = upload_plan.total_of(lines)
    world.once()
    stored = [info for at in (T, other) for info in world.store.list(world.keys(at).folder)]
    data = [info for info in stored if not info.key.endswith((".manifest.json", "offset.wm"))]
    assert total.bytes == sum(info.size for info in data)
    watermarks = sum(key.endswith("offset.wm") for key in world.store.puts)
    partition_puts = [key for key in world.store.puts if "/orders-" in key]
    assert len(partition_puts) - watermarks == total.puts - total.segments
    assert 2 <= watermarks <= total.segments
    assert total.gets == 3 <= len(gets)
    assert planned(world) == []


def test_a_plan_has_the_quiet_tail_and_what_fails(world: World) -> None:
    world.disk.partition().segment(0, records(0, 50))
    assert [(line.segments, line.provisional) for line in planned(world, quiet_before=2e9)] == [(1, 1)]
    world.store.inner.put(world.keys().watermark, b"nonsense")
    [line] = planned(world)
    assert "line 1 must be" in (line.error or "")
    assert upload_plan.total_of([line]).error == "1 partitions failed"
    assert upload_plan.total_of([]) == PlanLine("total", 0, 0, 0, 0, 0, None)


def test_status_names_gaps_with_reason_and_time(world: World) -> None:
    with_hole(world)
    world.once()
    with world.agent(read_only=True) as agent:
        agent.survey()
        lines = status_table.of(agent.leadership.partitions.values())
    [gap] = world.watermark()[1].gaps
    shown = status_table.table(lines)
    assert f"orders-0: gap 100 to 200: deleted_before_upload, since {gap.detected_at.isoformat()}" in shown
    [found] = json.loads(json.dumps([line.to_json() for line in lines]))
    assert found["gaps"] == [
        {"start": 100, "end": 200, "reason": "deleted_before_upload", "detected_at": gap.detected_at.isoformat()}
    ]


def test_metrics_count_gaps_and_their_offsets(world: World) -> None:
    with_hole(world)
    with world.agent() as agent:
        agent.upload_once()
        agent._measure()
        assert (agent.metrics.gaps._value.get(), agent.metrics.gap_offsets._value.get()) == (1, 100)


def test_leaders_are_what_is_led(world: World) -> None:
    world.disk.partition().fill(0, end=50)
    world.metadata.leads[TopicPartition("elsewhere", 0)] = Led(9, OTHER_ID)
    with world.agent(read_only=True) as agent:
        agent.survey()
        [line] = status_table.led(agent.leadership.partitions.values())
    assert line == ("orders-0", 3, ID, 1_000_000, str(world.disk.log_dirs[0] / "orders-0"))


def places(world: World) -> Destinations:
    def opener(_url: str) -> Store:
        return world.store

    return Destinations(world.control.cluster, resolver_of(world.settings().raw), opener, record=True)


def reuploaded(world: World, start: int = 0, end: int = 1 << 40, *, dry_run: bool = False) -> list[ReuploadRow]:
    broker = world.broker
    found = Reupload(places(world), broker.node_id, broker.log_dirs, T, lambda _seconds: None)
    return list(found.run(start, end, dry_run=dry_run))


def outcomes(lines: list[ReuploadRow]) -> list[tuple[int, str]]:
    return [(line.base_offset, line.outcome) for line in lines]


@pytest.fixture
def stored(world: World) -> World:
    world.disk.partition().fill(0, 100, 200, end=300)
    (world.disk.log_dirs[0] / "replication-offset-checkpoint").write_text("0\n1\norders 0 300\n")
    world.once()
    world.store.puts.clear()
    return world


@pytest.mark.parametrize(
    ("base", "extension"), [(100, "log"), (100, "index"), (200, "snapshot"), (100, "manifest.json")]
)
def test_what_was_lost_is_put_again(stored: World, base: int, extension: str) -> None:
    delete(stored, base, extension)
    assert examine(stored)[0] is not Severity.OK
    stored.once()
    assert examine(stored)[0] is not Severity.OK or extension == "manifest.json", "the agent takes it for final"
    assert outcomes(reuploaded(stored, 100, 200)) == [(100, "brought")]
    assert examine(stored, deep=True) == (Severity.OK, [])
    assert stored.keys().watermark not in stored.store.puts


def test_what_is_there_is_adopted(stored: World) -> None:
    assert outcomes(reuploaded(stored)) == [(0, "as it was"), (100, "as it was"), (200, "as it was")]
    assert stored.store.puts == []


def test_a_manifest_of_another_version_is_written_anew(stored: World) -> None:
    put(stored, 100, "log", stored.stored(100))
    assert examine(stored)[0] is Severity.CORRUPT
    assert outcomes(reuploaded(stored, 150, 151)) == [(100, "brought")]
    assert examine(stored) == (Severity.OK, [])


def test_a_dry_run_only_names_the_range(stored: World) -> None:
    delete(stored, 100, "log")
    lines = reuploaded(stored, 199, 201, dry_run=True)
    assert outcomes(lines) == [(100, "would bring"), (200, "would bring")]
    assert lines[0].bytes == len(records(100, 200))
    assert stored.store.puts == []


def test_what_diverges_is_left_and_told(stored: World) -> None:
    put(stored, 100, "log", flipped(records(100, 200)))
    [line] = reuploaded(stored, 100, 200)
    assert line.outcome == "left"
    assert "holds other bytes" in (line.detail or "")
    assert stored.stored(100) == flipped(records(100, 200))


def test_only_what_is_committed_goes(stored: World) -> None:
    (stored.disk.log_dirs[0] / "replication-offset-checkpoint").write_text("0\n1\norders 0 299\n")
    assert outcomes(reuploaded(stored)) == [(0, "as it was"), (100, "as it was")]


def test_a_follower_can_do_it(stored: World) -> None:
    """With boundaries of its own: what covers the range is brought."""
    delete(stored, 100, "log")
    follower = stored.another(2, leads={})
    follower.disk.partition().fill(0, 80, 160, end=240)
    (follower.disk.log_dirs[0] / "replication-offset-checkpoint").write_text("0\n1\norders 0 300\n")
    assert outcomes(reuploaded(follower, 100, 200)) == [(80, "brought"), (160, "brought")]
    assert stored.manifest(80).broker == 2


def test_a_partition_that_is_not_here(world: World) -> None:
    with pytest.raises(FormatError, match="run this on a broker that has a replica"):
        reuploaded(world)


def test_a_running_leader_sees_what_was_brought(world: World) -> None:
    """The gap was recorded; a person brings it from a disk that was mounted again."""
    partition = with_hole(world)
    world.once()
    (world.disk.log_dirs[0] / "replication-offset-checkpoint").write_text("0\n1\norders 0 300\n")
    partition.fill(100, end=200)
    assert outcomes(reuploaded(world, 100, 200)) == [(100, "brought")]
    remove(FakePartition(partition.folder), 100)
    world.once()
    assert world.watermark()[1].next_offset == 300
