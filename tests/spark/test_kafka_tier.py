"""Topics that are adopted from Kafka's remote tier: they land, and what another system owns is never deleted."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.spark.audit.test_audit import audited
from tests.spark.erasing.masked import erase, take_out
from tests.spark.world import World, in_process
from tests.support.kafka_tier import Fixture, bare, records_of, rows_of, unpack
from tests.support.raw_builder import RawBuilder
from tidemark.cli.continuity import continuity_of
from tidemark.cli.raw import check_copy
from tidemark.errors import GapError
from tidemark.inspection.offset_lineage import derivation_of
from tidemark.kafka_tier.copies import ListedCopy
from tidemark.raw.objects import read_manifest
from tidemark.remote.reader.read_range import read_range, read_time
from tidemark.storage import PartitionStore, Storage, StoredWatermark
from tidemark.table.effective_evidence import EffectiveEvidence
from tidemark.timestamps import utc_now
from tidemark_spark.cli.retain import retain
from tidemark_spark.erasing.seals import erase_seals
from tidemark_spark.run.driver import run
from uploader_agent.repair.tier_adoption import TierAdoption
from uploader_agent.stored.incarnations import Incarnations


class Adopted(World):
    """A topic of an archive, adopted without an agent and without a broker."""

    def __init__(self, root: Path, archive: Fixture, topic: str, *settings: str, copy: bool = False) -> None:
        super().__init__(root, *settings, topic=topic)
        self.archive, self.topic = archive, topic
        self.raw = RawBuilder(self.raw.store, topic=topic)  # only its keys are of use: nothing is built
        self.storage = Storage.from_topics(self.topics_file)
        incarnations = Incarnations(self.storage, record=True)
        self.found = list(TierAdoption(incarnations, archive.tier(), topic, broker=1, copy=copy).run())

    def ingest(self) -> None:
        """Land what is there; check that all is exact."""
        assert run(self.table, self.plan(), in_process).status == "landed"
        self.check()

    def place(self, number: int = 0) -> PartitionStore:
        return self.storage.partition_store(self.storage.partition_keys(self.topic, number, self.topic))

    def logs(self) -> list[ListedCopy]:
        """The copies, whose logs manifests refer to."""
        return [copy for copy in self.archive.copies(self.topic) if not copy.missing]


@pytest.fixture
def plain(tmp_path: Path) -> Fixture:
    return unpack("plain", tmp_path / "tier")


@pytest.mark.parametrize("name", ["plain", "both", "epochs"])
def test_what_is_adopted_lands_with_every_record_class_and_aborted_transaction(name: str, tmp_path: Path) -> None:
    archive = unpack(name, tmp_path / "tier")
    topics = ["elected", "unclean"] if name == "epochs" else ["orders", "payments", "retried", "accounts"]
    for topic in topics:
        world = Adopted(tmp_path / topic, archive, topic)
        world.ingest()
        rows = world.rows()
        for fact in (one for one in archive.partitions if one["topic"] == topic):
            number = fact["partition"]
            end = world.next_offset(number)
            committed = [bare(row) for row in archive.expected(topic, number, "read_committed") if row["offset"] < end]
            uncommitted = archive.expected(topic, number, "read_uncommitted")
            ours = [row for row in rows if row["kafka_partition"] == number]
            assert records_of(ours) == committed
            classes = world.classes(number)
            assert classes["landed"] == len(committed)
            assert classes["aborted"] == sum(row["offset"] < end for row in uncommitted) - len(committed)
            assert sum(classes.values()) == end
            assert set(classes) <= {"landed", "aborted", "transaction_marker", "compacted"}
            assert bool(classes["compacted"]) == (topic == "accounts")
        assert audited(world).findings == ()
        assert continuity_of(world.table)["sound"]
        assert check_copy(world.table, renew=False).findings == ()


def test_records_are_found_by_their_time(plain: Fixture, tmp_path: Path) -> None:
    world = Adopted(tmp_path / "world", plain, "tiny")
    rows = read_range("tiny", 0, storage=world.topics_file)
    times = sorted(time for time in rows["kafka_timestamp"].to_pylist() if time is not None)
    start, end = times[len(times) // 3], times[2 * len(times) // 3]
    found = read_time("tiny", start, end, storage=world.topics_file)
    assert found.num_rows == sum(start <= time < end for time in times)
    assert found.num_rows > 0


def test_the_lineage_of_an_offset_names_the_log_in_the_remote_tier(plain: Fixture, tmp_path: Path) -> None:
    world = Adopted(tmp_path / "world", plain, "exact")
    world.ingest()
    found = derivation_of(world.table, EffectiveEvidence.of(world.table), (0, 0), 0, 1)
    [segment] = found.segments
    first = world.logs()[0]
    assert (segment.store, segment.key) == (f"file://{plain.objects}", first.name.key("", "log"))
    assert (segment.present, segment.size) == (True, first.objects["log"].size)
    for entry in [*world.place().manifests(0, 1)]:
        world.place().store.delete(entry.info.key)
    [gone] = derivation_of(world.table, EffectiveEvidence.of(world.table), (0, 0), 0, 1).segments
    assert not gone.present


def test_a_log_that_kafka_deletes_before_it_lands_is_a_gap(plain: Fixture, tmp_path: Path) -> None:
    world = Adopted(tmp_path / "world", plain, "exact")
    copies = world.logs()
    plain.path(copies[1], "log").unlink()
    world.ingest()
    start, end = copies[1].name.base, copies[2].name.base
    [state] = world.ledger.partitions
    [gap] = state.gaps
    assert (state.next_offset, gap.start, gap.end, gap.read) == (start, start, end, True)
    with pytest.raises(GapError, match=f"offsets {start} to {end - 1} are missing"):
        read_range("exact", 0, storage=world.topics_file)
    rows = read_range("exact", 0, storage=world.topics_file, on_gap="skip")
    wanted = [bare(row) for row in plain.expected("exact", 0, "read_committed")]
    assert rows_of(rows) == [row for row in wanted if not start <= row["offset"] < end]
    [finding] = check_copy(world.table, renew=False).findings
    assert finding == f"{copies[1].name.key('', 'log')}: is missing, though its manifest is there"


def test_a_log_that_kafka_deletes_after_it_has_landed_changes_no_row(plain: Fixture, tmp_path: Path) -> None:
    world = Adopted(tmp_path / "world", plain, "exact")
    world.ingest()
    rows = world.rows()
    for copy in world.logs():
        plain.path(copy, "log").unlink()
    assert run(world.table, world.plan(), in_process).status == "empty"
    assert world.rows() == rows
    world.check()


def files(archive: Fixture) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(archive.objects.rglob("*")) if path.is_file()}


def test_retention_removes_its_own_objects_and_says_what_it_leaves_to_kafka(plain: Fixture, tmp_path: Path) -> None:
    world = Adopted(tmp_path / "world", plain, "exact", "retention: {raw: 30d, apply: true}")
    world.ingest()
    before, copies = files(plain), world.logs()
    now = utc_now() + timedelta(days=3000)
    retain(world.table, "raw", now, "ada", dry_run=True)
    report = retain(world.table, "raw", now + timedelta(days=1), "ada")
    [goes] = report.partitions
    gone = copies[:-1]
    assert (goes.segments, goes.removed_to) == (len(gone), copies[-1].name.base)
    assert (goes.others_logs, goes.others_bytes) == (len(gone), sum(copy.objects["log"].size for copy in gone))
    assert f"{len(gone)} of their logs ({goes.others_bytes} bytes) belong to Kafka's remote tier" in report.text()
    assert [entry.name.base for entry in world.place().manifests()] == [copies[-1].name.base]
    assert {entry.name.base for entry in world.place().objects()} == {copies[-1].name.base}
    assert files(plain) == before
    world.check()


def test_erasure_rewrites_into_its_own_prefix_and_names_what_kafka_still_has(plain: Fixture, tmp_path: Path) -> None:
    world = Adopted(tmp_path / "world", plain, "exact")
    world.ingest()
    before, copies = files(plain), world.logs()
    offset = copies[1].name.base + 1
    stored = world.place().watermark()
    assert isinstance(stored, StoredWatermark)
    erase(world, [offset], epoch=stored.lineage.epoch_at(offset))
    take_out(world)
    report = erase_seals(world.table, 7, in_process)
    assert (report.searched, report.rewritten, report.deleted, report.records) == (1, 1, 1, 1)
    [left] = report.remaining
    assert left.key == copies[1].name.key("", "log")
    assert left.why.startswith("belongs to Kafka's remote tier in file://")
    names = [entry.name for entry in world.place().manifests() if entry.name.base == copies[1].name.base]
    [manifest] = [read_manifest(world.place(), name) for name in names]
    assert manifest is not None
    assert (manifest.manifest.refers, manifest.manifest.format) == (None, 1)
    assert manifest.manifest.log_name in manifest.manifest.objects
    wanted = [row["offset"] for row in plain.expected("exact", 0, "read_committed") if row["offset"] != offset]
    assert read_range("exact", 0, storage=world.topics_file)["kafka_offset"].to_pylist() == wanted
    assert [row["kafka_offset"] for row in world.rows()] == wanted
    assert files(plain) == before
    again = erase_seals(world.table, 8, in_process)
    assert (again.rewritten, [one.key for one in again.remaining]) == (0, [left.key]), "as long as Kafka has it"
    plain.path(copies[1], "log").unlink()
    assert erase_seals(world.table, 9, in_process).remaining == ()
