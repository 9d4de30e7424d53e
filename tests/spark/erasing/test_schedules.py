"""Random schedules of requests, passes that are killed at any write, elections, rebuilds and compactions.

Afterwards no reader and no stored file has a record that an approved request names, no sum tells of it, all others are
as they were, and proofs add up.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest

from tests.spark.audit.test_audit import audited
from tests.spark.erasing.masked import killed
from tests.spark.run.test_truncation import FUNCTION, branch
from tests.spark.test_vacuum import Died, as_of, files
from tests.spark.world import World, in_process
from tests.support.raw_builder import EPOCH
from tests.tidemark.erasure.asked import SECRET, approve, asked
from tests.tidemark.kafka_log.build import T0, Record, batch, marker, reseal
from tidemark.decode import decode_batches, scan_headers
from tidemark.erasure.reports import RawReport, done_in, reports_of
from tidemark.formats.raw.erasure import ErasureRequest, PartitionEnd
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.planning import plan_compaction, plan_rebuild, plan_replay, write_plan
from tidemark.planning.common import masked_offsets
from tidemark.raw_topic import RawTopic
from tidemark.remote.reader.read_range import read_range
from tidemark.table.evidence import parse_evidence
from tidemark_spark.erasure_pass import Pass, erase
from tidemark_spark.run.driver import run

DAY: Final = 86_400_000
PERSONS: Final = tuple(b"person-%d" % number for number in range(6))
VALUES: Final = (b"fine!", b"bad", b"", b"longer than others")
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
SETTINGS: Final = (
    (FUNCTION,),
    (FUNCTION, "keep: [timestamp, leader_epoch, value]"),
    ("keep: [key, timestamp]",),
)


class Schedule:
    """A topic of two partitions, and what each of its offsets has."""

    settings_of: tuple[tuple[str, ...], ...] = SETTINGS
    values: tuple[bytes | None, ...] = VALUES
    retention: str = "{erased: 0s}"

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.rng, self.root = rng, root
        self.settings = (*rng.choice(self.settings_of), f"retention: {self.retention}")
        self.world = World(root, *self.settings)
        self.whole = not any(line.startswith("keep") for line in self.settings)
        if not self.whole:
            self.world.check = lambda: None  # type: ignore[method-assign]  # files alone cannot tell all hashes
        self.log: dict[tuple[int, int], tuple[bytes | None, int]] = {}  # person and class by partition and offset
        self.aborted: set[tuple[int, int]] = set()
        self.ends = [0, 0]
        self.epoch = EPOCH
        self.erased: set[tuple[int, int]] = set()
        self.asked: list[ErasureRequest] = []
        self.persons: dict[str, list[bytes]] = {}
        self.number = 0
        self.ever: dict[tuple[int, int, int], bytes | None] = {}  # by partition, epoch and offset, on any branch
        self.doomed: set[tuple[int, int, int]] = set()
        self.uploaded: list[dict[str, bytes]] = []
        self.raw = RawReport()

    def produce(self) -> None:
        """A segment with a few batches of some persons, or a transaction that ends either way."""
        rng, partition = self.rng, self.rng.randrange(2)
        base = at = self.ends[partition]
        batches: list[bytes] = []
        aborts: list[tuple[int, int, int]] = []
        for _ in range(rng.randint(1, 3)):
            records = []
            for delta in range(rng.randint(1, 6)):
                person = rng.choice((*PERSONS, None))
                records.append(Record(delta, T0 + rng.randrange(3) * DAY, person, rng.choice(self.values)))
            fields = {"leader_epoch": self.epoch}
            if rng.random() < 0.3:
                commit = rng.random() < 0.5
                fields |= {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
                batches.append(batch(at, records, rng.choice(CODECS), 0x10, **fields))
                batches.append(self._marker(at + len(records), commit=commit))
                if not commit:
                    aborts.append((7, at, at + len(records)))
                    self.aborted |= {(partition, at + delta) for delta in range(len(records))}
                end = at + len(records) + 1
            else:
                batches.append(batch(at, records, rng.choice(CODECS), **fields))
                end = at + len(records)
            self._written(partition, at, records)
            at = end
        self._upload(batches, partition, base, aborts)
        self.ends[partition] = at

    def _written(self, partition: int, at: int, records: list[Record]) -> None:
        for record in records:
            self.log[partition, at + record.delta] = record.key, self.epoch
            self.ever[partition, self.epoch, at + record.delta] = record.key

    def _upload(
        self, batches: list[bytes], partition: int, base: int, aborts: Sequence[tuple[int, int, int]] = ()
    ) -> None:
        """Upload a segment, and keep its objects for a later upload."""
        store = self.world.raw.store
        key = self.world.raw.segment(batches, partition, base=base, aborted=aborts)
        path = key.replace(".log", ".manifest.json")
        folder, manifest = key.rpartition("/")[0], SegmentManifest.from_bytes(store.get(path).body, path)
        keys = [*(f"{folder}/{name}" for name in manifest.objects), path]
        self.uploaded.append({key: store.get(key).body for key in keys})

    def upload_again(self) -> None:
        """A broker's old bytes come back under their first name."""
        store = self.world.raw.store
        lost = [objects for objects in self.uploaded if not {*objects} & {info.key for info in store.list("")}]
        if not lost:
            return
        [*objects, (path, body)] = self.rng.choice(lost).items()
        manifest = SegmentManifest.from_bytes(body, path)
        sums = dict(manifest.objects)
        for key, data in objects:
            name = key.rpartition("/")[2]
            sums[name] = sums[name].model_copy(update={"etag": store.put(key, data)})
        store.put(path, manifest.model_copy(update={"objects": sums}).to_bytes())

    def _marker(self, at: int, *, commit: bool) -> bytes:
        return reseal(marker(at, 7, commit=commit), leader_epoch=self.epoch)

    def elect(self) -> None:
        """An unclean election that cuts off the last offsets of a partition, and what the new leader writes."""
        partition = self.rng.randrange(2)
        known = self.world.raw.partition(partition)
        bases = sorted({0, *(offset for (part, offset) in self.log if part == partition)})
        if not self.ends[partition] or not bases:
            return
        self.epoch += 2
        cut = self.world.raw.partition(partition).line1  # the last segment goes as a whole
        branch(
            self.world, *(entry for entry in known.lineage if entry[1] < cut), (self.epoch, cut), partition=partition
        )
        for part, offset in [at for at in self.log if at[0] == partition and at[1] >= cut]:
            del self.log[part, offset]
            self.erased.discard((part, offset))
            self.aborted.discard((part, offset))
        self.ends[partition] = cut
        other = 1 - partition  # the other partition's leader changes as well, cleanly
        known = self.world.raw.partition(other)
        if self.ends[other] > known.lineage[-1][1]:
            branch(self.world, *known.lineage, (self.epoch, self.ends[other]), partition=other)
        else:
            branch(self.world, *known.lineage[:-1], (self.epoch, known.lineage[-1][1]), partition=other)
        count = self.rng.randint(6, 12)
        records = [Record(delta, T0, self.rng.choice(PERSONS), b"again") for delta in range(count)]
        self._upload([batch(cut, records, leader_epoch=self.epoch)], partition, cut)
        self._written(partition, cut, records)
        self.ends[partition] = cut + count

    def land(self) -> None:
        """Land all."""
        self.world.raw.publish()
        for _ in range(5):
            if run(self.world.table, self.world.plan(), in_process).status == "empty":
                break
        self.world.check()

    def ask(self) -> None:
        """A request of one or two persons, approved."""
        self.number += 1
        persons = self.rng.sample(PERSONS, self.rng.randint(1, 2))
        self.world.raw.publish()
        ends = tuple(PartitionEnd(0, partition, end) for partition, end in enumerate(self.ends) if end)
        request = asked(persons, number=self.number).model_copy(update={"through": {"orders": ends}})
        approve(self.world.raw.store, request, records=1000)
        self.asked.append(request)
        bounds = {end.partition: end.end for end in ends}
        self.doomed |= {at for at, key in self.ever.items() if key in persons and at[2] < bounds.get(at[0], 0)}
        self.persons[request.id] = persons

    @property
    def work(self) -> Pass:
        """A pass in this process."""
        return Pass(self.world.table, "grace", lambda: {SECRET.fingerprint: SECRET}, in_process)

    def interrupt(self) -> None:
        """A pass that is killed at a random write, or ends."""
        self.land()
        try:
            with killed(self.rng.randrange(60), lambda: self.rng.random() < 0.5):
                erase(self.work, dry_run=False)
        except Died:
            pass
        self.settle()

    def carry_out(self) -> None:
        """Passes, of which all but the last may be killed."""
        for _ in range(self.rng.randrange(4)):
            self.interrupt()
        self.land()
        self.raw = erase(self.work, dry_run=False).raw
        self.settle()
        assert not self.asked
        self._search_raw()
        self.world.check()

    def carry_out_before_an_election(self) -> None:
        """Masked offsets may get other records thereafter."""
        self.carry_out()
        self.elect()

    def settle(self) -> None:
        """Note what the requests that are done have erased."""
        finished = done_in(reports_of(self.world.table))
        for request in [one for one in self.asked if one.id in finished]:
            self.asked.remove(request)
            ends = {end.partition: end.end for end in request.through["orders"]}
            self.erased |= {
                (partition, offset)
                for (partition, offset), (person, _) in self.log.items()
                if person in self.persons[request.id] and offset < ends.get(partition, 0)
            }

    def _search_raw(self) -> None:
        """No object of raw has a record that was to be erased, but for those that the report names."""
        named = {item.key for item in self.raw.remaining}
        for partition in (0, 1):
            keys = self.world.raw.keys(partition)
            for info in self.world.raw.store.list(keys.folder):
                parsed = keys.segment_of(info.key)
                if parsed is None or parsed[1] != "log":
                    continue
                data = self.world.raw.store.get(info.key).body
                headers = scan_headers(data, info.key, parsed[0].base)
                for rows in decode_batches(data, headers, name=info.key, partition=partition, incarnation=0):
                    for row in rows.select(["kafka_leader_epoch", "kafka_offset", "kafka_key"]).to_pylist():
                        at = partition, row["kafka_leader_epoch"], row["kafka_offset"]
                        assert self.ever[at] == row["kafka_key"]
                        assert at not in self.doomed or info.key in named, (info.key, at)

    def _search_lake(self) -> None:
        """No stored file of the table or of quarantine has such a record, and no evidence a sum that tells of it."""
        table = self.world.table
        with as_of(self.world, timedelta(days=3)):  # so that the runs that died are over
            remaining = erase(self.work, dry_run=False).remaining
        assert {item.why for item in remaining} <= {"has rows of a past date or a dead branch, which are not searched"}
        self.world.check()
        assert audited(self.world).findings == ()
        masks = RawTopic(table).masks_of(self.world.ledger, pending=False)
        masked = {partition: masked_offsets(table, found) for (_, partition), found in masks.items()}
        stored = {key for key in files(self.world) if key.endswith(".parquet")}
        for key in stored - {item.key for item in remaining}:
            names = ["kafka_partition", "kafka_offset", "kafka_leader_epoch"]
            rows = pq.ParquetFile(io.BytesIO(table.store.get(key).body)).read(use_threads=False)
            for row in rows.select([name for name in names if name in rows.schema.names]).to_pylist():
                at = row["kafka_partition"], row["kafka_offset"]
                epochs = [epoch for partition, epoch, offset in self.ever if (partition, offset) == at]
                epochs = [row["kafka_leader_epoch"]] if "kafka_leader_epoch" in row else epochs
                if at[1] not in masked.get(at[0], ()) and self.log.get(at, (None, None))[1] not in epochs:
                    continue  # of a dead branch, which nothing searches
                assert not {(at[0], epoch, at[1]) for epoch in epochs} <= self.doomed, (key, at)
        held = {(row["file"], row["first"]) for row in self.world.holding()}
        for info in table.store.list(table.keys.evidence):
            for row in parse_evidence(table.store.get(info.key).body, info.key).to_pylist():
                around = any(row["first"] <= offset < row["next"] for offset in masked.get(row["partition"], ()))
                kept = (row["file"], row["first"]) in held and row["class"] != "superseded"
                kept |= any(key.endswith(f"/{row['file']}") for key in stored)
                assert row["hash128"] is None or kept or not around, (info.key, row)

    def again(self, planned: Callable[[], Any]) -> None:
        """A rebuild, a replay or a compaction."""
        self.land()
        plan = planned()
        if not plan.empty:
            write_plan(self.world.table, plan)
            assert run(self.world.table, plan, in_process).status in {"landed", "empty"}
        self.world.check()

    def step(self) -> None:
        """Anything."""
        table = self.world.table
        steps: list[Callable[[], None]] = [
            self.produce,
            self.produce,
            self.land,
            self.elect,
            self.ask,
            self.interrupt,
            self.carry_out,
            self.carry_out_before_an_election,
            self.upload_again,
            lambda: self.again(lambda: plan_rebuild(table, None)),
            lambda: self.again(lambda: plan_compaction(table, files=3)),
            lambda: self.again(lambda: plan_replay(table)),
        ]
        self.rng.choice(steps)()

    def judge(self) -> None:
        """All must hold."""
        self.produce()
        self.land()
        self.carry_out()
        self._judge()
        for item in self.raw.remaining:
            kept = any(why in item.why for why in ("is of a dead branch", "a pass that died left it"))
            assert kept or self._is_continued(item.key), item
        before = self._segments()
        self.carry_out()
        assert self._segments() == before, "nothing is left to do"
        self.again(lambda: plan_rebuild(self.world.table, None))
        self._judge()
        second = World(self.root / "second", *self.settings, raw=f"file://{self.root}/raw")
        second.raw = self.world.raw
        if not self.whole:
            second.check = lambda: None  # type: ignore[method-assign]
        second.land()
        assert second.rows() == self.world.rows()
        self._search_lake()

    def _is_continued(self, log: str) -> bool:
        """True if agents continue inside the segment, which may be that of a dead branch."""
        manifest = SegmentManifest.load(self.world.raw.store, log.replace(".log", ".manifest.json"))
        return manifest.next_offset > self.world.raw.partition(manifest.partition).line1

    def _segments(self) -> list[str]:
        """The versions of all objects of segments."""
        return [info.etag for info in self.world.raw.store.list("east/") if not info.key.endswith("offset.wm")]

    def _judge(self) -> None:
        world = self.world
        present = {(row["kafka_partition"], row["kafka_offset"]) for row in world.rows()}
        aside = {(row["kafka_partition"], row["kafka_offset"]) for row in world.quarantine()}
        assert not (present | aside) & self.erased, "a record is still in the table"
        refused = {at for at in self.log if at not in present | aside | self.erased | self.aborted}
        filtered = sum(world.classes(partition)["filtered"] for partition in (0, 1))
        assert len(refused) == filtered, "a record is gone that nobody named"
        for partition in (0, 1):
            if not self.ends[partition]:
                continue
            for level in ("read_committed", "read_uncommitted"):
                rows = read_range("orders", partition, storage=world.topics_file, isolation_level=level)
                wanted = {
                    at
                    for at in self.log
                    if at[0] == partition
                    and at not in self.erased
                    and (level == "read_uncommitted" or at not in self.aborted)
                }
                assert {(partition, offset) for offset in rows["kafka_offset"].to_pylist()} == wanted
            classes = world.classes(partition)
            assert classes["erased"] == len({at for at in self.erased if at[0] == partition and at not in self.aborted})
        assert audited(world).findings == ()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", range(6))
def test_every_schedule_ends_with_nothing_of_the_persons_and_all_of_the_others(
    tmp_path: Path, rng: random.Random, full: bool, number: int
) -> None:
    for turn in range(170 if full else 1):
        schedule = Schedule(tmp_path / str(turn), rng)
        schedule.produce()
        for _ in range(rng.randint(5, 14)):
            schedule.step()
        schedule.judge()
