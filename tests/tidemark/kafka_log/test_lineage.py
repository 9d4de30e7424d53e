from __future__ import annotations

import itertools
import random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import FormatError
from tidemark.kafka_log import Lineage

UNCLEAN_OLD = Lineage(((0, 0),))
UNCLEAN_NEW = Lineage(((0, 0), (1, 3000)))
BACK_AGAIN = Lineage(((0, 0), (2, 6000)))


@st.composite
def lineages(draw: st.DrawFn) -> Lineage:
    epochs = draw(st.lists(st.integers(0, 9), unique=True, max_size=6))
    starts = draw(st.lists(st.integers(0, 30), unique=True, min_size=len(epochs), max_size=len(epochs)))
    return Lineage(tuple(zip(sorted(epochs), sorted(starts), strict=True)))


def test_epochs_by_offset() -> None:
    lineage = Lineage(((2, 10), (5, 20)))
    assert [lineage.epoch_at(offset) for offset in (0, 9, 10, 19, 20, 10**9)] == [None, None, 2, 2, 5, 5]
    assert Lineage().epoch_at(0) is None


@pytest.mark.parametrize(
    ("epoch", "answer"), [(1, (1, 10)), (2, (2, 20)), (3, (2, 20)), (4, (2, 20)), (5, (5, 77)), (6, None)]
)
def test_the_end_of_an_epoch_is_as_kafka_has_it(epoch: int, answer: tuple[int, int] | None) -> None:
    assert Lineage(((2, 10), (5, 20))).end_offset(epoch, 77) == answer


def test_an_empty_lineage_knows_no_end() -> None:
    assert Lineage().end_offset(0, 77) is None


def test_an_unclean_election_and_back() -> None:
    assert UNCLEAN_OLD.divergence(UNCLEAN_NEW) == 3000
    assert UNCLEAN_NEW.divergence(BACK_AGAIN) == 3000
    assert UNCLEAN_OLD.divergence(BACK_AGAIN, end=6000) is None
    assert BACK_AGAIN.is_live(3500, 0)
    assert not BACK_AGAIN.is_live(3500, 1)
    assert UNCLEAN_NEW.is_live(3500, 1)


def test_a_prefix_does_not_diverge_below_its_end() -> None:
    longer = Lineage(((0, 0), (3, 500), (4, 900)))
    assert Lineage(((0, 0),)).divergence(longer, end=500) is None
    assert Lineage(((0, 0),)).divergence(longer, end=501) == 500


def test_what_retention_took_from_a_lineage_proves_nothing() -> None:
    assert Lineage(((5, 1000),)).divergence(Lineage(((0, 0), (5, 800)))) is None
    assert Lineage(((6, 1000),)).divergence(Lineage(((0, 0), (5, 800)))) == 1000
    assert Lineage().divergence(UNCLEAN_OLD) is None


def test_messages_without_an_epoch_lie_where_no_lineage_knows() -> None:
    lineage = Lineage(((3, 100),))
    assert lineage.is_live(50, -1)
    assert not lineage.is_live(100, -1)
    assert not lineage.is_live(50, 3)


@given(lineages(), st.integers(0, 30), st.integers(1, 6), st.integers(-1, 9))
def test_a_batch_is_live_up_to_where_the_log_was_cut_within_it(
    lineage: Lineage, base: int, size: int, epoch: int
) -> None:
    live = list(itertools.takewhile(lambda at: lineage.is_live(at, epoch), range(base, base + size)))
    assert lineage.live_end(base, base + size, epoch) == base + len(live)


def test_history_goes_on_below() -> None:
    assert Lineage(((5, 1000),)).with_history(Lineage(((0, 0), (5, 800)))) == Lineage(((0, 0), (5, 800)))
    assert Lineage(((5, 1000), (6, 2000))).with_history(Lineage(((0, 0), (3, 800), (4, 1500)))) == Lineage(
        ((0, 0), (3, 800), (5, 1000), (6, 2000))
    )
    assert Lineage(((5, 1000),)).with_history(Lineage(((0, 0), (6, 900)))) == Lineage(((0, 0), (5, 1000)))
    assert Lineage().with_history(UNCLEAN_NEW) == UNCLEAN_NEW
    assert UNCLEAN_NEW.with_history(Lineage()) == UNCLEAN_NEW


def test_json_and_back() -> None:
    assert UNCLEAN_NEW.to_json() == [[0, 0], [1, 3000]]
    assert Lineage.from_json([[0, 0], [1, 3000]], "f") == UNCLEAN_NEW


