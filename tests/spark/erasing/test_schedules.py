"""Random schedules of requests, passes that are killed at any write, elections, rebuilds and compactions.

Afterwards no reader has a record that an approved request names, all others are as they were, and proofs add up.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.spark.audit.test_audit import audited
from tests.spark.run.test_truncation import FUNCTION, branch
from tests.spark.test_vacuum import Died
from tests.spark.world import World, in_process
from tests.support.raw_builder import EPOCH
from tests.tidemark.erasure.asked import SECRET, approve, asked
from tests.tidemark.kafka_log.build import T0, Record, batch, marker, reseal
from tidemark.erasure.reports import done_in
from tidemark.formats.raw.erasure import ErasureRequest, PartitionEnd
from tidemark.planning import plan_compaction, plan_rebuild, plan_replay, write_plan
from tidemark.remote.reader.read_range import read_range
from tidemark.store.local import LocalStore
from tidemark_spark.erasing.search import SearchJob, SearchResult, SearchTask, search
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
    (FUNCTION, "compaction: {files: 3}"),
)


def searching(common: SearchJob, tasks: list[SearchTask]) -> list[SearchResult]:
    return [search(common, task) for task in tasks]


@contextmanager
def killed(after: int, rng: random.Random) -> Iterator[None]:
    """All writes to stores die from the one after ``after`` others on; it may have been carried out."""
    real, left = LocalStore.put, [after]

    def put(self: LocalStore, *arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            return real(self, *arguments, **options)
        if left[0] == -1 and rng.random() < 0.5:
            real(self, *arguments, **options)
        raise Died

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "put", put)
        yield


class Schedule:
    """A topic of two partitions, and what each of its offsets has."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.rng, self.root = rng, root
        self.settings = rng.choice(SETTINGS)
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
                records.append(Record(delta, T0 + rng.randrange(3) * DAY, person, rng.choice(VALUES)))
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
            for record in records:
                self.log[partition, at + record.delta] = record.key, self.epoch
            at = end
        self.world.raw.segment(batches, partition, base=base, aborted=aborts)
        self.ends[partition] = at

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
        self.world.raw.segment([batch(cut, records, leader_epoch=self.epoch)], partition, base=cut)
        self.log |= {(partition, cut + record.delta): (record.key, self.epoch) for record in records}
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
        self.persons[request.id] = persons

    @property
    def work(self) -> Pass:
        """A pass in this process."""
        return Pass(self.world.table, "grace", lambda: {SECRET.fingerprint: SECRET}, searching, in_process)  # type: ignore[arg-type]

    def interrupt(self) -> None:
        """A pass that is killed at a random write, or ends."""
        self.land()
        try:
            with killed(self.rng.randrange(10), self.rng):
                erase(self.work, dry_run=False)
        except Died:
            pass
        self.settle()

    def carry_out(self) -> None:
        """Passes, of which all but the last may be killed."""
        for _ in range(self.rng.randrange(3)):
            self.interrupt()
        self.land()
        erase(self.work, dry_run=False)
        self.settle()
        assert not self.asked
        self.world.check()

    def carry_out_before_an_election(self) -> None:
        """Masked offsets may get other records thereafter."""
        self.carry_out()
        self.elect()

    def settle(self) -> None:
        """Note what the requests that are done have erased."""
        finished = done_in(self.world.table)
        for request in [one for one in self.asked if one.id in finished]:
            self.asked.remove(request)
            ends = {end.partition: end.end for end in request.through["orders"]}
            self.erased |= {
                (partition, offset)
                for (partition, offset), (person, _) in self.log.items()
                if person in self.persons[request.id] and offset < ends.get(partition, 0)
            }

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
            lambda: self.again(lambda: plan_rebuild(table, None)),
            lambda: self.again(lambda: plan_compaction(table)),
            lambda: self.again(lambda: plan_replay(table)),
        ]
        self.rng.choice(steps)()

    def judge(self) -> None:
        """All must hold."""
        self.land()
        self.carry_out()
        self._judge()
        self.again(lambda: plan_rebuild(self.world.table, None))
        self._judge()
        second = World(self.root / "second", *self.settings, raw=f"file://{self.root}/raw")
        second.raw = self.world.raw
        if not self.whole:
            second.check = lambda: None  # type: ignore[method-assign]
        second.land()
        assert second.rows() == self.world.rows()

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
