"""The parts of a task by themselves: local dates, classes of batches, uploads."""

from __future__ import annotations

import gc
import io
import random
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from tests.tidemark.kafka_log.build import Record, batch, empty, legacy, marker, simple, transactional
from tidemark.decode import scan_headers
from tidemark.errors import NotFound, PreconditionFailed, UnknownOutcome
from tidemark.formats.table.ledger import new_attempt
from tidemark.formats.table.plan import PartitionPlan, SegmentRange
from tidemark.kafka_log import AbortedTransaction
from tidemark.store import StoreOptions, open_store
from tidemark_spark.cluster.executor import Shipment, in_worker
from tidemark_spark.convert.classify import BatchVerdict, PartitionRules, judge
from tidemark_spark.convert.date_partitioner import LocalDates
from tidemark_spark.convert.partition_columns import hours_of
from tidemark_spark.convert.upload import upload_once

ZONES = [
    "UTC",
    "Europe/Vienna",
    "America/Sao_Paulo",  # changed at midnight
    "America/St_Johns",  # changed at 00:01, so that a date came twice
    "Asia/Kathmandu",
    "Africa/Monrovia",  # 44 minutes and 30 seconds off until 1972
    "Pacific/Apia",  # left out 2011-12-30
    "Australia/Lord_Howe",  # half an hour
]


