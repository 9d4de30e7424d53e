"""The compaction job refuses what would change a row, and tells what it does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.spark.compaction import of_few_files
from tests.spark.compaction.test_compaction import DAYS, FEW, delta_rows, merge, paths, piecemeal
from tests.spark.convert.test_parsers import function_parser
from tests.spark.inline import Inline
from tests.spark.world import World
from tests.tidemark.kafka_log.build import simple
from tidemark.errors import ContinuityError
from tidemark.planning import plan_compaction
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark_spark.convert import parquet_writer
from tidemark_spark.convert.rewriting.merge import merged


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A topic whose open dates are compacted from three files on."""
    return World(tmp_path)


# Faults: what is written, what is merged, what was stored


def lost_row(self: Any, dt: Any, rows: pa.RecordBatch, first: int, last: int) -> None:
    real_add(self, dt, rows.slice(0, len(rows) - 1) if len(rows) > 1 else rows, first, last)


def emptied_column(self: Any, dt: Any, rows: pa.RecordBatch, first: int, last: int) -> None:
    at = rows.schema.get_field_index("size")
    real_add(self, dt, rows.set_column(at, rows.schema.field(at), pa.array([0] * len(rows), pa.int32())), first, last)


real_add = parquet_writer.FolderFiles.add


@pytest.mark.parametrize("fault", [lost_row, emptied_column])
def test_a_file_that_reads_back_otherwise_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[..., None]
) -> None:
    world = World(tmp_path, function_parser("all_sizes"))
    piecemeal(world)
    before, n = delta_rows(world), world.ledger.n
    with monkeypatch.context() as patch:
        patch.setattr(parquet_writer.FolderFiles, "add", fault)
        with pytest.raises(ContinuityError, match=r"orders/dt=.*rows are read back of \d+ that were written"):
            merge(world)
    assert (delta_rows(world), world.ledger.n) == (before, n)
    assert merge(world).status == "landed"


def test_rows_that_are_not_those_of_the_evidence_are_not_committed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    piecemeal(world)
    before, n = delta_rows(world), world.ledger.n

    def losing(inputs: Any) -> Any:
        return (rows.slice(1) if len(rows) > 1 else rows for rows in merged(inputs))

    with monkeypatch.context() as patch:
        patch.setattr("tidemark_spark.convert.rewriting.compaction.merged", losing)
        with pytest.raises(ContinuityError, match=r"has \d+ rows, but evidence counts \d+ in the files"):
            merge(world)
    assert (delta_rows(world), world.ledger.n) == (before, n)


@pytest.mark.parametrize("position", [40, -40])
def test_a_damaged_file_is_not_merged(world: World, position: int) -> None:
    piecemeal(world)
    key = f"{world.table.keys.root}/{paths(world)[0]}"
    n, body = world.ledger.n, bytearray(world.table.store.get(key).body)
    body[position] ^= 0x5A
    world.table.store.put(key, bytes(body))
    with pytest.raises(ContinuityError, match=r"nothing was changed: .* audit its date|evidence counts"):
        merge(world)
    assert (world.ledger.n, len(paths(world))) == (n, 12)


def test_a_file_that_evidence_does_not_tell_of_is_not_planned_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    piecemeal(world)
    monkeypatch.setattr(EffectiveEvidence, "landed_in", lambda *_: iter(()))
    with pytest.raises(ContinuityError, match="evidence counts 0"):
        plan_compaction(world.table, files=FEW)


# The command


def command(world: World, *more: str) -> int:
    """The exit code of the job."""
    return of_few_files.main(["--topics", str(world.topics_file), "--topic", "orders", *more], Inline())


def test_the_command_tells_what_it_merges(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    piecemeal(world)
    assert command(world, "--dry-run", "--dt", DAYS[0]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"{DAYS[0]}: 6 files of 2 partitions", "in all: 6 files"]
    assert all(line.endswith("become 2") for line in lines)
    assert (json.loads(last)["kind"], json.loads(last)["dates"], world.ledger.n) == ("compact", [DAYS[0]], 3)
    assert command(world, "--json", "--attempt", "77") == 0
    [line] = capsys.readouterr().out.splitlines()
    assert (json.loads(line)["status"], json.loads(line)["attempt"]) == ("landed", 77)
    world.check()
    assert command(world, "--json", "--attempt", "77") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(line)
    assert command(world) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["status"] == "empty"
    assert command(world, "--dry-run") == 0
    assert capsys.readouterr().out.splitlines() == ["nothing to do: no files of these dates are worth merging"]
    assert command(world, "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "compact"
    assert world.ledger.n == 4


def test_wrong_arguments_are_named(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(world, "--dt", "yesterday") == 2
    assert "--dt" in capsys.readouterr().err
    assert of_few_files.main(["--topics", str(world.topics_file), "--topic", "nothing"], Inline()) == 2
    assert command(world, "--json") == 1
    assert "no agent of cluster east has ever" in capsys.readouterr().err
    world.raw.segment([simple(0)])
    world.raw.publish()
    assert command(world, "--json") == 0  # a table that nothing landed in
    assert json.loads(capsys.readouterr().out)["status"] == "empty"
