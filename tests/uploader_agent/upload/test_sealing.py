"""Agents of several leaders seal one log: what each leaves at any point, what the next makes of it, who stops whom."""

from __future__ import annotations

import random
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.txn_index import txn_entries
from tests.tidemark.kafka_log.build import marker, transactional
from tests.tidemark.remote.reader import Reader
from tests.uploader_agent.fakes import CLUSTER, ID, FakePartition, T, World, records
from tests.uploader_agent.repair.test_gaps import die_before
from tests.uploader_agent.test_agent import no_errors
from tidemark.formats.keys import SegmentName
from tidemark.kafka_log import scan_batches
from tidemark.storage import PartitionStore, Storage
from uploader_agent.broker.admin import Cleanup, Led, Offsets
from uploader_agent.disk.segment_files import EPOCHS, PartitionFiles, SegmentChanged
from uploader_agent.upload.local_run import ScannedSegment, SealRun, scan
from uploader_agent.upload.segment_upload import Diverged, SegmentSealer, UploadRoute


@pytest.fixture
def second(world: World) -> World:
    """Broker 1 has sealed [0, 300) in three segments; broker 2 leads since, and has [100, 400) in one."""
    world.disk.partition().fill(0, 100, 200, end=300)
    world.once()
    found = world.another(2, leads={T: Led(4, ID)})
    found.disk.partition().fill(0, 100, end=400)
    world.store.puts.clear()
    return found


@pytest.fixture
def third(world: World, second: World) -> World:
    """Broker 3, which leads after broker 2; its segments begin elsewhere."""
    found = world.another(3, leads={T: Led(5, ID)})
    found.disk.partition().fill(0, 150, 350, end=400)
    return found


def mismatched(world: World) -> list[str]:
    """The ``.log`` objects that are not those of their manifests. One without a manifest counts for nobody."""
    names = [SegmentName.parse(name) for name in world.names() if ".manifest.json" in name]
    found = [world.manifest(one[0].base, suffix=one[0].suffix) for one in names if one is not None]
    described = {one.log_name: one.objects[one.log_name].etag for one in found}
    head = world.store.inner.head
    return [name for name, etag in described.items() if head(world.keys().file(name)).etag != etag]


def read(world: World) -> list[int]:
    """The offsets that a consumer of the store reads."""
    with Reader(Storage.at(world.store.url, CLUSTER)) as reader:
        return [one.offset for one in reader.read(0)]


def written_twice(world: World) -> list[str]:
    """The objects of segments that were put more than once."""
    segments = (key for key in world.store.puts if key.startswith(world.keys().folder) and not key.endswith(".wm"))
    return [key for key, count in Counter(segments).items() if count > 1]


def test_a_leader_seals_what_the_store_lacks_and_nothing_else(world: World, second: World) -> None:
    no_errors(second.once())
    assert [name for name in world.names() if name.endswith(".log")] == [
        f"{base:020d}.log" for base in (0, 100, 200, 300)
    ]
    assert world.stored(300) == records(300, 400)
    assert (world.manifest(300).base_offset, world.manifest(300).next_offset) == (300, 400)
    assert written_twice(world) == []
    assert read(world) == list(range(400))


@pytest.mark.parametrize("bases", [(0, 150, 250), (0, 100), (0,)], ids=["other bases", "the same base", "a base less"])
def test_another_leads_before_any_write_of_the_former(
    tmp_path: Path, rng: random.Random, full: bool, bases: tuple[int, ...]
) -> None:
    """Whichever write it is: in the end all can be read, and no object was written twice."""
    numbers = range(1, 9)
    for number in numbers if full else rng.sample(numbers, 3):
        world = World(tmp_path / str(number))
        world.disk.partition().fill(0, 100, 200, end=300)
        world.once()
        second, third = (world.another(broker, leads={T: Led(broker + 2, ID)}) for broker in (2, 3))
        second.disk.partition().fill(0, 100, 350, end=400)
        third.disk.partition().fill(*bases, end=500)
        writes: list[str] = []
        world.store.puts.clear()

        def before(
            operation: str,
            key: str,
            world: World = world,
            number: int = number,
            third: World = third,
            writes: list[str] = writes,
        ) -> None:
            if operation == "put":
                writes.append(key)
                if len(writes) == number:
                    third.once()

        world.store.before = before
        second.once(upload={"concurrency": 1}, retry_initial="1ms", retry_cap="1ms")
        world.store.before = lambda _operation, _key: None
        assert len(writes) >= number, "the former leader wrote less"
        third.once()
        assert mismatched(world) == [], (number, writes)
        assert written_twice(world) == [], (number, writes)
        assert read(world) == list(range(500)), (number, writes)


