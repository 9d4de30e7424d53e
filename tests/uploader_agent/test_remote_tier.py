"""What only Kafka's own remote tier has, fetched from a scripted leader: random logs, and what goes wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.tidemark.kafka_log.build import marker, reseal, simple, transactional
from tests.uploader_agent.fakes import FakePartition, World
from tests.uploader_agent.intake.scripted import ID, ScriptedCluster, T, header_of
from tests.uploader_agent.test_agent import no_errors
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.formats.raw.watermark import Watermark
from tidemark.intervals import Intervals
from tidemark.kafka_log import AbortedTransaction, TransactionTracker, parse_txn_index, scan_batches
from uploader_agent import remote_tier
from uploader_agent.broker.admin import KafkaTier, Led

SEGMENT = 700
"""Bytes of a fetched segment: some batches."""


class TieredLog:
    """The log of one partition on a broker with a remote tier: each byte is on the disk, in the tier, or on both."""

    def __init__(self, root: Path, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.world = World(root)
        self.cluster = ScriptedCluster(seed)
        self.batches: dict[int, bytes] = {}
        """All batches that the log ever had, by base offset."""
        self.rolled = [0]
        self.tiered_end = self.local_start = 0
        self._open: dict[int, int] = {}
        self.world.tier = lambda: nullcontext(self.cluster)
        self.world.begins_epochs = False
        self.lead()

    @property
    def start(self) -> int:
        """The log start offset."""
        return self.cluster.log.start

    @property
    def rotated_end(self) -> int:
        """The base of the active segment."""
        return self.rolled[-1]

    def lead(self) -> None:
        """Begin another leader epoch, as after a restart of the broker."""
        self.cluster.elect(1)
        self.cluster.commit()
        self.world.metadata.leads = {T: Led(self.cluster.epoch, ID)}

    def produce(self, count: int = 1, *, hole: int = 0) -> None:
        """Append batches, some of transactions; before each is a ``hole`` that compaction made."""
        for _ in range(count):
            base, rng = self.cluster.log.end + hole, self.rng
            producer = rng.randint(1, 3)
            kind = rng.random()
            if kind < 0.5:
                raw = simple(base, rng.randint(1, 4))
            elif producer in self._open and kind < 0.8:
                del self._open[producer]
                raw = marker(base, producer, commit=rng.random() < 0.5)
            else:
                self._open.setdefault(producer, base)
                raw = transactional(base, producer, rng.randint(1, 3))
            raw = reseal(raw, leader_epoch=self.cluster.epoch)
            self.batches[base] = raw
            self.cluster.log.append(raw)
        self.cluster.commit()

    def roll(self) -> None:
        """Begin another segment."""
        if self.cluster.log.end > self.rolled[-1]:
            self.rolled.append(self.cluster.log.end)

    def tier(self, segments: int = 1) -> None:
        """Copy the next ``segments`` to the remote tier; never the active one."""
        above = [base for base in self.rolled if base > self.tiered_end]
        self.tiered_end = above[min(segments, len(above)) - 1] if above else self.tiered_end

    def delete_local(self) -> None:
        """What ``local.retention.ms`` allows: remove all from the disk that the remote tier has."""
        self.local_start = max(self.local_start, self.tiered_end)

    def delete_below(self, offset: int) -> None:
        """DeleteRecords, or retention."""
        self.cluster.delete_below(offset)
        self.local_start = max([self.local_start, *(base for base in self.rolled if base <= self.start)])
        self.tiered_end = max(self.tiered_end, min(self.local_start, self.rotated_end))

    def write_disk(self) -> None:
        """Write the broker's directory, and what it answers."""
        partition = self.world.disk.partition(topic_id=ID)
        for path in partition.folder.glob("0*"):
            path.unlink()
        tracker, bases = TransactionTracker(), [base for base in self.rolled if base >= self.local_start]
        ordered = sorted(self.batches.items())
        for base, following in zip(bases, [*bases[1:], self.cluster.log.end + 1], strict=True):
            partition.segment(base, b"".join(raw for at, raw in ordered if base <= at < following))
        for base in bases:
            tracker = TransactionTracker()
            for at, raw in ordered:
                if at < base:
                    tracker.observe(header_of(raw))
            partition.snapshot(base, {one.producer_id: one.first_offset for one in tracker.open})
        self._write_lineage(partition)
        metadata = self.world.metadata
        metadata.log_start, metadata.high = self.start, {T: self.cluster.log.high_watermark}
        metadata.tier = KafkaTier(self.local_start, self.tiered_end)

    def _write_lineage(self, partition: FakePartition) -> None:
        partition.lineage([*self.cluster.log.lineage.entries])

    def run_agent(self) -> None:
        """An agent that uploads once."""
        self.write_disk()
        no_errors(self.world.once(fetch_segment=SEGMENT, hold={"enabled": False}))

    # -- what is stored -----------------------------------------------------------------------------------------------

    def manifests(self) -> list[SegmentManifest]:
        """The stored segments by offset."""
        keys = self.world.keys()
        named = [info.key for info in self.world.store.list(keys.folder) if info.key.endswith(".manifest.json")]
        found = [SegmentManifest.from_bytes(self.world.store.get(key).body, key) for key in named]
        return sorted(found, key=lambda one: one.base_offset)

    def watermark(self) -> Watermark:
        return self.world.watermark()[1]

    def check(self, since: int) -> None:
        """Every offset from ``since`` to the rotated end is stored, once, as it was in the log; or deleted before."""
        found, keys = self.manifests(), self.world.keys()
        watermark, stored = self.watermark(), dict[int, bytes]()
        for one in found:
            [name] = [name for name in one.objects if name.endswith(".log")]
            body = self.world.store.get(keys.file(name)).body
            for header in scan_batches([body], name, one.base_offset):
                assert header.base_offset not in stored, "twice"
                stored[header.base_offset] = body[header.position : header.end]
            if not any(gap.start < one.base_offset for gap in watermark.gaps):  # behind one, nothing counts as open
                self._check_transactions(one, watermark.start_offset)
        assert all(self.batches[base] == raw for base, raw in stored.items()), "byte for byte"
        present = Intervals([(one.base_offset, one.next_offset) for one in found])
        gaps = Intervals([(gap.start, gap.end) for gap in watermark.gaps])
        assert not Intervals([(watermark.start_offset, self.rotated_end)]) - present - gaps
        assert {gap.reason for gap in watermark.gaps} <= {"deleted_before_upload"}
        assert not gaps - Intervals([(0, self.start)]), "nothing is lost that the log still has"
        missing = {base for base in self.batches if Intervals([(base, base + 1)]) & present} - stored.keys()
        assert not missing, "a batch within a segment that lacks it"
        assert since >= watermark.start_offset

    def _check_transactions(self, one: SegmentManifest, start: int) -> None:
        """A fetched segment tells what was open at its end, and what was aborted in it, of all above the start."""
        if one.origin != "fetch":
            return
        tracker, aborted = TransactionTracker(), list[AbortedTransaction]()
        for base, raw in sorted(self.batches.items()):
            header = header_of(raw)
            if header.next_offset <= start or base >= one.next_offset:
                continue
            began = {opened.producer_id: opened.first_offset for opened in tracker.open}
            if base >= one.base_offset and header.is_control and raw[-9] == 0 and header.producer_id in began:
                aborted.append(AbortedTransaction(header.producer_id, began[header.producer_id], base))
            tracker.observe(header)
        assert one.open_transactions == tracker.open
        names = [name for name in one.objects if name.endswith(".txnindex")]
        listed = [
            each
            for name in names
            for each in parse_txn_index(self.world.store.get(self.world.keys().file(name)).body, name)
        ]
        assert listed == aborted


