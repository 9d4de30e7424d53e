"""Each word of ``verify`` is provoked by the fault that it stands for, and by nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.raw_builder import word
from tests.tidemark.kafka_log.build import Record, batch, simple
from tests.uploader_agent.fakes import ID, FakePartition, T, World, records
from tests.uploader_agent.repair.test_gaps import mend_etags, with_hole
from tests.uploader_agent.test_agent import flipped, remove
from tidemark.formats.keys import SegmentName
from tidemark.raw.heads import LiveEnd
from uploader_agent.broker.admin import KafkaTier, Led
from uploader_agent.verify import Severity, VerifyFinding, VerifyVerdict, verify


@pytest.fixture
def stored(world: World) -> World:
    """[0, 300) in three segments, all well."""
    world.disk.partition().fill(0, 100, 200, end=300)
    world.once()
    assert examine(world) == (Severity.OK, [])
    assert examine(world, deep=True) == (Severity.OK, [])
    return world


def verified(
    world: World, *, deep: bool = False, lacking: Iterable[VerifyFinding] = ()
) -> tuple[VerifyVerdict, list[VerifyFinding]]:
    findings: list[VerifyFinding] = []
    world.store.puts.clear()
    with world.agent(read_only=True) as agent, ThreadPoolExecutor(3) as pool:
        agent.survey()
        partition = agent.leadership.partitions[T]
        assert partition.error is None or partition.uploader.parting is not None
        verdict = verify(partition, pool, findings.append, lambda _done: None, LiveEnd(), lacking, deep=deep)
    assert world.store.puts == [], "it only looks"
    return verdict, findings


def examine(world: World, *, deep: bool = False) -> tuple[Severity, list[tuple[Severity, int, int, bool]]]:
    verdict, findings = verified(world, deep=deep)
    assert verdict.wrong == sum(one.wrong for one in findings)
    return verdict.word, [(one.word, one.offset, one.end, one.wrong) for one in findings]


def put(world: World, base: int, extension: str, content: bytes) -> str:
    key = world.keys().segment(SegmentName(base), extension)
    return world.store.inner.put(key, content)


def delete(world: World, base: int, extension: str) -> None:
    world.store.inner.delete(world.keys().segment(SegmentName(base), extension))


def lie(world: World, base: int, extension: str, content: bytes) -> None:
    """Replace an object, and have its manifest say that it was so all along, but for the bytes' checksum."""
    etag = put(world, base, extension, content)
    manifest = world.manifest(base)
    name = f"{base:020d}.{extension}"
    objects = {**manifest.objects, name: manifest.objects[name].model_copy(update={"etag": etag})}
    put(world, base, "manifest.json", manifest.model_copy(update={"objects": objects}).to_bytes())


def test_a_lost_log_is_a_gap(stored: World) -> None:
    delete(stored, 100, "log")
    verdict, findings = verified(stored)
    assert verdict.word is Severity.GAP
    assert [(one.offset, one.end) for one in findings if one.wrong] == [(100, 200), (100, 200)]
    assert findings[0].object == stored.keys().segment(SegmentName(100), "log")
    assert "does not exist" in findings[0].detail
    assert "offset.wm counts them" in findings[1].detail


def test_a_lost_manifest_is_a_gap(stored: World) -> None:
    delete(stored, 100, "manifest.json")
    assert examine(stored) == (Severity.GAP, [(Severity.GAP, 100, 200, True), (Severity.LAGGING, 100, 200, False)]), (
        "the broker still has it, too"
    )


@pytest.mark.parametrize("extension", ["index", "timeindex"])
def test_another_lost_object_is_corrupt(stored: World, extension: str) -> None:
    base = 100
    delete(stored, base, extension)
    assert examine(stored) == (Severity.CORRUPT, [(Severity.CORRUPT, 100, 200, True)])


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (records(100, 190), "bytes, and its manifest says"),
        (flipped(records(100, 200)), "has CRC32C"),
        (records(100, 200), "is version"),
    ],
    ids=["truncated", "flipped byte", "another version of the same bytes"],
)
def test_an_object_that_is_not_the_manifests_is_corrupt(stored: World, content: bytes, rule: str) -> None:
    put(stored, 100, "log", content)
    verdict, findings = verified(stored)
    assert verdict.word is Severity.CORRUPT
    assert rule in findings[0].detail
    assert (findings[0].word, findings[0].object) == (Severity.CORRUPT, stored.keys().segment(SegmentName(100), "log"))


