"""``tidemark restore`` with real brokers: what is restored equals the original, record by record."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.consumer import history
from tests.consumer.history import History, kept
from tests.consumer.raw_history import raw_history
from tests.support.erased import erase
from tests.support.kafka import KafkaCluster
from tests.tidemark.cli.test_cli import call
from tests.tidemark.decode.real_logs import unique
from tests.tidemark.kafka_log.build import T0, Record, batch, transactional
from tests.tidemark.remote.live import Packing, Range
from tidemark import read_range


@pytest.fixture
def target(made: History) -> str:
    """The name of a topic that is not there yet."""
    return unique(f"{made.topic}-again")


def restore(
    capsys: pytest.CaptureFixture[str], made: History, target: str, *more: str, at: KafkaCluster | None = None
) -> tuple[int, dict[str, Any], str]:
    """(exit code, the report, errors) of a restore into ``target``, made if it is not there."""
    options = ("--to-topic", target, "--bootstrap", (at or made.cluster).bootstrap, "--topics", str(made.topics_file))
    code, output, errors = call(capsys, "restore", made.topic, *options, "--output", "json", *more)
    return code, json.loads(output) if code == 0 else {}, errors


@pytest.mark.essential
@pytest.mark.parametrize("mode", [(), ("--transactional",)], ids=["plain", "transactional"])
def test_what_is_restored_equals_the_original(
    made: History, target: str, mode: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, report, errors = restore(capsys, made, target, "--create", "--verify", *mode)
    assert code == 0, errors
    assert "note:" not in errors
    expected = made.records()
    assert kept(made.cluster, target, made.partitions) == expected
    assert any(None in one[:2] for rows in expected for one in rows)
    assert any(value is None for rows in expected for one in rows for _, value in one[2])
    assert any(rows != sorted(rows, key=lambda one: one[3]) for rows in expected)
    told = [(one["records"], one["verified"]) for one in report["partitions"]]
    assert told == [(len(rows), True) for rows in expected]
    assert all(one["offsets_without_record"] > 0 for one in report["partitions"])
    assert report["sent"] == sum(map(len, expected))


def test_holes_of_compaction_are_closed(
    kafka: KafkaCluster, tmp_path: Path, rng: random.Random, capsys: pytest.CaptureFixture[str]
) -> None:
    """A compacted source: what is left of it follows one another in the target."""
    found = history.make_compacted(kafka, tmp_path, rng)
    target = unique("restored")
    code, report, errors = restore(capsys, found, target, "--create", "--verify")
    assert code == 0, errors
    assert kept(kafka, target, 1) == found.records()
    [only] = report["partitions"]
    assert only["offsets_without_record"] > 100
    assert only["target"] == {"from": 0, "to": only["records"]}


def test_the_live_end_is_restored(
    kafka: KafkaCluster, tmp_path: Path, rng: random.Random, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is packed and not sealed is history as well; a transaction that is open in it ends the range."""
    made = raw_history(tmp_path, rng, partitions=1, rounds=3)
    agent = Packing(made.raw)
    agent.lead()
    for number in range(4):
        base = agent.chain().end
        records = [Record(at, T0 + at, b"k", b"%d-%d" % (number, at)) for at in range(3)]
        agent.pack(Range([batch(base, records)]))
        made.expected[0] += [(one.key, one.value, [], one.timestamp) for one in records]
    agent.pack(Range([transactional(agent.chain().end, 7, 3)]))
    made.raw.publish()
    code, report = made.run(kafka, target := unique("restored"), "--verify")
    assert code == 0, report
    assert kept(kafka, target, 1) == made.expected


@pytest.mark.parametrize("mode", [(), ("--transactional",)], ids=["plain", "transactional"])
def test_erased_records_are_not_restored(
    kafka: KafkaCluster, tmp_path: Path, rng: random.Random, mode: tuple[str, ...]
) -> None:
    made = raw_history(tmp_path, rng)
    for partition, expected in enumerate(made.expected):
        offsets = read_range("orders", partition, storage=made.topics_file)["kafka_offset"].to_numpy().tolist()
        erased = {*rng.sample(offsets, len(offsets) // 3), offsets[-1]}
        erase(made.raw, erased, partition)
        made.expected[partition] = [one for offset, one in zip(offsets, expected, strict=True) if offset not in erased]
    code, report = made.run(kafka, target := unique("restored"), "--verify", *mode)
    assert code == 0, report
    assert kept(kafka, target, 2) == made.expected
    for told, expected in zip(report["partitions"], made.expected, strict=True):
        source = told["source"]
        assert told["verified"]
        assert told["records"] == len(expected)
        assert told["records"] + told["offsets_without_record"] == source["to"] - source["from"]
        assert source == {"from": 0, "to": made.raw.partition(told["partition"]).end}


@pytest.mark.full
def test_a_compacted_target_is_restored_with_transactions(
    kafka: KafkaCluster, tmp_path: Path, rng: random.Random, capsys: pytest.CaptureFixture[str]
) -> None:
    made = raw_history(tmp_path, rng, partitions=1, rounds=0)
    made.add(0, [Record(0, T0 + i, b"%d" % (i % 3), b"%d" % i) for i in range(9)])
    made.raw.publish()
    options = ("--config", "cleanup.policy=compact", "--transactional")
    code, _, errors = call(capsys, "restore", *made.command(kafka, target := unique("restored"), *options))
    assert (code, "only the last one of each key stays" in errors) == (0, True), errors
    assert {one[0]: one[1] for one in kept(kafka, target, 1)[0]} == {b"0": b"6", b"1": b"7", b"2": b"8"}


def test_undecided_and_aborted_records_are_restored_if_one_says_so(
    made: History, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, errors = restore(capsys, made, target, "--create", "--isolation", "read_uncommitted", "--partition", "1")
    assert code == 0, errors
    assert kept(made.cluster, target, 2)[1] == made.records(committed=False)[1]
    assert made.records(committed=False)[1] != made.records()[1]


def test_a_range_of_times_is_restored(
    kafka: KafkaCluster, tmp_path: Path, rng: random.Random, capsys: pytest.CaptureFixture[str]
) -> None:
    made = raw_history(tmp_path, rng, partitions=1, rounds=0)
    for second in range(10):
        made.add(0, [Record(0, T0 + 1000 * second, b"k", b"%d" % second)])
    made.raw.publish()
    iso = datetime.fromtimestamp((T0 + 2000) / 1000, UTC).isoformat()
    options = ("--from", iso, "--to", f"@{T0 + 6001}", "--verify")
    code, _, errors = call(capsys, "restore", *made.command(kafka, target := unique("restored"), *options))
    assert code == 0, errors
    assert kept(kafka, target, 1) == [made.expected[0][2:7]]


@pytest.mark.full
@pytest.mark.parametrize("mode", [(), ("--transactional",)], ids=["plain", "transactional"])
@pytest.mark.parametrize("direction", ["to 3.9.2", "from 3.9.2"])
def test_between_brokers(
    direction: str,
    mode: tuple[str, ...],
    kafka: KafkaCluster,
    kafka39: KafkaCluster,
    tmp_path: Path,
    rng: random.Random,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, other = (kafka, kafka39) if direction == "to 3.9.2" else (kafka39, kafka)
    made = history.make(source, tmp_path, rng, partitions=5, records=800)
    target = unique("restored")
    code, _, errors = restore(capsys, made, target, "--create", "--verify", *mode, at=other)
    assert code == 0, errors
    assert kept(other, target, made.partitions) == made.records()
