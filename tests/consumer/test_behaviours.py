"""What ``KafkaConsumer`` documents, row by row, over itself and over ``TieredConsumer``.

A row gets a :class:`Subject`: a topic of two partitions with 300 records each, of which the remote tier has most, and
the class to try it on. What holds for kafka-python's own holds for ours, whichever tier a record comes from.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.errors import (
    IllegalStateError,
    KafkaConfigurationError,
    KafkaTimeoutError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)
from kafka.serializer import Deserializer

from tests.consumer.conftest import VERSIONS, brokers_of, place_of
from tests.consumer.world import World, partitions, produce, read_to, read_until
from tests.support.fixtures import SEED
from tests.support.waiting import wait_until
from tidemark import Mode

COUNT = 300
TOPIC = "behaviours"
P0, P1 = partitions(TOPIC, 2)
KINDS = ("KafkaConsumer", "KAFKA_ONLY", "REMOTE_PREFERRED")


@dataclass(frozen=True)
class Subject:
    """What a row is tried on."""

    world: World
    kind: str
    topic: str = TOPIC

    def make(self, *topics: str, **settings: Any) -> Any:
        """A consumer; ``with`` closes it."""
        if self.kind == "KafkaConsumer":
            return self.world.plain(*topics, **settings)
        return self.world.consumer(Mode(self.kind), *topics, **settings)

    def assigned(self, *tps: TopicPartition, **settings: Any) -> Any:
        """A consumer with partitions, both unless told otherwise."""
        consumer = self.make(**settings)
        consumer.assign(list(tps) or [P0, P1])
        return consumer

    @staticmethod
    def group(**settings: Any) -> dict[str, Any]:
        """Settings of a group of its own."""
        return {"group_id": f"g-{uuid.uuid4().hex}", "enable_auto_commit": False, **settings}


Row = Callable[[Subject], None]
ROWS: list[Row] = []


def row(function: Row) -> Row:
    ROWS.append(function)
    return function


@pytest.fixture(scope="module", params=VERSIONS)
def shared(starts_kafka: None, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> World:
    folder = tmp_path_factory.mktemp("behaviours")
    brokers = brokers_of(request.param, request)
    world = World(folder, brokers, place_of("local", request, folder))
    brokers.create_topic(TOPIC, partitions=2, config={**world.small, "message.timestamp.type": "CreateTime"})
    produce(brokers.bootstrap, TOPIC, [(n % 2, b"k%d" % n, b"%d" % (n // 2) + bytes(200)) for n in range(2 * COUNT)])
    world.upload(TOPIC)
    return world


@pytest.fixture
def subject(request: pytest.FixtureRequest, shared: World) -> Subject:
    return Subject(shared, request.param)


def offsets(found: dict[TopicPartition, list[Any]], tp: TopicPartition) -> list[int]:
    return [record.offset for record in found.get(tp, [])]


# poll


@row
def poll_refuses_wrong_arguments(subject: Subject) -> None:
    with subject.assigned() as consumer:
        for arguments, error in (
            ({"timeout_ms": -1}, ValueError),
            ({"max_records": 0}, ValueError),
            ({"max_records": -3}, ValueError),
            ({"max_records": 1.5}, TypeError),
        ):
            with pytest.raises(error):
                consumer.poll(**arguments)


@row
def poll_gives_at_most_max_records_and_goes_on(subject: Subject) -> None:
    with subject.assigned(P0, max_poll_records=7) as consumer:
        seen: list[int] = []
        while len(seen) < 50:
            found = consumer.poll(timeout_ms=1000)
            assert len(offsets(found, P0)) <= 7
            seen += offsets(found, P0)
        assert seen == list(range(len(seen)))
        for most in (1, 3, 20):
            more = read_until(consumer, bool, max_records=most)
            assert 0 < len(offsets(more, P0)) <= most


@row
def poll_gives_a_dict_of_lists_without_empty_ones(subject: Subject) -> None:
    with subject.assigned() as consumer:
        ends = {P0: COUNT, P1: COUNT}
        polled = []
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            polled.append(consumer.poll(timeout_ms=200))
        assert all(records for found in polled for records in found.values())
        assert {tp for found in polled for tp in found} == {P0, P1}
        assert type(polled[0]) is dict
        assert consumer.poll() == {}


@row
def poll_returns_after_its_timeout_when_there_is_nothing(subject: Subject) -> None:
    with subject.assigned(P0) as consumer:
        consumer.seek_to_end()
        began = time.monotonic()
        assert consumer.poll(timeout_ms=300) == {}
        assert time.monotonic() - began >= 0.29


@row
def poll_without_an_assignment_gives_nothing(subject: Subject) -> None:
    with subject.make() as consumer:
        assert consumer.poll(timeout_ms=50) == {}


@row
def every_partition_gets_its_turn(subject: Subject) -> None:
    with subject.assigned(max_poll_records=10) as consumer:
        found = read_until(consumer, lambda found: len(found) == 2)
        assert all(offsets(found, tp) == list(range(len(found[tp]))) for tp in (P0, P1))


@row
def records_have_all_fields(subject: Subject) -> None:
    with subject.assigned(P0) as consumer:
        first = read_to(consumer, {P0: COUNT})[P0][0]
        assert (first.topic, first.partition, first.offset, first.leader_epoch) == (TOPIC, 0, 0, 0)
        assert (first.key, first.value) == (b"k0", b"0" + bytes(200))
        assert first.headers == [("number", b"0"), ("none", None), ("empty", b"")]
        assert abs(first.timestamp / 1000 - time.time()) < 3600
        assert (first.timestamp_type, first.checksum) == (0, None)
        assert (first.serialized_key_size, first.serialized_value_size, first.serialized_header_size) == (2, 201, 16)


# iteration


@row
def iteration_ends_after_consumer_timeout_ms(subject: Subject) -> None:
    with subject.assigned(P0, consumer_timeout_ms=1000) as consumer:
        assert [record.offset for record in consumer] == list(range(COUNT))
        assert list(consumer) == []


@row
def iteration_moves_the_position_record_by_record(subject: Subject) -> None:
    with subject.assigned(P0) as consumer:
        for record in consumer:
            assert consumer.position(P0) == record.offset + 1
            if record.offset == 20:
                break
        assert next(consumer).offset == 21


@row
def iteration_follows_a_seek(subject: Subject) -> None:
    with subject.assigned(P0) as consumer:
        assert [next(consumer).offset for _ in range(5)] == [0, 1, 2, 3, 4]
        consumer.seek(P0, 100)
        assert [next(consumer).offset for _ in range(3)] == [100, 101, 102]
        consumer.seek(P0, 2)
        assert next(consumer).offset == 2


@row
def iteration_skips_a_partition_that_is_paused_and_loses_nothing(subject: Subject) -> None:
    with subject.assigned(consumer_timeout_ms=1000) as consumer:
        first = next(consumer)
        tp = TopicPartition(first.topic, first.partition)
        consumer.pause(tp)
        others = list(consumer)
        assert {record.partition for record in others} == {1 - tp.partition}
        consumer.resume(tp)
        assert [record.offset for record in consumer] == list(range(1, COUNT))


@row
def iteration_stops_when_it_is_closed(subject: Subject) -> None:
    consumer = subject.assigned(P0)
    assert next(consumer).offset == 0
    consumer.close()
    with pytest.raises(StopIteration):
        next(consumer)


# subscription


@row
def names_a_pattern_and_assign_exclude_one_another(subject: Subject) -> None:
    with subject.make(**subject.group()) as consumer:
        with pytest.raises(ValueError, match="topics or pattern"):
            consumer.subscribe()
        with pytest.raises(IllegalStateError):
            consumer.subscribe(topics=[TOPIC], pattern=".*")
        consumer.subscribe(topics=[TOPIC])
        with pytest.raises(IllegalStateError):
            consumer.assign([P0])
        with pytest.raises(IllegalStateError):
            consumer.subscribe(pattern="behav.*")
        consumer.unsubscribe()
        consumer.assign([P0])
        with pytest.raises(IllegalStateError):
            consumer.subscribe(topics=[TOPIC])


@row
def topics_must_be_a_list_and_the_listener_a_listener(subject: Subject) -> None:
    with subject.make() as consumer, pytest.raises(TypeError):
        consumer.subscribe(topics=TOPIC)
    with subject.make() as consumer:
        with pytest.raises(TypeError):
            consumer.subscribe(topics=[TOPIC], listener=object())
        with pytest.raises(ValueError, match="opic name"):
            consumer.subscribe(topics=["a/b"])


@row
def subscribing_to_names_joins_the_group(subject: Subject) -> None:
    with subject.make(TOPIC, **subject.group()) as consumer:
        assert consumer.subscription() == {TOPIC}
        read_to(consumer, {}, seconds=1)
        found = read_until(consumer, lambda found: sum(map(len, found.values())) == 2 * COUNT)
        assert all(offsets(found, tp) == list(range(COUNT)) for tp in (P0, P1))
        assert consumer.assignment() == {P0, P1}


@row
def subscribing_to_a_pattern_finds_its_topics(subject: Subject) -> None:
    with subject.make(**subject.group()) as consumer:
        consumer.subscribe(pattern="^behav.*s$")
        read_until(consumer, lambda found: len(found) == 2)
        assert consumer.subscription() == {TOPIC}
        assert consumer.assignment() == {P0, P1}


@row
def subscribing_without_a_group_assigns_all_partitions(subject: Subject) -> None:
    with subject.make(TOPIC) as consumer:
        read_until(consumer, lambda found: len(found) == 2)
        assert consumer.assignment() == {P0, P1}


@row
def assign_replaces_and_keeps_what_stays(subject: Subject) -> None:
    with subject.assigned(P0) as consumer:
        read_until(consumer, bool, max_records=10)
        at = consumer.position(P0)
        consumer.assign([P0, P1])
        assert consumer.assignment() == {P0, P1}
        assert consumer.position(P0) == at
        consumer.assign([P1])
        assert consumer.assignment() == {P1}
        consumer.assign([])
        assert consumer.assignment() == set()
        assert consumer.subscription() is None


@row
def unsubscribe_clears_everything(subject: Subject) -> None:
    with subject.make(TOPIC, **subject.group()) as consumer:
        read_until(consumer, bool)
        consumer.unsubscribe()
        assert (consumer.assignment(), consumer.subscription()) == (set(), None)
        assert consumer.poll(timeout_ms=50) == {}


@row
def the_listener_hears_of_assignment_and_of_revocation_at_close(subject: Subject) -> None:
    heard: list[tuple[str, set[TopicPartition]]] = []

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
        def on_partitions_assigned(self, assigned: Any) -> None:
            heard.append(("assigned", set(assigned)))

        def on_partitions_revoked(self, revoked: Any) -> None:
            heard.append(("revoked", set(revoked)))

    with subject.make(**subject.group()) as consumer:
        consumer.subscribe(topics=[TOPIC], listener=Listener())
        read_until(consumer, bool)
    assert heard[-2:] == [("assigned", {P0, P1}), ("revoked", {P0, P1})]


# positions


@row
def seek_refuses_wrong_arguments(subject: Subject) -> None:
    with subject.assigned(P0) as consumer:
        with pytest.raises(TypeError):
            consumer.seek((TOPIC, 0), 1)
        for offset in (-1, "1", 1.0):
            with pytest.raises(ValueError, match="Offset must be int"):
                consumer.seek(P0, offset)
        with pytest.raises(ValueError, match="Unassigned"):
            consumer.seek(P1, 0)
        for move in (consumer.seek_to_beginning, consumer.seek_to_end):
            with pytest.raises(TypeError):
                move((TOPIC, 0))
            with pytest.raises(ValueError, match="Unassigned"):
                move(P1)


@row
def seek_to_an_end_needs_an_assignment(subject: Subject) -> None:
    with subject.make() as consumer:
        for move in (consumer.seek_to_beginning, consumer.seek_to_end):
            with pytest.raises(ValueError, match="assigned"):
                move()


@row
def the_last_seek_counts(subject: Subject) -> None:
    with subject.assigned(P0) as consumer:
        for offset in (10, 250, 77):
            consumer.seek(P0, offset)
        assert consumer.position(P0) == 77
        assert offsets(read_until(consumer, bool), P0)[0] == 77
        consumer.seek(P0, 5)
        assert offsets(read_until(consumer, bool), P0)[0] == 5
        consumer.seek(P0, 290)
        assert offsets(read_until(consumer, bool), P0)[0] == 290


@row
def seek_to_beginning_and_end(subject: Subject) -> None:
    with subject.assigned() as consumer:
        consumer.seek_to_end()
        assert (consumer.position(P0), consumer.position(P1)) == (COUNT, COUNT)
        consumer.seek_to_beginning(P1)
        assert (consumer.position(P0), consumer.position(P1)) == (COUNT, 0)
        assert offsets(read_until(consumer, bool), P1)[0] == 0


@row
def position_refuses_what_is_not_assigned(subject: Subject) -> None:
    with subject.assigned(P0) as consumer:
        with pytest.raises(TypeError):
            consumer.position((TOPIC, 0))
        with pytest.raises(IllegalStateError):
            consumer.position(P1)
        with pytest.raises(IllegalStateError):
            consumer.highwater(P1)


@row
def position_is_that_of_the_next_record(subject: Subject) -> None:
    with subject.assigned(P0) as consumer:
        assert consumer.position(P0) == 0
        found = read_until(consumer, bool, max_records=13)
        assert consumer.position(P0) == found[P0][-1].offset + 1


@row
def auto_offset_reset_decides_where_there_is_no_position(subject: Subject) -> None:
    for reset, expected in (("earliest", 0), ("latest", COUNT), ("smallest", 0), ("largest", COUNT)):
        with subject.assigned(P0, auto_offset_reset=reset) as consumer:
            assert consumer.position(P0) == expected
    with subject.assigned(P0, auto_offset_reset="none") as consumer, pytest.raises(NoOffsetForPartitionError):
        consumer.poll(timeout_ms=1000)


@row
def an_offset_beyond_the_end_is_reset_or_an_error(subject: Subject) -> None:
    with subject.assigned(P0) as consumer:
        consumer.seek(P0, COUNT + 1000)
        assert offsets(read_until(consumer, bool), P0)[0] == 0
    with subject.assigned(P0, auto_offset_reset="none") as consumer:
        consumer.seek(P0, COUNT + 1000)
        with pytest.raises(OffsetOutOfRangeError):
            read_until(consumer, bool)
        consumer.seek(P0, 7)
        assert offsets(read_until(consumer, bool), P0)[0] == 7


# pause and resume


@row
def a_paused_partition_gives_nothing_and_then_goes_on(subject: Subject) -> None:
    with subject.assigned() as consumer:
        read_until(consumer, lambda found: P0 in found, max_records=5)
        at = consumer.position(P0)
        consumer.pause(P0)
        assert consumer.paused() == {P0}
        found = read_until(consumer, lambda _: consumer.position(P1) == COUNT)
        assert P0 not in found
        consumer.resume(P0)
        assert consumer.paused() == set()
        if subject.kind == "KafkaConsumer":  # kafka-python forgets what it had parked, for ever
            consumer.seek(P0, at)
            return
        assert offsets(read_to(consumer, {P0: COUNT}), P0) == list(range(at, COUNT))


@row
def a_seek_while_paused_counts(subject: Subject) -> None:
    with subject.assigned(P0) as consumer:
        read_until(consumer, bool, max_records=5)
        consumer.pause(P0)
        consumer.seek(P0, 123)
        assert consumer.poll(timeout_ms=100) == {}
        consumer.resume(P0)
        assert offsets(read_until(consumer, bool), P0)[0] == 123


@row
def pause_and_resume_take_partitions(subject: Subject) -> None:
    with subject.assigned(P0) as consumer:
        for call in (consumer.pause, consumer.resume):
            with pytest.raises(TypeError):
                call((TOPIC, 0))


# commits


@row
def what_is_committed_is_where_the_next_one_begins(subject: Subject) -> None:
    group = subject.group()
    with subject.assigned(P0, **group) as consumer:
        assert consumer.committed(P0) is None
        found = read_until(consumer, bool, max_records=17)
        consumer.commit()
        assert consumer.committed(P0) == found[P0][-1].offset + 1
    with subject.assigned(P0, **group) as consumer:
        assert offsets(read_until(consumer, bool), P0)[0] == len(found[P0])


@row
def commit_takes_offsets_and_metadata(subject: Subject) -> None:
    with subject.assigned(**subject.group()) as consumer:
        consumer.commit({P0: OffsetAndMetadata(42, "note", 0)})
        assert consumer.committed(P0) == 42
        assert consumer.committed(P0, metadata=True) == OffsetAndMetadata(42, "note", 0)
        assert consumer.committed(P1) is None
        with pytest.raises(TypeError):
            consumer.committed((TOPIC, 0))
        with pytest.raises(TypeError):
            consumer.commit({P0: 42})


@row
def commit_async_calls_back_in_a_later_poll(subject: Subject) -> None:
    with subject.assigned(P0, **subject.group()) as consumer:
        answers: list[Any] = []
        wanted = {P0: OffsetAndMetadata(9, "", -1)}
        future = consumer.commit_async(wanted, callback=lambda *answer: answers.append(answer))
        wait_until(lambda: future.is_done, what="the commit's answer")
        assert future.succeeded()
        read_until(consumer, lambda _: bool(answers))
        assert answers[0][0] == wanted
        assert consumer.committed(P0) == 9


@row
def committing_needs_a_group(subject: Subject) -> None:
    with subject.assigned(P0) as consumer:
        for call in (consumer.commit, consumer.commit_async, lambda: consumer.committed(P0)):
            with pytest.raises(IllegalStateError):
                call()


@row
def auto_commit_covers_what_an_earlier_poll_gave(subject: Subject) -> None:
    group = subject.group(enable_auto_commit=True, auto_commit_interval_ms=20)
    with subject.assigned(P0, **group) as consumer:
        given = before = 0
        while not (committed := consumer.committed(P0) or 0):  # a question to the brokers each time
            before = given
            given += len(offsets(consumer.poll(timeout_ms=100, max_records=1), P0))
        assert 0 < committed <= before


@row
def closing_commits_what_was_given_and_no_more(subject: Subject) -> None:
    group = subject.group(enable_auto_commit=True)
    with subject.assigned(P0, **group) as consumer:
        given = len(offsets(read_until(consumer, bool, max_records=10), P0))
    with subject.assigned(P0, **group) as consumer:
        assert consumer.committed(P0) == given
        for record in consumer:
            if record.offset == given + 4:
                break
    with subject.assigned(P0, **group) as consumer:
        assert consumer.committed(P0) == given + 5
        consumer.seek(P0, 200)
        consumer.close(autocommit=False)
    with subject.assigned(P0, **group) as consumer:
        assert consumer.committed(P0) == given + 5


@row
def leaving_with_an_exception_commits_nothing(subject: Subject) -> None:
    group = subject.group(enable_auto_commit=True)

    def fail(found: dict[TopicPartition, list[Any]]) -> bool:
        return bool(found) and 1 // 0 > 0

    with pytest.raises(ZeroDivisionError), subject.assigned(P0, **group) as consumer:
        read_until(consumer, fail)
    with subject.assigned(P0, **group) as consumer:
        assert consumer.committed(P0) is None


# questions


@row
def beginning_and_end_offsets(subject: Subject) -> None:
    with subject.make() as consumer:
        assert consumer.beginning_offsets([P0, P1]) == {P0: 0, P1: 0}
        assert consumer.end_offsets([P0, P1]) == {P0: COUNT, P1: COUNT}


@row
def questions_about_an_unknown_partition_time_out(subject: Subject) -> None:
    with subject.make() as consumer:
        for ask in (consumer.beginning_offsets, consumer.end_offsets):
            with pytest.raises(KafkaTimeoutError):
                ask([TopicPartition(TOPIC, 99)], timeout_ms=300)


@row
def offsets_for_times(subject: Subject) -> None:
    with subject.assigned(P0) as consumer:
        records = read_to(consumer, {P0: COUNT})[P0]
        for wanted in (records[0], records[150], records[-1]):
            found = consumer.offsets_for_times({P0: wanted.timestamp})[P0]
            first = next(record for record in records if record.timestamp >= wanted.timestamp)
            assert (found.offset, found.timestamp, found.leader_epoch) == (first.offset, first.timestamp, 0)
        assert consumer.offsets_for_times({P0: 0})[P0].offset == 0
        assert consumer.offsets_for_times({P0: records[-1].timestamp + 10**9}) == {P0: None}
        with pytest.raises(ValueError, match="negative"):
            consumer.offsets_for_times({P0: -5})


@row
def topics_and_partitions(subject: Subject) -> None:
    with subject.make() as consumer:
        assert TOPIC in consumer.topics()
        assert consumer.partitions_for_topic(TOPIC) == {0, 1}
        assert consumer.partitions_for_topic("there-is-none") == set()


@row
def highwater_is_none_or_the_end(subject: Subject) -> None:
    with subject.assigned(P0) as consumer:
        assert consumer.highwater(P0) is None
        read_to(consumer, {P0: COUNT})
        assert consumer.highwater(P0) == COUNT


@row
def group_metadata_names_the_member(subject: Subject) -> None:
    group = subject.group()
    with subject.make() as consumer:
        assert consumer.group_metadata().group_id is None
    with subject.make(TOPIC, **group) as consumer:
        read_until(consumer, bool)
        found = consumer.group_metadata()
        assert found.group_id == group["group_id"]
        assert found.generation_id > 0
        assert found.member_id


@row
def metrics_are_by_group_and_name(subject: Subject) -> None:
    with subject.assigned(P0) as consumer:
        read_until(consumer, bool)
        found = consumer.metrics()
        assert {"consumer-metrics", "consumer-fetch-manager-metrics", "consumer-coordinator-metrics"} <= set(found)
        assert "records-lag-max" in found["consumer-fetch-manager-metrics"]
        assert all(hasattr(name, "group") for name in consumer.metrics(raw=True))
    with subject.assigned(P0, metrics_enabled=False) as consumer:
        read_until(consumer, bool)
        assert consumer.metrics() is None


# settings


@row
def unknown_settings_are_refused(subject: Subject) -> None:
    with pytest.raises(KafkaConfigurationError, match="no_such_setting"):
        subject.make(no_such_setting=1)


@row
def settings_that_contradict_are_refused(subject: Subject) -> None:
    with pytest.raises(KafkaConfigurationError):
        subject.make(request_timeout_ms=100, fetch_max_wait_ms=500)
    if subject.kind != "KafkaConsumer":  # kafka-python then leaves its thread behind
        with pytest.raises(KafkaConfigurationError, match="isolation_level"):
            subject.make(isolation_level="serializable")


@row
def deserializers_are_functions_or_classes(subject: Subject) -> None:
    class Upper(Deserializer):  # type: ignore[misc]  # kafka-python has no types
        closed = False

        def deserialize(self, topic: str, headers: Any, data: bytes) -> str:
            return f"{topic}:{len(headers)}:{data.decode().upper()}"

        def close(self) -> None:
            self.closed = True

    keys = Upper()
    with pytest.warns(DeprecationWarning, match="value_deserializer"):
        consumer = subject.assigned(
            P0, key_deserializer=keys, value_deserializer=lambda value: int(value.rstrip(b"\0"))
        )
    with consumer:
        found = read_to(consumer, {P0: COUNT})[P0]
        assert [record.value for record in found] == list(range(COUNT))
        assert (found[0].key, found[1].key) == (f"{TOPIC}:3:K0", f"{TOPIC}:0:K2")
        assert found[0].serialized_value_size == 201
    assert keys.closed


@row
def what_a_deserializer_refuses_comes_up_after_what_precedes_it(subject: Subject) -> None:
    class Picky(Deserializer):  # type: ignore[misc]  # likewise
        def deserialize(self, topic: str, headers: Any, data: bytes) -> int:
            number = int(data.rstrip(b"\0"))
            if number == 30:
                raise ArithmeticError("30 is not welcome")
            return number

    with subject.assigned(P0, value_deserializer=Picky()) as consumer:
        seen: list[int] = []

        def taken(found: dict[TopicPartition, list[Any]]) -> bool:
            seen.extend(record.value for record in found.pop(P0, []))
            return False

        with pytest.raises(ArithmeticError):
            read_until(consumer, taken)
        assert seen == list(range(30))
        assert consumer.position(P0) == 30
        if subject.kind != "KafkaConsumer":  # kafka-python's next poll never returns
            with pytest.raises(ArithmeticError):
                read_until(consumer, bool)
            consumer.seek(P0, 31)
            assert read_until(consumer, bool)[P0][0].value == 31


# the end


@row
def a_closed_consumer_refuses_to_poll(subject: Subject) -> None:
    consumer = subject.assigned(P0)
    consumer.close()
    consumer.close()
    with pytest.raises(IllegalStateError):
        consumer.poll()


@row
def no_thread_is_left_behind(subject: Subject) -> None:
    before = {thread.ident for thread in threading.enumerate()}
    with subject.assigned() as consumer:
        read_until(consumer, bool)
    wait_until(lambda: {thread.ident for thread in threading.enumerate()} <= before, what="the threads to end")


def cases() -> Iterator[Any]:
    """Each row on what is ours; on what it is measured by, which changes with kafka-python alone, a sample."""
    chosen = random.Random(f"{SEED}: behaviours").sample(ROWS, 12)
    for check in ROWS:
        for kind in KINDS:
            sampled = kind == "REMOTE_PREFERRED" or (kind == "KafkaConsumer" and check in chosen)
            marks = () if sampled else pytest.mark.full
            yield pytest.param(kind, check, id=f"{check.__name__}-{kind}", marks=marks)


@pytest.mark.parametrize(("subject", "check"), cases(), indirect=["subject"])
def test_row(check: Row, subject: Subject) -> None:
    try:
        check(subject)
    except TimeoutError:
        if subject.kind != "KafkaConsumer":
            raise
        check(subject)  # on a busy machine kafka-python may lose a group's join for good


def test_the_table_is_not_empty() -> None:
    assert len(ROWS) > 45
    assert len({check.__name__ for check in ROWS}) == len(ROWS)
    assert KafkaConsumer.__module__.startswith("kafka")