@pytest.mark.parametrize(
    "value", [None, {}, [[0]], [[0, 0, 0]], [[0, "0"]], [[0, True]], [0], [[1, 0], [1, 5]], [[0, 0], [1, 0]], [[-1, 0]]]
)
def test_other_json_is_refused(value: object) -> None:
    with pytest.raises(FormatError):
        Lineage.from_json(value, "f")


class Branches(NamedTuple):
    """The epochs of two logs by offset, which are the same below ``fork``."""

    left: list[int]
    right: list[int]
    fork: int


@st.composite
def branches(draw: st.DrawFn) -> Branches:
    left: list[int] = []
    for epoch in sorted(draw(st.sets(st.integers(0, 9), min_size=1, max_size=5))):
        left += [epoch] * draw(st.integers(1, 6))
    fork = draw(st.integers(0, len(left)))
    right = left[:fork]
    for epoch in sorted(draw(st.sets(st.integers(10, 15), max_size=3))):
        right += [epoch] * draw(st.integers(1, 6))
    return Branches(left, right, fork)


def lineage_of(epochs: list[int], log_start: int = 0, moved: int = 0) -> Lineage:
    """As a broker notes it whose log starts at ``log_start``.

    ``moved`` is how many batches the cleaner had removed at the start of an epoch before a replica copied the log.
    """
    entries: list[tuple[int, int]] = []
    for epoch in sorted(set(epochs[log_start:])):
        start, count = max(log_start, epochs.index(epoch)), epochs.count(epoch)
        entries.append((epoch, start + min(moved, count - 1 if epoch != epochs[log_start] else 0)))
    return Lineage(tuple(entries))


@given(branches(), st.integers(0, 10), st.integers(0, 10))
def test_divergence_is_what_comparing_every_offset_finds(logs: Branches, left_start: int, right_start: int) -> None:
    left, right = lineage_of(logs.left, left_start), lineage_of(logs.right, right_start)
    end, start = min(len(logs.left), len(logs.right)), max(left_start, right_start)
    differing = [offset for offset in range(end) if logs.left[offset] != logs.right[offset]]
    known = next((offset for offset in differing if offset >= start), None)
    at = left.divergence(right, end)
    assert at == right.divergence(left, end)
    if at is None or at >= start:
        assert at == known
    else:
        assert at in differing, "below a first start, where an epoch is too new to be of the other log"


def test_an_epoch_below_a_first_start_cannot_be_newer() -> None:
    """The log has begun at 40 since, by retention, and returned to the branch of epoch 3 in between."""
    stored, log = Lineage(((2, 0), (4, 10))), Lineage(((3, 40), (5, 50)))
    assert stored.divergence(log, 20) == log.divergence(stored, 20) == 10
    assert stored.divergence(log, 10) is None
    assert Lineage(((2, 0), (3, 10))).divergence(log, 20) is None
    assert Lineage(((2, 0), (3, 10), (4, 15))).divergence(log, 20) == 15
    assert Lineage(((2, 0), (3, 10), (5, 50))).divergence(log) is None


@given(branches(), st.integers(0, 3), st.integers(0, 3))
def test_epochs_that_begin_later_on_a_copy_of_a_compacted_log_are_no_divergence(
    logs: Branches, left_moved: int, right_moved: int
) -> None:
    """Or they diverge where the logs do, or a few removed batches later."""
    left, right = lineage_of(logs.left, moved=left_moved), lineage_of(logs.right, moved=right_moved)
    end = min(len(logs.left), len(logs.right))
    at = left.divergence(right, end)
    assert at is None if logs.fork >= end else at is None or at >= logs.fork
    for offset in range(min(logs.fork, end)):
        assert left.is_live(offset, logs.right[offset])
        assert right.is_live(offset, logs.left[offset])


def test_an_epoch_that_begins_later_on_a_copy() -> None:
    leader, copy = Lineage(((0, 0), (1, 12))), Lineage(((0, 0), (1, 13)))
    assert leader.divergence(copy, 20) is None
    assert copy.is_live(12, 1)
    assert Lineage(((0, 0), (1, 13), (2, 18))).divergence(leader, 20) == 18


@given(lineages(), st.integers(0, 35))
def test_truncation_keeps_what_lies_below(lineage: Lineage, end: int) -> None:
    cut = lineage.truncated(end)
    assert [cut.epoch_at(offset) for offset in range(end)] == [lineage.epoch_at(offset) for offset in range(end)]
    assert all(start < end for _, start in cut.entries)


