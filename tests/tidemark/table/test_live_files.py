"""The live files of a table, in Arrow, are those of the same files as objects."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tidemark.table import delta_table
from tidemark.table.delta_table import LiveFile, LiveFiles, live_files


def some_files(rng: random.Random, count: int) -> list[LiveFile]:
    """Files with names of any characters, in the order of their paths."""
    days = [f"2026-02-{day:02}" for day in range(1, 8)]
    found = {
        f"dt={dt}/{rng.choice(['a', 'ä', '𝄞', 'Z', '~', ' '])}{rng.getrandbits(40):x}.parquet": dt
        for dt in rng.choices(days, k=count)
    }
    return sorted(LiveFile(path, rng.getrandbits(40), rng.randrange(1000), dt) for path, dt in found.items())


def stated(files: list[LiveFile]) -> str:
    """The digest as ledgers have it: the sum of BLAKE2b of path, size and rows, modulo 2^128."""
    texts = [f"{file.path}\0{file.size}\0{file.rows}".encode() for file in files]
    numbers = [int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "big") for text in texts]
    return f"{sum(numbers) % 2**128:032x}"


def test_random_files(rng: random.Random) -> None:
    for count in (0, 1, 30, delta_table._AT_A_TIME * 2 + 1):
        files = some_files(rng, count)
        shuffled = rng.sample(files, len(files))
        live = LiveFiles.of(shuffled)
        assert len(live) == len(files)
        assert list(live) == files
        assert live.digest == stated(files) == LiveFiles.of(shuffled).digest
        rows = Counter[str]()
        for file in files:
            rows[file.dt] += file.rows
        assert live.rows_by_date() == dict(rows)
        some = rng.sample(files, len(files) // 3)
        assert live.named([*(file.path for file in some), "another"]) == sorted(some)
        assert live.named([]) == []
        others = some_files(rng, 5)
        kept = [file for file in files if file not in set(some)]
        assert live.digest_after(some, others) == stated([*kept, *others])
        if files:
            at = rng.randrange(len(files))
            assert (live[at], live[at - len(files)], live[-1]) == (files[at], files[at], files[-1])
            assert live[at:] == files[at:]


def test_the_files_of_a_table(tmp_path: Path) -> None:
    """A value of a partition that is no plain text has escapes in the log, as its folder's name has."""
    url = str(tmp_path / "table")
    rows = pa.table({"dt": ["2026-02-01", "2026-02-01", "2026-02-02"], "of": ["a b", "50%", "plain"], "n": [1, 2, 3]})
    rows = rows.set_column(0, "dt", rows["dt"].cast(pa.date32()))
    write_deltalake(url, rows, partition_by=["dt", "of"])
    live = live_files(DeltaTable(url))
    assert [(file.dt, file.rows) for file in live] == [("2026-02-01", 1), ("2026-02-01", 1), ("2026-02-02", 1)]
    assert all((tmp_path / "table" / file.path).stat().st_size == file.size for file in live)
    assert live.rows_by_date() == {"2026-02-01": 2, "2026-02-02": 1}


def test_no_table_has_no_files() -> None:
    live = live_files(None)
    assert (list(live), len(live), live.digest, live.rows_by_date()) == ([], 0, "0" * 32, {})
