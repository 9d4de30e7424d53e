"""An audit of a date finds with the evidence around it what it finds with all evidence, whatever is wrong there."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from tests.spark.world import World
from tidemark.formats.table.ledger import Ledger, PartitionState
from tidemark.intervals import Intervals
from tidemark.raw_topic import RawTopic
from tidemark.table import evidence, evidence_index, evidence_reader
from tidemark.table.delta_table import LiveFile, LiveFiles, TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.table.evidence import PARSED, EvidenceRow, OffsetClass, evidence_key, to_parquet
from tidemark.table.evidence_reader import folded
from tidemark_spark.audit.checks import Checks
from tidemark_spark.audit.date_evidence import Key, evidence_of
from tidemark_spark.audit.evidence import planned
from tidemark_spark.audit.worker import FileTask
from tidemark_spark.convert.row_checksums import Account

FIRST_DAY: Final = date(2026, 3, 1)
OTHER: Final[tuple[OffsetClass, ...]] = ("transaction_marker", "aborted", "compacted")


class History:
    """Evidence of runs that land, compact, rebuild and expire, with faults among what lands; and the files' offsets."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.attempts: list[tuple[int, list[EvidenceRow]]] = []
        self.live: dict[str, list[EvidenceRow]] = {}
        self.aside: dict[str, list[EvidenceRow]] = {}
        self.ends: dict[Key, int] = {(0, partition): 0 for partition in range(2)}
        self.offsets: dict[str, list[int]] = defaultdict(list)

    def day(self) -> date:
        """Mostly near the present."""
        back = self.rng.choice([0, 0, 0, 1, 1, self.rng.randrange(9)])
        return FIRST_DAY + timedelta(max(0, len(self.attempts) // 4 - back))

    def commit(self, rows: Iterable[EvidenceRow]) -> None:
        attempt = 1000 + len(self.attempts)
        self.attempts.append((attempt, [row._replace(attempt=attempt) for row in rows]))

    def land(self) -> None:
        rows: list[EvidenceRow] = []
        for key in self.ends:
            for _ in range(self.rng.randint(0, 2)):
                rows += self.range_of(key)
        if self.rng.random() < 0.3:
            self.spoil(rows)
        self.commit(rows)
        for row in rows:
            if row.file is not None:
                (self.live if row.offset_class == "landed" else self.aside).setdefault(row.file, []).append(row)

    def range_of(self, key: Key) -> list[EvidenceRow]:
        """The rows of a range of bytes: each offset has a class, and each record a date."""
        first, size = self.ends[key], self.rng.randint(1, 12)
        self.ends[key] += size
        days = [self.day() for _ in range(self.rng.randint(1, 3))]
        kinds: list[Any] = ["landed", "landed", "landed", *PARSED, self.rng.choice(OTHER)]
        owners: dict[tuple[str, date | None], list[int]] = defaultdict(list)
        for offset in range(first, first + size):
            kind = self.rng.choice(kinds)
            owners[kind, self.rng.choice(days) if kind in PARSED else None].append(offset)
        segment = {"segment": f"s{key[1]}-{first // 30}", "byte_start": first, "byte_end": first + size}
        bytes_: dict[str, Any] = segment if self.rng.random() < 0.9 else {}
        rows = []
        for (kind, day), offsets in owners.items():
            file = f"dt={day}/{kind}-{key[1]}-{len(self.attempts)}" if kind in PARSED else None
            hashed = sum(offsets) if kind in PARSED else None
            at = offsets[0], offsets[-1] + 1
            rows.append(EvidenceRow(*key, *at, kind, len(offsets), day, **bytes_, hash128=hashed, file=file))  # type: ignore[arg-type]
            if file is not None:
                self.offsets[file] += offsets
        return rows

    def spoil(self, rows: list[EvidenceRow]) -> None:
        """Drop, double, move or miscount a row, before anything copies it."""
        if not rows:
            return
        place = self.rng.randrange(len(rows))
        row = rows[place]
        far = self.rng.choice([-30, -5, -1, 1, 5])
        match self.rng.randrange(5):
            case 0:
                del rows[place]
            case 1:
                rows.append(row)
            case 2 if row.first + far >= 0:
                rows[place] = row._replace(first=row.first + far, next=row.next + far)
            case 3:
                rows[place] = row._replace(rows=row.rows + 1)
            case 4 if row.dt is not None:
                rows[place] = row._replace(dt=row.dt + timedelta(self.rng.choice([-2, -1, 1])))

    def renew(self) -> None:
        """A compaction or a rebuild of a date: its files get other names. Some rows are claimed for another date."""
        day = self.day()
        chosen = [file for file in self.live if file.startswith(f"dt={day}/")]
        rows: list[EvidenceRow] = []
        for file in chosen:
            new = f"{file}+"
            self.offsets[new] = self.offsets[file]
            self.live[new] = [row._replace(file=new) for row in self.live.pop(file)]
            rows += self.live[new]
        self.commit(rows)

    def expire(self) -> None:
        """Retention of a date."""
        day = self.day() - timedelta(3)
        rows: list[EvidenceRow] = []
        for files in (self.live, self.aside):
            for file in [file for file in files if file.startswith(f"dt={day}/")]:
                for row in files.pop(file):
                    rows.append(row._replace(offset_class="expired", file=None))
                    if row.offset_class != "landed":
                        rows.append(row._replace(offset_class="superseded"))
        self.commit(rows)


def written(history: History, table: TopicTable) -> tuple[int, ...]:
    """The attempts' evidence, most of it folded; returns what the ledger lists."""
    for attempt, rows in history.attempts:
        body = to_parquet(rows, configuration=table.topic.digest, code="", attempt=attempt)
        table.store.put(evidence_key(table, attempt), body)
    attempts = [attempt for attempt, _ in history.attempts]
    cut = history.rng.randint(2, len(attempts) - 1)
    table.store.put(evidence_key(table, 1), folded(table, attempts[:cut]))
    return 1, *attempts[cut:]


def judged(
    table: TopicTable, rows: Mapping[Key, list[EvidenceRow]], dates: frozenset[str], history: History
) -> dict[Key, Any]:
    """What an audit whose raw is gone says of each partition, given ``rows`` of evidence."""
    said: dict[Key, Any] = {}
    for key, end in history.ends.items():
        found: list[Any] = []
        state = PartitionState(
            incarnation=key[0], topic_id=None, partition=key[1], start_offset=0, next_offset=end, verdicts_end=end,
            leader_epoch=0,
        )  # fmt: skip
        part = planned(cast("RawTopic", SimpleNamespace(incarnations=())), state, rows.get(key, []), dates, None)
        strays: set[tuple[str, int]] = set()
        for path, task in part.files.items():
            strays |= {(path, offset) for offset in read(part.file_sums, task, history.offsets[path])}

        def find(kind: str, part: Any, detail: str, found: list[Any] = found, **more: Any) -> None:
            found.append((kind, part is None, detail, sorted((name, str(value)) for name, value in more.items())))

        checks = Checks(table, cast("Any", find), lambda *_: iter(()), lambda *_: None)
        summary = checks.partition(part)
        said[key] = part.chosen, sorted(part.files), sorted(strays), sorted(found), summary
    return said


def read(sums: dict[int, Any], task: FileTask, offsets: Sequence[int]) -> list[int]:
    """Sum a file's rows by its cells, as a worker does; returns the offsets that no cell has."""
    strays = []
    for offset in offsets:
        starts = [start for start, end in zip(*task.cells, strict=True) if start <= offset < end]
        if not starts:
            strays.append(offset)
            continue
        kind = "landed" if task.kind == "landed" else "quarantined"
        account = sums.setdefault(starts[0], {}).setdefault((kind, task.dt), Account())
        account.add(Account(1, offset, offset))
    return strays


def random_history(rng: random.Random) -> History:
    history = History(rng)
    for _ in range(rng.randint(8, 24)):
        rng.choice([history.land] * 5 + [history.renew, history.expire])()
    return history


def standing_of(history: History, table: TopicTable) -> EffectiveEvidence:
    live = [LiveFile(path, 1, sum(row.rows for row in rows), path[3:13]) for path, rows in history.live.items()]
    ledger = Ledger.genesis("east", "orders", "orders").model_copy(update={"landed": written(history, table)})
    return EffectiveEvidence(table, ledger, LiveFiles.of(live))


@pytest.fixture
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (evidence, evidence_index, evidence_reader):
        monkeypatch.setattr(module, "BLOCK", 3)
    monkeypatch.setattr(evidence_reader, "WHOLE_BYTES", 1)


def rows_in(rows: Mapping[Key, Collection[EvidenceRow]]) -> int:
    return sum(map(len, rows.values()))


@pytest.mark.usefixtures("_small_blocks")
def test_an_audit_of_a_date_finds_what_it_finds_with_all_evidence(tmp_path: Path, rng: random.Random) -> None:
    fewer = found = 0
    for number in range(25):
        seed = rng.getrandbits(64)
        history = random_history(random.Random(seed))
        (tmp_path / str(number)).mkdir()
        table = World(tmp_path / str(number)).table
        standing = standing_of(history, table)
        everything = evidence_of(standing, frozenset())
        for day in {history.day().isoformat() for _ in range(6)}:
            dates = frozenset({day})
            around = evidence_of(standing, dates)
            expected = judged(table, everything, dates, history)
            assert judged(table, around, dates, history) == expected, (seed, day)
            fewer += rows_in(around) < rows_in(everything)
            found += any(said[3] for said in expected.values())
    assert fewer
    assert found, "no history had a fault that an audit of a date finds"


def landed(number: int, first: int, after: int, day: int, file: str = "", segment: str = "") -> EvidenceRow:
    """A row of one file, and of the range of bytes of ``segment``."""
    dt = FIRST_DAY + timedelta(day)
    named: dict[str, Any] = {"file": file or f"dt={dt}/{number}", "hash128": sum(range(first, after))}
    at: dict[str, Any] = {"segment": segment or f"s{number}", "byte_start": 0, "byte_end": 9}
    return EvidenceRow(0, 0, first, after, "landed", after - first, dt, **at, **named)


def folded_history(rows: Sequence[EvidenceRow]) -> History:
    """Each row is a run's, and more of other dates and offsets lie around each, so that it has a block of its own."""
    history = History(random.Random(1))
    history.ends = {(0, 0): 5000}
    for number, row in enumerate(rows):
        others = [landed(100 + 10 * number + k, first := 1000 + 100 * number + 9 * k, first + 9, 50) for k in range(4)]
        for made in (others[:2], [row], others[2:]):
            history.commit(made)
            for of_file in made:
                history.live.setdefault(of_file.file or "", []).append(of_file)
                history.offsets[of_file.file or ""] += range(of_file.first, of_file.next)
    return history


def compared(history: History, table: TopicTable, day: int) -> tuple[list[EvidenceRow], Any]:
    """The rows around a day, and what an audit of it says, which is what it says given all rows."""
    dates = frozenset({(FIRST_DAY + timedelta(day)).isoformat()})
    standing = standing_of(history, table)
    around, everything = evidence_of(standing, dates), evidence_of(standing, frozenset())
    said = judged(table, around, dates, history)
    assert said == judged(table, everything, dates, history)
    assert rows_in(around) < rows_in(everything)
    return around[0, 0], said[0, 0]


@pytest.mark.usefixtures("_small_blocks")
def test_a_range_of_bytes_is_seen_as_a_whole_if_evidence_in_its_middle_is_lost(tmp_path: Path) -> None:
    history = folded_history([landed(1, 0, 5, 1, segment="s"), landed(2, 400, 405, 2, segment="s")])
    [first, *_, last] = history.attempts
    history.attempts = [(first[0], [row for _, rows in history.attempts for row in rows]), last]
    history.attempts = [(at, [row._replace(attempt=at) for row in rows]) for at, rows in history.attempts]
    history.attempts.append((last[0] + 1, []))
    rows, said = compared(history, World(tmp_path).table, 1)
    assert {row.first for row in rows} >= {0, 400}
    assert said[0] == [(0, 405)]


@pytest.mark.usefixtures("_small_blocks")
def test_offsets_within_a_file_belong_to_whoever_claims_them(tmp_path: Path) -> None:
    """One file has rows at both ends, and an offset between, which evidence gives to a file of another date."""
    file = f"dt={FIRST_DAY + timedelta(2)}/f"
    rows = [landed(1, 0, 8, 1), landed(2, 5, 12, 2, file), landed(3, 300, 305, 2, file), landed(4, 150, 160, 9)]
    history = folded_history(rows)
    history.offsets[file].append(155)
    around, said = compared(history, World(tmp_path).table, 1)
    assert {row.first for row in around} >= {0, 5, 150, 300}
    assert said[2] == [], "the file has no row that no evidence names"


@pytest.mark.usefixtures("_small_blocks")
def test_another_date_that_claims_offsets_of_the_date_is_seen_wherever_its_evidence_lies(tmp_path: Path) -> None:
    """In a block of a large object with nothing else of the date."""
    rows = [landed(1, 0, 8, 2), landed(2, 300, 309, 5), landed(3, 5, 12, 1)]
    history = folded_history(rows)
    history.rng = random.Random(6)  # all attempts but the last are folded
    around, said = compared(history, World(tmp_path).table, 1)
    assert {row.first for row in around} >= {0, 5}
    assert "offsets_unaccounted" in {finding[0] for finding in said[3]}


@pytest.mark.usefixtures("_small_blocks")
def test_a_file_in_the_folder_of_the_date_is_seen_whatever_date_its_evidence_says(tmp_path: Path) -> None:
    file = f"dt={FIRST_DAY + timedelta(1)}/f"
    around, _ = compared(
        folded_history([landed(1, 3000, 3005, 7, file), landed(2, 500, 509, 1)]), World(tmp_path).table, 1
    )
    assert file in {row.file for row in around}


def test_two_dates_that_claim_the_same_offsets_are_both_seen(tmp_path: Path) -> None:
    """In different attempts, from different segments, and the other one long before."""
    table = World(tmp_path).table
    history = History(random.Random(1))
    history.ends = {(0, 0): 30}
    for number, (first, after) in enumerate([(5, 12), (0, 10), (10, 20), (20, 30)]):
        day = FIRST_DAY + timedelta(number)
        file = f"dt={day}/{number}"
        at = {"segment": f"s{number}", "byte_start": 0, "byte_end": 9, "hash128": 0, "file": file}
        row = EvidenceRow(0, 0, first, after, "landed", after - first, day, **at)  # type: ignore[arg-type]
        history.commit([row])
        history.live[file] = [row]
    standing = standing_of(history, table)
    audited = (FIRST_DAY + timedelta(1)).isoformat()
    rows = evidence_of(standing, frozenset({audited}))[0, 0]
    assert {row.day for row in rows} >= {audited, FIRST_DAY.isoformat()}
    [state] = judged(table, {(0, 0): rows}, frozenset({audited}), history).values()
    assert [finding[0] for finding in state[3] if finding[0] == "offsets_unaccounted"] == ["offsets_unaccounted"]
    assert Intervals(state[0]) == Intervals([(0, 20)])
