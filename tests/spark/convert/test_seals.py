"""Tables made of many small sealed segments have the rows and classes of a table made of one large segment."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.spark.audit.test_audit import audited
from tests.spark.world import World
from tests.tidemark.remote.model import Log, compact
from tests.tidemark.remote.test_catalog_random import grow


def stored(world: World, log: Log, first: int, after: int, cuts: Iterable[int], *, compacted: bool) -> None:
    """Store the batches ``[first, after)`` of ``log`` as seals that begin at the batches with the numbers ``cuts``."""
    known = world.raw.partition()
    lineage = tuple(one for one in log.lineage if one[1] < log.end)
    known.lineage, known.leader_epoch = lineage, lineage[-1][0]
    batches = log.batches[first:after]
    end = log.batches[after].base if after < len(log.batches) else log.end
    aborted = [(one.producer, one.first, one.last) for one in log.aborts() if batches[0].base <= one.last < end]
    bodies = [one.raw for one in batches]
    world.raw.seals(bodies, (cut - first for cut in cuts), aborted=aborted, compacted=compacted, end=end)


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("number", [0, *(pytest.param(one, marks=pytest.mark.full) for one in range(1, 6))])
def test_a_table_of_seals_is_that_of_one_segment(
    tmp_path: Path, rng: random.Random, number: int, compacted: bool
) -> None:
    log = Log("a", [])
    grow(rng, log, 1)
    log.grow(rng, 50)
    if compacted:
        taken = compact(log, rng)
        log = replace(log, batches=[one for one in log.batches if one.base not in taken])
    count = len(log.batches)
    large, at_once, in_steps = (World(tmp_path / name) for name in ("large", "at-once", "in-steps"))
    stored(large, log, 0, count, (), compacted=compacted)
    large.land()
    stored(at_once, log, 0, count, rng.sample(range(1, count), 20), compacted=compacted)
    at_once.land()
    bounds = [0, *sorted(rng.sample(range(1, count), 4)), count]
    for first, after in pairwise(bounds):
        stored(in_steps, log, first, after, range(first + 1, after), compacted=compacted)
        in_steps.land()
    expected = large.rows()
    assert expected
    for world in (at_once, in_steps):
        assert world.rows() == expected
        assert world.classes() == large.classes()
        states = [one.ledger.by_partition[0, 0] for one in (world, large)]
        assert len({(state.next_offset, state.held_by) for state in states}) == 1
        report = audited(world)
        assert report.passed, report.text()
