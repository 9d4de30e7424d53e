"""The oracle itself: it is content with a store that is right, and sees each fault that is planted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from crc32c import crc32c

from tests.tidemark.kafka_log.build import Record, batch
from tests.uploader_agent.faults.oracle import Expected, Reader, Truth, digest
from tidemark.formats.keys import ControlKeys, SegmentName
from tidemark.formats.raw.gaps import Gap
from tidemark.formats.raw.incarnations import TopicIncarnations
from tidemark.formats.raw.manifest import ObjectSum, SegmentManifest
from tidemark.formats.raw.watermark import Watermark, render
from tidemark.store import LocalStore

ID = "MkU3OEVBNTcwNTJENDM2Qk"
NOW = datetime(2026, 2, 2, tzinfo=UTC)
LINEAGE = ((0, 0), (2, 20))


@dataclass
class Shelf:
    """A store with one partition, made by hand: three segments of ten records, one to a batch."""

    root: Path
    truth: Truth = field(default_factory=Truth)
    expected: Expected = field(default_factory=lambda: Expected(end=30, high=30))

    def __post_init__(self) -> None:
        self.store = LocalStore(self.root)
        self.control = ControlKeys("", "c")
        lives = TopicIncarnations(topic="t").with_topic_id(ID, NOW)
        self.store.put(self.control.incarnations("t"), lives.to_bytes())
        self.reader = Reader(self.store, "", "c")
        self.keys = self.reader.keys("t", ID, 0)
        for offset in range(30):
            self.truth.acknowledged[offset] = digest(b"k%d" % (offset % 7), b"v%d" % offset)
            self.truth.keys[offset] = b"k%d" % (offset % 7)
        self.truth.sent = set(self.truth.acknowledged.values())
        self.segment(0, 10)
        self.segment(10, 20)
        self.segment(20, 30, epoch=2)
        self.watermark()

    def segment(
        self,
        base: int,
        end: int,
        *,
        epoch: int = 0,
        without: tuple[int, ...] = (),
        value: bytes = b"v",
        **changes: object,
    ) -> SegmentManifest:
        """Put a segment, or another in its place."""
        at = [offset for offset in range(base, end) if offset not in without]
        log = b"".join(
            batch(offset, [Record(0, key=b"k%d" % (offset % 7), value=value + b"%d" % offset)], leader_epoch=epoch)
            for offset in at
        )
        name = f"{base:020d}.log"
        etag = self.store.put(self.keys.file(name), log)
        manifest = SegmentManifest.model_validate(
            {
                "cluster": "c",
                "topic": "t",
                "topic_id": ID,
                "partition": 0,
                "base_offset": base,
                "last_batch_end": at[-1] + 1,
                "next_offset": end,
                "lineage": ((0, 0), (epoch, base)) if epoch else ((0, 0),),
                "first_timestamp": None,
                "max_timestamp": None,
                "batch_count": len(at),
                "magics": (2,),
                "codecs": ("none",),
                "open_transactions": (),
                "log_start_offset": 0,
                "high_watermark": 30,
                "last_stable_offset": 30,
                "offsets_from": "broker",
                "cleanup_policy": "delete",
                "rotated_at": NOW,
                "uploaded_at": NOW,
                "broker": 1,
                "agent_version": "0",
                "state": "whole",
                "objects": {name: ObjectSum(size=len(log), crc32c=f"{crc32c(log):08x}", etag=etag)},
                **changes,
            }
        )
        self.store.put(self.keys.segment(SegmentName(base), "manifest.json"), manifest.to_bytes())
        return manifest

    def watermark(self, base: int = 20, next_offset: int = 30, **changes: object) -> None:
        found = Watermark.model_validate(
            {
                "topic_id": ID,
                "start_offset": 0,
                "leader_epoch": 2,
                "next_offset": next_offset,
                "lineage": LINEAGE,
                "broker": 1,
                "written_at": NOW,
                **changes,
            }
        )
        self.store.put(self.keys.watermark, render(base, found))

    def problems(self) -> list[str]:
        return self.reader.judge(self.keys, ID, self.truth, self.expected).problems


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def test_what_is_right_is_right(shelf: Shelf) -> None:
    verdict = shelf.reader.judge(shelf.keys, ID, shelf.truth, shelf.expected)
    assert verdict.problems == []
    assert (verdict.counts["compared"], verdict.counts["whole"]) == (30, 3)


def test_overlapping_boundaries_are_right(shelf: Shelf) -> None:
    shelf.segment(5, 15)
    assert shelf.problems() == []


def test_a_log_that_is_not_its_manifests_is_wrong(shelf: Shelf) -> None:
    key = shelf.keys.segment(SegmentName(10), "manifest.json")
    manifest = shelf.store.get(key).body
    shelf.segment(10, 20, value=b"other")
    shelf.store.put(key, manifest)
    verdict = shelf.reader.judge(shelf.keys, ID, shelf.truth, shelf.expected)
    assert any("and its manifest says" in one for one in verdict.problems)


def test_a_dead_branch_is_right_where_the_lineage_says_so(shelf: Shelf) -> None:
    """Epoch 1 wrote 10 to 25, and the log returned to epoch 0's branch."""
    shelf.segment(12, 25, epoch=1, value=b"dead", lineage=((0, 0), (1, 12)))
    assert shelf.problems() == []


def gap(start: int, end: int) -> Gap:
    return Gap.model_validate({"from": start, "to": end, "reason": "unknown", "detected_at": NOW})


def lose_manifest(shelf: Shelf) -> None:
    shelf.store.delete(shelf.keys.segment(SegmentName(10), "manifest.json"))


