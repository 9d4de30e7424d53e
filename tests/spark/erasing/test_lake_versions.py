"""A lake's bucket that keeps versions, and can lock them: after a pass none has an erased row, or it is named."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest

from tests.spark.audit.test_audit import audited
from tests.spark.erasing.masked import erase, killed, take_out
from tests.spark.retention.test_s3 import deployed
from tests.spark.state.replay import advance
from tests.spark.test_vacuum import OLDER, Died, as_of
from tests.spark.world import in_process
from tests.support.s3 import OwnBuckets
from tests.support.waiting import wait_until
from tests.tidemark.kafka_log.build import T0, Record, batch, simple
from tests.uploader_agent.test_policies import PREFIX, refused, statements
from tidemark.erasure.reports import Remaining
from tidemark.formats.keys import ControlKeys
from tidemark.formats.table.state_ledger import StateLedger
from tidemark.intervals import Intervals
from tidemark.planning import plan_compaction, write_plan
from tidemark.store.s3.clients import forget_clients
from tidemark.store.s3.store import S3Store
from tidemark.table.evidence import parse_evidence
from tidemark.table.state_table import StateTable
from tidemark_spark.erasing.lake import Unseen, state_files, unseen_files
from tidemark_spark.erasing.seals import erase_seals
from tidemark_spark.run.driver import run
from tidemark_spark.run.vacuum import vacuum

ADA: Final = b"ada.lovelace@example.com"
NUMBERS = count(1)


@pytest.fixture(scope="module")
def server(own_buckets: Callable[..., OwnBuckets]) -> OwnBuckets:
    """Its buckets can lock versions, but do so to none by themselves."""
    server = own_buckets(locked=("raw", "lake"), users={"erasure": statements("erasure")})
    server.lock_nothing()
    return server


class Lake:
    """A deployment under a prefix of its own, and all versions in the lake."""

    def __init__(self, server: OwnBuckets, root: Path, *settings: str, raw: str = "", lake: str = "") -> None:
        """Offsets 0 and 4 are Ada's, and 5 and 8 are refused; the files that a compaction replaced are deleted."""
        self.prefix, self.admin, self.name = lake or f"{next(NUMBERS)}", server.client(), server.lake
        (root / self.prefix).mkdir()
        lines = "\n    ".join(["retention: {erased: 0s}", *settings])
        self.world = deployed(server, root / self.prefix, lines, raw or self.prefix, self.prefix)
        for base in (0, 3, 6):
            keys = [ADA if base + at in {0, 4, 5} else b"%d" % at for at in range(3)]
            times = [-1 if base + at in {5, 8} else T0 for at in range(3)]
            records = [Record(at, times[at], key, b"v") for at, key in enumerate(keys)]
            self.world.raw.segment([batch(base, records)])
            self.world.land()
        write_plan(self.world.table, plan := plan_compaction(self.world.table, files=2))
        assert run(self.world.table, plan, in_process).status == "landed"
        with as_of(self.world, OLDER):
            assert len(vacuum(self.world.table).removed) == 3
        self.before = self.world.rows()

    def erase(self) -> None:
        """Mask Ada's offsets, and take them out."""
        erase(self.world, [0, 4, 5])
        take_out(self.world)

    def step(self) -> tuple[Remaining, ...]:
        """The last step of a pass, once no run reads the old evidence any more."""
        vacuum(self.world.table)
        return vacuum(self.world.table, versions=True).remaining

    def versions(self) -> Iterator[tuple[str, bytes]]:
        """The key and the bytes of each version of a Parquet file."""
        pages = self.admin.get_paginator("list_object_versions").paginate(Bucket=self.name, Prefix=f"{self.prefix}/")
        for version in (version for page in pages for version in page.get("Versions", [])):
            if version["Key"].endswith(".parquet"):
                there: Any = {"Bucket": self.name, "Key": version["Key"], "VersionId": version["VersionId"]}
                yield version["Key"], self.admin.get_object(**there)["Body"].read()

    def holders(self) -> set[str]:
        """The keys of the files with a version that has a record of Ada's, or a sum over one beside that of others."""
        held = {(row["first"], row["file"]) for row in self.world.holding()}
        found = set()
        for key, body in self.versions():
            if "/evidence/" in key:
                rows = [row for row in parse_evidence(body, key).to_pylist() if row["hash128"] is not None]
                around = [row for row in rows if any(row["first"] <= at < row["next"] for at in (0, 4, 5))]
                if any((row["first"], row["file"]) not in held or row["class"] == "superseded" for row in around):
                    found.add(key)
            else:
                found |= {key} if ADA in repr(pq.ParquetFile(io.BytesIO(body)).read().to_pylist()).encode() else set()
        return found

    def former(self) -> set[str]:
        """The keys below the table, quarantine and evidence that have versions or markers without an object."""
        found = self.admin.list_object_versions(Bucket=self.name, Prefix=f"{self.prefix}/")
        stored = {version["Key"] for version in found.get("Versions", []) if version["IsLatest"]}
        every = {entry["Key"] for entry in [*found.get("Versions", []), *found.get("DeleteMarkers", [])]}
        return {key for key in every - stored if key.endswith(".parquet")}

    def settled(self) -> None:
        """Nothing of Ada is left, and all else is as it was."""
        assert self.holders() == set()
        self.world.check()
        assert self.world.rows() == [row for row in self.before if row["kafka_offset"] not in {0, 4, 5}]
        assert audited(self.world).findings == ()

    def lock(self, key: str, until: datetime) -> str:
        """Lock the first version of ``key``, and return its id."""
        version = next(
            version["VersionId"]
            for version in self.admin.list_object_versions(Bucket=self.name, Prefix=key)["Versions"]
        )
        there: Any = {"Bucket": self.name, "Key": key, "VersionId": version}
        self.admin.put_object_retention(**there, Retention={"Mode": "COMPLIANCE", "RetainUntilDate": until})
        return str(version)


