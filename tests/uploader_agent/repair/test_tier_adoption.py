"""What Kafka's tiered storage has stored is taken over: real archives, killed runs, and seeded damage of each kind."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka_tier import NAMES, Fixture, bare, kafka_id, rows_of, unpack
from tests.tidemark.kafka_tier.test_copies import history_of
from tests.uploader_agent.fakes import WatchedStore, World
from tests.uploader_agent.in_process import run_here
from tidemark.errors import FormatError, StoreError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.watermark import Watermark, render
from tidemark.formats.raw.watermark_index import WatermarkIndex
from tidemark.kafka_tier.copies import ListedCopy, SegmentCopy
from tidemark.kafka_tier.manifest import KINDS
from tidemark.raw.heads import LiveEnd
from tidemark.raw.objects import read_manifest
from tidemark.remote.reader.read_range import read_range
from tidemark.storage import PartitionStore, Storage, StoredWatermark
from tidemark.store.local import LocalStore
from uploader_agent.broker.admin import Led
from uploader_agent.repair.reupload import RepairRow
from uploader_agent.repair.tier_adoption import TierAdoption
from uploader_agent.stored.incarnations import Incarnations
from uploader_agent.verify import VerifyFinding, verify
from uploader_agent.verify.segment import check

CLUSTER = "east"
REFERRED = ("plain", "epochs")


class Deployment:
    """An empty raw bucket beside an unpacked archive."""

    def __init__(self, archive: Fixture, folder: Path, *, copy: bool = False) -> None:
        folder.mkdir(exist_ok=True)
        self.archive, self.copy = archive, copy
        self.store = WatchedStore(LocalStore(folder))
        own = self.store.url
        storage = Storage.at(f"file://{folder}", CLUSTER)
        self.storage = storage.through(lambda store: self.store if store.url == own else store)

    def adopt(
        self, topic: str, *, keys: bool = True, dry_run: bool = False, only: tuple[int, ...] = ()
    ) -> list[RepairRow]:
        incarnations = Incarnations(self.storage, record=not dry_run)
        adoption = TierAdoption(incarnations, self.archive.tier(keys=keys), topic, broker=1, copy=self.copy)
        return list(adoption.run(only, dry_run=dry_run))

    def partition(self, topic: str, number: int = 0) -> PartitionStore:
        topic_id = kafka_id(self.archive.partition(topic, number)["topic_id"])
        _, found = Incarnations(self.storage, record=False).resolve(TopicPartition(topic, number), topic_id)
        return found

    def watermark(self, topic: str, number: int = 0) -> Watermark:
        stored = self.partition(topic, number).watermark()
        assert isinstance(stored, StoredWatermark)
        return stored.watermark

    def check_equal(self, topic: str, number: int = 0) -> None:
        """Each record is the consumer's, in both isolations; transactions that the tier's end leaves open wait."""
        fact, partition = self.archive.partition(topic, number), self.partition(topic, number)
        last = max(partition.manifests(), key=lambda entry: entry.name)
        manifest = read_manifest(partition, last.name)
        assert manifest is not None
        stable = min([fact["latest_tiered"] + 1, *(one.first_offset for one in manifest.manifest.open_transactions)])
        for isolation, end in (("read_uncommitted", fact["latest_tiered"] + 1), ("read_committed", stable)):
            rows = rows_of(read_range(topic, number, storage=self.storage, isolation_level=isolation))  # type: ignore[arg-type]
            wanted = [bare(row) for row in self.archive.expected(topic, number, isolation) if row["offset"] < end]
            assert [row for row in rows if row["offset"] >= fact["log_start"]] == wanted, (topic, isolation)

    def check_verified(self, topic: str, number: int = 0) -> int:
        """Each segment passes the checks of ``verify --deep``, apart from offsets that compaction had removed."""
        partition, live = self.partition(topic, number), self.watermark(topic, number).history
        words: Counter[str] = Counter()
        names = [entry.name for entry in partition.manifests()]
        for name in names:
            words.update(finding.word for finding in check(partition, name, live, deep=True).findings)
        assert set(words) <= ({"COMPACTED"} if topic == "accounts" else set())
        return len(names)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Fixture]:
    folder = tmp_path_factory.mktemp("kip405")
    return {name: unpack(name, folder) for name in NAMES}


@pytest.fixture
def plain(tmp_path: Path) -> Deployment:
    """To be damaged."""
    return Deployment(unpack("plain", tmp_path), tmp_path / "raw")


@pytest.fixture
def both(tmp_path: Path) -> Deployment:
    """Compressed and encrypted, to be damaged."""
    return Deployment(unpack("both", tmp_path), tmp_path / "raw")


def outcomes(rows: list[RepairRow]) -> dict[str, int]:
    return dict(Counter(row.outcome for row in rows))


def complete(deployment: Deployment, topic: str, number: int = 0) -> list[ListedCopy]:
    copies = deployment.archive.copies(topic)
    return [copy for copy in copies if not copy.missing and copy.name.partition == number]


@pytest.mark.parametrize(("name", "copy"), [*((name, False) for name in NAMES), ("plain", True), ("epochs", True)])
def test_each_archive_is_adopted_and_has_the_consumers_records(
    name: str, copy: bool, unpacked: dict[str, Fixture], tmp_path: Path
) -> None:
    archive = unpacked[name]
    deployment = Deployment(archive, tmp_path / "raw", copy=copy)
    segments, rows = 0, list[RepairRow]()
    for topic in archive.topics:
        rows += deployment.adopt(topic)
    for fact in archive.partitions:
        at = fact["topic"], fact["partition"]
        watermark = deployment.watermark(*at)
        assert (watermark.next_offset, watermark.gaps) == (fact["latest_tiered"] + 1, ())
        assert watermark.start_offset <= fact["log_start"], "the store does not tell the log's start"
        deployment.check_equal(*at)
        segments += deployment.check_verified(*at)
    passed = {"retried": 2} if name != "epochs" else {"unclean": 10}
    told = Counter(row.partition.rpartition("-")[0] for row in rows if row.outcome == "passed over")
    assert told == passed
    refers = name in REFERRED and not copy
    assert outcomes(rows) == {"referred" if refers else "adopted": segments, "passed over": sum(passed.values())}
    logs = [key for key in deployment.store.puts if key.rpartition("/")[2].partition(".")[2].startswith("log")]
    assert len(logs) == (0 if refers else segments), "plain logs are not copied"
    assert sorted(path.name for path in archive.objects.rglob("*") if path.is_file()) == sorted(
        Path(one["key"]).name for one in archive.facts["objects"]
    ), "nothing in the remote tier has changed"


def test_the_aborted_transactions_are_the_brokers(unpacked: dict[str, Fixture], tmp_path: Path) -> None:
    archive = unpacked["both"]
    deployment = Deployment(archive, tmp_path / "raw")
    deployment.adopt("payments")
    keys, found = deployment.partition("payments").keys, 0
    for copy in complete(deployment, "payments"):
        body = SegmentCopy.open(archive.tier(), copy).indexes().aborted
        if body:
            assert deployment.store.get(keys.file(f"{copy.name.base:020d}.txnindex")).body == body
            found += 1
    assert found == 3


def test_again_nothing_is_written(unpacked: dict[str, Fixture], tmp_path: Path) -> None:
    deployment = Deployment(unpacked["plain"], tmp_path / "raw")
    first = deployment.adopt("orders")
    deployment.store.puts.clear()
    again = deployment.adopt("orders")
    assert [key for key in deployment.store.puts if "/orders-" in key] == []
    assert {row.outcome for row in again} == {"passed over"}
    assert len(again) == len(first)


def test_a_dry_run_names_the_segments_and_writes_nothing(unpacked: dict[str, Fixture], tmp_path: Path) -> None:
    deployment = Deployment(unpacked["plain"], tmp_path / "raw")
    rows = deployment.adopt("orders", dry_run=True)
    assert {row.outcome for row in rows} == {"would refer"}
    assert deployment.store.puts == []
    assert [row[:4] for row in deployment.adopt("orders")] == [row[:4] for row in rows]


def test_only_one_partition(unpacked: dict[str, Fixture], tmp_path: Path) -> None:
    deployment = Deployment(unpacked["plain"], tmp_path / "raw")
    rows = deployment.adopt("orders", only=(1,))
    assert {row.partition for row in rows} == {"orders-1"}
    assert deployment.partition("orders", 0).watermark() is None


def test_a_partition_without_copies_is_an_error(unpacked: dict[str, Fixture], tmp_path: Path) -> None:
    deployment = Deployment(unpacked["plain"], tmp_path / "raw")
    with pytest.raises(FormatError, match=r"has no copy of partition 7, but of \[0, 1\]"):
        deployment.adopt("orders", only=(1, 7))
    assert [key for key in deployment.store.puts if "/orders-" in key] == []


@pytest.mark.parametrize("copy", [False, True])
def test_killed_at_any_request_it_goes_on(tmp_path: Path, unpacked: dict[str, Fixture], copy: bool) -> None:
    """Between any two objects; at the end all is as if nothing had happened."""
    kills = 0
    while True:
        deployment = Deployment(unpacked["plain"], tmp_path / f"raw-{kills}", copy=copy)
        left = [kills]

        def die(operation: str, key: str, left: list[int] = left) -> None:
            if operation == "put":
                left[0] -= 1
                if left[0] == -1:
                    raise StoreError(key, "killed here")

        deployment.store.before = die
        try:
            deployment.adopt("exact")
        except StoreError:
            rows = deployment.adopt("exact")
            assert "left" not in outcomes(rows)
            deployment.check_equal("exact")
            deployment.check_verified("exact")
            kills += 1
            shutil.rmtree(tmp_path / f"raw-{kills - 1}")
            continue
        break
    assert kills == (15 if copy else 12), "three segments of three or four objects, and three about them"


def test_an_agent_finds_the_partitions_of_planners(unpacked: dict[str, Fixture], tmp_path: Path) -> None:
    """The watermark index names them, and nothing that a broker alone can say."""
    deployment = Deployment(unpacked["plain"], tmp_path / "raw")
    deployment.adopt("orders")
    deployment.adopt("exact")
    cluster = deployment.storage.cluster_store()
    index = WatermarkIndex.load(cluster.store, cluster.keys.index(1))
    assert {(entry.topic, entry.partition) for entry in index.entries} == {("orders", 0), ("orders", 1), ("exact", 0)}
    assert {entry.observed_at.year for entry in index.entries} == {1970}
    cluster.store.put(cluster.keys.index(1), index.model_copy(update={"endpoints": "agent's"}).to_bytes())
    deployment.adopt("tiny")
    assert len(WatermarkIndex.load(cluster.store, cluster.keys.index(1)).entries) == 3, "an agent writes its own"


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["missing", "flipped"])
@pytest.mark.parametrize("name", ["plain", "both"])
def test_a_damaged_object_is_a_gap_that_is_told_by_its_key(
    name: str, kind: Any, damage: str, request: pytest.FixtureRequest
) -> None:
    deployment: Deployment = request.getfixturevalue(name)
    copies = complete(deployment, "payments")
    copy = copies[1]
    path = deployment.archive.path(copy, kind)
    sound = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(sound[:40] + bytes([sound[40] ^ 1]) + sound[41:])
    rows = deployment.adopt("payments")
    done = "referred" if name == "plain" else "adopted"
    [row] = [row for row in rows if row.outcome != done]
    key = copy.name.key(deployment.archive.prefix, kind)
    assert row.detail is not None
    assert row.detail.startswith(f"{key}: ")
    start, end = copy.name.base, copies[2].name.base
    [gap] = deployment.watermark("payments").gaps
    unfinished = (kind, damage) == ("rsm-manifest", "missing")
    assert row.outcome == ("passed over" if unfinished else "left")
    assert (gap.start, gap.end, gap.reason) == (start, end, "unknown" if unfinished else "corrupt")
    watermark = deployment.watermark("payments")
    assert watermark.next_offset == start
    assert watermark.ranges_above == ((end, deployment.archive.partition("payments")["latest_tiered"] + 1),)

    path.write_bytes(sound)
    again = deployment.adopt("payments")
    assert outcomes(again)[done] == 1
    assert deployment.watermark("payments").gaps == ()
    deployment.check_equal("payments")
    deployment.check_verified("payments")


def test_damage_in_one_partition_does_not_stop_the_other(plain: Deployment) -> None:
    for copy in complete(plain, "orders", 0):
        plain.archive.path(copy, "log").write_bytes(b"")
    rows = plain.adopt("orders")
    assert {row.outcome for row in rows if row.partition == "orders-0"} == {"left"}
    assert {row.outcome for row in rows if row.partition == "orders-1"} == {"referred"}
    plain.check_equal("orders", 1)


def test_another_copy_of_the_same_offsets_takes_the_place_of_a_damaged_one(plain: Deployment) -> None:
    """``retried`` has two complete copies of its first segment."""
    first = [copy for copy in complete(plain, "retried") if copy.name.base == 0]
    assert len(first) == 2
    for copy in first:
        path = plain.archive.path(copy, "log")
        sound = path.read_bytes()
        path.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
        raw = Deployment(plain.archive, plain.archive.root / f"raw-{copy.name.segment_id}")
        raw.adopt("retried")
        assert raw.watermark("retried").gaps == ()
        raw.check_equal("retried")
        path.write_bytes(sound)


def test_damage_at_the_start_and_at_the_end_is_a_gap_too(plain: Deployment) -> None:
    copies = complete(plain, "exact")
    for copy in (copies[0], copies[-1]):
        plain.archive.path(copy, "log").unlink()
    plain.adopt("exact")
    watermark = plain.watermark("exact")
    last = plain.archive.partition("exact")["latest_tiered"] + 1
    assert [(gap.start, gap.end) for gap in watermark.gaps] == [(0, copies[1].name.base), (copies[-1].name.base, last)]
    assert watermark.start_offset == 0


def test_without_its_key_a_segment_is_only_in_the_remote_tier(both: Deployment) -> None:
    rows = both.adopt("orders", keys=False)
    assert {row.outcome for row in rows} == {"left"}
    assert all("--key-file key-" in (row.detail or "") for row in rows)
    assert both.partition("orders").watermark() is None
    both.archive.key_files["key-2"].rename(both.archive.root / "aside")
    rows = both.adopt("orders")
    assert set(outcomes(rows)) == {"left", "adopted"}
    assert {gap.reason for gap in both.watermark("orders").gaps} == {"remote_tier"}
    (both.archive.root / "aside").rename(both.archive.root / "keys" / "key-2.private.pem")
    both.adopt("orders")
    assert both.watermark("orders").gaps == ()
    both.check_equal("orders")


def test_a_strange_object_in_the_topics_folder_is_told(plain: Deployment) -> None:
    folder = plain.archive.path(complete(plain, "orders")[0], "log").parent
    (folder / "notes.txt").write_text("mine")
    [told] = [row for row in plain.adopt("orders") if row.outcome != "referred"]
    assert (told.outcome, told.base_offset) == ("passed over", None)
    assert (told.detail or "").endswith("notes.txt: is no object of a copy")


def test_a_foreign_manifest_under_a_copys_key_is_told(plain: Deployment) -> None:
    """A copy of another topic's object, as a person may have made."""
    ours, theirs = complete(plain, "orders")[1], complete(plain, "exact")[1]
    shutil.copy(plain.archive.path(theirs, "rsm-manifest"), plain.archive.path(ours, "rsm-manifest"))
    [told] = [row for row in plain.adopt("orders") if row.outcome == "left"]
    assert "its key names another segment" in (told.detail or "")


