"""What retention has removed is neither missing nor sent again, also where the broker still has it on its disk."""

from __future__ import annotations

import pytest

from tests.uploader_agent.fakes import CLUSTER, ID, T, World, records
from tests.uploader_agent.test_agent import remove
from tests.uploader_agent.verify.test_verify import examine
from tidemark.formats.keys import SegmentName
from tidemark.formats.raw.tombstones import RemovedSegment, Tombstone
from tidemark.timestamps import stamp, utc_now
from uploader_agent.broker.admin import Led
from uploader_agent.verify import Severity

REMOVED_AT = utc_now()


@pytest.fixture
def removed(world: World) -> World:
    """[0, 400) in four segments, of which the first two were removed; all are on the disk."""
    retain(world)
    return world


def retain(world: World) -> dict[str, bytes]:
    """Remove as retention does; the objects that were deleted, by key."""
    deleted: dict[str, bytes] = {}
    world.disk.partition().fill(0, 100, 200, 300, end=400)
    world.once()
    keys, segments = world.keys(), []
    for base in (0, 100):
        manifest = world.manifest(base)
        segments.append(
            RemovedSegment(
                base_offset=base,
                next_offset=manifest.next_offset,
                uploaded_at=manifest.uploaded_at,
                manifest_etag="",
                objects=manifest.objects,
            )
        )
        for name in ("manifest.json", "log", "index", "timeindex"):
            key = keys.segment(SegmentName(base), name)
            deleted[key] = world.store.inner.get(key).body
            world.store.inner.delete(key)
    fields = {
        "cluster": CLUSTER,
        "topic": keys.place,
        "topic_id": None,
        "incarnation": 0,
        "partition": keys.partition,
        "from": 0,
        "to": 200,
        "by": "ada",
        "written_as": "retention by ada@host",
        "at": REMOVED_AT,
        "window": "30d",
        "report": "retention/raw/x.json",
        "ledger_n": 1,
        "ledger_attempt": 1,
        "segments": tuple(segments),
    }
    stone = Tombstone.model_validate(fields)
    key = keys.control.tombstone(keys.place, keys.partition, 0, 200, stamp(REMOVED_AT))
    world.store.inner.put(key, stone.to_bytes())
    world.store.puts.clear()
    return deleted


def forget(world: World) -> None:
    """Delete the tombstone."""
    for info in list(world.store.inner.list("_tombstones/")):
        world.store.inner.delete(info.key)


def logs(world: World) -> list[str]:
    return [name for name in world.names() if name.endswith(".log")]


def test_an_agent_that_starts_again_sends_nothing_and_sees_no_gap(removed: World) -> None:
    left, mark = logs(removed), removed.watermark()
    removed.once()
    assert logs(removed) == left
    assert not [key for key in removed.store.puts if key.endswith((".log", "manifest.json", "offset.wm"))]
    assert removed.watermark() == mark
    assert mark[1].gaps == ()


def test_a_new_leader_sends_what_is_new_alone(removed: World) -> None:
    """It rolled elsewhere, and has all that was removed, too."""
    other = removed.another(2, leads={T: Led(4, ID)})
    disk = other.disk.partition().fill(0, 150, 350, end=400).lineage([(3, 0), (4, 400)])
    disk.segment(400, records(400, 450, epoch=4))
    disk.roll(450)
    left = logs(removed)
    other.once()
    assert logs(removed) == [*left, f"{400:020d}.log"]
    base, found = removed.watermark()
    assert (base, found.next_offset, found.leader_epoch, found.gaps) == (400, 450, 4, ())


@pytest.mark.parametrize("tombstone", [True, False])
def test_a_search_for_a_gap_leaves_what_retention_has_not_deleted_yet(world: World, tombstone: bool) -> None:
    """It lists all segments below the gap, and makes manifests for bytes that cover a hole."""
    keys = world.keys()
    for key, body in retain(world).items():
        if key != keys.segment(SegmentName(100), "manifest.json"):
            world.store.inner.put(key, body)
    world.store.inner.delete(keys.watermark)
    disk = world.disk.partition().fill(500, end=600)
    for base in (0, 100, 200, 300, 400):
        remove(disk, base, base)
    world.metadata.log_start = 500
    if not tombstone:
        forget(world)
    world.once()
    assert (400, 500) in [(gap.start, gap.end) for gap in world.watermark()[1].gaps]
    assert (f"{100:020d}.manifest.json" in world.names()) is not tombstone


def test_verify_takes_the_tombstones_word(removed: World) -> None:
    assert examine(removed) == (Severity.OK, [])
    forget(removed)
    word, findings = examine(removed)
    assert word is Severity.GAP
    assert (Severity.GAP, 0, 200, True) in findings
