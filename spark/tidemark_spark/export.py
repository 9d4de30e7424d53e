"""Raw segments as plain files: lines of text, or Hadoop SequenceFiles like those of Pinterest's Secor.

* ``text``: the values, each followed by a newline; a value that contains one is refused
* ``sequence``: key ``LongWritable``, the offset; value ``BytesWritable``
* ``messagepack``: key ``BytesWritable``, a MessagePack map of 1: the offset, 2: the message's key if it has one; value
  ``BytesWritable``

A null value is written as an empty value, as in Secor's files. A task writes one file,
``<topic>[@<incarnation>]/0_<partition>_<first offset>.<extension>``; its bytes depend only on the rows and the name, so
a repeated task writes the same object. Memory is bounded by one window of a segment.
"""

from __future__ import annotations

import hashlib
import struct
import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, Literal, NamedTuple, cast

import pyarrow as pa

from tidemark.errors import FormatError
from tidemark.formats.keys import OFFSET_DIGITS
from tidemark.store import StoreOptions, open_store
from tidemark_spark.convert.upload import upload_once
from tidemark_spark.datasource import SegmentPartition, SegmentReader

Format = Literal["text", "sequence", "messagepack"]

EXTENSIONS: Final[dict[Format, str]] = {"text": "txt", "sequence": "seq", "messagepack": "seq"}

_BYTES_WRITABLE: Final = "org.apache.hadoop.io.BytesWritable"
_LONG_WRITABLE: Final = "org.apache.hadoop.io.LongWritable"
_VERSION: Final = b"SEQ\x06"
_SYNC_BYTES: Final = 100 * 1024
"""The approximate distance of sync marks: Hadoop's ``SequenceFile.SYNC_INTERVAL``."""


class Export(NamedTuple):
    """Settings that all tasks share: target store and prefix, and the format."""

    store: str
    prefix: str
    options: StoreOptions
    topic: str
    format: Format
    reader: SegmentReader


class Exported(NamedTuple):
    """A file that was written: its key, its rows, and its bytes."""

    key: str
    rows: int
    size: int


def export_part(export: Export, part: SegmentPartition) -> Exported | None:
    """Write the rows of ``part``; None if there are none.

    Raises:
        FormatError: a value contains a newline, and the format is text.
        PreconditionFailed: the key holds other bytes, from an earlier export with other settings.
    """
    key = _key(export, part)
    count = 0
    with cast("BinaryIO", tempfile.TemporaryFile(prefix="tidemark-")) as file:
        write = _text if export.format == "text" else _Sequence(file, key, export.format).write
        for rows in export.reader.read(part):
            write(file, rows)
            count += len(rows)
        if not count:
            return None
        return Exported(key, count, upload_once(open_store(export.store, export.options), key, file))


def _key(export: Export, segments: SegmentPartition) -> str:
    task = segments.task
    folder = export.topic if task.incarnation == 0 else f"{export.topic}@{task.incarnation}"
    name = f"0_{task.partition}_{task.from_offset:0{OFFSET_DIGITS}d}.{EXTENSIONS[export.format]}"
    return "/".join(part for part in (export.prefix, folder, name) if part)


def _records(rows: pa.RecordBatch) -> Iterator[tuple[int, bytes | None, bytes]]:
    """(offset, key, value) of each row."""
    names = ("kafka_offset", "kafka_key", "kafka_value")
    columns: list[list[Any]] = [rows.column(name).to_pylist() for name in names]
    for offset, key, value in zip(*columns, strict=True):
        yield offset, key, b"" if value is None else value


def _text(file: BinaryIO, rows: pa.RecordBatch) -> None:
    for offset, _, value in _records(rows):
        if b"\n" in value:
            where = f"partition {rows.column('kafka_partition')[0].as_py()}, offset {offset}"
            raise FormatError(
                where, "the value has a newline in it, which lines of text cannot tell; use a SequenceFile"
            )
        file.write(value + b"\n")


class _Sequence:
    """A SequenceFile being written, version 6, uncompressed (Hadoop's ``SequenceFile.Writer``)."""

    def __init__(self, file: BinaryIO, name: str, kind: Format) -> None:
        self._sync = hashlib.md5(name.encode(), usedforsecurity=False).digest()
        self._long = kind == "sequence"
        names = (_LONG_WRITABLE if self._long else _BYTES_WRITABLE, _BYTES_WRITABLE)
        header = b"".join(bytes([len(writable)]) + writable.encode() for writable in names)
        file.write(_VERSION + header + b"\x00\x00" + struct.pack(">i", 0) + self._sync)
        self._next_sync = file.tell() + _SYNC_BYTES

    def write(self, file: BinaryIO, rows: pa.RecordBatch) -> None:
        """Append the records of ``rows``."""
        for offset, key, value in _records(rows):
            if file.tell() >= self._next_sync:
                file.write(struct.pack(">i", -1) + self._sync)
                self._next_sync = file.tell() + _SYNC_BYTES
            head = struct.pack(">q", offset) if self._long else _bytes(packed(offset, key))
            body = _bytes(value)
            file.write(struct.pack(">ii", len(head) + len(body), len(head)) + head + body)


def _bytes(data: bytes) -> bytes:
    """``data`` in the encoding of ``BytesWritable``."""
    return struct.pack(">i", len(data)) + data


def packed(offset: int, key: bytes | None) -> bytes:
    """The MessagePack map of an offset and a message's key, each in its shortest form."""
    head = (b"\x81" if key is None else b"\x82") + b"\x01" + _packed_integer(offset)
    if key is None:
        return head
    for code, layout, limit in ((b"\xc4", ">B", 1 << 8), (b"\xc5", ">H", 1 << 16), (b"\xc6", ">I", 1 << 32)):
        if len(key) < limit:
            return head + b"\x02" + code + struct.pack(layout, len(key)) + key
    raise FormatError(f"offset {offset}", f"a key of {len(key)} bytes fits no MessagePack")


def _packed_integer(value: int) -> bytes:
    if value < 1 << 7:
        return bytes([value])
    for code, layout, limit in ((b"\xcc", ">B", 1 << 8), (b"\xcd", ">H", 1 << 16), (b"\xce", ">I", 1 << 32)):
        if value < limit:
            return code + struct.pack(layout, value)
    return b"\xcf" + struct.pack(">Q", value)