@pytest.mark.parametrize(
    ("stored_end", "ends"),
    [(340, [340, 350, 400]), (350, [350, 400]), (370, [370, 400])],
    ids=["shorter", "the same", "beyond its local segment"],
)
def test_bytes_that_a_dead_leader_left_without_a_manifest_are_adopted(
    world: World, second: World, stored_end: int, ends: list[int]
) -> None:
    """They end where they end; the next leader's segment boundaries play no part."""
    key = world.keys().segment(SegmentName(300), "log")
    world.store.inner.put(key, records(300, stored_end))
    second.disk.partition().fill(0, 100, 350, end=400)
    no_errors(second.once())
    bases = [300, *ends[:-1]]
    assert [world.manifest(base).next_offset for base in bases] == ends
    assert key not in world.store.puts
    assert read(world) == list(range(400))


def test_bytes_that_a_dead_leader_left_are_adopted_whole(world: World, second: World) -> None:
    """What an earlier leader sealed was committed: the high watermark that this one has been told may be older."""
    world.store.inner.put(world.keys().segment(SegmentName(300), "log"), records(300, 390))
    second.disk.partition().fill(0, 100, 350, end=400)
    second.metadata.default_high = 360
    no_errors(second.once())
    assert world.manifest(300).next_offset == 390
    second.metadata.default_high = 400
    no_errors(second.once())
    assert read(world) == list(range(400))


@pytest.mark.parametrize("died_before", ["the manifest", "the next leader"])
def test_bytes_of_a_branch_that_an_election_cut_off_stay(world: World, died_before: str) -> None:
    """Under the same base offset: the live branch has a name of its own, which the next leader finds."""
    world.disk.partition().fill(0, 100, end=200)
    world.once()
    theirs = world.stored(100)
    second = world.another(2, leads={T: Led(5, ID)})
    partition = second.disk.partition().lineage([(3, 0), (5, 100)]).fill(0, 100, end=300)
    partition.segment(100, records(100, 300, epoch=5))
    name = SegmentName.of_branch(100, 5)
    if died_before == "the manifest":
        die_before(second, world.keys().manifest(name))
        assert name.file("manifest.json") not in world.names()
        second = world.another(3, leads={T: Led(6, ID)})
        partition = second.disk.partition().lineage([(3, 0), (5, 100)]).fill(0, 100, 150, end=300)
        partition.segment(100, records(100, 150, epoch=5))
        partition.segment(150, records(150, 300, epoch=5))
    no_errors(second.once())
    assert mismatched(world) == []
    assert (world.manifest(100, suffix="5").next_offset, world.stored(100)) == (300, theirs)
    assert written_twice(world) == []
    assert read(world) == list(range(300))
    _, watermark = world.watermark()
    assert (watermark.next_offset, watermark.lineage[:2]) == (300, ((3, 0), (5, 100)))


def test_a_third_branch_has_a_name_of_its_own(world: World) -> None:
    world.disk.partition().fill(0, 100, end=200)
    world.once()
    for broker, epoch in ((2, 5), (3, 7)):
        other = world.another(broker, leads={T: Led(epoch, ID)})
        partition = other.disk.partition().lineage([(3, 0), (epoch, 100)]).fill(0, 100, end=200)
        partition.segment(100, records(100, 200, epoch=epoch))
        no_errors(other.once())
    assert [world.manifest(100, suffix=suffix).lineage[-1] for suffix in ("", "5", "7")] == [(3, 0), (5, 100), (7, 100)]
    assert world.watermark()[1].lineage == ((3, 0), (7, 100))
    assert read(world) == list(range(200))


