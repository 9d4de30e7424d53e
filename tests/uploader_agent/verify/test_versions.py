"""A raw bucket that keeps versions, each locked: the agent works as ever, and what somebody spoilt can be undone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.s3 import OwnBuckets
from tests.uploader_agent.fakes import CLUSTER, ID, T, World, records
from tests.uploader_agent.stored.test_foreign_epochs import FORGED, forge
from tests.uploader_agent.test_policies import PREFIX, refused, statements
from tests.uploader_agent.verify.test_verify import examine
from tidemark.formats.keys import ControlKeys, Endpoint, SegmentName
from tidemark.store import StoreOptions, open_store
from tidemark.store.s3.clients import forget_clients
from uploader_agent.broker.admin import Led
from uploader_agent.verify import Severity


@pytest.fixture(scope="module")
def server(own_buckets: Callable[..., OwnBuckets]) -> OwnBuckets:
    users = {"agent": statements("agent"), "other": statements("agent", broker=2), "undo": statements("undo")}
    return own_buckets(locked=("raw",), users=users)


@pytest.fixture
def stored(world: World, server: OwnBuckets, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """[0, 200) in two segments and a quiet tail up to 250, uploaded by the agent under its own role."""
    for name, value in server.env("agent").items():
        monkeypatch.setenv(name, value)
    forget_clients()
    world.store.inner = open_store(f"s3://{server.raw}", StoreOptions(endpoint_url=server.endpoint, path_style=True))
    world.store.url = f"s3://{server.raw}/{PREFIX}"
    world.endpoint, world.control = Endpoint(f"s3://{server.raw}", PREFIX), ControlKeys(PREFIX, CLUSTER)
    world.disk.partition().fill(0, 100, end=200).segment(200, records(200, 250))
    world.once(tail_after="0s")
    yield world
    forget_clients()
    admin = server.client()
    for one in versions(server, PREFIX, user="admin"):
        admin.delete_object(
            Bucket=server.raw, Key=one["Key"], VersionId=one["VersionId"], BypassGovernanceRetention=True
        )


def versions(server: OwnBuckets, prefix: str, user: str = "undo") -> list[dict[str, Any]]:
    """All versions below ``prefix``, markers of deletes among them, as ``list-object-versions`` shows them."""
    pages = server.client(user).list_object_versions(Bucket=server.raw, Prefix=prefix)
    found: list[Any] = [*pages.get("Versions", []), *pages.get("DeleteMarkers", [])]
    return found


def undo(server: OwnBuckets, key: str) -> bytes:
    """The recipe of ``docs/security.md``: find the version, keep it, take it away; what was is current again."""
    client = server.client("undo")
    [bad] = [one["VersionId"] for one in versions(server, key) if one["IsLatest"]]
    kept = client.get_object(Bucket=server.raw, Key=key, VersionId=bad)["Body"].read()
    assert refused(client.delete_object, Bucket=server.raw, Key=key, VersionId=bad), "it is locked"
    client.delete_object(Bucket=server.raw, Key=key, VersionId=bad, BypassGovernanceRetention=True)
    return kept


def test_the_agent_leaves_no_second_version(stored: World, server: OwnBuckets) -> None:
    assert stored.watermark()[1].next_offset == 250
    disk, key = stored.disk.partition(), stored.keys().segment(SegmentName(200), "log")
    disk.segment(200, records(200, 300))
    disk.roll(300)
    stored.once()
    assert (stored.watermark()[1].next_offset, stored.stored(250)) == (300, records(250, 300))
    disk.lineage([(3, 0), (4, 200)])
    disk.segment(200, records(200, 300, epoch=4, value="other"))
    stored.metadata.leads = {T: Led(4, ID)}
    stored.once()
    assert stored.stored(200, suffix="4") == records(200, 300, epoch=4, value="other")
    assert [one["Size"] for one in versions(server, key) if one["Key"] == key] == [len(records(200, 250))]
    assert examine(stored, deep=True)[0] in {Severity.OK, Severity.TRUNCATED}


def test_no_role_of_ours_takes_a_version_away(stored: World, server: OwnBuckets) -> None:
    [one] = versions(server, stored.keys().segment(SegmentName(0), "log"))
    for user in ("agent", "other"):
        where = {"Bucket": server.raw, "Key": one["Key"], "VersionId": one["VersionId"]}
        assert refused(server.client(user).delete_object, **where)
        assert refused(server.client(user).delete_object, **where, BypassGovernanceRetention=True)
        assert refused(server.client(user).list_object_versions, Bucket=server.raw, Prefix=PREFIX)


def test_a_forged_watermark_is_undone(stored: World, server: OwnBuckets) -> None:
    """What an agent of another broker may write, since its broker may come to lead."""
    before, key = stored.watermark(), stored.keys().watermark
    body = forge(stored)
    server.client("other").put_object(Bucket=server.raw, Key=key, Body=stored.store.inner.get(key).body)
    stored.disk.partition().segment(200, records(200, 300)).roll(300)
    stored.once()
    assert stored.watermark()[1].leader_epoch == body.watermark.leader_epoch == FORGED
    assert b'"leader_epoch":1073741824' in undo(server, key)
    undo(server, key)
    assert stored.watermark() == before
    stored.once()
    assert stored.watermark()[1].order == (0, 3, 300)


def test_a_spoilt_segment_is_undone(stored: World, server: OwnBuckets) -> None:
    """Under the ETag that its manifest names."""
    key = stored.keys().segment(SegmentName(100), "log")
    server.client("other").put_object(Bucket=server.raw, Key=key, Body=b"spoilt")
    assert examine(stored)[0] is not Severity.OK
    assert undo(server, key) == b"spoilt"
    assert stored.stored(100) == records(100, 200)
    assert examine(stored, deep=True) == (Severity.OK, [])


@pytest.mark.essential
def test_a_deleted_segment_is_undone(stored: World, server: OwnBuckets) -> None:
    key = stored.keys().segment(SegmentName(0), "log")
    server.client().delete_object(Bucket=server.raw, Key=key)
    assert examine(stored)[0] is Severity.GAP
    [marker] = [one["VersionId"] for one in versions(server, key) if one["IsLatest"]]
    client = server.client("undo")
    client.delete_object(Bucket=server.raw, Key=key, VersionId=marker, BypassGovernanceRetention=True)
    assert examine(stored, deep=True) == (Severity.OK, [])


def test_the_lifecycle_rules_are_taken(server: OwnBuckets) -> None:
    """They, and nobody's role, free the space of former versions."""
    text = (ROOT / "deploy" / "lifecycle" / "raw.json").read_text(encoding="utf-8").replace("<prefix>", PREFIX)
    admin = server.client()
    admin.put_bucket_lifecycle_configuration(Bucket=server.raw, LifecycleConfiguration=json.loads(text))
    rules: list[Any] = admin.get_bucket_lifecycle_configuration(Bucket=server.raw)["Rules"]
    assert {one["NoncurrentVersionExpiration"]["NoncurrentDays"] for one in rules} == {30, 1}