def test_the_index_of_the_newest_copy_may_be_the_damaged_one(plain: Deployment) -> None:
    """Then its manifest alone tells the epoch that its history adds."""
    newest = complete(plain, "orders")[-1]
    plain.archive.path(newest, "indexes").unlink()
    plain.adopt("orders", only=(0,))
    [gap] = plain.watermark("orders").gaps
    assert gap.start == newest.name.base
    tier = plain.archive.tier()
    copies = [SegmentCopy.open(tier, copy) for copy in complete(plain, "orders")[:-1]]
    assert plain.watermark("orders").history.epochs >= history_of(copies).epochs


# -- lives of a topic, and what is there already -----------------------------------------------------------------------


def another_life(archive: Fixture, topic: str, topic_id: str, shift: int) -> None:
    """The topic's objects again under another id, copied ``shift`` milliseconds later."""
    for listed in archive.copies(topic):
        for kind in listed.objects:
            body = archive.path(listed, kind).read_bytes()
            if kind == "rsm-manifest":
                fields = json.loads(body)
                about = fields["remoteLogSegmentMetadata"]
                about["remoteLogSegmentId"]["topicIdPartition"]["topicId"] = topic_id
                about["eventTimestampMs"] += shift
                body = json.dumps(fields).encode()
            path = archive.objects / listed.name._replace(topic_id=topic_id).key(archive.prefix, kind)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)