def test_a_log_that_returns_to_a_branch_finds_what_is_stored_of_it(world: World) -> None:
    """Two unclean elections: what the first one cut off counts again after the second."""
    world.disk.partition().fill(0, 100, end=200)
    world.once()
    second = world.another(2, leads={T: Led(5, ID)})
    partition = second.disk.partition().lineage([(3, 0), (5, 100)]).fill(0, end=100)
    partition.segment(100, records(100, 150, epoch=5))
    partition.segment(150, b"")
    second.metadata.default_high = 150
    no_errors(second.once())
    assert world.watermark()[1].next_offset == 150
    third = world.another(3, leads={T: Led(6, ID)})
    third.disk.partition().fill(0, 100, end=200)
    third.disk.partition().segment(200, records(200, 250, epoch=6))
    third.disk.partition().roll(250)
    third.disk.partition().lineage([(3, 0), (6, 200)])
    third.metadata.default_high = 250
    world.store.puts.clear()
    no_errors(third.once())
    assert world.watermark()[1].next_offset == 250
    assert [key for key in world.store.puts if key.endswith(".log")] == [world.keys().segment(SegmentName(200), "log")]
    assert read(world) == list(range(250))


@pytest.mark.parametrize(("cut", "line_1"), [(0, 0), (60, 0), (100, 0), (250, 200)])
def test_line_1_goes_down_with_a_cut(world: World, cut: int, line_1: int) -> None:
    """It names a segment below the next offset, and never one of the dead branch."""
    world.disk.partition().fill(0, 100, 200, end=300)
    world.once()
    assert world.watermark()[0] == 200
    second = world.another(2, leads={T: Led(5, ID)})
    partition = second.disk.partition().lineage([(3, 0), (5, cut)] if cut else [(5, 0)])
    base = cut // 100 * 100
    partition.fill(*range(0, base, 100), end=base) if base else None
    partition.segment(base, records(base, cut) if cut > base else b"")
    second.metadata.default_high = cut
    no_errors(second.once())
    found = world.watermark()
    assert (found[0], found[1].next_offset) == (line_1, cut)


@pytest.mark.parametrize("left", ["damaged", "empty"])
def test_what_does_not_begin_with_a_batch_of_the_log_stays(world: World, left: str) -> None:
    content = b"\xff" + records(0, 100)[1:] if left == "damaged" else b""
    world.store.inner.put(world.keys().segment(SegmentName(0), "log"), content)
    world.disk.partition().fill(0, end=100)
    no_errors(world.once())
    assert (world.stored(0), world.stored(0, suffix="3")) == (content, records(0, 100))
    assert read(world) == list(range(100))


def test_an_index_that_does_not_follow_from_its_log_is_told_and_mended_by_a_repair(world: World) -> None:
    world.disk.partition().fill(0, end=100)
    key = world.keys().segment(SegmentName(0), "index")
    world.store.inner.put(key, b"12345678")
    agent = world.once()
    assert "reupload" in str(agent.leadership.partitions[T].error)
    assert world.store.inner.get(key).body == b"12345678"


def test_bytes_beyond_the_log_end_are_of_another_branch(world: World) -> None:
    """The election took the end of the log; the next leader has appended nothing since."""
    world.disk.partition().fill(0, end=100)
    world.once()
    world.store.inner.put(world.keys().segment(SegmentName(100), "log"), records(100, 200))
    second = world.another(2, leads={T: Led(5, ID)})
    partition = second.disk.partition().lineage([(3, 0), (5, 150)]).fill(0, end=100)
    partition.segment(100, records(100, 150))
    partition.segment(150, b"")
    second.metadata.default_high = 150
    no_errors(second.once())
    assert (world.manifest(100).next_offset, world.manifest(100).lineage) == (200, ((3, 0),))
    assert world.stored(100) == records(100, 200)
    assert world.watermark()[1].next_offset == 150
    partition.segment(150, records(150, 160, epoch=5)).roll(160)
    second.metadata.default_high = 160
    no_errors(second.once())
    assert read(world) == list(range(160))


def test_the_log_start_may_lie_within_the_first_batch_of_an_epoch(world: World) -> None:
    """The broker's lineage begins at the log start then, and the epoch, with its batch, below it."""
    partition = world.disk.partition().fill(0, 100, end=200)
    no_errors(world.once())
    for path in partition.folder.glob("*.*[gxt]"):
        path.unlink()
    partition.lineage([(4, 205)])
    partition.fill(200, end=300, epoch=4)
    world.begins_epochs, world.metadata.log_start = False, 205
    world.metadata.leads = {T: Led(4, ID)}
    no_errors(world.once())
    assert world.watermark()[1].lineage == ((3, 0), (4, 200))
    assert read(world) == list(range(300))


