"""Which reports may go: none that is young, that an incident names, or that is the newest on a date with rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from random import Random
from typing import NamedTuple

import pytest

from tidemark.formats.keys import TableKeys
from tidemark.planning.maintenance.vacuum import REPORTS_KEPT, RUN_OVER, left_by_runs, old_audits, old_backfill_reports
from tidemark.store import ObjectInfo
from tidemark.timestamps import stamp

NOW = datetime(2026, 12, 1, tzinfo=UTC)
OLD = REPORTS_KEPT + timedelta(days=30)
KEYS = TableKeys("tables", "east", "orders", "orders")
DAYS = [date(2026, 2, 1 + n).isoformat() for n in range(6)]


def audit(dates: Sequence[str] = (), age: timedelta = OLD) -> ObjectInfo:
    return ObjectInfo(KEYS.audit(dates, stamp(NOW - age), 7), 4096, "e", NOW - age)


def part(name: int, part: str, age: timedelta = OLD, attempt: int | None = None) -> ObjectInfo:
    return ObjectInfo(KEYS.report(f"{name:016x}", part, attempt), 4096, "e", NOW - age)


def hours(count: int) -> timedelta:
    return timedelta(hours=count)


def gone(listed: Sequence[ObjectInfo], dates: Sequence[str] = DAYS, named: Sequence[str] = ()) -> list[ObjectInfo]:
    return old_audits(listed, dates, named, NOW)


NEWEST = audit([DAYS[5]], hours(1))


def test_an_audit_goes_once_its_dates_have_been_audited_again() -> None:
    first, again = audit([DAYS[0]]), audit([DAYS[0]], OLD - hours(1))
    assert gone([again, first, NEWEST]) == [first]
    assert gone([first, NEWEST]) == []
    everything = audit(), audit((), OLD - hours(1))
    assert gone([*everything, NEWEST]) == [everything[0]]
    several = audit(DAYS[:3]), audit(DAYS[:3], OLD - hours(1)), audit([DAYS[0], DAYS[2]], OLD - hours(2))
    assert gone([*several, NEWEST]) == [several[0]], "others' first and last dates may be the same"


def test_an_audit_goes_with_the_rows_of_its_dates() -> None:
    one, several, everything = audit([DAYS[0]]), audit(DAYS[:3]), audit()
    assert gone([one, several, everything, NEWEST], DAYS[2:]) == [one]
    assert {*gone([one, several, everything, NEWEST], DAYS[3:])} == {one, several}
    assert gone([one], []) == [], "it is the newest of the table"


def test_young_and_named_audits_and_what_is_no_report_stay() -> None:
    young = audit([DAYS[0]], REPORTS_KEPT - hours(1)), audit([DAYS[0]], REPORTS_KEPT - hours(2))
    assert gone([*young, NEWEST]) == []
    first, again = audit([DAYS[0]]), audit([DAYS[0]], OLD - hours(1))
    assert gone([first, again, NEWEST], named=[first.key]) == []
    other = ObjectInfo(f"{KEYS.audits}notes.txt", 1, "e", NOW - OLD)
    assert gone([other, NEWEST]) == []


def test_a_backfills_report_goes_as_a_whole_and_its_request_first() -> None:
    report = [part(1, "request"), part(1, "preview"), part(1, "comparison", attempt=5), part(1, "outcome", attempt=5)]
    later = [part(2, "request", hours(1)), part(2, "outcome", hours(1), attempt=6)]
    requests, rest = old_backfill_reports([*later, *report], NOW)
    assert requests == report[:1]
    assert {*rest} == {*report[1:]}
    # A part that was written again.
    assert old_backfill_reports([*report[1:], part(1, "request", hours(2)), *later], NOW) == ([], [])


def test_the_newest_backfill_and_the_newest_that_did_something_stay() -> None:
    did = [part(1, "request"), part(1, "outcome", attempt=5)]
    shown = [part(2, "request", OLD - hours(1))]
    assert old_backfill_reports([*did, *shown], NOW) == ([], [])
    shown_again = part(3, "request", OLD - hours(2))
    assert old_backfill_reports([*did, *shown, shown_again], NOW) == (shown, [])


def test_what_only_a_run_needs_goes_when_no_run_lasts_longer() -> None:
    listed = [ObjectInfo("a", 1, "e", NOW - RUN_OVER), ObjectInfo("b", 1, "e", NOW - RUN_OVER - hours(1))]
    assert [one.key for one in left_by_runs(listed, NOW)] == ["b"]


class Audited(NamedTuple):
    """An audit of some dates, all if there are none."""

    at: datetime
    dates: tuple[str, ...]
    info: ObjectInfo


@pytest.mark.parametrize("dies", [0.0, 0.5])
def test_whatever_is_audited_lands_and_expires_the_newest_report_of_each_date_is_there(
    rng: Random, dies: float
) -> None:
    """Years of audits, of vacuums some of which are killed between two deletions, and of dates that come and go."""
    now, made, there, rows = NOW, list[Audited](), dict[str, ObjectInfo](), set(DAYS[:1])
    days = [date(2026, 2, 1 + n).isoformat() for n in range(12)]
    removed = 0
    for number in range(300):
        now += timedelta(days=rng.expovariate(1 / 5))
        rows ^= {rng.choice(days)} if rng.random() < 0.3 else set()
        kind = rng.random()
        dates = () if kind < 0.1 else tuple(sorted(rng.sample(days, 1 if kind < 0.7 else rng.randint(2, 4))))
        info = ObjectInfo(KEYS.audit(dates, stamp(now), number), 1, "e", now)
        made.append(Audited(now, dates, info))
        there[info.key] = info
        named = {rng.choice(made).info.key} & there.keys() if rng.random() < 0.5 else set()
        before = {**there}
        goes = old_audits(rng.sample(sorted(there.values()), len(there)), rows, named, now)
        goes = rng.sample(goes, len(goes))
        for one in goes[: rng.randint(0, len(goes)) if rng.random() < dies else None]:
            del there[one.key]
        removed += len(before) - len(there)

        assert named <= there.keys()
        assert all(one.info.key in there for one in made if now - one.at <= REPORTS_KEPT)
        assert made[-1].info.key in there
        for dt in rows:
            about = [one for one in made if dt in one.dates and one.info.key in before]
            assert not about or about[-1].info.key in there, f"the newest report on {dt} is gone"
        everything = [one for one in made if not one.dates]
        assert not everything or everything[-1].info.key in there
    scopes = {one.dates for one in made}
    assert removed > 50, "they are not kept for ever either"
    old_audits_left = [one for one in made if one.info.key in there and now - one.at > REPORTS_KEPT]
    assert dies or len(old_audits_left) <= len(scopes) + 1
