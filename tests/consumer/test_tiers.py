"""What each mode asks of whom, and what it does where neither tier, or only one, has the offset."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, LogTruncationError, OffsetOutOfRangeError, RebalanceInProgressError
from kafka.structs import OffsetAndMetadata

from tests.consumer.world import SMALL, Place, World, origins, partitions, produce, read_to, read_until, some
from tests.support.kafka import KafkaCluster
from tests.support.ports import HOST, free_port
from tests.support.raw_builder import RawBuilder
from tests.support.waiting import wait_until
from tests.tidemark.kafka_log.build import Record, batch
from tidemark import Mode, TieredConsumer
from tidemark.consumer.consumer import METRICS_GROUP
from tidemark.decode import SCHEMA
from tidemark.errors import GapError, StoreError, WakeupError
from tidemark.formats.keys import SegmentName
from tidemark.formats.raw.incarnations import TopicIncarnations, topic_id_text
from tidemark.formats.raw.watermark import parse, render
from tidemark.storage import Storage
from tidemark.store import open_store


def stored(world: World, topic: str, count: int = 400, parts: int = 1) -> list[TopicPartition]:
    """A topic whose rotated segments are stored."""
    world.kafka.create_topic(topic, partitions=parts, config=SMALL["4.3.1"])
    produce(world.kafka.bootstrap, topic, some(count * parts, parts))
    world.upload(topic)
    return partitions(topic, parts)


@dataclass(frozen=True)
class Shared:
    """Topics for tests that only read: ``one`` has 400 records in its partition, ``two`` 300 in each of two."""

    world: World
    one: TopicPartition
    two: list[TopicPartition]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, kafka: KafkaCluster) -> Shared:
    folder = tmp_path_factory.mktemp("tiers")
    world = World(folder, kafka, Place(f"file://{folder}/raw"))
    one, two = f"one-{folder.name}", f"two-{folder.name}"
    for topic, count, parts in ((one, 400, 1), (two, 300, 2)):
        kafka.create_topic(topic, partitions=parts, config=SMALL["4.3.1"])
        produce(kafka.bootstrap, topic, some(count * parts, parts))
    world.upload(one, two)
    return Shared(world, partitions(one)[0], partitions(two, 2))


def requests_of(consumer: Any) -> Counter[str]:
    """Count what a consumer sends from now on, by kind of request."""
    sent: Counter[str] = Counter()
    manager = consumer._manager
    send = manager.send

    def counted(request: Any, *args: Any, **options: Any) -> Any:
        sent[type(request).__name__] += 1
        return send(request, *args, **options)

    manager.send = counted
    return sent


def committed(consumer: Any, tp: TopicPartition) -> int:
    """The offset that is committed now; 0 if the group is just being joined anew."""
    consumer.poll()
    try:
        consumer.commit()
    except RebalanceInProgressError:
        return 0
    return int(consumer.committed(tp))


OF_RECORDS = {"FetchRequest", "ListOffsetsRequest", "OffsetForLeaderEpochRequest"}


@pytest.mark.essential
def test_remote_only_asks_brokers_for_assignment_and_commits_alone(world: World) -> None:
    [tp] = stored(world, f"quiet-{world.folder.name}")
    with world.consumer(Mode.REMOTE_ONLY, group_id=f"g-{tp.topic}", auto_commit_interval_ms=50) as consumer:
        sent = requests_of(consumer)
        [end] = consumer.end_offsets([tp]).values()
        assert consumer.beginning_offsets([tp]) == {tp: 0}
        assert consumer.offsets_for_times({tp: 0})[tp].offset == 0
        consumer.subscribe([tp.topic])
        read_to(consumer, {}, seconds=1)
        found = read_until(consumer, lambda found: len(found.get(tp, [])) == end)
        consumer.seek_to_end()
        assert consumer.position(tp) == end
        consumer.seek_to_beginning()
        read_until(consumer, bool)
        settled = "a commit between two rebalances"
        wait_until(lambda: committed(consumer, tp) > 0, what=settled)
    assert [record.offset for record in found[tp]] == list(range(end))
    assert not OF_RECORDS & set(sent)
    assert {"JoinGroupRequest", "OffsetCommitRequest"} <= set(sent), "the requests were not counted"


def test_kafka_only_never_opens_storage(shared: Shared) -> None:
    tp = shared.one
    with TieredConsumer(
        bootstrap_servers=shared.world.kafka.bootstrap,
        mode="KAFKA_ONLY",
        storage=shared.world.folder / "no-such-file.yaml",
    ) as consumer:
        consumer.assign([tp])
        consumer.seek_to_beginning()
        read_to(consumer, {tp: 400})
        assert "remote" not in consumer.metrics()[METRICS_GROUP]
        assert not [one.name for one in threading.enumerate() if one.name.startswith("tidemark")]


@pytest.mark.essential
def test_kafka_preferred_asks_storage_nothing_as_long_as_kafka_has_the_offset(shared: Shared) -> None:
    tp = shared.one
    with shared.world.consumer(Mode.KAFKA_PREFERRED, auto_offset_reset="latest") as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        read_to(consumer, {tp: 400})
        assert consumer.metrics()[METRICS_GROUP]["remote"]["requests"] == 0
        assert consumer.tier(tp) == "kafka"


def test_storage_that_fails_is_an_error_or_left_to_kafka(shared: Shared) -> None:
    local_world, tp = shared.world, shared.one

    class Broken:
        url = local_world.place.url

        def __getattr__(self, name: str) -> Any:
            def fail(key: str, *_: Any, **__: Any) -> Any:
                raise StoreError(key, "the disk is gone")

            return fail

    storage = local_world.storage().through(lambda _: Broken())
    with local_world.consumer(Mode.REMOTE_ONLY, storage=storage) as consumer:
        consumer.assign([tp])
        for _ in range(2):
            with pytest.raises(StoreError, match="the disk is gone"):
                read_until(consumer, bool, seconds=20)
    with local_world.consumer(Mode.REMOTE_PREFERRED, storage=storage) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        assert len(read_to(consumer, {tp: 400})[tp]) == 400
        assert origins(consumer, tp)["kafka"] == 400


# wakeup


@pytest.mark.parametrize("mode", [Mode.KAFKA_ONLY, Mode.REMOTE_ONLY])
def test_wakeup_ends_a_long_poll_from_another_thread(shared: Shared, mode: Mode) -> None:
    tp = shared.one
    with shared.world.consumer(mode) as consumer:
        consumer.assign([tp])
        given = len(read_until(consumer, bool, max_records=20)[tp])
        consumer.wakeup()
        with pytest.raises(WakeupError):
            consumer.poll()
        assert consumer.position(tp) == given, "what was delivered before stays delivered"
        consumer.seek_to_end()
        consumer.position(tp)
        calls: list[Callable[[], Any]] = [
            lambda: consumer.poll(timeout_ms=60_000),
            lambda: next(consumer),
            lambda: consumer.poll_arrow(60_000),
        ]
        for call in calls:
            timer = threading.Timer(0.3, consumer.wakeup)
            timer.start()
            began = time.monotonic()
            with pytest.raises(WakeupError):
                call()
            assert time.monotonic() - began < 20
            timer.join()
        consumer.wakeup()
        with pytest.raises(WakeupError):
            consumer.poll()
        assert consumer.poll() == {}


def test_wakeup_is_heard_while_a_group_is_joined(shared: Shared) -> None:
    """The coordinator holds the join back for the other member, which does not come."""
    topic = shared.two[0].topic
    settings = {"group_id": f"g-join-{topic}", "heartbeat_interval_ms": 200, "max_poll_interval_ms": 20_000}
    with shared.world.consumer(Mode.KAFKA_ONLY, topic, **settings) as first:
        read_until(first, bool)
        with shared.world.consumer(Mode.KAFKA_ONLY, topic, **settings) as second:
            timer = threading.Timer(0.5, second.wakeup)
            timer.start()
            with pytest.raises(WakeupError):
                second.poll(timeout_ms=60_000)
            timer.join()
            joined = "both to be members"
            wait_until(
                lambda: bool(first.poll(50)) + bool(second.poll(50)) >= 0 and len(second.assignment()) == 1,
                what=joined,
                interval=0,
            )


def test_nothing_is_lost_when_a_poll_is_interrupted(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C after one partition was drained: its records come again, and close commits none of them."""
    tps = shared.two
    group = {"group_id": f"g-interrupt-{tps[0].topic}", "enable_auto_commit": True}
    with shared.world.consumer(Mode.REMOTE_PREFERRED, max_poll_records=500, **group) as consumer:
        consumer.assign(tps)
        fetcher = consumer._fetcher
        plain = fetcher._move
        moved: list[TopicPartition] = []

        def interrupted(tp: TopicPartition, *args: Any, **options: Any) -> None:
            plain(tp, *args, **options)
            if args[1]:
                moved.append(tp)
                raise KeyboardInterrupt

        monkeypatch.setattr(fetcher, "_move", interrupted)
        with pytest.raises(KeyboardInterrupt):
            read_until(consumer, bool)
        assert moved
        assert consumer.position(moved[0]) == 0
    with shared.world.consumer(Mode.REMOTE_PREFERRED, **group) as consumer:
        consumer.assign(tps)
        assert not any(consumer.committed(tp) for tp in tps)
        assert all(len(found) == 300 for found in read_to(consumer, dict.fromkeys(tps, 300)).values())


