"""The examples in the docstrings of what readers start with."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.examples import failures_of
from tests.support.raw_builder import RawBuilder
from tests.tidemark.kafka_log.build import Record, batch
from tidemark.store import LocalStore

NOON = int(datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp() * 1000)
TOPICS = "cluster: east\nraw: {url: 'file://RAW'}\nlake: 'file://RAW'\ntopics: [{topic: orders}]\n"


@pytest.mark.parametrize("name", ["tidemark.remote.reader.read_range", "tidemark.storage:Storage"])
def test_examples_say_what_happens(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = RawBuilder(LocalStore(tmp_path / "raw"))
    raw.segment([batch(0, [Record(at, NOON + at * 1000, b"k", b"order %d" % at) for at in range(100)])])
    raw.publish()
    (tmp_path / "topics.yaml").write_text(TOPICS.replace("RAW", str(tmp_path / "raw")))
    monkeypatch.chdir(tmp_path)
    count, failed = failures_of(name, {})
    assert count
    assert not failed, failed


def test_an_example_that_is_wrong_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    count, failed = failures_of("tidemark.storage:Storage", {})
    assert count
    assert "topics.yaml" in failed, "there is no such file here"
