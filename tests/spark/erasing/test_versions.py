"""A raw bucket that keeps versions, and can lock them: after a pass none holds a masked record, or it is named."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from tests.spark.erasing.masked import killed, take_out
from tests.spark.retention.test_raw import NOW, OPTED_IN, reported
from tests.spark.retention.test_s3 import deployed
from tests.spark.test_vacuum import Died
from tests.spark.world import in_process
from tests.support.erased import erase as mask
from tests.support.s3 import OwnBuckets
from tests.support.waiting import wait_until
from tests.tidemark.kafka_log.build import T0, Record, batch, simple
from tests.tidemark.remote.live import Packing, Range
from tidemark.decode import decode_batches, scan_headers
from tidemark.erasure.reports import RawReport
from tidemark.formats.keys import SegmentName
from tidemark.intervals import Intervals
from tidemark.raw import tombstones
from tidemark.storage import PartitionStore
from tidemark.store.s3.clients import forget_clients
from tidemark.store.s3.store import S3Store
from tidemark_spark.erasing.lake import NOTHING, Unseen
from tidemark_spark.erasing.seals import erase_seals

ADA: Final = b"ada.lovelace@example.com"
NUMBERS = count(1)


@pytest.fixture(scope="module")
def server(own_buckets: Callable[..., OwnBuckets]) -> OwnBuckets:
    """Its raw bucket can lock versions, but does so to none by itself."""
    server = own_buckets(locked=("raw",))
    server.lock_nothing()
    return server


class Bucket:
    """A deployment under a prefix of its own, and all versions in raw."""

    def __init__(self, server: OwnBuckets, root: Path, masked: Sequence[int] = (0, 4, 6)) -> None:
        """Ada's records are offsets 0, 4 and 6 of three segments, in batches of three codecs; a fourth follows."""
        self.prefix, self.admin, self.name = f"{next(NUMBERS)}", server.client(), server.raw
        (root / self.prefix).mkdir()
        self.world = deployed(server, root / self.prefix, OPTED_IN, self.prefix, self.prefix)
        for base, codec in ((0, "gzip"), (3, "zstd"), (6, "none")):
            keys = [ADA if base + at in {0, 4, 6} else b"%d" % at for at in range(3)]
            self.world.raw.segment([batch(base, [Record(at, T0, key, b"v") for at, key in enumerate(keys)], codec)])
        self.world.raw.segment([simple(9)])
        self.world.land()
        mask(self.world.raw, masked)
        take_out(self.world)

    def retain(self) -> None:
        """Retention deletes the three segments."""
        reported(self.world, NOW, dry_run=True)
        assert reported(self.world, NOW + timedelta(days=1)).partitions[0].segments == 3

    def step(self, attempt: int = 7, unseen: Unseen = NOTHING) -> RawReport:
        """The last step of a pass, whose search has not seen these records."""
        return erase_seals(self.world.table, attempt, in_process, unseen=unseen)

    def versions(self, prefix: str = "") -> list[dict[str, Any]]:
        """All versions of objects in raw, without delete markers."""
        pages = self.admin.get_paginator("list_object_versions")
        found = pages.paginate(Bucket=self.name, Prefix=f"{self.prefix}/{prefix}")
        return [dict(version) for page in found for version in page.get("Versions", [])]

    def holders(self) -> list[str]:
        """The names of the files of which a version has one of Ada's records, decompressed."""
        found = []
        for version in self.versions():
            there = {"Bucket": self.name, "Key": version["Key"], "VersionId": version["VersionId"]}
            body, name = self.admin.get_object(**there)["Body"].read(), version["Key"].rpartition("/")[2]
            segment = SegmentName.parse(name)
            decoded = b""
            if segment is not None and segment[1] == "log":
                headers = scan_headers(body, name, segment[0].base)
                batches = decode_batches(body, headers, name=name, partition=0, incarnation=0)
                decoded = repr([rows.to_pylist() for rows in batches]).encode()
            if ADA in body or ADA in decoded:
                found.append(name)
        return sorted(found)

    def former(self) -> list[str]:
        """The names of the files in the partition's folder that have former versions, or delete markers."""
        folder = self.world.raw.keys().folder
        found = self.admin.list_object_versions(Bucket=self.name, Prefix=folder)
        listed = [*found.get("Versions", []), *found.get("DeleteMarkers", [])]
        names = {entry["Key"].rpartition("/")[2] for entry in listed if not entry["IsLatest"] or "ETag" not in entry}
        return sorted(names - {"offset.wm"})

    def lock(self, file: str, mode: Any, until: datetime) -> str:
        """Lock the latest version of a file of the partition, and return its id."""
        key = self.world.raw.keys().file(file)
        version = self.admin.head_object(Bucket=self.name, Key=key)["VersionId"]
        retention: Any = {"Mode": mode, "RetainUntilDate": until}
        self.admin.put_object_retention(Bucket=self.name, Key=key, VersionId=version, Retention=retention)
        return version


