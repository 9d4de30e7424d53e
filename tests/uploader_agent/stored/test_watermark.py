from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.uploader_agent.fakes import CLUSTER, ID
from tidemark.errors import ContinuityError, FormatError, PreconditionFailed, UnknownOutcome
from tidemark.formats.keys import Endpoint, PartitionKeys
from tidemark.formats.raw.gaps import Gap, split_acknowledged
from tidemark.formats.raw.watermark import Watermark
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage
from tidemark.storage import PartitionStore
from tidemark.store import LocalStore
from uploader_agent.repair.gaps import Evidence, find_gaps
from uploader_agent.stored import watermark
from uploader_agent.stored.watermark import Fenced

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def gap(start: int, end: int, reason: str = "unknown") -> Gap:
    return Gap.model_validate({"from": start, "to": end, "reason": reason, "detected_at": NOW})


LINEAGE = Lineage(((3, 0),))


def made(
    *present: tuple[int, int],
    start: int = 0,
    epoch: int = 3,
    lineage: Lineage = LINEAGE,
    acknowledged: tuple[Gap, ...] = (),
    previous: Watermark | None = None,
) -> Watermark:
    return watermark.compute(
        previous,
        topic_id=ID,
        leader_epoch=epoch,
        broker=1,
        start=start,
        present=Intervals(present),
        lineage=lineage,
        acknowledged_gaps=acknowledged,
    )


@pytest.mark.parametrize(
    ("present", "start", "end", "above"),
    [
        ([(0, 100)], 0, 100, ()),
        ([(0, 100), (100, 200)], 0, 200, ()),
        ([(0, 100), (150, 200), (300, 400)], 0, 100, ((150, 200), (300, 400))),
        ([(0, 150), (90, 250)], 0, 250, ()),
        ([(500, 600)], 500, 600, ()),
    ],
)
def test_contiguous_end(
    present: list[tuple[int, int]], start: int, end: int, above: tuple[tuple[int, int], ...]
) -> None:
    found = made(*present, start=start)
    assert (found.start_offset, found.next_offset, found.ranges_above) == (start, end, above)


def test_nothing_contiguous_yet() -> None:
    assert made((10, 20)).next_offset == 0
    assert made().next_offset == 0


def test_acknowledged_gaps_are_passed() -> None:
    found = made((0, 100), (150, 200), acknowledged=(gap(100, 150),))
    assert (found.next_offset, found.ranges_above, found.acknowledged_gaps) == (200, (), (gap(100, 150),))


def test_line_1_is_the_last_segment_below_the_hole() -> None:
    assert watermark.last_base([0, 100, 300], 200, 7) == 100
    assert watermark.last_base([300], 200, 7) == 7


def test_an_epoch_begins_where_it_first_did() -> None:
    """A manifest of a compacted run tells a later start, and retention has cut the log's own lineage."""
    before = made((0, 9)).model_copy(update={"lineage": ((2, 0), (3, 9), (5, 12))})
    later = made((0, 20), lineage=Lineage(((2, 0), (3, 10), (6, 20))), previous=before)
    assert later.lineage == ((2, 0), (3, 9), (6, 20)), "and nothing of another branch"


def test_divergence_is_a_truncation() -> None:
    before = made((0, 6000)).model_copy(update={"lineage": ((0, 0),), "ranges_above": ((7000, 8000),)})
    after = watermark.truncate(before, Lineage(((0, 0), (4, 3000))), 4)
    assert (after.next_offset, after.leader_epoch, after.ranges_above) == (3000, 4, ())
    assert watermark.truncate(before, Lineage(((0, 0), (4, 6000))), 4) == before
    assert watermark.truncate(before, Lineage(((0, 4000), (4, 6000))), 4) == before, "retention cuts lineages in front"
    with pytest.raises(ContinuityError, match="same leader epoch"):
        watermark.truncate(before, Lineage(((0, 0), (1, 3000))), 3)


def found(missing: list[tuple[int, int]], evidence: Evidence, *known: Gap, now: datetime = NOW) -> list[Gap]:
    return list(find_gaps(Intervals(missing), Intervals(), evidence, known, now))


