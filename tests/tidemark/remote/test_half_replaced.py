"""A log that an agent replaced by a longer one, and whose manifest never followed: read as far as the manifest goes."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.raw_builder import RawBuilder
from tests.support.waiting import wait_until
from tests.tidemark.records.build import T0, Record, batch, marker, simple, transactional
from tests.tidemark.remote.reader import TP, Reader, records_of
from tests.tidemark.remote.test_reading_faults import hurry, interfered
from tests.tidemark.remote.world import RemoteStore
from tidemark.errors import PreconditionFailed
from tidemark.raw import prefix_proof
from tidemark.remote.reader.read_range import read_range
from tidemark.remote.topics import RemoteTopics

__all__ = ["hurry"]

SHORT = 40
"""Of so many batches the manifest tells."""


def data(base: int, word: str = "value") -> bytes:
    """A batch of three records, each a millisecond later than the one before."""
    return batch(base, [Record(one, T0 + base + one, b"k", f"{word}-{base + one}".encode()) for one in range(3)])


BATCHES = [data(3 * number) for number in range(60)]
OTHER = data(0, "other")
"""Sound, and under the same offsets and leader epoch as the first batch."""


@pytest.fixture(autouse=True)
def small(hurry: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pieces as well."""
    monkeypatch.setattr(prefix_proof, "PIECE_BYTES", 700)


def replaced(raw: RawBuilder, batches: list[bytes]) -> str:
    """The segment at 0 as an agent leaves it that ends before the manifest; the key of its log."""
    return raw.half_replace(batches, 0)


def stored(store: RemoteStore) -> RawBuilder:
    """[0, 120) in a segment with indexes, [120, 180) in another."""
    raw = store.raw()
    raw.index_every, raw.times = 300, True
    raw.segment(BATCHES[:SHORT])
    raw.segment(BATCHES[SHORT:])
    raw.publish()
    return raw


def offsets(records: list[Any]) -> list[int]:
    return [one.offset for one in records]


@pytest.mark.parametrize("start", [0, 57, 119])
def test_a_longer_log_is_read_as_far_as_its_manifest_goes(local_store: RemoteStore, start: int) -> None:
    """From its beginning and by its index, which is that of the longer one."""
    raw = stored(local_store)
    replaced(raw, BATCHES[: SHORT + 15])
    with Reader(local_store.storage()) as reader:
        reader.tier.read(TP, start)
        blocks = list(reader.blocks())
    assert offsets([one for block in blocks for one in records_of(block)]) == list(range(start, 180))
    assert 120 in {block.start for block in blocks}, "what lies behind is read from the next segment"


def test_a_range_of_a_longer_log_has_its_records(remote_store: RemoteStore) -> None:
    replaced(stored(remote_store), BATCHES)
    found = read_range("orders", 0, 100, 130, storage=remote_store.storage())
    assert found["kafka_value"].to_pylist() == [f"value-{offset}".encode() for offset in range(100, 130)]


def test_the_same_bytes_under_another_etag_are_read_without_reading_them_twice(local_store: RemoteStore) -> None:
    """As where a bucket was copied."""
    replaced(stored(local_store), BATCHES[:SHORT])
    storage, counting = local_store.counted()
    with Reader(storage) as reader:
        assert offsets(reader.read(0)) == list(range(180))
    assert not counting.requests["get_range"]


def test_a_version_is_proved_once(local_store: RemoteStore) -> None:
    raw = stored(local_store)
    replaced(raw, BATCHES)
    storage, counting = local_store.counted()
    heads: list[int] = []
    with Reader(storage) as reader:
        for start in (0, 33, 90, 0):
            if len(heads) == 3:
                replaced(raw, BATCHES[: SHORT + 1])
            assert offsets(reader.read(start)) == list(range(start, 180))
            heads.append(counting.requests["head"])
    assert heads == [1, 1, 1, 2]


@pytest.mark.parametrize("at", [1, pytest.param(2, marks=pytest.mark.full), 5])
def test_a_log_that_is_replaced_before_or_while_it_is_read_is_gone_on_with(remote_store: RemoteStore, at: int) -> None:
    raw = stored(remote_store)
    with Reader(interfered(remote_store, at, lambda: replaced(raw, BATCHES))) as reader:
        assert offsets(reader.read(0)) == list(range(180))
        assert reader.tier.counters.retries