# Arrow


@pytest.mark.parametrize("mode", list(Mode))
def test_poll_arrow_gives_the_same_records(shared: Shared, mode: Mode) -> None:
    tps = shared.two
    with shared.world.consumer(mode) as consumer:
        ends = consumer.end_offsets(tps)
        consumer.assign(tps)
        records = read_to(consumer, ends)
        consumer.seek_to_beginning()
        batches: dict[TopicPartition, list[pa.RecordBatch]] = {}
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            for tp, rows in consumer.poll_arrow(timeout_ms=500, max_bytes=5000).items():
                assert rows.schema == SCHEMA
                assert rows.nbytes < 20_000
                batches.setdefault(tp, []).append(rows)
        for tp in tps:
            rows = pa.Table.from_batches(batches[tp]).to_pylist()
            assert len(batches[tp]) > 3
            assert [row["kafka_offset"] for row in rows] == [record.offset for record in records[tp]]
            assert [row["kafka_value"] for row in rows] == [record.value for record in records[tp]]
            assert [row["kafka_timestamp"].timestamp() * 1000 for row in rows] == [one.timestamp for one in records[tp]]
        for arguments in ({"timeout_ms": -1}, {"max_bytes": 0}):
            with pytest.raises(ValueError, match="must"):
                consumer.poll_arrow(**arguments)


