"""Parsers alone: values in memory to Arrow columns, in one plain process, by value size and by kind; and Spark's own.

MB are of record values as they came, by CPU second of the process and by second on the clock. Each value has the same
ten fields whatever its format; two sizes, about 1 KB and about 250 B of JSON, which is some 130 B of Avro and Protobuf.
JSON is measured again with a decimal in the place of a double, and with an eleventh field that is kept as text. Avro
and Protobuf are measured again without the compiled loop: row by row, by the library that reads what the loop leaves.
Spark parses the same values, from its own memory, on one core, to the same columns, and throws them away; its CPU is
that of the whole process tree.
"""

from __future__ import annotations

import io
import itertools
import json
import multiprocessing
import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from bench.convert import peers_session
from bench.measure import MB, Row, metered
from tidemark.config import parse
from tidemark.decode.schema import SCHEMA
from tidemark.parsers.avro import AvroColumns
from tidemark.parsers.base import Parsed, Parser
from tidemark.parsers.factory import parser_of
from tidemark.parsers.protobuf import ProtobufColumns
from tidemark.topics import Deployment

if TYPE_CHECKING:
    from pyspark.sql import Column

REPETITIONS: Final = 5
VALUE_BYTES: Final = 32 << 20
BATCH_ROWS: Final = 16_384

_FIELDS: Final = {
    "id": ("int64", "long", FieldDescriptorProto.TYPE_INT64, "BIGINT"),
    "user": ("int64", "long", FieldDescriptorProto.TYPE_INT64, "BIGINT"),
    "placed": ("timestamp(ms)", "long", FieldDescriptorProto.TYPE_INT64, "BIGINT"),
    "amount": ("double", "double", FieldDescriptorProto.TYPE_DOUBLE, "DOUBLE"),
    "weight": ("double", "double", FieldDescriptorProto.TYPE_DOUBLE, "DOUBLE"),
    "paid": ("boolean", "boolean", FieldDescriptorProto.TYPE_BOOL, "BOOLEAN"),
    "count": ("int32", "int", FieldDescriptorProto.TYPE_INT32, "INT"),
    "country": ("string", "string", FieldDescriptorProto.TYPE_STRING, "STRING"),
    "session": ("string", "string", FieldDescriptorProto.TYPE_STRING, "STRING"),
    "text": ("string", "string", FieldDescriptorProto.TYPE_STRING, "STRING"),
}
"""By name: the type in the topics file, in Avro, in Protobuf, in Spark."""

_MIX: Final = {"avro": "; spark-avro 4.1.1, the newest that resolves, in Spark 4.2.0"}
"""from_protobuf is not measured: no spark-protobuf of any Spark 4 resolves."""

_AVRO: Final = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": name, "type": kinds[1]} for name, kinds in _FIELDS.items()],
}


def measure() -> list[Row]:
    """All kinds and sizes; the first round, which compiles and warms up, is dropped."""
    rows: list[Row] = []
    sizes: dict[tuple[str, int], int] = {}
    with TemporaryDirectory() as folder:
        for size in (1000, 250):
            records = _records(size)
            for kind, (settings, encode) in _formats(Path(folder)).items():
                values = [encode(one) for one in records]
                parser = _parser(settings, Path(folder))
                rows += _measured(kind, size, parser.parse, values)
                if isinstance(parser, AvroColumns | ProtobufColumns):
                    by_row = partial(parser.parse_by, vectorised=False)
                    rows += _measured(f"{kind} row by row", size, by_row, values)
                pq.write_table(pa.table({"value": pa.array(values, pa.binary())}), Path(folder, f"{kind}-{size}"))
                sizes[kind, size] = sum(map(len, values))
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as peer:
            rows += peer.submit(_by_spark, Path(folder), sizes).result()
    return rows


def _by_spark(folder: Path, sizes: Mapping[tuple[str, int], int]) -> list[Row]:
    """from_json and from_avro of the same values, which have so many bytes by kind and size."""
    from pyspark.sql import functions as f
    from pyspark.sql.avro.functions import from_avro

    spark = peers_session("local[1]")
    ddl = ", ".join(f"{name} {kinds[3]}" for name, kinds in _FIELDS.items())
    parse: dict[str, Callable[[], Column]] = {
        "json": lambda: f.from_json(f.col("value").cast("string"), ddl),
        "avro": lambda: from_avro(f.col("value"), json.dumps(_AVRO)),
    }
    rows: list[Row] = []
    for size, (kind, parsed) in itertools.product((1000, 250), parse.items()):
        path = folder / f"{kind}-{size}"
        total = sizes[kind, size] / MB
        values = spark.read.parquet(str(path)).cache()
        values.count()
        columns = (
            values.select(parsed().alias("one")).select("one.*").withColumn("placed", f.timestamp_millis("placed"))
        )
        found = [metered(columns.write.format("noop").mode("overwrite").save) for _ in range(REPETITIONS + 1)][1:]
        values.unpersist()
        name = f"Spark's from_{kind}, records of {size} B as JSON"
        note = "10 columns, cached rows to Spark's noop sink, local[1], warm" + _MIX.get(kind, "")
        rows.append(Row("parsers", f"{name}, by CPU", "MB/s", tuple(total / one.cpu for one in found), note))
        rows.append(Row("parsers", f"{name}, by clock", "MB/s", tuple(total / one.wall for one in found), note))
    spark.stop()
    return rows


