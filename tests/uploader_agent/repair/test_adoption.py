"""A prefix as Pinterest's uploader leaves it, taken over: what holds is counted, what does not is left and told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tidemark.kafka_log.build import marker, transactional
from tests.uploader_agent.cli.test_commands import incarnations
from tests.uploader_agent.fakes import ID, OTHER_ID, FakePartition, T, World, records
from tests.uploader_agent.test_agent import flipped, remove
from tests.uploader_agent.verify.test_verify import examine
from tidemark.errors import FormatError, PreconditionFailed, StoreError
from tidemark.formats.keys import SegmentName, TopicPartition
from tidemark.planning import plan_ingest
from tidemark.remote.reader.read_range import read_range
from tidemark.storage import PartitionStore
from tidemark.table.delta_table import open_topic_table
from tidemark.topics import load_topics
from uploader_agent.repair.adoption import Adoption, partitions_here
from uploader_agent.repair.reupload import RepairRow
from uploader_agent.stored import watermark
from uploader_agent.verify import Severity

EXTENSIONS = ("log", "index", "timeindex")


def checkpoint(world: World, high_watermark: int = 1000) -> None:
    """What the broker writes down of its high watermarks."""
    text = f"0\n1\norders 0 {high_watermark}\n"
    (world.disk.log_dirs[0] / "replication-offset-checkpoint").write_text(text)


def theirs(world: World, *bases: int, of: FakePartition | None = None, offset_wm: int | None = None) -> FakePartition:
    """The segments at ``bases`` of a replica, sent by Pinterest's uploader; ``offset.wm`` has 20 digits and no more."""
    replica = of or FakePartition(world.disk.log_dirs[0] / str(T))
    for base in bases:
        for extension in EXTENSIONS:
            body = replica.log(base).with_suffix(f".{extension}").read_bytes()
            world.store.inner.put(world.keys().segment(SegmentName(base), extension), body)
    body = f"{bases[-1] if offset_wm is None else offset_wm:020d}".encode()
    world.store.inner.put(world.keys().watermark, body)
    return replica


def adopted(world: World, *, policy: str = "delete", dry_run: bool = False) -> list[RepairRow]:
    """What becomes of each segment."""
    broker = world.broker
    return list(Adoption(incarnations(world), broker.node_id, broker.log_dirs, T, policy).run(dry_run=dry_run))


def outcomes(rows: list[RepairRow]) -> list[tuple[int | None, str]]:
    return [(row.base_offset, row.outcome) for row in rows]


def sent(world: World) -> list[str]:
    """The objects of the partition that were written."""
    return [key for key in world.store.puts if key.startswith(world.keys().folder)]


@pytest.fixture
def stored(world: World) -> World:
    """Three segments of which two are stored, and the first is gone from the disk."""
    world.disk.partition().fill(0, 100, 200, end=300)
    checkpoint(world)
    remove(theirs(world, 0, 100), 0)
    return world


def test_the_agent_refuses_it_before_and_goes_on_from_it_afterwards(stored: World) -> None:
    with stored.agent() as agent:
        agent.upload_once()
        [partition] = agent.leadership.partitions.values()
        assert "tidemark-agent adopt" in (partition.error or "")
    assert not sent(stored)

    assert outcomes(adopted(stored)) == [(0, "adopted"), (100, "adopted")]

    line_1, found = stored.watermark()
    assert (line_1, found.start_offset, found.next_offset, found.topic_id) == (100, 0, 200, ID)
    assert (stored.manifest(0).state, stored.manifest(0).next_offset) == ("whole", 100)
    stored.store.puts.clear()
    stored.once()
    assert stored.watermark()[1].next_offset == 300
    assert [key for key in stored.store.puts if key.endswith(".log")] == [
        stored.keys().segment(SegmentName(200), "log")
    ]
    assert examine(stored, deep=True) == (Severity.OK, [])


