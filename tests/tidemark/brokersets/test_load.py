from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.plugins.world import entry
from tests.tidemark.brokersets.test_placement import SIX
from tidemark.brokersets.load import BrokerLoad, Loss, PartitionLoad, load_of, loads_by_broker, observed_loads
from tidemark.brokersets.placement import place
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.watermark_index import IndexEntry, LeaderEntry

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def placed(topic: str, stride: int, rate: float = 10.0) -> list[PartitionLoad]:
    found = place(SIX, 6, 3, stride)
    return [PartitionLoad(topic, number, replicas[0], rate, replicas=replicas) for number, replicas in enumerate(found)]


def test_topics_of_one_stride_double_the_load_of_the_next_broker() -> None:
    found = load_of(SIX, [*placed("a", 0), *placed("b", 0), *placed("c", 0), *placed("d", 0)])
    assert (found.total.rate, found.failover) == (240.0, "replicas")
    assert {one.rate for one in found.brokers.values()} == {40.0}
    assert found.without[1][:2] == (2, 80.0)


def test_topics_of_different_strides_spread_the_load_of_a_lost_broker() -> None:
    found = load_of(SIX, [*placed("a", 0), *placed("b", 1), *placed("c", 2), *placed("d", 3)])
    assert {one.rate for one in found.without.values()} == {50.0}, "each takes a quarter of 40"


def test_a_partition_without_a_replica_left_is_nobodys_load() -> None:
    assert loads_by_broker([PartitionLoad("a", 0, 1, 5.0, replicas=(1,))], gone=1) == {}


def test_where_replicas_are_not_known_the_load_spreads_evenly_over_the_other_zones() -> None:
    found = load_of(SIX, [PartitionLoad("a", 0, 1, 40.0, lag=3, held=7.0), PartitionLoad("a", 1, 4, None)])
    assert (found.failover, found.unmeasured, found.total) == ("even", 1, BrokerLoad(40.0, 3, 7.0))
    assert found.without[1] == Loss(2, 10.0, 0.75, 1.75)
    assert found.without[2] == Loss(1, 40.0, 3, 7.0)
    assert found.worst == (2, 1, 40.0), "of the losses that are equally bad, the first"


def test_load_of_other_brokers_is_not_counted() -> None:
    found = load_of(SIX, [PartitionLoad("a", 0, 9, 40.0)])
    assert (found.total.rate, found.partitions) == (0.0, 0)


def test_lag_and_held_bytes_go_to_the_brokers_that_lead_then() -> None:
    partitions = [
        PartitionLoad("a", 0, 1, 5.0, lag=100, held=1000.0, replicas=(1, 2, 3)),
        PartitionLoad("a", 1, 2, 9.0, lag=20, held=10.0, replicas=(2, 3, 1)),
        PartitionLoad("a", 2, 3, 1.0, lag=30, held=None, replicas=(3, 1, 2)),
    ]
    found = load_of(SIX, partitions)
    assert found.brokers[1] == BrokerLoad(5.0, 100, 1000.0)
    assert found.without[1] == Loss(busiest=2, rate=14.0, lag=120, held=1010.0)
    assert found.without[2] == Loss(busiest=3, rate=10.0, lag=100, held=1000.0)
    assert found.without[4] == Loss(busiest=2, rate=9.0, lag=100, held=1000.0), "nothing moves"
    assert found.worst == (1, 2, 14.0)
    answer = found.answer()
    assert answer["without"]["1"] == {"busiest": 2, "rate": 14.0, "lag": 120, "held": 1010.0}
    assert (answer["lag"], answer["held"], answer["exceeded"]) == (150, 1010.0, False)
    tight = load_of(SIX.model_copy(update={"capacity": 13}), partitions)
    assert tight.exceeded


def observed(log_end: int, at: datetime, **more: object) -> dict[TopicPartition, LeaderEntry]:
    found = entry(next_offset=100, log_end=log_end, observed_at=at, bytes_per_offset=50.0)
    changed: IndexEntry = found.model_copy(update=more)
    return {TopicPartition("orders", 0): LeaderEntry(2, changed)}


ACTIVE = {"active_base_offset": 200, "active_first_timestamp": int(NOON.timestamp() * 1000), "high_watermark": 290}


def test_a_rate_is_estimated_from_the_active_segment() -> None:
    [found] = observed_loads(observed(300, NOON + timedelta(seconds=20), **ACTIVE))
    assert (found.leader, found.rate) == (2, 100 * 50.0 / 20)
    assert (found.lag, found.held) == (190, 100 * 50.0)


@pytest.mark.parametrize(
    "unknown", [{"bytes_per_offset": None}, {"active_base_offset": None}, {"active_first_timestamp": None}]
)
def test_what_cannot_be_estimated_is_unknown(unknown: dict[str, object]) -> None:
    [found] = observed_loads(observed(300, NOON + timedelta(seconds=20), **(ACTIVE | unknown)))
    assert found.rate is None
    [found] = observed_loads(observed(300, NOON + timedelta(seconds=9), **ACTIVE))
    assert found.rate is None, "too short"


def test_two_looks_measure_a_rate() -> None:
    before = observed(300, NOON, **ACTIVE)
    [found] = observed_loads(observed(360, NOON + timedelta(seconds=30), **ACTIVE), before)
    assert found.rate == 60 * 50.0 / 30
    [found] = observed_loads(observed(250, NOON + timedelta(seconds=30), **ACTIVE), before)
    assert found.rate is None, "a truncated log"
    [found] = observed_loads(before, before)
    assert found.rate is None, "the same observation"