@pytest.fixture
def made(server: OwnBuckets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Lake]]:
    """Make deployments as an administrator."""
    for name, value in server.env().items():
        monkeypatch.setenv(name, value)
    forget_clients()
    yield lambda *settings, **places: Lake(server, tmp_path, *settings, **places)
    forget_clients()


@pytest.mark.essential
def test_no_version_has_an_erased_row_after_a_pass_and_clean_ones_stay(made: Callable[..., Lake]) -> None:
    lake = made()
    gone = lake.former()
    clean = {key for key in gone if "_6_7_" in key}
    assert (len(gone), len(clean)) == (3, 1)
    assert lake.holders() > gone - clean, "files deleted before the request, and live ones"
    lake.erase()
    assert lake.step() == ()
    lake.settled()
    assert lake.former() == clean
    assert lake.step() == ()


def test_versions_of_deleted_files_with_records_that_no_search_has_seen_are_named(made: Callable[..., Lake]) -> None:
    lake = made()
    [key] = {key for key in lake.former() if "_3_4_" in key}

    def named(unseen: Unseen) -> list[str]:
        return [item.key for item in unseen_files(lake.world.table, unseen)]

    assert named(Unseen({(0, 0): Intervals([(4, 5)]), (0, 1): Intervals([(0, 9)])}, ())) == [key]
    assert (named(Unseen({}, {key})), named(Unseen({(0, 0): Intervals([(9, 12)])}, ()))) == ([key], [])
    for version in lake.admin.list_object_versions(Bucket=lake.name, Prefix=key)["Versions"]:
        lake.admin.delete_object(Bucket=lake.name, Key=key, VersionId=version["VersionId"])
    assert named(Unseen({}, {key})) == []


def test_the_daily_vacuum_leaves_versions_to_the_pass(made: Callable[..., Lake]) -> None:
    lake = made()
    lake.erase()
    with as_of(lake.world, OLDER):
        vacuum(lake.world.table)
    assert len(lake.holders()) >= 4
    assert lake.step() == ()
    lake.settled()


