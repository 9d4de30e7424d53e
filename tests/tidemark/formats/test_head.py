"""Heads are read back as they were written, and are refused by key and field where they contradict themselves."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.support.bad_objects import BODIES, spoil
from tests.tidemark.formats.packing import CONTROL, NOON, entry
from tests.tidemark.remote.world import Counting
from tidemark.errors import FormatError, PreconditionFailed
from tidemark.formats import object_sizes
from tidemark.formats.base import canonical
from tidemark.formats.raw.head import MOST_ENTRY_BYTES, EntryKey, Head, HeadEntry, entry_json, render
from tidemark.formats.raw.pack import RangePointer
from tidemark.raw.heads import DamagedVersion, find_head, read_head
from tidemark.storage import ClusterStore
from tidemark.store import LocalStore
from tidemark.store.base import Fetched

KEY = "ts/_heads/east/5.json"


def head(*entries: HeadEntry, **changes: Any) -> Head:
    fields = {"cluster": "east", "broker": 5, "agent": "1.4.0", "written_at": NOON, "entries": entries}
    return Head.model_validate({**fields, **changes})


@st.composite
def entries(draw: st.DrawFn) -> HeadEntry:
    starts = sorted(draw(st.sets(st.integers(0, 2**60), min_size=1, max_size=4)))
    epochs = sorted(draw(st.sets(st.integers(0, 2**31), min_size=len(starts), max_size=len(starts))))
    end = starts[0] + draw(st.integers(1, 2**60))
    digits = draw(st.binary(min_size=16, max_size=16)).hex()
    return entry(
        end,
        RangePointer(pack=f"5/{digits}.pack", position=draw(st.integers(1, 2**26)), length=draw(st.integers(1, 2**16))),
        partition=draw(st.integers(0, 2**31)),
        epoch=epochs[-1],
        lineage=list(zip(epochs, starts, strict=True)),
        high_watermark=end + draw(st.integers(0, 2**60)),
        observed_at=draw(st.datetimes(timezones=st.just(UTC))),
        oldest_unstored=draw(st.floats(0, 1e9)),
    )


@given(st.lists(entries(), max_size=4, unique_by=lambda one: one.key))
def test_heads_round_trip(found: list[HeadEntry]) -> None:
    one = head(*found, agent='an "entries":[] of its own')
    key, body = render(one, CONTROL)
    assert key == KEY
    assert Head.from_bytes(body, key) == one
    assert body == canonical(one.model_dump(mode="json"))
    assert len(body) == len(one.model_copy(update={"entries": ()}).to_bytes()) + max(
        0, sum(len(entry_json(one)) + 1 for one in found) - 1
    )
    assert one.by_key == {entry.key: entry for entry in found}


def test_a_head_is_read_by_one_request_and_replaced_by_if_match(tmp_path: Path) -> None:
    store = Counting(LocalStore(tmp_path))
    assert read_head(ClusterStore(store, CONTROL), 5) is None
    key, body = render(head(), CONTROL)
    store.put(key, body, if_none_match=True)
    store.reset()
    found = read_head(ClusterStore(store, CONTROL), 5)
    assert store.requests == {"get": 1}
    assert found is not None
    assert found.value == head()
    key, body = render(head(entry()), CONTROL)
    store.put(key, body, if_match=found.etag)
    with pytest.raises(PreconditionFailed):
        store.put(key, body, if_match=found.etag)
    again = read_head(ClusterStore(store, CONTROL), 5)
    assert again is not None
    assert again.value.by_key == {EntryKey(entry().topic_id, 17, 3): entry()}


def test_one_topic_may_have_several_incarnations_and_epochs() -> None:
    other = entry(topic_id="A" * 22)
    later = entry(epoch=4, lineage=[(3, 1000), (4, 1100)])
    assert len(head(entry(), other, later, entry(partition=18)).by_key) == 4


WRONG = [
    ({"lineage": []}, r"entries\.0\.lineage"),
    ({"lineage": [(3, 1000), (2, 1100)]}, "lineage: epoch 2 from 1100 cannot follow 3 from 1000"),
    ({"lineage": [(2, 1000), (3, 1000)]}, "lineage: epoch 3 from 1000 cannot follow"),
    ({"lineage": [(-1, 900), (3, 1000)]}, "lineage: .* is not an epoch and its start offset"),
    ({"lineage": [(2, 900)]}, "lineage must end with epoch"),
    ({"lineage": [(3, 900), (4, 1000)]}, "lineage must end with epoch"),
    ({"tail_end": 900}, "tail_end must be above the lineage's start"),
    ({"high_watermark": 1259}, "tail_end must be above the lineage's start, and at or below high_watermark"),
    ({"topic": "a/b"}, r"entries\.0\.topic: .* is not a valid topic name"),
    ({"topic_id": None}, r"entries\.0\.topic_id"),
    ({"partition": -1}, r"entries\.0\.partition"),
    ({"epoch": -1}, r"entries\.0\.epoch"),
    ({"tail_end": 1 << 63}, r"entries\.0\.tail_end"),
    ({"tail_end": "far"}, r"entries\.0\.tail_end"),
    ({"observed_at": "2026-11-23T06:19:08"}, r"entries\.0\.observed_at"),
    ({"oldest_unstored": -0.1}, r"entries\.0\.oldest_unstored"),
    ({"last": None}, r"entries\.0\.last"),
    ({"last": {"pack": "5/x", "position": 1, "length": 1}}, r"entries\.0\.last\.pack: .* is not a pack"),
    ({"last": {"pack": f"5/{'0' * 32}.pack", "position": 1, "length": 0}}, r"entries\.0\.last\.length"),
    ({"last": {"pack": f"6/{'0' * 32}.pack", "position": 1, "length": 9}}, r"entries\.0\.last\.pack: is of broker 6"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "rule"), WRONG)
def test_entries_that_contradict_themselves_are_refused(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValidationError):
        head(entry(**changes))
    body = canonical(head().model_dump(mode="json") | {"entries": [entry().model_dump(mode="json") | changes]})
    with pytest.raises(FormatError, match=rf"^{KEY}: .*{rule}"):
        Head.from_bytes(body, KEY)


def test_a_second_entry_for_the_same_is_refused() -> None:
    twice = (entry(), entry(1300, topic="renamed"))
    with pytest.raises(ValidationError, match=r"entries\.1: a second entry for one topic id, partition and epoch"):
        head(*twice)


@pytest.mark.parametrize("changes", [{"broker": 6}, {"cluster": "west"}])
def test_a_head_under_anothers_key_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    store = LocalStore(tmp_path)
    store.put(KEY, head(**changes).to_bytes())
    with pytest.raises(FormatError, match=rf"^{KEY}: is of broker \d of \w+, but its key names another"):
        read_head(ClusterStore(store, CONTROL), 5)


@pytest.mark.parametrize("what", BODIES)
def test_whatever_lies_there_is_a_head_or_a_format_error(tmp_path: Path, what: str) -> None:
    spoil(tmp_path, KEY, what)
    with pytest.raises(FormatError, match=rf"^{KEY}: "):
        read_head(ClusterStore(LocalStore(tmp_path), CONTROL), 5)


def test_what_is_too_large_is_told_by_its_etag_unless_it_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever replaces what is damaged must replace that version, and its bytes are not received."""
    store = LocalStore(tmp_path)
    etag = store.put(KEY, b" " * (object_sizes.HEAD + 1))
    found = find_head(ClusterStore(store, CONTROL), 5)
    assert isinstance(found, DamagedVersion)
    assert found.etag == etag
    get = store.get

    def replaced(key: str, *, if_match: str | None = None, limit: int | None = None) -> Fetched:
        try:
            return get(key, if_match=if_match, limit=limit)
        finally:
            store.put(*render(head(), CONTROL))

    monkeypatch.setattr(store, "get", replaced)
    with pytest.raises(PreconditionFailed, match="replaced while it was read"):
        find_head(ClusterStore(store, CONTROL), 5)
    assert not isinstance(find_head(ClusterStore(store, CONTROL), 5), DamagedVersion)


def test_the_entries_that_fit_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """45,000 partitions, as the design has it; and the longest names beside the entries."""
    assert MOST_ENTRY_BYTES // (len(entry_json(entry(1 << 50, high_watermark=1 << 50))) + 1) > 45_000
    longest = head(cluster="c" * 100, agent="9" * 100, broker=(1 << 31) - 1)
    assert len(longest.to_bytes()) + MOST_ENTRY_BYTES <= object_sizes.HEAD
    monkeypatch.setattr(Head, "most_bytes", len(head(entry()).to_bytes()))
    render(head(entry()), CONTROL)
    told = rf"^{KEY}: entries: 2 take \d+ bytes with the rest, and may take \d+: leave partitions out, and seal them"
    with pytest.raises(FormatError, match=told):
        render(head(entry(), entry(partition=18)), CONTROL)