# Offsets that a tier does not have: a remote tier made by hand beside a real topic


class Made:
    """A topic of a real broker whose first ``deleted`` records it has deleted, and a remote tier made by hand."""

    def __init__(self, world: World, topic: str, count: int, deleted: int) -> None:
        self.world, self.topic, self.count = world, topic, count
        [self.tp] = partitions(topic)
        world.kafka.create_topic(topic)
        produce(world.kafka.bootstrap, topic, [(0, None, b"%d" % number) for number in range(count)])
        world.delete_before(topic, {0: deleted})
        with world.plain() as consumer:
            consumer.partitions_for_topic(topic)
            self.topic_id = consumer._cluster.topic_id(topic)
        self.raw = RawBuilder(open_store(world.place.url), cluster=world.cluster, topic=topic)
        self.raw.lives = TopicIncarnations(topic=topic).with_topic_id(topic_id_text(self.topic_id), datetime.now(UTC))
        self.part = self.raw.partition()
        self.part.lineage = ((0, 0),)

    def segment(self, start: int, end: int, epoch: int = 0) -> None:
        """Store offsets ``[start, end)``, each with its number as value."""
        records = [Record(n - start, 1_700_000_000_000 + n, None, b"%d" % n) for n in range(start, end)]
        self.raw.segment(batch(start, records, leader_epoch=epoch), base=start)

    def consumer(self, mode: Mode, at: int, **settings: Any) -> TieredConsumer:
        """A consumer of the topic that stands at an offset."""
        found = self.world.consumer(mode, remote_refresh_ms=100, **settings)
        found.assign([self.tp])
        found.seek(self.tp, at)
        return found


