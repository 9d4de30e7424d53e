"""When a date closes: what each partition must have shown, in which zone, and for how long others are waited for."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.support.ledgers import landed
from tidemark.formats.raw.watermark_index import IndexEntry
from tidemark.formats.table.ledger import Closing, DateState, Ledger
from tidemark.planning.date_finality import closing, end_of
from tidemark.topics import TopicSettings

DT = "2026-02-02"
END = datetime(2026, 2, 3, tzinfo=UTC)
DUE = END + timedelta(hours=1)
OVERDUE = DUE + timedelta(days=1)
MINUTE = timedelta(minutes=1)


def topic(**settings: Any) -> TopicSettings:
    """A topic with an hour of lateness, overdue after a day."""
    return TopicSettings(topic="orders", cluster="east", table="orders", **settings)


def ledger(ends: Mapping[int, int], life: int = 0, **state: Any) -> Ledger:
    """A ledger with one date, and partitions landed up to the given offsets."""
    partitions = tuple(landed(offset, number, incarnation=life) for number, offset in ends.items())
    empty = Ledger.genesis("east", "orders", "orders")
    return empty.model_copy(update={"partitions": partitions, "dates": {DT: DateState(rows=9, **state)}})


def entry(
    high_watermark: int = 10,
    *,
    observed_at: datetime = DUE,
    base: int | None = 0,
    first: datetime | None = END - MINUTE,
    next_offset: int = 0,
) -> IndexEntry:
    """An entry whose active segment starts at ``base``, with a record of the time ``first``."""
    return IndexEntry(
        topic="orders",
        partition=0,
        topic_id=None,
        incarnation=0,
        leader_epoch=0,
        next_offset=next_offset,
        uploaded_end=next_offset,
        log_end_offset=high_watermark,
        high_watermark=high_watermark,
        active_base_offset=base,
        active_first_timestamp=None if first is None else round(first.timestamp() * 1000),
        observed_at=observed_at,
    )


def close(ledger: Ledger, *entries: IndexEntry | None, now: datetime = DUE, **settings: Any) -> Closing | None:
    """What becomes of the date; the entries are those of partitions 0, 1, ..."""
    by_partition = {(0, number): one for number, one in enumerate(entries) if one}
    return closing(ledger, by_partition, topic(**settings), now).get(DT)


def state(found: Closing | None) -> str:
    """The state's name, ``open`` for no change."""
    return found.after.state if found else "open"


def test_a_date_is_final_when_all_partitions_are_landed_up_to_their_log_ends() -> None:
    found = close(ledger({0: 10, 1: 0}), entry(10), entry(0))
    assert found
    assert (found.before.state, found.after.state, found.after.closed_at) == ("open", "final", DUE)
    assert (found.after.rows, found.after.unfinished, found.after.outstanding) == (9, 0, 0)


@pytest.mark.parametrize(
    "one",
    [
        entry(11, observed_at=DUE),
        entry(10, observed_at=DUE - MINUTE),
        entry(11, base=11, first=END),
        entry(11, base=10, first=END - timedelta(milliseconds=1)),
        entry(11, base=None, first=END),
        entry(10).model_copy(update={"log_end_offset": 11}),
    ],
    ids=[
        "behind",
        "observed too early",
        "a segment between",
        "a record of the date",
        "an agent that does not say",
        "a record above the high watermark",
    ],
)
def test_a_date_waits_for_a_partition_that_is_not_done(one: IndexEntry) -> None:
    assert close(ledger({0: 10, 1: 10}), one, entry(10)) is None
    assert state(close(ledger({0: 10, 1: 10}), entry(10), entry(10))) == "final"


def test_a_partition_that_is_always_written_to_is_done_when_its_active_segment_begins_after_the_date() -> None:
    assert state(close(ledger({0: 10}), entry(99, base=10, first=END))) == "final"
    assert state(close(ledger({0: 10}), entry(99, base=10, first=None))) == "final"


def test_where_events_make_the_dates_records_come_after_them() -> None:
    """An active segment that begins right after the date may still have records of the date's events."""
    parser = {
        "kind": "json",
        "columns": [{"name": "placed", "type": "timestamp(ms)"}],
        "event_time": {"field": "placed"},
    }
    assert state(close(ledger({0: 10}), entry(99, base=10, first=DUE - MINUTE), parser=parser)) == "open"
    assert state(close(ledger({0: 10}), entry(99, base=10, first=DUE), parser=parser)) == "final"
    assert state(close(ledger({0: 10}), entry(10, base=0, first=END), parser=parser)) == "final", "all is landed"


