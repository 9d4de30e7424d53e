"""Index files that are made from a run's batches: what they say is true, and they depend on the bytes alone."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from tests.support.txn_index import txn_entries
from tests.tidemark.kafka_log.build import Record, batch, marker, transactional
from tidemark.kafka_log import OpenTransaction, confirms_cut, parse_offset_index, parse_time_index, scan_batches
from tidemark.kafka_log.indexes import DerivedIndexes

T0 = 1_770_000_000_000


def indexes(content: bytes, base: int, *open_before: OpenTransaction) -> dict[str, bytes]:
    """The files by extension."""
    made = DerivedIndexes(base, len(content), open_before)
    for header in scan_batches([content], "content", base):
        made.add(header, content[header.position : header.end])
    return dict(made.files())


def run_of(rng: random.Random, base: int, count: int) -> bytes:
    """Batches of various sizes, some with times that go back."""
    batches, offset = [], base
    for _ in range(count):
        records = [Record(delta, T0 + rng.randrange(10**6), value=bytes(rng.randrange(3000))) for delta in range(3)]
        batches.append(batch(offset, records))
        offset += 3
    return b"".join(batches)


def test_each_entry_names_a_batch_and_the_times_are_running_maxima(rng: random.Random) -> None:
    base = 1000
    content = run_of(rng, base, 60)
    headers = list(scan_batches([content], "content", base))
    made = indexes(content, base)
    entries = parse_offset_index(made["index"], base, len(content), "index")
    assert len(entries) * 8 == len(made["index"])
    assert len(entries) > 10
    for entry in entries:
        assert confirms_cut(content[entry.position :][:61], entry, base, len(content))
    positions = [0, *(entry.position for entry in entries)]
    assert all(after - before > 4096 for before, after in pairwise(positions))
    times = parse_time_index(made["timeindex"], base, headers[-1].next_offset, "timeindex")
    assert len(times) * 12 == len(made["timeindex"])
    for timestamp, offset in times:
        assert timestamp == max(one.max_timestamp for one in headers if one.base_offset <= offset)
    assert times[-1][0] == max(one.max_timestamp for one in headers)


@pytest.mark.parametrize(("batches", "entries"), [(1, 0), (2, 1), (3, 1), (4, 3), (5, 4)])
def test_there_are_never_two_entries(batches: int, entries: int) -> None:
    """Pinterest's consumer would search for ever: ``tests/uploader_agent/test_pinterest.py``."""
    content = b"".join(batch(1000 + number, [Record(0, T0, value=bytes(5000))]) for number in range(batches))
    found = parse_offset_index(indexes(content, 1000)["index"], 1000, len(content), "index")
    assert [entry.last_offset for entry in found] == list(range(1001, 1001 + entries))


def test_the_entries_of_a_large_run_are_further_apart(rng: random.Random) -> None:
    content = run_of(rng, 0, 60)
    few = DerivedIndexes(0, 1 << 30)
    for header in scan_batches([content], "content", 0):
        few.add(header, b"")
    index = dict(few.files())["index"]
    positions = [entry.position for entry in parse_offset_index(index, 0, len(content), "index")]
    assert 0 < len(positions) < len(indexes(content, 0)["index"]) // 8
    assert all(after - before > 1 << 14 for before, after in pairwise([0, *positions]))


@pytest.mark.parametrize("begun", ["in the run", "before it"])
def test_aborted_transactions_are_those_whose_markers_are_in_the_run(begun: str) -> None:
    before = transactional(0, 7, 10) + transactional(10, 8, 10)
    content = marker(20, 7, commit=False) + marker(21, 8, commit=True) + transactional(22, 9, 8)
    if begun == "in the run":
        made = indexes(before + content, 0)
    else:
        made = indexes(content, 20, OpenTransaction(7, 0, 0), OpenTransaction(8, 0, 10))
    assert txn_entries(made["txnindex"]) == [(7, 0, 20, 10)]


def test_without_an_abort_there_is_no_index_of_aborts() -> None:
    content = transactional(0, 7, 10) + marker(10, 7, commit=True) + marker(11, 8, commit=False)
    assert indexes(content, 0).keys() == {"index", "timeindex"}, "of producer 8 the partition has no data"