def remember_checksums(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on the store's checksums are those of the uploads, whatever becomes of the bytes: as S3's are."""
    head = world.store.head
    known = {info.key: head(info.key).crc32c for info in world.store.list(world.keys().folder)}
    monkeypatch.setattr(world.store, "head", lambda key: head(key)._replace(crc32c=known[key]))


@pytest.mark.parametrize("extension", ["log", "timeindex"])
def test_a_byte_that_rotted_is_seen_by_deep_alone(
    stored: World, extension: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember_checksums(stored, monkeypatch)
    lie(stored, 100, extension, flipped(stored.stored(100, extension)))
    assert examine(stored) == (Severity.OK, [])
    verdict, findings = verified(stored, deep=True)
    assert verdict.word is Severity.CORRUPT
    assert findings[0].object == stored.keys().segment(SegmentName(100), extension)


def test_a_manifest_that_does_not_parse_is_corrupt(stored: World) -> None:
    remove(FakePartition(stored.disk.log_dirs[0] / "orders-0"), 0)
    put(stored, 0, "manifest.json", b"{}")
    assert examine(stored) == (Severity.CORRUPT, [(Severity.CORRUPT, 0, 0, True), (Severity.GAP, 0, 100, True)])


def test_a_broker_s_file_that_differs_is_told(stored: World) -> None:
    partition = FakePartition(stored.disk.log_dirs[0] / "orders-0")
    partition.segment(100, records(100, 200, value="x"))
    assert examine(stored) == (Severity.OK, [])
    assert examine(stored, deep=True) == (Severity.PARTED, [(Severity.PARTED, 100, 200, True)])
    partition.segment(100, records(100, 150))
    assert examine(stored) == (Severity.CORRUPT, [(Severity.CORRUPT, 100, 200, True)])


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("shorter", [(Severity.CORRUPT, 50, 90, True)]),
        ("other bytes", [(Severity.PARTED, 50, 90, True)] * 2),  # as a segment, and as a history
    ],
)
def test_the_brokers_file_is_compared_wherever_a_segment_begins(
    world: World, change: str, found: list[tuple[Severity, int, int, bool]]
) -> None:
    """A quiet tail was sealed, and then the rest of its local segment."""
    partition = world.disk.partition().segment(0, records(0, 50))
    world.metadata.default_high = 50
    world.once(tail_after="0s")
    partition.segment(0, records(0, 90)).roll(90)
    world.metadata.default_high = 90
    world.once()
    assert examine(world, deep=True) == (Severity.OK, [])
    partition.segment(0, records(0, 80) if change == "shorter" else records(0, 50) + records(50, 90, value="other"))
    assert examine(world, deep=True) == (found[0][0], found)


def test_the_next_leader_continues_where_the_store_ends(stored: World) -> None:
    other = stored.another(2, leads={T: Led(4, ID)})
    partition = other.disk.partition().lineage([(3, 0), (4, 300)]).fill(0, 250, 350, end=400)
    partition.segment(250, records(250, 300) + records(300, 350, epoch=4))
    partition.segment(350, records(350, 400, epoch=4))
    other.once()
    assert examine(other) == (Severity.OK, [])
    assert [other.manifest(base).next_offset for base in (300, 350)] == [350, 400]


def test_segments_that_overlap(stored: World) -> None:
    """Two agents may meet while one of them knows less; a reader takes each offset once."""
    other = stored.another(2, leads={T: Led(3, ID)})
    other.disk.partition().fill(150, end=250)
    theirs = World(other.root / "apart")
    theirs.broker, theirs.disk, theirs.metadata = other.broker, other.disk, other.metadata
    theirs.once()
    for name in theirs.names():
        if name != "offset.wm":
            stored.store.inner.put(stored.keys().file(name), theirs.store.get(theirs.keys().file(name)).body)
    mend_etags(stored, 150)
    assert examine(stored) == (
        Severity.OVERLAP,
        [(Severity.OVERLAP, 150, 200, False), (Severity.OVERLAP, 200, 250, False)],
    )


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_missing_offsets_within_a_segment(world: World, policy: str) -> None:
    """They are compacted away, or a gap where nothing is compacted."""
    world.metadata.policy = policy
    partition = world.disk.partition().fill(0, 100, end=200)
    holey = simple(0, 10, leader_epoch=3) + batch(50, [Record(0)], leader_epoch=3)
    partition.segment(0, holey + (simple(90, 10, leader_epoch=3) if policy == "delete" else b""))
    world.once()
    found = [(one.offset, one.end) for one in verified(world, deep=True)[1]]
    if policy == "compact":
        assert examine(world) == (Severity.COMPACTED, [(Severity.COMPACTED, 51, 100, False)])
        assert examine(world, deep=True)[0] is Severity.COMPACTED
        assert found == [(10, 50), (51, 100)]
    else:
        assert examine(world) == (Severity.OK, []), "nothing but the bytes can tell"
        assert examine(world, deep=True)[0] is Severity.GAP
        assert found == [(10, 50), (51, 90)]


def test_an_unclean_election_has_truncated(stored: World) -> None:
    partition = FakePartition(stored.disk.log_dirs[0] / "orders-0")
    remove(partition, 100, 200, 300)
    partition.lineage([(3, 0), (5, 150)])
    partition.segment(100, records(100, 150) + records(150, 220, epoch=5))
    partition.segment(220, b"")
    partition.snapshot(220)
    stored.metadata.leads, stored.metadata.default_high = {T: Led(5, ID)}, 220
    stored.once()
    word, findings = examine(stored)
    assert word is Severity.TRUNCATED
    assert (Severity.TRUNCATED, 200, 300, False) in findings, "the whole segment is of the dead branch"
    assert (Severity.TRUNCATED, 200, 300, False) in findings, "the dead branch's segment says so"
    assert not any(wrong for *_, wrong in findings)


def test_what_has_not_gone_yet_lags(stored: World) -> None:
    partition = FakePartition(stored.disk.log_dirs[0] / "orders-0")
    partition.segment(300, records(300, 400)).roll(400)
    assert examine(stored) == (Severity.LAGGING, [(Severity.LAGGING, 300, 400, False)])
    stored.metadata.default_high = 399
    assert examine(stored) == (Severity.OK, []), "it may not go"


def test_a_watermark_that_lags(stored: World) -> None:
    key = stored.keys().watermark
    partition = FakePartition(stored.disk.log_dirs[0] / "orders-0")
    before = stored.store.get(key).body
    partition.segment(300, records(300, 400)).roll(400)
    stored.once()
    stored.store.inner.put(key, before)
    assert examine(stored) == (Severity.LAGGING, [(Severity.LAGGING, 300, 400, False)])


def test_an_open_gap_is_wrong_and_an_acknowledged_one_is_not(world: World) -> None:
    with_hole(world)
    world.once()
    assert examine(world) == (Severity.GAP, [(Severity.GAP, 100, 200, True)])
    world.store.inner.put(world.control.acknowledgement("orders", 0, 100, 200), word(100, 200).to_bytes())
    world.once()
    assert examine(world) == (Severity.GAP, [(Severity.GAP, 100, 200, False)])


def test_what_only_the_remote_tier_has_is_told_and_not_wrong(world: World) -> None:
    with_hole(world, log_start=0)
    world.metadata.tier = KafkaTier(200, 250)
    world.once()
    assert examine(world) == (Severity.TIERED, [(Severity.TIERED, 100, 200, False)])


def test_what_lies_below_the_first_stored_offset_is_told_and_not_wrong(world: World) -> None:
    world.disk.partition().fill(180, end=300)
    world.metadata.tier = KafkaTier(180, 250)
    world.once()
    assert examine(world) == (Severity.TIERED, [(Severity.TIERED, 0, 180, False)])


def test_a_damaged_segment_is_wrong_until_it_is_mended(world: World) -> None:
    world.disk.partition().fill(0, 100, end=200).segment(0, flipped(records(0, 100)))
    world.once()
    word, findings = examine(world)
    assert word is Severity.CORRUPT
    assert (Severity.GAP, 90, 100, True) in findings
    assert (Severity.CORRUPT, 90, 100, False) in findings
    follower = world.another(2, leads={})
    follower.disk.partition().fill(40, end=150)
    follower.once()
    world.once()
    word, findings = examine(world)
    assert word is Severity.CORRUPT
    assert not any(wrong for *_, wrong in findings), "the damaged bytes are kept, and nobody needs them"


def test_line_1_names_a_segment(stored: World) -> None:
    delete(stored, 200, "manifest.json")
    _, findings = verified(stored)
    assert any(one.object == stored.keys().watermark and one.word is Severity.CORRUPT for one in findings)
