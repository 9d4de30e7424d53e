"""Records whose parsed values are far larger than their bytes: wide lists and structs take no more than the limits say.

What may be had is had: the records beside one that may not be land in the same run, and that one is quarantined.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import fastavro
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet
from typing_extensions import override

from tests.spark.world import InProcess, World
from tests.support.memory import own_peak
from tests.support.paths import ROOT
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark.decode import kernel_cache
from tidemark.formats.table.plan import SegmentTask
from tidemark_spark.convert.conversion import converted as convert
from tidemark_spark.convert.guard import guarded
from tidemark_spark.convert.process_limits import resident
from tidemark_spark.model import Job, Outcome
from tidemark_spark.run.driver import run

MEMORY: Final = 1 << 30
BESIDE: Final = 192 << 20
"""What waits for a row group (64 MiB), what a window of the segment takes, and what differs from run to run."""

LIMITS: Final = "limits: {batch: 64MiB}"
FIELDS: Final = 500
"""Of a wide struct."""

REFUSED: Final = f"converting it takes more than {MEMORY} bytes of memory"


@dataclass(frozen=True)
class Kind:
    """A parser, files beside the topics file, an ordinary value and a wide one; whether that can be had."""

    parser: str
    plain: bytes
    wide: Callable[[], bytes]
    lands: bool = False
    files: Callable[[Path], None] = lambda _: None
    more: str = "owner: tests"


def of_json(kind: str, item: bytes, *, lands: bool = False, size: int = 60 << 20, more: str = "") -> Kind:
    """A list of as many of ``item`` as fit."""
    count = size // (len(item) + 1)
    return Kind(
        f"parser: {{kind: json, columns: [{{name: a, type: '{kind}'}}{more}]}}",
        b'{"a":[]}',
        lambda: b'{"a":[%s%s]}' % ((item + b",") * (count - 1), item),
        lands,
    )


def _item(more: Sequence[dict[str, Any]]) -> dict[str, Any]:
    item = {"type": "record", "name": "Item", "fields": [{"name": "b", "type": "boolean"}, *more]}
    return {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": item}}]}


def _avro_files(folder: Path) -> None:
    """The table's schema adds fields to an item that takes one byte as it was written."""
    added = [{"name": f"f{i}", "type": ["null", "long"], "default": None} for i in range(FIELDS)]
    (folder / "table.avsc").write_text(json.dumps(_item(added)))
    (folder / "schemas").mkdir()
    (folder / "schemas" / "1.avsc").write_text(json.dumps(_item([])))


def _avro(items: int) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(_item([])), {"a": [{"b": True}] * items})
    return b"\0\0\0\0\1" + target.getvalue()


def _booleans(items: int) -> bytes:
    target = io.BytesIO()
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": "boolean"}}]}
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), {"a": [True] * items})
    return target.getvalue()


def _boolean_files(folder: Path) -> None:
    fields = [{"name": "a", "type": {"type": "array", "items": "boolean"}}]
    (folder / "table.avsc").write_text(json.dumps({"type": "record", "name": "R", "fields": fields}))


def _protobuf_files(folder: Path) -> None:
    files = FileDescriptorSet()
    file = files.file.add(name="wide.proto", package="wide", syntax="proto3")
    item = file.message_type.add(name="Item")
    for number in range(1, FIELDS + 1):
        item.field.add(name=f"f{number}", number=number, type=FieldDescriptorProto.TYPE_INT64, label=1)
    row = file.message_type.add(name="Row")
    row.field.add(name="a", number=1, type=FieldDescriptorProto.TYPE_MESSAGE, label=3, type_name=".wide.Item")
    (folder / "set.pb").write_bytes(files.SerializeToString())


BOOLEANS: Final = "parser: {kind: avro, schema: table.avsc}"
PROTOBUF: Final = "parser: {kind: protobuf, descriptors: set.pb, message: wide.Row}"
AVRO: Final = "parser: {kind: avro, schema: table.avsc, framing: confluent, schemas: schemas}"
KINDS: Final = {
    "json, a list of nulls": of_json("list<int64>", b"null", lands=True),
    "json, a list of lists": of_json("list<list<int64>>", b"[]"),
    "json, a list of decimals": of_json("list<decimal(9,2)>", b"1"),
    "json, numbers that are not declared": of_json("list<int64>", b"1.5", more=", {name: d, type: json}"),
    "avro, defaults of the table's schema": Kind(AVRO, _avro(1), lambda: _avro(1 << 20), files=_avro_files),
    "protobuf, empty messages": Kind(PROTOBUF, b"\x0a\0", lambda: b"\x0a\0" * (1 << 20), files=_protobuf_files),
}