def values(found: dict[TopicPartition, list[Any]]) -> list[int]:
    return [int(record.value) for records in found.values() for record in records]


@pytest.fixture
def made(local_world: World, request: pytest.FixtureRequest) -> Made:
    """Kafka has offsets 60 to 99 of a hundred, storage 0 to 19."""
    found = Made(local_world, f"made-{local_world.folder.name}", 100, 60)
    found.segment(0, 20)
    found.raw.publish()
    return found


PREFERRED = [Mode.REMOTE_PREFERRED, Mode.KAFKA_PREFERRED]


@pytest.mark.parametrize("mode", PREFERRED)
def test_a_recorded_gap_is_an_error_or_skipped(made: Made, mode: Mode) -> None:
    made.part.gaps = [made.raw.gap(20, 60, "deleted_before_upload")]
    made.part.next_offset = 20
    made.raw.publish()
    found: list[int] = []

    def taken(got: dict[TopicPartition, list[Any]]) -> bool:
        found.extend(values(got))
        got.clear()
        return False

    with made.consumer(mode, 5) as consumer:
        for _ in range(2):
            with pytest.raises(GapError) as raised:
                read_until(consumer, taken)
            assert (raised.value.topic, raised.value.partition) == made.tp
            assert (raised.value.start, raised.value.end, raised.value.reason) == (20, 60, "deleted_before_upload")
        assert found == list(range(5, 20))
        assert consumer.position(made.tp) == 20
        consumer.seek(made.tp, 60)
        assert values(read_to(consumer, {made.tp: 100})) == list(range(60, 100))
    with made.consumer(mode, 5, on_gap="skip") as consumer:
        assert values(read_to(consumer, {made.tp: 100})) == [*range(5, 20), *range(60, 100)]
        assert consumer.metrics()[METRICS_GROUP]["skipped"] == 40
        assert origins(consumer, made.tp) == {"remote": 15, "kafka": 40}


def test_a_gap_is_an_error_or_skipped_with_remote_storage_alone(made: Made) -> None:
    made.part.gaps = [made.raw.gap(20, 40, "failed_disk")]
    made.part.next_offset = 20
    made.segment(40, 60)
    made.raw.publish()
    key = made.raw.keys().watermark
    base, watermark = parse(made.raw.store.get(key).body, key)
    assert watermark is not None
    made.raw.store.put(key, render(base, watermark.model_copy(update={"ranges_above": ((40, 60),)})))
    with made.consumer(Mode.REMOTE_ONLY, 0) as consumer:
        with pytest.raises(GapError, match="20 to 39"):
            read_until(consumer, lambda _: False)
        assert consumer.position(made.tp) == 20
    with made.consumer(Mode.REMOTE_ONLY, 0, on_gap="skip") as consumer:
        assert values(read_to(consumer, {made.tp: 60})) == [*range(20), *range(40, 60)]
        assert consumer.metrics()[METRICS_GROUP]["skipped"] == 20


@pytest.mark.parametrize("mode", PREFERRED)
def test_a_gap_that_kafka_has_is_none(made: Made, mode: Mode) -> None:
    made.part.gaps = [made.raw.gap(70, 80, "corrupt")]
    made.raw.publish()
    with made.consumer(mode, 60) as consumer:
        assert values(read_to(consumer, {made.tp: 100})) == list(range(60, 100))


@pytest.mark.parametrize("mode", PREFERRED)
def test_what_kafka_s_own_remote_tier_has_is_read_there_even_if_it_is_acknowledged(made: Made, mode: Mode) -> None:
    """A person let the table go on without it."""
    made.segment(20, 70)
    made.segment(80, 100)
    made.part.acknowledged = [made.raw.gap(70, 80, "remote_tier")]
    made.raw.publish()
    with made.consumer(mode, 5) as consumer:
        assert values(read_to(consumer, {made.tp: 100})) == list(range(5, 100))


