"""Which files a compaction merges: neighbours, small ones, in groups that fill the target and are bounded."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tidemark.planning.maintenance import compaction
from tidemark.planning.maintenance.compaction import PlacedFile, bounded, groups

DT = "2026-02-02"
MIB = 1 << 20
SETTINGS = (128 * MIB, 4)


def files(*sizes: int, partition: int = 0, dt: str = DT, incarnation: int = 0, below: str = "") -> list[PlacedFile]:
    """Files of these sizes in MiB, one after the other, of ten offsets each."""
    return [
        PlacedFile(
            *(dt, f"dt={dt}/{below}".rstrip("/"), incarnation, partition, 10 * i, 10 * i + 10),
            *(f"dt={dt}/{below}/{incarnation}_{partition}_{i}", size * MIB),
        )
        for i, size in enumerate(sizes)
    ]


def merged(found: Sequence[PlacedFile], *, closed: bool) -> list[list[int]]:
    """The sizes of each group in MiB."""
    return [[one.size // MIB for one in group] for group in groups(found, {DT} if closed else (), *SETTINGS)]


def test_neighbours_of_a_closed_date_fill_the_target() -> None:
    assert merged(files(60, 60, 8, 1, 60, 60, 60, 7), closed=True) == [[60, 60, 8], [1, 60, 60], [60, 7]]
    assert merged(files(10, 4), closed=True) == [[10, 4]]
    assert merged(files(10), closed=True) == []


def test_a_file_of_half_the_target_stays_and_parts_its_neighbours() -> None:
    assert merged(files(1, 2, 64, 3, 500, 4, 5), closed=True) == [[1, 2], [4, 5]]
    assert merged(files(63, 63), closed=True) == [[63, 63]]


def test_files_of_other_dates_partitions_and_incarnations_are_never_merged() -> None:
    found = [*files(1), *files(1, partition=1), *files(1, incarnation=1), *files(1, dt="2026-02-03")]
    assert list(groups(found, {DT, "2026-02-03"}, *SETTINGS)) == []
    pairs = [*files(1, 2), *files(3, 4, partition=1), *files(5, 6, incarnation=1), *files(7, 8, dt="2026-02-03")]
    random.Random(1).shuffle(pairs)
    both = groups(pairs, {DT, "2026-02-03"}, *SETTINGS)
    assert [[one.size // MIB for one in group] for group in both] == [[1, 2], [3, 4], [5, 6], [7, 8]]


def test_files_of_two_folders_of_a_date_are_never_merged() -> None:
    hours = [*files(1, 2, below="hour=1"), *files(3, below="hour=2")]
    assert [[one.size // MIB for one in group] for group in groups(hours, {DT}, *SETTINGS)] == [[1, 2]]


def test_an_open_date_waits_for_files_enough() -> None:
    assert merged(files(1, 1, 1), closed=False) == []
    assert merged(files(1, 1, 1, 100), closed=False) == []
    assert merged(files(1, 1, 1, 1), closed=False) == [[1, 1, 1, 1]]
    assert merged(files(40, 40, 40, 40, 1), closed=False) == [[40, 40, 40]]  # the rest is not many


def test_what_is_merged_of_an_open_date_at_least_doubles() -> None:
    assert merged(files(30, 1, 1, 1, 1), closed=False) == [[1, 1, 1, 1]]
    assert merged(files(4, 1, 1, 1, 1), closed=False) == [[4, 1, 1, 1, 1]]
    assert merged(files(30, 4, 1, 1, 1), closed=False) == []


def test_files_that_come_to_an_open_date_are_seldom_written_again() -> None:
    """A thousand files of a megabyte each: no row is written more often than its file can double."""
    sizes: list[int] = []
    written = 0
    for _ in range(1000):
        sizes.append(1)
        for group in merged(files(*sizes), closed=False):
            written += sum(group)
            at = next(i for i in range(len(sizes)) if sizes[i : i + len(group)] == group)
            sizes[at : at + len(group)] = [sum(group)]
    assert sum(sizes) == 1000
    assert sum(one < 64 for one in sizes) < 4 + 6
    assert written < 1000 * 6
    assert max(sizes) <= 128


def test_of_a_day_of_landings_that_are_merged_each_hour_few_files_stay(rng: random.Random) -> None:
    """However many landings an hour has."""
    sizes: list[int] = []
    for _ in range(24):
        sizes += [rng.randint(1, 9) for _ in range(rng.choice([0, 1, 2, 5, 60, 240]))]
        for group in reversed([*groups(files(*sizes), (), 128 * MIB, 2)]):
            at = int(group[0].path.rpartition("_")[2])
            sizes[at : at + len(group)] = [sum(file.size for file in group) // MIB]
        assert sum(size < 64 for size in sizes) <= 8, sizes


def test_a_group_is_bounded_in_files_and_in_files_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = [one._replace(first=i, next=1000) for i, one in enumerate(files(*[1] * 20))]
    assert [len(group) for group in groups(wide, {DT}, *SETTINGS)] == [8, 8, 4]
    monkeypatch.setattr(compaction, "TASK_FILES", 6)
    assert [len(group) for group in groups(files(*[1] * 20), {DT}, *SETTINGS)] == [6, 6, 6, 2]


def test_a_run_is_bounded_and_does_something(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(groups(files(*[60] * 8), {DT}, *SETTINGS))
    assert [len(group) for group in found] == [2, 2, 2, 2]
    monkeypatch.setattr(compaction, "RUN_FILES", 5)
    assert bounded(found) == found[:2]
    monkeypatch.setattr(compaction, "RUN_BYTES", 1)
    assert bounded(found) == found[:1]


def test_the_order_in_which_files_are_given_is_nothing(rng: random.Random) -> None:
    found = files(*[rng.randint(1, 90) for _ in range(50)])
    mixed = rng.sample(found, len(found))
    for closed in (True, False):
        assert merged(mixed, closed=closed) == merged(found, closed=closed)