@pytest.fixture
def made(server: OwnBuckets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Bucket]]:
    """Make deployments as an administrator."""
    for name, value in server.env().items():
        monkeypatch.setenv(name, value)
    forget_clients()
    yield lambda *masked: Bucket(server, tmp_path, *masked)
    forget_clients()


def log(base: int) -> str:
    return SegmentName(base).file("log")


@pytest.mark.essential
def test_no_version_holds_a_masked_record_after_a_pass(made: Callable[..., Bucket]) -> None:
    bucket = made()
    assert bucket.holders() == [log(0), log(3), log(6)]
    report = bucket.step()
    assert (report.rewritten, report.deleted, report.remaining) == (3, 3, ())
    assert (bucket.holders(), bucket.former()) == ([], [])
    assert bucket.step(8) == RawReport()


def test_a_version_under_a_lock_stays_with_its_date_and_goes_after_it(made: Callable[..., Bucket]) -> None:
    bucket, until, version, report = _locked(made, 4)
    [item] = report.remaining
    assert (item.key, item.version) == (bucket.world.raw.keys().file(log(3)), version)
    assert (item.why, item.until) == ("is kept by Object Lock in compliance mode", until)
    assert (bucket.holders(), bucket.former()) == ([log(3)], [log(3)])
    wait_until(lambda: bucket.world.raw.store.now() > until, what="the end of the lock by the store's clock")
    assert bucket.step(8) == RawReport()
    assert (bucket.holders(), bucket.former()) == ([], [])


def _locked(made: Callable[..., Bucket], seconds: int) -> tuple[Bucket, datetime, str, RawReport]:
    """A pass over a bucket with a version under a lock of ``seconds``, or of more, if it ended before the pass."""
    bucket = made()
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=seconds)
    version = bucket.lock(log(3), "COMPLIANCE", until)
    report = bucket.step()
    in_time = bucket.world.raw.store.now() < until
    return (bucket, until, version, report) if in_time else _locked(made, 4 * seconds)


def test_every_kind_of_lock_is_named_each_time(made: Callable[..., Bucket]) -> None:
    bucket, until = made(), datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    keys = bucket.world.raw.keys()
    bucket.lock(log(0), "COMPLIANCE", until)
    bucket.lock(SegmentName(3).file("manifest.json"), "GOVERNANCE", until)
    held: Any = {"Bucket": bucket.name, "Key": keys.file(log(6))}
    held["VersionId"] = bucket.admin.head_object(**held)["VersionId"]
    bucket.admin.put_object_legal_hold(**held, LegalHold={"Status": "ON"})
    for attempt in (7, 8):
        report = bucket.step(attempt)
        assert [(item.key.rpartition("/")[2], item.why, item.until) for item in report.remaining] == [
            (log(0), "is kept by Object Lock in compliance mode", until),
            (SegmentName(3).file("manifest.json"), "is kept by Object Lock in governance mode", until),
            (log(6), "is kept by a legal hold", None),
        ]
        assert bucket.holders() == [log(0), log(6)]
    bucket.admin.put_object_legal_hold(**held, LegalHold={"Status": "OFF"})
    assert [item.key.rpartition("/")[2] for item in bucket.step(9).remaining] == [
        log(0),
        SegmentName(3).file("manifest.json"),
    ]
    assert bucket.holders() == [log(0)]


def test_versions_of_what_retention_deleted_go_around_masked_offsets_alone(made: Callable[..., Bucket]) -> None:
    bucket = made((0, 4))
    bucket.retain()
    assert bucket.holders() == [log(0), log(3), log(6)]
    report = bucket.step()
    assert (report.rewritten, report.deleted, report.remaining) == (0, 0, ())
    assert bucket.holders() == [log(6)]
    assert {name[:20] for name in bucket.former()} == {SegmentName(6).file("log")[:20]}
    assert bucket.step(8) == RawReport()


def test_versions_of_what_retention_deleted_are_named_where_no_search_has_seen_the_records(
    made: Callable[..., Bucket],
) -> None:
    bucket = made((0, 4))
    bucket.retain()
    [key] = [stone.key for stone in tombstones.named(PartitionStore(bucket.world.raw.store, bucket.world.raw.keys()))]
    assert bucket.step(7, Unseen({(0, 0): Intervals([(9, 12)])}, ())).remaining == (), "the segment is there"
    [item] = bucket.step(8, Unseen({(0, 0): Intervals([(7, 8)])}, ())).remaining
    assert (item.key, "nothing has searched these" in item.why) == (key, True)
    assert [item.key for item in bucket.step(9, Unseen({}, {key})).remaining] == [key]
    for version in bucket.versions():
        if SegmentName(6).file("") in version["Key"]:
            bucket.admin.delete_object(Bucket=bucket.name, Key=version["Key"], VersionId=version["VersionId"])
    assert bucket.step(10, Unseen({}, {key})) == RawReport()


