from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.plugins.world import row, state
from tidemark.formats.table.ledger import DateState, Ledger, PartitionState, Published
from tidemark.topics import LIVE_BYTES, BatchWindow, TopicSettings
from tidemark_airflow.triggers.readiness import Ahead, Baseline, Event, Landed, Row, Watch, look_again_at

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def baseline(
    *landed: PartitionState, age: timedelta = timedelta(0), size: int = 1 << 26, **published: object
) -> Baseline:
    topic = TopicSettings(topic="orders", cluster="kafka-1", table="orders", batch=BatchWindow(age=age, size=size))
    ledger = Ledger.genesis("kafka-1", "orders", "orders").model_copy(update={"partitions": landed})
    return Baseline.of(topic, ledger, Published.model_validate({"at": NOW, **published}), NOW)


def judge(known: Baseline, *entries: Row, now: datetime = NOW) -> Event | None:
    return Watch(known).judge(entries, now)


@pytest.mark.parametrize(
    ("landed", "entries", "fires"),
    [
        pytest.param([state(0, 10)], [row(next_offset=10)], False, id="landed already"),
        pytest.param([state(0, 10)], [row(next_offset=11)], True, id="advanced"),
        pytest.param([state(0, 10), state(1, 5)], [row(next_offset=10), row(partition=1, next_offset=6)], True,
                     id="one of two advanced"),
        pytest.param([], [row(next_offset=1)], True, id="unknown partition"),
        pytest.param([state(0, 10)], [], False, id="no broker says anything"),
        pytest.param([state(0, 10)], [row(next_offset=8, epoch=1)], True, id="cut off by an unclean election"),
        pytest.param([state(0, 10)], [row(next_offset=10, incarnation=1)], True, id="topic made again"),
        pytest.param([state(0, 10)], [row(next_offset=10, epoch=1)], True, id="a new branch as long as the old one"),
        pytest.param([state(0, 10, epoch=2)], [row(next_offset=10, epoch=1)], False, id="a former leader's word"),
    ],
)  # fmt: skip
def test_fires_exactly_when_watermark_and_ledger_differ(
    landed: Sequence[PartitionState], entries: Sequence[Row], fires: bool
) -> None:
    event = judge(baseline(*landed), *entries)

    assert (event is not None) == fires
    if event:
        assert (event.status, event.partitions) == ("advanced", 1)


def test_what_planning_found_nothing_in_does_not_fire_again_until_it_moves() -> None:
    held = row(next_offset=20)
    first = judge(baseline(state(0, 10)), held)
    assert first is not None

    settled = baseline(state(0, 10), settled=first.settles, settled_at=NOW)

    assert judge(settled, held) is None
    assert judge(settled, row(next_offset=21)) is not None
    assert judge(settled, held, row(partition=1, next_offset=1)) is not None


def test_a_held_partition_does_not_fire_when_another_one_has_landed() -> None:
    held = row(next_offset=20)
    first = judge(baseline(state(0, 10), state(1, 5)), held, row(partition=1, next_offset=5))
    assert first is not None

    later = baseline(state(0, 10), state(1, 9), settled=first.settles, settled_at=NOW)

    assert judge(later, held, row(partition=1, next_offset=9)) is None


def test_what_is_settled_is_looked_at_again_after_the_freshness_objective() -> None:
    held = row(next_offset=20)
    first = judge(baseline(state(0, 10)), held)
    assert first is not None

    known = baseline(state(0, 10), settled=first.settles, settled_at=NOW)

    assert judge(known, held, now=NOW + known.late_after - MINUTE) is None
    assert judge(known, held, now=NOW + known.late_after) is not None


def test_the_batch_window_counts_from_the_first_sight() -> None:
    watch = Watch(baseline(state(0, 10), age=MINUTE))

    assert watch.judge([row(next_offset=11, observed_at=NOW)], NOW) is None
    later = NOW + MINUTE / 2
    assert watch.judge([row(next_offset=12, observed_at=later)], later) is None
    assert watch.judge([row(next_offset=13, observed_at=NOW + MINUTE)], NOW + MINUTE) is not None


def test_a_new_triggerer_does_not_start_the_batch_window_anew() -> None:
    watch = Watch(baseline(state(0, 10), age=MINUTE))

    assert watch.judge([row(next_offset=11, observed_at=NOW - MINUTE)], NOW) is not None


def test_the_batch_window_ends_when_nothing_is_ahead_any_more() -> None:
    watch = Watch(baseline(state(0, 10), age=MINUTE))

    assert watch.judge([row(next_offset=11, observed_at=NOW)], NOW) is None
    assert watch.judge([row(next_offset=10)], NOW + MINUTE) is None
    assert watch.judge([row(next_offset=11, observed_at=NOW + 2 * MINUTE)], NOW + 2 * MINUTE) is None


def test_a_new_leader_who_cut_nothing_off_is_planned_for_once() -> None:
    led_anew = row(next_offset=10, epoch=1)
    first = judge(baseline(state(0, 10)), led_anew)
    assert first is not None

    settled = baseline(state(0, 10), settled=first.settles, settled_at=NOW)

    assert judge(settled, led_anew, now=NOW + 1000 * settled.late_after) is None
    assert judge(settled, row(next_offset=11, epoch=1)) is not None