@pytest.mark.essential
@pytest.mark.parametrize("mode", PREFERRED)
def test_between_the_tiers_an_upload_is_waited_for(made: Made, mode: Mode) -> None:
    with made.consumer(mode, 10) as consumer:
        found = values(read_until(consumer, lambda got: len(values(got)) == 10))
        assert found == list(range(10, 20))
        assert consumer.poll(timeout_ms=1500) == {}
        assert consumer.metrics()[METRICS_GROUP]["waiting"] == 1
        assert consumer.tier(made.tp) is None
        made.segment(20, 70)
        made.raw.publish()
        assert values(read_to(consumer, {made.tp: 100})) == list(range(20, 100))


@pytest.mark.parametrize("mode", PREFERRED)
def test_between_the_tiers_the_wait_ends_with_the_reset(
    made: Made, mode: Mode, caplog: pytest.LogCaptureFixture
) -> None:
    with made.consumer(mode, 20, remote_wait_ms=1000, auto_offset_reset="latest") as consumer:
        wait_until(lambda: consumer.poll(timeout_ms=100) or consumer.position(made.tp) == 100, what="a reset")
    assert sum("Kafka no longer has offset" in line for line in caplog.messages) == 1
    with made.consumer(mode, 20, remote_wait_ms=500, auto_offset_reset="none") as consumer:
        with pytest.raises(OffsetOutOfRangeError):
            read_until(consumer, bool)
        assert consumer.position(made.tp) == 20


@pytest.mark.parametrize("mode", PREFERRED)
@pytest.mark.parametrize("at", [101, 5000])
def test_beyond_kafkas_end_is_out_of_range_at_once(made: Made, mode: Mode, at: int) -> None:
    with made.consumer(mode, at, auto_offset_reset="none") as consumer, pytest.raises(OffsetOutOfRangeError):
        read_until(consumer, bool, seconds=20)
    with made.consumer(mode, at) as consumer:
        assert values(read_until(consumer, lambda got: len(values(got)) == 20)) == list(range(20))


@pytest.mark.parametrize("mode", list(Mode))
def test_below_what_retention_left_is_out_of_range_at_once(made: Made, mode: Mode) -> None:
    made.part.start_offset = 20
    made.segment(20, 50)
    made.raw.publish()
    for name in ("manifest.json", "log", "index"):
        made.raw.store.delete(made.raw.keys().segment(SegmentName(0), name))
    first = 60 if mode is Mode.KAFKA_ONLY else 20
    with made.consumer(mode, 5, auto_offset_reset="none") as consumer, pytest.raises(OffsetOutOfRangeError):
        read_until(consumer, bool, seconds=20)
    with made.consumer(mode, 5) as consumer:
        assert values(read_until(consumer, bool))[0] == first
        assert consumer.beginning_offsets([made.tp]) == {made.tp: first}


def test_remote_only_waits_until_an_agent_knows_that_the_log_ends_before(made: Made) -> None:
    with made.consumer(Mode.REMOTE_ONLY, 50, auto_offset_reset="none") as consumer:
        assert consumer.poll(timeout_ms=1000) == {}
        assert consumer.metrics()[METRICS_GROUP]["waiting"] == 1
        made.segment(20, 60)
        made.raw.publish()
        assert values(read_to(consumer, {made.tp: 60})) == list(range(50, 60))
    with made.consumer(Mode.REMOTE_ONLY, 500, auto_offset_reset="none") as consumer:
        assert consumer.poll(timeout_ms=1500) == {}
        made.raw.observed_at = datetime.now(UTC)
        made.raw.publish()
        with pytest.raises(OffsetOutOfRangeError):
            read_until(consumer, bool)