def test_nothing_closes_before_end_and_lateness() -> None:
    late = entry(10, observed_at=DUE + 9 * MINUTE)
    assert close(ledger({0: 10}), late, now=DUE - MINUTE) is None
    assert close(ledger({0: 10}), late, now=DUE, lateness=timedelta(hours=2)) is None


def test_a_date_ends_in_the_topics_zone() -> None:
    assert end_of(DT, ZoneInfo("Asia/Tokyo")) == END - timedelta(hours=9)
    assert end_of("2026-10-25", ZoneInfo("Europe/Vienna")) - end_of("2026-10-24", ZoneInfo("Europe/Vienna")) == (
        timedelta(hours=25)
    )
    early = entry(10, observed_at=DUE - timedelta(hours=9))
    assert state(close(ledger({0: 10}), early, now=DUE - timedelta(hours=9), time_zone="Asia/Tokyo")) == "final"


def test_what_is_overdue_closes_incomplete_with_the_count_outstanding() -> None:
    behind = ledger({0: 7, 1: 10, 2: 4})
    entries = (entry(10), entry(10), entry(5, observed_at=END))
    assert close(behind, *entries, now=OVERDUE - MINUTE) is None
    found = close(behind, *entries, now=OVERDUE)
    assert found
    assert (found.after.state, found.after.unfinished, found.after.outstanding) == ("final_incomplete", 2, 4)
    done = behind.model_copy(update={"dates": {DT: found.after}})
    assert close(done, *entries, now=OVERDUE + MINUTE) is None
    complete = done.model_copy(update={"partitions": ledger({0: 10, 1: 10, 2: 5}).partitions})
    found = close(complete, entry(10), entry(10), entry(5), now=OVERDUE + MINUTE)
    assert found
    assert (found.after.state, found.after.unfinished, found.after.outstanding) == ("final", 0, 0)


def test_old_records_that_are_still_being_landed_are_no_reason_to_close() -> None:
    behind = ledger({0: 7}, changed_at=OVERDUE)
    assert close(behind, entry(10), now=OVERDUE + timedelta(hours=23)) is None
    assert state(close(behind, entry(10), now=OVERDUE + timedelta(hours=24))) == "final_incomplete"


def test_a_partition_that_no_agent_tells_of_is_waited_for_until_the_date_is_overdue() -> None:
    assert close(ledger({0: 10, 1: 10}), entry(10), None) is None
    assert close(ledger({0: 10, 2: 10}), entry(10), None, entry(10)) is None
    found = close(ledger({0: 10, 1: 10}), entry(10), None, now=OVERDUE)
    assert found
    assert (found.after.state, found.after.unfinished) == ("final_incomplete", 1)


def test_a_partition_of_which_nothing_was_ever_uploaded_does_not_stall_the_rest() -> None:
    expired = {(0, 0): entry(10), (0, 1): entry(5, next_offset=5, base=5, first=None)}
    assert closing(ledger({0: 10}), expired, topic(), DUE) == {}  # it may have been uploaded and not be landed yet
    assert closing(ledger({0: 10}), expired, topic(), DUE, bare={(0, 1)})[DT].after.state == "final"


def test_earlier_lives_of_the_topic_are_not_waited_for() -> None:
    old, new = ledger({0: 3, 1: 3}).partitions, ledger({0: 10}, life=1).partitions
    both = ledger({}).model_copy(update={"partitions": (*old, *new)})
    entries = {(0, 1): entry(99, observed_at=END - MINUTE), (1, 0): entry(10)}
    assert closing(both, entries, topic(), DUE)[DT].after.state == "final"
    assert closing(both, entries | {(1, 0): entry(11)}, topic(), DUE) == {}


def test_a_reopened_date_closes_again() -> None:
    late = ledger({0: 10}, state="reopened", late_rows=2, changed_at=OVERDUE)
    found = close(late, entry(10), now=OVERDUE)
    assert found
    assert (found.after.state, found.after.late_rows) == ("final", 2)
    assert close(late, entry(11), now=OVERDUE + timedelta(hours=1)) is None


@pytest.mark.parametrize(("as_of", "expected"), [(DUE, "final"), (DUE - timedelta(seconds=1), "open")])
def test_a_partition_that_is_never_quiet_is_done_by_the_high_watermark_that_it_has_reached(
    as_of: datetime, expected: str
) -> None:
    known = ledger({0: 9})
    told = known.model_copy(update={"partitions": (landed(9, as_of=as_of),)})
    assert state(close(known, entry(20))) == "open"
    assert state(close(told, entry(20))) == expected
    assert state(close(told, None)) == expected, "the leader's index may be late"


def test_another_partition_is_waited_for_all_the_same() -> None:
    told = ledger({}).model_copy(update={"partitions": (landed(9, as_of=DUE), landed(9, 1))})
    assert state(close(told, entry(20), entry(20))) == "open"