def _measured(kind: str, size: int, parse: Callable[[pa.RecordBatch], Parsed], values: list[bytes]) -> list[Row]:
    batches = [_rows(values[start : start + BATCH_ROWS]) for start in range(0, len(values), BATCH_ROWS)]
    total = sum(map(len, values)) / MB
    by_cpu, by_clock = [], []
    for number in range(REPETITIONS + 1):
        wall, cpu = time.perf_counter(), time.process_time()
        for batch in batches:
            if parse(batch).refused:
                raise RuntimeError(f"{kind}: refuses what was made for it")
        if number:
            by_cpu.append(total / (time.process_time() - cpu))
            by_clock.append(total / (time.perf_counter() - wall))
    note = f"10 columns, {len(values)} values of {total * MB / len(values):.0f} B, one process, warm"
    name = f"{kind}, records of {size} B as JSON"
    return [
        Row("parsers", f"{name}, by CPU", "MB/s", tuple(by_cpu), note),
        Row("parsers", f"{name}, by clock", "MB/s", tuple(by_clock), note),
    ]


def _formats(folder: Path) -> dict[str, tuple[dict[str, Any], Callable[[dict[str, Any]], bytes]]]:
    """By kind: the parser's settings, and how a record is written."""
    columns = [{"name": name, "type": kinds[0]} for name, kinds in _FIELDS.items()]
    (folder / "order.avsc").write_text(json.dumps(_AVRO))
    schema = fastavro.parse_schema(_AVRO)
    file = FileDescriptorProto(name="order.proto", package="bench", syntax="proto3")
    message = file.message_type.add(name="Order")
    for number, (name, kinds) in enumerate(_FIELDS.items(), 1):
        message.field.add(name=name, number=number, type=kinds[2], label=FieldDescriptorProto.LABEL_OPTIONAL)
    (folder / "order.pb").write_bytes(FileDescriptorSet(file=[file]).SerializeToString())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("bench.Order"))

    def avro(record: dict[str, Any]) -> bytes:
        target = io.BytesIO()
        fastavro.schemaless_writer(target, schema, record)
        return target.getvalue()

    def document(record: dict[str, Any]) -> bytes:
        return json.dumps(record, separators=(",", ":")).encode()

    def with_part(record: dict[str, Any]) -> bytes:
        part = {"country": record["country"], "counts": [record["count"]] * 4, "weight": record["weight"]}
        return document({**record, "part": part})

    exact = [{**one, "type": "decimal(9,2)"} if one["name"] == "amount" else one for one in columns]
    return {
        "json": ({"kind": "json", "columns": columns}, document),
        "json with a decimal": ({"kind": "json", "columns": exact}, document),
        "json with a part as text": (
            {"kind": "json", "columns": [*columns, {"name": "part", "type": "json"}]},
            with_part,
        ),
        "avro": ({"kind": "avro", "schema": "order.avsc"}, avro),
        "protobuf": (
            {"kind": "protobuf", "descriptors": "order.pb", "message": "bench.Order"},
            lambda one: order(**one).SerializeToString(),
        ),
    }


def _records(size: int) -> list[dict[str, Any]]:
    rng = random.Random(1)  # noqa: S311 - the data must be repeatable
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randrange(3, 11))) for _ in range(2000)]
    return [_record(rng, words, number, size) for number in range(VALUE_BYTES // size)]


def _record(rng: random.Random, words: list[str], number: int, size: int) -> dict[str, Any]:
    return {
        "id": number,
        "user": rng.randrange(10**7),
        "placed": 1_770_000_000_000 + number,
        "amount": round(rng.random() * 1000, 2),
        "weight": round(rng.random(), 6),
        "paid": rng.random() < 0.5,
        "count": rng.randrange(100),
        "country": rng.choice(("AT", "DE", "FR", "IT")),
        "session": rng.randbytes(16).hex(),
        "text": " ".join(rng.choices(words, k=max(1, (size - 190) * 2 // 15))),
    }


def _parser(settings: dict[str, Any], folder: Path) -> Parser:
    topic = {"topic": "orders", "parser": settings}
    file = {"cluster": "bench", "raw": {"url": "s3://raw"}, "lake": "s3://lake", "topics": [topic]}
    deployment = parse(Deployment, yaml.safe_dump(file), str(folder / "topics.yaml"), {})
    return parser_of(deployment.topics[0].parser, "orders")


def _rows(values: list[bytes]) -> pa.RecordBatch:
    """Kafka's columns, of which a parser reads the value alone."""
    count = len(values)
    columns = [
        pa.array(values, pa.binary()) if one.name == "kafka_value" else pa.nulls(count, one.type) for one in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, names=SCHEMA.names)
