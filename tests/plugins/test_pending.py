from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from tests.plugins.world import entry, gap, state
from tidemark.ledger import Ledger, PartitionState, Published
from tidemark.topics import TopicSettings
from tidemark.watermark_index import IndexEntry
from tidemark_airflow.pending import MOST_GAPS, Baseline, Event, Watch

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def baseline(*landed: PartitionState, age: timedelta = timedelta(0), **published: object) -> Baseline:
    topic = TopicSettings(topic="orders", cluster="kafka-1", table="orders", batch={"age": age})  # type: ignore[arg-type]
    ledger = Ledger.genesis("kafka-1", "orders", "orders").model_copy(update={"partitions": landed})
    return Baseline.of(topic, ledger, Published.model_validate({"at": NOW, **published}))


def judge(known: Baseline, *entries: IndexEntry, now: datetime = NOW) -> Event | None:
    return Watch(known).judge(entries, now)


@pytest.mark.parametrize(
    ("landed", "entries", "fires"),
    [
        pytest.param([state(0, 10)], [entry(next_offset=10)], False, id="landed already"),
        pytest.param([state(0, 10)], [entry(next_offset=11)], True, id="advanced"),
        pytest.param([state(0, 10), state(1, 5)], [entry(next_offset=10), entry(partition=1, next_offset=6)], True,
                     id="one of two advanced"),
        pytest.param([], [entry(next_offset=1)], True, id="unknown partition"),
        pytest.param([state(0, 10)], [], False, id="no broker says anything"),
        pytest.param([state(0, 10)], [entry(next_offset=8, epoch=1)], True, id="cut off by an unclean election"),
        pytest.param([state(0, 10)], [entry(next_offset=10, incarnation=1)], True, id="topic made again"),
    ],
)  # fmt: skip
def test_fires_exactly_when_watermark_and_ledger_differ(
    landed: Sequence[PartitionState], entries: Sequence[IndexEntry], fires: bool
) -> None:
    event = judge(baseline(*landed), *entries)

    assert (event is not None) == fires
    if event:
        assert (event.status, event.partitions) == ("advanced", 1)


def test_what_planning_found_nothing_in_does_not_fire_again_until_it_moves() -> None:
    held = entry(next_offset=20)
    first = judge(baseline(state(0, 10)), held)
    assert first is not None

    settled = baseline(state(0, 10), settled=first.settles, settled_at=NOW)

    assert judge(settled, held) is None
    assert judge(settled, entry(next_offset=21)) is not None
    assert judge(settled, held, entry(partition=1, next_offset=1)) is not None


def test_a_held_partition_does_not_fire_when_another_one_has_landed() -> None:
    held = entry(next_offset=20)
    first = judge(baseline(state(0, 10), state(1, 5)), held, entry(partition=1, next_offset=5))
    assert first is not None

    later = baseline(state(0, 10), state(1, 9), settled=first.settles, settled_at=NOW)

    assert judge(later, held, entry(partition=1, next_offset=9)) is None


def test_what_is_settled_is_looked_at_again_after_the_freshness_objective() -> None:
    held = entry(next_offset=20)
    first = judge(baseline(state(0, 10)), held)
    assert first is not None

    known = baseline(state(0, 10), settled=first.settles, settled_at=NOW)

    assert judge(known, held, now=NOW + known.sweep - MINUTE) is None
    assert judge(known, held, now=NOW + known.sweep) is not None


def test_the_batch_window_counts_from_the_first_sight() -> None:
    watch = Watch(baseline(state(0, 10), age=MINUTE))

    assert watch.judge([entry(next_offset=11, observed_at=NOW)], NOW) is None
    later = NOW + MINUTE / 2
    assert watch.judge([entry(next_offset=12, observed_at=later)], later) is None
    assert watch.judge([entry(next_offset=13, observed_at=NOW + MINUTE)], NOW + MINUTE) is not None


def test_a_new_triggerer_does_not_start_the_batch_window_anew() -> None:
    watch = Watch(baseline(state(0, 10), age=MINUTE))

    assert watch.judge([entry(next_offset=11, observed_at=NOW - MINUTE)], NOW) is not None


def test_the_batch_window_ends_when_nothing_is_ahead_any_more() -> None:
    watch = Watch(baseline(state(0, 10), age=MINUTE))

    assert watch.judge([entry(next_offset=11, observed_at=NOW)], NOW) is None
    assert watch.judge([entry(next_offset=10)], NOW + MINUTE) is None
    assert watch.judge([entry(next_offset=11, observed_at=NOW + 2 * MINUTE)], NOW + 2 * MINUTE) is None


def test_an_untold_gap_fires_at_once_though_nothing_can_land() -> None:
    known = baseline(state(0, 10), age=MINUTE)

    event = judge(known, entry(next_offset=10, gaps=[gap(10, 15)]))

    assert event is not None
    assert [(one.name, one.end, one.reason) for one in event.gaps] == [("0-0-10", 15, "deleted_before_upload")]


def test_a_gap_that_a_person_knows_does_not_fire() -> None:
    known = baseline(state(0, 10), alerted={"0-0-10": "some run"})

    assert judge(known, entry(next_offset=10, gaps=[gap(10, 15)])) is None


def test_an_event_stays_small_whatever_there_is_to_say() -> None:
    entries = [entry(partition=n, next_offset=5, gaps=[gap(5, 9)]) for n in range(5000)]

    event = judge(baseline(), *entries)

    assert event is not None
    assert len(event.gaps) == MOST_GAPS
    assert len(event.model_dump_json()) < 10_000


def test_a_baseline_survives_json() -> None:
    known = baseline(state(0, 10), age=MINUTE, settled="abc", settled_at=NOW, alerted={"0-0-10": "run"})

    assert Baseline.model_validate(known.model_dump(mode="json")) == known
