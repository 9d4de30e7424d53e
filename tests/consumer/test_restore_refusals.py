"""What a restore refuses: others' records, targets that would lose something, ranges that are not there."""

from __future__ import annotations

import json
import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType

from tests.consumer.history import kept
from tests.consumer.raw_history import RawHistory, raw_history, target_name
from tests.support.kafka import KafkaCluster
from tests.tidemark.cli.test_cli import call
from tests.tidemark.kafka_log.build import T0, Record
from tidemark.errors import ForeignRecords
from tidemark.remote.reader.tier import RemoteTier
from tidemark.restore import run
from tidemark.restore.run import Restore, RestoreRequest
from tidemark.restore.target import Target
from tidemark.storage import Storage

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def made(tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> RawHistory:
    monkeypatch.setattr("tidemark.restore.run.STABLE_SECONDS", 0.1)
    return raw_history(tmp_path, rng, rounds=4)


def restore(capsys: Capture, made: RawHistory, kafka: KafkaCluster, target: str, *more: str) -> tuple[int, str, str]:
    return call(capsys, "restore", *made.command(kafka, target, *more))


def produce(kafka: KafkaCluster, topic: str, *values: bytes, partition: int = 0) -> None:
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    for value in values:
        producer.send(topic, value, partition=partition)
    producer.close()


class Interrupted(Restore):
    """A restore beside which somebody else writes, once the first step is done."""

    def __init__(self, *args: object, other: bytes, kafka: KafkaCluster) -> None:
        super().__init__(*args)  # type: ignore[arg-type]  # as it is called below
        self._other, self._kafka, self._steps = other, kafka, 0

    def _step(self, sender: object) -> None:
        super()._step(sender)  # type: ignore[arg-type]  # likewise
        self._steps += 1
        if self._steps == 1:
            produce(self._kafka, self._target.topic, self._other)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "STEP_RECORDS", 10)


def beside_another(made: RawHistory, kafka: KafkaCluster, target: str, **options: bool) -> None:
    request = RestoreRequest("east", "orders", target, create=True, partitions=(0,), **options)  # type: ignore[arg-type]
    ready = threading.Event()
    client = {"bootstrap_servers": kafka.bootstrap}
    with (
        Target(target, request.group, client) as opened,
        RemoteTier(Storage.from_topics(made.topics_file), committed=True, on_ready=ready.set) as tier,
    ):
        Interrupted(request, tier, opened, ready, other=b"foreign", kafka=kafka).run()


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.usefixtures("small_steps")
def test_who_writes_meanwhile_is_seen_at_once(
    transactional: bool, made: RawHistory, kafka: KafkaCluster, capsys: Capture
) -> None:
    target = target_name()
    with pytest.raises(ForeignRecords, match="another program writes to the target") as met:
        beside_another(made, kafka, target, transactional=transactional)
    foreign = [one for one in kept(kafka, target, 1)[0] if one[1] == b"foreign"]
    assert (met.value.topic, met.value.partition, len(foreign)) == (target, 0, 1)
    mode = ["--transactional"] if transactional else []
    code, _, errors = restore(capsys, made, kafka, target, "--partition", "0", *mode)
    assert code == 1
    assert f"{target}-0: at offset" in errors


@pytest.mark.usefixtures("small_steps")
def test_with_transactions_others_may_write_if_one_says_so(made: RawHistory, kafka: KafkaCluster) -> None:
    target = target_name()
    beside_another(made, kafka, target, transactional=True, append=True)
    found = [one for one in kept(kafka, target, 1)[0] if one[1] != b"foreign"]
    assert found == made.expected[0]
    assert len(kept(kafka, target, 1)[0]) == len(found) + 1


@pytest.mark.parametrize("mode", [(), ("--transactional",)], ids=["plain", "transactional"])
def test_a_target_with_records_is_refused_unless_one_appends(
    mode: tuple[str, ...], made: RawHistory, kafka: KafkaCluster, capsys: Capture
) -> None:
    target = target_name()
    kafka.create_topic(target, partitions=2)
    produce(kafka, target, b"before", partition=1)
    code, _, errors = restore(capsys, made, kafka, target, *mode)
    assert (code, "there are records that this restore did not write" in errors) == (1, True)
    code, output, errors = restore(capsys, made, kafka, target, "--append", "--verify", *mode)
    assert code == 0, errors
    first, second = kept(kafka, target, 2)
    assert (first, second[1:], second[0][1]) == (*made.expected, b"before")
    assert [one["target"]["from"] for one in json.loads(output)["partitions"]] == [0, 1]


