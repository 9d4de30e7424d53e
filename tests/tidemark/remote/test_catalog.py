"""The catalogue's answers, case by case, and what they cost in requests; over a directory and a real S3 server."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests.support.many import OFFSETS, ManySegments
from tests.support.raw_builder import EPOCH, OBSERVED_AT, RawBuilder
from tests.support.s3 import S3Server, allow
from tests.tidemark.kafka_log.build import T0, Record, batch, legacy, marker, reseal, simple, transactional
from tests.tidemark.remote.reading import read
from tests.tidemark.remote.world import Counting, RemoteStore
from tidemark.endpoints import EndpointSettings
from tidemark.errors import AccessDenied, ConfigError, FormatError, GapError, NotFound, OutOfRange
from tidemark.formats.keys import SegmentName
from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.manifest import SegmentDamage
from tidemark.formats.raw.tombstones import Tombstone
from tidemark.remote import OffsetForTime, RemotePartition, RemoteTopics, Stretch
from tidemark.remote.segments import Aborts
from tidemark.storage import Storage
from tidemark.store.s3.clients import forget_clients
from tidemark.timestamps import stamp


def opened(storage: Storage, topic_id: str | None = None) -> RemotePartition:
    found = RemoteTopics(storage).partition("orders", 0, topic_id)
    assert found is not None
    return found


def stretch(part: RemotePartition, offset: int, *, committed: bool = False) -> Stretch:
    found = part.next_stretch(offset, committed=committed)
    assert isinstance(found, Stretch), found
    return found


def bury(raw: RawBuilder, start: int, end: int) -> None:
    """Retention's word that ``[start, end)`` goes."""
    keys = raw.keys()
    said = {
        "cluster": "east", "topic": "orders", "topic_id": "A" * 22, "incarnation": 0, "partition": 0,
        "from": start, "to": end, "by": "retention", "written_as": "ada@host", "at": raw.now, "window": "1d",
        "report": "r", "ledger_n": 1, "ledger_attempt": 1, "segments": [
            {"base_offset": start, "next_offset": end, "uploaded_at": raw.now, "manifest_etag": "x", "objects": {}}
        ],
    }  # fmt: skip
    key = raw._control.tombstone(keys.place, 0, start, end, stamp(raw.now))
    raw.store.put(key, Tombstone.model_validate(said).to_bytes())


def test_a_topic_that_no_agent_saw_is_not_there(remote_store: RemoteStore) -> None:
    topics = RemoteTopics(remote_store.storage())
    assert topics.partition("orders", 0) is None
    assert (topics.partitions_for_topic("orders"), topics.topics()) == (set(), set())