def test_a_gap_s_reason_follows_from_evidence() -> None:
    assert found([(100, 300)], Evidence()) == [gap(100, 300)], "nobody could be asked"
    assert found([(100, 300)], Evidence(log_start=300)) == [gap(100, 300, "deleted_before_upload")]
    assert found([(100, 300)], Evidence(log_start=0)) == [gap(100, 300)], "the broker may have moved it since"
    assert found([(100, 300)], Evidence(log_start=0, disk_start=300)) == [gap(100, 300, "failed_disk")]
    assert found([(100, 300)], Evidence(log_start=150, disk_start=250)) == [
        gap(100, 150, "deleted_before_upload"),
        gap(150, 250, "failed_disk"),
        gap(250, 300),
    ]
    strongest = Evidence(Intervals([(100, 150)]), Intervals([(120, 200)]), log_start=300)
    assert found([(100, 300)], strongest) == [
        gap(100, 150, "staging_full"),
        gap(150, 200, "unclean_election"),
        gap(200, 300, "deleted_before_upload"),
    ]
    assert find_gaps(Intervals(), Intervals([(400, 450)]), Evidence(), (), NOW) == (gap(400, 450, "corrupt"),)


def test_a_gap_s_reason_and_time_are_decided_once() -> None:
    later = datetime(2026, 2, 2, tzinfo=UTC)
    deleted = Evidence(log_start=300)
    grown = found([(100, 300)], deleted, gap(100, 200, "failed_disk"), now=later)
    new = gap(200, 300, "deleted_before_upload").model_copy(update={"detected_at": later})
    assert grown == [gap(100, 200, "failed_disk"), new]
    assert found([(150, 300)], deleted, gap(100, 200, "deleted_before_upload"), now=later) == [
        gap(150, 300, "deleted_before_upload")
    ], "what was filled goes, and what retention takes next joins"
    assert found([(100, 200)], deleted, gap(100, 200), now=later) == [gap(100, 200, "deleted_before_upload")], (
        "only what was unknown is decided later"
    )


def test_gaps_are_split_by_what_people_said() -> None:
    assert split_acknowledged([gap(0, 100)], Intervals([(20, 50)])) == ((gap(0, 20), gap(50, 100)), (gap(20, 50),))


class Flaky(LocalStore):
    """Takes a PUT and says that it does not know."""

    def put(self, key: str, body: Any, **options: Any) -> str:
        super().put(key, body, **options)
        raise UnknownOutcome(key, "told so")


def test_conditional_writes(tmp_path: Path) -> None:
    store, keys = LocalStore(tmp_path), PartitionKeys(Endpoint("file:///x"), CLUSTER, "orders", 0)
    first = watermark.write(PartitionStore(store, keys), 0, made((0, 100)), None)
    assert watermark.read(PartitionStore(store, keys)) == first
    with pytest.raises(PreconditionFailed):
        watermark.write(PartitionStore(store, keys), 0, made((0, 200)), None)
    with pytest.raises(ContinuityError, match="must not follow"):
        watermark.write(PartitionStore(store, keys), 0, made((0, 50)), first)
    with pytest.raises(ContinuityError, match="must not follow"):
        watermark.write(PartitionStore(store, keys), 0, made((0, 500), epoch=2), first)
    back = watermark.write(PartitionStore(store, keys), 0, made((0, 50), epoch=4), first)
    assert back.watermark.next_offset == 50
    with pytest.raises(PreconditionFailed):
        watermark.write(PartitionStore(store, keys), 0, made((0, 300)), first)
    with pytest.raises(Fenced, match="epoch 4"):
        watermark.fence(PartitionStore(store, keys), ID, 3, lambda _stored: False)
    assert watermark.fence(PartitionStore(store, keys), ID, 4, lambda _stored: False) == back
    known = watermark.write(PartitionStore(Flaky(tmp_path), keys), 0, made((0, 60), epoch=4), back)
    assert watermark.read(PartitionStore(store, keys)) == known


def test_another_uploaders_watermark_is_refused(tmp_path: Path) -> None:
    store, keys = LocalStore(tmp_path), PartitionKeys(Endpoint("file:///x"), CLUSTER, "orders", 0)
    store.put(keys.watermark, b"%020d" % 100)
    with pytest.raises(FormatError, match="another uploader"):
        watermark.read(PartitionStore(store, keys))
