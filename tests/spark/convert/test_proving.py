"""Which items may be done, which must not be, and that nobody else is blamed."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from tests.spark.convert.poison import IN_DECODER, KILLED, KINDS, LARGE, LIMITS, REASONS, SETTINGS
from tests.spark.world import World
from tests.support.paths import ROOT
from tests.support.waiting import wait_until
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark.decode import decode_batches, scan_headers
from tidemark.formats.table.plan import SegmentRange
from tidemark_spark.cluster.session import trying
from tidemark_spark.convert.process_limits import IDLE, TIMERS, bounded_memory, resident
from tidemark_spark.convert.prover import PARTS, _Lived, proved
from tidemark_spark.convert.prover_client import ProvenItems, Prover, ProverRequest, Rows
from tidemark_spark.model import Job

PART = SegmentRange(
    store="file:///nowhere",
    key="orders/0.log",
    etag="x",
    base_offset=0,
    start=0,
    end=1,
    from_offset=0,
    to_offset=1 << 40,
    uploaded_at=datetime(2026, 2, 3, tzinfo=UTC),
)
MEMORY = 256 << 20


def test_what_kills_alone_is_found_and_all_else_is_done(rng: random.Random) -> None:
    """Items may also kill because of what the same child did before, which is ``leaky``, or by their number."""
    for _ in range(300):
        count, together = rng.choice([0, 1, 2, 63, 64, 65, 5000]), rng.choice([3, 100, 10_000])
        deadly = set(rng.sample(range(count), min(count, rng.choice([0, 1, 2, 7]))))
        leaky = set(rng.sample(range(count), min(count, rng.choice([0, 0, 3]))))
        children = 0

        def run(
            pieces: list[ProvenItems], deadly: set[int] = deadly, leaky: set[int] = leaky, together: int = together
        ) -> _Lived:
            nonlocal children
            children += 1
            for done, piece in enumerate(pieces):
                items = set(range(piece.start, piece.end))
                if items & deadly or len(items) > together or (items & leaky and (done or len(items) > 1)):
                    return _Lived(done, "why")
            return _Lived(len(pieces), None)

        pieces = proved(count, run)
        assert [item for one in pieces for item in range(one.start, one.end)] == list(range(count))
        assert {one.start for one in pieces if one.reason} == deadly
        assert all(one.end - one.start == 1 for one in pieces if one.reason)
        pieces_by_size = -(-count // together)
        assert children <= 1 + 5 * (len(deadly) + len(leaky)) + PARTS * pieces_by_size


@pytest.fixture(scope="module")
def prover(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prover]:
    world = World(tmp_path_factory.mktemp("proving"), *SETTINGS)
    world.raw.segment([batch(0, [Record(0, T0, None, b"x")])])
    world.raw.publish()
    with Prover(replace(Job.of(world.table, world.plan()), limits=LIMITS), MEMORY) as prover:
        yield prover


def rows_of(*values: bytes) -> pa.RecordBatch:
    data = batch(0, [Record(i, T0, b"k", value) for i, value in enumerate(values)])
    [rows] = decode_batches(data, scan_headers(data, "x", 0), name="x", partition=0, incarnation=0)
    return rows


def reasons(pieces: list[ProvenItems]) -> dict[int, str]:
    return {one.start: one.reason for one in pieces if one.reason}


def test_each_kind_of_poison_is_named_and_nothing_beside_it(prover: Prover) -> None:
    kinds = [one for one in KINDS if one != b"poison: wait"]  # which takes long
    values = [b"value"] * 200
    for number, kind in enumerate(kinds):
        values[7 + 30 * number] = kind
    found = prover.ask(Rows.of(rows_of(*values), PART))
    assert reasons(found) == {7 + 30 * number: REASONS[kind].format(memory=MEMORY) for number, kind in enumerate(kinds)}
    assert [one.start for one in found] == [0, *(one.end for one in found[:-1])]
    assert found[-1].end == len(values)


def test_rows_that_take_too_much_together_are_taken_apart(prover: Prover) -> None:
    found = prover.ask(Rows.of(rows_of(*[LARGE] * 6), PART))
    assert reasons(found) == {}
    assert len(found) == 6


def test_a_batch_that_kills_the_decoder_is_named(prover: Prover) -> None:
    values = [b"value", IN_DECODER, b"value"]
    data = b"".join(batch(i, [Record(0, T0, None, value)], "lz4") for i, value in enumerate(values))
    found = prover.ask(ProverRequest(data, scan_headers(data, "x", 0), "x", 0))
    assert found == [
        ProvenItems(0, 1),
        ProvenItems(1, 2, "converting it ends the process by SIGSEGV"),
        ProvenItems(2, 3),
    ]


def test_a_kill_from_elsewhere_says_nothing_of_a_record(prover: Prover) -> None:
    with pytest.raises(ChildProcessError, match="SIGKILL from elsewhere"):
        prover.ask(Rows.of(rows_of(b"value", KILLED), PART))
    assert prover.ask(Rows.of(rows_of(b"value"), PART)) == [ProvenItems(0, 1)]


def test_nothing_is_left_when_the_worker_goes(tmp_path: Path) -> None:
    """It ends in the midst of a question, whose child would wait for longer than this test."""
    program = (
        "import sys; from tests.spark.convert.test_proving import *; from pathlib import Path\n"
        "world = World(Path(sys.argv[1]), *SETTINGS)\n"
        "world.raw.segment([batch(0, [Record(0, T0, None, b'x')])]); world.raw.publish()\n"
        "job = replace(Job.of(world.table, world.plan()), limits=replace(LIMITS, seconds=3600.0))\n"
        "Prover(job, MEMORY).ask(Rows.of(rows_of(b'poison: wait'), PART))"
    )
    worker = psutil.Popen([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT)
    try:
        wait_until(lambda: len(worker.children(recursive=True)) == 2, what="the child that proves")
        left = worker.children(recursive=True)
    finally:
        worker.kill()
        worker.wait()
    assert psutil.wait_procs(left, timeout=60)[1] == []


@pytest.mark.parametrize(
    ("timer", "seconds", "idle", "work"),
    [(signal.ITIMER_PROF, 0.2, 10_000, "_stall"), (signal.ITIMER_REAL, 0.2 / IDLE, IDLE, "_wait")],
)
def test_native_code_is_ended_at_its_time(timer: int, seconds: float, idle: int, work: str) -> None:
    """What takes processor time is ended by that time, were the machine ever so busy."""
    imports = "from tidemark_spark.convert import process_limits as limits"
    within = f"{imports}\nlimits.IDLE = {idle}\nwith limits.at_most({seconds}): {work}()"
    program = f"from tests.spark.convert.poison import {work}\n{within}"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False, timeout=120)
    assert done.returncode == -TIMERS[timer]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("local", "local[1,4]"),
        ("local[2]", "local[2,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2,1]", "local[2,1]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://master:7077", "spark://master:7077"),
    ],
)
def test_a_master_on_one_machine_tries_again(given: str, expected: str) -> None:
    assert trying(given) == expected


def test_memory_is_bounded_for_a_while_and_not_thereafter() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    size = 1 << 30
    with bounded_memory(size // 2), pytest.raises(MemoryError):
        bytearray(size)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert len(bytearray(size)) == size
    assert 0 < resident() < psutil.Process(os.getpid()).memory_info().rss * 2
