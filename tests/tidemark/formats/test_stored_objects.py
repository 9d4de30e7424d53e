"""What is written is read back the same; what is damaged is refused by key, field and rule."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import FormatError, LaterFormat
from tidemark.formats.base import StoredObject, check_format
from tidemark.formats.raw import watermark as wm
from tidemark.formats.raw.gaps import Acknowledgement, Gap
from tidemark.formats.raw.incarnations import TopicIncarnations
from tidemark.formats.raw.manifest import ObjectSum, ReferredLog, SegmentDamage, SegmentManifest
from tidemark.formats.raw.watermark_index import IndexEntry, WatermarkIndex, merge
from tidemark.formats.table.ledger import ATTEMPT_TRANSACTION, LEDGER_TRANSACTION
from tidemark.formats.table.statuses import ScanStatus
from tidemark.store import open_store
from tidemark.timestamps import utc_now

NOW = datetime(2026, 11, 20, 12, 0, 0, 123000, UTC)
offsets = st.integers(0, 2**62)
times = st.datetimes(timezones=st.just(UTC))
gaps = st.builds(
    lambda start, size, reason, at: Gap(**{"from": start, "to": start + size}, reason=reason, detected_at=at),
    offsets,
    st.integers(1, 1000),
    st.sampled_from(["deleted_before_upload", "unclean_election", "unknown"]),
    times,
)
watermarks = st.builds(
    wm.Watermark,
    topic_id=st.none() | st.just("0123456789abcdefghij_-"),
    start_offset=offsets,
    leader_epoch=st.integers(-1, 2**31 - 1),
    next_offset=offsets,
    ranges_above=st.lists(st.tuples(offsets, offsets), max_size=3).map(tuple),
    lineage=st.lists(st.tuples(st.integers(0, 100), offsets), max_size=3).map(tuple),
    gaps=st.lists(gaps, max_size=3).map(tuple),
    acknowledged_gaps=st.lists(gaps, max_size=2).map(tuple),
    broker=st.integers(0, 5000),
    written_at=times,
)


@given(offsets, watermarks)
def test_watermarks_round_trip(base: int, watermark: wm.Watermark) -> None:
    body = wm.render(base, watermark)
    assert wm.parse(body, "offset.wm") == (base, watermark)
    assert body[:20] == f"{base:020d}".encode()  # what Pinterest's consumer reads: the first line alone
    assert body.split(b"\n")[0].decode() == f"{base:020d}"
    assert wm.render(*wm.parse(body, "offset.wm")) == body  # type: ignore[arg-type]


def test_pinterests_own_watermark_has_one_line() -> None:
    assert wm.parse(b"00000000000000000100", "offset.wm") == (100, None)


@pytest.mark.parametrize("body", [b"", b"100", b"-0000000000000000100", b"0000000000000000010x", b"\xff" * 20])
def test_a_watermark_without_digits_is_refused(body: bytes) -> None:
    with pytest.raises(FormatError, match=r"a/offset\.wm: line 1 must be 20 digits"):
        wm.parse(body, "a/offset.wm")


def test_a_damaged_second_line_is_refused_by_field() -> None:
    with pytest.raises(FormatError, match=r"a/offset\.wm: .*next_offset: Field required"):
        wm.parse(b"00000000000000000100\n{}", "a/offset.wm")
    with pytest.raises(FormatError, match=r"a/offset\.wm: object: Invalid JSON"):
        wm.parse(b"00000000000000000100\n{", "a/offset.wm")


def watermark(epoch: int, next_offset: int, topic_id: str = "A" * 22) -> wm.Watermark:
    return wm.Watermark(
        topic_id=topic_id,
        start_offset=0,
        leader_epoch=epoch,
        next_offset=next_offset,
        lineage=((0, 0),),
        broker=1,
        written_at=NOW,
    )


def test_watermarks_never_go_backwards_within_an_epoch() -> None:
    assert watermark(1, 10).supersedes(None)
    assert watermark(1, 10).supersedes(watermark(1, 10))
    assert watermark(2, 5).supersedes(watermark(1, 10)), "a later epoch may truncate"
    assert not watermark(1, 9).supersedes(watermark(1, 10))
    assert not watermark(0, 99).supersedes(watermark(1, 10)), "an old leader that still believes"
    assert watermark(0, 0, "B" * 22).supersedes(watermark(5, 10)), "another topic id is another log"


SUM = {"size": 5, "crc32c": "0a0b0c0d", "etag": '"x"'}
REFERS = {**SUM, "store": "s3://tier", "key": "orders-x/0/y.log", "owner": "kafka"}
DAMAGE = {"position": 1, "offset": 2, "rule": "CRC"}


def manifest(**changes: object) -> SegmentManifest:
    values: dict[str, object] = {
        "cluster": "c",
        "topic": "t",
        "topic_id": "A" * 22,
        "partition": 0,
        "base_offset": 10,
        "last_batch_end": 20,
        "next_offset": 25,
        "lineage": [[0, 0], [3, 15]],
        "first_timestamp": 1,
        "max_timestamp": None,
        "batch_count": 3,
        "magics": [2],
        "codecs": ["zstd"],
        "open_transactions": [{"producer_id": 1, "producer_epoch": 0, "first_offset": 12}],
        "log_start_offset": 0,
        "high_watermark": 25,
        "last_stable_offset": None,
        "offsets_from": "broker",
        "cleanup_policy": "delete",
        "rotated_at": NOW,
        "uploaded_at": NOW,
        "broker": 1,
        "agent_version": "0.1.0",
        "state": "whole",
        "objects": {"00000000000000000010.log": {"size": 5, "crc32c": "0a0b0c0d", "etag": '"x"'}},
    }
    return SegmentManifest.model_validate(values | changes)


def test_manifests_round_trip() -> None:
    one = manifest()
    assert SegmentManifest.from_bytes(one.to_bytes(), "k") == one
    assert one.to_bytes() == SegmentManifest.from_bytes(one.to_bytes(), "k").to_bytes()
    assert one.objects["00000000000000000010.log"] == ObjectSum(size=5, crc32c="0a0b0c0d", etag='"x"')
    assert not one.compacted
    assert manifest(cleanup_policy="compact,delete").compacted


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"last_batch_end": 26}, "must not decrease"),
        ({"next_offset": 9}, "must not decrease"),
        ({"state": "corrupt"}, "if and only if"),
        ({"damage": SegmentDamage(position=1, offset=2, rule="CRC").model_dump()}, "if and only if"),
        ({"format": 3}, "format"),
        ({"refers": REFERS}, "refers needs format 2"),
        ({"refers": REFERS, "format": 2, "state": "corrupt", "damage": DAMAGE}, "refers needs format 2"),
        ({"refers": REFERS, "format": 2}, "refers needs format 2"),
        ({"refers": {**REFERS, "owner": "nobody"}, "format": 2}, "owner"),
        ({"objects": {"x": {"size": 1, "crc32c": "XYZ", "etag": ""}}}, "crc32c"),
    ],
)
def test_manifests_that_contradict_themselves_are_refused(changes: dict[str, object], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        manifest(**changes)


def test_a_manifest_that_refers_to_a_log_needs_a_later_version() -> None:
    own = manifest()
    referring = own.model_copy(update={"objects": {}}).referring(ReferredLog.model_validate(REFERS))
    assert SegmentManifest.from_bytes(referring.to_bytes(), "k") == referring
    assert (referring.format, referring.needs) == (2, "1.1.0")
    assert referring.log == referring.sums["00000000000000000010.log"] == ReferredLog.model_validate(REFERS)
    renewed = referring.with_sums({"00000000000000000010.log": ObjectSum(size=5, crc32c="0a0b0c0d", etag='"y"')})
    assert renewed.refers is not None
    assert (renewed.refers.etag, renewed.refers.key, renewed.objects) == ('"y"', "orders-x/0/y.log", {})
    assert own.log == own.objects["00000000000000000010.log"]
    assert own.referring(None) == own
    with pytest.raises(LaterFormat, match=r"install Tidemark 1\.1\.0 or newer"):
        check_format("k", "SegmentManifest", referring.format, 1, referring.needs)


def test_readers_ignore_what_a_newer_writer_adds() -> None:
    body = manifest().to_bytes()[:-1] + b',"added_later":1}'
    assert SegmentManifest.from_bytes(body, "k") == manifest()


def test_incarnations_keep_their_order_and_places() -> None:
    first = TopicIncarnations(topic="orders").with_topic_id("A" * 22, NOW)
    again = first.with_topic_id("B" * 22, utc_now())
    assert first.with_topic_id("A" * 22, utc_now()) == first
    assert [one.place for one in again.incarnations] == ["orders", f"orders@{'B' * 22}"]
    assert again.incarnations[0].ended_at is not None
    found = again.find("B" * 22)
    assert found is not None
    assert found[0] == 1
    assert TopicIncarnations.from_bytes(again.to_bytes(), "k") == again


def entry(epoch: int, next_offset: int, incarnation: int = 0) -> IndexEntry:
    return IndexEntry(
        topic="t",
        partition=0,
        topic_id="A" * 22,
        incarnation=incarnation,
        leader_epoch=epoch,
        next_offset=next_offset,
        uploaded_end=next_offset,
        log_end_offset=next_offset,
        high_watermark=next_offset,
        observed_at=NOW,
    )


def index(broker: int, *entries: IndexEntry) -> WatermarkIndex:
    return WatermarkIndex(cluster="c", broker=broker, agent_version="0", written_at=NOW, entries=entries)


@pytest.mark.parametrize(
    ("left", "right"),
    [(entry(1, 5), entry(1, 6)), (entry(1, 9), entry(2, 3)), (entry(7, 900), entry(0, 1, incarnation=1))],
)
def test_the_newest_index_entry_counts(left: IndexEntry, right: IndexEntry) -> None:
    for pair in ((index(1, left), index(2, right)), (index(2, right), index(1, left))):
        assert list(merge(pair).values()) == [right]


def test_index_and_acknowledgement_round_trip() -> None:
    one = index(1, entry(1, 5))
    assert WatermarkIndex.from_bytes(one.to_bytes(), "k") == one
    place = {"cluster": "east", "place": "orders", "partition": 0}
    said = {"from": 3, "to": 9, "by": "ann", "written_as": "ann@host", "at": NOW, "reason": "disk died"}
    word = Acknowledgement.model_validate({**place, **said})
    assert Acknowledgement.from_bytes(word.to_bytes(), "k") == word
    assert b'"from":3' in word.to_bytes()


def test_errors_name_the_key() -> None:
    with pytest.raises(FormatError, match=r"s3://raw/x\.json: object: Invalid JSON"):
        StoredObject.from_bytes(b"{", "s3://raw/x.json")


def test_an_object_that_is_not_there_is_none_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    assert ScanStatus.load_or_none(store, "a") is None
    assert ScanStatus.load_version_or_none(store, "a") is None
    status = ScanStatus(cluster="east", at=NOW)
    etag = store.put("a", status.to_bytes())
    assert ScanStatus.load_or_none(store, "a") == status
    assert ScanStatus.load_version_or_none(store, "a") == (status, etag)
    store.put("a", b"{}")
    with pytest.raises(FormatError, match="a: cluster: Field required"):
        ScanStatus.load_or_none(store, "a")


def test_the_names_in_a_table_s_log_stay() -> None:
    """They are in every table that there is: whoever looks for another name finds no ledger, and lands all again."""
    assert (LEDGER_TRANSACTION, ATTEMPT_TRANSACTION) == ("tidemark.ledger", "tidemark.attempt")
