"""The process that proves for a worker: ``python -m tidemark_spark.convert.prover FD``, a socket to the worker.

It loads the same modules as a worker, and never decodes or parses the items in question itself. For that it forks
children with limited memory and time, which may die. A child does one piece after the other and reports each. The next
child does the piece that killed its predecessor in parts. So each death costs one child, and few rounds lead to a
single item.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Final, NamedTuple, NoReturn, cast

import pyarrow as pa

from tidemark.decode import decoder, kernel_cache
from tidemark.errors import TidemarkError
from tidemark.formats.table.plan import QuarantineTask, SegmentRange, SegmentTask
from tidemark.parsers.base import shortened
from tidemark.parsers.factory import parser_of
from tidemark.store import Store
from tidemark_spark.convert.guard import steps
from tidemark_spark.convert.process_limits import TIMERS, at_most, bounded_memory, goes_first, resident, seconds_for
from tidemark_spark.convert.prover_client import ProvenItems, ProverRequest, Rows
from tidemark_spark.convert.row_sink import Sink
from tidemark_spark.model import Job, StepLimits

NEEDED: Final = (decoder,)
"""What children use besides the kernels, loaded before the first fork."""

PARTS: Final = 64
"""Number of parts into which a piece that killed a child is cut."""

_NOT_OF_DATA: Final = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
"""Signals that people and schedulers send."""

_GREW: Final = 8
"""Share of its memory that a child must have taken to be blamed for its end by SIGKILL, as a divisor."""

_CHILD_SCORE: Final = 1000
"""If memory runs out, the kernel must end this child first."""

_DONE: Final = b"."
_LOOK: Final = 1.0
"""Seconds between checks that a child is alive, as its own children may keep its pipe open."""

Attempt = Callable[[int, int], None]
"""Decodes or converts the items ``[start, end)`` within their time limit."""


class _Lived(NamedTuple):
    """Number of pieces that a child has done, and the reason for its early end, or None."""

    pieces: int
    death: str | None


class _Interrupted(Exception):
    """Raised when another process ended a child; nothing is proved."""


def main(descriptor: int) -> int:
    """Answer questions until the worker closes the socket."""
    connection = Connection(descriptor)
    job, memory = connection.recv()
    kernel_cache.load_all({job.topic.parser.kind})
    parser_of(job.topic.parser, f"{job.topic.cluster}/{job.topic.topic}")  # for its libraries
    while True:
        try:
            question = connection.recv()
        except EOFError:
            return 0
        attempt, count = _attempt(job, question)
        children = _Children(connection, attempt, job.limits, memory)
        try:
            connection.send(proved(count, children.run))
        except _Interrupted as error:
            connection.send(str(error))


def proved(count: int, run: Callable[[list[ProvenItems]], _Lived]) -> list[ProvenItems]:
    """Cut ``count`` items into pieces that ``run`` survives and single items that it does not survive."""
    pieces: list[ProvenItems] = []
    waiting = [ProvenItems(0, count)] if count else []
    while waiting:
        lived = run(waiting)
        pieces += waiting[: lived.pieces]
        waiting = waiting[lived.pieces :]
        if waiting:
            deadly = waiting.pop(0)
            if deadly.end - deadly.start > 1:
                waiting = [*_parts(deadly), *waiting]
            elif lived.pieces:
                waiting = [deadly, *waiting]  # an earlier piece may be the cause: try it alone in a new child
            else:
                pieces.append(deadly._replace(reason=lived.death))
    return pieces


def _parts(piece: ProvenItems) -> Iterator[ProvenItems]:
    size = -(-(piece.end - piece.start) // PARTS)
    for start in range(piece.start, piece.end, size):
        yield ProvenItems(start, min(start + size, piece.end))


def _attempt(job: Job, question: ProverRequest | Rows) -> tuple[Attempt, int]:
    """The work of a child, and the number of its items."""
    if isinstance(question, ProverRequest):
        return lambda start, end: _decode(job, question, start, end), len(question.headers)
    return lambda start, end: _convert(job, question, start, end), question.count


def _decode(job: Job, batches: ProverRequest, start: int, end: int) -> None:
    headers = batches.headers[start:end]
    for _ in steps(job, batches.data, headers, at_most, name=batches.name, position=batches.position):
        pass


def _convert(job: Job, question: Rows, start: int, end: int) -> None:
    """Parse, date and write the rows with the worker's code, but store nothing."""
    rows = pa.ipc.open_stream(question.data).read_next_batch().slice(start, end - start)
    part = question.part
    fields = {"incarnation": 0, "topic_id": None, "partition": 0, "ranges": (part,)}
    task = (SegmentTask if isinstance(part, SegmentRange) else QuarantineTask).model_validate(fields)
    all_rows = replace(job, dates=frozenset(), leaves=frozenset(), partitions={})
    with at_most(seconds_for(job.limits, rows.nbytes)), Sink(all_rows, task, cast("Store", _Nowhere())) as sink:
        sink.rows(0, part, rows)
        sink.close()


