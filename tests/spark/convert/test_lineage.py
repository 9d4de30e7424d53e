"""Which batches of a window are live: as the lineage says for each, whatever compaction has moved."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tidemark.decode import HEADER_DTYPE
from tidemark.formats.table.plan import PartitionPlan
from tidemark.kafka_log import Lineage
from tidemark.store import StoreOptions
from tidemark_spark.convert.classify import PartitionRules


def live(lineage: tuple[tuple[int, int], ...], batches: list[tuple[int, int]], *, compacted: bool) -> list[bool]:
    """Of batches, (base offset, epoch), which are live."""
    plan = PartitionPlan(incarnation=0, topic_id=None, partition=0, start=0, end=99, leader_epoch=0, lineage=lineage)
    headers = np.zeros(len(batches), HEADER_DTYPE)
    headers["base_offset"] = [base for base, _ in batches]
    headers["leader_epoch"] = [epoch for _, epoch in batches]
    found: list[bool] = PartitionRules.of(plan, StoreOptions()).live(headers, compacted=compacted).tolist()
    return found


def test_a_batch_below_where_a_copy_notes_its_epoch_is_live() -> None:
    """A replica that copied a compacted log notes epoch 3 at 12, the first batch that there is left of it."""
    lineage = ((2, 0), (3, 12), (5, 30))
    batches = [(8, 2), (10, 3), (12, 3), (12, 2), (29, 3), (30, 3), (30, 5), (14, 4), (40, 7)]
    assert live(lineage, batches, compacted=True) == [True, True, True, False, True, False, True, False, False]
    assert not live(lineage, [(10, 3)], compacted=False)[0], "a damaged epoch, which no checksum covers"


@pytest.mark.parametrize("compacted", [False, True])
def test_below_the_lineage_no_batch_is_contradicted(compacted: bool) -> None:
    batches = [(3, 1), (9, -1), (10, 1), (10, -1), (10, 2)]
    assert live(((2, 10),), batches, compacted=compacted) == [True, True, False, False, True]
    assert live((), [(0, 4), (3, -1)], compacted=compacted) == [True, True]


def test_it_is_what_the_lineage_says(rng: random.Random) -> None:
    for _ in range(200):
        count = rng.randint(1, 5)
        entries = tuple(zip(sorted(rng.sample(range(9), count)), sorted(rng.sample(range(30), count)), strict=True))
        batches = [(rng.randrange(entries[0][1], 40), rng.randrange(-1, 10)) for _ in range(20)]
        lineage = Lineage(entries)
        assert live(entries, batches, compacted=True) == [lineage.is_live(base, epoch) for base, epoch in batches]
        assert live(entries, batches, compacted=False) == [lineage.epoch_at(base) == epoch for base, epoch in batches]