@pytest.mark.parametrize("shift", [-1, 1])
def test_of_several_lives_the_newest_is_adopted_and_the_others_are_told(plain: Deployment, shift: int) -> None:
    own, other = complete(plain, "exact")[0].name.topic_id, "A" * 21 + "w"
    another_life(plain.archive, "exact", other, shift)
    rows = plain.adopt("exact")
    newest, older = (other, own) if shift > 0 else (own, other)
    [told] = [row for row in rows if row.outcome == "passed over"]
    assert f"another life of the topic, with the id {older}" in (told.detail or "")
    incarnations = plain.storage.cluster_store().incarnations("exact").incarnations
    assert [one.topic_id for one in incarnations] == [newest]


def test_the_life_that_agents_know_counts(plain: Deployment) -> None:
    own = complete(plain, "exact")[0].name.topic_id
    another_life(plain.archive, "exact", "A" * 21 + "w", 1)
    Incarnations(plain.storage, record=True).find("exact", own)
    plain.adopt("exact")
    plain.check_equal("exact")
    Incarnations(plain.storage, record=True).find("exact", "C" * 21 + "w")
    with pytest.raises(FormatError, match="there is nothing to adopt"):
        plain.adopt("exact")


def test_a_topic_without_copies_is_an_error_that_names_the_options(
    unpacked: dict[str, Fixture], tmp_path: Path
) -> None:
    with pytest.raises(
        FormatError, match="nothing-…: has no copy of a segment: check the topic's name, and --key-prefix"
    ):
        Deployment(unpacked["both"], tmp_path / "raw").adopt("nothing")


