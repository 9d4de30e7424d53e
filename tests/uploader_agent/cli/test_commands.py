"""``plan``, ``status``, ``leaders`` and ``reupload``: what they say is what then happens."""

from __future__ import annotations

import json

import pytest

from tests.tidemark.kafka_log.build import marker, transactional
from tests.uploader_agent.fakes import ID, OTHER_ID, FakePartition, T, World, records
from tests.uploader_agent.repair.test_gaps import with_hole
from tests.uploader_agent.test_agent import flipped, remove
from tests.uploader_agent.verify.test_verify import delete, examine, put
from tidemark.errors import FormatError
from tidemark.formats.keys import TopicPartition
from tidemark.storage import Storage
from uploader_agent.broker.admin import Led
from uploader_agent.cli import inspect_commands
from uploader_agent.cli.inspect_commands import PlanLine
from uploader_agent.repair.reupload import RepairRow, Reupload
from uploader_agent.stored.incarnations import Incarnations
from uploader_agent.verify import Severity


def planned(world: World, quiet_before: float = 0.0) -> list[PlanLine]:
    with world.agent(read_only=True) as agent:
        agent.survey()
        return list(inspect_commands.plan_of(agent.leadership.partitions.values(), quiet_before))


def test_a_plan_is_what_is_then_put(world: World) -> None:
    """Bytes and requests by count, over two partitions; nothing is put by planning."""
    other = TopicPartition("orders", 1)
    world.metadata.leads[other] = Led(3, ID)
    world.disk.partition().fill(0, 100, end=200)
    world.disk.partition(other).fill(0, end=50)
    lines = planned(world)
    assert world.store.puts == []
    assert [(line.partition, line.segments, line.tails, line.error) for line in lines] == [
        ("orders-0", 2, 0, None),
        ("orders-1", 1, 0, None),
    ]
    total = inspect_commands.total_of(lines)
    world.once()
    stored = [info for at in (T, other) for info in world.store.list(world.keys(at).folder)]
    assert total.bytes == sum(info.size for info in stored if info.key.endswith(".log"))
    watermarks = sum(key.endswith("offset.wm") for key in world.store.puts)
    partition_puts = [key for key in world.store.puts if "/orders-" in key]
    claims = 2
    assert len(partition_puts) - watermarks == total.puts - total.segments - claims
    assert 2 * claims <= watermarks <= total.segments + claims
    assert planned(world) == []


def test_a_plan_has_the_quiet_tail_and_what_fails(world: World) -> None:
    world.disk.partition().segment(0, records(0, 50))
    assert [(line.segments, line.tails) for line in planned(world, quiet_before=2e9)] == [(1, 1)]
    world.store.inner.put(world.keys().watermark, b"nonsense")
    [line] = planned(world)
    assert "line 1 must be" in (line.error or "")
    assert inspect_commands.total_of([line]).error == "1 partitions failed"
    assert inspect_commands.total_of([]) == PlanLine("total", 0, 0, 0, 0, None)


def test_a_plan_goes_on_after_a_partition_whose_files_cannot_be_opened(world: World) -> None:
    other = TopicPartition("orders", 1)
    world.metadata.leads[other] = Led(3, ID)
    log = world.disk.partition().fill(0, end=50).log(0)
    world.disk.partition(other).fill(0, end=50)
    with world.agent(read_only=True) as agent:
        agent.survey()
        log.unlink()
        log.symlink_to("nowhere")
        failed, fine = inspect_commands.plan_of(agent.leadership.partitions.values(), 0.0)
    assert "symbolic link" in (failed.error or "")
    assert (fine.partition, fine.segments, fine.error) == ("orders-1", 1, None)


def test_status_names_gaps_with_reason_and_time(world: World) -> None:
    with_hole(world)
    world.once()
    with world.agent(read_only=True) as agent:
        agent.survey()
        lines = inspect_commands.status_rows(agent.leadership.partitions.values())
    [gap] = world.watermark()[1].gaps
    shown = inspect_commands.status_table(lines)
    assert f"orders-0: gap 100 to 200: deleted_before_upload, since {gap.detected_at.isoformat()}" in shown
    [found] = json.loads(json.dumps([line.to_json() for line in lines]))
    assert found["gaps"] == [
        {"start": 100, "end": 200, "reason": "deleted_before_upload", "detected_at": gap.detected_at.isoformat()}
    ]


def test_metrics_count_gaps_and_their_offsets(world: World) -> None:
    with_hole(world)
    with world.agent() as agent:
        agent.upload_once()
        agent._monitor.measure()
        assert (agent.metrics.gaps._value.get(), agent.metrics.gap_offsets._value.get()) == (1, 100)


def test_leaders_are_what_is_led(world: World) -> None:
    world.disk.partition().fill(0, end=50)
    world.metadata.leads[TopicPartition("elsewhere", 0)] = Led(9, OTHER_ID)
    with world.agent(read_only=True) as agent:
        agent.survey()
        [line] = inspect_commands.leader_lines(agent.leadership.partitions.values())
    assert line == ("orders-0", 3, ID, 1_000_000, str(world.disk.log_dirs[0] / "orders-0"))