@pytest.mark.parametrize(
    ("epochs", "whole"),
    [
        ([(1, 6)], ((0, 0), (1, 6), (2, 9))),
        ([(1, 6), (2, 8)], ((0, 0), (1, 6), (2, 8))),
        ([(2, 10)], ((0, 0), (2, 9))),
        ([(-1, 0), (0, 0), (3, 20)], ((0, 0), (2, 9))),
        ([(1, 9)], ((0, 0), (2, 9))),
    ],
)
def test_batches_show_what_a_lineage_lacks(epochs: list[tuple[int, int]], whole: tuple[tuple[int, int], ...]) -> None:
    assert Lineage(((0, 0), (2, 9))).with_batches(epochs) == Lineage(whole)


def test_the_first_epoch_may_begin_below_the_log_start() -> None:
    """Which lies within its first batch; an older epoch is not told by one batch of it."""
    assert Lineage(((1, 5), (2, 9))).with_batches([(1, 3)]) == Lineage(((1, 3), (2, 9)))
    assert Lineage(((1, 5), (2, 9))).with_batches([(0, 3), (1, 7)]) == Lineage(((1, 5), (2, 9)))


@given(lineages(), st.data())
def test_a_lineage_is_whole_with_the_batches_that_it_lacks(lineage: Lineage, data: st.DataObject) -> None:
    ends = {lineage.entries[0], lineage.entries[-1]} if lineage.entries else set()
    known = [entry for entry in lineage.entries if entry in ends or data.draw(st.booleans())]
    assert Lineage(tuple(known)).with_batches(lineage.entries) == lineage


@given(lineages(), lineages())
def test_history_changes_nothing_that_was_known(newer: Lineage, older: Lineage) -> None:
    whole = newer.with_history(older)
    Lineage.of(whole.entries, "still a lineage")
    for offset in range(35):
        if newer.epoch_at(offset) is not None:
            assert whole.epoch_at(offset) == newer.epoch_at(offset)


@pytest.mark.parametrize(
    ("offset", "epochs"),
    [(0, [2, 3, 5]), (100, [2, 3, 5]), (199, [2, 3, 5]), (200, [3, 5]), (300, [5]), (1 << 40, [5])],
)
def test_a_lineage_since_an_offset_begins_with_the_epoch_there(offset: int, epochs: list[int]) -> None:
    lineage = Lineage(((2, 100), (3, 200), (5, 300)))
    assert [epoch for epoch, _ in lineage.since(offset).entries] == epochs
    assert Lineage().since(offset) == Lineage()


def test_logs_of_random_elections_and_restores_part_where_their_records_do(rng: random.Random) -> None:
    """After a restore epochs are given out again, from any offset; each record here has a number of its own."""
    for _ in range(200):
        log: list[int] = []
        lineage, number = Lineage(((0, 0),)), 0
        seen: list[tuple[Lineage, list[int]]] = []
        latest = 0
        for _ in range(rng.randint(2, 8)):
            cut = rng.randint(1, len(log)) if log and rng.random() < 0.7 else len(log)
            log, kept = log[:cut], lineage.truncated(cut) if cut else lineage
            if cut and rng.random() < 0.5:
                kept = kept.restored((*kept.restores, cut))
                latest = kept.entries[-1][0]
                elected = rng.random() < 0.5
            else:
                elected = cut > 0
            if elected:
                latest += 1
                kept = Lineage((*kept.entries, (latest, cut)), kept.restores)
            lineage = kept
            for _ in range(rng.randint(1, 4)):
                number += 1
                log.append(number)
            seen.append((lineage, list(log)))
        for (one, ours), (other, theirs) in itertools.product(seen, seen):
            end = min(len(ours), len(theirs))
            parted = next((offset for offset in range(end) if ours[offset] != theirs[offset]), None)
            assert one.divergence(other, end) == parted, (one, other)


def test_a_lineage_takes_no_history_from_beyond_a_restore() -> None:
    newer = Lineage(((4, 30),), (20, 25))
    assert newer.with_history(Lineage(((0, 0), (2, 10), (3, 22)))) == Lineage(((0, 0), (2, 10), (4, 30)), (20, 25))
    assert newer.with_history(Lineage(((0, 0), (3, 22)), (20,))) == Lineage(((0, 0), (3, 22), (4, 30)), (20, 25))
    assert Lineage().with_history(newer) == newer
    assert Lineage(restores=(5,)).with_history(Lineage(((0, 0), (1, 7)))) == Lineage(((0, 0),), (5,))


@pytest.mark.parametrize(
    ("restores", "offset", "below"),
    [((), 5, ()), ((3,), 2, ()), ((3,), 3, (3,)), ((3, 8), 5, (3,)), ((8, 3), 5, (8, 3)), ((8, 3, 9), 2, ())],
)
def test_an_offset_is_of_the_last_restore_at_or_below_it(
    restores: tuple[int, ...], offset: int, below: tuple[int, ...]
) -> None:
    assert Lineage(restores=restores).restores_below(offset) == below
