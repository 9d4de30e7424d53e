"""``tidemark quarantine``: reasons and examples of what is refused now, whatever files a replay has left behind."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.spark.convert.test_parsers import again, json_parser, records, replayable
from tests.spark.world import World, in_process
from tests.support.paths import ROOT
from tests.tidemark.cli.test_cli import call
from tests.tidemark.kafka_log.build import batch
from tests.tidemark.parsers.test_avro import V1, encoded, framed
from tidemark.formats.table.schema_state import Definition, SchemaState
from tidemark.planning import plan_replay, write_plan
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.timestamps import utc_now
from tidemark_spark.run.driver import run

NUMBER = "id: is text, not a whole number"


def told(world: World, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    """The answer as JSON."""
    code, output, _ = call(capsys, "quarantine", "orders", "--topics", world.topics_file, "-o", "json", *more)
    assert code == 0
    found: dict[str, Any] = json.loads(output)
    return found


def starts(found: dict[str, Any]) -> set[int]:
    """The first offsets of all examples."""
    return {example["start"] for reason in found["reasons"] for example in reason["examples"]}


def test_reasons_are_counted_and_have_three_examples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path, json_parser("{name: id, type: int64}"))
    value = b'{"id": "\xc3\xab\x1b\\u0007' + bytes([0xFF]) + b"x" * 400
    world.raw.segment([batch(0, records(*[b'{"id":"x"}'] * 5, b'{"id":1}', value))])
    world.land()
    code, output, _ = call(capsys, "quarantine", "orders", "--topics", world.topics_file)
    lines = output.splitlines()
    assert (code, lines[:2]) == (0, ["east/orders: 6 records in quarantine at ledger 1", "  2026-02-02: 6"])
    assert lines[2] == f"5 records: {NUMBER}"
    time = "2026-02-02 02:40:00.000 UTC"
    assert lines[3:6] == [f'  orders-0-{offset} at {time}: {{"id":"x"}}' for offset in range(3)]
    assert lines[6].startswith("1 record: ")
    assert lines[7].startswith(rf'  orders-0-6 at {time}: {{"id": "ë\x1b\u0007\xffxx')
    assert lines[7].endswith("x…")
    assert len(lines) == 8
    assert output.isprintable() is False
    assert all(line.isprintable() for line in lines)


def test_a_topic_without_refused_records_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path)
    world.raw.segment([batch(0, records(b"a"))])
    world.land()
    code, output, _ = call(capsys, "quarantine", "orders", "--topics", world.topics_file)
    assert (code, output) == (0, "east/orders: 0 records in quarantine at ledger 1\n")
    assert call(capsys, "quarantine", "ordrs", "--topics", world.topics_file)[0] == 2


def test_only_what_a_replay_left_refused_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world, mended = replayable(tmp_path)
    before = told(world, capsys)
    assert (before["records"], before["dates"]) == (9, {"": 6, "2026-02-02": 2, "2026-02-03": 1})
    assert sum(reason["records"] for reason in before["reasons"]) == 9
    assert starts(before) >= {1, 2, 3, 8}
    plan = plan_replay(mended.table)
    write_plan(mended.table, plan)
    with pytest.MonkeyPatch.context() as patch:  # its files are there, and its commit is not
        patch.setattr("tidemark_spark.run.driver.publish", _killed)
        with pytest.raises(KeyboardInterrupt):
            run(mended.table, plan, in_process)
    assert told(mended, capsys) == before
    run(mended.table, plan, in_process)
    after = told(mended, capsys)
    assert (after["records"], after["dates"]) == (7, {"": 6, "2026-02-02": 1})
    assert starts(after) & {1, 3} == set()
    assert {*before["files"]} & {*after["files"]} == set()
    assert all(Path(url.removeprefix("file://")).exists() for url in before["files"]), "for a while"
    [undecoded] = [one for reason in after["reasons"] for one in reason["examples"] if one["kind"] == "batch"]
    assert (undecoded["start"], undecoded["end"], undecoded["value"]) == (8, 11, None)


def _killed(*_: object) -> Any:
    raise KeyboardInterrupt


def test_dates_are_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world, _ = replayable(tmp_path)
    assert told(world, capsys, "--from", "2026-02-03")["dates"] == {"2026-02-03": 1}
    assert told(world, capsys, "--to", "2026-02-02")["dates"] == {"2026-02-02": 2}
    assert told(world, capsys, "--from", "2026-02-02", "--to", "2026-02-03")["records"] == 3
    more = ("--topics", world.topics_file, "--from", "2026-02-03", "--to", "2026-02-02")
    code, _, errors = call(capsys, "quarantine", "orders", *more)
    assert (code, "2026-02-03 is after --to 2026-02-02" in errors) == (2, True)


def test_files_that_count_are_listed_without_reading_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world, mended = replayable(tmp_path)
    again(mended, plan_replay(mended.table))
    standing = EffectiveEvidence.of(mended.table).of_class("quarantined")
    urls = {f"{world.table.deployment.lake_store}/{world.table.keys.quarantine}/{row.file}" for row in standing}
    code, output, _ = call(capsys, "quarantine", "orders", "--topics", world.topics_file, "--files")
    assert (code, {*output.split()}) == (0, urls)
    found = told(mended, capsys, "--files")
    assert ({*found["files"]}, found["files_read"], found["reasons"]) == (urls, 0, [])


def test_a_file_that_is_gone_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world, _ = replayable(tmp_path)
    [gone] = [url for url in told(world, capsys)["files"] if "dt=2026-02-03" in url]
    Path(gone.removeprefix("file://")).unlink()
    code, output, _ = call(capsys, "quarantine", "orders", "--topics", world.topics_file)
    assert (code, f"  not in the store: {gone}; its dates can be rebuilt from raw" in output) == (1, True)
    _, output, _ = call(capsys, "quarantine", "orders", "--topics", world.topics_file, "-o", "json")
    assert json.loads(output)["lost"] == [gone]


def test_status_and_continuity_tell_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world, mended = replayable(tmp_path)
    for command in ("status", "continuity"):
        code, output, _ = call(capsys, command, "orders", "--topics", world.topics_file)
        assert (code, "(9 in quarantine): " in output.splitlines()[1]) == (0, True)
    again(mended, plan_replay(mended.table))
    _, output, _ = call(capsys, "status", "orders", "--topics", world.topics_file, "-o", "json")
    assert (json.loads(output)["quarantined"], "(7 in quarantine): " in json.loads(output)["verdict"]) == (7, True)


def test_records_of_each_schema_are_counted_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ids").mkdir()
    (tmp_path / "orders.avsc").write_text(json.dumps(V1))
    (tmp_path / "ids" / "1.avsc").write_text(json.dumps(V1))
    world = World(tmp_path, "parser: {kind: avro, schema: orders.avsc, framing: confluent, schemas: ids}")
    good = encoded(V1, {"a": 1, "gone": "x"})
    world.raw.segment([batch(0, records(framed(1, good), framed(1, good[:-1]), framed(7, good), b"x", framed(7, b"")))])
    world.land()
    at = Definition(number=7, version=3, at=utc_now(), definition="")
    state = SchemaState(kind="avro", subject="orders-value", adopted=at, newest=at)
    world.table.store.put(world.table.keys.schema, state.to_bytes())
    found = told(world, capsys)
    assert {one["schema_id"]: one["schema_version"] for one in found["reasons"]} == {None: None, "1": None, "7": 3}
    assert sorted((one["schema_id"] or "", one["records"]) for one in found["reasons"]) == [("", 1), ("1", 1), ("7", 2)]
    _, output, _ = call(capsys, "quarantine", "orders", "--topics", world.topics_file)
    assert "2 records of schema 7 (version 3): names schema 7, which" in output


@pytest.mark.parametrize("engine", ["Polars", "DuckDB", "pyarrow"])
def test_the_documented_reader_has_what_is_refused_after_a_replay(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, mended = replayable(tmp_path)
    again(mended, plan_replay(mended.table))
    page = (ROOT / "docs" / "reading.md").read_text()
    named = rf"^### {engine}, the quarantine\n(?:(?!^##).)*?```python\n(.*?)```"
    [code] = re.findall(named, page, re.DOTALL | re.MULTILINE)
    monkeypatch.setenv("TIDEMARK_TOPICS", str(mended.topics_file))
    monkeypatch.setattr(subprocess, "check_output", lambda command, *, text: call(capsys, *command[1:])[1])
    scope: dict[str, Any] = {"duckdb": duckdb, "subprocess": subprocess}
    code = code.replace("s3://lake/tables/orders", mended.table.url).replace("s3://", "file://")
    exec(code, scope)  # noqa: S102 - the page's own
    found = scope["found"].to_arrow_table() if engine == "DuckDB" else scope["found"]
    offsets = found["kafka_offset"]
    assert sorted(offsets.to_list() if engine == "Polars" else offsets.to_pylist()) == [2, 5, 6, 7, 8]
