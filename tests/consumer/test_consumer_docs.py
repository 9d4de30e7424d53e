"""docs/consumer.md: its code and its commands run, and do what they say."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import shlex
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaConsumer, TopicPartition

from tests.consumer.history import History, kept
from tests.support.paths import ROOT
from tests.support.waiting import wait_until
from tests.tidemark.cli.test_cli import call
from tests.tidemark.decode.real_logs import unique
from tidemark import Mode, TieredConsumer
from tidemark.restore.run import STABLE_SECONDS, STEP_BYTES, STEP_RECORDS

PAGE = (ROOT / "docs" / "consumer.md").read_text()


def blocks(section: str, language: str = "python") -> list[str]:
    """The code of a section of the page."""
    [text] = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return found


def adapted(code: str, made: History, group: str = "") -> str:
    """The page's code with what stands for our topic, store, broker and days."""
    ours = {
        '"orders"': f'"{made.topic}"',
        "topics.yaml": str(made.topics_file),
        "broker-1:9092": made.cluster.bootstrap,
        "billing": group or unique("billing"),
        "2026, 11, 20": "2026, 2, 2",
        "2026, 11, 21": "2026, 2, 3",
    }
    for theirs, here in ours.items():
        code = code.replace(theirs, here)
    return code


class Enough(Exception):
    """All that there is has come."""


def test_swapping_the_class_reads_everything(made: History) -> None:
    [code] = blocks("Swap the class")
    assert "read_committed" not in code, "so aborted records come as well"
    expected = sum(map(len, made.records(committed=False)))
    found: list[Any] = []

    def handle(record: Any) -> None:
        found.append(record)
        if len(found) == expected:
            raise Enough

    scope: dict[str, Any] = {"handle": handle}
    with pytest.raises(Enough):
        exec(adapted(code, made), scope)  # noqa: S102 - the documentation's own code
    scope["consumer"].close(autocommit=False)
    for partition, rows in enumerate(made.records(committed=False)):
        assert [one.value for one in found if one.partition == partition] == [one[1] for one in rows]


def test_arrow_and_notebooks(made: History) -> None:
    [code] = blocks("Arrow")
    scope: dict[str, Any] = {}
    exec(adapted(code, made), scope)  # noqa: S102 - the documentation's own code
    assert isinstance(scope["rows"], pa.RecordBatch)
    assert scope["rows"].column("kafka_offset")[0].as_py() == 0
    assert scope["sizes"] > 0
    [code] = blocks("Notebooks")
    exec(adapted(code, made), scope)  # noqa: S102 - the documentation's own code
    assert set(scope["table"]["kafka_offset"].to_pylist()) <= set(range(3, 9))
    # Not all of it: the brokers gave the markers of its transactions the time of today, and those count in a search.
    assert {one.date() for one in scope["day"]["kafka_timestamp"].to_pylist()} == {date(2026, 2, 2)}


def test_asyncio_delivers_all_and_is_cancelled_at_once(made: History) -> None:
    """Cancelled while it polls for what never comes, it closes, and everything that was handled is committed."""
    [code] = blocks("asyncio")
    group, scope = unique("asyncio"), dict[str, Any]()
    exec(adapted(code, made, group), scope)  # noqa: S102 - the documentation's own code
    expected = sum(map(len, made.records(committed=False)))
    found: list[Any] = []

    async def handle(record: Any) -> None:
        await asyncio.sleep(0)
        found.append(record)

    def committed() -> bool:
        """Whether all that was handled is."""
        last = {TopicPartition(made.topic, one.partition): one.offset for one in found}
        return all((other.committed(at) or 0) > offset for at, offset in last.items())

    async def run() -> None:
        task = asyncio.create_task(scope["consume"](handle))
        while len(found) < expected:
            assert not task.done(), task.exception()
            await asyncio.sleep(0.02)
        await asyncio.to_thread(wait_until, committed, what="all to be committed")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with closing(KafkaConsumer(bootstrap_servers=made.cluster.bootstrap, group_id=group)) as other:
        asyncio.run(run())
        assert len(found) == expected
        assert committed()


def test_the_commands_do_what_they_say(
    made: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDEMARK_TOPICS", str(made.topics_file))
    names = {
        "orders": made.topic,
        "broker-1:9092": made.cluster.bootstrap,
        "2026-11-20": "2026-02-02",
        "2026-11-21": "2026-02-03",
        "billing-check": unique("check"),
        "orders-again": (again := unique("again")),
        "orders-exact": (exact := unique("exact")),
    }
    outputs = []
    for line in "".join(blocks("From the shell", "sh") + blocks("Restoring into a topic", "sh")).splitlines():
        words = [names.get(one, one) for one in shlex.split(line.partition("|")[0])]
        assert words.pop(0) == "tidemark"
        code, output, errors = call(capsys, *words)
        assert code == 0, (line, errors)
        outputs.append(output)
    assert len(outputs) == 7
    assert json.loads(outputs[0].splitlines()[0])["topic"] == made.topic
    with pa.ipc.open_file("orders.arrow") as opened:
        assert set(opened.read_all()["kafka_offset"].to_pylist()) <= set(range(3, 9))
    assert len(outputs[3].splitlines()) == 100
    assert "nothing was written" in outputs[4]
    assert "read back and equal" in outputs[5]
    assert kept(made.cluster, again, made.partitions) == made.records()
    assert sum(map(len, kept(made.cluster, exact, made.partitions))) > 0


def test_the_page_names_every_mode_setting_and_figure() -> None:
    assert all(f"| `{mode}` |" in PAGE for mode in Mode)
    known = inspect.signature(TieredConsumer.__init__).parameters
    ours = [one for one in known if one not in {"self", "topics", "configs"}]
    assert not [one for one in ours if f"| `{one}` |" not in PAGE]
    prefetch = known["remote_prefetch_bytes"].default >> 20
    told = (
        f"| {known['remote_refresh_ms'].default:,} |",
        f"| {prefetch} MiB |",
        f"| {known['remote_wait_ms'].default:,} |",
    )
    assert all(one in PAGE for one in told)
    assert f"{STEP_RECORDS:,} records or {STEP_BYTES >> 20} MiB" in PAGE
    assert f"stood still for {STABLE_SECONDS:g} s" in PAGE