def test_a_version_of_what_retention_deleted_stays_under_a_lock(made: Callable[..., Bucket]) -> None:
    bucket, until = made(), datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    version = bucket.lock(log(3), "COMPLIANCE", until)
    bucket.retain()
    for attempt in (7, 8):
        [item] = bucket.step(attempt).remaining
        assert (item.key, item.version) == (bucket.world.raw.keys().file(log(3)), version)
        assert (item.why, item.until) == ("is kept by Object Lock in compliance mode", until)
        assert bucket.holders() == [log(3)]


def test_a_version_of_a_pack_goes_once_no_agent_may_need_it(
    made: Callable[..., Bucket], monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = made((0,))
    agent, shipped_at = Packing(bucket.world.raw), bucket.world.raw.now
    agent.lead()
    packs = [agent.pack(Range([batch(12 + 3 * at, [Record(0, T0, ADA, b"v"), Record(1), Record(2)])])) for at in (0, 1)]
    for at in (0, 1):
        bucket.world.raw.segment([batch(12 + 3 * at, [Record(0, T0, ADA, b"v"), Record(1), Record(2)])])
    bucket.world.raw.segment([simple(18)])
    agent.sealed()
    bucket.world.land()
    for key in packs:
        bucket.world.raw.store.delete(key)
    mask(bucket.world.raw, [12])
    take_out(bucket.world)
    monkeypatch.setattr(S3Store, "now", lambda _: shipped_at + timedelta(days=6))
    [item] = bucket.step().remaining
    assert item.until is not None
    assert (item.key, (item.until - shipped_at).days) == (packs[0], 7)
    monkeypatch.setattr(S3Store, "now", lambda _: shipped_at + timedelta(days=8))
    assert bucket.step(8).remaining == ()
    assert [version["Key"] for version in bucket.versions("_tails/")] == [packs[1]]


@pytest.mark.parametrize("carried_out", [False, True])
@pytest.mark.parametrize("retained", [False, True])
def test_a_pass_that_dies_at_any_write_is_completed_by_the_next(
    made: Callable[..., Bucket], retained: bool, carried_out: bool, rng: random.Random, full: bool
) -> None:
    died, writes = 0, 12 if retained else 38
    for after in range(writes + 2) if full else [rng.randrange(writes)]:
        bucket = made()
        if retained:
            bucket.retain()
        try:
            with killed(after, lambda: carried_out, S3Store):
                bucket.step()
        except Died:
            died += 1
        assert bucket.step(8).remaining == ()
        assert (bucket.holders(), bucket.former()) == ([], [])
        bucket.world.check()
    assert died


def test_bytes_that_come_back_go_with_their_versions(made: Callable[..., Bucket]) -> None:
    bucket = made()
    keys, store = bucket.world.raw.keys(), bucket.world.raw.store
    old = {info.key: store.get(info.key).body for info in store.list(keys.folder) if "0003." in info.key}
    bucket.step()
    store.put(keys.file(log(3)), old[keys.file(log(3))])
    assert bucket.holders() == [log(3)]
    assert bucket.step(8).remaining == (), "a log alone"
    assert (bucket.holders(), bucket.former()) == ([], [])
    for key, body in old.items():
        store.put(key, body)
    assert (bucket.step(9).deleted, bucket.holders(), bucket.former()) == (1, [], [])


def test_a_version_that_no_list_names_is_told(made: Callable[..., Bucket]) -> None:
    bucket = made()
    key = bucket.world.raw.keys().file(log(0))
    right = bucket.world.raw.store.get(key).body
    store = bucket.world.raw.store
    store.put(key, b"spoilt")
    store.put(key, right)
    report = bucket.step()
    assert [(item.key, item.why.partition(",")[0]) for item in report.remaining] == [
        (key, "is another version than the deleted one")
    ]
    [spoilt] = [version for version in bucket.versions() if version["Key"] == key]
    bucket.admin.delete_object(Bucket=bucket.name, Key=key, VersionId=spoilt["VersionId"])
    assert (bucket.step(8), bucket.former()) == (RawReport(), [])


def test_versions_of_what_a_dead_pass_has_left_go(made: Callable[..., Bucket], monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = made()
    with killed(1, store=S3Store), pytest.raises(Died):
        bucket.step()
    mask(bucket.world.raw, [1])  # of the same seal, so that the next pass writes other bytes
    take_out(bucket.world)
    assert [item.key.rpartition("/")[2] for item in bucket.step(8).remaining] == [SegmentName(0, "e1").file("log")]
    real = S3Store.now
    monkeypatch.setattr(S3Store, "now", lambda self: real(self) + timedelta(days=3))
    assert bucket.step(9).remaining == ()
    assert bucket.former() == []
    assert SegmentName(0, "e1").file("log") not in [version["Key"].rpartition("/")[2] for version in bucket.versions()]
