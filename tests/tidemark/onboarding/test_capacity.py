from __future__ import annotations

import pytest

from tests.tidemark.brokersets.test_load import placed
from tests.tidemark.brokersets.test_placement import SIX, brokerset
from tidemark.errors import ConfigError
from tidemark.onboarding.creation import choices, partitions_for
from tidemark.onboarding.options import WantedTopic

TWELVE = brokerset((7, 10, 13, 16), (8, 11, 14, 17), (9, 12, 15, 18)).model_copy(update={"name": "b"})
WANTED = WantedTopic("c", "new", 60.0, 10.0, None, 3, None)


@pytest.mark.parametrize(("rate", "expected"), [(0.5, 6), (30.0, 6), (31.0, 12), (65.0, 18)])
def test_partitions_are_a_multiple_of_the_brokers(rate: float, expected: int) -> None:
    assert partitions_for(rate, 5.0, SIX) == expected


def test_the_stride_that_other_topics_do_not_have_is_chosen() -> None:
    loads = [*placed("a", 0), *placed("b", 1), *placed("c", 2)]
    [best, *others] = choices(WANTED, 60.0, [SIX], loads)
    assert (best.stride, best.busiest, best.busiest_without) == (3, 40.0, 50.0)
    assert {one.busiest_without for one in others} == {60.0}


def test_an_idle_brokerset_is_better_and_a_full_one_is_last() -> None:
    full = SIX.model_copy(update={"capacity": 12})
    found = choices(WANTED, 60.0, [full, TWELVE], placed("a", 0))
    assert found[0].brokerset.name == "b"
    assert not found[-1].fits


def test_where_no_brokerset_can_be_balanced_each_reason_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        choices(WANTED._replace(replication_factor=4), 60.0, [SIX, TWELVE], [])
    assert str(caught.value).count("must be 1 to 3") == 2
