"""``tidemark restore`` with real brokers: what is restored equals the original, record by record."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.consumer import history
from tests.consumer.history import History, kept
from tests.support.fixtures import SEED
from tests.support.kafka import KafkaCluster
from tests.tidemark.cli.test_cli import call
from tests.tidemark.decode.real_logs import unique


@pytest.fixture(scope="module")
def made(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> History:
    return history.make(kafka, tmp_path_factory.mktemp("history"), random.Random(f"{SEED}:history"))


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
