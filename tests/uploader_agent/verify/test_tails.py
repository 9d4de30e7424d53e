"""What ``verify`` says of partitions that are claimed or packed, and of damaged heads and packs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.uploader_agent.fakes import ID, T, World, records
from tests.uploader_agent.packs.packing import append, entries, pack_once, packs, spans
from tests.uploader_agent.test_agent import flipped
from tests.uploader_agent.verify.test_verify import examine, verified
from tidemark.formats.keys import PackName
from tidemark.formats.raw import pack as pack_format
from tidemark.formats.raw.pack import Pack
from uploader_agent.broker.admin import Led
from uploader_agent.verify import Severity, VerifyFinding

BOTH = pytest.mark.parametrize("deep", [False, True], ids=["", "deep"])


@pytest.fixture
def packed(world: World) -> World:
    """[0, 50) in two ranges of two packs; nothing is sealed."""
    partition = world.disk.partition().segment(0, records(0, 30))
    pack_once(world, 30)
    append(partition, 0, records(30, 50))
    pack_once(world, 50)
    assert spans(world) == [(0, 30), (30, 50)]
    return world


@BOTH
def test_a_partition_that_is_claimed_is_not_wrong(world: World, *, deep: bool) -> None:
    world.disk.partition().segment(0, b"")
    with world.agent(freshness={".*": "3s"}) as agent:
        agent.refresh()
        agent.leadership.partitions[T].uploader.claim()
    verdict, [finding] = verified(world, deep=deep)
    assert (verdict.word, verdict.wrong, verdict.packed_end) == (Severity.CLAIMED, 0, None)
    assert finding.detail == "claimed by broker 1 under leader epoch 3; nothing is stored yet"


@BOTH
def test_a_partition_that_is_packed_is_not_wrong(packed: World, *, deep: bool) -> None:
    verdict, findings = verified(packed, deep=deep)
    assert findings == [VerifyFinding(Severity.PACKED, 0, 50, None, "in packs, and not sealed yet")]
    assert (verdict.word, verdict.wrong, verdict.packed_end, verdict.ranges) == (Severity.PACKED, 0, 50, 2)
    size = sum(one.range.size for one in packs(packed))
    said = f"0 segments, 0 bytes, packed up to 50 in 2 ranges, {size} bytes, next offset 0, high watermark 50"
    assert (verdict.packed_bytes, verdict.in_words()) == (size, said)


@BOTH
def test_packs_behind_segments(world: World, *, deep: bool) -> None:
    partition = world.disk.partition().fill(0, end=100)
    world.metadata.default_high = 100
    world.once()
    append(partition, 100, records(100, 130))
    pack_once(world, 130)
    assert examine(world, deep=deep) == (Severity.PACKED, [(Severity.PACKED, 100, 130, False)])


@BOTH
def test_what_is_sealed_is_not_packed_any_more(packed: World, *, deep: bool) -> None:
    packed.disk.partition().roll(50)
    packed.once()
    assert len(entries(packed)) == 1, "the head lags"
    assert examine(packed, deep=deep) == (Severity.OK, [])


@BOTH
def test_a_line_1_that_names_no_segment_is_wrong_where_packs_go_on(packed: World, *, deep: bool) -> None:
    """Without a segment, line 1 is the start and nothing else."""
    key = packed.keys().watermark
    packed.store.inner.put(key, packed.store.inner.get(key).body.replace(b"0\n", b"7\n", 1))
    findings = verified(packed, deep=deep)[1]
    assert [(one.word, one.object) for one in findings if one.wrong] == [(Severity.CORRUPT, key)]


@BOTH
def test_a_damaged_head_is_named(packed: World, *, deep: bool) -> None:
    key = packed.control.head(1)
    packed.store.inner.put(key, b"garbage")
    verdict, findings = verified(packed, deep=deep)
    assert verdict.word is Severity.CORRUPT
    assert [(one.object, one.wrong) for one in findings if one.word is Severity.CORRUPT] == [(key, True)]


@BOTH
def test_a_pack_that_is_gone_leaves_a_hole(packed: World, *, deep: bool) -> None:
    first, second = packs(packed)
    packed.store.inner.delete(first.key)
    assert examine(packed, deep=deep) == (Severity.GAP, [(Severity.PACKED, 30, 50, False), (Severity.GAP, 0, 30, True)])
    packed.store.inner.delete(second.key)
    findings = verified(packed, deep=deep)[1]
    assert [(one.offset, one.end, one.object) for one in findings] == [(0, 50, packed.control.head(1))]


@BOTH
def test_a_damaged_line_is_named(packed: World, *, deep: bool) -> None:
    """A chain that cannot be followed has no ranges, for no reader."""
    [_, second] = packs(packed)
    body = packed.store.inner.get(second.key).body
    packed.store.inner.put(second.key, body.replace(b'"partition":0', b'"partition":8'))
    findings = verified(packed, deep=deep)[1]
    assert [one.object for one in findings if one.word is Severity.CORRUPT] == [second.key]
    assert [(one.offset, one.end) for one in findings if one.word is Severity.GAP] == [(0, 50)]


def test_deep_reads_the_bytes_of_packs(packed: World) -> None:
    first = packs(packed)[0]
    body = packed.store.inner.get(first.key).body
    packed.store.inner.put(first.key, flipped(body[: first.range.size]) + body[first.range.size :])
    assert examine(packed) == (Severity.PACKED, [(Severity.PACKED, 0, 50, False)])
    findings = verified(packed, deep=True)[1]
    [corrupt] = [one for one in findings if one.word is Severity.CORRUPT]
    assert (corrupt.object, corrupt.offset, corrupt.end, corrupt.wrong) == (first.key, 0, 30, True)
    assert "crc32c" in corrupt.detail
    assert [(one.offset, one.end) for one in findings if one.word is Severity.GAP] == [(0, 30)]


def replaced_pack(world: World, data: bytes, **changes: object) -> None:
    """The only pack of the world gets ``data``, and a line with ``changes``; its checksums are right."""
    [packed] = packs(world)
    name = PackName.parse(packed.key.removeprefix(world.control.tails))
    pack = Pack(name)
    content = pack_format.RangeContent.model_validate({**packed.range.model_dump(), **changes})
    assert pack.add(content, data)
    world.store.inner.put(packed.key, pack.body)
    key = world.control.head(1)
    body = world.store.inner.get(key).body
    last = entries(world)[0].last
    [written] = pack.ranges
    old = f'"length":{last.length},"pack":"{last.pack}","position":{last.position}'.encode()
    new = f'"length":{written.pointer.length},"pack":"{last.pack}","position":{written.pointer.position}'.encode()
    assert old in body
    world.store.inner.put(key, body.replace(old, new))


@pytest.mark.parametrize(
    ("data", "changes", "word", "said"),
    [
        (lambda: records(0, 20) + flipped(records(20, 30)), {}, Severity.CORRUPT, "is damaged at byte"),
        (lambda: records(0, 20), {}, Severity.CORRUPT, "end at offset 20, and the footer says 30"),
        (
            lambda: records(0, 20) + records(20, 30, epoch=2),
            {},
            Severity.CORRUPT,
            "leader epochs ((3, 0), (2, 20)), and the footer says ((3, 0),)",
        ),
        (lambda: records(0, 10) + records(20, 30), {}, Severity.GAP, "was not compacted"),
        (lambda: records(0, 10) + records(20, 30), {"compacted": True}, Severity.COMPACTED, "removed by compaction"),
    ],
    ids=["a batch's checksum", "too short", "another epoch", "a hole", "a compacted hole"],
)
def test_deep_reads_the_batches_of_packs(
    world: World, data: Callable[[], bytes], changes: dict[str, object], word: Severity, said: str
) -> None:
    world.disk.partition().segment(0, records(0, 30))
    pack_once(world, 30)
    replaced_pack(world, data(), **changes)
    assert examine(world) == (Severity.PACKED, [(Severity.PACKED, 0, 30, False)])
    verdict, findings = verified(world, deep=True)
    [told] = [one for one in findings if said in one.detail]
    assert (told.word, told.object, told.wrong) == (word, packs(world)[0].key, word is not Severity.COMPACTED)
    assert (verdict.wrong > 0) == told.wrong


@BOTH
def test_only_what_is_on_the_lineage_counts(packed: World, *, deep: bool) -> None:
    """An unclean election has cut off what was packed from 20 on."""
    second = packed.another(2, leads={T: Led(4, ID)}, default_high=40)
    partition = second.disk.partition().lineage([(3, 0), (4, 20)])
    partition.segment(0, records(0, 20) + records(20, 40, epoch=4, value="other"))
    pack_once(second, 40)
    verdict, findings = verified(second, deep=deep)
    assert [(one.word, one.offset, one.end) for one in findings] == [(Severity.PACKED, 0, 40)]
    assert (verdict.ranges, verdict.packed_end) == (2, 40)


@BOTH
def test_a_rotated_segment_that_is_packed_lags(packed: World, *, deep: bool) -> None:
    packed.disk.partition().roll(50)
    assert examine(packed, deep=deep) == (
        Severity.LAGGING,
        [(Severity.PACKED, 0, 50, False), (Severity.LAGGING, 0, 50, False)],
    )


def test_heads_are_read_before_offset_wm_and_the_segments_last(packed: World) -> None:
    """In another order a seal and a shorter tail may replace a longer one, and offsets seem to be missing."""
    seen: list[str] = []
    with packed.agent(read_only=True) as agent:
        agent.survey()
    packed.store.before = lambda operation, key: seen.append(f"{operation} {key}")
    verified(packed)
    head, marks = f"get {packed.control.head(1)}", f"get {packed.keys().watermark}"
    at = len(seen) - 1 - seen[::-1].index(head)
    assert marks in seen[at:]
    assert f"list {packed.keys().folder}" in seen[at + seen[at:].index(marks) :]