@pytest.mark.parametrize("name", ZONES)
def test_local_dates_and_hours_are_zoneinfos(name: str, rng: random.Random) -> None:
    zone = ZoneInfo(name)
    start, end = (round(datetime(year, 1, 1, tzinfo=UTC).timestamp() * 1000) for year in (1970, 2038))
    instants = {rng.randrange(start, end) for _ in range(500)}
    changes = _changes(zone)
    instants |= {change + step for change in changes for step in (-3_600_001, -60_001, -1, 0, 1, 60_000, 3_600_000)}
    milliseconds = np.array(sorted(instants), np.int64)
    local = LocalDates(zone).times(milliseconds)
    expected = [
        (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=one)).astimezone(zone)
        for one in milliseconds.tolist()
    ]
    days = [date(1970, 1, 1) + timedelta(days=day) for day in (local // 86_400_000).tolist()]
    assert days == [one.date() for one in expected]
    assert hours_of(local).tolist() == [one.hour for one in expected]


def _changes(zone: ZoneInfo) -> list[int]:
    """The hours, in milliseconds, after which the zone's offset from UTC is another, 1970 to 2030."""
    first = round(datetime(1970, 1, 1, tzinfo=UTC).timestamp())
    found, before = [], None
    for hour in range(first, first + 60 * 365 * 86_400, 3_600 * 6):
        offset = datetime.fromtimestamp(hour, zone).utcoffset()
        if before is not None and offset != before:
            low = next(at for at in range(hour - 6 * 3_600, hour + 1, 60) if _offset(at, zone) != before)
            found.append(low * 1000)
        before = offset
    return found


def _offset(seconds: int, zone: ZoneInfo) -> timedelta | None:
    return datetime.fromtimestamp(seconds, zone).utcoffset()


def judged(data: bytes, start: int, end: int, *, lineage: Any = ((3, 0),), **more: Any) -> BatchVerdict:
    """The verdict on the batches of ``data``, of which the offsets ``[start, end)`` are wanted."""
    compacted = more.pop("compacted", False)
    plan = PartitionPlan(
        incarnation=0, topic_id=None, partition=0, start=start, end=end, leader_epoch=3, lineage=lineage, **more
    )
    part = SegmentRange(
        store="file:///raw",
        key="0.log",
        etag="",
        base_offset=0,
        start=0,
        end=len(data),
        from_offset=start,
        to_offset=end,
        uploaded_at=datetime.now(UTC),
        compacted=compacted,
    )
    return judge(scan_headers(data, "0.log", 0), start, part, PartitionRules.of(plan, StoreOptions()))


def runs(verdict: BatchVerdict) -> list[tuple[str, int, int]]:
    return [(one.offset_class, one.start, one.end) for one in verdict.runs]


def test_every_batch_has_a_class() -> None:
    data = simple(0) + transactional(3, 7, 2) + transactional(5, 8, 2) + marker(7, 7, commit=False) + simple(8)
    verdict = judged(data, 0, 11, aborted=[AbortedTransaction(7, 3, 7)])
    assert runs(verdict) == [("transaction_marker", 7, 8), ("aborted", 3, 5)]
    assert verdict.data["base_offset"].tolist() == [0, 5, 8]
    assert (verdict.span, verdict.records, verdict.next_offset, verdict.stop) == (8, 8, 11, None)


def test_a_hole_stops_unless_the_segment_is_compacted() -> None:
    data = simple(0) + simple(10)
    verdict = judged(data, 0, 13)
    assert verdict.stop is not None
    assert (verdict.stop.kind, verdict.stop.offset, verdict.stop.end, verdict.next_offset) == ("lost", 3, 10, 3)
    verdict = judged(data, 0, 13, compacted=True)
    assert (verdict.stop, runs(verdict), verdict.next_offset) == (None, [("compacted", 3, 10)], 13)


def test_only_the_wanted_offsets_count() -> None:
    verdict = judged(simple(0) + simple(3, 4) + simple(7), 4, 6)
    assert (verdict.span, verdict.records, verdict.next_offset) == (2, None, 6)


def test_an_emptied_batch_is_compacted() -> None:
    verdict = judged(simple(0) + empty(3, 4), 0, 8, compacted=True)
    assert (runs(verdict), verdict.next_offset) == ([("compacted", 3, 8)], 8)


def test_batches_off_the_lineage_do_not_count() -> None:
    data = simple(0) + simple(3, leader_epoch=4) + simple(6)
    verdict = judged(data, 0, 9)
    assert verdict.stop is not None
    assert (verdict.stop.offset, verdict.stop.end) == (3, 6)
    assert judged(data, 0, 9, lineage=()).stop is None  # nothing is known that contradicts them


def test_a_wrapped_message_starts_where_the_one_before_ends() -> None:
    verdict = judged(legacy(1, 0, 2) + legacy(1, 2, 5, "gzip"), 0, 7, lineage=())
    assert (verdict.span, verdict.records, verdict.next_offset, verdict.stop) == (7, None, 7, None)


def test_a_batch_with_fewer_records_than_offsets_tells_so() -> None:
    verdict = judged(batch(0, [Record(1), Record(4)], last_offset_delta=9), 0, 10, compacted=True)
    assert (verdict.span, verdict.records) == (10, 2)


class Losing:
    """A store whose first writes are not answered, after or before they took effect."""

    def __init__(self, root: Path, *, after: bool, times: int) -> None:
        self.real = open_store(f"file://{root}")
        self._after, self._left = after, times

    def put(self, key: str, body: bytes | BinaryIO, **more: Any) -> str:
        """See ``Store``."""
        if self._left and not self._after:
            self._left -= 1
            raise UnknownOutcome(key, "planted")
        etag = self.real.put(key, body, **more)
        if self._left:
            self._left -= 1
            raise UnknownOutcome(key, "planted")
        return etag

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@pytest.mark.parametrize(("after", "times"), [(True, 1), (False, 2)])
def test_an_upload_without_an_answer_is_found_or_made_again(tmp_path: Path, after: bool, times: int) -> None:
    store: Any = Losing(tmp_path, after=after, times=times)
    key = f"a/{new_attempt()}"
    assert upload_once(store, key, io.BytesIO(b"abc")) == 3
    assert store.get(key).body == b"abc"
    assert upload_once(store, key, io.BytesIO(b"abc")) == 3
    with pytest.raises(PreconditionFailed, match="other bytes"):
        upload_once(store, key, io.BytesIO(b"abd"))


@pytest.mark.usefixtures("quick_retries")
def test_an_upload_that_never_gets_an_answer_fails(tmp_path: Path) -> None:
    store: Any = Losing(tmp_path, after=False, times=9)
    with pytest.raises(UnknownOutcome):
        upload_once(store, "key", io.BytesIO(b"abc"))
    with pytest.raises(NotFound):
        store.get("key")


def test_a_worker_spares_the_collector_what_stays_after_the_first_task() -> None:
    frozen = []
    try:
        for task in range(1, 4):
            driver, shared, [sent] = Shipment.of(divmod, 7, [task])
            assert in_worker(driver, shared, sent) == divmod(7, task)
            frozen.append(gc.get_freeze_count())
    finally:
        gc.unfreeze()
    assert frozen[0] > 10_000
    assert frozen == [frozen[0]] * 3