def test_a_restore_that_is_done_is_not_done_again_and_another_range_follows(
    made: RawHistory, kafka: KafkaCluster, capsys: Capture
) -> None:
    target, middle = target_name(), made.raw.partition(0).end // 2
    only = ("--partition", "0", "--verify")
    code, output, errors = restore(capsys, made, kafka, target, *only, "--to", f"{middle}")
    assert code == 0, errors
    count = json.loads(output)["partitions"][0]["records"]
    assert kept(kafka, target, 1) == [made.expected[0][:count]]
    code, output, _ = restore(capsys, made, kafka, target, *only, "--to", f"{middle}")
    assert (code, json.loads(output)["sent"]) == (0, 0)
    code, output, errors = restore(capsys, made, kafka, target, *only, "--from", f"{middle}")
    assert code == 0, errors
    assert kept(kafka, target, 1) == [made.expected[0]]


def test_a_deleted_record_is_seen_by_verifying(made: RawHistory, kafka: KafkaCluster, capsys: Capture) -> None:
    target = target_name()
    assert restore(capsys, made, kafka, target, "--partition", "0")[0] == 0
    with kafka.admin() as admin:
        admin.delete_records({TopicPartition(target, 0): 5})
    code, _, errors = restore(capsys, made, kafka, target, "--partition", "0", "--verify")
    assert (code, "OffsetOutOfRangeError" in errors) == (1, True), errors


@pytest.mark.parametrize("transactional", [False, True])
def test_a_target_that_ends_before_its_progress_is_refused(
    transactional: bool, made: RawHistory, kafka: KafkaCluster, capsys: Capture
) -> None:
    """As one that was made anew under its name while the group kept its offsets."""
    target, mode = target_name(), ["--transactional"] if transactional else []
    assert restore(capsys, made, kafka, target, *mode)[0] == 0
    group = RestoreRequest("east", "orders", target).group
    with Target(target, group, {"bootstrap_servers": kafka.bootstrap}) as opened:
        progress = opened.progress([0, 1])
        opened.save({0: replace(progress[0], target_next=progress[0].target_next + 9)})
    code, _, errors = restore(capsys, made, kafka, target, *mode)
    assert (code, "it was created again, or lost records" in errors) == (1, True), errors


def test_targets_that_would_lose_something_are_refused(made: RawHistory, kafka: KafkaCluster, capsys: Capture) -> None:
    for name, value, rule in (
        ("message.timestamp.type", "LogAppendTime", "would replace the records' times"),
        ("cleanup.policy", "compact", "restore with --transactional"),
    ):
        target = target_name()
        code, _, errors = restore(capsys, made, kafka, target, "--config", f"{name}={value}")
        assert (code, rule in errors) == (2, True), errors
    narrow = target_name()
    kafka.create_topic(narrow)
    code, _, errors = restore(capsys, made, kafka, narrow)
    assert (code, "has 1 partitions, and 2 are needed" in errors) == (2, True)
    code, _, errors = call(capsys, "restore", *[one for one in made.command(kafka, "none") if one != "--create"])
    assert (code, "none: does not exist" in errors) == (2, True), errors


@pytest.mark.parametrize("mode", [(), ("--transactional",)], ids=["plain", "transactional"])
def test_a_record_that_the_target_does_not_take_is_named(
    mode: tuple[str, ...], made: RawHistory, kafka: KafkaCluster, rng: random.Random, capsys: Capture
) -> None:
    target, offset = target_name(), made.raw.partition(0).end
    made.add(0, [Record(0, T0, b"large", rng.randbytes(20_000))])
    made.raw.publish()
    options = ("--partition", "0", *mode)
    code, _, errors = restore(capsys, made, kafka, target, *options, "--config", "max.message.bytes=15000")
    assert (code, f"{target}-0: the record at offset {offset} of the source was refused" in errors) == (1, True), errors
    with kafka.admin() as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, target, {"max.message.bytes": "30000"})])
    code, _, errors = restore(capsys, made, kafka, target, *options, "--verify")
    assert code == 0, errors
    assert kept(kafka, target, 1)[0] == made.expected[0]