def test_another_uploaders_watermark_is_left_alone(unpacked: dict[str, Fixture], tmp_path: Path) -> None:
    deployment = Deployment(unpacked["plain"], tmp_path / "raw")
    key = deployment.partition("exact").keys.watermark
    deployment.store.inner.put(key, b"00000000000000000000")
    [row] = deployment.adopt("exact")
    assert (row.outcome, row.base_offset) == ("left", None)
    assert (row.detail or "").startswith(f"{key}: was written by another uploader")


# -- the agent afterwards ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "topic"), [("plain", "orders"), ("plain", "payments"), ("both", "payments"), ("epochs", "unclean")]
)
def test_the_agent_goes_on_from_there_to_the_end_of_the_log(
    name: str, topic: str, unpacked: dict[str, Fixture], world: World
) -> None:
    """On the broker's own files, of which the remote tier has the older part: every offset is stored and proved."""
    archive = unpacked[name]
    tp, storage = beside_the_tier(world, archive, topic)
    rows = adopted_beside(storage, archive, topic)
    assert "left" not in outcomes(rows)
    fact = archive.partition(topic)
    world.once()
    _, watermark = world.watermark(tp)
    assert (watermark.start_offset, watermark.next_offset, watermark.gaps) == (0, fact["high_watermark"], ())
    words = verified_words(world, tp)
    assert set(words) <= {"OK", "OVERLAP"}, words
    assert [store.puts for store in world.others.values()] == [[]]
    check_all_records(storage, archive, topic)
    world.store.puts.clear()
    assert set(outcomes(adopted_beside(storage, archive, topic))) == {"passed over"}, "the agent has gone on"
    assert [key for key in world.store.puts if f"/{tp}/" in key] == []
    assert world.watermark(tp)[1] == watermark