def test_consumer_and_pipeline_read_it(stored: World, tmp_path: Path) -> None:
    adopted(stored)
    stored.once()
    topics = tmp_path / "topics.yaml"
    topics.write_text(
        f"cluster: {stored.control.cluster}\nraw: {{url: '{stored.store.url}'}}\nlake: 'file://{tmp_path}/lake'\n"
        f"topics: [{{topic: orders}}]\n"
    )
    (tmp_path / "lake").mkdir()
    rows = read_range("orders", 0, 0, 300, storage=topics)
    assert rows["kafka_offset"].to_pylist() == list(range(300))
    deployment = load_topics(topics)
    [part] = plan_ingest(open_topic_table(deployment, deployment.topic("orders"))).partitions
    assert (part.start, part.end) == (0, 300)


def test_their_indexes_are_not_believed(stored: World) -> None:
    """They may be missing, or of another version of the log: an uploader of three files may die between two."""
    keys = stored.keys()
    stored.store.inner.delete(keys.segment(SegmentName(0), "timeindex"))
    stored.store.inner.put(keys.segment(SegmentName(100), "index"), b"rubbish!")
    adopted(stored)
    stored.once()
    assert examine(stored, deep=True) == (Severity.OK, [])
    assert set(stored.manifest(100).objects) == {f"{100:020d}.{one}" for one in EXTENSIONS}


def test_again_nothing_is_done(stored: World) -> None:
    adopted(stored)
    stored.store.puts.clear()
    assert adopted(stored) == []
    assert not sent(stored)


def test_a_dry_run_only_names_the_segments(stored: World) -> None:
    rows = adopted(stored, dry_run=True)
    assert outcomes(rows) == [(0, "would adopt"), (100, "would adopt")]
    assert rows[0].bytes == len(records(0, 100))
    assert not sent(stored)


def test_killed_at_any_request_it_goes_on(world: World) -> None:
    world.disk.partition().fill(0, 100, 200, end=300)
    checkpoint(world)
    theirs(world, 0, 100, 200)
    kills = 0
    while True:
        left = [kills]

        def die(operation: str, _key: str, left: list[int] = left) -> None:
            if operation == "put":
                left[0] -= 1
                if left[0] < 0:
                    raise StoreError("store", "killed here")

        world.store.before = die
        try:
            adopted(world)
            break
        except StoreError:
            kills += 1
    world.store.before = lambda _operation, _key: None
    assert kills > 3
    assert world.watermark()[1].next_offset == 300
    assert examine(world, deep=True) == (Severity.OK, [])


def test_damaged_bytes_are_left_and_sent_again_where_a_broker_has_them(world: World) -> None:
    world.disk.partition().fill(0, 100, 200, end=300)
    checkpoint(world)
    theirs(world, 0, 100, 200)
    world.store.inner.put(world.keys().segment(SegmentName(100), "log"), flipped(records(100, 200)))

    rows = adopted(world)

    assert outcomes(rows) == [(0, "adopted"), (100, "left"), (200, "adopted")]
    assert "checksum" in (rows[1].detail or "")
    found = world.watermark()[1]
    assert (found.next_offset, found.ranges_above) == (100, ((200, 300),))
    world.once()
    assert world.watermark()[1].next_offset == 300
    assert world.stored(100, suffix="3") == records(100, 200)


def test_what_nobody_has_any_more_is_a_gap(world: World) -> None:
    """Their uploader goes on after a segment that it could not send, and nothing of that is written down."""
    replica = world.disk.partition().fill(0, 100, 200, end=300)
    checkpoint(world)
    theirs(world, 0, 200)
    remove(replica, 0, 100)

    assert outcomes(adopted(world)) == [(0, "adopted"), (200, "adopted")]

    world.once()
    found = world.watermark()[1]
    assert (found.next_offset, [(gap.start, gap.end) for gap in found.gaps]) == (100, [(100, 200)])


def test_segments_of_two_leaders_overlap(world: World) -> None:
    world.disk.partition().fill(0, 100, end=200)
    theirs(world, 0, 100)
    other = world.another(2)
    other.disk.partition().fill(0, 80, 160, end=240)
    theirs(world, 80, 160, of=other.disk.partition())
    world.disk.partition().fill(200, end=240)
    checkpoint(world)

    assert [one for _, one in outcomes(adopted(world))] == ["adopted"] * 4

    assert (world.watermark()[0], world.watermark()[1].next_offset) == (160, 240)