def test_a_short_retention_is_told(made: RawHistory, kafka: KafkaCluster, capsys: Capture) -> None:
    target = target_name()
    code, output, errors = restore(capsys, made, kafka, target, "--config", "retention.bytes=100000000")
    assert (code, f"note: {target} has retention.bytes=100000000" in errors) == (0, True)
    assert len(json.loads(output)["warnings"]) == 1


def test_offsets_that_are_not_there_are_refused(made: RawHistory, kafka: KafkaCluster, capsys: Capture) -> None:
    end = made.raw.partition(0).end
    code, _, errors = restore(capsys, made, kafka, target_name(), "--partition", "0", "--to", f"{end + 1}")
    assert (code, f"offset {end} is not in the remote tier" in errors) == (1, True), errors
    code, _, errors = restore(capsys, made, kafka, target_name(), "--partition", "5")
    assert (code, "there is no partition 5" in errors) == (2, True)


def test_a_gap_stops_a_restore_until_it_is_to_be_skipped(
    made: RawHistory, kafka: KafkaCluster, capsys: Capture
) -> None:
    target = target_name()
    made.lose(0, 3, [Record(0, T0, b"behind", b"it")])
    code, _, errors = restore(capsys, made, kafka, target)
    assert (code, "are missing (unknown)" in errors) == (1, True), errors
    there = kept(kafka, target, 2)
    assert all(rows == made.expected[number][: len(rows)] for number, rows in enumerate(there))
    code, _, errors = restore(capsys, made, kafka, target, "--on-gap", "skip", "--verify")
    assert code == 0, errors
    assert kept(kafka, target, 2) == made.expected


def test_a_dry_run_asks_no_broker(made: RawHistory, capsys: Capture) -> None:
    command = [
        "orders",
        "--to-topic",
        "t",
        "--bootstrap",
        "127.0.0.1:1",
        "--topics",
        str(made.topics_file),
        "--dry-run",
    ]
    code, output, _ = call(capsys, "restore", *command, "-o", "json")
    found = json.loads(output)
    assert (code, [one["to"] for one in found["partitions"]]) == (0, [made.raw.partition(one).end for one in (0, 1)])
    assert found["records_at_most"] >= sum(map(len, made.expected))
    stored = sum(one.size for one in made.raw.store.list("east/") if one.key.endswith(".log"))
    assert found["bytes"] == stored
    code, output, _ = call(capsys, "restore", *command, "--partition", "1")
    assert "nothing was written" in output.splitlines()[0]
    assert len(output.splitlines()) == 2


def test_an_unfinished_restore_is_not_mixed_with_another(
    made: RawHistory, kafka: KafkaCluster, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_name()
    with monkeypatch.context() as patch:
        patch.setattr(Restore, "_copy", lambda *_: None)  # it ends after the first progress is committed
        assert restore(capsys, made, kafka, target)[0] == 0
    code, _, errors = restore(capsys, made, kafka, target, "--to", "3")
    assert (code, "another restore from orders is at 0" in errors) == (1, True)
    made.add(0, [Record(0, T0, b"late", b"later")])
    made.raw.publish()
    assert restore(capsys, made, kafka, target)[0] == 0
    made.expected[0].pop()
    assert kept(kafka, target, 2) == made.expected, "the end is that of the first start"


def test_a_target_that_is_closed_leaves_no_read_behind(kafka: KafkaCluster) -> None:
    target = target_name()
    kafka.create_topic(target, partitions=1)
    produce(kafka, target, b"one", b"two")
    before = set(threading.enumerate())
    with Target(target, "group", {"bootstrap_servers": kafka.bootstrap}) as opened:
        held = opened.read(0, 0, 2, committed=False)
        next(held)
    assert not {one.name for one in set(threading.enumerate()) - before if one.name.startswith("kafka-io-")}
