"""The spool: a kill between any two writes leaves a directory that a start accepts, with a prefix of the log."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.tidemark.kafka_log.build import marker, simple
from tests.uploader_agent.intake.scripted import ID, OTHER_ID, T, batches_in, header_of, lineage_in
from tidemark.errors import FormatError
from tidemark.kafka_log import Lineage, OpenTransaction
from tidemark.kafka_log.transactions import open_transactions, parse_producer_snapshot, producer_snapshot
from uploader_agent.disk.log_dirs import find_partitions, find_segments, topic_id_of
from uploader_agent.intake.spool import PartitionSpool

SEGMENT = 300
WRITES = ("open", "pwrite", "fsync", "ftruncate", "rename", "unlink", "mkdir")
"""The system calls by which the spool changes its directory."""


def opened(root: Path, topic_id: str = ID) -> PartitionSpool:
    return PartitionSpool(root, T, topic_id, SEGMENT)


def fill(spool: PartitionSpool, count: int, epoch: int = 0) -> list[bytes]:
    """Append batches of three records, one by one."""
    added = []
    for _ in range(count):
        assert spool.end is not None
        raw = simple(spool.end, leader_epoch=epoch)
        spool.append(memoryview(raw), spool.end, spool.end + 3)
        added.append(raw)
    return added


def begun(root: Path, offset: int = 0) -> PartitionSpool:
    spool = opened(root)
    spool.follow(Lineage(((0, offset),)), None)
    spool.begin(offset)
    return spool


def test_is_laid_out_as_a_brokers_directory(tmp_path: Path) -> None:
    with closing(begun(tmp_path)) as spool:
        batches = fill(spool, 7)
        assert (spool.start, spool.end, spool.size) == (0, 21, sum(map(len, batches)))
    assert find_partitions([tmp_path]).partitions == {T: spool.folder}
    assert topic_id_of(spool.folder) == ID
    assert (spool.folder / "partition.metadata").read_bytes() == b"version: 0\ntopic_id: %s" % ID.encode()
    assert (spool.folder / "leader-epoch-checkpoint").read_bytes() == b"0\n1\n0 0\n"
    segments = find_segments(spool.folder)
    assert [segment.base_offset for segment in segments] == [0, 6, 12, 18], "two batches fit into a segment"
    assert batches_in(spool.folder) == batches


@pytest.mark.parametrize("rest", [b"\0" * 5000, b"\0" * 3, simple(6)[:-1], simple(6)[:20]])
def test_a_start_cuts_off_a_partial_batch(tmp_path: Path, rest: bytes) -> None:
    with closing(begun(tmp_path)) as spool:
        batches = fill(spool, 2)
    with next(spool.folder.glob("*.log")).open("ab") as file:
        file.write(rest)
    with closing(opened(tmp_path)) as again:
        assert (again.end, again.data_end, again.size) == (6, 6, sum(map(len, batches)))
        assert batches_in(again.folder) == batches
        batches += fill(again, 3)
    assert batches_in(again.folder) == batches


def test_a_start_cuts_off_from_the_first_damaged_batch_on(tmp_path: Path) -> None:
    """After a power loss a page may be missing with a later one there."""
    with closing(begun(tmp_path)) as spool:
        first, second = fill(spool, 2)
    path = next(spool.folder.glob("*.log"))
    path.write_bytes(first[:-8] + bytes(8) + second)
    with closing(opened(tmp_path)) as again:
        assert (again.start, again.end, again.data_end, again.size) == (0, 0, 0, 0)


@pytest.mark.parametrize("cut", range(22))
def test_a_cut_leaves_the_batches_below_it(tmp_path: Path, cut: int) -> None:
    with closing(begun(tmp_path)) as spool:
        batches = fill(spool, 7)
        spool.follow(Lineage(((0, 0), (1, cut))) if cut else Lineage(((1, 0),)), cut)
        kept = batches[: cut // 3]
        assert batches_in(spool.folder) == kept
        assert (spool.end, spool.data_end) == ((cut // 3 * 3, cut // 3 * 3) if cut else (None, 0))
        assert spool.size == sum(map(len, kept))
        if spool.end is None:
            spool.begin(0)
        kept += fill(spool, 4, 1)
    assert batches_in(spool.folder) == kept
    with closing(opened(tmp_path)) as again:
        assert again.end == len(kept) * 3
        assert again.lineage == lineage_in(again.folder)


def test_a_log_start_within_a_batch(tmp_path: Path) -> None:
    """The broker sends the batch that has the log start, whole."""
    with closing(begun(tmp_path, 500)) as spool:
        raw = simple(498, 5)
        spool.append(memoryview(raw), 498, 503)
    assert [path.stem for path in spool.folder.glob("*.log")] == [f"{498:020d}"]
    with closing(opened(tmp_path)) as again:
        assert (again.start, again.end, again.data_end) == (498, 503, 503)


def test_a_range_that_is_gone_is_between_two_segments(tmp_path: Path) -> None:
    with closing(begun(tmp_path)) as spool:
        fill(spool, 2)
        spool.begin(100)
        assert (spool.end, spool.data_end) == (100, 6)
    with closing(opened(tmp_path)) as again:
        assert again.end == 6, "an empty segment above a range that is gone says nothing: the leader does"
        again.begin(100)
        raw = simple(99, 3)
        again.append(memoryview(raw), 99, 102)
        segments = find_segments(again.folder)
        assert [(segment.base_offset, segment.size > 0) for segment in segments] == [(0, True), (6, False), (99, True)]
        snapshot = again.folder / f"{99:020d}.snapshot"
        assert parse_producer_snapshot(snapshot.read_bytes(), str(snapshot)) == []
        again.drop_below(99)
        assert (again.start, snapshot.exists()) == (99, True)
    with closing(opened(tmp_path)) as later:
        assert (later.start, later.end, later.size) == (99, 102, len(raw))
        later.empty()
        assert (later.start, later.end, later.size, find_segments(later.folder)) == (None, None, 0, [])
        later.remove()
        assert not later.folder.exists()


def test_a_first_batch_may_lie_over_all_that_is_gone(tmp_path: Path) -> None:
    """Then the segment that marks the beginning of the range has the batch's own name."""
    with closing(begun(tmp_path)) as spool:
        fill(spool, 2)
        spool.begin(8)
        raw = simple(6, 4)
        spool.append(memoryview(raw), 6, 10)
        spool.roll()
        assert [segment.base_offset for segment in find_segments(spool.folder)] == [0, 6, 10]
        spool.drop_below(10)
        assert [segment.base_offset for segment in find_segments(spool.folder)] == [10]
        assert spool.size == 0
    with closing(opened(tmp_path)) as again:
        assert (again.start, again.end) == (10, 10)