@pytest.fixture
def log(tmp_path: Path) -> TieredLog:
    return TieredLog(tmp_path)


def filled(log: TieredLog, *, segments: int = 6, batches: int = 5) -> TieredLog:
    """Some rolled segments of which all but the newest are tiered, and none of these on the disk."""
    for _ in range(segments):
        log.produce(batches)
        log.roll()
    log.produce()
    log.tier(segments - 1)
    log.delete_local()
    return log


def origins(log: TieredLog) -> Iterator[str]:
    return (one.origin for one in log.manifests())


def test_a_partition_begins_where_its_log_does(log: TieredLog) -> None:
    filled(log).run_agent()
    watermark = log.watermark()
    assert (watermark.start_offset, watermark.gaps, watermark.remote_tier) == (0, (), ())
    assert watermark.next_offset == log.rotated_end
    assert {*origins(log)} == {"fetch", "disk"}
    log.check(0)


def test_what_left_the_disk_while_the_agent_was_down_is_fetched(log: TieredLog) -> None:
    log.produce(5)
    log.roll()
    log.produce()
    log.run_agent()
    assert {*origins(log)} == {"disk"}
    filled(log).run_agent()
    assert log.watermark().gaps == ()
    log.check(0)
    asked = [wanted.offset for wanted in log.cluster.asked]
    assert min(asked) >= 5, "only what is missing is asked of the broker"


