"""``tidemark consume`` through brokers: every mode gives the same lines, and a group goes on where it stopped."""

from __future__ import annotations

import json
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from tests.consumer.history import History
from tests.support.ports import free_port
from tests.tidemark.cli.test_cli import call
from tests.tidemark.cli.test_consume import told
from tests.tidemark.decode.real_logs import unique

Capture = pytest.CaptureFixture[str]


def consume(capsys: Capture, made: History, *more: str) -> list[dict[str, Any]]:
    code, output, errors = call(capsys, "consume", made.topic, "--topics", made.topics_file, *more)
    assert code == 0, errors
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.parametrize("mode", ["REMOTE_ONLY", "KAFKA_ONLY", "REMOTE_PREFERRED", "KAFKA_PREFERRED"])
def test_every_mode_writes_the_same(mode: str, made: History, capsys: Capture) -> None:
    found = consume(capsys, made, "--bootstrap", made.cluster.bootstrap, "--mode", mode)
    for partition, expected in enumerate(made.records()):
        assert [told(one) for one in found if one["partition"] == partition] == expected
    alone = consume(capsys, made)
    key = itemgetter("partition", "offset")
    assert sorted(found, key=key) == sorted(alone, key=key)


def test_ranges_are_those_of_the_remote_tier(made: History, capsys: Capture) -> None:
    brokers = ("--bootstrap", made.cluster.bootstrap)
    lines = consume(capsys, made, "--partition", "0")
    middle = lines[len(lines) // 2]
    for options in (
        ["--from", f"0:{middle['offset']}", "--limit", "7"],
        ["--to", f"{middle['offset']}"],
        ["--from", f"@{middle['timestamp']}"],
        ["--from", "end"],
    ):
        only = ("--partition", "0", *options)
        assert consume(capsys, made, *only, *brokers) == consume(capsys, made, *only), options


@pytest.mark.essential
def test_a_group_goes_on_where_it_stopped(made: History, capsys: Capture, tmp_path: Path) -> None:
    options = ("--bootstrap", made.cluster.bootstrap, "--group", unique("g"))
    first = consume(capsys, made, *options, "--limit", "50")
    rest = consume(capsys, made, *options)
    assert len(first) == 50
    for partition, expected in enumerate(made.records()):
        assert [told(one) for one in [*first, *rest] if one["partition"] == partition] == expected
    assert consume(capsys, made, *options) == []
    code, _, errors = call(capsys, "consume", made.topic, *options, "--from", "7", "--topics", made.topics_file)
    assert (code, "must be beginning or end" in errors) == (2, True)
    settings = tmp_path / "client.yaml"
    settings.write_text("security_protocol: PLAINTEXT\nauto_offset_reset: latest\n")
    code, _, errors = call(
        capsys, "consume", made.topic, *options, "--client-config", settings, "--topics", made.topics_file
    )
    assert (code, "auto_offset_reset: is not a connection setting" in errors) == (2, True), errors


def test_brokers_that_do_not_answer_are_an_error(made: History, capsys: Capture, tmp_path: Path) -> None:
    settings = tmp_path / "client.yaml"
    settings.write_text("bootstrap_timeout_ms: 300\n")
    options = ("--bootstrap", f"127.0.0.1:{free_port()}", "--client-config", settings, "--topics", made.topics_file)
    for command in (["consume", made.topic], ["restore", made.topic, "--to-topic", "t"]):
        code, _, errors = call(capsys, *command, *options)
        assert (code, "Unable to bootstrap" in errors) == (1, True), errors