@pytest.mark.parametrize("mode", [Mode.REMOTE_ONLY, *PREFERRED])
def test_what_is_stored_of_another_incarnation_is_not_there(made: Made, mode: Mode) -> None:
    made.raw.lives = TopicIncarnations(topic=made.topic).with_topic_id("B" * 22, datetime.now(UTC))
    made.raw.publish()
    with made.consumer(mode, 60) as consumer:
        assert consumer.beginning_offsets([made.tp]) == {made.tp: 0 if mode is Mode.REMOTE_ONLY else 60}
        if mode is Mode.REMOTE_ONLY:
            assert consumer.end_offsets([made.tp]) == {made.tp: 0}
            assert consumer.poll(timeout_ms=500) == {}
        else:
            assert values(read_to(consumer, {made.tp: 100})) == list(range(60, 100))


@pytest.mark.essential
@pytest.mark.parametrize("reset", ["earliest", "none"])
def test_a_position_on_a_dead_branch_goes_back_to_the_divergence(made: Made, reset: str) -> None:
    """Read up to 20 under epoch 0; an unclean election then puts epoch 1 from 12 on."""
    with made.consumer(Mode.REMOTE_ONLY, 0, auto_offset_reset=reset) as consumer:
        assert values(read_to(consumer, {made.tp: 20})) == list(range(20))
        made.part.lineage, made.part.leader_epoch = ((0, 0), (1, 12)), 1
        made.segment(12, 30, epoch=1)
        made.raw.publish()
        if reset == "none":
            with pytest.raises(LogTruncationError) as raised:
                read_until(consumer, lambda got: len(values(got)) > 50)
            assert raised.value.divergent_offsets[made.tp].offset == 12
            consumer.seek(made.tp, 12)
        assert values(read_to(consumer, {made.tp: 30})) == list(range(12, 30))


def test_a_committed_epoch_shows_a_truncation_to_the_next_life(made: Made) -> None:
    made.part.lineage, made.part.leader_epoch = ((0, 0), (1, 12)), 1
    made.segment(12, 30, epoch=1)
    made.raw.publish()
    group = {"group_id": f"g-{made.topic}", "enable_auto_commit": False}
    with made.consumer(Mode.REMOTE_ONLY, 0, **group) as consumer:
        consumer.commit({made.tp: OffsetAndMetadata(20, "", 0)})
    with made.world.consumer(Mode.REMOTE_ONLY, **group) as consumer:
        consumer.assign([made.tp])
        assert values(read_until(consumer, bool))[0] == 12


def test_a_truncation_above_the_end_of_raw_is_seen_once_raw_reaches_the_position(local_world: World) -> None:
    """Read up to 20 in raw, up to 100 from Kafka; after an unclean election, raw has epoch 1 from 30 on."""
    made = Made(local_world, f"above-{local_world.folder.name}", 100, 15)
    made.segment(0, 20)
    made.raw.publish()
    with made.consumer(Mode.REMOTE_PREFERRED, 0) as consumer:
        assert values(read_to(consumer, {made.tp: 100})) == list(range(100))
        made.part.lineage, made.part.leader_epoch = ((0, 0), (1, 30)), 1
        made.segment(20, 30)
        made.segment(30, 120, epoch=1)
        made.raw.publish()
        assert values(read_to(consumer, {made.tp: 120})) == list(range(30, 120))


def test_a_topic_that_is_made_again_is_read_from_its_new_life(local_world: World) -> None:
    topic = f"again-{local_world.folder.name}"
    [tp] = stored(local_world, topic, 200)
    with local_world.consumer(Mode.REMOTE_PREFERRED, metadata_max_age_ms=500) as consumer:
        consumer.assign([tp])
        read_to(consumer, {tp: 200})
        local_world.kafka.delete_topic(topic)
        local_world.kafka.create_topic(topic, config=SMALL["4.3.1"])
        produce(local_world.kafka.bootstrap, topic, [(0, None, b"new %d" % n + bytes(200)) for n in range(300)])
        local_world.upload(topic)
        uploaded_at = time.monotonic()
        wait_until(
            lambda: (
                consumer.poll(timeout_ms=100) is not None
                and consumer._fetcher._scouts.sight(tp).remote_at > uploaded_at
            ),
            what="the catalogue to be looked at again",
        )
        consumer.seek_to_beginning()
        found = read_to(consumer, {tp: 300})[tp]
        assert [record.offset for record in found] == list(range(300))
        assert all(record.value.startswith(b"new ") for record in found)