def test_it_is_not_fetched_if_the_settings_say_so(log: TieredLog) -> None:
    log.world.tier = None
    filled(log).run_agent()
    watermark = log.watermark()
    assert watermark.start_offset == log.local_start
    assert watermark.remote_tier == ((0, log.local_start),)
    log.world.tier = lambda: nullcontext(log.cluster)
    log.write_disk()
    no_errors(log.world.once(fill={"remote_tier": "skip"}, hold={"enabled": False}))
    assert not log.cluster.asked


def test_nothing_is_written_before_the_broker_has_said_where_the_log_begins(log: TieredLog) -> None:
    """Else the partition would begin on the disk for good."""
    filled(log).write_disk()
    offsets, log.world.metadata.offsets = log.world.metadata.offsets, lambda _led: {}  # type: ignore[assignment,method-assign]
    log.world.once(fetch_segment=SEGMENT, hold={"enabled": False})
    assert not log.world.names(T)
    log.world.metadata.offsets = offsets  # type: ignore[method-assign]
    log.run_agent()
    log.check(0)


def test_a_log_start_within_a_batch(log: TieredLog) -> None:
    log.cluster.log.append(simple(0, 9, leader_epoch=log.cluster.epoch))
    log.batches[0] = log.cluster.log.batches[0]
    log.cluster.commit()
    filled(log).delete_below(4)
    log.local_start = log.tiered_end = log.rolled[-2]
    log.run_agent()
    assert log.watermark().start_offset == 4
    assert log.watermark().gaps == ()
    assert log.manifests()[0].base_offset <= 4
    log.check(4)


def test_a_broker_that_refuses_leaves_the_gap_and_the_rest_is_stored(
    log: TieredLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_tier, "_PATIENCE_SECONDS", 0.5)
    filled(log)
    log.cluster.exists = False
    log.run_agent()
    assert [(gap.start, gap.end, gap.reason) for gap in log.watermark().gaps] == [(0, log.local_start, "remote_tier")]
    assert log.watermark().start_offset == 0
    assert {*origins(log)} == {"disk"}
    log.cluster.exists = True
    log.run_agent()
    assert log.watermark().gaps == ()
    log.check(0)


@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed{seed}") for seed in range(25)])
def test_random_logs(tmp_path: Path, seed: int) -> None:
    """Tiering, local and whole retention, DeleteRecords, restarts, compaction before, and an agent that is away."""
    log = TieredLog(tmp_path, seed)
    log.cluster.mischief = {"cut": 0.2, "damaged": 0.05, "twice": 0.1, "lost": 0.05}
    began: int | None = None
    for _ in range(30):
        action = log.rng.random()
        if action < 0.35:
            log.produce(log.rng.randint(1, 4), hole=log.rng.choice([0, 0, 0, 2]))
        elif action < 0.55:
            log.roll()
        elif action < 0.7:
            log.tier(log.rng.randint(1, 3))
        elif action < 0.8:
            log.delete_local()
        elif action < 0.85:
            log.delete_below(log.rng.randint(log.start, max(log.start, log.tiered_end)))
        elif action < 0.9:
            log.lead()
        elif log.batches:
            log.run_agent()
            began = log.start if began is None else began
            log.check(max(began, log.watermark().start_offset))
    log.produce()
    log.run_agent()
    log.check(log.watermark().start_offset)