def test_a_leader_names_its_epoch_before_it_seals_anything(world: World) -> None:
    """Else nobody would know of the cut before something new is sealed."""
    world.disk.partition().fill(0, end=100)
    world.once()
    assert world.store.puts.index(world.keys().watermark) < world.store.puts.index(
        world.keys().segment(SegmentName(0), "log")
    )
    second = world.another(2, leads={T: Led(4, ID)})
    second.disk.partition().fill(0, 100, end=200)
    world.store.puts.clear()
    second.once()
    assert world.store.puts.index(world.keys().watermark) < world.store.puts.index(
        world.keys().segment(SegmentName(100), "log")
    )


def test_a_leader_claims_nothing_before_its_log_shows_its_epoch(world: World) -> None:
    """Metadata names it first: the claim would say that the branch goes on which its epoch is about to end."""
    partition = world.disk.partition().fill(0, 100, end=200)
    world.begins_epochs, world.metadata.leads = False, {T: Led(5, ID)}
    world.once()
    assert world.names() == []
    partition.lineage([(3, 0), (5, 100)])
    partition.segment(100, records(100, 200, epoch=5))
    no_errors(world.once())
    assert world.watermark()[1].lineage == ((3, 0), (5, 100))


def test_a_deposed_leader_seals_its_own_branch_and_publishes_nothing(world: World) -> None:
    """It meets the next leader's bytes under its base offset: its own get a name of their own, and offset.wm stays."""
    deposed = world.disk.partition().fill(0, end=100)
    world.once()
    deposed.fill(0, 100, end=200)
    second = world.another(2, leads={T: Led(5, ID)})
    partition = second.disk.partition().lineage([(3, 0), (5, 100)]).fill(0, 100, end=200)
    partition.segment(100, records(100, 200, epoch=5))
    log = world.keys().segment(SegmentName(100), "log")

    def before(operation: str, key: str) -> None:
        if (operation, key) == ("put", log):
            world.store.before = lambda _operation, _key: None
            die_before(second, world.keys().segment(SegmentName(100), "manifest.json"))

    world.store.before = before
    agent = world.once()
    assert "Fenced" in str(agent.leadership.partitions[T].error)
    assert world.stored(100) == records(100, 200, epoch=5)
    assert world.stored(100, suffix="3") == records(100, 200)
    assert world.watermark()[1].leader_epoch == 5
    no_errors(second.once())
    assert read(world) == list(range(200))


def test_a_deposed_leader_does_not_seal_what_a_later_leader_wrote(world: World) -> None:
    """It has truncated and fetched, and knows only the high watermark of before: the rest may not be committed."""
    content = records(0, 30) + records(30, 50, epoch=4)
    partition = world.disk.partition().segment(0, records(0, 30))
    with world.agent() as agent:
        agent.refresh()
        uploader = agent.leadership.partitions[T].uploader
        uploader.claim()
        partition.lineage([(3, 0), (4, 30)])
        partition.segment(0, content).roll(50)
        agent.refresh()
        with pytest.raises(SegmentChanged, match="the next leader seals them"):
            uploader.run(SealRun(0, 50, 0, 50))
    assert world.names() == ["offset.wm"]
    world.metadata.leads = {T: Led(4, ID)}
    no_errors(world.once())
    assert world.stored(0) == content


@pytest.mark.parametrize("when", ["after the scan", "after the PUT of the .log"])
@pytest.mark.parametrize(("active", "change"), [(False, "written"), (False, "cut"), (True, "cut")])
def test_what_changes_while_it_is_read_is_not_sealed(
    world: World, monkeypatch: pytest.MonkeyPatch, when: str, active: bool, change: str
) -> None:
    """Although the lineage stays as it is."""
    content, partition = records(0, 50), world.disk.partition()
    path = partition.segment(0, content).log(0)
    if not active:
        partition.roll(50)

    def scan_then_change(*read: Any) -> ScannedSegment:
        found = scan(*read)
        changed()
        return found

    def changed(_operation: str = "", _key: str = "") -> None:
        world.store.after = lambda _operation, _key: None
        path.write_bytes(content[:-20] if change == "cut" else content + records(50, 60))

    if when == "after the scan":
        monkeypatch.setattr("uploader_agent.upload.segment_upload.scan", scan_then_change)
    else:
        world.store.after = changed
    with pytest.raises(SegmentChanged, match="changed while it was read"):
        seal(world, partition, active=active)
    assert not [name for name in world.names() if "manifest" in name]
    assert (world.store.puts == []) == (when == "after the scan")


