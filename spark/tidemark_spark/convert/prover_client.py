"""A worker's questions to its proving process, see :mod:`tidemark_spark.convert.prover`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final, NamedTuple, Self

import pyarrow as pa

from tidemark import decode
from tidemark.formats.table.plan import StoredRange
from tidemark_spark.model import Job

_PATIENCE: Final = 10.0
"""Seconds for the process to end by itself after the last question."""


class ProvenItems(NamedTuple):
    """Items ``[start, end)``: safe together, or a single unsafe one with its ``reason``."""

    start: int
    end: int
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ProverRequest:
    """Batches to try to decode; ``data`` starts at byte ``position`` of the file ``name``."""

    data: bytes
    headers: decode.Headers
    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Decoded rows of ``part`` to try to convert; ``data`` is an Arrow stream with ``count`` rows."""

    data: bytes
    count: int
    part: StoredRange

    @classmethod
    def of(cls, rows: pa.RecordBatch, part: StoredRange) -> Self:
        """The question about ``rows``."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_batch(rows)
        return cls(sink.getvalue().to_pybytes(), len(rows), part)


class Prover:
    """The proving process, started with the first question. A ``with`` statement ends it."""

    def __init__(self, job: Job, memory: int) -> None:
        """Children of the process may take ``memory`` bytes."""
        self._job, self._memory = job, memory
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def ask(self, question: ProverRequest | Rows) -> list[ProvenItems]:
        """All items of ``question``, in order: pieces that are safe together, and single unsafe items.

        Raises:
            ChildProcessError: nothing is proved, because another process ended a child or the prover.
        """
        connection = self._connection or self._start()
        try:
            connection.send(question)
            answer: list[ProvenItems] | str = connection.recv()
        except (EOFError, OSError) as error:
            raise ChildProcessError(f"the process that proves has ended, with code {self._ended()}") from error
        if isinstance(answer, str):
            raise ChildProcessError(answer)
        return answer

    def _start(self) -> Connection:
        ours, theirs = socket.socketpair()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(folder for folder in sys.path if folder),
            "MIMALLOC_ARENA_EAGER_COMMIT": "0",
        }
        command = [sys.executable, "-m", "tidemark_spark.convert.prover", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=2
            )
        self._connection = Connection(ours.detach())
        self._connection.send((self._job, self._memory))
        return self._connection

    def _ended(self) -> int | None:
        return self._process.wait(_PATIENCE) if self._process else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection:
            self._connection.close()
        if self._process:
            try:
                self._process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