def work(file: str, attempt: str) -> None:
    """In a process of its own: carry out a task as a worker does; its outcome, and what it had and took in memory."""
    job, task = pickle.loads(Path(file).read_bytes())  # noqa: S301 - our own bytes
    kernel_cache.load_all()
    loaded = resident()
    with guarded(job, int(attempt)):
        outcome = convert(job, task)
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
    Path(f"{file}.done").write_bytes(pickle.dumps((outcome, loaded, own_peak(), children)))


class Workers(InProcess):
    """Has tasks tried again as Spark does, each time in a process of its own.

    ``peaks`` are in bytes, beyond what such a process has when it has loaded its libraries.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.attempts = 0
        self.peaks: list[int] = []

    @override
    def on_each(self, work: Any, common: Any, tasks: Sequence[Any]) -> list[Any]:
        # On a busy machine, wide records take their time.
        job = replace(common, limits=replace(common.limits, seconds=60.0))
        return [self._one(job, task) for task in tasks]

    def _one(self, job: Job, task: SegmentTask) -> Outcome:
        file = self._folder / f"task-{self.attempts}"
        file.write_bytes(pickle.dumps((job, task)))
        said = b""
        for attempt in range(4):
            self.attempts += 1
            program = f"from tests.spark.convert.test_wide import work; work({str(file)!r}, '{attempt}')"
            command = [sys.executable, "-c", program]
            environment = {"MIMALLOC_ARENA_EAGER_COMMIT": "0", "PATH": os.environ["PATH"]}
            done = subprocess.run(command, cwd=ROOT, env=environment, check=False, stderr=subprocess.PIPE, timeout=600)
            if not done.returncode:
                found, loaded, *peaks = pickle.loads(Path(f"{file}.done").read_bytes())  # noqa: S301 - likewise
                self.peaks += [one - loaded for one in peaks]
                outcome: Outcome = found
                return outcome
            said = done.stderr
        raise AssertionError(said.decode())


def converted(world: World) -> Workers:
    """Convert what was uploaded."""
    world.raw.publish()
    workers = Workers(world.topics_file.parent)
    run(world.table, world.plan(), workers)
    return workers


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_a_wide_record_is_bounded_and_costs_its_own_place_alone(kind: str, tmp_path: Path) -> None:
    one = KINDS[kind]
    one.files(tmp_path)
    world = World(tmp_path, one.parser, LIMITS)
    plain = [Record(i, T0, b"k", one.plain) for i in range(5)]
    data = batch(0, [*plain[:2], Record(2, T0, b"wide", one.wide()), *plain[3:]], "zstd")
    world.raw.segment([data])
    workers = converted(world)
    sys.stdout.write(
        f"{kind}: {len(data)} bytes, {workers.attempts} attempts, peaks of {[at >> 20 for at in workers.peaks]} MiB\n"
    )
    world.check()
    assert {row["kafka_offset"]: row["reason"] for row in world.quarantine()} == ({} if one.lands else {2: REFUSED})
    assert world.offsets() == ([0, 1, 2, 3, 4] if one.lands else [0, 1, 3, 4])
    assert max(workers.peaks) < MEMORY + BESIDE


@pytest.mark.full
@pytest.mark.timeout(900)
def test_items_that_take_a_bit_do_not_wait_without_bound(tmp_path: Path) -> None:
    """Where values are not kept, booleans of many batches wait for one row group, and Parquet takes 4 bytes of each.

    The file is completed outside of any limit, so this must be less than the least limit.
    """
    _boolean_files(tmp_path)
    world = World(tmp_path, BOOLEANS, LIMITS, "keep: [key, timestamp]")
    value = _booleans(4 << 20)
    for first in range(0, 60, 15):
        world.raw.segment([batch(first, [Record(i, T0, b"k", value) for i in range(15)], "zstd")])
    workers = converted(world)
    sys.stdout.write(f"booleans: {workers.attempts} attempts, peaks of {[at >> 20 for at in workers.peaks]} MiB\n")
    assert world.offsets() == list(range(60))
    assert max(workers.peaks) < MEMORY
