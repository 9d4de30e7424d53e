"""A seal that an erasure has rewritten is a seal like any other, beside a broker that has the old bytes still."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.tidemark.kafka_log.build import reseal
from tests.uploader_agent.cli.test_commands import outcomes, reuploaded
from tests.uploader_agent.fakes import CLUSTER, World, records
from tests.uploader_agent.repair.test_from_packs import made_whole
from tests.uploader_agent.verify.lacking import lacking
from tests.uploader_agent.verify.test_packs import spans
from tests.uploader_agent.verify.test_verify import examine, verified
from tidemark.formats.keys import SegmentName
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.formats.raw.masks import Mask
from tidemark.formats.table.plan import StoredMasks
from tidemark.kafka_log import scan_batches
from tidemark.raw.objects import StoredManifest, read_manifest, remove_segment
from tidemark.storage import PartitionStore
from tidemark.store import StoreOptions
from tidemark_spark.erasing.rewriting import SealTask, rewrite
from uploader_agent.verify import Severity

GONE = [103, 105, *range(130, 140)]


def stored_manifest(world: World, suffix: str = "", base: int = 100) -> StoredManifest:
    found = read_manifest(PartitionStore(world.store.inner, world.keys()), SegmentName(base, suffix))
    assert found is not None
    return found


def erase(
    world: World, offsets: list[int] = GONE, suffix: str = "", number: int = 1, base: int = 100
) -> SegmentManifest:
    """Rewrite the seal at ``base``, and delete the old one, as a pass does."""
    keys, store = world.keys(), world.store.inner
    mask = Mask.of(CLUSTER, keys.place, 0, {3: offsets}, ["0" * 64])
    store.put(mask.key(keys.control), mask.to_bytes())
    old = stored_manifest(world, suffix, base)
    masks = StoredMasks(store=world.store.url, keys=(mask.key(keys.control),))
    done = rewrite(StoreOptions(), SealTask(keys, old, masks, number))
    assert done.new is not None
    etags = {name: described.etag for name, described in old.manifest.objects.items()}
    assert remove_segment(PartitionStore(store, keys), old.manifest.name, old.etag, etags)
    return done.new


@pytest.fixture
def erased(world: World) -> World:
    """[0, 300) in three segments, the second without some records."""
    world.disk.partition().fill(0, 100, 200, end=300)
    (world.disk.log_dirs[0] / "replication-offset-checkpoint").write_text("0\n1\norders 0 300\n")
    world.once()
    erase(world)
    world.store.puts.clear()
    return world


def test_the_rewritten_seal_has_all_batches_and_the_description_of_the_old_one(world: World) -> None:
    world.disk.partition().fill(0, 100, 200, end=300)
    world.once()
    old = stored_manifest(world).manifest
    new = erase(world)
    assert new == stored_manifest(world, "e1").manifest
    changed = {"suffix", "objects", "erased"}
    assert new.model_dump(exclude=changed) == old.model_dump(exclude=changed)
    assert new.erased is not None
    assert (new.erased.replaces, new.erased.batches) == (old.log_name, ((100, 2), (130, 10)))
    headers = list(scan_batches([world.stored(100, suffix="e1")], "log", 100))
    assert [(header.base_offset, header.next_offset) for header in headers] == [
        (at, at + 10) for at in range(100, 200, 10)
    ]
    assert [header.record_count for header in headers] == [8, 10, 10, 0, *[10] * 6]
    assert not [name for name in world.names() if name.startswith(f"{100:020d}") and not name.endswith("-e1")]


def test_an_agent_goes_on_as_if_nothing_had_happened(erased: World) -> None:
    before, watermark = erased.names(), erased.watermark()
    erased.once()
    assert (erased.names(), erased.watermark()) == (before, watermark)
    erased.disk.partition().segment(300, records(300, 400))
    erased.disk.partition().roll(400)
    erased.once()
    assert examine(erased, deep=True) == (Severity.OK, [])
    assert not [key for key in erased.store.puts if f"{100:020d}" in key]


def test_verify_accepts_the_erased_records(erased: World) -> None:
    assert examine(erased) == (Severity.OK, [])
    assert examine(erased, deep=True) == (Severity.OK, [])


def differ(world: World, change: Callable[[bytes], bytes]) -> None:
    """The broker has other bytes, which are sound."""
    world.disk.partition().segment(100, change(records(100, 200)))


DIFFERENCES: dict[str, Callable[[bytes], bytes]] = {
    "an untouched batch": lambda data: (
        records(100, 110) + records(110, 120, value="x") + data[len(records(100, 120)) :]
    ),
    "the producer of a touched one": lambda data: records(100, 110, value="x") + data[len(records(100, 110)) :],
    "a batch less": lambda data: data[: len(records(100, 190))] + reseal(records(190, 199), last_offset_delta=8),
    "damage": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
}


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("an untouched batch", (Severity.PARTED, 110, 200, True)),
        ("the producer of a touched one", (Severity.PARTED, 100, 200, True)),
        ("a batch less", (Severity.PARTED, 190, 200, True)),
        ("damage", (Severity.CORRUPT, 100, 200, True)),
    ],
)
def test_verify_finds_every_other_difference(erased: World, kind: str, found: tuple[Severity, int, int, bool]) -> None:
    differ(erased, DIFFERENCES[kind])
    assert found in examine(erased, deep=True)[1]


@pytest.mark.parametrize("batches", [((100, 1), (130, 10)), ((100, 2),), ((100, 2), (130, 10), (140, 1)), ((101, 1),)])
def test_verify_finds_a_record_that_is_gone_beyond_the_erased_ones(
    erased: World, batches: tuple[tuple[int, int], ...]
) -> None:
    manifest = stored_manifest(erased, "e1").manifest
    assert manifest.erased is not None
    said = manifest.erased.model_copy(update={"batches": batches})
    key = erased.keys().manifest(manifest.name)
    erased.store.inner.put(key, manifest.model_copy(update={"erased": said}).to_bytes())
    [finding] = verified(erased, deep=True)[1]
    assert (finding.word, finding.object) == (Severity.CORRUPT, erased.keys().segment(manifest.name, "log"))


def test_nothing_is_uploaded_again_beside_it(erased: World) -> None:
    assert outcomes(reuploaded(erased)) == [(0, "as it was"), (100, "as it was"), (200, "as it was")]
    assert not erased.store.puts


def test_if_it_is_lost_the_old_bytes_come_back_until_the_next_pass(erased: World) -> None:
    for extension in ("log", "index", "timeindex", "manifest.json"):
        erased.store.inner.delete(erased.keys().segment(SegmentName(100, "e1"), extension))
    assert outcomes(reuploaded(erased, 100, 200)) == [(100, "brought")]
    assert erased.stored(100) == records(100, 200)
    assert examine(erased, deep=True) == (Severity.OK, [])
    erase(erased, number=2)
    assert examine(erased, deep=True) == (Severity.OK, [])


def test_another_erasure_of_the_same_seal_is_the_next_one(erased: World) -> None:
    second = erase(erased, [105, 107, 131, 150], "e1", number=2)
    assert second.erased is not None
    assert second.suffix == "e2"
    assert second.erased.batches == ((100, 3), (130, 10), (150, 1))
    assert len(second.erased.masks) == 2
    assert examine(erased, deep=True) == (Severity.OK, [])


def test_lost_indexes_of_it_are_made_again(erased: World) -> None:
    erased.store.inner.delete(erased.keys().segment(SegmentName(100, "e1"), "index"))
    assert outcomes(reuploaded(erased, 100, 200)) == [(100, "rebuilt")]
    assert examine(erased, deep=True) == (Severity.OK, [])


def test_without_its_manifest_it_is_unknown_and_the_old_bytes_come_back(erased: World) -> None:
    erased.store.inner.delete(erased.keys().manifest(SegmentName(100, "e1")))
    assert outcomes(reuploaded(erased, 100, 200)) == [(100, "brought")]
    assert erased.stored(100) == records(100, 200)
    assert examine(erased, deep=True) == (Severity.OK, [])


def test_packs_bring_no_erased_record_back(world: World) -> None:
    lacking(world, records(0, 50))
    erase(world, [3, 12, 13], base=0)
    assert spans(world) == [], "nothing is lacking"
    assert made_whole(world) == []
    assert examine(world, deep=True) == (Severity.OK, [])


def test_packs_that_bring_more_than_that_undo_the_erasure_until_the_next_pass(world: World) -> None:
    lacking(world, records(0, 50))
    new = erase(world, [3, 12, 13], base=0)
    assert new.erased is not None
    said = new.erased.model_copy(update={"batches": ((10, 1),)})
    world.store.inner.put(world.keys().manifest(new.name), new.model_copy(update={"erased": said}).to_bytes())
    [row] = made_whole(world)
    assert row.outcome == "brought"
    assert world.manifest(0, suffix="e1").erased is None
    assert world.stored(0, suffix="e1") == records(0, 50)