def test_a_partition_without_a_watermark_is_empty(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    raw.publish()
    part = opened(remote_store.storage())
    assert (part.start, part.end(committed=False), part.next_stretch(0, committed=False)) == (0, 0, None)
    raw.segment([simple(0)])
    raw.publish()
    part.refresh()
    assert stretch(part, 1).end == 3


def test_topics_partitions_and_what_agents_observed(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    raw.segment([simple(0)], 0)
    raw.segment([simple(0), simple(3)], 4)
    raw.publish()
    topics = RemoteTopics(remote_store.storage())
    assert (topics.topics(), topics.partitions_for_topic("orders")) == ({"orders"}, {0, 4})
    part = topics.partition("orders", 4)
    assert part is not None
    assert part.observed_log_end() == (6, OBSERVED_AT)


def test_what_an_agent_says_under_an_epoch_that_nobody_had_counts_for_nothing(remote_store: RemoteStore) -> None:
    raw, other = remote_store.raw(), RawBuilder(remote_store.store, prefix=remote_store.prefix, broker=7)
    raw.segment([simple(0)])
    other.segment([simple(0), simple(3)])
    other.partition().leader_epoch = 1 << 30
    other.publish()
    raw.publish()
    assert opened(remote_store.storage()).observed_log_end() == (3, OBSERVED_AT)


def test_what_a_partition_costs_in_requests(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    for number in range(30):
        raw.segment([simple(3 * number)])
    raw.publish()
    storage, store = remote_store.counted()
    part = opened(storage)
    store.reset()
    part.refresh()
    assert (store.requests["get"], store.requests["list"]) == (1, 1), store.keys
    assert store.requests["listed"] == 0
    assert stretch(part, 0).end == 3
    assert stretch(part, 3).segment.base == 3
    assert store.requests["get"] == 3, "a manifest for each segment that is read, and no index at its start"
    raw.segment([simple(90)])
    raw.publish()
    store.reset()
    part.refresh()
    assert store.requests["listed"] == 7, "the newest known segment's objects, the new one's, offset.wm"
    assert store.requests["get"] == 2, store.keys
    assert stretch(part, 90).end == 93


def test_a_seek_costs_a_few_small_requests_and_is_proved(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    raw.segment([simple(3 * number) for number in range(200)])
    raw.publish()
    storage, store = remote_store.counted()
    part = opened(storage)
    store.reset()
    found = stretch(part, 500)
    assert found.position > 4096
    assert store.requests == {"get": 1, "get_range": 1}, "the index, and the header that proves the cut"
    assert [row.offset for row in read(storage, found)] == list(range(500, 600))
    store.reset()
    assert stretch(part, 400).position > 4096
    assert store.requests == {"get_range": 1}


@pytest.mark.parametrize("body", [b"", b"\x00" * 80, b"\x00\x00\x00\x09\x00\x00\x00\x07" * 3, None])
def test_a_wrong_index_or_none_only_costs_reading(remote_store: RemoteStore, body: bytes | None) -> None:
    raw = remote_store.raw()
    raw.segment([simple(3 * number) for number in range(9)])
    raw.publish()
    key = raw.keys().segment(SegmentName(0), "index")
    if body is None:
        raw.store.delete(key)
    else:
        raw.store.put(key, body)
    storage = remote_store.storage()
    found = stretch(opened(storage), 20)
    assert [row.offset for row in read(storage, found)] == list(range(20, 27))


def test_ten_thousand_segments_are_listed_once(tmp_path: Path) -> None:
    many = ManySegments(tmp_path / "raw", 10_000, 1_000)
    counting = Counting(many)
    part = opened(Storage("east", EndpointSettings(url=many.url), opener=lambda _: counting))
    assert part.end(committed=False) == 10_000 * OFFSETS
    assert counting.requests["listed"] >= 40_000
    counting.reset()
    for number in (9_999, 17, 5_000):
        assert stretch(part, number * OFFSETS).segment.base == number * OFFSETS
        assert part.gap_at(number) is None
    part.refresh()
    assert (counting.requests["listed"], counting.requests["get"]) == (0, 3)  # 9,999 was read for what is open there


@pytest.mark.parametrize("by_watermark", [True, False])
def test_what_kafka_s_remote_tier_has_is_passed_over_only_without_kafka(
    remote_store: RemoteStore, *, by_watermark: bool
) -> None:
    """A person may let the table go on without it; who reads Kafka as well gets it there."""
    raw = remote_store.raw()
    raw.segment([simple(0)])
    raw.segment([simple(6)], base=6)
    known, tiered = raw.partition(), raw.gap(3, 6, "remote_tier")
    if by_watermark:
        known.acknowledged = [tiered]
    else:
        known.gaps, known.next_offset, known.ranges_above = [tiered], 3, ((6, 9),)
        raw.acknowledge(3, 6)
    raw.publish()
    assert stretch(opened(remote_store.storage()), 3).start == 6
    both = RemoteTopics(remote_store.storage(), kafka_too=True).partition("orders", 0)
    assert both is not None
    gap = both.next_stretch(3, committed=False)
    assert isinstance(gap, Gap)
    assert (gap.start, gap.end, gap.reason, both.gap_at(5)) == (3, 6, "remote_tier", gap)
    assert stretch(both, 6).end == 9
    with pytest.raises(GapError, match="read them from Kafka"):
        raise GapError("orders", 0, gap.start, gap.end, gap.reason)


def test_gaps_recorded_acknowledged_and_filled(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    raw.segment([simple(0)])
    raw.segment([simple(9)], base=9)
    known = raw.partition()
    known.next_offset = 3
    known.gaps = [raw.gap(3, 9, "failed_disk")]
    known.ranges_above = ((9, 12),)
    raw.publish()
    part = opened(remote_store.storage())
    gap = part.next_stretch(4, committed=False)
    assert isinstance(gap, Gap)
    assert (gap.start, gap.end, gap.reason, part.gap_at(8), part.gap_at(9)) == (3, 9, "failed_disk", gap, None)
    assert (part.end(committed=False), stretch(part, 10).end) == (12, 12)
    raw.acknowledge(3, 9)
    part.refresh()
    assert (part.gap_at(4), stretch(part, 4).start) == (None, 9)
    # Another replica's agent fills a part, by a segment that begins far below.
    raw.segment([simple(0), simple(3)], base=0)
    known.end, known.next_offset, known.gaps, known.ranges_above = 12, 12, [], ()
    known.acknowledged = [raw.gap(6, 9, "failed_disk")]
    raw.publish()
    part.refresh()
    assert (stretch(part, 4).start, stretch(part, 7).start) == (4, 9)


def test_a_hole_that_nobody_recorded_is_a_gap_and_not_silence(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    for number in range(3):
        raw.segment([simple(3 * number)])
    raw.publish()
    raw.store.delete(raw.keys().segment(SegmentName(3), "manifest.json"))
    gap = opened(remote_store.storage()).next_stretch(4, committed=False)
    assert isinstance(gap, Gap)
    assert (gap.start, gap.end, gap.reason) == (4, 6, "unknown")
    assert "orders-0: offsets 4 to 5 are missing (unknown)" in str(GapError("orders", 0, gap.start, gap.end, "unknown"))


def test_what_is_uploaded_above_an_upload_under_way_is_not_ahead_of_it(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    raw.segment([simple(0)])
    raw.segment([simple(6)], base=6)
    known = raw.partition()
    known.next_offset, known.ranges_above = 3, ((6, 9),)
    raw.publish()
    part = opened(remote_store.storage())
    assert (part.end(committed=False), part.next_stretch(3, committed=False)) == (3, None)
    raw.segment([simple(3)], base=3)
    known.end, known.next_offset, known.ranges_above, known.line1 = 9, None, (), 6
    raw.publish()
    part.refresh()
    assert [stretch(part, at).segment.base for at in (2, 3, 6)] == [0, 3, 6]


def test_a_segment_of_another_branch_is_read_from_the_next_refresh_on(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    raw.segment([simple(0)])
    raw.publish()
    part = opened(remote_store.storage())
    before = stretch(part, 0)
    known = raw.partition()
    known.lineage, known.leader_epoch = ((EPOCH + 1, 0),), EPOCH + 1
    raw.segment([simple(0, leader_epoch=EPOCH + 1), simple(3, leader_epoch=EPOCH + 1)], base=0)
    raw.publish()
    part.refresh()
    after = stretch(part, 0)
    assert (before.end, after.end, part.branch) == (3, 6, 1)
    assert after.segment.etag != before.segment.etag


def test_a_new_leader_with_other_boundaries(remote_store: RemoteStore) -> None:
    """Its segment begins below the newest that is known, and line 1 does not move."""
    raw = remote_store.raw()
    raw.segment([simple(0), simple(3)])
    raw.segment([simple(6)])
    raw.publish()
    part = opened(remote_store.storage())
    raw.segment([simple(3), simple(6), simple(9)], base=3)
    raw.partition().line1 = 6
    raw.publish()
    part.refresh()
    assert (part.end(committed=True), stretch(part, 9).segment.base, part.branch) == (12, 3, 0)


def test_the_log_leaves_its_branch(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    raw.segment([simple(0)], lineage=((3, 0),))
    raw.segment([simple(3), simple(6, leader_epoch=4)], lineage=((3, 0), (4, 6)))
    known = raw.partition()
    known.lineage, known.leader_epoch = ((3, 0), (4, 6)), 4
    raw.publish()
    storage = remote_store.storage()
    part = opened(storage)
    assert (part.end(committed=False), part.branch, part.diverged(9, 4)) == (9, 0, None)
    raw.segment([simple(5, 1, leader_epoch=5), simple(6, 4, leader_epoch=5)], base=5, lineage=((3, 0), (5, 5)))
    known.lineage, known.leader_epoch = ((3, 0), (5, 5)), 5
    raw.publish()
    part.refresh()
    assert (part.end(committed=False), part.branch) == (10, 1)
    assert part.diverged(9, 4) == 5
    assert [part.diverged(5, 3), part.diverged(9, 5), part.diverged(9, -1)] == [None] * 3
    assert (stretch(part, 4).end, stretch(part, 5).segment.base) == (5, 5)
    assert {row.epoch for row in read(storage, stretch(part, 5))} == {5}


def test_a_new_leader_that_was_behind_the_start_gives_out_offsets_below_it(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    known = raw.partition()
    known.start_offset = known.end = 6
    raw.segment([simple(6), simple(9)])
    raw.publish()
    storage = remote_store.storage()
    part = opened(storage)
    assert (part.start, part.end(committed=False)) == (6, 12)
    known.start_offset, known.leader_epoch, known.lineage = 2, 5, ((5, 2),)
    raw.segment([simple(2, 5, leader_epoch=5)], base=2)
    raw.publish()
    part.refresh()
    assert (part.start, part.end(committed=False), part.branch) == (2, 7, 1)
    assert part.diverged(9, EPOCH) == 2
    assert [row.offset for row in read(storage, stretch(part, 2))] == [2, 3, 4, 5, 6]


def test_a_watermark_that_went_back_is_a_truncation(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    raw.segment([simple(0)])
    raw.segment([simple(3)])
    raw.publish()
    part = opened(remote_store.storage())
    known = raw.partition()
    known.next_offset, known.leader_epoch = 3, 5
    known.lineage = ((EPOCH, 0), (5, 3))
    raw.publish()
    part.refresh()
    assert (part.end(committed=False), part.branch, part.diverged(6, EPOCH), part.diverged(3, EPOCH)) == (3, 1, 3, None)


def test_open_transactions_hold_back_and_aborts_are_found_ahead(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    raw.segment([transactional(0, 7, 3), transactional(3, 8, 3)])
    raw.segment([simple(6)])
    raw.publish()
    storage, store = remote_store.counted()
    part = opened(storage)
    assert (part.end(committed=True), part.end(committed=False)) == (0, 9)
    assert part.next_stretch(0, committed=True) is None
    raw.segment([marker(9, 7, commit=False)], aborted=[(7, 0, 9)])
    raw.segment([marker(10, 8, commit=True), simple(11)])
    raw.publish()
    part.refresh()
    found = stretch(part, 0, committed=True)
    assert (part.end(committed=True), [row.offset for row in read(storage, found)]) == (14, [3, 4, 5])
    assert stretch(part, 0).aborted == ()
    store.reset()
    assert stretch(part, 0, committed=True).aborted == found.aborted
    assert not store.requests, "verdicts are kept"


def test_what_was_found_along_a_course_that_the_log_has_left_decides_nothing_on_the_new_one(
    local_store: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The election is seen while a reader still looks for the marker on the old branch, where it aborts."""
    raw, known = local_store.raw(), local_store.raw().partition()
    raw.partitions[0, 0] = known
    raw.segment([transactional(0, 7, 3)])
    opened_before = known.open_transactions
    raw.segment([marker(3, 7, commit=False), simple(4)], aborted=[(7, 0, 3)])
    raw.publish()
    part = opened(local_store.storage())
    look = Aborts._listed

    def elected_meanwhile(self: Aborts, *arguments: Any) -> Any:
        monkeypatch.undo()
        found = look(self, *arguments)
        known.lineage, known.leader_epoch, known.open_transactions = ((3, 0), (4, 3)), 4, opened_before
        raw.segment([reseal(marker(3, 7, commit=True), leader_epoch=4), simple(4, 5, leader_epoch=4)], base=3)
        raw.publish()
        following = part._following
        once: list[int] = []

        def seen(*asked: Any) -> Any:
            step = following(*asked)
            if not once:
                once.append(1)
                part.refresh()
            return step

        monkeypatch.setattr(part, "_following", seen)
        return found

    monkeypatch.setattr(Aborts, "_listed", elected_meanwhile)
    part.next_stretch(0, committed=True)
    assert part.branch == 1
    assert stretch(part, 0, committed=True).aborted == ()


def test_what_damage_left(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    first, second = simple(0), simple(3)
    damage = SegmentDamage(position=len(first), offset=3, rule="the checksum")
    raw.segment(first + second[:-1] + b"\xff", damage=damage, next_offset=6)
    raw.segment([simple(6)])
    known = raw.partition()
    known.next_offset, known.ranges_above, known.gaps = 3, ((6, 9),), [raw.gap(3, 6, "corrupt")]
    raw.publish()
    storage = remote_store.storage()
    part = opened(storage)
    found = stretch(part, 1)
    assert (found.end, found.segment.size) == (3, len(first))
    assert [row.offset for row in read(storage, found)] == [1, 2]
    gap = part.next_stretch(3, committed=False)
    assert isinstance(gap, Gap)
    assert (gap.reason, stretch(part, 6).end) == ("corrupt", 9)
    assert part.offset_for_time(T0 + 2) == OffsetForTime(2, T0 + 2, EPOCH)


def test_retention_moves_the_start(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    for number in range(4):
        raw.segment([simple(3 * number)])
    raw.publish()
    part = opened(remote_store.storage())
    bury(raw, 0, 6)
    raw.store.delete(raw.keys().segment(SegmentName(0), "manifest.json"))
    part.refresh()
    assert part.start == 3, "the second segment is to go, and is there"
    raw.store.delete(raw.keys().segment(SegmentName(3), "manifest.json"))
    with pytest.raises(OutOfRange, match="which has 6 to 11; read from 6 on"):
        part.next_stretch(3, committed=False)
    assert (part.start, stretch(part, 6).end) == (6, 9)


def test_a_manifest_that_is_gone_between_the_listing_and_the_look_at_it_holds_up_no_refresh(
    local_store: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = local_store.raw()
    raw.segment([simple(0)])
    raw.segment([simple(3)])
    raw.publish()
    storage, counting = local_store.counted()
    newest = raw.keys().segment(SegmentName(3), "manifest.json")
    get = counting._inner.get

    def gone(key: str, **options: Any) -> Any:
        if key == newest:
            with contextlib.suppress(NotFound):
                raw.store.delete(newest)
        return get(key, **options)

    monkeypatch.setattr(counting, "get", gone, raising=False)
    part = opened(storage)
    assert (part.end(committed=False), part.end(committed=True)) == (6, 3)
    assert isinstance(part.next_stretch(3, committed=False), Gap)


def test_incarnations_are_kept_apart(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    raw.segment([simple(0), simple(3)])
    raw.recreate("B" * 22)
    raw.segment([simple(0)])
    raw.publish()
    storage = remote_store.storage()
    newest, oldest = opened(storage), opened(storage, "A" * 22)
    assert (newest.incarnation, newest.topic_id, newest.end(committed=True)) == (1, "B" * 22, 3)
    assert (oldest.incarnation, oldest.topic_id, oldest.end(committed=True)) == (0, "A" * 22, 6)
    assert RemoteTopics(storage).partition("orders", 0, "C" * 22) is None


def test_times_of_all_formats(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    raw.times, raw.index_every = True, 100
    raw.segment([legacy(0, 0)])
    raw.segment([legacy(1, 3), legacy(1, 6, 3, "gzip")])
    appended = [Record(at, T0 + 50) for at in range(2)]
    raw.segment([batch(9, appended, attributes=0x08, max_timestamp=T0 + 70)])
    raw.publish()
    part = opened(remote_store.storage())
    assert part.offset_for_time(T0) == OffsetForTime(3, T0, -1)
    assert part.offset_for_time(T0 + 3) == OffsetForTime(9, T0 + 70, EPOCH)
    assert part.offset_for_time(T0 + 71) is None


def test_markers_have_times_as_well(remote_store: RemoteStore) -> None:
    """As in Kafka, which asks for no isolation level here; its lookups count markers."""
    raw = remote_store.raw()
    raw.times = True
    late = reseal(marker(3, 7, commit=True), base_timestamp=T0 + 90, max_timestamp=T0 + 90)
    raw.segment([transactional(0, 7, 3), late])
    raw.segment([batch(4, [Record(0, T0 + 100)])])
    raw.publish()
    part = opened(remote_store.storage())
    assert part.offset_for_time(T0 + 50) == OffsetForTime(3, T0 + 90, EPOCH)
    assert part.offset_for_time(T0 + 91) == OffsetForTime(4, T0 + 100, EPOCH)
    assert part.offset_for_time(T0 + 101) is None
    assert part.offset_for_time(T0 + 1) == OffsetForTime(1, T0 + 1, EPOCH)
    assert part.offset_for_time(T0 + 50, markers=False) == OffsetForTime(4, T0 + 100, EPOCH)


def test_manifests_are_read_once_for_all_times(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    raw.times = True
    for number in range(12):
        raw.segment([simple(3 * number)])
    raw.publish()
    storage, store = remote_store.counted()
    part = opened(storage)
    assert part.offset_for_time(T0 + 9) is None
    store.reset()
    assert part.offset_for_time(T0 + 10) is None
    assert not store.requests
    assert part.offset_for_time(T0 + 1) == OffsetForTime(1, T0 + 1, EPOCH)
    assert sum(store.requests.values()) <= 3, store.keys


def test_a_damaged_object_is_named(remote_store: RemoteStore) -> None:
    raw = remote_store.raw()
    raw.segment([simple(0)])
    raw.publish()
    raw.store.put(raw.keys().watermark, b"00000000000000000000\n")
    with pytest.raises(FormatError, match="tidemark-agent adopt"):
        opened(remote_store.storage())


def test_without_the_right_to_list_it_says_so(
    s3: S3Server, s3_store: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = s3_store.raw()
    raw.segment([simple(0)])
    raw.publish()
    s3.add_user("getter", [allow(["s3:GetObject"], ["arn:aws:s3:::raw/*"])])
    for name, value in s3.env("getter").items():
        monkeypatch.setenv(name, value)
    forget_clients()
    with pytest.raises(AccessDenied, match="s3:ListBucket on s3://raw"):
        opened(s3_store.storage())


def test_storage_by_the_topics_file(tmp_path: Path) -> None:
    path = tmp_path / "topics.yaml"
    text = f"raw: {{url: 'file://{tmp_path}/raw', entropy_bits: 4}}\nlake: 'file://{tmp_path}/lake'\n"
    path.write_text(f"{text}topics: [{{topic: a, cluster: east}}, {{topic: b, cluster: west}}]\n")
    with pytest.raises(ConfigError, match=r"2 clusters \(east, west\): say which"):
        Storage.from_topics(path)
    storage = Storage.from_topics(path, "west")
    assert (storage.cluster, storage.endpoint("unlisted", 3).entropy_bits) == ("west", 4)
    path.write_text(f"{text}cluster: east\ntopics: [{{topic: a}}]\n")
    assert Storage.from_topics(str(path)).cluster == "east"
    assert storage.store(f"file://{tmp_path}/raw") is storage.store(f"file://{tmp_path}/raw")
