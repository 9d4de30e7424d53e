"""A topic's parser that records can kill, stall or make grow, by what they say; and so can batches the decoder.

Importing this module plants the latter: a worker and the process that proves for it both import it for their parser.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
from collections.abc import Callable
from typing import Final, NoReturn

import pyarrow as pa

from tests.spark.convert.parsing import all_sizes
from tidemark.decode import decompress
from tidemark.kafka_log.batch import Codec
from tidemark_spark.model import StepLimits

IN_DECODER: Final = b"poison: the decoder"
"""A compressed batch with this in it ends the process that decompresses it."""


def _segfault() -> None:
    ctypes.string_at(0)


def _stall() -> None:
    """In native code that keeps the interpreter's lock: nothing within this process can do anything about it."""
    re.match("(a+)+b", "a" * 100)


def _wait() -> None:
    """The same, without taking processor time."""
    ctypes.PyDLL(None).pause()


def _grow() -> NoReturn:
    held = []
    while True:
        held.append(b"x" * (64 << 20))


def _raise() -> NoReturn:
    raise RuntimeError("planted")


KINDS: Final[dict[bytes, Callable[[], object]]] = {
    b"poison: segfault": _segfault,
    b"poison: abort": os.abort,
    b"poison: exit": lambda: os._exit(3),
    b"poison: stall": _stall,
    b"poison: wait": _wait,
    b"poison: grow": _grow,
    b"poison: raise": _raise,
}
LARGE: Final = b"large"
"""What takes memory, and may have it; several of them together may not."""

KILLED: Final = b"killed"
"""As if somebody else had ended the process."""

REASONS: Final = {
    b"poison: segfault": "converting it ends the process by SIGSEGV",
    b"poison: abort": "converting it ends the process by SIGABRT",
    b"poison: exit": "converting it ends the process with code 3",
    b"poison: stall": "converting it takes longer than 1 s and its bytes at 1048576 a second",
    b"poison: wait": "converting it takes longer than 1 s and its bytes at 1048576 a second",
    b"poison: grow": "converting it takes more than {memory} bytes of memory",
    b"poison: raise": "converting it raises RuntimeError: planted",
}
SETTINGS: Final = (
    "parser: {kind: function, function: 'tests.spark.convert.poison:sizes', columns: [{name: size, type: int32}]}",
    "limits: {batch: 64MiB}",
)
"""Of the topic."""

LIMITS: Final = StepLimits(64 << 20, 1 << 30, 1.0, 1 << 20)
"""Of a job, so that a record that hangs is found within seconds."""


def sizes(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The size of each value, unless one of them is poison."""
    held = []
    for value in rows.column("kafka_value").to_pylist():
        if value in KINDS:
            KINDS[value]()
        elif value == LARGE:
            held.append(b"x" * (80 << 20))
        elif value == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
    return all_sizes(rows)


_append = decompress.Decompressor.append


def _poisoned(self: decompress.Decompressor, codec: Codec, source: memoryview, arena: decompress.Arena) -> int:
    held = _append(self, codec, source, arena)
    if IN_DECODER in bytes(arena.data[arena.used - held : arena.used]):
        _segfault()
    return held


decompress.Decompressor.append = _poisoned  # type: ignore[method-assign]