class _Nowhere:
    """The part of a store that a sink needs."""

    def put(self, *_: object, **__: object) -> str:
        """Drop the bytes: the rows are converted only as a proof."""
        return ""


class _Children:
    """Runs pieces in children, one child at a time."""

    def __init__(self, worker: Connection, attempt: Attempt, limits: StepLimits, memory: int) -> None:
        self._worker, self._attempt, self._limits, self._memory = worker, attempt, limits, memory

    def run(self, pieces: list[ProvenItems]) -> _Lived:
        """Run one child until it has done all pieces or dies."""
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            self._child(pieces, writing)
        os.close(writing)
        output = self._output(child, reading)
        os.close(reading)
        _, status, usage = os.wait4(child, 0)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # processes that it may have started
        done = len(output) - len(output.lstrip(_DONE))
        reason = output[done:].decode(errors="replace")
        if os.WIFSIGNALED(status):
            reason = self._killed(signal.Signals(os.WTERMSIG(status)), usage.ru_maxrss << 10)
        elif not reason and done < len(pieces):
            reason = f"converting it ends the process with code {os.waitstatus_to_exitcode(status)}"
        return _Lived(done, reason or None)

    def _output(self, child: int, reading: int) -> bytes:
        """The child's output until its end; does not return if the worker has ended."""
        output = b""
        while True:
            ready = wait([reading, self._worker], _LOOK)
            if self._worker in ready:
                os.kill(child, signal.SIGKILL)
                sys.exit(1)
            if ready:
                more = os.read(reading, 1 << 16)
                output += more
                if not more:
                    return output
            elif os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return output

    def _child(self, pieces: list[ProvenItems], writing: int) -> NoReturn:
        """Do the pieces in the child, and report each."""
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
            goes_first(_CHILD_SCORE)
            with bounded_memory(self._memory):
                for piece in pieces:
                    self._do(piece)
                    os.write(writing, _DONE)
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - after any error, the child must not run its parent's code
            os.write(writing, self._raised(error).encode())
            os._exit(1)

    def _do(self, piece: ProvenItems) -> None:
        try:
            self._attempt(piece.start, piece.end)
        except MemoryError:
            raise
        except (TidemarkError, OSError, ImportError):
            pass  # not caused by a record: the worker gets the same error, and its attempt fails

    def _raised(self, error: BaseException) -> str:
        if isinstance(error, MemoryError):
            return f"converting it takes more than {self._memory} bytes of memory"
        if isinstance(error, SystemExit):
            return f"converting it ends the process with code {error.code}"
        return f"converting it raises {shortened(f'{type(error).__name__}: {error}')}"

    def _killed(self, by: signal.Signals, most: int) -> str:
        """The reason for a refusal after a signal.

        Raises:
            _Interrupted: the signal does not depend on the child's work.
        """
        if by in TIMERS.values():
            time, rate = self._limits.seconds, self._limits.rate
            return f"converting it takes longer than {time:g} s and its bytes at {rate} a second"
        if by == signal.SIGKILL and most - resident() > self._memory // _GREW:
            return "converting it takes more memory than there is"
        if by == signal.SIGKILL or by in _NOT_OF_DATA:
            raise _Interrupted(f"a child that proves was ended by {by.name} from elsewhere; the task is tried again")
        return f"converting it ends the process by {by.name}"


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
