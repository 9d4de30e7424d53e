"""Answers from the blocks that an index names are those from all rows, and only these blocks are read."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator, Sequence
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.world import World
from tests.tidemark.table.test_evidence_reader import random_rows, table_of
from tidemark.errors import ContinuityError
from tidemark.formats.table.ledger import Ledger
from tidemark.store import Fetched, ObjectInfo, Store
from tidemark.table import evidence, evidence_index, evidence_reader
from tidemark.table.delta_table import LiveFile, LiveFiles, TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import EvidenceRow, OffsetClass, evidence_key, parse_evidence, to_parquet
from tidemark.table.evidence_index import INDEX_KEY, Spans, index_of
from tidemark.table.evidence_reader import folded, renamed

DAYS = ["2026-02-01", "2026-02-02"]
LIVE = LiveFiles.of(LiveFile(f"dt={day}/{number}", 1, 1, day) for day in DAYS for number in (0, 1))


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Three rows to a block, and each block by a request of its own."""
    for module in (evidence, evidence_index, evidence_reader):
        monkeypatch.setattr(module, "BLOCK", 3)
    monkeypatch.setattr(evidence_reader, "WHOLE_BYTES", 1)
    monkeypatch.setattr(evidence_reader, "_TAIL_BYTES", 100)
    return 3


class RangesStore:
    """A store that notes the ranges of its objects that are read. Whole objects it refuses to read."""

    def __init__(self, store: Store) -> None:
        self._store, self.url = store, store.url
        self.ranges: list[tuple[int, int]] = []

    def get(self, key: str, *, if_match: str | None = None, limit: int | None = None) -> Fetched:
        raise AssertionError(f"{key} is read whole, with {if_match} and {limit}")

    def get_range(self, key: str, start: int, end: int) -> bytes:
        self.ranges.append((start, end))
        return self._store.get_range(key, start, end)

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        return self._store.list(prefix, start_after=start_after)


def ledger_of(attempts: Sequence[int]) -> Ledger:
    return Ledger.genesis("prod", "orders", "orders").model_copy(update={"landed": tuple(attempts)})


def written(root: Path, rng: random.Random, number: int) -> tuple[TopicTable, tuple[int, ...], tuple[int, ...]]:
    """A table, the attempts with random evidence, and folds of neighbours among them with the same rows."""
    root.mkdir()
    table = World(root).table
    attempts = tuple(range(1000, 1000 + number))
    for attempt in attempts:
        body = to_parquet(random_rows(rng, attempt), configuration="", code="", attempt=attempt)
        table.store.put(evidence_key(table, attempt), body)
    cuts = sorted({0, number, *rng.sample(range(number), 2)})
    folds = tuple(range(1, len(cuts)))
    for fold, (start, end) in zip(folds, pairwise(cuts), strict=True):
        table.store.put(evidence_key(table, fold), folded(table, attempts[start:end]))
    return table, attempts, folds


