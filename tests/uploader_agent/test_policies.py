"""The policies under deploy/policies as a real S3 server enforces them, and the agent at work under its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from tests.support.paths import ROOT
from tests.support.s3 import S3Server
from tests.support.waiting import HUNG
from tests.uploader_agent.fakes import records
from tests.uploader_agent.operated import Operated

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

POLICIES = ROOT / "deploy" / "policies"
PREFIX = "prod"
FOLDER = f"{PREFIX}/test-cluster/orders-0"
LOG, WATERMARK = f"{FOLDER}/{0:020d}.log", f"{FOLDER}/offset.wm"
KEPT = [WATERMARK, f"{PREFIX}/_superseded/test-cluster/orders-0/3/a.log", f"{PREFIX}/_topics/test-cluster/orders.json"]


def statements(name: str) -> list[dict[str, object]]:
    """A policy's statements for the buckets ``raw`` and ``lake``, and our prefixes."""
    text = (POLICIES / f"{name}.json").read_text(encoding="utf-8")
    for name, value in {"<bucket>": "raw", "<prefix>": PREFIX, "<lake>": "lake", "<tables>": "tables"}.items():
        text = text.replace(name, value)
    document = json.loads(text)
    assert document["Version"] == "2012-10-17"
    found: list[dict[str, object]] = document["Statement"]
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    users = {path.stem: statements(path.stem) for path in sorted(POLICIES.glob("*.json"))}
    with S3Server(tmp_path_factory.mktemp("s3"), users=users) as server:
        yield server


@pytest.fixture
def stored(server: S3Server) -> None:
    """Objects that an administrator has put where policies allow and where they do not."""
    for bucket, key in [("raw", LOG), *(("raw", key) for key in KEPT), ("raw", "elsewhere/a"), ("lake", LOG)]:
        server.client().put_object(Bucket=bucket, Key=key, Body=b"x")


def refused(call: Callable[..., object], **arguments: Any) -> bool:
    """Whether the server answers with AccessDenied, and with nothing else that went wrong."""
    try:
        call(**arguments)
    except ClientError as error:
        if error.response["Error"]["Code"] != "AccessDenied":
            raise
        return True
    return False


def test_the_agent_works_under_its_policy(server: S3Server, tmp_path: Path) -> None:
    """It creates by If-None-Match, replaces by If-Match, copies aside, and lists."""
    operated = Operated(
        tmp_path,
        raw={"url": f"s3://raw/{PREFIX}"},
        store={"endpoint_url": server.endpoint, "path_style": True},
        tail_after="0s",
    )
    disk, environment = operated.disk.partition(), server.env("agent")
    disk.fill(0, end=100)
    disk.segment(100, records(100, 150))

    def once() -> set[str]:
        assert operated.process("upload-once", env=environment).start().wait(HUNG) == 0, operated.log()
        pages = server.client().list_objects_v2(Bucket="raw", Prefix=f"{PREFIX}/")
        return {one["Key"].removeprefix(f"{FOLDER}/") for one in pages["Contents"]}

    assert f"{100:020d}.manifest.json" in once(), "a provisional tail"
    disk.segment(100, records(100, 200))
    disk.roll(200)
    assert f"{200:020d}.snapshot" in once(), "replaced by If-Match"
    body = server.client().get_object(Bucket="raw", Key=WATERMARK)["Body"].read()
    assert json.loads(body.splitlines()[1])["next_offset"] == 200
    disk.lineage([(3, 0), (4, 100)])
    disk.segment(100, records(100, 200, epoch=4, value="other"))
    assert any(name.startswith(f"{PREFIX}/_superseded/") for name in once()), "the older branch is copied aside"
    assert "AccessDenied" not in operated.log()


def test_the_agent_cannot_delete_nor_reach_elsewhere(server: S3Server, stored: None) -> None:
    agent = server.client("agent")
    assert refused(agent.delete_object, Bucket="raw", Key=LOG)
    several = agent.delete_objects(Bucket="raw", Delete={"Objects": [{"Key": LOG}, {"Key": KEPT[1]}]})
    assert [one["Code"] for one in several["Errors"]] == ["AccessDenied"] * 2
    for bucket, key in [("raw", "elsewhere/a"), ("raw", "prod-2/a"), ("lake", LOG)]:
        assert refused(agent.put_object, Bucket=bucket, Key=key, Body=b"y")
        assert refused(agent.get_object, Bucket=bucket, Key=key)
    assert refused(agent.list_objects_v2, Bucket="lake")
    assert refused(agent.delete_bucket, Bucket="raw")
    assert server.client().get_object(Bucket="raw", Key=LOG)["Body"].read() == b"x"


def test_conditions_and_multipart_work_under_the_agents_policy(server: S3Server, stored: None) -> None:
    agent = server.client("agent")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        agent.put_object(Bucket="raw", Key=LOG, Body=b"y", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        agent.put_object(Bucket="raw", Key=LOG, Body=b"y", IfMatch='"00000000000000000000000000000000"')
    with pytest.raises(ClientError, match="404"):
        agent.head_object(Bucket="raw", Key=f"{FOLDER}/missing")
    upload = agent.create_multipart_upload(Bucket="raw", Key=f"{FOLDER}/big.log")["UploadId"]
    agent.upload_part(Bucket="raw", Key=f"{FOLDER}/big.log", UploadId=upload, PartNumber=1, Body=b"y")
    agent.abort_multipart_upload(Bucket="raw", Key=f"{FOLDER}/big.log", UploadId=upload)


def test_a_reader_gets_and_lists(server: S3Server, stored: None) -> None:
    reader = server.client("reader")
    assert reader.get_object(Bucket="raw", Key=LOG)["Body"].read() == b"x"
    assert LOG in {one["Key"] for one in reader.list_objects_v2(Bucket="raw", Prefix=f"{FOLDER}/")["Contents"]}
    assert changes_nothing(reader)
    assert refused(reader.delete_object, Bucket="raw", Key=LOG)
    assert refused(reader.get_object, Bucket="raw", Key="elsewhere/a")
    assert refused(reader.get_object, Bucket="lake", Key=LOG)


def test_retention_deletes_segments_and_nothing_else(server: S3Server, stored: None) -> None:
    retention = server.client("retention")
    assert changes_nothing(retention)
    for bucket, key in [*(("raw", key) for key in KEPT), ("raw", "elsewhere/a"), ("lake", LOG)]:
        assert refused(retention.delete_object, Bucket=bucket, Key=key), key
    tombstone = {"Bucket": "raw", "Key": f"{PREFIX}/_tombstones/test-cluster/orders-0/0-1.json"}
    assert not refused(retention.put_object, **tombstone)
    assert refused(retention.delete_object, **tombstone)
    assert not refused(retention.delete_object, Bucket="raw", Key=LOG)
    left = {one["Key"] for one in server.client().list_objects_v2(Bucket="raw")["Contents"]}
    assert LOG not in left
    assert {*KEPT, "elsewhere/a"} <= left


def changes_nothing(client: S3Client) -> bool:
    """Whether it can neither create nor overwrite nor copy."""
    return (
        refused(client.put_object, Bucket="raw", Key=LOG, Body=b"y")
        and refused(client.put_object, Bucket="raw", Key=f"{FOLDER}/new.log", Body=b"y")
        and refused(client.copy_object, Bucket="raw", Key=f"{FOLDER}/copy", CopySource={"Bucket": "raw", "Key": LOG})
        and refused(client.create_multipart_upload, Bucket="raw", Key=f"{FOLDER}/new.log")
    )