def beside_the_tier(world: World, archive: Fixture, topic: str) -> tuple[TopicPartition, Storage]:
    """A broker's disk as the archive has it, and the storage of its cluster, which reaches the remote tier as well."""
    fact, tier = archive.partition(topic), archive.tier().store
    tp = TopicPartition(topic, 0)
    shutil.copytree(archive.root / "local" / f"broker-{fact['leader']}" / str(tp), world.disk.log_dirs[0] / str(tp))
    world.others[tier.url] = WatchedStore(tier)
    world.metadata.leads = {tp: Led(fact["leader_epoch"], kafka_id(fact["topic_id"]))}
    world.metadata.high[tp] = fact["high_watermark"]
    world.begins_epochs = False
    raw, own = world.settings().raw, world.store
    return tp, Storage(world.control.cluster, raw, opener=lambda url: world.others.get(url, own))


def adopted_beside(storage: Storage, archive: Fixture, topic: str) -> list[RepairRow]:
    return list(TierAdoption(Incarnations(storage, record=True), archive.tier(), topic, broker=1).run((0,)))


def check_all_records(storage: Storage, archive: Fixture, topic: str) -> None:
    """Up to the high watermark, or the last stable offset, all records are the consumer's."""
    for isolation in ("read_uncommitted", "read_committed"):
        found = rows_of(read_range(topic, 0, storage=storage, isolation_level=isolation))
        assert found == [bare(row) for row in archive.all_expected(topic, 0, isolation)], isolation


