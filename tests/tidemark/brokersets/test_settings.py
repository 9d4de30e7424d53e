from __future__ import annotations

import pytest

from tidemark.brokersets.settings import BrokersetsFile
from tidemark.config import parse
from tidemark.errors import ConfigError


def parsed(text: str) -> BrokersetsFile:
    return parse(BrokersetsFile, text, "brokersets.yaml", {})


GOOD = """
clusters:
  east:
    zones: {az1: [1, 4, 7-8], az2: [2, 5], az3: [3, 6]}
    brokersets:
      a: {brokers: [1-3, 5-6, 4], capacity: 50MiB}
  west:
    brokersets:
      b: {brokers: [9, 8]}
"""


def test_several_sequences_make_one_brokerset() -> None:
    [a] = parsed(GOOD).of_cluster("east")
    assert (a.name, a.brokers, a.capacity) == ("a", (1, 2, 3, 4, 5, 6), 50 << 20)
    assert a.by_zone == {"az1": (1, 4), "az2": (2, 5), "az3": (3, 6)}


def test_without_zones_each_broker_is_one() -> None:
    [b] = parsed(GOOD).of_cluster("west")
    assert list(b.by_zone.values()) == [(8,), (9,)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (GOOD.replace("[2, 5]", "[2, 5, 4]"), "broker 4 is in two zones"),
        (GOOD.replace("5-6, 4]", "5-6, 9]"), "brokersets.a: broker 9 is in no zone"),
        (GOOD.replace("5-6, 4]", "3-6]"), "broker 3 appears twice"),
        (GOOD.replace("5-6, 4]", "6-5]"), "'6-5' must be a broker's number, or a sequence"),
        (GOOD.replace("5-6, 4]", "true]"), "True must be a broker's number"),
        (GOOD.replace("[9, 8]", "1-6"), "must be a list of brokers"),
        (GOOD.replace("[9, 8]", "[0-999999999]"), "more than 10,000 brokers"),
        (GOOD.replace("[9, 8]", "[]"), "at least 1 item"),
        (GOOD.replace("capacity", "capacty"), "did you mean capacity?"),
        (GOOD.replace("east", "ea/st"), "clusters"),
    ],
)
def test_what_is_wrong_is_named(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(text)
    assert told in str(caught.value)


def test_a_cluster_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="has no north; there are east, west"):
        parsed(GOOD).of_cluster("north")
