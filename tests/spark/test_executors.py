"""Tasks that die, fail or run twice, and runs of any parallelism: the files are the same, byte for byte."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import fastavro
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tests.spark.world import World, in_process
from tests.support.paths import ROOT
from tests.support.spark import SparkStandalone, small_jvm_conf, spark_env, spark_submit
from tests.tidemark.parsers.test_avro import V1, V2, encoded, framed
from tests.tidemark.parsers.test_protobuf import order, order_file
from tests.tidemark.records.build import T0, Record, batch
from tidemark.planning import plan_ingest, ranges, raw, write_plan
from tidemark.runs import RunResult
from tidemark_spark.driver import run

JOB = ROOT / "spark" / "jobs" / "convert.py"
ATTEMPT = 7
UNRULY = "parser: {kind: function, function: 'tests.spark.unruly:sizes', columns: [{name: size, type: int32}]}"
PARSERS = {
    "none": "keep: [key, value, headers]",
    "json": "parser: {kind: json, columns: [{name: id, type: int64}, {name: name, type: string, path: user.name}]}",
    "avro": "parser: {kind: avro, schema: orders.avsc, framing: confluent, schemas: ids}",
    "protobuf": "parser: {kind: protobuf, descriptors: set.pb, message: shop.Order}",
}


def value_of(kind: str, number: int) -> bytes:
    """A value for a parser; the schema of Avro evolves in the midst of each batch, and some values are refused."""
    if number % 17 == 16:
        return b"\xff{"
    if kind == "json":
        return json.dumps({"id": number, "user": {"name": "x" * (number % 9)}}).encode()
    if kind == "avro":
        newer = number % 10 >= 5
        record = {"a": number, "b": "y"} if newer else {"a": number, "gone": "x"}
        return framed(2 if newer else 1, encoded(V2 if newer else V1, record))
    if kind == "protobuf":
        return order(id=number, name="n" * (number % 7), sizes={"m": 2, "a": 1})
    return b"%d" % number * 20


def upload(world: World, kind: str) -> None:
    """Three partitions of two segments, of compressed and plain batches in turn, over three dates."""
    for partition in range(3):
        for segment in range(2):
            base = 80 * segment
            world.raw.segment(
                [
                    batch(
                        base + 10 * i,
                        [
                            Record(k, T0 + k % 3 * 86_400_000 + i, b"k%d" % k, value_of(kind, base + 10 * i + k))
                            for k in range(10)
                        ],
                        ("none", "zstd", "lz4", "gzip")[i % 4],
                    )
                    for i in range(8)
                ],
                partition,
            )
    world.raw.publish()


def schemas(folder: Path) -> None:
    """The files that PARSERS name."""
    (folder / "ids").mkdir()
    (folder / "orders.avsc").write_text(json.dumps(V2))
    for number, schema in ((1, V1), (2, V2)):
        (folder / "ids" / f"{number}.avsc").write_text(json.dumps(schema))
    (folder / "set.pb").write_bytes(FileDescriptorSet(file=[order_file()]).SerializeToString())


class Runs:
    """Deployments with the same raw objects and each with a table of its own, which all have the same plan."""

    def __init__(self, root: Path, kind: str, settings: str) -> None:
        self._root, self._settings = root, settings
        self._first = self.world("first")
        upload(self._first, kind)

    def world(self, name: str) -> World:
        """A deployment whose plan is written."""
        (self._root / name).mkdir()
        schemas(self._root / name)
        shared = None if name == "first" else f"file://{self._root}/first/raw"
        world = World(self._root / name, self._settings, raw=shared)
        if name != "first":
            write_plan(world.lake, plan_ingest(world.lake, attempt=ATTEMPT))
        return world


def data(world: World) -> dict[str, bytes]:
    """All that a table's data files and quarantine hold, by path."""
    root = Path(world.lake.url.removeprefix("file://")).parent
    found = [path for path in sorted(root.rglob("*.parquet")) if "_tidemark" not in path.parts]
    return {f"{path.relative_to(root)}": path.read_bytes() for path in found}