@pytest.mark.parametrize(
    ("landed", "next_offset", "bytes_per_offset", "fires"),
    [
        pytest.param(10, 109, 10.0, False, id="a byte short"),
        pytest.param(10, 110, 10.0, True, id="enough"),
        pytest.param(10, 10_000, None, False, id="an agent that does not say"),
        pytest.param(200, 110, 10.0, False, id="cut off"),
    ],
)
def test_the_batch_window_ends_when_there_are_bytes_enough(
    landed: int, next_offset: int, bytes_per_offset: float | None, fires: bool
) -> None:
    known = baseline(state(0, landed), age=MINUTE, size=1000)
    epoch = int(next_offset < landed)

    event = judge(known, row(next_offset=next_offset, epoch=epoch, bytes_per_offset=bytes_per_offset, observed_at=NOW))

    assert (event is not None) == fires
    if event:
        assert event.bytes == 1000


def test_the_bytes_of_all_partitions_count_together() -> None:
    known = baseline(state(0, 10), age=MINUTE, size=1000)
    entries = [row(partition=n, next_offset=60, bytes_per_offset=10, observed_at=NOW) for n in (0, 1)]

    assert judge(known, entries[0]) is None
    assert judge(known, *entries) is not None


def test_the_same_entries_are_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known = baseline(state(0, 10), age=MINUTE)
    seen: list[object] = []
    looks_through = Baseline.ahead

    def ahead(self: Baseline, entries: Sequence[Row]) -> Ahead:
        seen.append(entries)
        return looks_through(self, entries)

    monkeypatch.setattr(Baseline, "ahead", ahead)
    watch, first, second = Watch(known), [row(next_offset=11, observed_at=NOW)], [row(next_offset=12)]

    assert [watch.judge(first, NOW), watch.judge(first, NOW)] == [None, None]
    assert watch.judge(first, NOW + MINUTE) is not None
    watch.judge(second, NOW)

    assert seen == [first, second]


def test_a_live_topics_own_runs_take_what_live_landings_leave() -> None:
    topic = TopicSettings(topic="orders", cluster="kafka-1", table="orders", freshness=MINUTE)
    ledger = Ledger.genesis("kafka-1", "orders", "orders").model_copy(update={"partitions": (state(0, 10),)})
    watch = Watch(Baseline.of(topic, ledger, Published(at=NOW), NOW))
    ahead = [row(next_offset=11, observed_at=NOW)]

    assert watch.judge(ahead, NOW + 2 * MINUTE) is None
    assert watch.judge(ahead, NOW + 3 * MINUTE) is not None
    assert watch.judge([row(next_offset=11, bytes_per_offset=LIVE_BYTES, observed_at=NOW)], NOW) is not None


def test_what_live_landings_have_landed_starts_the_wait_of_its_own_runs_anew() -> None:
    topic = TopicSettings(topic="orders", cluster="kafka-1", table="orders", freshness=MINUTE)
    watch = Watch(Baseline.of(topic, Ledger.genesis("kafka-1", "orders", "orders"), Published(at=NOW), NOW))
    ahead = [row(next_offset=11, observed_at=NOW)]
    assert watch.judge(ahead, NOW + 3 * MINUTE) is not None

    assert watch.follow({"0-0": Landed(9, 0)}, NOW + 3 * MINUTE)
    assert not watch.follow({"0-0": Landed(9, 0)}, NOW + 3 * MINUTE)
    assert watch.judge(ahead, NOW + 5 * MINUTE) is None
    assert watch.judge(ahead, NOW + 6 * MINUTE) is not None


def hours(value: float) -> timedelta:
    return timedelta(hours=value)


@pytest.mark.parametrize(
    ("dates", "expected"),
    [
        pytest.param({}, hours(1), id="no date"),
        pytest.param({"2026-06-01": "open"}, hours(1), id="a date that goes on"),
        pytest.param({"2026-05-31": "final"}, hours(1), id="a closed date"),
        pytest.param({"2026-05-31": "open"}, timedelta(minutes=15), id="a date that is waited for"),
        pytest.param({"2026-05-31": "reopened"}, timedelta(minutes=15), id="a date that is waited for again"),
    ],
)
def test_a_quiet_topic_is_looked_at_again(dates: dict[str, Any], expected: timedelta) -> None:
    ledger = Ledger.genesis("kafka-1", "orders", "orders")
    ledger = ledger.model_copy(update={"dates": {dt: DateState(rows=1, state=name) for dt, name in dates.items()}})
    topic = TopicSettings(topic="orders", cluster="kafka-1", table="orders")

    assert look_again_at(topic, ledger, NOW) == NOW + expected


def test_a_quiet_topic_is_looked_at_when_its_date_may_close() -> None:
    ledger = Ledger.genesis("kafka-1", "orders", "orders").model_copy(
        update={"dates": {"2026-06-01": DateState(rows=1)}}
    )
    topic = TopicSettings(topic="orders", cluster="kafka-1", table="orders", lateness=hours(2))
    midnight = datetime(2026, 6, 2, tzinfo=UTC)

    assert look_again_at(topic, ledger, midnight + hours(1.5)) == midnight + hours(2) + 2 * MINUTE


def test_an_event_stays_small_whatever_there_is_to_say() -> None:
    event = judge(baseline(), *(row(partition=n, next_offset=5) for n in range(5000)))

    assert event is not None
    assert len(event.model_dump_json()) < 200


def test_a_baseline_survives_json() -> None:
    known = baseline(state(0, 10), age=MINUTE, settled="abc", settled_at=NOW)

    assert Baseline.model_validate(known.model_dump(mode="json")) == known
