"""Evidence is read several objects at a time and each once, by everything that asks what became of the offsets."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from tests.spark.world import World
from tests.support.waiting import HUNG
from tidemark.concurrency import THREADS
from tidemark.errors import NotFound
from tidemark.formats.table.ledger import Ledger
from tidemark.store import Fetched, ObjectInfo, Store
from tidemark.table import evidence_reader
from tidemark.table.delta_table import LiveFile, LiveFiles, TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import PARSED, EvidenceRow, evidence_key, parse_evidence, to_parquet
from tidemark.table.evidence_reader import EvidenceReader, RowsByPartition, evidence_that_counts, folded

ATTEMPTS = tuple(range(1000, 1000 + 4 * THREADS))


class CountingStore:
    """A store whose GETs are answered once ``together`` of them are under way. It counts them."""

    def __init__(self, store: Store, together: int = 1) -> None:
        self._store, self._barrier, self._lock = store, threading.Barrier(together), threading.Lock()
        self.url = store.url
        self.gets, self.lists = Counter[str](), 0

    def get(self, key: str, *, if_match: str | None = None, limit: int | None = None) -> Fetched:
        with self._lock:
            self.gets[key] += 1
        self._barrier.wait(HUNG)
        return self._store.get(key, if_match=if_match, limit=limit)

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        self.lists += 1
        return self._store.list(prefix, start_after=start_after)


def row(number: int, kind: str = "landed") -> EvidenceRow:
    first, after = 10 * number, 10 * number + 10
    return EvidenceRow(0, 0, first, after, kind, 10, file=f"dt=2026-02-02/{number}.parquet", attempt=ATTEMPTS[number])  # type: ignore[arg-type]


@pytest.fixture
def table(tmp_path: Path) -> TopicTable:
    """A table of as many attempts as :data:`ATTEMPTS`, ten offsets each."""
    table = World(tmp_path).table
    for number, attempt in enumerate(ATTEMPTS):
        body = to_parquet([row(number)], configuration="c", code="d", attempt=attempt)
        table.store.put(evidence_key(table, attempt), body)
    return table


def counted(table: TopicTable, together: int = 1) -> tuple[TopicTable, CountingStore]:
    store = CountingStore(table.store, together)
    return table._replace(store=cast("Store", store)), store


def test_objects_are_read_side_by_side_and_come_in_the_order_of_the_attempts(table: TopicTable) -> None:
    slow, store = counted(table, together=THREADS)
    wanted = ATTEMPTS[::-1]
    found = [
        (part.attempt, part.rows["attempt"][0].as_py()) for part in EvidenceReader().read(slow, wanted) if part.rows
    ]
    assert found == [(one, one) for one in wanted]
    assert store.lists == 1


def test_what_holds_is_found_by_one_request_for_each_object(table: TopicTable) -> None:
    slow, store = counted(table, together=THREADS)
    ledger = Ledger.genesis("prod", "orders", "orders").model_copy(update={"landed": ATTEMPTS})
    files = [f"dt=2026-02-02/{number}.parquet" for number in range(len(ATTEMPTS))]
    holds = EffectiveEvidence(slow, ledger, LiveFiles.of(LiveFile(file, 1, 10, "2026-02-02") for file in files))
    assert sum(one.rows for one in holds.rows()) == 10 * len(ATTEMPTS)
    assert [one.file for one in holds.touching((0, 0), 15, 25)] == files[1:3]
    assert set(store.gets.values()) == {1}, "what was read to learn what is superseded is kept"


def random_rows(rng: random.Random, attempt: int) -> list[EvidenceRow]:
    """Rows of few files and partitions, of all classes, so that each rule meets some."""
    kinds = ("landed", "quarantined", "filtered", "superseded", "truncated", "compacted", "expired", "erased")
    rows = []
    for _ in range(rng.randint(1, 12)):
        first = rng.randrange(100)
        file = rng.choice([*(f"dt=2026-02-0{day}/{number}" for day in (1, 2) for number in range(4)), None])
        dt = rng.choice([date(2026, 2, 1), date(2026, 2, 2), None])
        kind = rng.choice(kinds)
        place = rng.randrange(2), rng.randrange(2), first, first + rng.randint(1, 9)
        rows.append(EvidenceRow(*place, kind, 1, dt, hash128=rng.getrandbits(99), file=file, attempt=attempt))  # type: ignore[arg-type]
    return rows


def table_of(rows: Sequence[EvidenceRow]) -> pa.Table:
    """The rows as in an object, each with its own attempt."""
    objects = [to_parquet([row], configuration="", code="", attempt=row.attempt) for row in rows]
    return pa.concat_tables(parse_evidence(body, "rows") for body in objects)


def is_effective(row: EvidenceRow, rows: Sequence[EvidenceRow], live: Collection[str]) -> bool:
    """The rules for one row; ``rows`` are all, in the order of landing."""
    superseding = [one for one in rows if one.offset_class == "superseded"]
    if row.offset_class in {"superseded", "truncated"}:
        return False
    if row.offset_class in {"quarantined", "filtered"}:
        return row.file not in {one.file for one in superseding if one.file is not None}
    if row.offset_class == "landed" and row.file not in live:
        return False
    order = ATTEMPTS.index
    return not any(
        one.file is None and one.key == row.key and order(one.attempt) > order(row.attempt) and row.first >= one.first
        for one in superseding
    )


def test_rows_chosen_in_arrow_are_those_that_the_rules_choose_one_by_one(tmp_path: Path, rng: random.Random) -> None:
    table = World(tmp_path).table
    rows: list[EvidenceRow] = []
    for attempt in ATTEMPTS:
        made = random_rows(rng, attempt)
        table.store.put(evidence_key(table, attempt), to_parquet(made, configuration="", code="", attempt=attempt))
        rows += made
    ledger = Ledger.genesis("prod", "orders", "orders").model_copy(update={"landed": ATTEMPTS})
    live = LiveFiles.of(
        LiveFile(f"dt=2026-02-0{day}/{number}", 1, 1, f"2026-02-0{day}") for day in (1, 2) for number in (0, 1)
    )
    standing = EffectiveEvidence(table, ledger, live)
    held = [row for row in rows if is_effective(row, rows, standing.files.paths)]
    holds = standing.holds(table_of(rows)).to_pylist()
    assert held == [row for row, is_held in zip(rows, holds, strict=True) if is_held]
    by_partition = {key: [row for row in held if row.key == key] for key in {row.key for row in held}}
    parts = RowsByPartition(standing.parts())
    assert dict(parts) == by_partition
    assert parts.landed_files() == {row.file for row in held if row.offset_class == "landed"}
    assert [row for part in standing.parts() for row in EvidenceRow.of(part)] == held
    assert [row.first for row in standing.rows()] == [row.first for row in held]
    assert [*standing.of_class("compacted")] == [row for row in held if row.offset_class == "compacted"]
    touched = [row for row in held if row.key == (1, 0) and row.first < 60 and row.next > 20]
    assert [*standing.touching((1, 0), 20, 60)] == touched
    files = {file.path for file in live[:2]}
    in_files = [row.first for row in held if row.offset_class == "landed" and row.file in files]
    assert [row.first for row in standing.landed_in(files)] == in_files
    assert [*standing.of_files(files)] == [row for row in held if row.offset_class in PARSED and row.file in files]
    dates = {"2026-02-01", ""}
    told = standing.told(dates=dates)
    chosen = [row for row in held if row.offset_class in PARSED and row.file and row.day in dates]
    assert told.files == {row.file for row in chosen}
    assert Counter(told.aside) == Counter(row for row in chosen if row.offset_class != "landed")
    assert sum(rows for rows, _ in told.sums.values()) == len(chosen)


def test_what_is_missing_is_told_in_its_place(table: TopicTable) -> None:
    table.store.delete(evidence_key(table, ATTEMPTS[3]))
    found = EvidenceReader().read(table, ATTEMPTS)
    assert [part.attempt for part in found if part.rows is None] == [ATTEMPTS[3]]
    assert [one for one, _ in evidence_that_counts(table, ATTEMPTS)] == [one for one in ATTEMPTS if one != ATTEMPTS[3]]
    with pytest.raises(NotFound, match=f"evidence/{ATTEMPTS[3]}"):
        folded(table, ATTEMPTS)


def test_only_so_much_is_kept(table: TopicTable) -> None:
    slow, store = counted(table)
    size = max(one.size for one in table.store.list(table.keys.evidence))
    reader = EvidenceReader(kept_bytes=3 * size)
    for _ in range(2):
        assert len(list(reader.read(slow, ATTEMPTS))) == len(ATTEMPTS)
    assert set(store.gets.values()) == {2}
    list(reader.read(slow, ATTEMPTS[-3:]))
    assert set(store.gets.values()) == {2}, "the last ones are kept"


def test_large_objects_are_not_all_in_memory(table: TopicTable, monkeypatch: pytest.MonkeyPatch) -> None:
    size = max(one.size for one in table.store.list(table.keys.evidence))
    monkeypatch.setattr(evidence_reader, "AHEAD_BYTES", 2 * size)
    slow, store = counted(table)
    for number, _ in enumerate(EvidenceReader(kept_bytes=0).read(slow, ATTEMPTS)):
        assert len(store.gets) <= number + 1 + 2


def test_a_fold_has_all_rows_in_order(table: TopicTable) -> None:
    assert parse_evidence(folded(table, ATTEMPTS), "k")["attempt"].to_pylist() == list(ATTEMPTS)
