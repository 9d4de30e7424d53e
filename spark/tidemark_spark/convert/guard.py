"""Guards decoding and converting in a worker: a record that kills or blocks the process affects only itself.

The first attempt of a task only sets limits (``process_limits``): breaking them ends the worker, or the attempt. In a
later attempt each step is proved before it is done (``prover_client``). Outside of :func:`guarded` there are no limits:
in the driver, in tests, and in the proving children.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from tidemark import decode
from tidemark.errors import SegmentError
from tidemark.formats.table.plan import StoredRange
from tidemark.kafka_log import BatchHeader
from tidemark.parsers.base import Parsed, Parser, no_rows
from tidemark_spark.convert.process_limits import at_most, bounded_memory, goes_first, seconds_for
from tidemark_spark.convert.prover_client import ProvenItems, Prover, ProverRequest, Rows
from tidemark_spark.model import Job, StepLimits

if TYPE_CHECKING:
    from tidemark.decode.decoder import OnRefused

_WORKER_SCORE: Final = 500
"""If memory runs out, the kernel must end the worker and not the JVM, which many tasks share."""

_LEAST_MEMORY: Final = 512 << 20
"""With less memory, ordinary records would not be converted."""

_DECODING_RATE: Final = 64
"""Factor by which decompressing and decoding must be faster than parsing."""

Part = TypeVar("Part", bound=StoredRange)
Take = Callable[[int, Part, pa.RecordBatch, str | None], None]
"""Takes rows of a numbered range; a reason refuses all of them."""


@dataclass(frozen=True, slots=True)
class _Guard:
    """The limits of the running task, and its prover if it needs one."""

    limits: StepLimits
    memory: int
    prover: Prover | None


_now: _Guard | None = None
"""The guard of the running task; Spark gives a worker process one task at a time."""


@contextmanager
def guarded(job: Job, attempt: int) -> Iterator[None]:
    """Run a task of ``job`` within its limits; ``attempt`` counts its earlier ends without a result."""
    global _now  # noqa: PLW0603 - the state of the process
    from tidemark.decode import kernel_cache  # which loads numba, and drivers need none

    goes_first(_WORKER_SCORE)
    kernel_cache.load_all({job.topic.parser.kind})
    limits = job.limits
    memory = max(_LEAST_MEMORY, limits.memory >> max(0, attempt - 1))
    with Prover(job, memory) if attempt else nullcontext() as prover:
        _now = _Guard(limits, memory, prover)
        try:
            yield
        finally:
            _now = None


def decoded(
    job: Job, data: bytes, headers: decode.Headers, *, name: str, position: int, on_refused: OnRefused, **more: Any
) -> Iterator[pa.RecordBatch]:
    """Decode with :func:`tidemark.decode.decode_batches`, within the job's limits; refuse deadly batches."""
    guard = _now
    if guard and guard.prover:
        pieces = guard.prover.ask(ProverRequest(data, headers, name, position))
        deadly = {piece.start: piece.reason for piece in pieces if piece.reason}
        for index, reason in deadly.items():
            header = BatchHeader(*headers[index].item())
            on_refused(header, SegmentError(name, header.position, header.base_offset, reason))
        headers = np.delete(headers, list(deadly))
    yield from steps(job, data, headers, _step, name=name, position=position, on_refused=on_refused, **more)


def steps(
    job: Job,
    data: bytes,
    headers: decode.Headers,
    step: Callable[[float], AbstractContextManager[None]],
    *,
    incarnation: int = 0,
    partition: int = 0,
    on_refused: OnRefused = lambda *_: None,
    **more: Any,
) -> Iterator[pa.RecordBatch]:
    """Decode chunks of rows, each within ``step``, which gets the seconds that the chunk may take."""
    limits = decode.DEFAULT_LIMITS._replace(records_bytes=job.limits.batch)
    seconds = seconds_for(job.limits, (limits.arena_bytes + limits.records_bytes) // _DECODING_RATE)
    rows = decode.decode_batches(
        data, headers, incarnation=incarnation, partition=partition, on_refused=on_refused, limits=limits, **more
    )
    while True:
        with step(seconds):
            chunk = next(rows, None)
        if chunk is None:
            return
        yield chunk


@contextmanager
def _step(seconds: float) -> Iterator[None]:
    """Run the block within the limits of the running task, if there are any."""
    with bounded_memory(_now.memory) if _now else nullcontext(), at_most(seconds) if _now else nullcontext():
        yield


def pass_on(take: Take[Part], job: Job, number: int, part: Part, rows: pa.RecordBatch) -> None:
    """Pass decoded rows to ``take``: unchanged, or in proved pieces with the reasons for refusals."""
    guard = _now
    if guard is None or not len(rows):
        take(number, part, rows, None)
        return
    whole = [ProvenItems(0, len(rows))]
    pieces = guard.prover.ask(Rows.of(rows, part)) if guard.prover else whole
    for piece in pieces:
        chosen = rows if pieces == whole else rows.slice(piece.start, piece.end - piece.start)
        with bounded_memory(guard.memory):
            take(number, part, chosen, piece.reason)


def parsed(parser: Parser, rows: pa.RecordBatch, refusal: str | None) -> Parsed:
    """The result of ``parser`` for ``rows``, within their time limit; a ``refusal`` refuses all rows."""
    if refusal is not None:
        return Parsed(no_rows(parser.columns, len(rows)), dict.fromkeys(range(len(rows)), refusal))
    with at_most(seconds_for(_now.limits, rows.nbytes)) if _now else nullcontext():
        return parser.parse(rows)