def incarnations(world: World) -> Incarnations:
    storage = Storage(world.control.cluster, world.settings().raw, opener=lambda _url: world.store)
    return Incarnations(storage, record=True)


def reuploaded(world: World, start: int = 0, end: int = 1 << 40, *, dry_run: bool = False) -> list[RepairRow]:
    broker = world.broker
    found = Reupload(incarnations(world), broker.node_id, broker.log_dirs, T, lambda _seconds: None)
    return list(found.run(start, end, dry_run=dry_run))


def outcomes(lines: list[RepairRow]) -> list[tuple[int | None, str]]:
    return [(line.base_offset, line.outcome) for line in lines]


@pytest.fixture
def stored(world: World) -> World:
    world.disk.partition().fill(0, 100, 200, end=300)
    (world.disk.log_dirs[0] / "replication-offset-checkpoint").write_text("0\n1\norders 0 300\n")
    world.once()
    world.store.puts.clear()
    return world


@pytest.mark.parametrize(
    ("extension", "outcome"),
    [("log", "brought"), ("index", "rebuilt"), ("timeindex", "rebuilt"), ("manifest.json", "rebuilt")],
)
def test_what_was_lost_is_put_again(stored: World, extension: str, outcome: str) -> None:
    delete(stored, 100, extension)
    assert examine(stored)[0] is not Severity.OK
    stored.once()
    assert examine(stored)[0] is not Severity.OK or extension == "manifest.json", "the agent takes it for final"
    assert outcomes(reuploaded(stored, 100, 200)) == [(100, outcome)]
    assert examine(stored, deep=True) == (Severity.OK, [])
    assert stored.keys().watermark not in stored.store.puts


def test_what_is_there_is_adopted(stored: World) -> None:
    assert outcomes(reuploaded(stored)) == [(0, "as it was"), (100, "as it was"), (200, "as it was")]
    assert stored.store.puts == []


def test_a_manifest_of_another_version_is_written_anew(stored: World) -> None:
    put(stored, 100, "log", stored.stored(100))
    assert examine(stored)[0] is Severity.CORRUPT
    assert outcomes(reuploaded(stored, 150, 151)) == [(100, "rebuilt")]
    assert examine(stored) == (Severity.OK, [])


def test_a_manifest_that_is_made_again_knows_what_was_open_before_its_segment(world: World) -> None:
    """By the stored segment before it, which lies within the range as well."""
    partition = world.disk.partition()
    for base, content in (
        (0, transactional(0, 5, 10)),
        (10, transactional(10, 7, 10)),
        (20, marker(20, 7, commit=False) + transactional(21, 8, 9)),
        (30, b""),
    ):
        partition.segment(base, content)
    (world.disk.log_dirs[0] / "replication-offset-checkpoint").write_text("0\n1\norders 0 30\n")
    world.once(upload={"concurrency": 1}, retry_initial="1ms", retry_cap="5ms")
    before, aborted = world.manifest(20), world.stored(20, "txnindex")
    delete(world, 20, "manifest.json")
    assert outcomes(reuploaded(world)) == [(0, "as it was"), (10, "as it was"), (20, "rebuilt")]
    assert world.stored(20, "txnindex") == aborted
    assert world.manifest(20).open_transactions == before.open_transactions


def test_a_dry_run_only_names_the_range(stored: World) -> None:
    delete(stored, 100, "log")
    lines = reuploaded(stored, 199, 201, dry_run=True)
    assert outcomes(lines) == [(200, "as it was"), (100, "would bring")]
    assert lines[1].bytes == len(records(100, 200))
    assert stored.store.puts == []


def test_what_diverges_is_left_and_told(stored: World) -> None:
    put(stored, 100, "log", flipped(records(100, 200)))
    [line] = reuploaded(stored, 100, 200)
    assert line.outcome == "left"
    assert "is not what its manifest describes" in (line.detail or "")
    assert stored.stored(100) == flipped(records(100, 200))


def test_only_what_is_committed_goes(stored: World) -> None:
    (stored.disk.log_dirs[0] / "replication-offset-checkpoint").write_text("0\n1\norders 0 299\n")
    assert outcomes(reuploaded(stored)) == [(0, "as it was"), (100, "as it was")]


def test_a_follower_can_do_it(stored: World) -> None:
    """With boundaries of its own: what the store lacks is brought, in as many runs as it has segments there."""
    delete(stored, 100, "log")
    follower = stored.another(2, leads={})
    follower.disk.partition().fill(0, 80, 160, end=240)
    (follower.disk.log_dirs[0] / "replication-offset-checkpoint").write_text("0\n1\norders 0 300\n")
    there = [(0, "as it was"), (200, "as it was")]
    assert outcomes(reuploaded(follower, 100, 200)) == [*there, (100, "brought"), (160, "brought")]
    assert [stored.manifest(base).next_offset for base in (100, 160)] == [160, 200]
    assert examine(stored, deep=True) == (Severity.OK, [])


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