def outcome(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except ContinuityError as error:
        return str(error)


def answers(table: TopicTable, attempts: Sequence[int], rng: random.Random) -> list[Any]:
    """Answers to random questions, each of which reads as it likes."""
    dates = rng.sample([*DAYS, ""], rng.randint(1, 3))
    names = [f"dt={day}/{number}" for day in DAYS for number in range(4)]
    files = set(rng.sample(names, 3))
    key, start = (rng.randrange(2), rng.randrange(2)), rng.randrange(100)
    end = start + rng.randint(1, 40)
    kinds: list[OffsetClass] = ["expired", "erased", "compacted", "quarantined", "landed"]
    kind = rng.choice(kinds)
    questions: list[Callable[[EffectiveEvidence], Any]] = [
        lambda standing: list(standing.of_dates(dates)),
        lambda standing: list(standing.of_files(files)),
        lambda standing: list(standing.landed_in(files)),
        lambda standing: list(standing.touching(key, start, end)),
        lambda standing: list(standing.of_class(kind)),
        lambda standing: standing.rows_by_date(kind),
        lambda standing: standing.told(dates=dates),
        lambda standing: standing.told(files=files),
        lambda standing: standing.set_aside(dates),
        lambda standing: standing.set_aside(),
        lambda standing: outcome(lambda: standing.from_offset(key, start)),
        lambda standing: [row for part in standing.parts() for row in EvidenceRow.of(part)],
        lambda standing: standing.truncated,
        lambda standing: standing.holds(table_of(random_rows(rng, 1003))).to_pylist(),
    ]
    told = [question(EffectiveEvidence(table, ledger_of(attempts), LIVE)) for question in questions]
    return [*told, renamed(table, attempts, {file: f"{file}-new" for file in files}, 7).to_pylist()]


@pytest.mark.usefixtures("small_blocks")
def test_answers_by_the_index_are_those_of_all_rows(tmp_path: Path, rng: random.Random) -> None:
    for number in range(4):
        table, attempts, folds = written(tmp_path / str(number), rng, rng.randint(4, 9))
        for _ in range(2):
            seed = rng.getrandbits(64)
            whole, by_index = (answers(table, landed, random.Random(seed)) for landed in (attempts, folds))
            assert by_index == whole, (number, seed)


def day(number: int) -> str:
    return date_of(number).isoformat()


def date_of(number: int) -> date:
    return date(2026, 3, 1) + timedelta(number)


def dated(number: int, attempt: int) -> list[EvidenceRow]:
    """Two partitions' rows of a date, and the marker behind each."""
    rows: list[EvidenceRow] = []
    for partition in (0, 1):
        first = 10 * number
        at = {"segment": f"s{partition}", "byte_start": number, "byte_end": number + 1, "attempt": attempt}
        of_file = {"dt": date_of(number), "file": f"dt={day(number)}/{partition}", "hash128": 1}
        rows.append(EvidenceRow(0, partition, first, first + 9, "landed", 9, **at, **of_file))  # type: ignore[arg-type]
        rows.append(EvidenceRow(0, partition, first + 9, first + 10, "transaction_marker", 1, **at))  # type: ignore[arg-type]
    return rows


@pytest.mark.usefixtures("small_blocks")
def test_a_branch_is_left_by_the_order_of_landing_whichever_blocks_are_read(tmp_path: Path) -> None:
    """The attempt between the others leaves it. All three are in one object, in blocks of their own."""
    table = World(tmp_path).table
    for attempt, of_attempt in (
        (1, ["compacted"] * 3),
        (2, ["superseded", "erased", "erased"]),
        (3, ["compacted"] * 3),
    ):
        rows = [EvidenceRow(0, 0, 5 + at, 6 + at, cast("Any", kind), 1) for at, kind in enumerate(of_attempt)]
        body = to_parquet(rows, configuration="", code="", attempt=attempt)
        table.store.put(evidence_key(table, attempt), body)
    table.store.put(evidence_key(table, 9), folded(table, [1, 2, 3]))
    for landed in ([1, 2, 3], [9]):
        standing = EffectiveEvidence(table, ledger_of(landed), LiveFiles.of(()))
        told = [EvidenceRow(0, 0, 5, 6, "compacted", 1, attempt=attempt) for attempt in (1, 3)]
        assert standing.holds(table_of(told)).to_pylist() == [False, True]
        assert {
            row.attempt for row in EffectiveEvidence(table, ledger_of(landed), LiveFiles.of(())).of_class("compacted")
        } == {3}


def test_only_blocks_that_may_hold_an_answer_are_read(tmp_path: Path, small_blocks: int) -> None:
    table = World(tmp_path).table
    for number in range(30):
        body = to_parquet(dated(number, 100 + number), configuration="", code="", attempt=100 + number)
        table.store.put(evidence_key(table, 100 + number), body)
    for fold, attempts in ((1, range(100, 115)), (2, range(115, 130))):
        table.store.put(evidence_key(table, fold), folded(table, attempts))
    store = RangesStore(table.store)
    live = [
        LiveFile(f"dt={day(number)}/{partition}", 1, 9, day(number)) for number in range(30) for partition in (0, 1)
    ]
    standing = EffectiveEvidence(table._replace(store=cast("Store", store)), ledger_of([1, 2]), LiveFiles.of(live))
    footers = len(store.ranges)
    blocks = -(-30 * 4 // small_blocks)
    assert [row.first for row in standing.of_dates([day(15)])] == [150, 150]
    by_date = len(store.ranges) - footers
    assert 1 <= by_date <= 3 < blocks
    assert [row.first for row in standing.touching((0, 1), 205, 210)] == [200, 209]
    assert len(store.ranges) - footers - by_date <= 4
    assert list(standing.of_class("erased")) == []
    before = len(store.ranges)
    assert sum(map(len, standing.parts())) == 120
    assert len(store.ranges) - before >= blocks - 8, "the others are kept"


def test_an_index_that_another_program_kept_does_not_count(tmp_path: Path, small_blocks: int) -> None:
    """It reads the object by pyarrow, which keeps metadata, and writes other rows."""
    table = World(tmp_path).table
    rows = [row for number in range(6) for row in dated(number, 100)]
    file = pq.ParquetFile(io.BytesIO(to_parquet(rows, configuration="", code="", attempt=100)))
    changed = file.read()
    assert INDEX_KEY in (changed.schema.metadata or {})
    days = pa.array([date_of(9)] * len(changed), pa.date32())
    sink = io.BytesIO()
    pq.write_table(changed.set_column(6, "dt", days), sink, row_group_size=small_blocks)
    table.store.put(evidence_key(table, 100), sink.getvalue())
    live = [LiveFile(f"dt={day(number)}/{partition}", 1, 9, day(number)) for number in range(6) for partition in (0, 1)]
    standing = EffectiveEvidence(table, ledger_of([100]), LiveFiles.of(live))
    assert len(list(standing.of_dates([day(9)]))) == 12


@pytest.mark.usefixtures("small_blocks")
def test_attempts_that_are_not_neighbours_get_no_index() -> None:
    """Their order of landing is known only from the whole object."""
    rows = parse_evidence(to_parquet(dated(0, 1) + dated(1, 1), configuration="", code="", attempt=1), "k")
    assert index_of(rows, 0) is not None
    others = rows.set_column(14, "attempt", pa.array([2] * 8, pa.int64())).cast(rows.schema)
    assert index_of(pa.concat_tables([rows, rows, others]), 0) is not None
    assert index_of(pa.concat_tables([rows, others, rows]), 0) is None


def test_spans_touch_what_they_would_one_by_one(rng: random.Random) -> None:
    for _ in range(200):
        spans: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for key in [(incarnation, partition) for incarnation in range(2) for partition in range(3)]:
            cuts = sorted(rng.sample(range(60), 2 * rng.randint(0, 4)))
            spans |= {key: list(zip(cuts[::2], cuts[1::2], strict=True))} if cuts and rng.random() < 0.8 else {}
        rows = [
            (rng.randrange(3), rng.randrange(4), first := rng.randrange(60), first + rng.randint(1, 9))
            for _ in range(40)
        ]
        found = Spans(spans).touched(*np.array(rows, np.int64).T)
        expected = [
            any(start <= after and end >= first for start, end in spans.get((incarnation, partition), ()))
            for incarnation, partition, first, after in rows
        ]
        assert found.tolist() == expected