def test_segments_that_the_store_has_are_dropped_but_the_last(tmp_path: Path) -> None:
    with closing(begun(tmp_path)) as spool:
        for _ in range(3):
            fill(spool, 2)
            spool.roll()
        spool.roll()
        assert [segment.base_offset for segment in find_segments(spool.folder)] == [0, 6, 12, 18]
        spool.drop_below(11)
        assert (spool.start, spool.size) == (6, sum(segment.size for segment in find_segments(spool.folder)))
        spool.drop_below(100)
        assert [segment.base_offset for segment in find_segments(spool.folder)] == [18]


def open_at(spool: PartitionSpool, base: int) -> list[int]:
    """The first offsets of the transactions that the snapshot at ``base`` has open."""
    path = spool.folder / f"{base:020d}.snapshot"
    return [one.first_offset for one in open_transactions(parse_producer_snapshot(path.read_bytes(), str(path)))]


def test_a_segment_begins_with_the_transactions_that_are_open_there(tmp_path: Path) -> None:
    """After a restart, after a cut, and when the segments before it are gone."""

    def add(spool: PartitionSpool, raw: bytes) -> None:
        header = header_of(raw)
        spool.append(memoryview(raw), header.base_offset, header.next_offset, header, [header])

    def data(at: int, producer: int) -> bytes:
        return simple(at, 3, producer_id=producer, producer_epoch=0, attributes=0x10)

    spool = opened(tmp_path)
    spool.begin(50, [OpenTransaction(7, 0, 40)])
    add(spool, data(50, 8))
    spool.close()
    with closing(opened(tmp_path)) as spool:
        spool.roll()
        add(spool, marker(53, 7, commit=True))
        add(spool, data(54, 9))
        spool.roll()
        assert [open_at(spool, base) for base in (50, 53, 57)] == [[40], [40, 50], [50, 54]]
        spool.follow(spool.lineage, 54)
        spool.roll()
        assert open_at(spool, 54) == [50]
        spool.drop_below(54)
        add(spool, data(54, 9))
        spool.begin(100)
        assert (open_at(spool, 57), open_at(spool, 100)) == ([50, 54], [])


def test_a_snapshot_without_its_segment_is_removed(tmp_path: Path) -> None:
    """A process was killed between the two, and the log may go on otherwise."""
    with closing(begun(tmp_path)) as spool:
        fill(spool, 2)
        (spool.folder / f"{6:020d}.snapshot").write_bytes(producer_snapshot([]))
    with closing(opened(tmp_path)) as again:
        assert [path.stem for path in again.folder.glob("*.snapshot")] == [f"{0:020d}"]


def test_offsets_of_a_segment_fit_31_bits(tmp_path: Path) -> None:
    """Compaction may leave two batches that are far apart."""
    far = (1 << 31) + 10
    with closing(begun(tmp_path)) as spool:
        fill(spool, 1)
        raw = simple(far)
        spool.append(memoryview(raw), far, far + 3)
        assert [segment.base_offset for segment in find_segments(spool.folder)] == [0, 3]