def test_a_version_under_a_lock_stays_with_its_date_and_goes_after_it(made: Callable[..., Lake]) -> None:
    lake, key, version, until, remaining = _locked(made, 4)
    [item] = remaining
    assert (item.key, item.version, item.until) == (key, version, until)
    assert item.why == "is kept by Object Lock in compliance mode"
    assert lake.holders() == {key}
    wait_until(lambda: lake.world.table.store.now() > until, what="the end of the lock by the store's clock")
    assert lake.step() == ()
    lake.settled()


def _locked(made: Callable[..., Lake], seconds: int) -> tuple[Lake, str, str, datetime, tuple[Remaining, ...]]:
    """A pass with a version under a lock of ``seconds``, or of more, if it ended before the pass."""
    lake = made()
    lake.erase()
    [key] = [key for key in lake.former() if "_0_2_" in key]
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=seconds)
    version = lake.lock(key, until)
    remaining = lake.step()
    in_time = lake.world.table.store.now() < until
    return (lake, key, version, until, remaining) if in_time else _locked(made, 4 * seconds)


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_pass_that_dies_at_any_write_is_completed_by_the_next(
    made: Callable[..., Lake], carried_out: bool, rng: random.Random, full: bool
) -> None:
    died = 0
    for after in range(40) if full else [rng.randrange(20)]:
        lake = made()
        lake.erase()
        try:
            with killed(after, lambda: carried_out, S3Store):
                vacuum(lake.world.table, versions=True)
        except Died:
            died += 1
        lake.world.check()
        assert lake.step() == ()
        lake.settled()
    assert died


def test_a_pass_works_under_its_own_role(
    made: Callable[..., Lake], server: OwnBuckets, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = made(raw=PREFIX, lake="tables")
    lake.world.raw.segment([simple(9)])
    lake.world.land()
    lake.before = lake.world.rows()
    lake.erase()
    with monkeypatch.context() as patch:
        for name, value in server.env("erasure").items():
            patch.setenv(name, value)
        forget_clients()
        assert erase_seals(lake.world.table, 7, in_process).remaining == ()
        assert lake.step() == ()
    forget_clients()
    lake.settled()
    role, keys, raw = server.client("erasure"), lake.world.table.keys, lake.world.raw
    state = [keys.ledger(ledger.n, ledger.attempt) for ledger in [lake.world.ledger]]
    kept = [(server.lake, key) for key in (*state, f"{keys.root}/_delta_log/{0:020d}.json")]
    kept += [(server.raw, key) for key in (raw.keys().watermark, ControlKeys(PREFIX, "east").incarnations("orders"))]
    for bucket, key in kept:
        version = lake.admin.head_object(Bucket=bucket, Key=key)["VersionId"]
        assert refused(role.delete_object, Bucket=bucket, Key=key, VersionId=version), key


def test_a_live_file_that_somebody_deleted_can_be_restored(made: Callable[..., Lake]) -> None:
    lake = made()
    lake.erase()
    keys = lake.world.table.keys
    [live] = [file.path for file in lake.world.seen()._live]
    lake.admin.delete_object(Bucket=lake.name, Key=f"{keys.root}/{live}")
    vacuum(lake.world.table, versions=True)
    assert f"{keys.root}/{live}" in {key for key, _ in lake.versions()}


def test_the_state_table_is_named_until_it_follows_and_loses_its_versions(made: Callable[..., Lake]) -> None:
    lake = made("state: {}")
    world = lake.world
    advance(world)
    held = {key for key in lake.holders() if "orders_current" in key}
    assert held
    lake.erase()
    at = world.table.store.now()
    assert {item.key for item in state_files(world.table, at)} >= held
    advance(world)
    assert {item.key for item in state_files(world.table, at)} == held, "of the commit before"
    table = StateTable.open(world.table)
    ledger = table.committed()
    assert isinstance(ledger, StateLedger)
    for key in held:
        world.table.store.delete(key)
    assert list(state_files(world.table, at)) == []
    assert lake.step() == ()
    lake.settled()
    assert {f"{table.root}/{leaf.path}" for leaf in ledger.leaves} <= {key for key, _ in lake.versions()}