def test_another_branch_of_the_log_is_adopted_and_does_not_count(world: World) -> None:
    """An unclean election: what their uploader had sent of offsets 150 to 199 is not in the log any more."""
    world.disk.partition().fill(0, 100, end=200)
    theirs(world, 0, 100)
    replica = world.disk.partition().segment(100, records(100, 150) + records(150, 200, epoch=5))
    replica.lineage([(3, 0), (5, 150)])
    checkpoint(world)

    assert outcomes(adopted(world)) == [(0, "adopted"), (100, "adopted")]

    assert world.manifest(100).lineage == ((3, 0),)
    assert world.watermark()[1].next_offset == 150


def test_a_segment_that_begins_on_another_branch_is_left(world: World) -> None:
    world.disk.partition().fill(0, 100, end=200)
    theirs(world, 0, 100)
    world.disk.partition().segment(100, records(100, 200, epoch=5)).lineage([(3, 0), (5, 100)])
    checkpoint(world)

    rows = adopted(world)

    assert outcomes(rows) == [(0, "adopted"), (100, "left")]
    assert "leader epoch 3" in (rows[1].detail or "")
    assert world.watermark()[1].next_offset == 100


def test_what_compaction_removed_is_no_hole(world: World) -> None:
    replica = world.disk.partition()
    for base, content in ((0, records(0, 70)), (100, records(120, 180)), (200, records(200, 230)), (300, b"")):
        replica.segment(base, content)
    checkpoint(world)
    theirs(world, 0, 100, 200)

    rows = adopted(world, policy="compact,delete")

    assert [row.next_offset for row in rows] == [100, 200, 230]
    assert world.watermark()[1].next_offset == 230


def test_what_is_not_committed_here_is_left(stored: World) -> None:
    checkpoint(stored, 199)
    rows = adopted(stored)
    assert outcomes(rows) == [(0, "adopted"), (100, "left")]
    assert "above the high watermark 199" in (rows[1].detail or "")


def test_aborts_are_known_across_segments(world: World) -> None:
    """Their uploader does not send ``.txnindex``."""
    replica = world.disk.partition().segment(0, transactional(0, 7, 10) + records(10, 100))
    replica.segment(100, records(100, 190) + marker(190, 7, commit=False))
    replica.segment(191, b"")
    checkpoint(world)
    theirs(world, 0, 100)

    adopted(world)

    assert [one.first_offset for one in world.manifest(0).open_transactions] == [0]
    assert world.manifest(100).open_transactions == ()
    assert f"{100:020d}.txnindex" in world.names()


def test_an_uploader_that_still_runs_is_noticed(stored: World) -> None:
    def write_on(operation: str, key: str) -> None:
        if operation == "put" and key.endswith("manifest.json"):
            stored.store.inner.put(stored.keys().watermark, f"{200:020d}".encode())

    stored.store.before = write_on
    with pytest.raises(PreconditionFailed):
        adopted(stored)
    with pytest.raises(FormatError, match="another uploader"):
        watermark.read(PartitionStore(stored.store, stored.keys()))


def test_a_topic_that_was_made_again_has_another_prefix(stored: World) -> None:
    adopted(stored)
    world = stored.another(2)
    world.disk.partition(topic_id=OTHER_ID).fill(0, end=100)
    with pytest.raises(FormatError, match="is incarnation 1 of its topic"):
        adopted(world)


def test_only_a_broker_with_a_replica_can_do_it(world: World) -> None:
    with pytest.raises(FormatError, match="run this on a broker that has a replica"):
        adopted(world)
    world.disk.partition(TopicPartition("orders", 3)).fill(0, end=10)
    world.disk.partition(TopicPartition("others", 1)).fill(0, end=10)
    assert partitions_here(world.disk.log_dirs, "orders") == [TopicPartition("orders", 3)]