def test_a_log_that_grows_again_and_again_is_gone_on_with(
    local_store: RemoteStore, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, lengths = stored(local_store), list(range(SHORT + 1, 60))
    reads = sorted(rng.sample(range(1, 12), 4))
    count = 0

    def before(read: Callable[..., Any]) -> Callable[..., Any]:
        def read_into(*args: Any) -> Any:
            nonlocal count
            count += 1
            if count in reads:
                replaced(raw, BATCHES[: lengths.pop(0)])
            return read(*args)

        return read_into

    with Reader(local_store.storage()) as reader:
        monkeypatch.setattr(reader.tier._requests, "read_into", before(reader.tier._requests.read_into))
        assert offsets(reader.read(0)) == list(range(180)), reads
    assert len(lengths) == 60 - SHORT - 1 - len(reads)


@pytest.mark.parametrize(
    "batches",
    [[OTHER, *BATCHES[1:]], [*BATCHES[:10]], [simple(3 * number, leader_epoch=4) for number in range(60)]],
    ids=["others", "fewer", "of another epoch"],
)
@pytest.mark.parametrize("at", [1, 4])
def test_other_bytes_and_fewer_are_refused(local_store: RemoteStore, batches: list[bytes], at: int) -> None:
    """Also if only those are others that were read already."""
    refuses(local_store, batches, at)


def test_other_bytes_are_refused_of_an_s3_server(s3_store: RemoteStore) -> None:
    refuses(s3_store, [OTHER, *BATCHES[1:]], 4)


def refuses(store: RemoteStore, batches: list[bytes], at: int) -> None:
    raw = stored(store)
    key = raw.keys().segment(0, "log")
    read: list[int] = []
    with Reader(interfered(store, at, lambda: replaced(raw, batches))) as reader:
        reader.tier.read(TP, 0)
        rule = rf"{key}: is another version now, which does not begin with the \d+ bytes .*; while reading orders-0 at"
        with pytest.raises(PreconditionFailed, match=rule):
            read.extend(one.offset for block in reader.blocks() for one in records_of(block))
        assert read == list(range(len(read)))
        assert len(read) < 120
        assert offsets(reader.read(120)) == list(range(120, 180)), "what is not touched can be read"


def test_a_version_is_refuted_once(local_store: RemoteStore) -> None:
    replaced(stored(local_store), [OTHER, *BATCHES[1:]])
    storage, counting = local_store.counted()
    with Reader(storage) as reader:
        with pytest.raises(PreconditionFailed):
            reader.read(0)
        pieces = -(-sum(map(len, BATCHES[:SHORT])) // 700)
        assert counting.requests["get_range"] == pieces


def test_a_manifest_that_follows_after_all_is_taken(local_store: RemoteStore) -> None:
    raw = stored(local_store)
    replaced(raw, BATCHES)
    with Reader(local_store.storage()) as reader:
        assert offsets(reader.read(0)) == list(range(180))
        raw.segment([OTHER, *BATCHES[1:]], base=0)
        assert [one.value for one in reader.read(0)[:3]] == [b"other-0", b"other-1", b"other-2"]


def test_a_manifest_that_follows_at_once_spares_the_proof(
    local_store: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = stored(local_store)
    manifests = ["", raw.keys().segment(0, "manifest.json")]
    storage, counting = local_store.counted()
    with Reader(storage) as reader:
        assert len(reader.read(0)) == 180
        replaced(raw, BATCHES)
        counting.reset()
        inner = counting._inner

        def get(key: str, **options: Any) -> Any:
            """The manifest as it was; the next look finds the one that followed."""
            found = inner.get(key, **options)
            if key == manifests[-1]:
                manifests.pop()
                raw.segment(BATCHES, base=0)
            return found

        monkeypatch.setattr(counting, "get", get, raising=False)
        assert offsets(reader.read(0)) == list(range(180))
        assert not counting.requests["head"]
        assert manifests == [""]


def test_a_manifest_of_another_branch_is_waited_for(local_store: RemoteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only while ranges are read: also where it is looked for the first byte of an offset."""
    raw = stored(local_store)
    others = [data(3 * number, "other") for number in range(SHORT)]
    replaced(raw, others)
    storage, counting = local_store.counted()
    inner, looks = counting._inner, 0

    def get(key: str, **options: Any) -> Any:
        nonlocal looks
        if key.endswith(f"{0:020d}.manifest.json"):
            looks += 1
            if looks == 8:
                raw.segment(others, base=0)
        return inner.get(key, **options)

    monkeypatch.setattr(counting, "get", get, raising=False)
    with Reader(storage) as reader:
        assert [one.value for one in reader.read(100)[:20]] == [f"other-{at}".encode() for at in range(100, 120)]


def test_closing_ends_a_proof(local_store: RemoteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(stored(local_store), BATCHES)
    storage, counting = local_store.counted()
    pieces, closing, closed = 0, threading.Event(), threading.Event()

    def get_range(*args: Any, **options: Any) -> bytes:
        nonlocal pieces
        pieces += 1
        closing.set()
        assert closed.wait(30)
        return local_store.store.get_range(*args, **options)

    monkeypatch.setattr(counting, "get_range", get_range, raising=False)
    before = set(threading.enumerate())
    with Reader(storage) as reader:
        reader.tier.read(TP, 0)
        assert closing.wait(30)
        end = reader.tier._requests.close

        def close() -> None:
            end()
            closed.set()

        monkeypatch.setattr(reader.tier._requests, "close", close)
    wait_until(lambda: not set(threading.enumerate()) - before, what="the reader's threads to end")
    assert pieces == 1


@pytest.mark.parametrize("markers", [True, False])
def test_times_are_found_in_a_longer_log(local_store: RemoteStore, markers: bool) -> None:
    """By a ``.timeindex`` that is that of the longer one."""
    raw = stored(local_store)
    calm = RemoteTopics(local_store.storage()).partition("orders", 0)
    assert calm is not None
    times = [T0 + 1, T0 + 58, T0 + 117, T0 + 119, T0 + 120, T0 + 150, T0 + 180]  # the last is none's
    before = [calm.offset_for_time(one, markers=markers) for one in times]
    replaced(raw, BATCHES[: SHORT + 15])
    found = RemoteTopics(local_store.storage()).partition("orders", 0)
    assert found is not None
    assert [found.offset_for_time(one, markers=markers) for one in times] == before
    assert len(set(before)) == len(times)


def transactions(store: RemoteStore) -> RawBuilder:
    """[0, 6) open, undecided until the second segment; the third is apart."""
    raw = store.raw()
    raw.segment([transactional(0, 7, 3), transactional(3, 8, 3)])
    raw.segment([simple(6, 1), marker(7, 7, commit=False)], aborted=[(7, 0, 7)])
    raw.segment([marker(8, 8, commit=True), simple(9, 1)])
    raw.publish()
    return raw


def test_aborts_are_those_of_the_manifest(local_store: RemoteStore) -> None:
    """A ``.txnindex`` that has grown lists the marker of a branch that the log has left: it does not count."""
    raw = transactions(local_store)
    path = raw.keys().segment(6, "txnindex")
    listed = raw.store.get(path).body
    foreign = listed[:2] + b"".join(one.to_bytes(8) for one in (8, 3, 8, 9))
    raw.store.put(path, listed + foreign)
    with Reader(local_store.storage()) as reader:
        assert offsets(reader.read(0)) == [3, 4, 5, 6, 9]


def test_aborts_of_another_branch_are_refused(local_store: RemoteStore) -> None:
    raw = transactions(local_store)
    path = raw.keys().segment(6, "txnindex")
    listed = raw.store.get(path).body
    raw.store.put(path, listed[:2] + b"".join(one.to_bytes(8) for one in (8, 3, 7, 8)))
    with Reader(local_store.storage()) as reader:
        with pytest.raises(PreconditionFailed, match=rf"{path}: does not begin with the 34 bytes"):
            reader.read(0)
        raw.store.put(path, listed)
        assert offsets(reader.read(0)) == [3, 4, 5, 6, 9]


def test_it_is_said_what_is_done(local_store: RemoteStore, caplog: pytest.LogCaptureFixture) -> None:
    key = replaced(stored(local_store), BATCHES)
    with caplog.at_level(logging.INFO), Reader(local_store.storage()) as reader:
        reader.read(0)
    assert any(key in one.getMessage() and "begins with" in one.getMessage() for one in caplog.records)