def test_a_gap_that_the_agent_keeps_is_filled_by_another_run(plain: Deployment, world: World) -> None:
    """The object comes back while the agent runs; ``offset.wm`` keeps what the agent has added."""
    archive = plain.archive
    tp, storage = beside_the_tier(world, archive, "payments")
    path = archive.path(complete(plain, "payments")[1], "log")
    sound = path.read_bytes()
    path.unlink()
    assert outcomes(adopted_beside(storage, archive, "payments"))["left"] == 1
    world.once()
    _, before = world.watermark(tp)
    assert (len(before.gaps), before.ranges_above[-1][1]) == (1, archive.partition("payments")["high_watermark"])
    path.write_bytes(sound)
    rows = adopted_beside(storage, archive, "payments")
    assert outcomes(rows)["referred"] == 1
    _, after = world.watermark(tp)
    assert (after.next_offset, after.gaps, after.lineage) == (before.ranges_above[-1][1], (), before.lineage)
    world.once()
    assert world.watermark(tp)[1] == after
    check_all_records(storage, archive, "payments")


def test_after_the_agent_has_begun_a_partition_its_start_stays(unpacked: dict[str, Fixture], world: World) -> None:
    archive = unpacked["plain"]
    tp, storage = beside_the_tier(world, archive, "orders")
    world.once()
    _, before = world.watermark(tp)
    assert before.start_offset == archive.partition("orders")["local_log_start"]
    rows = adopted_beside(storage, archive, "orders")
    assert set(outcomes(rows)) == {"passed over"}
    assert "lie below the partition's start" in (rows[0].detail or "")
    assert world.watermark(tp)[1] == before


def test_a_remote_tier_of_another_history_is_an_error_of_the_partition(
    unpacked: dict[str, Fixture], world: World
) -> None:
    """The agent's lineage begins with an epoch that the remote tier never had."""
    archive = unpacked["plain"]
    tp, storage = beside_the_tier(world, archive, "orders")
    adopted_beside(storage, archive, "orders")
    line_1, stored = world.watermark(tp)
    other = stored.model_copy(update={"lineage": ((0, 0), (3, 100))})
    world.store.inner.put(world.keys(tp).watermark, render(line_1, other))
    [row] = adopted_beside(storage, archive, "orders")
    assert row.outcome == "left"
    assert "has a history that the remote tier's leaves at offset 100" in (row.detail or "")


