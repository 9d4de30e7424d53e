"""Placement by stride: the example of its source, and what holds for every size."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.brokersets.placement import Replicas, place, reassignment, replica_assignment, ring, strides
from tidemark.brokersets.settings import Brokerset
from tidemark.errors import ConfigError


def brokerset(*zones: tuple[int, ...]) -> Brokerset:
    pairs = sorted((broker, f"az{number}") for number, brokers in enumerate(zones, 1) for broker in brokers)
    return Brokerset(name="a", brokers=tuple(one for one, _ in pairs), zones=tuple(zone for _, zone in pairs))


SIX = brokerset((1, 4), (2, 5), (3, 6))


def zone_of(within: Brokerset) -> dict[int, str]:
    return dict(zip(within.brokers, within.zones, strict=True))


def followers(placement: tuple[Replicas, ...]) -> Counter[int]:
    return Counter(broker for replicas in placement for broker in replicas[1:])


def taken_over(placement: tuple[Replicas, ...], gone: int) -> Counter[int]:
    """Who leads what the broker has led."""
    return Counter(replicas[1] for replicas in placement if replicas[0] == gone)


def test_stride_0_is_sequential_and_stride_1_leaves_gaps() -> None:
    assert place(SIX, 6, 3, 0) == ((1, 2, 3), (2, 3, 4), (3, 4, 5), (4, 5, 6), (5, 6, 1), (6, 1, 2))
    assert place(SIX, 6, 3, 1) == ((1, 3, 5), (2, 4, 6), (3, 5, 1), (4, 6, 2), (5, 1, 3), (6, 2, 4))


@pytest.mark.parametrize("stride", [0, 1])
def test_both_strides_of_the_example_are_balanced(stride: int) -> None:
    found = place(SIX, 6, 3, stride)
    assert Counter(replicas[0] for replicas in found) == dict.fromkeys(range(1, 7), 1)
    assert followers(found) == dict.fromkeys(range(1, 7), 2)
    zones = zone_of(SIX)
    assert Counter(zones[replicas[0]] for replicas in found) == {"az1": 2, "az2": 2, "az3": 2}
    assert Counter(zones[one] for replicas in found for one in replicas[1:]) == {"az1": 4, "az2": 4, "az3": 4}


def test_at_stride_0_all_leaders_of_a_lost_broker_move_to_the_next_and_at_different_strides_to_different_ones() -> None:
    assert taken_over(place(SIX, 6, 3, 0), 1) == {2: 1}
    together = sum((taken_over(place(SIX, 6, 3, stride), 1) for stride in range(strides(SIX))), Counter[int]())
    assert together == {2: 1, 3: 1, 5: 1, 6: 1}


def test_a_stride_that_would_lead_into_the_leaders_zone_is_passed_over() -> None:
    """Distance 3 of the ring leads from broker 1 to broker 4, which is in the same zone."""
    assert [place(SIX, 6, 2, stride)[0] for stride in range(4)] == [(1, 2), (1, 3), (1, 5), (1, 6)]


def test_neighbours_on_the_ring_are_in_different_zones_however_brokers_are_numbered() -> None:
    assert ring(brokerset((1, 2, 3), (11, 12, 13))) == (1, 11, 2, 12, 3, 13)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Brokerset, int, int]:
    """(brokerset, partitions, replication factor), brokers numbered at random."""
    zones, each = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    numbers = draw(st.permutations(range(zones * each)))
    within = brokerset(*(tuple(numbers[zone * each : (zone + 1) * each]) for zone in range(zones)))
    return within, zones * each * draw(st.integers(1, 3)), draw(st.integers(1, zones))


@given(cases())
def test_each_stride_of_each_size_is_balanced(case: tuple[Brokerset, int, int]) -> None:
    within, partitions, factor = case
    zones = zone_of(within)
    taken: dict[int, Counter[int]] = {broker: Counter() for broker in within.brokers}
    for stride in range(strides(within)):
        found = place(within, partitions, factor, stride)
        each = partitions // len(within.brokers)
        assert Counter(replicas[0] for replicas in found) == dict.fromkeys(within.brokers, each)
        expected = dict.fromkeys(within.brokers, each * (factor - 1)) if factor > 1 else {}
        assert followers(found) == expected
        assert all(len({zones[broker] for broker in replicas}) == factor for replicas in found)
        if factor > 1:
            for broker, counts in taken.items():
                counts.update(taken_over(found, broker))
    for broker, counts in taken.items() if factor > 1 else ():
        others = [one for one in within.brokers if zones[one] != zones[broker]]
        assert counts == dict.fromkeys(others, partitions // len(within.brokers)), "spread evenly over all strides"


@pytest.mark.parametrize(
    ("within", "partitions", "factor", "stride", "told"),
    [
        (SIX, 6, 4, 0, "replication factor: must be 1 to 3, because the brokerset has 3 zones, but it is 4"),
        (brokerset((1,), (2,)), 2, 3, 0, "because the brokerset has 2 brokers, but it is 3"),
        (SIX, 6, 0, 0, "replication factor: must be 1 to 3"),
        (SIX, 7, 3, 0, "partitions: must be a multiple of its 6 brokers, so that each leads equally many: 6 or 12"),
        (SIX, 5, 3, 0, "6 or a multiple of it, not 5"),
        (SIX, 6, 3, 4, "stride: must be 0 to 3, but it is 4"),
        (brokerset((1, 4), (2, 5), (3,)), 5, 3, 0, "zones must have equally many brokers"),
        (brokerset((1, 2)), 2, 1, 1, "stride: must be 0 to 0"),
    ],
)
def test_what_cannot_be_balanced_is_refused_by_name(
    within: Brokerset, partitions: int, factor: int, stride: int, told: str
) -> None:
    with pytest.raises(ConfigError, match="brokerset a: ") as caught:
        place(within, partitions, factor, stride)
    assert told in str(caught.value)


def test_kafkas_tools_take_it() -> None:
    found = place(SIX, 6, 3, 1)
    assert replica_assignment(found).startswith("1:3:5,2:4:6,")
    document = reassignment("orders", found)
    assert (document["version"], len(document["partitions"])) == (1, 6)
    assert document["partitions"][5] == {"topic": "orders", "partition": 5, "replicas": [6, 2, 4]}