def lose_log(shelf: Shelf) -> None:
    shelf.store.delete(shelf.keys.segment(SegmentName(10), "log"))


def change_bytes(shelf: Shelf) -> None:
    key = shelf.keys.segment(SegmentName(10), "log")
    body = bytearray(shelf.store.get(key).body)
    body[-1] ^= 1
    shelf.store.put(key, bytes(body))


def lose_a_batch(shelf: Shelf) -> None:
    shelf.segment(10, 20, without=(13,))


def lose_the_last_batch(shelf: Shelf) -> None:
    shelf.segment(10, 20, without=(19,))


def other_content(shelf: Shelf) -> None:
    shelf.segment(10, 20, value=b"w")
    shelf.truth.sent |= {digest(b"k%d" % (offset % 7), b"w%d" % offset) for offset in range(10, 20)}


def two_live_copies(shelf: Shelf) -> None:
    shelf.segment(5, 15, value=b"w")


def invented(shelf: Shelf) -> None:
    del shelf.truth.acknowledged[4]
    shelf.truth.sent = set(shelf.truth.acknowledged.values())


def twice(shelf: Shelf) -> None:
    repeated = b"".join(batch(offset, [Record(0, key=b"k0", value=b"v0")], leader_epoch=0) for offset in range(10, 20))
    name = f"{10:020d}.log"
    etag = shelf.store.put(shelf.keys.file(name), repeated)
    known = ObjectSum(size=len(repeated), crc32c=f"{crc32c(repeated):08x}", etag=etag)
    shelf.segment(10, 20, objects={name: known})
    shelf.store.put(shelf.keys.file(name), repeated)
    for offset in range(10, 20):
        del shelf.truth.acknowledged[offset]


def not_the_leaders(shelf: Shelf) -> None:
    """An offset that nobody was told of, with a record that was sent, but is another in the leader's log."""
    shelf.expected = replace(shelf.expected, log={**shelf.truth.acknowledged, 13: digest(b"k", b"w")})
    del shelf.truth.acknowledged[13]


def dead_branch_taken(shelf: Shelf) -> None:
    """Its manifest claims the newest lineage, its batches are another epoch's."""
    shelf.segment(10, 20, epoch=1, value=b"dead", lineage=((0, 0),))


def watermark_too_far(shelf: Shelf) -> None:
    shelf.watermark(next_offset=35)
    shelf.expected = replace(shelf.expected, high=40)


def watermark_too_low(shelf: Shelf) -> None:
    shelf.watermark(10, next_offset=20)


def above_high_watermark(shelf: Shelf) -> None:
    shelf.expected = replace(shelf.expected, high=29)


def no_watermark(shelf: Shelf) -> None:
    shelf.store.delete(shelf.keys.watermark)


def wrong_line_one(shelf: Shelf) -> None:
    shelf.watermark(base=21)


def wrong_topic_id(shelf: Shelf) -> None:
    shelf.watermark(topic_id="AkU3OEVBNTcwNTJENDM2Qk")


def stranger(shelf: Shelf) -> None:
    shelf.store.put(f"{shelf.keys.folder}note.txt", b"")


def gap_not_expected(shelf: Shelf) -> None:
    shelf.watermark(gaps=(gap(30, 40),))


def gap_below(shelf: Shelf) -> None:
    shelf.watermark(gaps=(gap(5, 6),))
    shelf.expected = replace(shelf.expected, gaps=((5, 6, "unknown"),))


def range_above_is_not_there(shelf: Shelf) -> None:
    shelf.watermark(ranges_above=((40, 50),))


PLANTED: list[tuple[Callable[[Shelf], None], str]] = [
    (lose_manifest, "are not there"),
    (lose_log, "cannot be read"),
    (change_bytes, "its manifest says"),
    (lose_a_batch, "are not there"),
    (lose_a_batch, "acknowledged offsets are missing"),
    (lose_the_last_batch, "a reader finds a hole"),
    (other_content, "other content than was acknowledged"),
    (two_live_copies, "twice with different content"),
    (invented, "never sent"),
    (twice, "at two offsets"),
    (not_the_leaders, "not those of the leader's log"),
    (dead_branch_taken, "acknowledged offsets are missing"),
    (dead_branch_taken, "dead branch"),
    (watermark_too_far, "are not there"),
    (watermark_too_low, "is due"),
    (above_high_watermark, "above the high watermark"),
    (no_watermark, "no offset.wm"),
    (wrong_line_one, "line 1"),
    (wrong_topic_id, "topic id"),
    (stranger, "no business"),
    (gap_not_expected, "gaps are"),
    (gap_below, "beyond a gap"),
    (range_above_is_not_there, "range above"),
]


@pytest.mark.parametrize(("plant", "seen"), PLANTED, ids=[f"{one.__name__}-{text}" for one, text in PLANTED])
def test_a_planted_fault_is_seen(shelf: Shelf, plant: Callable[[Shelf], None], seen: str) -> None:
    plant(shelf)
    problems = shelf.problems()
    assert any(seen in problem for problem in problems), problems


def test_compacted(shelf: Shelf) -> None:
    """Offset 13 has a later record of its key, offset 29 has none."""
    shelf.expected = replace(shelf.expected, compacted=True)
    shelf.segment(10, 20, without=(13,), cleanup_policy="compact")
    assert shelf.problems() == []
    shelf.segment(20, 30, epoch=2, without=(29,), cleanup_policy="compact")
    assert any("acknowledged offsets are missing" in problem for problem in shelf.problems())