def test_another_incarnation_is_refused(tmp_path: Path) -> None:
    begun(tmp_path).close()
    with pytest.raises(FormatError, match=r"orders-0: holds the topic with the id .* move the directory away"):
        opened(tmp_path, OTHER_ID)


def test_a_directory_that_is_no_spool_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / str(T)
    folder.mkdir()
    (folder / f"{0:020d}.log").write_bytes(simple(0))
    with pytest.raises(FormatError, match=r"has segments and no partition.metadata: choose another directory"):
        opened(tmp_path)


class Killed(BaseException):
    """The process is dead: nothing after this call is written."""


class Killer:
    """Lets system calls pass until the ``last``; from then on each dies, and a write dies half-way through.

    With a ``full`` disk calls fail that need room on it, and the process goes on.
    """

    def __init__(self, last: int, *, full: bool = False) -> None:
        self._left = last
        self._full = full

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            if (name == "open" and not args[1] & os.O_CREAT) or (self._full and name in {"unlink", "ftruncate"}):
                return call(*args, **options)
            self._left -= 1
            if self._left < 0:
                if name == "pwrite" and self._left == -1:
                    call(args[0], bytes(args[1])[: len(args[1]) // 2], args[2])
                raise OSError(errno.ENOSPC, "No space left on device") if self._full else Killed
            return call(*args, **options)

        return counted


@pytest.fixture
def killed_after(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    calls = {name: getattr(os, name) for name in WRITES}

    def arm(last: int) -> None:
        killer = Killer(last)
        for name, call in calls.items():
            monkeypatch.setattr(os, name, killer.around(name, call) if last >= 0 else call)

    yield arm
    monkeypatch.undo()


def life(root: Path, written: list[bytes]) -> None:
    """A spool's life: it begins, grows over segments, is cut under another epoch, has a gap, and grows."""
    with closing(opened(root)) as spool:
        if spool.end is None:
            spool.follow(Lineage(((0, 0),)), None)
            spool.begin(0)
        written += fill(spool, 5)
        spool.follow(Lineage(((0, 0), (2, 9))), 9)
        written += fill(spool, 3, 2)
        spool.follow(Lineage(((0, 0), (2, 9), (3, 30))), None)
        spool.begin(30)
        written += fill(spool, 2, 3)


def test_killed_between_any_two_writes(tmp_path: Path, killed_after: Callable[[int], None]) -> None:
    """No batch stands beside a checkpoint that does not have its epoch, and a start goes on behind a whole batch."""
    last = 0
    while True:
        root, written = tmp_path / str(last), list[bytes]()
        root.mkdir()
        killed_after(last)
        try:
            life(root, written)
            ended = True
        except Killed:
            ended = False
        killed_after(-1)
        with closing(opened(root)) as spool:
            found = batches_in(spool.folder)
            headers = [header_of(raw) for raw in found]
            assert (headers[-1].next_offset if headers else 0) == spool.data_end
            assert all(before.next_offset <= after.base_offset for before, after in itertools.pairwise(headers))
            known = dict(spool.lineage.entries)
            assert {header.leader_epoch for header in headers} <= known.keys()
            if 2 in known:
                assert not [raw for raw in headers if raw.leader_epoch == 0 and raw.next_offset > 9], (
                    "cut before checkpoint"
                )
            assert not list(spool.folder.glob("*.tmp"))
            if spool.end is None:
                spool.begin(0)
            fill(spool, 1)
        if ended:
            break
        last += 1
    assert last > 20


def test_all_names_and_small_files_are_on_the_disk_before_a_batch_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And that takes a new spool four waits for the disk, for there may be thousands."""
    root, waits = tmp_path / str(T), list[str]()
    named, forced = set[str](), set[str]()
    real_open, real_rename, real_fsync, real_pwrite = os.open, os.rename, os.fsync, os.pwrite

    def open_(path: Any, options: int, *args: Any, **others: Any) -> int:
        named.update({str(path)} if options & os.O_CREAT and str(path).startswith(str(root)) else ())
        return real_open(path, options, *args, **others)

    def rename(source: Any, target: Any) -> None:
        assert not str(source).endswith(".tmp") or str(source) in forced
        named.add(str(target))
        real_rename(source, target)

    def fsync(descriptor: int) -> None:
        name = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        waits.append(name)
        forced.add(name)
        if name == str(root):
            named.clear()
        real_fsync(descriptor)

    def pwrite(*args: Any) -> int:
        assert not named, f"only in memory: {named}"
        return real_pwrite(*args)

    for name, call in {"open": open_, "rename": rename, "fsync": fsync, "pwrite": pwrite}.items():
        monkeypatch.setattr(os, name, call)
    begun(tmp_path).close()
    assert len(waits) == 4
    for path in root.iterdir():
        path.unlink()
    life(tmp_path, [])
