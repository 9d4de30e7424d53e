"""The forms in which ``tidemark consume`` writes records.

``json``: a line per record, with ``topic``, ``partition``, ``offset``, ``timestamp`` (milliseconds; -1: none),
``timestamp_type`` (``create`` or ``append``), ``leader_epoch`` (-1: unknown), ``headers``, ``key``, ``key_encoding``,
``value`` and ``value_encoding``; ``headers`` is a list of objects with ``key``, ``value`` and ``encoding``. Bytes that
are UTF-8 are text, and their encoding is ``utf-8``; others are ``base64``; null has a null encoding. Nothing is lost.

``text``: a line per record for people, with its place, its time in UTC, key and value, cut after 400 characters. Other
characters than a terminal prints are escaped.

``raw``: values alone, each followed by a delimiter, with null as an empty value; or each after its length as 4 bytes,
big end first, -1 for null, which preserves every value.

``arrow``: the columns of the tables (docs/reading.md), as an Arrow IPC file, or as an IPC stream on standard output.
No Python object is made for a record.
"""

from __future__ import annotations

import base64
import json
import struct
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, Protocol

import pyarrow as pa
from typing_extensions import override

from tidemark.decode import SCHEMA, unrepresentable_timestamps
from tidemark.errors import ConfigError
from tidemark.words import start_of, utc_time

_ESCAPES: Final = {"\\n": "\n", "\\r": "\r", "\\t": "\t", "\\0": "\0", "\\\\": "\\"}
_LONGEST: Final = 400
_LENGTH: Final = struct.Struct(">i")


class Writer(Protocol):
    """A writer of a topic's record batches, which have the columns of :data:`tidemark.decode.SCHEMA`."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Write all rows. Raises OSError; BrokenPipeError means that nobody reads any more."""
        ...

    def close(self) -> None:
        """Write the end of the format; the output stays open."""
        ...


def writer_of(form: str, sink: BinaryIO, topic: str, *, stream: bool, delimiter: str, prefixed: bool) -> Writer:
    """The writer of ``json``, ``text``, ``raw`` or ``arrow``. Raises ConfigError for an invalid delimiter."""
    if form == "arrow":
        return ArrowWriter(sink, stream=stream)
    if form == "raw":
        return RawWriter(sink, None if prefixed else _unescaped(delimiter))
    return TextWriter(sink, topic) if form == "text" else JsonWriter(sink, topic)


class _LineWriter(Writer):
    """A writer of a line for each record."""

    def __init__(self, sink: BinaryIO, topic: str) -> None:
        self._sink = sink
        self._topic = topic

    @abstractmethod
    def _lines(self, rows: pa.RecordBatch) -> Iterator[str]: ...

    @override
    def write(self, rows: pa.RecordBatch) -> None:
        self._sink.write("".join(f"{line}\n" for line in self._lines(rows)).encode())
        self._sink.flush()

    @override
    def close(self) -> None:
        pass


class JsonWriter(_LineWriter):
    """A writer of JSON lines."""

    @override
    def _lines(self, rows: pa.RecordBatch) -> Iterator[str]:
        names = ("partition", "offset", "timestamp_type", "leader_epoch", "key", "value", "headers")
        columns = [rows.column(f"kafka_{name}").to_pylist() for name in names]
        for partition, offset, kind, epoch, key, value, headers, at in zip(*columns, _milliseconds(rows), strict=True):
            record: dict[str, Any] = {
                "topic": self._topic,
                "partition": partition,
                "offset": offset,
                "timestamp": at,
                "timestamp_type": kind,
                "leader_epoch": epoch,
                "headers": [_header(header["key"], header["value"]) for header in headers],
            }
            record["key"], record["key_encoding"] = _text(key)
            record["value"], record["value_encoding"] = _text(value)
            yield json.dumps(record, ensure_ascii=False)


class TextWriter(_LineWriter):
    """A writer of lines for people."""

    @override
    def _lines(self, rows: pa.RecordBatch) -> Iterator[str]:
        columns = [rows.column(f"kafka_{name}").to_pylist() for name in ("partition", "offset", "key", "value")]
        for partition, offset, key, value, at in zip(*columns, _milliseconds(rows), strict=True):
            told = f"{start_of(key, _LONGEST)}  {start_of(value, _LONGEST)}"
            yield f"{self._topic}-{partition}-{offset}  {_time(at)}  {told}"


class RawWriter(Writer):
    """A writer of values, each followed by ``delimiter``, or after its length if that is None."""

    def __init__(self, sink: BinaryIO, delimiter: bytes | None) -> None:
        self._sink = sink
        self._delimiter = delimiter

    @override
    def write(self, rows: pa.RecordBatch) -> None:
        values = rows.column("kafka_value").to_pylist()
        if self._delimiter is None:
            parts = [_LENGTH.pack(-1) if value is None else _LENGTH.pack(len(value)) + value for value in values]
            self._sink.write(b"".join(parts))
        else:
            self._sink.write(b"".join((value or b"") + self._delimiter for value in values))
        self._sink.flush()

    @override
    def close(self) -> None:
        pass


class ArrowWriter(Writer):
    """A writer of an Arrow IPC stream, or of an Arrow IPC file, which is valid once it is closed."""

    def __init__(self, sink: BinaryIO, *, stream: bool) -> None:
        self._sink = sink
        opened = pa.PythonFile(sink, "w")  # type: ignore[arg-type]  # the stubs know the class io.IOBase alone
        self._writer = pa.ipc.new_stream(opened, SCHEMA) if stream else pa.ipc.new_file(opened, SCHEMA)

    @override
    def write(self, rows: pa.RecordBatch) -> None:
        self._writer.write_batch(rows.replace_schema_metadata(None))
        self._sink.flush()

    @override
    def close(self) -> None:
        self._writer.close()


def _milliseconds(rows: pa.RecordBatch) -> list[int]:
    """The records' times, as their producers or brokers have stated them; -1 for none."""
    odd = dict(unrepresentable_timestamps(rows))
    micros = rows.column("kafka_timestamp").cast(pa.int64()).to_pylist()
    return [odd[row] if micro is None else micro // 1000 for row, micro in enumerate(micros)]


def _time(milliseconds: int) -> str:
    return "no time" if milliseconds == -1 else utc_time(milliseconds)


def _text(value: bytes | None) -> tuple[str | None, str | None]:
    """(the value as text, its encoding)."""
    if value is None:
        return None, None
    try:
        return value.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(value).decode(), "base64"


def _header(key: str, value: bytes | None) -> dict[str, str | None]:
    text, encoding = _text(value)
    return {"key": key, "value": text, "encoding": encoding}


def _unescaped(delimiter: str) -> bytes:
    text, position = "", 0
    while position < len(delimiter):
        pair = delimiter[position : position + 2]
        if delimiter[position] == "\\" and pair not in _ESCAPES:
            rule = f"{delimiter!r}: a backslash must be followed by n, r, t, 0 or another backslash"
            raise ConfigError("--delimiter", [("", rule)])
        text += _ESCAPES.get(pair, delimiter[position])
        position += 2 if pair in _ESCAPES else 1
    return text.encode()