def test_the_history_of_a_deleted_topic_is_read(local_world: World) -> None:
    [tp] = stored(local_world, f"gone-{local_world.folder.name}", 200)
    local_world.kafka.delete_topic(tp.topic)
    with local_world.consumer(Mode.REMOTE_ONLY) as consumer:
        consumer.assign([tp])
        consumer.seek_to_beginning()
        end = consumer.end_offsets([tp])[tp]
        found = read_to(consumer, {tp: end})[tp]
    assert end > 0
    assert [record.offset for record in found] == list(range(end))


def test_storage_comes_as_a_topics_file(shared: Shared, tmp_path: Path) -> None:
    local_world, tp = shared.world, shared.one
    path = tmp_path / "topics.yaml"
    path.write_text(
        f"cluster: {local_world.cluster}\nraw: {{url: '{local_world.place.url}'}}\n"
        f"lake: 'file://{tmp_path}/lake'\ntopics: [{{topic: {tp.topic}}}]\n"
    )
    for storage in (path, str(path), Storage.from_topics(path)):
        with local_world.consumer(Mode.REMOTE_ONLY, storage=storage) as consumer:
            consumer.assign([tp])
            assert read_until(consumer, bool)


def test_a_mode_that_reads_remotely_needs_storage(kafka: KafkaCluster) -> None:
    for mode in ("REMOTE_ONLY", Mode.REMOTE_PREFERRED, Mode.KAFKA_PREFERRED):
        with pytest.raises(ValueError, match="needs storage"):
            TieredConsumer(bootstrap_servers=kafka.bootstrap, mode=mode)
    with pytest.raises(
        ValueError, match="SOMETIMES' is not a mode; there are KAFKA_ONLY, KAFKA_PREFERRED, REMOTE_ONLY"
    ):
        TieredConsumer(bootstrap_servers=kafka.bootstrap, mode="SOMETIMES")
    with pytest.raises(ValueError, match=r"'REMOTE_PREFERED' is not a mode; did you mean REMOTE_PREFERRED?"):
        TieredConsumer(bootstrap_servers=kafka.bootstrap, mode="REMOTE_PREFERED")
    with pytest.raises(ValueError, match="mode: is required; there are KAFKA_ONLY, "):
        TieredConsumer(bootstrap_servers=kafka.bootstrap)
    with pytest.raises(ValueError, match="on_gap"):
        TieredConsumer(bootstrap_servers=kafka.bootstrap, mode=Mode.KAFKA_ONLY, on_gap="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["subscribe", "assign"])
def test_a_topic_that_no_agent_has_seen_is_named_once(
    shared: Shared, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    known, name = shared.one.topic, f"{shared.one.topic}s"
    with shared.world.consumer(Mode.REMOTE_ONLY, allow_auto_create_topics=False) as consumer:
        if how == "subscribe":
            consumer.subscribe([name])
        else:
            consumer.assign([TopicPartition(name, 0)])

        def told() -> list[str]:
            assert consumer.poll(100) == {}
            return [one.getMessage() for one in caplog.records if one.name == "tidemark.consumer.consumer"]

        wait_until(lambda: bool(told()), what="the warning")
        consumer.poll(500)
        [warning] = told()
    assert warning.startswith(
        f"{name}: no agent of cluster {shared.world.cluster} has ever seen this topic; did you mean "
    )
    assert warning.endswith(f"{known}?; waiting for it")


def test_brokers_that_nobody_named_are_said_to_be_localhosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KafkaConsumer.DEFAULT_CONFIG, "bootstrap_servers", f"{HOST}:{free_port()}")  # nobody is there
    with pytest.raises(KafkaError) as raised:
        TieredConsumer(mode=Mode.KAFKA_ONLY, bootstrap_timeout_ms=100)
    assert raised.value.__notes__ == ["bootstrap_servers is not set, so the brokers were looked for on localhost"]


def test_places_are_of_either_kind(world: World) -> None:
    assert isinstance(world.place, Place)
    assert world.place.url.startswith(("file://", "s3://"))