def verified_words(world: World, tp: TopicPartition) -> Counter[str]:
    """The words of ``verify --deep`` for a partition, which the agent leads."""
    findings: list[VerifyFinding] = []
    with world.agent(read_only=True) as agent, ThreadPoolExecutor(3) as pool:
        agent.survey()
        partition = agent.leadership.partitions[tp]
        assert partition.error is None
        verdict = verify(partition, pool, findings.append, lambda _done: None, LiveEnd(), (), deep=True)
    assert not verdict.wrong, findings
    return Counter([verdict.word, *(finding.word for finding in findings)])


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Callable[[Path], Path]:
    """Writes an agent's file, beside the files of a broker that is not there."""

    def made(raw: Path) -> Path:
        logs = tmp_path / "logs"
        logs.mkdir()
        (logs / "meta.properties").write_text("version=1\ncluster.id=east\nnode.id=1\ndirectory.id=a\n")
        raw.mkdir(exist_ok=True)
        properties = tmp_path / "server.properties"
        properties.write_text(
            f"node.id=1\nprocess.roles=broker\nlog.dirs={logs}\nlisteners=PLAINTEXT://127.0.0.1:1\n"
            "advertised.listeners=PLAINTEXT://127.0.0.1:1\n"
        )
        settings = {"broker": {"properties": str(properties)}, "raw": {"url": f"file://{raw}"}}
        path = tmp_path / "agent.yaml"
        path.write_text(json.dumps(settings | {"state_dir": str(tmp_path / "state")}))
        return path

    return made


def test_the_command_needs_no_broker(
    config: Callable[[Path], Path], unpacked: dict[str, Fixture], tmp_path: Path
) -> None:
    archive, raw = unpacked["both"], tmp_path / "raw"
    path, log = config(raw), tmp_path / "log"
    keys = [part for name, file in archive.key_files.items() for part in ("--key-file", f"{name}={file}")]
    tier = ["--kafka-tier", f"file://{archive.objects}", "--key-prefix", archive.prefix]
    command = ["adopt", "payments", *tier, *keys, "--config", str(path), "--output", "json"]
    assert run_here(command, log) == 0, log.read_text()
    rows = [json.loads(line) for line in log.read_text().splitlines() if line.startswith('{"partition"')]
    assert {row["outcome"] for row in rows} == {"adopted"}
    Deployment(archive, raw).check_equal("payments")


def test_the_command_fails_if_a_segment_is_left(
    config: Callable[[Path], Path], unpacked: dict[str, Fixture], tmp_path: Path
) -> None:
    archive, path, log = unpacked["both"], config(tmp_path / "raw"), tmp_path / "log"
    tier = ["--kafka-tier", f"file://{archive.objects}", "--key-prefix", archive.prefix]
    assert run_here(["adopt", "payments", *tier, "--config", path], log) == 1
    assert "whose file was not given: --key-file key-" in log.read_text()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--key-prefix", "x/"], "belong to --kafka-tier"),
        (["--kafka-tier", "file:///x", "--key-file", "key-1"], "must be ID=PATH"),
        (["--kafka-tier", "file:///x", "--key-file", "key-1=/none"], "/none: is no private key in PEM"),
        (["--kafka-tier", "s3://bucket/prefix"], "must name only a bucket; give the prefix separately"),
    ],
)
def test_wrong_options_are_one_message(
    config: Callable[[Path], Path], tmp_path: Path, options: list[str], says: str
) -> None:
    log = tmp_path / "log"
    assert run_here(["adopt", "orders", *options, "--config", config(tmp_path / "raw")], log) in {1, 2}
    assert says in " ".join(log.read_text().replace("│", " ").split())
    assert "Traceback" not in log.read_text()
