"""Which ledgers may go: none that the table, its log, the outbox or a process that is under way can name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from tidemark.formats.table.plan import RUN_LIMIT
from tidemark.planning.maintenance.vacuum import RUN_OVER, old_ledgers
from tidemark.store import ObjectInfo

NOW = datetime(2026, 2, 20, tzinfo=UTC)
LONG = timedelta(days=5)


def ledger(n: int, age: timedelta = LONG, attempt: int = 7) -> ObjectInfo:
    return ObjectInfo(f"_tidemark/east/orders/ledger/{n}-{attempt}.json", 4096, "e", NOW - age)


def gone(
    listed: list[ObjectInfo], *, committed: int = 9, in_log: int = 9, published: int = 9, state: int | None = None
) -> list[int]:
    """The numbers that go."""
    found = old_ledgers(listed, NOW, committed=committed, in_log=in_log, published=published, state=state)
    return [int(one.key.rpartition("/")[2].partition("-")[0]) for one in found]


ALL_OLD = [ledger(n) for n in range(1, 10)]


def test_what_all_have_left_behind_goes() -> None:
    assert gone(ALL_OLD) == [1, 2, 3, 4, 5, 6], "the last ones stay for a process that opened the table before"
    assert gone([*ALL_OLD, ledger(2, attempt=8)]) == [1, 2, 3, 4, 5, 6, 2], "with one that lost the race"


def test_the_outbox_needs_the_ledger_that_it_has_published_and_all_after_it() -> None:
    assert gone(ALL_OLD, published=4) == [1, 2, 3]
    assert gone(ALL_OLD, published=0) == [], "nothing is known to be published"


def test_the_state_table_needs_all_ledgers_since_the_one_that_it_equals() -> None:
    assert gone(ALL_OLD, state=4) == [1, 2, 3]
    assert gone(ALL_OLD, state=9) == gone(ALL_OLD)


def test_a_version_that_the_log_still_has_needs_its_ledger_and_its_parent() -> None:
    assert gone(ALL_OLD, in_log=4) == [1, 2]
    assert gone(ALL_OLD, in_log=0) == [], "the oldest version is from before the first run, or unknown"


def test_what_is_young_stays_with_what_was_committed_when_it_was_written() -> None:
    young = [ledger(n, RUN_OVER - timedelta(minutes=1) if n >= 6 else LONG) for n in range(1, 10)]
    assert gone(young) == [1, 2]
    assert gone([ledger(n, RUN_OVER + timedelta(minutes=1)) for n in range(1, 10)]) == gone(ALL_OLD)


def test_what_is_not_a_ledger_stays() -> None:
    names = ["notes.txt", "1.json", "x-7.json", "01-7.json", "1-7.json.bak"]
    assert gone([ObjectInfo(f"l/{name}", 1, "e", NOW - LONG) for name in names]) == []


@pytest.mark.parametrize("commits_a_day", [0.3, 3, 30])
def test_no_reader_and_no_run_that_is_under_way_misses_one(rng: Random, commits_a_day: float) -> None:
    """Runs write ledgers and commit them at once, a day later, or never; each look is at any time of any reader."""
    listed: list[ObjectInfo] = []
    committed: list[tuple[datetime, int]] = [(NOW - 100 * LONG, 0)]
    waiting: list[tuple[datetime, int]] = []
    at, removed = NOW, 0
    for attempt in range(400):
        at += timedelta(days=rng.expovariate(commits_a_day))
        number = committed[-1][1] + 1
        listed.append(ObjectInfo(f"l/{number}-{attempt}.json", 1, "e", at))
        if rng.random() < 0.3:
            waiting.append((at, number))  # its process dies, or waits
        else:
            committed.append((at, number))
        for written, wanted in list(waiting):
            if at - written > RUN_LIMIT:
                waiting.remove((written, wanted))
            elif wanted == committed[-1][1] + 1 and rng.random() < 0.5:
                waiting.remove((written, wanted))
                committed.append((at, wanted))
        now = at + timedelta(days=rng.choice([0, 0, rng.expovariate(0.5)]))
        newest = committed[-1][1]
        goes = old_ledgers(listed, now, committed=newest, in_log=newest, published=newest, state=None)
        removed += len(goes)
        numbers = {int(one.key[2:].partition("-")[0]) for one in goes}
        opened = [n for time, n in committed if time >= now - RUN_LIMIT]
        before = [n for time, n in committed if time < now - RUN_LIMIT][-1]
        needed = {n - back for n in [before, *opened] for back in (0, 1)}
        needed |= {n for written, n in waiting if now - written <= RUN_LIMIT}
        assert not needed & numbers
        listed = [one for one in listed if one not in goes]
    assert removed > 50, "it is not kept for ever either"