def test_an_active_segment_may_grow_while_it_is_read(world: World) -> None:
    partition = world.disk.partition().segment(0, records(0, 50))
    world.store.after = lambda _operation, _key: partition.segment(0, records(0, 60)).log(0).touch()
    seal(world, partition, active=True)
    assert world.stored(0) == records(0, 50)


def test_what_is_not_the_bytes_of_its_manifest_is_not_adopted(world: World) -> None:
    partition = world.disk.partition().segment(0, records(0, 50))
    seal(world, partition, active=True)
    other = records(0, 50, value="other")
    world.store.inner.put(world.keys().segment(SegmentName(0), "log"), other)
    with pytest.raises(Diverged, match="is not what its manifest describes"):
        seal(world, partition, active=True)
    assert world.stored(0) == other


def test_the_leader_epochs_are_read_before_and_after_a_scan_and_for_offset_wm(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the three finds a race that the others do not. A survey and a claim read them, too."""
    reads, text = list[str](), PartitionFiles.text

    def counted(files: PartitionFiles, name: str) -> str | None:
        reads.append(name)
        return text(files, name)

    monkeypatch.setattr(PartitionFiles, "text", counted)
    partition, counts = world.disk.partition(), list[int]()
    for base in (0, 50, 100):
        partition.segment(base, records(base, base + 50)).roll(base + 50)
        if base == 50:
            continue
        reads.clear()
        no_errors(world.once(upload={"concurrency": 1}))
        counts.append(reads.count(EPOCHS))
    assert counts[1] - counts[0] == 3, "the second start has one segment more"


def seal(world: World, partition: FakePartition, *, active: bool) -> None:
    """Seal [0, 50), which is all that the segment has, and is rotated unless it is ``active``."""
    route = UploadRoute(T, ID, partition.folder, PartitionStore(world.store, world.keys()), 1)
    sealer = SegmentSealer(
        route=route, offsets=Offsets(50), cleanup=Cleanup("delete"), judge=lambda _scanned, lineage: lineage
    )
    with route.files() as files:
        sealer.seal(files, SealRun(0, 50, 0, None if active else 50))


def as_epoch(content: bytes, base: int, epoch: int) -> bytes:
    """The same batches, written under another leader epoch, which their checksum does not cover."""
    changed = bytearray(content)
    for header in scan_batches([content], "content", base):
        struct.pack_into(">i", changed, header.position + 12, epoch)
    return bytes(changed)


def test_transactions_open_at_the_start_of_a_run_are_known_wherever_it_begins(world: World) -> None:
    """No producer snapshot lies there, and no stored segment ends there: the log itself is read from its beginning."""
    branch = transactional(0, 7, 10) + transactional(10, 8, 10)
    content = transactional(0, 7, 10) + transactional(10, 8, 10) + transactional(20, 7, 10)
    content += marker(30, 7, commit=False) + marker(31, 8, commit=True) + transactional(32, 9, 8)
    partition = world.disk.partition().segment(0, content).segment(40, b"")
    world.metadata.leads = {T: Led(4, ID)}
    partition.lineage([(3, 0), (4, 20)])
    first = world.another(2, leads={T: Led(3, ID)})  # stored [0, 40) of a branch that was cut off at 20
    first.disk.partition().segment(0, branch + transactional(20, 11, 20)).segment(40, b"")
    first.once()
    partition.segment(0, branch + as_epoch(content[len(branch) :], 20, 4))
    no_errors(world.once())
    assert (world.manifest(20).base_offset, world.manifest(20).next_offset) == (20, 40)
    assert [(one.producer_id, one.first_offset) for one in world.manifest(20).open_transactions] == [(9, 32)]
    assert txn_entries(world.stored(20, "txnindex")) == [(7, 0, 30, 10)]
