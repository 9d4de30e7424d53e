"""Raw as text and as SequenceFiles: their bytes, what is refused, and that Spark's own reader reads them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.spark.inline import Inline
from tests.spark.jobs.programs import Programs
from tests.spark.run.test_runs import spread
from tests.spark.world import World
from tests.support.erased import erase
from tests.tidemark.kafka_log.build import T0, Record, batch, simple
from tidemark_spark import export as exporting
from tidemark_spark.export import packed
from tidemark_spark.jobs.running import run_job


class Pickling(Inline):
    """All parts here, sent and returned as Spark does it."""

    def on_each(self, work: Callable[[Any, Any], Any], common: Any, tasks: Sequence[Any]) -> list[Any]:
        sent = pickle.loads(pickle.dumps((common, list(tasks))))  # noqa: S301 - our bytes
        found: list[Any] = pickle.loads(pickle.dumps(super().on_each(work, *sent)))  # noqa: S301 - likewise
        return found


def exported(world: World, kind: str, to: Path, *options: str) -> int:
    """The exit code of the command."""
    more = [part for one in options for part in ("--option", one)]
    arguments = ["--topics", str(world.topics_file), "--topic", "orders", "--format", kind, "--to", f"file://{to}"]
    return run_job("export", [*arguments, *more], Pickling())


def test_text_has_a_value_a_line(world: World, tmp_path: Path, capsys: Any) -> None:
    values = [b"one", b"", None, b"\xff four"]
    world.raw.segment([batch(0, [Record(i, T0, None, value) for i, value in enumerate(values)])])
    world.raw.segment([simple(0)], 1)
    world.raw.publish()
    out = tmp_path / "out"
    for _ in range(2):  # again is the same
        assert exported(world, "text", out, "partitions=0") == 0
    files = [one for one in out.rglob("*") if one.suffix == ".txt"]
    assert [str(one.relative_to(out)) for one in files] == ["orders/0_0_00000000000000000000.txt"]
    assert files[0].read_bytes() == b"one\n\n\n\xff four\n"
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"files": 1, "rows": 4, "bytes": 13}


def test_a_newline_in_a_value_is_refused_as_text(world: World, tmp_path: Path, capsys: Any) -> None:
    world.raw.segment([simple(0), batch(3, [Record(0, T0, None, b"a\nb")])])
    world.raw.publish()
    assert exported(world, "text", tmp_path / "out") == 1
    assert "partition 0, offset 3" in capsys.readouterr().err
    assert exported(world, "sequence", tmp_path / "out") == 0


def test_wrong_arguments_are_named(world: World, tmp_path: Path, capsys: Any) -> None:
    world.raw.publish()
    assert exported(world, "text", tmp_path / "out", "offsets=3") == 2
    arguments = ["--topics", str(world.topics_file), "--topic", "orders"]
    assert run_job("export", [*arguments, "--to", "ftp://nowhere"], Pickling()) == 2
    assert run_job("export", [*arguments, "--to", f"file://{tmp_path}/out"], Pickling()) == 0
    assert json.loads(capsys.readouterr().out)["files"] == 0


def test_keys_are_packed_as_messagepack_has_it() -> None:
    # https://github.com/msgpack/msgpack/blob/master/spec.md
    assert packed(5, None) == bytes.fromhex("810105")
    assert packed(127, b"") == bytes.fromhex("82017f02c400")
    assert packed(128, b"k") == bytes.fromhex("8201cc8002c4016b")
    assert packed(256, None) == bytes.fromhex("8101cd0100")
    assert packed(1 << 16, None) == bytes.fromhex("8101ce00010000")
    assert packed(1 << 32, None) == bytes.fromhex("8101cf0000000100000000")
    assert packed(0, b"x" * 256) == bytes.fromhex("82010002c50100") + b"x" * 256
    assert packed(0, b"x" * 65536) == bytes.fromhex("82010002c600010000") + b"x" * 65536


@pytest.mark.essential
def test_spark_reads_raw_by_its_format_and_what_was_exported(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_spark: Programs
) -> None:
    spread(world)
    world.raw.publish()
    monkeypatch.setattr(exporting, "_SYNC_BYTES", 50)  # Hadoop's reader takes a mark wherever there is one
    for kind in ("sequence", "messagepack"):
        assert exported(world, kind, tmp_path / kind, "partitions=0") == 0
    done = on_spark.run("tests.spark.read_segments", str(world.topics_file), f"file://{tmp_path}")
    assert done.code == 0, done.errors[-3000:]
    found = json.loads(done.output.splitlines()[-1])
    assert found["filtered"] == [4, 7]
    world.land()
    rows = [(row["kafka_offset"], row["kafka_key"], row["kafka_value"]) for row in world.rows()[: len(world.offsets())]]
    rows += [(row["kafka_offset"], row["kafka_key"], row["kafka_value"]) for row in world.quarantine()[:1]]
    assert found["sequence"] == sorted([offset, value.hex()] for offset, _, value in rows)
    assert found["messagepack"] == sorted([packed(offset, key).hex(), value.hex()] for offset, key, value in rows)


def test_erased_records_are_not_exported(world: World, tmp_path: Path, capsys: Any) -> None:
    values = [b"one", b"a secret\nof two lines", b"three"]
    world.raw.segment([batch(0, [Record(i, T0, None, value) for i, value in enumerate(values)], "zstd")])
    world.raw.segment([batch(0, [Record(0, T0, None, b"a secret")])], 1)
    world.raw.publish()
    erase(world.raw, [1])
    erase(world.raw, [0], 1)
    assert exported(world, "text", tmp_path / "out") == 0
    [file] = [one for one in (tmp_path / "out").rglob("*") if one.suffix == ".txt"]
    assert file.read_bytes() == b"one\nthree\n"
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"files": 1, "rows": 2, "bytes": 10}
